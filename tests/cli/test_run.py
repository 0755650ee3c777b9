"""`lamina run`: a program as several ranks, which end together."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lamina.cli import main
from lamina.cli import run as command
from lamina.cli.status import ExitStatus
from lamina.runtime import NoGpuError
from tests.helpers import ROOT

PROGRAM = """
import sys
import lamina as lm
world = lm.distributed.init()
print(world.launcher, lm.distributed.all_gather_object(sys.argv[1:])[0])
lm.distributed.barrier()
if "fail" in sys.argv and world.rank == 1:
    raise ValueError("as asked")
lm.distributed.barrier()
"""


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "program.py").write_text(PROGRAM)
    return subprocess.run(
        [sys.executable, "-m", "lamina", "run", "--ranks", "2", "program.py", *arguments],
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT / "src"), "HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.mark.feature("B032", "B055")
def test_ranks_meet(tmp_path: Path) -> None:
    done = run(tmp_path, "--epochs", "3")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"rank {r} of 2, started by lamina run ['--epochs', '3']" for r in range(2)
    ]


@pytest.mark.feature("B034")
def test_a_rank_that_raises_ends_all(tmp_path: Path) -> None:
    done = run(tmp_path, "fail")
    assert done.returncode == 1
    assert "rank 0: RankError: rank 1 (process " in done.stderr
    assert (
        "raised ValueError: as asked; it was before the first step, in no collective operation" in done.stderr
    )
    assert "lamina run: rank 1 (process" in done.stderr
    assert done.stderr.count("Traceback") == 2  # the rank's own, and as its last lines


def test_gpus_that_are_not_there_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--gpus", "1000", "x.py"]) == ExitStatus.UNAVAILABLE
    assert "--gpus 1000: this machine has" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("there", "asked", "count"),
    [(3, None, 3), (3, "all", 3), (3, "2", 2), (3, "3", 3), (1, "1", 1), (3, "4", 0), (0, None, 0),
     (0, "all", 0), (0, "1", 0)],
)  # fmt: skip
def test_as_many_gpus_as_are_asked_for(
    there: int, asked: str | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = ["cpu", *["cuda"] * there]
    monkeypatch.setattr(command, "devices", lambda: [SimpleNamespace(kind=kind) for kind in kinds])
    if count:
        assert command._gpus(asked) == count
        return
    with pytest.raises(
        NoGpuError, match=f"^--gpus {asked or 'all'}: this machine has {there} GPUs; --ranks N runs"
    ):
        command._gpus(asked)


@pytest.mark.parametrize("asked", ["0", "-1", "x", ""])
def test_what_is_no_number_of_gpus(asked: str) -> None:
    with pytest.raises(ValueError, match=f"^--gpus must be a number of at least 1, or all, got {asked}$"):
        command._gpus(asked)


class Starter:
    """Stands in for who starts ranks: what it was asked for."""

    asked: tuple[Any, int]

    def __init__(self, job: Any, say: Any) -> None:
        self.job = job

    def run(self, restarts: int) -> int:
        type(self).asked = self.job, restarts
        return 5


def test_the_defaults_are_those_of_the_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "RankStarter", Starter)
    assert main(["run", "--ranks", "2", "x.py"]) == 5
    job, restarts = Starter.asked
    assert job.command == [sys.executable, "x.py"]
    assert (job.ranks, job.hides_gpus, job.prefix, restarts) == (2, True, False, 0)
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for name in ("timeout", "patience"):
        told = re.search(rf"--{name} S .*?\(default: (\d+)\)", text)
        assert told is not None
        assert getattr(job, name) == float(told[1])


def test_options_reach_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "RankStarter", Starter)
    monkeypatch.setattr(command, "devices", lambda: [SimpleNamespace(kind="cuda")] * 3)
    given = [
        "--restarts",
        "4",
        "--timeout",
        "1.5",
        "--patience",
        "2.5",
        "--prefix",
        "-m",
        "a.b",
        "--epochs",
        "3",
    ]
    assert main(["run", *given]) == 5
    job, restarts = Starter.asked
    assert job.command == [sys.executable, "-m", "a.b", "--epochs", "3"]
    assert (job.ranks, job.hides_gpus, job.prefix, restarts) == (3, False, True, 4)
    assert (job.timeout, job.patience) == (1.5, 2.5)


@pytest.mark.parametrize(
    "wrong",
    [
        ["--ranks", "0"],
        ["--restarts", "-1"],
        ["--timeout", "0"],
        ["--patience", "-1"],
        ["--ranks", "1", "--gpus", "1"],
    ],
)
def test_bad_numbers_are_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", *wrong, "x.py"])
    assert ended.value.code == 2
    assert f"argument {wrong[-2]}" in capsys.readouterr().err
