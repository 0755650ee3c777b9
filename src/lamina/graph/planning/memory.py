"""Static memory: from lifetimes to offsets in one arena.

A block lives from the step that writes it to the last step that reads it. Blocks whose lives do not overlap
may share bytes. Large blocks are placed first, each at the lowest offset where it fits; optimal placement is
NP-hard, and this greedy order is near the lower bound on networks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Every block starts at a multiple of this: enough for vector loads and for cuDNN's alignment.
ALIGNMENT = 256


@dataclass(frozen=True)
class Lifetime:
    """A block of `nbytes` that is written in step `first` and read for the last time in step `last`."""

    nbytes: int
    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        """Whether both blocks hold values during some step."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class Placement:
    """Offsets into an arena, in the order of the blocks, and sizes in bytes.

    nbytes: the arena. unplanned: what separate allocations would take. bound: no plan can need less.
    """

    offsets: tuple[int, ...]
    nbytes: int
    unplanned: int
    bound: int


def place(blocks: Sequence[Lifetime]) -> Placement:
    """Offsets such that blocks that live at the same time never overlap."""
    order = sorted(range(len(blocks)), key=lambda i: (-blocks[i].nbytes, blocks[i].first))
    offsets = [0] * len(blocks)
    placed: list[int] = []
    for i in order:
        if blocks[i].nbytes:
            offsets[i] = _lowest_gap(blocks, offsets, placed, i)
            placed.append(i)
    total = max((offsets[i] + aligned(blocks[i].nbytes) for i in placed), default=0)
    return Placement(tuple(offsets), total, sum(aligned(b.nbytes) for b in blocks), _lower_bound(blocks))


def aligned(nbytes: int) -> int:
    """nbytes rounded up to the arena's alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _lowest_gap(blocks: Sequence[Lifetime], offsets: list[int], placed: list[int], i: int) -> int:
    taken = sorted((offsets[j], aligned(blocks[j].nbytes)) for j in placed if blocks[j].overlaps(blocks[i]))
    need, offset = aligned(blocks[i].nbytes), 0
    for start, size in taken:
        if start - offset >= need:
            break
        offset = max(offset, start + size)
    return offset


def _lower_bound(blocks: Sequence[Lifetime]) -> int:
    """The most bytes that are alive in one step."""
    steps = sorted({b.first for b in blocks})
    return max((sum(aligned(b.nbytes) for b in blocks if b.first <= s <= b.last) for s in steps), default=0)
