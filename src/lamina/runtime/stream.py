"""Streams, events and captured graphs.

`Stream` and `Event` are for the host, where work is synchronous; `CudaStream` queues. Callers need not know which
one they hold.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from weakref import WeakValueDictionary

from lamina.runtime import _cuda
from lamina.runtime.errors import CaptureInvalidated, DeviceError
from lamina.runtime.fork import RenewedLock
from lamina.runtime.library_handles import library_state
from lamina.runtime.uncopied import Uncopied

if TYPE_CHECKING:
    from lamina.runtime.compute_device import Device

StreamLike = Any
"""A Stream, a cudaStream_t as an int, or a stream of CuPy, PyTorch, Numba, cuda-core (`__cuda_stream__`)."""

_CAPTURE_MODES = {"global": 0, "thread_local": 1, "relaxed": 2}
_DISABLE_TIMING = 2  # CU_EVENT_DISABLE_TIMING
#: The result of cuStreamIsCapturing for an invalidated capture.
_INVALIDATED = 2
#: One capture at a time, and no concurrent synchronization of a whole device, which would invalidate it.
_capturing = RenewedLock()


@contextmanager
def no_capture() -> Iterator[None]:
    """Within this block no other thread captures: for calls that synchronize a whole device.

    It waits for captures in progress.
    """
    with _capturing.lock:
        yield


class _Here(threading.local):
    """State of this thread. early: whether kernels of libraries may begin before the previous ones have ended."""

    early = False


_here = _Here()


@contextmanager
def early_starts() -> Iterator[None]:
    """Within this block kernels that libraries queue in this thread may begin before the previous ones have ended
    (`Platform.wait_for_ends` does nothing): for captured graphs, whose edges are made full, or when only time
    matters."""
    before, _here.early = _here.early, True
    try:
        yield
    finally:
        _here.early = before


def may_start_early() -> bool:
    """Whether this thread is within `early_starts`."""
    return _here.early


#: How often a capture is tried if other threads invalidate it.
_ATTEMPTS = 3

_R = TypeVar("_R")


def retry_capture(record: Callable[[], _R]) -> _R:
    """record(), retried if its capture is invalidated, with new library handles: an interrupted call may have left
    the old ones in an undefined state. Raises CaptureInvalidated at the third attempt.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return record()
        except CaptureInvalidated:
            library_state().held.clear()
    return record()


class Stream(Uncopied):
    """A queue of work on one device, in order. On the CPU the work is done when the call returns.

    Made by `Device.stream`; `Device.default_stream` is used by default.
    ``handle`` is the ``cudaStream_t`` as an int (0 on the CPU).
    """

    #: Whether work is asynchronous, in order; else it is done when the call returns.
    queues: ClassVar[bool] = False
    #: Whether the queue ends with the stream (`over`).
    ends: ClassVar[bool] = False
    handle: int = 0
    priority: int = 0

    def __init__(self, device: Device) -> None:
        self.device = device

    def synchronize(self) -> None:
        """Wait until all queued work is done."""

    def query(self) -> bool:
        """Whether all queued work is done."""
        return True

    def record(self, event: Event | None = None) -> Event:
        """Mark this point of the queue with `event` (a new one, without timing, by default) and return it."""
        event = _event(event)
        event._time_ns = time.perf_counter_ns()
        event._stream = self
        return event

    def stamp(self, event: Event) -> None:
        """While capturing: let every launch of the graph record `event` (made with timing) at this point."""
        self.record(event)

    def wait(self, other: Event | StreamLike) -> None:
        """Let work queued here from now on wait for `other`: an event, or the pending work of another stream."""
        if not isinstance(other, Event):
            other = as_stream(other, self.device)
        other.synchronize()

    @contextmanager
    def capture(self, mode: str = "relaxed", home: Stream | None = None) -> Iterator[CapturedGraph]:
        """Record the work queued inside the ``with`` block as a graph instead of running it (CUDA only).

        The graph refers to memory by address: its buffers must outlive it (`CapturedGraph.keep`). That includes what
        eager ops allocate and free meanwhile, so capture kernels, copies and plans; for ops compile a function.

        Args:
            mode: CUDA's capture mode, which restricts calls meanwhile: "relaxed" (none), "thread_local" or "global".
            home: the default stream of the graph's launches (this one by default).

        Raises:
            DeviceError: a CPU stream (it queues nothing), or work that cannot be captured.
        """
        raise DeviceError(f"capture: {self.device} runs each call at once and has no queue to capture")
        yield  # pragma: no cover - makes this a generator, as the context manager needs

    @property
    def capturing(self) -> bool:
        """Whether work queued now is being captured into a graph."""
        return False

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return False

    @property
    def queue(self) -> Stream | OwnedQueue:
        """The object that stands for the order of the work: freed memory is kept under it. On the CPU it is the same
        for all streams, as nothing is ever pending."""
        return self.device.default_stream

    def over(self) -> bool:
        """Whether no work is pending and none will follow."""
        return False

    def check_open(self) -> None:
        """Raise DeviceError if `close` was called: its handle may mean another stream by now."""

    def close(self) -> None:
        """Wait for the queued work and free the stream. Idempotent; a default stream is never closed."""

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    def __cuda_stream__(self) -> tuple[int, int]:
        """NVIDIA's stream protocol: (version, handle)."""
        self.check_open()
        return (0, self.handle)

    def __repr__(self) -> str:
        return f"Stream({self.device}, handle={self.handle:#x})"


