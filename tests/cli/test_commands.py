"""The program: training, resuming, planning, information; errors as one line and an exit status."""

import gzip
import json
import os
import re
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina.c import cudnn
from lamina.c._library import LibraryNotFound
from lamina.cli import main
from lamina.cli.networks import NETWORKS
from lamina.cli.status import ExitStatus
from lamina.graph.passes.manager import PIPELINE
from lamina.nn.models.registry import builders
from lamina.train import DivergedError
from tests.helpers import slow_from
from tests.helpers.nn.families import FIXED, SMALL

TINY = ["train", "lenet", "--device", "cpu", "--batch-size", "32"]


def train(*more: str) -> int:
    return main([*TINY, *more])


def test_train_prints_a_bar_less_report_and_the_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--epochs", "2", "--shift", "0") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("lenet: 0.1 million parameters, fp32 on the CPU")
    assert lines[1] == "digits: 1079 train, 359 validation, 359 test samples; 2 epochs of 33 steps of 32"
    assert [line[:8] for line in lines[2:4]] == ["epoch 1:", "epoch 2:"]
    assert lines[4].startswith("test accuracy: ")
    assert float(lines[4].split()[2]) > 80.0


@pytest.mark.parametrize(
    "more", [["--optimizer", "adam"], ["--precision", "bf16"], ["--algorithm", "fastest"]]
)
def test_train_with_other_arguments(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--max-steps", "3", *more) == 0
    assert "test accuracy: " in capsys.readouterr().out


def write_images(folder: Path) -> None:
    """Digits at random in files as MNIST's: 64 to train with, 20 to test."""
    rng = np.random.default_rng(0)
    for prefix, count in (("train", 64), ("t10k", 20)):
        for kind, array in (
            ("images-idx3", rng.integers(0, 256, (count, 28, 28)).astype(np.uint8)),
            ("labels-idx1", rng.integers(0, 10, count).astype(np.uint8)),
        ):
            head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            (folder / f"{prefix}-{kind}-ubyte.gz").write_bytes(gzip.compress(head + array.tobytes()))


def test_train_alexnet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_images(tmp_path)
    losses = tmp_path / "losses.json"
    arguments = ["train", "alexnet", "--data", str(tmp_path), "--device", "cpu"]
    arguments += ["--batch-size", "4", "--max-steps", "2", "--seed", "3"]
    assert main([*arguments, "--losses", str(losses)]) == 0
    found = json.loads(losses.read_text())
    assert len(found["losses"]) == 2
    assert all(0.5 < loss < 6 for loss in found["losses"])
    assert 0 <= found["validation"] <= 1
    assert 0 <= found["test"] <= 1
    assert "alexnet: 46.8 million parameters" in capsys.readouterr().out


@pytest.mark.feature("B029")
def test_resume_goes_on_exactly(tmp_path: Path) -> None:
    run, begun, whole = (str(tmp_path / name) for name in ("run", "begun.json", "whole.json"))
    assert train("--epochs", "2", "--losses", whole) == 0
    assert train("--epochs", "2", "--max-steps", "50", "--out", run, "--losses", begun) == 0
    rest = str(tmp_path / "rest.json")
    assert train("--epochs", "2", "--resume", run, "--out", run, "--losses", rest, "--seed", "0") == 0
    read = [json.loads(Path(f).read_text())["losses"] for f in (begun, rest, whole)]
    assert len(read[0]) == 50
    assert read[0] + read[1] == read[2]


def test_weights_are_for_other_programs(tmp_path: Path) -> None:
    file = tmp_path / "lenet.safetensors"
    assert train("--max-steps", "1", "--weights", str(file)) == 0
    net = lm.nn.LeNet()
    assert net.load_state_dict(lm.load_safetensors(file)) == ([], [])


def test_mnist_from_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_images(tmp_path)
    assert train("--data", str(tmp_path), "--epochs", "1") == 0
    assert "53 train, 11 validation, 20 test samples; 1 epochs of 1 steps" in capsys.readouterr().out


def test_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "lenet", "--batch-size", "4", "--device", "cpu", "--train", "--graph"]) == 0
    text = capsys.readouterr().out
    for part in ("sgd_update", "max_pool_grad", "kernels on cpu (cpu)", "planned", "unplanned", "return %"):
        assert part in text
    assert main(["plan", "alexnet", "--batch-size", "4096", "--backend", "null", "--device", "cpu"]) == 0
    assert "(null)" in capsys.readouterr().out


