"""Calls of a program on a GPU that begin and end on the host, each on a stream of its own.

A context of `ExecutionContext` works on the device's default stream and hands out tensors there, so that there is one
of it. These have a stream, an arena and a CUDA graph each, and share the weights. Their thread waits for its own
stream alone, without Python's lock, and gets its answer in host memory; nothing of a call is left on the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lamina.graph.planning.layout import PlannedGraph, Slot
from lamina.graph.run.context import ExecutionContext, Given
from lamina.graph.run.staging import Staged
from lamina.runtime import Buffer, Device, LibraryState, pinned
from lamina.runtime.shared_lock import recording
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
        self._arriving: dict[Slot, Buffer] = {}  # pinned memory of inputs that come in other memory
        self._leaving = [pinned(slot.spec.nbytes) for slot in results]
        self._libraries = LibraryState()  # what its graph goes on using is no other context's

    def __call__(self, inputs: Sequence[tuple[Slot, Given]]) -> tuple[Tensor, ...]:
        """Run on these inputs, and wait for the outputs; beside other calls once the program is recorded."""
        with recording.shared() if self.is_captured else recording.exclusive():
            self._run(inputs)
        pairs = zip(self._results, self._leaving, strict=True)
        return tuple([Tensor(_copied(place, slot.spec.nbytes), slot.spec) for slot, place in pairs])

    def _moving(self) -> tuple[frozenset[Slot], frozenset[Slot]]:
        """Nothing: what comes from the host and goes there is copied, and calls beside each other launch graphs."""
        return frozenset(), frozenset()

    def _run(self, inputs: Sequence[tuple[Slot, Given]]) -> None:
        """The results lie in pinned memory then."""
        stream, platform = self._stream, self._platform
        for slot, x in inputs:
            self._send(slot, x)
        with self._libraries.used():
            self._launch()
        for slot, place in zip(self._results, self._leaving, strict=True):
            if slot.spec.nbytes:
                platform.copy(place.pointer, self._pointer(slot), slot.spec.nbytes, stream)
        stream.synchronize()

    def _send(self, slot: Slot, x: Given) -> None:
        """Queue the copy of x, whose memory stays as it is until the call returns, to its place."""
        assert not isinstance(x, Staged)
        nbytes = slot.spec.nbytes
        if isinstance(x, Tensor):
            held = (x if x.device.kind == "cpu" else x.to(_HOST)).contiguous()
            if held.buffer.pinned:
                self._platform.copy(self._own[slot].pointer, held.buffer.pointer, nbytes, self._stream)
                return
            x = held.numpy()
        if not nbytes:
            return
        place = self._arriving.get(slot)
        if place is None:
            place = self._arriving[slot] = pinned(nbytes)
        array = np.ascontiguousarray(x)
        _HOST.platform.copy(place.pointer, array.ctypes.data, nbytes, _HOST.default_stream)
        self._platform.copy(self._own[slot].pointer, place.pointer, nbytes, self._stream)


def _copied(place: Buffer, nbytes: int) -> Buffer:
    """Pageable memory with the bytes of a place that the next call writes."""
    buffer = _HOST.allocate(nbytes)
    if nbytes:
        _HOST.platform.copy(buffer.pointer, place.pointer, nbytes, _HOST.default_stream)
    return buffer