class Event(Uncopied):
    """A point in a stream's queue: to wait for, to query, or to measure between two.

    Args:
        timing: whether `elapsed` may be used (costs a little on a GPU).
    """

    def __init__(self, *, timing: bool = False) -> None:
        self.timing = timing
        self._stream: Stream | None = None
        self._time_ns = 0  # host streams
        self._native: _CudaEvent | None = None  # the driver's event, once recorded on a CUDA stream

    @property
    def recorded(self) -> bool:
        """Whether the event has been recorded."""
        return self._stream is not None

    @property
    def handle(self) -> int:
        """The ``cudaEvent_t`` as an int (0 if recorded on a CPU stream or not at all)."""
        return 0 if self._native is None else self._native.handle

    def record(self, stream: Stream) -> Event:
        """Mark the current end of `stream`; recording again moves the event to the later point."""
        if not isinstance(stream, Stream):
            raise TypeError(f"record: stream must be a Stream, got {stream!r}")
        return stream.record(self)

    def query(self) -> bool:
        """Whether the work before the event is done (True if it was never recorded)."""
        if self._native is None:
            return True
        return _is_done(_cuda.direct("cuEventQuery")(self._native.handle), "cuEventQuery")

    def synchronize(self) -> None:
        """Wait until the work before the event is done."""
        if self._native is not None:
            _cuda.call("cuEventSynchronize", self._native.handle)

    def elapsed(self, end: Event) -> float:
        """Milliseconds from this event to `end`; waits for `end`.

        Raises:
            DeviceError: one was not recorded or not made with ``timing=True``, or they are on different kinds of
            device.
        """
        for name, event in (("start", self), ("end", end)):
            if not event.recorded:
                raise DeviceError(f"elapsed: the {name} event was never recorded")
            if not event.timing:
                raise DeviceError(
                    f"elapsed: the {name} event was made without timing; use Event(timing=True)"
                )
        if (self._native is None) != (end._native is None):
            raise DeviceError("elapsed: one event is on a CPU stream and the other on a CUDA stream")
        end.synchronize()
        if self._native is None:
            return (end._time_ns - self._time_ns) / 1e6
        return float(_cuda.call("cuEventElapsedTime", self.handle, end.handle))

    def __repr__(self) -> str:
        where = self._stream if self.recorded else "not recorded"
        return f"Event({where}, timing={self.timing})"


class _CudaEvent(Uncopied):
    """A cudaEvent_t of the current device, destroyed with this object."""

    __slots__ = ("handle",)

    def __init__(self, timing: bool) -> None:
        self.handle = int(_cuda.call("cuEventCreate", 0 if timing else _DISABLE_TIMING))

    def __del__(self, _destroy: Callable[[str, int], None] = _cuda.destroy) -> None:
        if handle := getattr(self, "handle", 0):
            _destroy("cuEventDestroy", handle)


