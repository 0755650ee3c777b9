"""A saved plan in memory: contexts, each with an arena and kernels bound to it, for calls from many threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from lamina.replay.addresses import ARENA, INPUTS, SCRATCH, Regions
from lamina.replay.errors import PlanFileError
from lamina.replay.specs import decode_spec
from lamina.runtime import (
    Buffer,
    CapturedGraph,
    Device,
    LibraryState,
    Stream,
    copy,
    host_array,
    memset,
    pinned,
    retry_capture,
)
from lamina.runtime.pool import Pool
from lamina.runtime.shared_lock import recording
from lamina.spec import ShapeError, Spec, as_dtype

Array = np.ndarray[Any, Any]
Run = Callable[[], None]
Bind = Callable[[Regions, int], Run]
_MOST_BYTES = 1 << 44


class Reader(Protocol):
    """A reader of serialized steps; scratch: additional bytes that the steps need."""

    scratch: int

    def steps(self, data: Any) -> list[Bind]:
        """The binders of several steps."""
        ...


class Player:
    """The program of a saved plan: player(*arrays) -> arrays, on the host. Threads may share it.

    data: the program as in the file. kept: the constant bytes of its steps, on the device.
    reader: of steps. contexts: the most concurrent calls.
    """

    def __init__(
        self,
        data: Mapping[str, Any],
        kept: Buffer,
        device: Device,
        reader: Reader,
        contexts: int,
    ) -> None:
        self.device, self._kept = device, kept
        self._arena, self._counters = (_size(data[name]) for name in ("arena", "counters"))
        self.inputs: list[tuple[str, Spec]] = [
            (str(name), decode_spec(spec)) for name, spec in data["inputs"]
        ]
        self.outputs: list[tuple[int, Spec]] = [
            (address, decode_spec(spec)) for address, spec in data["outputs"]
        ]
        if any(not spec.is_contiguous for _, spec in self.inputs) or any(
            s.physical.blocks for _, s in self.outputs
        ):
            raise PlanFileError("inputs must be row-major, outputs plain")
        self._libraries = [LibraryState()]  # of future contexts; the first one's reads the steps
        with self._libraries[0].used():
            self._steps = reader.steps(data["steps"])
        self._scratch = reader.scratch
        self._contexts = Pool(self._context, contexts)
        self._contexts.give(self._contexts.take())  # errors of binding are raised now

    def __call__(self, *arrays: Array) -> list[Array]:
        """The outputs for the inputs, in order, in memory of their own. Raises ShapeError."""
        if len(arrays) != len(self.inputs):
            raise ShapeError(f"the plan takes {len(self.inputs)} inputs, got {len(arrays)}")
        for x, (name, spec) in zip(arrays, self.inputs, strict=True):
            if x.shape != spec.shape or as_dtype(x.dtype) != spec.dtype:
                raise ShapeError(f"input {name} is {spec.open}, got an array {x.dtype}{list(x.shape)}")
        context = self._contexts.take()
        try:
            return context(arrays)
        finally:
            self._contexts.give(context)

    @property
    def contexts(self) -> int:
        """How many contexts there are."""
        return len(self._contexts.items)

    def _context(self) -> _Context:
        kind = _GpuContext if self.device.kind == "cuda" else _Context
        libraries = self._libraries.pop() if self._libraries else LibraryState()
        sizes = (self._arena, self._counters, self._scratch)
        return kind(self, self._kept, sizes, self._steps, libraries)

    def __repr__(self) -> str:
        given, made = (", ".join(str(s.open) for _, s in specs) for specs in (self.inputs, self.outputs))
        return f"Player(({given}) -> ({made}) on {self.device}, {len(self._steps)} steps)"


class _Context:
    """The memory of one call at a time, and every step bound to it."""

    def __init__(
        self,
        player: Player,
        kept: Buffer,
        sizes: tuple[int, int, int],
        steps: Sequence[Bind],
        libraries: LibraryState,
    ) -> None:
        self._outputs, self.device, self._libraries = player.outputs, player.device, libraries
        self._open()
        self._given = [self._place(spec.nbytes) for _, spec in player.inputs]
        arena, zeros, scratch = (self._place(nbytes) for nbytes in sizes)
        if zeros.nbytes:
            memset(zeros, 0)
        self._held = (arena, kept, zeros, scratch)
        regions = [(0, -1)] * INPUTS + [(b.pointer, b.nbytes) for b in self._given]
        regions[ARENA : SCRATCH + 1] = [(b.pointer, b.nbytes) for b in self._held]
        self.memory = Regions(regions)
        self._sources = [(self.memory.at(address, spec.nbytes), spec) for address, spec in player.outputs]
        self._steps, self._runs = steps, list[Run]()
        self._bind()

    def _open(self) -> None:
        """Create the context's own resources."""
        self._places = list[Array]()

    def _place(self, nbytes: int) -> Buffer:
        return self.device.allocate(nbytes)

    def _bind(self) -> None:
        self._runs = [bind(self.memory, 0) for bind in self._steps]

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        for place, x in zip(self._given, arrays, strict=True):
            if place.nbytes:
                copy(place, np.ascontiguousarray(x), place.nbytes)
        for run in self._runs:
            run()
        return [_taken(address, spec) for address, spec in self._sources]


