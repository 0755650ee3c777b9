"""cuDNN's messages in logging, and what the library says about itself; without a GPU."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from lamina.c import cudnn as c
from lamina.c.errors import CudnnBadParam
from lamina.cudnn import logs


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    yield
    logs.disable_logging()


def some_calls() -> None:
    desc = c.cudnnCreateTensorDescriptor()
    with pytest.raises(CudnnBadParam):
        c.cudnnSetTensor4dDescriptor(desc, c.CUDNN_TENSOR_NCHW, c.CUDNN_DATA_FLOAT, -1, 2, 3, 4)
    c.cudnnDestroyTensorDescriptor(desc)


@pytest.mark.feature("F009", "F120")
def test_calls_and_errors_become_records(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lamina.cudnn")
    with logs.logged("info") as logger:
        assert logger is logging.getLogger("lamina.cudnn")
        assert logs.logging_enabled()
        some_calls()
    assert not logs.logging_enabled()
    count = len(caplog.records)
    some_calls()
    assert len(caplog.records) == count  # nothing comes after the block

    calls = [r.cudnn_function for r in caplog.records if r.levelno == logging.INFO]  # type: ignore[attr-defined]
    assert "cudnnCreateTensorDescriptor" in calls
    assert "cudnnDestroyTensorDescriptor" in calls
    (error,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert error.cudnn_function == "cudnnSetTensor4dDescriptor"  # type: ignore[attr-defined]
    assert error.cudnn_status == "CUDNN_STATUS_BAD_PARAM"  # type: ignore[attr-defined]
    assert (error.cudnn_handle, error.cudnn_stream) == (0, 0)  # type: ignore[attr-defined]
    assert error.cudnn_thread > 0  # type: ignore[attr-defined]
    assert "Reason: (n <= 0)" in error.getMessage()
    set_ = next(r.getMessage() for r in caplog.records if "cudnnSetTensor4dDescriptor" in r.getMessage())
    assert "n: type=int; val=-1;" in set_.splitlines()[4 - 1]  # all lines of a message, not its first alone


@pytest.mark.feature("F009", "F120")
@pytest.mark.parametrize(("level", "calls"), [("error", 0), ("warning", 0), (logging.INFO, 3), ("debug", 3)])
def test_levels_choose_what_the_library_sends(
    level: str | int, calls: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "lamina.cudnn")
    logs.enable_logging(level)
    some_calls()
    logs.disable_logging()
    kinds = [record.levelno for record in caplog.records]
    assert kinds.count(logging.ERROR) == 1
    assert kinds.count(logging.INFO) >= calls if calls else logging.INFO not in kinds


@pytest.mark.feature("F009")
def test_blocks_nest_and_bring_back_what_was_set(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lamina.cudnn")
    logs.enable_logging("error")
    mask = c.cudnnGetCallback().mask
    with logs.logged("info"):
        assert c.cudnnGetCallback().mask != mask
    assert c.cudnnGetCallback().mask == mask
    assert logs.logging_enabled()
    with pytest.raises(RuntimeError, match="mine"), logs.logged("info"):
        raise RuntimeError("mine")
    assert c.cudnnGetCallback().mask == mask
    with pytest.raises(ValueError, match="level must be 'error', 'warning' or 'info', got 'loud'"):
        logs.enable_logging("loud")


@pytest.mark.feature("F009")
def test_threads_log_at_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lamina.cudnn")
    with logs.logged("info"):
        threads = [threading.Thread(target=lambda: [some_calls() for _ in range(20)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 80
    assert len({record.cudnn_thread for record in errors}) == 4  # type: ignore[attr-defined]


def test_a_level_that_nobody_listens_to_costs_no_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "lamina.cudnn")
    with logs.logged("info"):
        some_calls()
    assert not caplog.records


def test_a_process_that_leaves_logging_on_ends_well() -> None:
    code = """
import logging
logging.basicConfig(level=logging.INFO)
from lamina.c import cudnn as c
from lamina.cudnn import logs
logs.enable_logging("info")
kept = [c.cudnnCreateTensorDescriptor() for _ in range(10)]
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("cudnnCreateTensorDescriptor() called") == 10


@pytest.mark.feature("F003")
def test_library_info() -> None:
    info = logs.library_info()
    assert info.version == c.library.version
    assert info.number == info.version[0] * 10000 + info.version[1] * 100 + info.version[2]
    assert info.cuda_runtime >= (12, 0)
    assert info.newest_device >= (9, 0)
    assert (info.path, info.found) == (c.library.path, c.library.found)


@pytest.mark.feature("F003")
def test_sublibraries_fit_together() -> None:
    found = logs.check_sublibraries()
    newer = found.pop("subquadratic")
    assert found == {"graph": "", "ops": "", "cnn": "", "adv": ""}
    assert newer == "" if c.library.version >= (9, 22, 0) else "needs cuDNN 9.22" in newer


@pytest.mark.feature("F010")
@pytest.mark.parametrize(
    ("mode", "status"),
    [
        ("rawcode", c.CUDNN_STATUS_SUCCESS),
        ("nonblocking", c.CUDNN_STATUS_RUNTIME_IN_PROGRESS),
        ("blocking", c.CUDNN_STATUS_RUNTIME_FP_OVERFLOW),
    ],
)
def test_a_runtime_error_is_the_librarys(mode: str, status: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the library writes comes back; the handle and the mode arrive there."""
    asked = []

    def query(handle: Any, result: Any, wanted: Any, tag: Any) -> int:
        asked.append((handle, wanted))
        result._obj.value = int(status)
        return 0

    monkeypatch.setattr(c.library.symbols, "cudnnQueryRuntimeError", query, raising=False)
    assert logs.runtime_error(c.cudnnHandle_t(0x1234), mode) is status
    assert asked == [(0x1234, c.cudnnErrQueryMode_t[f"CUDNN_ERRQUERY_{mode.upper()}"])]


@pytest.mark.feature("F010")
def test_a_runtime_error_needs_a_handle() -> None:
    with pytest.raises(CudnnBadParam, match="CUDNN_ERRQUERY_BLOCKING"):
        logs.runtime_error(0, "blocking")
    with pytest.raises(ValueError, match="known: rawcode, nonblocking, blocking"):
        logs.runtime_error(0, "now")