class OwnedQueue(Uncopied):
    """The cudaStream_t of an owned `CudaStream`. It outlives the stream object as long as memory that was freed on it
    is cached.

    left: the stream object is gone, so that no work will follow. Set by a finalizer, which calls nothing.
    """

    __slots__ = ("__weakref__", "closed", "handle", "left")
    ends = True

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.closed = self.left = False

    def over(self) -> bool:
        """Whether no work is pending and none will follow; then it is destroyed."""
        if self.left and not self.closed:
            (status,) = _cuda.open_cuda().driver.cuStreamQuery(self.handle)
            if _is_done(int(status), "cuStreamQuery"):
                self.close()
        return self.closed

    def close(self) -> None:
        """Destroy the cudaStream_t."""
        self.closed = True
        _cuda.call("cuStreamDestroy", self.handle)

    def __del__(self, _destroy: Callable[[str, int], None] = _cuda.destroy) -> None:
        if not self.closed:
            _destroy("cuStreamDestroy", self.handle)


class CudaStream(Stream):
    """A CUDA stream that does not synchronize with the legacy default stream.

    owned: it is destroyed with this object, once its work is done.
    """

    queues = True

    def __init__(self, device: Device, handle: int, priority: int = 0, *, owned: bool = True) -> None:
        super().__init__(device)
        self.handle, self.priority = handle, priority
        self._queue = OwnedQueue(handle) if owned else None
        self.owner: object = None  # the other library's stream object that this one wraps

    @property
    def queue(self) -> Stream | OwnedQueue:
        """The object that stands for the order of the work: freed memory is kept under it."""
        return self if self._queue is None else self._queue

    def check_open(self) -> None:
        """Raise DeviceError if `close` was called: its handle may mean another stream by now."""
        if self.closed:
            raise DeviceError(f"{self!r} is closed: make another one with Device.stream")

    def synchronize(self) -> None:
        """Wait until all queued work is done."""
        self.check_open()
        if status := _cuda.direct("cuStreamSynchronize")(self.handle):
            _cuda.raise_status(status, "cuStreamSynchronize")

    def query(self) -> bool:
        """Whether all queued work is done."""
        self.check_open()
        (status,) = _cuda.open_cuda().driver.cuStreamQuery(self.handle)
        return _is_done(int(status), "cuStreamQuery")

    def record(self, event: Event | None = None) -> Event:
        """Mark this point of the queue with `event` (a new one, without timing, by default) and return it."""
        event = _event(event)
        before = event._stream
        if before is not self and (event._native is None or before is None or before.device != self.device):
            with self.device.current():
                event._native = _CudaEvent(event.timing)
        self.check_open()
        if status := _cuda.direct("cuEventRecord")(event.handle, self.handle):
            _cuda.raise_status(status, "cuEventRecord")
        event._stream = self
        return event

    def stamp(self, event: Event) -> None:
        """While capturing: let every launch of the graph record `event` (made with timing) at this point."""
        if event._native is None:
            with self.device.current():
                event._native = _CudaEvent(event.timing)
        external = _cuda.open_cuda().driver.CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL
        _cuda.call("cuEventRecordWithFlags", event.handle, self.handle, int(external))
        event._stream = self

    def wait(self, other: Event | StreamLike) -> None:
        """Let work queued here from now on wait for `other`: an event, or the pending work of another stream."""
        if not isinstance(other, (Event, Stream)):
            other = as_stream(other, self.device)
        event = other.record() if isinstance(other, CudaStream) else other
        if isinstance(event, Event) and event._native is not None:
            self.check_open()
            if status := _cuda.direct("cuStreamWaitEvent")(self.handle, event.handle, 0):
                _cuda.raise_status(status, "cuStreamWaitEvent")

    @contextmanager
    def capture(self, mode: str = "relaxed", home: Stream | None = None) -> Iterator[CapturedGraph]:
        """Record the work queued inside the ``with`` block as a graph instead of running it.

        Raises CaptureInvalidated if work cannot be captured, or another thread invalidates it.
        """
        if mode not in _CAPTURE_MODES:
            raise ValueError(f"capture: mode must be one of {sorted(_CAPTURE_MODES)}, got {mode!r}")
        self.check_open()
        if self.capturing:
            raise DeviceError(f"capture: {self!r} is being captured already; end that capture first")
        driver = _cuda.open_cuda().driver
        with no_capture(), self.device.current(), early_starts():
            _cuda.call("cuStreamBeginCapture", self.handle, driver.CUstreamCaptureMode(_CAPTURE_MODES[mode]))
            graph = CapturedGraph(home or self)
            try:
                yield graph
            except BaseException as error:
                if self._abandon_capture() and isinstance(error, Exception):
                    raise CaptureInvalidated(f"capture on {self.device}: {error}") from error
                raise
            if self._is_invalidated():
                self._abandon_capture()
                raise CaptureInvalidated(
                    f"capture on {self.device}: it was broken off by what another thread did, or by work that cannot "
                    "be captured; try again, or run the work without a capture"
                )
            graph._instantiate(_cuda.call("cuStreamEndCapture", self.handle))

    def _is_invalidated(self) -> bool:
        return int(_cuda.call("cuStreamIsCapturing", self.handle)) == _INVALIDATED

    def _abandon_capture(self) -> bool:
        """End the capture; whether it had been invalidated."""
        broken = self._is_invalidated()
        driver = _cuda.open_cuda().driver
        status, graph = driver.cuStreamEndCapture(self.handle)
        if int(status) == 0 and int(graph):
            driver.cuGraphDestroy(graph)
        return broken

    @property
    def capturing(self) -> bool:
        """Whether work queued now is being captured into a graph."""
        return not self.closed and int(_cuda.call("cuStreamIsCapturing", self.handle)) != 0

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._queue is not None and self._queue.closed

    def close(self) -> None:
        """Wait for the queued work and free the stream. Idempotent; a default stream is never closed."""
        if self._queue is None or self._queue.closed:
            return
        if self.capturing:
            raise DeviceError(f"close: {self!r} is being captured; end the capture first")
        self.synchronize()  # memory that was freed on this stream may now be used by any other
        self._queue.close()

    def __del__(self) -> None:
        if (queue := getattr(self, "_queue", None)) is not None:
            queue.left = True


