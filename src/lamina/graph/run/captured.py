"""A program as one CUDA graph that itself copies a call's operands and results, or in pieces.

Each copy is a graph node, whose addresses are updated before a launch if they differ from those of the launch before;
launches already queued keep theirs. So a call is one driver call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lamina.backends import Run
from lamina.runtime import Buffer, CapturedCopy, CapturedGraph, DeviceError, Stream

#: How an input arrives: written to its place before a launch, or copied by the graph, from the device or pinned
#: memory.
WRITTEN, LYING, PINNED = 0, 1, 2
Ways = tuple[int, ...]


class CannotMove(Exception):
    """A graph cannot copy from or to an address."""


@dataclass(frozen=True, eq=False)
class GraphCopy:
    """A copy that a graph shall do, between the kinds of memory of its later operands."""

    place: Buffer
    source: Buffer
    nbytes: int


def queue_copies(copies: Sequence[GraphCopy | None], stream: Stream) -> None:
    """Queue copies during stream capture."""
    for copy in copies:
        if copy is not None:
            stream.device.platform.copy(copy.place.pointer, copy.source.pointer, copy.nbytes, stream)


@dataclass(frozen=True, eq=False, slots=True)
class Captured:
    """A captured program. graphs: one, or those of its pieces (`in_pieces`). runs: objects that they read and keep
    alive. arriving, leaving: its copies of operands and results, by index; an operand or result without one is copied
    outside the graph."""

    graphs: Sequence[CapturedGraph]
    launch: Run
    runs: Sequence[object]
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
        """A graph that was captured with these copies. Closes it and raises CannotMove where one of them is
        missing."""
        try:
            found = [
                tuple([(i, graph.copy_to(c.place.pointer)) for i, c in enumerate(copies) if c is not None])
                for copies in (arriving, leaving)
            ]
        except DeviceError as error:
            graph.close()
            raise CannotMove from error
        return cls((graph,), graph.bind(alone=True), runs, *found)

    @classmethod
    def in_pieces(cls, pieces: Sequence[Captured | Run]) -> Captured:
        """Pieces of a program, and in between the steps that no graph can hold, launched in order."""
        launches = [piece.launch if isinstance(piece, Captured) else piece for piece in pieces]

        def launch() -> None:
            for run in launches:
                run()

        graphs = [graph for piece in pieces if isinstance(piece, Captured) for graph in piece.graphs]
        return cls(graphs, launch, pieces, (), ())

    def close(self) -> None:
        """Close the graphs."""
        for graph in self.graphs:
            graph.close()

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
