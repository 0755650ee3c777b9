"""Exit statuses: each error that a user can put right means one; others are faults of the program."""

from typing import Any

import pytest

from lamina.backends import NoKernel
from lamina.c._library import LibraryNotFound
from lamina.cli import main
from lamina.cli.status import ExitStatus, in_one_line, status_of
from lamina.graph import MemoryLimitError
from lamina.runtime import NoGpuError
from lamina.train import DivergedError

TRAIN = ["train", "lenet", "--device", "cpu", "--batch-size", "32", "--max-steps", "1"]


@pytest.mark.feature("B037")
@pytest.mark.parametrize("status", [s for s in ExitStatus if s is not ExitStatus.USAGE])
def test_every_exit_status(
    status: ExitStatus, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each by the errors that mean it; the error's line breaks are gone."""
    errors = {
        ExitStatus.FAILED: [ValueError("a\nb"), OSError("a b"), KeyError("a b"), NoKernel("a b")],
        ExitStatus.DIVERGED: [DivergedError("a\n  b", 3, 1.0)],
        ExitStatus.UNAVAILABLE: [NoGpuError("a b"), LibraryNotFound("a\n b"), ImportError("a b")],
        ExitStatus.OUT_OF_MEMORY: [MemoryError("a b"), MemoryLimitError("a b", 0)],
        ExitStatus.INTERRUPTED: [KeyboardInterrupt("a b")],
    }
    for error in errors.get(status, []):
        monkeypatch.setattr("lamina.cli.train.fit", _raiser(error))
        assert main(TRAIN) == status
        assert "lamina train: a b" in capsys.readouterr().err
    if status is ExitStatus.DONE:
        assert main(TRAIN) == status


def _raiser(error: BaseException) -> Any:
    def raise_it(*_: Any, **__: Any) -> None:
        raise error

    return raise_it


def test_faults_have_no_status() -> None:
    for fault in (AssertionError(), AttributeError(), IndexError(), RecursionError(), RuntimeError()):
        assert status_of(fault) is None


def test_a_line_is_never_empty() -> None:
    assert in_one_line(KeyboardInterrupt()) == "interrupted"
    assert in_one_line(MemoryError()) == "MemoryError"
    assert in_one_line(KeyError("name")) == "name"