class CapturedGraph(Uncopied):
    """Work captured from a stream, launched as a whole: one call for any number of kernels.

    It holds addresses, not buffers: pass the owners to `keep`, and write new inputs into the same buffers.
    A launch starts after all earlier launches of the same graph, regardless of their streams; threads may share it.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._graph: Any = None
        self._executable: Any = None
        self._kept: list[object] = []
        self._lock = threading.Lock()  # the driver requires launches of a graph to be serialized
        self._copies: dict[int, tuple[Any, _cuda.CopyParams]] | None = None  # by destination
        self.node_count = 0

    def _instantiate(self, graph: Any) -> None:
        self._graph = graph
        _wait_for_ends(graph)
        _, self.node_count = _cuda.call("cuGraphGetNodes", graph, 0)
        self._executable = _cuda.call("cuGraphInstantiate", graph, 0)

    def keep(self, *owners: object) -> None:
        """Keep `owners` (buffers, kernels) alive as long as the graph."""
        self._kept.extend(owners)

    def launch(self, stream: StreamLike | None = None) -> None:
        """Queue the whole graph on `stream` (its own by default).

        Raises:
            DeviceError: the capture has not ended or failed, or the graph or the stream is closed.
        """
        self.bind(stream)()

    def bind(self, stream: StreamLike | None = None, *, alone: bool = False) -> Callable[[], None]:
        """`launch` with everything bound: calling the result queues the graph with the least host overhead.

        alone: the caller makes sure that launches and `close` are serialized.
        Raises DeviceError as `launch` does; so does the result once the graph is closed.
        """
        if self._executable is None:
            raise DeviceError("launch: the graph is closed, or its capture has not ended")
        where = as_stream(self._stream if stream is None else stream, self._stream.device)
        launch, executable, handle = _cuda.direct("cuGraphLaunch"), int(self._executable), where.handle
        enter, leave, lock = where.device.platform.enter, where.device.platform.leave, self._lock

        def run() -> None:
            if self._executable is None:
                raise DeviceError("launch: the graph is closed")
            before = enter()
            status = launch(executable, handle)
            if before:
                leave(before)
            if status:
                _cuda.raise_status(status, "cuGraphLaunch")

        def run_in_turn() -> None:
            with lock:
                run()

        return run if alone else run_in_turn

    def copy_to(self, destination: int) -> CapturedCopy:
        """The one captured copy to an address, whose operands may change between launches.

        Raises DeviceError if there is none, or the graph is closed.
        """
        if self._executable is None:
            raise DeviceError("copy_to: the graph is closed, or its capture has not ended")
        if self._copies is None:
            with self._stream.device.current():
                self._copies = _copies_of(self._graph)
        found = self._copies.get(destination)
        if found is None:
            raise DeviceError(f"copy_to: the graph has no copy to {destination:#x}")
        return CapturedCopy(self, self._stream.device, *found)

    @property
    def closed(self) -> bool:
        """Whether the graph cannot be launched (any more)."""
        return self._executable is None

    def close(self) -> None:
        """Free the graph once its launches are done, and release the owners. Idempotent."""
        with self._lock:
            executable, self._executable = self._executable, None
        if executable is not None:
            _cuda.call("cuGraphExecDestroy", executable)
        if self._graph is not None:
            graph, self._graph = self._graph, None
            _cuda.call("cuGraphDestroy", graph)
        self._kept.clear()
        self._copies = None

    def __enter__(self) -> CapturedGraph:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # the process is ending and the driver is gone
            self._kept = []

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.node_count} nodes"
        return f"CapturedGraph({state}, from {self._stream!r})"


class CapturedCopy:
    """A copy in a captured graph, whose operands may move between launches, within the same kinds of memory and
    with the same size. Launches already queued keep theirs. Moves and launches must be serialized.

    source, destination: addresses of the next launch.
    """

    __slots__ = ("_bound", "_graph", "_params", "_platform", "destination", "source")

    def __init__(self, graph: CapturedGraph, device: Device, node: Any, params: _cuda.CopyParams) -> None:
        self._graph, self._params, self._platform = graph, params, device.platform
        self.source, self.destination = params.address("src"), params.address("dst")
        context = int(self._platform.context)  # type: ignore[attr-defined]
        self._bound = int(graph._executable), int(node), ctypes.byref(params), context

    def read_from(self, source: int) -> None:
        """Change the source of later launches. Raises DeviceError if the driver refuses."""
        self._set("src", source, self.source)
        self.source = source

    def write_to(self, destination: int) -> None:
        """Change the destination of later launches. Raises DeviceError if the driver refuses."""
        self._set("dst", destination, self.destination)
        self.destination = destination

    def _set(self, side: str, address: int, before: int) -> None:
        if self._graph.closed:
            raise DeviceError("a copy of a graph: the graph is closed")
        self._params.set_address(side, address)
        entered = self._platform.enter()
        status = _cuda.direct("cuGraphExecMemcpyNodeSetParams")(*self._bound)
        if entered:
            self._platform.leave(entered)
        if status:
            self._params.set_address(side, before)
            _cuda.raise_status(status, "cuGraphExecMemcpyNodeSetParams")


_COPY_NODE = 1  # CU_GRAPH_NODE_TYPE_MEMCPY


def _copies_of(graph: Any) -> dict[int, tuple[Any, _cuda.CopyParams]]:
    """The copy nodes of a graph with their parameters, by destination; without those that share one."""
    nodes, count = _cuda.call("cuGraphGetNodes", graph, int(_cuda.call("cuGraphGetNodes", graph, 0)[1]))
    found: dict[int, list[tuple[Any, _cuda.CopyParams]]] = {}
    for node in list(nodes)[:count]:
        kind, params = ctypes.c_int(), _cuda.CopyParams()
        _check(_cuda.direct("cuGraphNodeGetType")(int(node), ctypes.byref(kind)), "cuGraphNodeGetType")
        if kind.value == _COPY_NODE:
            ask = _cuda.direct("cuGraphMemcpyNodeGetParams")
            _check(ask(int(node), ctypes.byref(params)), "cuGraphMemcpyNodeGetParams")
            found.setdefault(params.address("dst"), []).append((node, params))
    return {address: each[0] for address, each in found.items() if len(each) == 1}


def _check(status: int, call: str) -> None:
    if status:
        _cuda.raise_status(status, call)


def _event(given: Event | None) -> Event:
    """The event to record: the one given, or a new one. Raises TypeError."""
    if given is None or isinstance(given, Event):
        return given or Event()
    raise TypeError(f"record: event must be an Event, got {given!r}")


def _is_done(status: int, call: str) -> bool:
    """Whether work is done, from the driver's status of the query."""
    if status not in (0, _cuda.NOT_READY):
        _cuda.raise_status(status, call)
    return status == 0


