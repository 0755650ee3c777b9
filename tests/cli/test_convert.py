"""lamina convert: formats there and back bit by bit, other names, shards, errors."""

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

import lamina as lm
from lamina.cli import main
from lamina.files.weights import open_weights
from tests.helpers import onnx_models

pytestmark = pytest.mark.feature("B025")

STATE = {
    "a.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "a.eight": np.arange(4).astype(ml_dtypes.float8_e5m2),
    "a.count": np.array(3, np.uint32),
    "a.half": np.arange(5).astype(ml_dtypes.bfloat16),
}


def arrays(file: Path) -> dict[str, np.ndarray]:
    """As the file has them."""
    with open_weights(file) as found:
        return {name: x.read() for name, x in found.tensors.items()}


def test_there_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, middle, last = (tmp_path / n for n in ("a.safetensors", "b.pt", "c.safetensors"))
    lm.save_weights(STATE, first)
    assert main(["convert", str(first), str(middle)]) == 0
    assert capsys.readouterr().out == "a.safetensors: 4 tensors, 66 B, written to b.pt\n"
    assert main(["convert", str(middle), str(last)]) == 0
    assert first.read_bytes() == last.read_bytes()
    for name, array in arrays(middle).items():
        assert array.dtype == STATE[name].dtype
        assert array.tobytes() == STATE[name].tobytes()


def test_checkpoints_names_and_shards(tmp_path: Path) -> None:
    lm.save_torch(
        {"epoch": 1, "net": {"module.pre_logits.fc1.weight": np.ones((2, 3, 2, 2))}, "more": STATE},
        tmp_path / "c.pth",
    )
    out = tmp_path / "o.safetensors"
    options = ["--key", "net", "--prefix", "module.", "--names", "timm"]
    assert main(["convert", str(tmp_path / "c.pth"), str(out), *options]) == 0
    assert arrays(out)["classifier.0.weight"].shape == (2, 12)
    assert main(["convert", str(tmp_path / "c.pth"), str(out), "--key", "more", "--shard-size", "50 B"]) == 0
    back = tmp_path / "back.pt"
    assert main(["convert", f"{out}.index.json", str(back)]) == 0
    assert list(arrays(back)) == list(STATE)


@pytest.mark.feature("B026", "B037")
def test_a_model_becomes_weights_and_comes_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proto = onnx_models.model(
        [helper.make_node("Gemm", ["x", "fc.weight", "fc.bias"], ["y"], transB=1)],
        {"x": ("N", 4)}, {"y": ("N", 3)},
        **{"fc.weight": STATE["a.weight"], "fc.bias": np.ones(3, np.float32)},
    )  # fmt: skip
    first, middle, last = (tmp_path / n for n in ("a.onnx", "b.safetensors", "c.onnx"))
    first.write_bytes(proto.SerializeToString())
    assert main(["convert", str(first), str(middle)]) == 0
    assert capsys.readouterr().out == "a.onnx: 2 tensors, 60 B, written to b.safetensors\n"
    assert set(lm.load_safetensors(middle)) == {"fc.weight", "fc.bias"}
    assert main(["convert", str(middle), str(last)]) == 0
    assert onnx.load(last) == proto
    assert main(["plan", str(last), "--batch-size", "2"]) == 0
    assert "matmul" in capsys.readouterr().out
    assert main(["plan", str(last), "--train"]) == 1
    assert "--train: a model's file names no loss" in capsys.readouterr().err
    lm.save_weights(STATE, middle)
    assert main(["convert", str(middle), str(last)]) == 1
    assert "b.safetensors: holds no ONNX model: its format is None" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["a.npz", "b.pt"], "IN: 'a.npz' ends in none of .safetensors, .index.json, .pt"),
        (["a.safetensors", "b.npz"], "OUT: 'b.npz' ends in none of .safetensors, .pt"),
        (["a.safetensors", "b.pt", "--key", "x"], "key='x': there is nothing but weights in this file"),
        (
            ["a.safetensors", "b.pt", "--shard-size", "1 B"],
            "--shard-size: only safetensors files come in shards",
        ),
        (["none.pt", "b.pt"], "No such file"),
    ],
)
def test_errors_are_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    error: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    lm.save_weights(STATE, "a.safetensors")
    assert main(["convert", *arguments]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("lamina convert: ")
    assert error in shown
    assert shown.count("\n") == 1


def test_the_weights_of_a_model_of_onnx(tmp_path: Path) -> None:
    net = lm.nn.Sequential(lm.nn.Linear(3, 4), lm.nn.ReLU(), lm.nn.Linear(4, 2))
    lm.convert.to_onnx(net, lm.Spec((1, 3), lm.float32), path=tmp_path / "n.onnx", check=False)
    assert main(["convert", str(tmp_path / "n.onnx"), str(tmp_path / "n.pt")]) == 0
    found = {a.tobytes() for a in arrays(tmp_path / "n.pt").values()}
    assert {x.numpy().tobytes() for x in net.state_dict().values()} <= found | {
        a.T.tobytes() for a in arrays(tmp_path / "n.pt").values()
    }
