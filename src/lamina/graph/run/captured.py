"""A program as one CUDA graph that copies a call's operands and results itself.

Each copy is a node of the graph, whose addresses are set before a launch where they are others than at the launch
before: what was launched keeps its own. So a call is one call of the driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lamina.backends import Run
from lamina.runtime import Buffer, CapturedCopy, CapturedGraph, DeviceError, Stream

#: How an input comes: written to its place before a launch, or copied by the graph, from the device or pinned memory.
WRITTEN, LYING, PINNED = 0, 1, 2
Ways = tuple[int, ...]


class CannotMove(Exception):
    """A graph cannot copy from or to an address."""


@dataclass(frozen=True, eq=False)
class GraphCopy:
    """A copy that a graph is to do, between memory of the kinds that it will have."""

    place: Buffer
    source: Buffer
    nbytes: int


def queue_copies(copies: Sequence[GraphCopy | None], stream: Stream) -> None:
    """Queue copies, while capturing."""
    for copy in copies:
        if copy is not None:
            stream.device.platform.copy(copy.place.pointer, copy.source.pointer, copy.nbytes, stream)


@dataclass(frozen=True, eq=False, slots=True)
class Captured:
    """A captured program. runs: what it goes on reading. arriving, leaving: its copies of operands and of results, by
    the number of each; what has none is copied beside it."""

    graph: CapturedGraph
    launch: Run
    runs: Sequence[Run]
    arriving: tuple[tuple[int, CapturedCopy], ...]
    leaving: tuple[tuple[int, CapturedCopy], ...]

    @classmethod
    def of(
        cls,
        graph: CapturedGraph,
        runs: Sequence[Run],
        arriving: Sequence[GraphCopy | None] = (),
        leaving: Sequence[GraphCopy | None] = (),
    ) -> Captured:
        """A graph that was captured with these copies. Raises CannotMove where it lacks one, and closes it."""
        try:
            found = [
                tuple([(i, graph.copy_to(c.place.pointer)) for i, c in enumerate(copies) if c is not None])
                for copies in (arriving, leaving)
            ]
        except DeviceError as error:
            graph.close()
            raise CannotMove from error
        return cls(graph, graph.bind(alone=True), runs, *found)

    def move(self, sources: Sequence[Any], results: Sequence[Buffer]) -> None:
        """Let the next launch copy operands from, and results to, these buffers. Raises CannotMove."""
        try:
            for i, copy in self.arriving:
                pointer = sources[i].pointer
                if copy.source != pointer:
                    copy.read_from(pointer)
            for i, copy in self.leaving:
                pointer = results[i].pointer
                if copy.destination != pointer:
                    copy.write_to(pointer)
        except DeviceError as error:
            raise CannotMove from error
