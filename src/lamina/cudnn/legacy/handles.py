"""The handle of the imperative API: stream, worker, workspace; and one per device and stream on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from lamina.c import cudnn as c
from lamina.cudnn.handle import NO_STREAM, destroy, destroy_returned, returned
from lamina.cudnn.handle import Handle as BaseHandle
from lamina.cudnn.legacy.base import AnyHandle, Closable, Memory, Native
from lamina.cudnn.legacy.flags import ErrorQuery, Name, Status, flag
from lamina.runtime import Buffer, Device, Stream, Worker, Workspaces, stream_address
from lamina.runtime import device as find_device

R = TypeVar("R")

_workspaces: dict[Device, Workspaces] = {}
_lock = threading.Lock()


def _give_back(device: Device, worker: Worker | None, address: int) -> None:
    returned.append(partial(_destroy, device, worker, address))


def _destroy(device: Device, worker: Worker | None, address: int) -> None:
    if worker is not None and not worker.closed:
        worker.submit(destroy, device, address)
    else:
        destroy(device, address)


class Handle(Closable, BaseHandle):
    """A cudnnHandle_t on one device, its stream set from the start.

    One thread at a time may use it. With a worker, every call that takes it runs on the worker's thread, so
    that any thread may. `close` waits for the device's work; a call in flight keeps the handle alive.

    Args:
        device: where; left out, the worker's device or the first GPU.
        stream: what work is queued on: a Stream, a cudaStream_t, or a stream of CuPy, PyTorch, Numba.
            Left out: the device's default stream.
        worker: the thread that makes all calls.

    Raises:
        NoGpuError: the device is not there. CudnnError: the library cannot use it.
        ValueError: `device` is not the worker's.
    """

    def __init__(
        self,
        device: Device | str | None = None,
        *,
        stream: Any | None = None,
        worker: Worker | None = None,
    ) -> None:
        where = worker.device if worker is not None else find_device("cuda" if device is None else device)
        if device is not None and Device(device) != where:
            raise ValueError(f"device={str(device)!r} is not the worker's, which is {str(where)!r}")
        if where.kind != "cuda":
            raise ValueError(f"device={str(where)!r}: cuDNN needs a CUDA device")
        self.worker = worker
        self._native = None
        create = super().__init__
        if worker is None:
            create(where)
        else:
            worker.run(create, where)
        assert self._address is not None
        address, self._address = self._address, None  # from here on the native object owns it
        self._native = Native(address, partial(_give_back, where, worker))
        self._own: dict[int, Buffer] = {}  # workspaces for streams that the runtime did not make
        self.use(where.default_stream if stream is None else stream)

    def close(self) -> None:
        """Release the C handle, and destroy it unless a call is using it. Idempotent."""
        if self._native is None:
            return
        self._native = None
        self.stream = NO_STREAM
        self._own = {}
        destroy_returned()
        if self.worker is not None and not self.worker.closed:
            self.worker.run(int)  # the worker destroys it in its turn

    def run(self, function: Callable[..., R], *arguments: Any) -> R:
        """Run `function(*arguments)` where this handle's calls belong: on its worker, or here on its device."""
        if self.worker is not None:
            return self.worker.run(function, *arguments)
        with self.device.current():
            return function(*arguments)

    # ---- stream
    def use(self, stream: Any) -> None:
        """Queue work on `stream` from now on; nothing is done when it is set already."""
        address = stream_address(stream)
        native = self.native
        if address != self.stream:
            self.run(c.cudnnSetStream, native.address, address)
            self.stream = address
        self.given = stream  # keeps a stream of another library alive

    @property
    def runtime_stream(self) -> Stream | None:
        """The handle's stream as an object of the runtime; None if something else made it."""
        return self.given if isinstance(self.given, Stream) else None

    def get_stream(self) -> int:
        """The cudaStream_t that the library has for this handle (`stream` is what was set)."""
        native = self.native
        return self.run(c.cudnnGetStream, native.address)

    def synchronize(self) -> None:
        """Wait until all work of the handle's stream is done (of the device, for a foreign stream)."""
        (self.runtime_stream or self.device).synchronize()

    # ---- the rest
    def query_runtime_error(self, mode: Name = "rawcode") -> Status:
        """What kernels of this handle reported (persistent batch norm): success, or a status.

        mode: "rawcode", "nonblocking" or "blocking" (waits for the stream).
        """
        native = self.native
        return self.run(c.cudnnQueryRuntimeError, native.address, flag(ErrorQuery, mode), None)

    def workspace(self, nbytes: int) -> Buffer | None:
        """`nbytes` of scratch for work on the handle's stream, shared by all that runs there; None for 0.

        Its contents are undefined, and it is reused until more is requested on that stream. A graph
        that is captured from the stream must bring its own.
        """
        if nbytes == 0:
            return None
        if self.runtime_stream is not None:
            return _device_workspaces(self.device).get(nbytes, self.runtime_stream)
        present = self._own.get(self.stream)
        if present is None or present.nbytes < nbytes:
            if present is not None:  # the arena cannot order reuse after a stream that it does not know
                self.device.synchronize()
            present = self._own[self.stream] = self.device.allocate(nbytes)
        return present

    def __repr__(self) -> str:
        if self.closed:
            return f"Handle({self.device}, closed)"
        worker = "" if self.worker is None else f", worker={self.worker!r}"
        return f"Handle({self.device}, {self.address:#x}, stream={self.stream:#x}{worker})"