class _GpuContext(_Context):
    """A stream, an arena and a CUDA graph; inputs and outputs go through pinned memory.

    The first call runs the kernels one by one, since libraries load lazily; the second captures them. Both run
    exclusively.
    """

    def _open(self) -> None:
        self.stream = self.device.stream()
        self._captured: CapturedGraph | None = None
        self._rehearsed = False

    def _place(self, nbytes: int) -> Buffer:
        return self.device.allocate(nbytes, stream=self.stream)

    def _bind(self) -> None:
        self.device.default_stream.synchronize()  # weights and counters are complete
        self._arriving = [pinned(b.nbytes) for b in self._given]
        self._leaving = [pinned(spec.nbytes) for _, spec in self._outputs]
        self._runs = self._bound_to(self.stream)

    def _bound_to(self, stream: Stream) -> list[Run]:
        """The steps on a stream, with handles that no other context uses."""
        with self._libraries.used():
            return [bind(self.memory, stream.handle) for bind in self._steps]

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        with recording.exclusive() if self._captured is None else recording.shared():
            self._run(arrays)
        pairs = zip(self._sources, self._leaving, strict=True)
        return [_taken(way.pointer, spec) for (_, spec), way in pairs]

    def _run(self, arrays: Sequence[Array]) -> None:
        """Run; afterwards the results are in pinned memory."""
        for way, x in zip(self._arriving, arrays, strict=True):
            if way.nbytes:
                copy(way, np.ascontiguousarray(x), way.nbytes)
        if self._captured is not None:
            self._replay()
        elif self._rehearsed:
            self._capture()
        else:
            self._queue(self._runs, self.stream)
            self._rehearsed = True
        self.stream.synchronize()

    def _queue(self, runs: Sequence[Run], stream: Stream) -> None:
        """Copies of the inputs, the steps, and copies of the outputs."""
        transfer = self.device.platform.copy
        for place, way in zip(self._given, self._arriving, strict=True):
            if place.nbytes:
                transfer(place.pointer, way.pointer, place.nbytes, stream)
        for run in runs:
            run()
        for (address, spec), way in zip(self._sources, self._leaving, strict=True):
            if spec.nbytes:
                transfer(way.pointer, address, spec.nbytes, stream)

    def _capture(self) -> None:
        """Capture it all on a separate stream: other threads' work is not part of it."""
        with self._libraries.used():
            self._runs, self._captured = retry_capture(self._recorded)
        self._replay = self._captured.bind()
        self._replay()

    def _recorded(self) -> tuple[list[Run], CapturedGraph]:
        with self.device.stream() as side:
            runs = self._bound_to(side)
            with side.capture(home=self.stream) as captured:
                self._queue(runs, side)
        return runs, captured


def _taken(address: int, spec: Spec) -> Array:
    """A copy of a result, row-major."""
    strides = tuple([s * spec.dtype.itemsize for s in spec.physical.strides])
    return np.array(host_array(address, spec.shape, spec.dtype.numpy, strides), order="C")


def _size(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _MOST_BYTES:
        raise PlanFileError(f"not a number of bytes: {value!r}")
    return value
