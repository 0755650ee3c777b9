"""The program: training, resuming, planning, information; errors as one line and an exit status."""

import gzip
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina.cli import main
from lamina.cli.networks import NETWORKS

TINY = ["train", "lenet", "--device", "cpu", "--batch", "32"]


def train(*more: str) -> int:
    return main([*TINY, *more])


def test_train_prints_a_bar_less_report_and_the_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--epochs", "2", "--shift", "0") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("lenet: 0.1 million parameters, fp32 on the CPU")
    assert lines[1] == "digits: 1079 samples to learn from, 359 held out; 2 epochs of 33 steps of 32"
    assert [line[:8] for line in lines[2:4]] == ["epoch 1:", "epoch 2:"]
    assert lines[4].startswith("accuracy on held-out samples: ")
    assert float(lines[4].split()[4]) > 80.0


@pytest.mark.parametrize(
    "more", [["--optimizer", "adam"], ["--precision", "bf16"], ["--algorithm", "fastest"]]
)
def test_train_with_other_arguments(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--limit-steps", "3", *more) == 0
    assert "accuracy on held-out samples" in capsys.readouterr().out


def test_train_alexnet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    losses = tmp_path / "losses.json"
    arguments = ["train", "alexnet", "--device", "cpu", "--batch", "4", "--limit-steps", "2", "--seed", "3"]
    assert main([*arguments, "--losses", str(losses)]) == 0
    found = json.loads(losses.read_text())
    assert len(found["losses"]) == 2
    assert all(0.5 < loss < 6 for loss in found["losses"])
    assert 0 <= found["held_out"] <= 1
    assert "alexnet: 46.8 million parameters" in capsys.readouterr().out


@pytest.mark.feature("B029")
def test_resume_goes_on_exactly(tmp_path: Path) -> None:
    run, begun, whole = (str(tmp_path / name) for name in ("run", "begun.json", "whole.json"))
    assert train("--epochs", "2", "--losses", whole) == 0
    assert train("--epochs", "2", "--limit-steps", "50", "--out", run, "--losses", begun) == 0
    rest = str(tmp_path / "rest.json")
    assert train("--epochs", "2", "--resume", run, "--out", run, "--losses", rest, "--seed", "0") == 0
    read = [json.loads(Path(f).read_text())["losses"] for f in (begun, rest, whole)]
    assert len(read[0]) == 50
    assert read[0] + read[1] == read[2]


def test_weights_are_for_other_programs(tmp_path: Path) -> None:
    file = tmp_path / "lenet.safetensors"
    assert train("--limit-steps", "1", "--weights", str(file)) == 0
    net = lm.nn.LeNet()
    assert net.load_state_dict(lm.load_safetensors(file)) == ([], [])


def test_mnist_from_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    for prefix, count in (("train", 64), ("t10k", 20)):
        for kind, array in (
            ("images-idx3", rng.integers(0, 256, (count, 28, 28)).astype(np.uint8)),
            ("labels-idx1", rng.integers(0, 10, count).astype(np.uint8)),
        ):
            head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            (tmp_path / f"{prefix}-{kind}-ubyte.gz").write_bytes(gzip.compress(head + array.tobytes()))
    assert train("--data", str(tmp_path), "--epochs", "1") == 0
    assert "53 samples to learn from, 11 held out; 1 epochs of 1 steps" in capsys.readouterr().out


def test_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "lenet", "--batch", "4", "--device", "cpu", "--train", "--graph"]) == 0
    text = capsys.readouterr().out
    for part in ("sgd_update", "max_pool_grad", "kernels on cpu (cpu)", "planned", "unplanned", "return %"):
        assert part in text
    assert main(["plan", "alexnet", "--batch", "4096", "--backend", "null", "--device", "cpu"]) == 0
    assert "(null)" in capsys.readouterr().out


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    for part in (
        "lamina",
        "Devices",
        "cpu",
        "cudnn",
        "onednn",
        "Caches",
        "LAMINA_CACHE",
        "numpy",
        np.__version__,
    ):
        assert part in text


@pytest.mark.parametrize("network", NETWORKS)
def test_every_network_can_be_planned(network: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", network, "--backend", "null", "--device", "cpu", "--train"]) == 0
    assert "sgd_update" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "nothing"], "lamina train: --data: 'nothing' is neither 'digits' nor a folder"),
        (["--data", "{tmp}"], "there is no file train-images-idx3-ubyte"),
        (["--device", "tpu"], "lamina train: device: expected 'cpu', 'cuda' or 'cuda:N', got 'tpu'"),
        (["--device", "cuda:99"], "device 'cuda:99' cannot be used"),
        (["--batch", "2000"], "1079 samples make no batch of 2000"),
        (["--out", "{tmp}/no/such/run"], "the folder {tmp}/no/such does not exist"),
        (["--resume", "{tmp}/absent"], "No such file"),
        (["--size", "4"], "a kernel of 5"),
    ],
)
def test_errors_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    filled = [a.format(tmp=tmp_path) for a in arguments]
    assert train(*filled) == 1
    error = capsys.readouterr().err
    assert message.format(tmp=tmp_path) in error
    assert "Traceback" not in error


def test_an_unsound_checkpoint_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run"
    assert train("--limit-steps", "1", "--out", str(file)) == 0
    file.write_bytes(file.read_bytes()[:-1])
    assert train("--limit-steps", "1", "--resume", str(file)) == 1
    assert "not a sound safetensors file" in capsys.readouterr().err
    assert train("--epochs", "1", "--out", str(file)) == 0
    assert train("--epochs", "1", "--resume", str(file)) == 1
    assert "has 1 epochs; ask for more with --epochs" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["train"],
        ["train", "lenet", "--epochs", "0"],
        ["train", "lenet", "--lr", "-1"],
        ["info", "-x"],
    ],
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: lamina" in capsys.readouterr().err


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--version"], ["--help"], ["train", "--help"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
    assert f"lamina {lm.__version__}" in capsys.readouterr().out


def test_interrupts_and_faults(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lamina.cli.train.fit", interrupted)
    assert train() == 130
    assert "interrupted" in capsys.readouterr().err
    with pytest.raises(ValueError, match="--data"):
        train("--data", "nothing", "--traceback")


@pytest.mark.feature("B038")
def test_plan_times_kernels_and_writes_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, figures = tmp_path / "plan.html", tmp_path / "plan.json"
    command = ["plan", "lenet", "--batch", "4", "--device", "cpu", "--train", "--time"]
    assert main([*command, "--html", str(page), "--json", str(figures)]) == 0
    assert "of the limit" in capsys.readouterr().out
    found = json.loads(figures.read_text())
    assert all(kernel["milliseconds"] > 0 for kernel in found["kernels"])
    assert page.read_text().startswith("<!doctype html>")