def _device_workspaces(device: Device) -> Workspaces:
    with _lock:
        return _workspaces.setdefault(device, Workspaces(device))


# ---------------------------------------------------------------------------------- handles on demand, scratch
class Handles:
    """One handle per thread, device and stream, made at the first need.

    Args:
        limit: the most handles of one thread on one device; each holds device memory.
    """

    def __init__(self, limit: int = 1024) -> None:
        if limit < 1:
            raise ValueError(f"limit={limit}: at least one handle is needed")
        self.limit = limit
        self._local = threading.local()

    def get(self, device: Device | str | None = None, stream: Any | None = None) -> Handle:
        """This thread's handle for `device` (the first GPU) and `stream` (the device's default stream).

        Raises:
            RuntimeError: there are `limit` handles on that device already. NoGpuError: no such device.
        """
        where = find_device("cuda" if device is None else device)
        queue = where.default_stream if stream is None else stream
        key = (where, stream_address(queue))
        present: dict[tuple[Device, int], Handle] = self._local.__dict__.setdefault("handles", {})
        found = present.get(key)
        if found is not None and not found.closed:
            return found
        live = sum(place == where and not handle.closed for (place, _), handle in present.items())
        if live >= self.limit:
            raise RuntimeError(
                f"{live} handles on {where} in this thread, the limit is {self.limit}: close those of streams "
                "that are gone, or use fewer streams"
            )
        present[key] = Handle(where, stream=queue)
        return present[key]

    def clear(self) -> None:
        """Close this thread's handles."""
        present: dict[Any, Handle] = self._local.__dict__.pop("handles", {})
        for handle in present.values():
            handle.close()


_on_demand = Handles()


def handle_for(device: Device | str | None = None, stream: Any | None = None) -> Handle:
    """This thread's handle for a device and a stream, at most 1024 per device. See `Handles.get`."""
    return _on_demand.get(device, stream)


class Scratch(NamedTuple):
    """Memory and its size, in the form of cuDNN's workspace arguments."""

    memory: Memory
    nbytes: int


def sized(name: str, memory: Memory | tuple[Memory, int]) -> Scratch:
    """Memory with its size: a Buffer, an array with `nbytes`, or a pair (address, bytes); None is nothing."""
    if memory is None:
        return Scratch(None, 0)
    if isinstance(memory, tuple):
        if len(memory) != 2:
            raise TypeError(f"{name}: (address, bytes) is wanted, got {memory!r}")
        return Scratch(memory[0], int(memory[1]))
    nbytes = getattr(memory, "nbytes", None)
    if nbytes is None:
        raise TypeError(f"{name}: the size of {memory!r} is unknown; pass (address, bytes)")
    return Scratch(memory, int(nbytes))


def by_size(*spaces: Scratch) -> tuple[Any, ...]:
    """Size and address in the order of the newer calls: the size first."""
    return tuple(part for space in spaces for part in (space.nbytes, space.memory))


def scratch(
    handle: AnyHandle, given: Memory | tuple[Memory, int], size: Callable[[], int], name: str = "workspace"
) -> Scratch:
    """The workspace of a call: the caller's memory, else `size()` bytes from the handle.

    Raises:
        TypeError: nothing given and the handle is a bare address, which provides no memory.
    """
    if given is not None:
        return sized(name, given)
    nbytes = size()
    lender = _lender(handle, nbytes, name)
    return Scratch(None if lender is None else lender.workspace(nbytes), nbytes)


def kept(
    handle: AnyHandle, given: Memory | tuple[Memory, int], size: Callable[[], int], name: str = "reserve"
) -> Scratch:
    """Memory that outlives the call (a reserve space): the caller's, else newly allocated on the device."""
    if given is not None:
        return sized(name, given)
    nbytes = size()
    lender = _lender(handle, nbytes, name)
    if lender is None:
        return Scratch(None, 0)
    return Scratch(lender.device.allocate(nbytes, stream=lender.runtime_stream), nbytes)


def _lender(handle: AnyHandle, nbytes: int, name: str) -> Handle | None:
    """The allocator for a call without its own memory; None where none is needed."""
    if nbytes == 0:
        return None
    if not isinstance(handle, Handle):
        raise TypeError(
            f"{name}: {nbytes} bytes are needed; pass them, or use a lamina.cudnn.legacy.Handle, which provides them"
        )
    return handle