def test_plan_shows_what_each_pass_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "lenet", "--device", "cpu", "--train", "--passes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    starts = [next(i for i, line in enumerate(lines) if line.startswith(f"{one.name}: ")) for one in PIPELINE]
    assert starts == sorted(starts)
    algebraic = next(line for line in lines if line.startswith("algebraic: "))
    assert re.fullmatch(r"algebraic: \d+ -> \d+ nodes; \d+ mask before spreading.*", algebraic)
    assert any(line.startswith("  refused: fused(") for line in lines)


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


#: One network of each family: the others have the same layers, of other widths and numbers.
FAMILIES = [builders()[name].command for name in SMALL | FIXED]


@pytest.mark.parametrize("network", slow_from(7, FAMILIES))
def test_training_is_planned_for_a_network_of_each_family(
    network: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", network, "--backend", "null", "--device", "cpu", "--train"]) == 0
    assert "sgd_update" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("network", [n for n in NETWORKS if n not in FAMILIES])
def test_every_network_can_be_planned(network: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", network, "--backend", "null", "--device", "cpu"]) == 0
    assert re.search(r"^\d+ kernels on cpu \(null\)", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "nothing"], "lamina train: --data: 'nothing' is neither 'digits' nor a folder"),
        (["--data", "{tmp}"], "there is no file train-images-idx3-ubyte"),
        (["--device", "tpu"], "lamina train: device: expected 'cpu', 'cuda' or 'cuda:N', got 'tpu'"),
        (["--batch-size", "2000"], "1079 samples make no batch of 2000"),
        (["--out", "{tmp}"], "is a folder, not a file"),
        (["--weights", "{tmp}"], "is a folder, not a file"),
        (["--losses", "{tmp}/no/such/run"], "the folder {tmp}/no/such does not exist"),
        (["--out", "{tmp}/no/such/run"], "the folder {tmp}/no/such does not exist"),
        (["--resume", "{tmp}/absent"], "No such file"),
        (["--size", "4"], "a kernel of 5"),
        (["--override", "lr"], "--override: says what may differ from a checkpoint; name that by --resume"),
        (["--checkpoint-every", "5"], "--checkpoint-every: name the file to write by --out"),
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
    assert train("--max-steps", "1", "--out", str(file)) == 0
    file.write_bytes(file.read_bytes()[:-1])
    assert train("--max-steps", "1", "--resume", str(file)) == 1
    assert "not a sound safetensors file" in capsys.readouterr().err
    assert train("--epochs", "1", "--out", str(file)) == 0
    assert train("--epochs", "1", "--resume", str(file)) == 1
    assert "has 1 epochs of 1; for more take a larger --epochs" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["train"],
        ["train", "lenet", "--epochs", "0"],
        ["train", "lenet", "--lr", "-1"],
        ["info", "-x"],
        ["predict", "cat.png"],
    ],
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: lamina" in capsys.readouterr().err


HOSTILE = {
    "train": [
        "--data",
        "--precision",
        "--epochs",
        "--batch-size",
        "--lr",
        "--shift",
        "--seed",
        "--memory-limit",
        "--out",
    ],
    "plan": ["--batch-size", "--device", "--memory-limit", "--backend", "--json", "--algorithm"],
    "trace": ["--"],
    "conv": [
        "--n",
        "--groups",
        "--pad",
        "--stride",
        "--dtype",
        "--machine",
        "--properties",
        "--workspace",
        "--tflops",
    ],
}
VALUES = [
    "0",
    "-1",
    "nan",
    "9" * 30,
    "",
    "'",
    "{tmp}",
    "{tmp}/junk",
    "{tmp}/deep.json",
    "{tmp}/no/x",
    "cuda:7",
    "8 GiB",
]


