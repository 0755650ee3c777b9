"""Calls of a program on a GPU that begin and end on the host, each on a stream of its own.

An `ExecutionContext` works on the device's default stream and returns tensors there, so that there is only one. These
contexts have a stream, an arena and a CUDA graph each, and share the weights. A thread waits for its own stream
alone, without the GIL, and gets its results in host memory; nothing of a call remains on the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lamina.graph.planning.program import PlannedGraph, Slot
from lamina.graph.run.captured import PINNED, WRITTEN, CannotMove
from lamina.graph.run.context import ExecutionContext, Given
from lamina.graph.run.staging import Staged
from lamina.graph.run.timeline import Timeline, next_call
from lamina.runtime import Buffer, Device, LibraryState, pinned
from lamina.runtime.memory import Shelf
from lamina.runtime.shared_lock import recording
from lamina.spec import current_policy
from lamina.tensors import Tensor

_HOST = Device("cpu")


class HostContext(ExecutionContext):
    """The arena, stream and kernels of one call at a time, whose inputs and outputs lie on the host."""

    def __init__(
        self,
        program: PlannedGraph,
        results: Sequence[Slot],
        shared: Mapping[Slot, Buffer],
        device: Device,
        poison: bool,
    ) -> None:
        super().__init__(program, results, shared, device, poison, device.stream())
        # Pinned memory for inputs that come in other memory, and the same as an array.
        self._arriving: dict[Slot, tuple[Buffer, np.ndarray[Any, Any]]] = {}
        self._leaving = [pinned(slot.spec.nbytes) for slot in results]
        arena, stream = _HOST.platform.arena, _HOST.default_stream
        self._kept = [Shelf(arena, stream.device, slot.spec.nbytes, stream) for slot in results]
        self._libraries = LibraryState()  # not shared: its graph keeps using it

    def __call__(self, inputs: Sequence[tuple[Slot, Given]]) -> tuple[Tensor, ...]:
        """Run on these inputs, and wait for the outputs; concurrently with other calls once the program is
        captured."""
        with recording.shared() if self.is_captured else recording.exclusive():
            self._run(inputs)
        results = []
        for i, slot in enumerate(self._results):
            kept = self._kept[i].take()  # pageable memory; the next call writes the other buffer
            if slot.spec.nbytes:
                _HOST.platform.copy(
                    kept.pointer, self._leaving[i].pointer, slot.spec.nbytes, _HOST.default_stream
                )
            results.append(Tensor(kept, slot.spec))
        return tuple(results)

    def _moving(self) -> tuple[frozenset[Slot], frozenset[Slot]]:
        """Nothing: host operands and results are copied, and concurrent calls launch graphs."""
        return frozenset(), frozenset()

    def _run(self, inputs: Sequence[tuple[Slot, Given]]) -> None:
        """Run; afterwards the results are in pinned memory."""
        timeline, watched = next_call(), current_policy().check_finite
        sources = [self._arrived(slot, x) for slot, x in inputs]
        plain = timeline is None and not watched
        if not (plain and self._carries and self._rehearsed and self._replayed(sources)):
            with self._libraries.used():
                self._send(inputs, sources, timeline, watched)
        self._stream.synchronize()

    def _replayed(self, sources: Sequence[Buffer | None]) -> bool:
        """Launch a graph that copies operands and results; whether there is one."""
        ways = tuple([WRITTEN if source is None else PINNED for source in sources])
        try:
            captured = self._captured.get(ways)
            if captured is None:
                with self._libraries.used():
                    captured = self._captured_for(ways)
            captured.move(sources, self._leaving)
        except CannotMove:
            self._carries = False
            return False
        captured.launch()
        return True

    def _send(
        self,
        inputs: Sequence[tuple[Slot, Given]],
        sources: Sequence[Buffer | None],
        timeline: Timeline | None,
        watched: bool,
    ) -> None:
        """Queue copies of the operands, the program, and copies of the results."""
        stream, platform = self._stream, self._platform
        for (slot, _), source in zip(inputs, sources, strict=True):
            if source is not None:
                platform.copy(self._own[slot].pointer, source.pointer, slot.spec.nbytes, stream)
        self._launch(timeline, watched)
        for slot, place in zip(self._results, self._leaving, strict=True):
            if slot.spec.nbytes:
                platform.copy(place.pointer, self._pointer(slot), slot.spec.nbytes, stream)

    def _destinations(self) -> list[Buffer]:
        return self._leaving

    def _arrived(self, slot: Slot, x: Given) -> Buffer | None:
        """Pinned memory with the values of x, valid until the call returns; None for an empty input."""
        assert not isinstance(x, Staged)
        nbytes = slot.spec.nbytes
        if not nbytes:
            return None
        if isinstance(x, Tensor):
            held = (x if x.device.kind == "cpu" else x.to(_HOST)).contiguous()
            if held.buffer.pinned:
                return held.buffer
            x = held.numpy()
        place = self._arriving.get(slot)
        if place is None:
            buffer = pinned(nbytes)
            place = self._arriving[slot] = buffer, buffer.array(slot.spec.shape, slot.spec.dtype.numpy)
        place[1][...] = x
        return place[0]
