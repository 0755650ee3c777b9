"""How the program ends: its exit statuses, and which error means which."""

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
    """Exit statuses of `lamina`. A fault of the program itself ends with a traceback and FAILED."""

    DONE = 0
    #: What was asked for cannot be done; one line on standard error says why.
    FAILED = 1
    #: The arguments are wrong (argparse's status).
    USAGE = 2
    #: Training ended because the loss or a parameter became infinite or NaN; the last finite checkpoint stays.
    DIVERGED = 3
    #: No such GPU, or a library or package is not there.
    UNAVAILABLE = 4
    #: Memory of the device or the host does not suffice, or `--memory-limit` is too small.
    OUT_OF_MEMORY = 5
    #: Ctrl-C (128 + SIGINT). With `--out` the checkpoint was written first.
    INTERRUPTED = 130


#: What a user can put right, in order; anything else is a fault of the program and keeps its traceback.
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
    """The exit status that an error means, None for a fault of the program."""
    return next((status for kinds, status in _MEANING if isinstance(error, kinds)), None)


def in_one_line(error: BaseException) -> str:
    """An error's text without line breaks; an interruption's is "interrupted" where it says nothing."""
    text = error.args[0] if isinstance(error, KeyError) and error.args else error
    line = " ".join(str(text).split())
    if isinstance(error, LibraryNotFound):
        line += "; NVIDIA's libraries come with pip install 'lamina[cu13]' (or cu12)"
    return line or ("interrupted" if isinstance(error, KeyboardInterrupt) else type(error).__name__)