@pytest.mark.feature("B039")
@pytest.mark.parametrize(("command", "option"), [(c, o) for c, options in HOSTILE.items() for o in options])
def test_no_argument_ends_in_a_traceback(
    command: str,
    option: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every value of every option ends with a status, and with one line where that is neither 0 nor wrong usage."""
    monkeypatch.chdir(tmp_path)  # values that are taken for files make some
    (tmp_path / "junk").write_bytes(b"\0junk" * 50)
    (tmp_path / "deep.json").write_text("[" * 100_000)
    monkeypatch.setattr("lamina.cli.train.fit", _raiser(DivergedError("a run would begin here")))
    begin = {
        "train": TINY,
        "plan": ["plan", "lenet", "--backend", "null"],
        "conv": ["conv", "--device", "none", "--engines", "none"],
        "trace": ["trace", str(tmp_path / "out.json")],
    }[command]
    for value in VALUES:
        status = _status([*begin, option, value.format(tmp=tmp_path)])
        lines = capsys.readouterr().err.count("\n")
        assert status == ExitStatus.USAGE or lines == (status != ExitStatus.DONE)


def _status(arguments: list[str]) -> ExitStatus:
    """The exit status, argparse's too."""
    try:
        return ExitStatus(main(arguments))
    except SystemExit as ended:
        return ExitStatus(int(ended.code or 0))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["train", "lenet", "--batch", "3"], "lamina train: error: --batch is --batch-size now"),
        (["plan", "lenet", "--batch=3"], "lamina plan: error: --batch is --batch-size now"),
        (["train", "lenet", "--limit-steps", "3"], "lamina train: error: --limit-steps is --max-steps now"),
    ],
)
def test_an_old_option_says_the_new_one(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _status(arguments) == ExitStatus.USAGE
    assert text in capsys.readouterr().err


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--version"], ["--help"], ["train", "--help"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
    assert f"lamina {lm.__version__}" in capsys.readouterr().out


def _raiser(error: BaseException) -> Any:
    def raise_it(*_: Any, **__: Any) -> None:
        raise error

    return raise_it


def test_faults_of_the_program_and_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="--data"):
        train("--data", "nothing", "--traceback")
    monkeypatch.setattr("lamina.cli.train.fit", _raiser(AssertionError("a fault")))
    with pytest.raises(AssertionError, match="a fault"):
        train()


def test_a_diverged_run_has_its_own_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run"
    assert train("--lr", "1e4", "--epochs", "1", "--out", str(file)) == ExitStatus.DIVERGED
    error = capsys.readouterr().err
    assert error.startswith("lamina train: fit: training diverged at step ")
    assert not file.exists()
    assert train("--lr", "1e4", "--epochs", "1", "--no-check-finite") == ExitStatus.DONE


@pytest.mark.feature("B029")
def test_resuming_otherwise_is_an_error_or_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "run")
    assert train("--max-steps", "2", "--out", file) == 0
    capsys.readouterr()
    for changes, allowed, text, name in (
        (["--batch-size", "16"], ["lr"], "data.batch_size was 32, is 16", "data"),
        (["--seed", "1"], [], "data.seed was 0, is 1", "data"),
        (["--epochs", "9"], ["lr"], "epochs was 8, is 9", "epochs"),
        (["--lr", "0.5"], ["data"], "lr at step 0 was ", "lr"),
        (["--weight-decay", "0"], ["data"], "optimizer.weight_decay was 0.0005, is 0.0", "optimizer"),
        (["--shift", "0"], ["lr"], "data.content was ", "data"),
    ):
        again = [*changes, "--resume", file, "--max-steps", "1", "--override", *allowed]
        again = again if allowed else again[:-1]
        assert train(*again) == ExitStatus.FAILED
        assert text in capsys.readouterr().err
        assert train(*changes, "--resume", file, "--max-steps", "1", "--override", *allowed, name) == 0


