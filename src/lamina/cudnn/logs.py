"""Diagnostics of cuDNN: its messages in Python's `logging`, its last asynchronous error, and its version.

    with logged("info"):  # one record per C call, with its arguments
        y = plan.run(...)

Records go to the logger "lamina.cudnn": fatal as CRITICAL, errors as ERROR, warnings as WARNING, calls as INFO.
`logging` decides which of them are shown: `logging.basicConfig(level=logging.INFO)`. While logging is disabled the
library makes no messages, and calls have no extra cost. The library's own switches (CUDNN_LOGLEVEL_DBG,
CUDNN_LOGDEST_DBG) work beside this.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from lamina.c import cudnn as c
from lamina.c._library import LibraryError
from lamina.c.errors import CudnnError
from lamina.cudnn.descriptor import named
from lamina.cudnn.handle import Handle

LOGGER = logging.getLogger("lamina.cudnn")

#: cudnnSeverity_t -> level of `logging`.
LEVELS = {
    c.CUDNN_SEV_FATAL: logging.CRITICAL,
    c.CUDNN_SEV_ERROR: logging.ERROR,
    c.CUDNN_SEV_WARNING: logging.WARNING,
    c.CUDNN_SEV_INFO: logging.INFO,
}
_ERROR = c.CUDNN_SEV_ERROR_EN
_WARNING = _ERROR | c.CUDNN_SEV_WARNING_EN
_INFO = _WARNING | c.CUDNN_SEV_INFO_EN
_MASKS = {"error": _ERROR, "warning": _WARNING, "info": _INFO}
_FUNCTION = re.compile(r"function (\w+)\(\)")

# The message is a list of strings, ended by an empty one: ctypes must hand over its address, not its first string.
_Callback = ctypes.CFUNCTYPE(
    None, ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(c.cudnnDebug_t), ctypes.c_void_p
)


def message_lines(address: int | None) -> list[str]:
    """The strings of one message: each ends with a zero byte, the last one is empty."""
    lines = []
    while address:
        text = ctypes.string_at(address)
        if not text:
            break
        lines.append(text.decode("utf-8", "replace"))
        address += len(text) + 1
    return lines


def _receive(severity: int, _user: int | None, debug: ctypes._Pointer[c.cudnnDebug_t], message: int) -> None:
    level = LEVELS.get(c.cudnnSeverity_t(severity), logging.INFO)
    if not LOGGER.isEnabledFor(level):
        return
    lines = message_lines(message)
    about = debug.contents
    function = _FUNCTION.search(lines[0]) if lines else None
    extra = {
        "cudnn_function": function[1] if function else "",
        "cudnn_status": c.cudnnStatus_t(about.cudnnStatus).name,
        "cudnn_handle": about.handle or 0,
        "cudnn_stream": about.stream or 0,
        "cudnn_thread": about.tid,
    }
    LOGGER.log(level, "%s", "\n".join(lines), extra=extra)


_received = _Callback(_receive)  # kept for the life of the process: the library holds its address
_address = ctypes.cast(_received, ctypes.c_void_p).value or 0


def enable_logging(level: str | int = "warning") -> None:
    """Send the library's messages to the logger "lamina.cudnn" from now on, in all threads.

    A record also has the attributes `cudnn_function`, `cudnn_status`, `cudnn_handle`, `cudnn_stream` (addresses, 0
    for none) and `cudnn_thread`.

    Args:
        level: "error", "warning" (errors too) or "info" (every C call too), or a level of `logging`.

    Raises:
        ValueError: another level.

    C: cudnnSetCallback.
    """
    c.cudnnSetCallback(_mask(level), None, _address)


def disable_logging() -> None:
    """Let the library make no more messages. C: cudnnSetCallback."""
    c.cudnnSetCallback(0, None, None)


def logging_enabled() -> bool:
    """Whether the library's messages come to the logger. C: cudnnGetCallback."""
    return c.cudnnGetCallback().fptr == _address


@contextmanager
def logged(level: str | int = "info") -> Iterator[logging.Logger]:
    """Send the library's messages to the logger inside the ``with`` block; the previous setting is restored
    afterwards.

    Gives the logger. `level` is as in `enable_logging`.
    """
    mask = _mask(level)
    before = c.cudnnGetCallback()
    c.cudnnSetCallback(mask, None, _address)
    try:
        yield LOGGER
    finally:
        if before.fptr:
            c.cudnnSetCallback(before.mask, before.udata or None, before.fptr)
        else:
            disable_logging()