# ------------------------------------------------------------------------------------ streams of other libraries
_LEGACY = 1  # CU_STREAM_LEGACY: the legacy default stream, by a handle that means the same in every call
_PER_THREAD = 2  # CU_STREAM_PER_THREAD
_borrowed: WeakValueDictionary[tuple[Device, int], CudaStream] = WeakValueDictionary()


def stream_address(stream: StreamLike) -> int:
    """The cudaStream_t of a stream: of this runtime, an int, or of CuPy, PyTorch, Numba or cuda-core.

    None and 0 are CUDA's legacy default stream. Raises TypeError for other objects.
    """
    if stream is None or (isinstance(stream, int) and not isinstance(stream, bool) and stream >= 0):
        return stream or 0
    if isinstance(stream, Stream):
        return stream.__cuda_stream__()[1]
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    # By class name: arrays and events have a `ptr` or `handle` as well.
    names = ("cuda_stream", "ptr", "handle") if "Stream" in type(stream).__name__ else ("cuda_stream",)
    for name in names:  # PyTorch, CuPy, Numba
        found = getattr(stream, name, None)
        if found is not None:
            return int(getattr(found, "value", found) or 0)
    raise TypeError(
        f"a CUDA stream is wanted (a Stream, a cudaStream_t, or one of CuPy, PyTorch, Numba), got {stream!r}"
    )