def test_train_writes_figures_and_ends_early(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, events = tmp_path / "log.csv", tmp_path / "events"
    options = ["--csv", str(log), "--tensorboard", str(events), "--patience", "1", "--lr", "0", "--top5"]
    assert train("--epochs", "5", "--shift", "0", *options) == 0
    lines = log.read_text().splitlines()
    assert "validation.top5" in lines[0]
    assert len(lines) == 3  # the second epoch is not better
    assert len(list(events.iterdir())) == 1
    assert ", top5 " in capsys.readouterr().out


@pytest.mark.feature("B029")
def test_ctrl_c_writes_the_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "run"
    command = [sys.executable, "-m", "lamina", *TINY, "--epochs", "500", "--out", str(file)]
    environment = {**os.environ, "PYTHONPATH": str(Path(lm.__file__).parent.parent)}
    running = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in the background
    )
    assert running.stdout is not None
    while not running.stdout.readline().startswith("epoch 1:"):
        assert running.poll() is None
    running.send_signal(signal.SIGINT)
    _, error = running.communicate(timeout=60)
    assert running.returncode == ExitStatus.INTERRUPTED
    assert re.search(
        r"interrupted(?! at)( after \d+ epochs and \d+ batches)?; (go on with: lamina train .* --resume .*run$)",
        error.strip(),
    )
    assert "Traceback" not in error
    assert train("--epochs", "500", "--resume", str(file), "--max-steps", "1") == 0


def test_conv_without_cudnn_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> Any:
        raise LibraryNotFound("cuDNN was not found; tried:\n  - wheel: not installed")

    monkeypatch.setattr(cudnn.library, "open", missing)
    monkeypatch.setattr(cudnn.library, "_open", missing)
    assert main(["conv", "--device", "none", "--engines", "best"]) == ExitStatus.UNAVAILABLE
    error = capsys.readouterr().err
    assert error.startswith(
        "lamina conv: cuDNN was not found; tried: - wheel: not installed; NVIDIA's libraries come"
    )
    assert error.count("\n") == 1


@pytest.mark.feature("B037")
def test_plan_times_a_network_for_inference(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "lenet", "--time", "--device", "cpu"]) == 0
    assert re.search(r"kernels on cpu \(cpu\): \d+\.\d+ ms", capsys.readouterr().out)
    assert main(["plan", "lenet", "--time", "--device", "cpu", "--backend", "null"]) == ExitStatus.FAILED
    assert "the null backend has no kernels" in capsys.readouterr().err


@pytest.mark.feature("B038")
def test_plan_writes_what_ran_when(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "step.json"
    command = ["plan", "lenet", "--batch-size", "2", "--device", "cpu", "--train", "--trace", str(file)]
    assert main(command) == 0
    assert "communication" not in capsys.readouterr().out
    names = [event["name"] for event in json.loads(file.read_text())["traceEvents"]]
    assert names.count("train_step") == 1
    assert "max_pool_grad" in names
    assert main([*command, "--backend", "null"]) == ExitStatus.FAILED
    assert "leave out --backend null or --trace" in capsys.readouterr().err


def test_info_says_which_caches_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAMINA_CACHE", str(tmp_path))
    (tmp_path / "kernels").mkdir(0o700)
    (tmp_path / "kernels" / "k").touch(0o600)
    assert main(["info"]) == 0
    assert capsys.readouterr().out.count(" yes") == 2
    (tmp_path / "kernels").chmod(0o770)
    assert main(["info"]) == 0
    assert "no: it can be written by others (mode 770; chmod go-w ends that)" in capsys.readouterr().out


@pytest.mark.feature("B038")
def test_plan_times_kernels_and_writes_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, figures = tmp_path / "plan.html", tmp_path / "plan.json"
    command = ["plan", "lenet", "--batch-size", "4", "--device", "cpu", "--train", "--time"]
    assert main([*command, "--html", str(page), "--json", str(figures)]) == 0
    assert "of roofline" in capsys.readouterr().out
    found = json.loads(figures.read_text())
    assert all(kernel["milliseconds"] > 0 for kernel in found["kernels"])
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    "words", [["info"], ["conv", "--n", "8", "--device", "none"], [*TINY, "--max-steps", "1"]]
)
def test_lines_of_text_have_no_colours_in_a_terminal_either(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbers and paths are as they are elsewhere; the titles of tables may be bold."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    assert main(words) == 0
    first, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith((f"lamina {lm.__version__}, Python ", "x (8, ", "lenet: 0.1 million parameters"))
    assert "\x1b" not in first