def _mask(level: str | int) -> int:
    text = (logging.getLevelName(level) if isinstance(level, int) else level).lower()
    found = _MASKS.get(
        {"debug": "info", "warn": "warning", "critical": "error", "fatal": "error"}.get(text, text)
    )
    if found is None:
        raise ValueError(f"logging: level must be 'error', 'warning' or 'info', got {level!r}")
    return found


@atexit.register
def _stop() -> None:
    """Prevent calls back into an interpreter that is gone."""
    if c.library._opened is not None and logging_enabled():
        disable_logging()


# ------------------------------------------------------------------------------------------ errors at run time


def runtime_error(handle: Handle | c.cudnnHandle_t, mode: str | int = "rawcode") -> c.cudnnStatus_t:
    """The error that kernels of `handle` reported after their call had returned; CUDNN_STATUS_SUCCESS for none.

    Only the persistent batch normalization of the older calls reports one (CUDNN_STATUS_RUNTIME_FP_OVERFLOW).

    Args:
        handle: a Handle, or `lamina.c.cudnn.cudnnHandle_t(address)`.
        mode: "rawcode" (what was stored by now), "nonblocking" (CUDNN_STATUS_RUNTIME_IN_PROGRESS while work is
            queued) or "blocking" (waits for the queued work).

    C: cudnnQueryRuntimeError (deprecated by cuDNN 9 in favour of its last error string, which exceptions carry).
    """
    wanted = named(c.cudnnErrQueryMode_t, "CUDNN_ERRQUERY_", mode, "mode")
    address = handle.address if isinstance(handle, Handle) else handle
    return c.cudnnQueryRuntimeError(address, wanted)


# -------------------------------------------------------------------------------------------------- what it is


class LibraryInfo(NamedTuple):
    """The cuDNN of this process, as `library_info` found it."""

    version: tuple[int, int, int]
    """(major, minor, patch), from cudnnGetProperty."""
    number: int
    """The same as one number, from cudnnGetVersion: 91900."""
    cuda_runtime: tuple[int, int]
    """(major, minor) of the CUDA runtime in it, from cudnnGetCudartVersion."""
    newest_device: tuple[int, int]
    """The newest compute capability that it knows, from cudnnGetMaxDeviceVersion."""
    path: str
    """The file."""
    found: str
    """How it was found: "already loaded", an environment variable, a wheel, a name of the platform."""


def library_info() -> LibraryInfo:
    """Version, CUDA runtime and newest known GPU of the library, and where it was found. Needs no GPU.

    Raises:
        LibraryNotFound: no cuDNN; the message lists what was tried.
    """
    properties = (c.MAJOR_VERSION, c.MINOR_VERSION, c.PATCH_LEVEL)
    major, minor, patch = (c.cudnnGetProperty(p) for p in properties)
    runtime, newest = c.cudnnGetCudartVersion(), c.cudnnGetMaxDeviceVersion()
    return LibraryInfo(
        (major, minor, patch),
        c.cudnnGetVersion(),
        (runtime // 1000, runtime % 1000 // 10),
        (newest // 100, newest % 100 // 10),
        c.library.path,
        c.library.found,
    )


_CHECKS: dict[str, Callable[[], None]] = {
    "graph": c.cudnnGraphVersionCheck,
    "ops": c.cudnnOpsVersionCheck,
    "cnn": c.cudnnCnnVersionCheck,
    "adv": c.cudnnAdvVersionCheck,
    "subquadratic": c.cudnnSubquadraticOpsVersionCheck,
}


def check_sublibraries() -> dict[str, str]:
    """Whether the parts of the library fit together: part -> "" or what is wrong with it.

    Loads every part. A part that this release does not have yet says which one has it.

    C: cudnnGraphVersionCheck, cudnnOpsVersionCheck, cudnnCnnVersionCheck, cudnnAdvVersionCheck,
    cudnnSubquadraticOpsVersionCheck.
    """
    found = {}
    for part, check in _CHECKS.items():
        try:
            check()
            found[part] = ""
        except (CudnnError, LibraryError) as error:
            found[part] = str(error)
    return found
