"""Exit statuses of the program, and the errors that they mean."""

from __future__ import annotations

from enum import IntEnum

from lamina.backends import NoKernel
from lamina.c._library import LibraryError, LibraryNotFound
from lamina.c.errors import CudnnError, DnnlError
from lamina.cudnn import NoPlanError
from lamina.graph import MemoryLimitError
from lamina.runtime import CompileError, DeviceError, NoGpuError, OutOfMemoryError
from lamina.train import DivergedError


class ExitStatus(IntEnum):
    """Exit statuses of `lamina`. An internal error ends with a traceback and FAILED."""

    DONE = 0
    #: The request cannot be fulfilled; one line on standard error tells why.
    FAILED = 1
    #: The arguments are wrong (argparse's status).
    USAGE = 2
    #: Training ended because the loss or a parameter became infinite or NaN; the last finite checkpoint stays.
    DIVERGED = 3
    #: No such GPU, or a library or package is missing.
    UNAVAILABLE = 4
    #: Device or host memory is insufficient, or `--memory-limit` is too small.
    OUT_OF_MEMORY = 5
    #: Ctrl-C (128 + SIGINT). With `--out` the checkpoint was written first.
    INTERRUPTED = 130


#: Errors that a user can fix, in order; anything else is an internal error and keeps its traceback.
_MEANING: tuple[tuple[tuple[type[BaseException], ...], ExitStatus], ...] = (
    ((KeyboardInterrupt,), ExitStatus.INTERRUPTED),
    ((DivergedError,), ExitStatus.DIVERGED),
    ((NoGpuError, LibraryError, ImportError), ExitStatus.UNAVAILABLE),
    ((OutOfMemoryError, MemoryError, MemoryLimitError), ExitStatus.OUT_OF_MEMORY),
    (
        (
            ValueError,
            TypeError,
            KeyError,
            OverflowError,
            OSError,
            DeviceError,
            CompileError,
            NoKernel,
            NoPlanError,
        ),
        ExitStatus.FAILED,
    ),
    ((CudnnError, DnnlError), ExitStatus.FAILED),
)


def status_of(error: BaseException) -> ExitStatus | None:
    """The exit status for an error, None for an internal error."""
    return next((status for kinds, status in _MEANING if isinstance(error, kinds)), None)


def in_one_line(error: BaseException) -> str:
    """An error's text without line breaks; an interruption without text gives "interrupted"."""
    text = error.args[0] if isinstance(error, KeyError) and error.args else error
    line = " ".join(str(text).split())
    if isinstance(error, LibraryNotFound):
        line += "; NVIDIA's libraries come with pip install 'lamina[cu13]' (or cu12)"
    return line or ("interrupted" if isinstance(error, KeyboardInterrupt) else type(error).__name__)
