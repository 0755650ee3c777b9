"""Loading a saved plan: a GPU is opened, and the file read, while the serving modules are imported."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lamina._lazy import lazy
from lamina.c._library import LibraryError
from lamina.c.errors import StatusError
from lamina.replay.errors import PlanFileError
from lamina.replay.file import Reading
from lamina.replay.machine import open_gpu
from lamina.runtime import DeviceError, OutOfMemoryError

if TYPE_CHECKING:
    from lamina.infer.saved import SavedInferer
    from lamina.runtime import Device

#: Errors that damaged data causes in the decoder or the underlying library.
_UNSOUND = (
    KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, ctypes.ArgumentError,
    NotImplementedError, StatusError, LibraryError, DeviceError,
)  # fmt: skip
_late = lazy(__name__, {"check_options": "lamina.infer.saved", "loaded": "lamina.infer.saved"})


def load(
    path: str | Path,
    *,
    device: Device | str | None = None,
    replan: bool = False,
    trusted: bool = False,
    contexts: int | None = None,
    max_wait_ms: float | None = None,
    queue_limit: int | None = None,
    when_full: str | None = None,
) -> SavedInferer:
    """The result of `Inferer.save`, ready to answer.

    Every byte is checked. Kernels and addresses are used as saved; if the machine, Lamina or a library that the plan
    calls differs, plans are made anew (`replan`) or the file is refused.

    Args:
        path: the file.
        device: where to run; default: the first one of the kind that it was saved for.
        replan: plan anew where the file is for another machine, if it was saved as portable.
        trusted: accept a GPU's machine code from a file that others may have written, too.
        contexts, max_wait_ms, queue_limit, when_full: as for `Inferer`; default: as saved.

    Raises PlanFileError for a file that is damaged, changed or not a plan, OtherMachineError (a subclass) for one of
    another machine, OSError where it cannot be read, OutOfMemoryError, NoGpuError where there is no such device, and
    TypeError and ValueError for arguments as `Inferer` does.
    """
    reading = Reading(path)
    try:
        with _unsound_is_said(path):
            if reading.header["machine"]["device"] == "cuda" and device in (None, "auto", "cuda"):
                open_gpu()
        _late("check_options")(device, contexts, max_wait_ms, queue_limit, when_full)
        with _unsound_is_said(path):
            found: SavedInferer = _late("loaded")(
                reading, device, replan, trusted, contexts, max_wait_ms, queue_limit, when_full
            )
        return found
    finally:
        reading.close()


@contextmanager
def _unsound_is_said(path: str | Path) -> Iterator[None]:
    """Raise PlanFileError for errors that damaged data causes within."""
    try:
        yield
    except (PlanFileError, OSError, OutOfMemoryError):
        raise
    except _UNSOUND as error:
        raise PlanFileError(f"{path}: not a sound plan: {type(error).__name__}: {error}") from error
