"""Weights are found in any file, get other names, and are written whole or in shards."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina.files import WeightsError, load_weights, save_torch, save_weights
from lamina.files.weights import joined, open_weights, renamed
from lamina.train import AveragedModel, save_checkpoint

pytestmark = pytest.mark.feature("B025", "B042")

STATE = {f"layer{i}.weight": np.full((4, 4), i, np.float32) for i in range(5)}


def same(found: Any, wanted: Any = STATE) -> None:
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name].numpy(), array)


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt", "w.pth", "w.bin"])
def test_the_content_says_what_a_file_is(tmp_path: Path, name: str) -> None:
    assert save_weights(STATE, tmp_path / name) == [tmp_path / name]
    same(load_weights(tmp_path / name))
    (tmp_path / name).rename(tmp_path / "w")
    same(load_weights(tmp_path / "w"))


def test_other_endings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'.*w\.npz' ends in none of \.safetensors, \.pt"):
        save_weights(STATE, tmp_path / "w.npz")
    with pytest.raises(ValueError, match="have no metadata and shards"):
        save_weights(STATE, tmp_path / "w.pt", shard_bytes=5)
    with pytest.raises(TypeError, match="save_weights: takes what to save, then the path, got {'layer0"):
        save_weights(tmp_path / "w.pt", STATE)  # type: ignore[arg-type]


@pytest.mark.parametrize("content", [b"", b"no weights at all"])
def test_a_file_of_neither_kind_is_called_that(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w.pt").write_bytes(content)
    with pytest.raises(
        WeightsError, match=r"w.pt: holds no weights: it is neither of torch.save nor safetensors \("
    ):
        load_weights(tmp_path / "w.pt")


def test_weights_are_found_in_a_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "c.pt"
    save_torch(
        {"epoch": 3, "state_dict": {"module." + k: v for k, v in STATE.items()}, "optimizer": {"lr": 0.1}},
        file,
    )
    same(load_weights(file, prefix="module."))
    save_torch({"model": STATE, "ema": {"shadow": STATE}}, file)
    with pytest.raises(
        KeyError, match=r"several parts hold tensors; name one by key=: 'model', 'ema\.shadow'"
    ):
        load_weights(file)
    same(load_weights(file, key="ema.shadow"))
    with pytest.raises(KeyError, match="no key='model.x': no 'x' in 'layer0.weight'"):
        load_weights(file, key="model.x")
    with pytest.raises(WeightsError, match="not a mapping of names to tensors"):
        load_weights(file, key="ema")
    save_torch({"epoch": 3}, file)
    with pytest.raises(WeightsError, match="no mapping of names to tensors in it"):
        load_weights(file)


def test_shards_go_both_ways(tmp_path: Path) -> None:
    files = save_weights(STATE, tmp_path / "w.safetensors", shard_bytes=130, metadata={"note": "é"})
    assert [f.name for f in files] == [
        "w-00001-of-00003.safetensors", "w-00002-of-00003.safetensors", "w-00003-of-00003.safetensors",
        "w.safetensors.index.json",
    ]  # fmt: skip
    same(load_weights(files[-1]))
    facts = json.loads(files[-1].read_text(encoding="utf-8"))["metadata"]
    assert facts["total_size"] == sum(array.nbytes for array in STATE.values())
    save_weights(
        {"layer0.weight": np.ones((4, 4), np.float32), "layer1.weight": STATE["layer1.weight"]}, files[0]
    )
    with pytest.raises(WeightsError, match="not the shard that .* was written with"):
        load_weights(files[-1])
    assert len(save_weights(STATE, tmp_path / "w.safetensors", shard_bytes=10**9)) == 1
    with pytest.raises(ValueError, match="shard_bytes=0"):
        save_weights(STATE, tmp_path / "w.safetensors", shard_bytes=0)


@pytest.mark.parametrize(
    "name",
    ["../other.safetensors", "/etc/passwd", "", "..", "a/b", "a\\b", "a\0b", [[1]], {}, "i.index.json"],
)
def test_shards_lie_beside_their_index(tmp_path: Path, name: Any) -> None:
    save_weights(STATE, tmp_path / "other.safetensors")
    index = tmp_path / "in" / "w.index.json"
    index.parent.mkdir()
    index.write_text(json.dumps({"weight_map": {"layer0.weight": name}}))
    with pytest.raises(WeightsError, match=r"w\.index\.json"):
        load_weights(index)


def test_shards_of_others_are_read(tmp_path: Path) -> None:
    save_torch({"a": np.ones(2, np.float32)}, tmp_path / "pytorch_model-1.bin")
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 8}, "weight_map": {"a": "pytorch_model-1.bin"}}))
    assert load_weights(index)["a"].numpy().tolist() == [1, 1]
    index.write_text(json.dumps({"weight_map": {"b": "pytorch_model-1.bin"}}))
    with pytest.raises(WeightsError, match="'b' is not in 'pytorch_model-1.bin'"):
        load_weights(index)
    index.write_text(json.dumps({"weight_map": {"b": "none.bin"}}))
    with pytest.raises(FileNotFoundError):
        load_weights(index)


def test_names_are_changed_left_out_and_joined(tmp_path: Path) -> None:
    rules = {r"^q\.": "qkv#0.", r"position_ids$": None, r"^(\w)\.(\w+)$": r"\1_\2"}
    assert renamed({"a.b": 1, "x.position_ids": 2}, rename=rules) == {"a_b": 1}
    with pytest.raises(WeightsError, match="'a' and 'b' would both be named 'c'"):
        renamed({"a": 1, "b": 2}, rename={"[ab]": "c"})
    parts = {"w#1": np.ones(1), "v": np.ones(3), "w#0": np.zeros(2)}
    assert {k: v.tolist() for k, v in joined(parts).items()} == {"w": [0, 0, 1], "v": [1, 1, 1]}
    with pytest.raises(WeightsError, match=r"of 'w' there are only the parts \[1\]"):
        joined({"w#1": np.ones(1)})
    save_weights(STATE, tmp_path / "w.safetensors")
    found = load_weights(tmp_path / "w.safetensors", rename={r"layer(\d)\.weight": r"w#\1"})
    assert found["w"].shape == (20, 4)


def test_they_are_public_and_fit_a_module(tmp_path: Path) -> None:
    net = lm.nn.Linear(3, 2)
    lm.save_weights(net, tmp_path / "net.pt")
    other = lm.nn.Linear(3, 2)
    other.load_state_dict(lm.load_weights(tmp_path / "net.pt"))
    np.testing.assert_array_equal(other.weight.numpy(), net.weight.numpy())
    assert lm.load_torch(tmp_path / "net.pt").keys() == {"weight", "bias"}


def network() -> lm.nn.Module:
    return lm.nn.Sequential(lm.nn.Linear(3, 2), lm.nn.BatchNorm1d(2))


def test_the_network_of_a_training_run(tmp_path: Path) -> None:
    """Of what `save_checkpoint` wrote: a step's own by default, the averages, or one of several objects."""
    file, net = tmp_path / "run.safetensors", network()
    averaged = AveragedModel(net)
    step = lm.train_step(net, lm.ops.mse_loss, lm.optim.Adam(lr=0.1), device="cpu", averaged=averaged)
    step(np.ones((4, 3), np.float32), np.ones((4, 2), np.float32))
    save_checkpoint(file, step)
    same(load_weights(file), {n: x.numpy() for n, x in net.state_dict().items()})
    other = network()
    other.load_state_dict(load_weights(file))
    same(other.state_dict(), {n: x.numpy() for n, x in net.state_dict().items()})
    averages = load_weights(file, key="averaged", prefix="module.", rename={"^n_averaged$": None})
    same(averages, {n: x.numpy() for n, x in averaged.module.state_dict().items()})
    with pytest.raises(
        KeyError, match="no key='ema': no 'ema' in 'parameters', 'buffers', 'optimizer', 'averaged'"
    ):
        load_weights(file, key="ema")
    save_checkpoint(file, {"first": net, "second": other})
    same(load_weights(file, key="second"), {n: x.numpy() for n, x in other.state_dict().items()})
    with pytest.raises(KeyError, match="several parts hold tensors; name one by key=: 'first', 'second'"):
        load_weights(file)
    with open_weights(file, whole=True) as found:
        assert {name.partition("/")[0] for name in found.tensors} == {"first", "second", "random"}