def as_stream(stream: StreamLike, device: Device) -> Stream:
    """`stream` as a stream of `device`; None is the device's default stream.

    Streams of other libraries are never closed here, and kept alive while in use.
    An int is a cudaStream_t that must outlive its use (0 and 1: CUDA's legacy default stream, 2: the
    thread's own default stream).

    Raises:
        TypeError: no stream. ValueError: another library's stream for the CPU, or of another device. DeviceError: a
        closed stream.
    """
    if stream is None:
        return device.default_stream
    if isinstance(stream, Stream):
        stream.check_open()
        return stream
    address = stream_address(stream) or _LEGACY
    if device.kind != "cuda":
        raise ValueError(f"stream={stream!r}: it queues work of a GPU, and the work is on {device}")
    found = _borrowed.get((device, address))
    if found is None:
        found = _borrowed[device, address] = _borrow(address, device)
    if found.owner is None and not isinstance(stream, int):
        found.owner = stream
    return found


def _borrow(address: int, device: Device) -> CudaStream:
    with device.current():
        index = device.index if address in (_LEGACY, _PER_THREAD) else _index_of(address)
        if index != device.index:
            raise ValueError(f"stream {address:#x} belongs to cuda:{index}, and the work is on {device}")
        return CudaStream(device, address, int(_cuda.call("cuStreamGetPriority", address)), owned=False)


def _index_of(stream: int) -> int:
    """The number of the device that a stream belongs to."""
    _cuda.call("cuCtxPushCurrent", _cuda.call("cuStreamGetCtx", stream))
    try:
        return int(_cuda.call("cuCtxGetDevice"))
    finally:
        _cuda.call("cuCtxPopCurrent")


def _wait_for_ends(graph: Any) -> None:
    """Let each kernel of a captured graph begin only after those before it have ended.

    Libraries launch kernels that may begin while the previous one still runs (programmatic dependent
    launch); capture records that in the edge. Replayed beside other work such kernels gave wrong numbers in up to one
    of thirty runs, with full edges in none of 75,000 (ResNet-18, cuDNN 9.19, compute capability 9.0). Full edges
    from the nodes before such an edge to those after it are not enough: 13 of 2,400. An encoder's step takes
    3 % longer for it, AlexNet's does not. Nor are Lamina's kernels safe after such edges that wait themselves
    (`griddepcontrol.wait`) and let none begin before their end: one image's inference took 0 to 5 % less, and 15 of
    some 60,000 runs were wrong.
    """
    driver = _cuda.open_cuda().driver
    ask = "cuGraphGetEdges_v2" if hasattr(driver, "cuGraphGetEdges_v2") else "cuGraphGetEdges"
    count = int(_cuda.call(ask, graph)[-1])
    if not count:
        return
    answer = _cuda.call(ask, graph, count)
    if len(answer) < 4:  # bindings older than such edges
        return
    suffix = "_v2" if ask.endswith("_v2") else ""
    for before, after, data in list(zip(*answer[:3], strict=False))[:count]:
        if int(data.type):
            _cuda.call(f"cuGraphRemoveDependencies{suffix}", graph, [before], [after], [data], 1)
            whole = driver.CUgraphEdgeData()
            _cuda.call(f"cuGraphAddDependencies{suffix}", graph, [before], [after], [whole], 1)
