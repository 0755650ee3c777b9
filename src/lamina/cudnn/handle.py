"""The library's handle: one per device and caller, its stream set only when it changes."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from lamina.c import cudnn as c
from lamina.runtime import Device, NoGpuError, library_state, no_capture, open_nvrtc
from lamina.runtime.uncopied import Uncopied

#: `Handle.stream` of a closed handle: runs bound to it request another stream, and find the handle closed.
NO_STREAM = -1
#: Destructors of released handles. cudnnDestroy waits for the device, so that no finalizer may call it; the creation
#: of the next handle does.
returned: deque[Callable[[], object]] = deque()


def destroy_returned() -> None:
    """Destroy the released handles."""
    with suppress(IndexError):  # empty, or emptied by another thread meanwhile
        while True:
            returned.popleft()()


def destroy(device: Device, address: int) -> None:
    """cudnnDestroy, on the handle's device."""
    with no_capture(), device.current():
        c.cudnnDestroy(address)


def open_libraries() -> bool:
    """Open what a handle needs, which takes a tenth of a second the first time; whether cuDNN is available.

    NVRTC comes first: cuDNN looks for it by its bare name, and in a wheel only NVIDIA's finder knows where it is.
    """
    with suppress(NoGpuError):  # without it cuDNN's precompiled engines still work
        open_nvrtc()
    return c.library.available()


class Handle(Uncopied):
    """A cudnnHandle_t on one device.

    A handle may be used by one thread at a time; `handle_of` gives each its own.

    Attributes:
        stream: the cudaStream_t that work is queued on (set it with `use`).
        given: the last argument of `use`.

    Raises:
        NoGpuError: the device is not there. CudnnError: the library cannot use it.
    """

    _address: int | None = None

    def __init__(self, device: Device) -> None:
        destroy_returned()
        self.device = device
        open_libraries()
        with no_capture(), device.current():
            self._address = c.cudnnCreate()
        self.stream = 0
        self.given: Any = 0

    @property
    def address(self) -> int:
        """The cudnnHandle_t as an int. Raises ValueError after `close`."""
        if self._address is None:
            raise ValueError("this Handle was closed")
        return self._address

    def use(self, stream: int) -> None:
        """Queue work on `stream` (a cudaStream_t) from now on; nothing is done when it is set already."""
        if stream != self.stream:
            c.cudnnSetStream(self.address, stream)
            self.stream = self.given = stream

    def wait_for_ends(self) -> None:
        """Make work queued from now on start after all queued work has ended (`Platform.wait_for_ends`)."""
        if not self.closed:
            self.device.platform.wait_for_ends(max(self.stream, 0))

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._address is None

    def close(self) -> None:
        """Free the handle. Idempotent."""
        address, self._address = self._address, None
        self.stream = NO_STREAM
        if address is not None:
            destroy(self.device, address)

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if (
            self._address is not None and not _ending()
        ):  # at interpreter shutdown the system frees what is left
            returned.append(partial(destroy, self.device, self._address))

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        where = "closed" if self.closed else hex(self.address)
        return f"Handle({self.device}, {where}, stream={max(self.stream, 0):#x})"


def handle_of(device: Device) -> Handle:
    """The handle on `device` of this thread, or of its current `runtime.LibraryState`; made at the first call and
    kept as long."""
    held, key = library_state().held, (Handle, device)
    found: Handle | None = held.get(key)
    if found is None or found.closed:
        found = held[key] = Handle(device)
    return found
