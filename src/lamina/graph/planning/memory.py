"""Static memory: from lifetimes to offsets in one arena.

A block lives from the step that writes it to the last step that reads it. Blocks whose lives do not overlap may share
bytes. Large blocks are placed first, each at the lowest offset where it fits; optimal placement is NP-hard, and on
networks this greedy order comes close to the lower bound.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: Every block starts at a multiple of this: enough for vector loads, and for what libraries ask for.
ALIGNMENT = 256


@dataclass(frozen=True)
class Lifetime:
    """A block of `nbytes` that is written in step `first` and read for the last time in step `last`."""

    nbytes: int
    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        """Whether both blocks are live during some step."""
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
    """Offsets such that blocks with overlapping lifetimes never overlap in memory."""
    order = sorted(range(len(blocks)), key=lambda i: (-blocks[i].nbytes, blocks[i].first))
    offsets = [0] * len(blocks)
    placed = _Placed(len(blocks))
    for i in order:
        if blocks[i].nbytes:
            offsets[i] = placed.add(blocks[i])
    return Placement(tuple(offsets), placed.top, sum(aligned(b.nbytes) for b in blocks), _lower_bound(blocks))


def aligned(nbytes: int) -> int:
    """nbytes rounded up to the arena's alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class _Placed:
    """The blocks placed so far, sorted by offset, as one array per property.

    top: the end of the highest one.
    """

    def __init__(self, most: int) -> None:
        self.count, self.top = 0, 0
        self.start, self.end, self.first, self.last = self.rows = np.zeros((4, most), np.int64)

    def add(self, block: Lifetime) -> int:
        """Place a block as low as possible; its offset."""
        size = aligned(block.nbytes)
        offset = self.lowest_gap(block, size)
        at = int(np.searchsorted(self.start[: self.count], offset))
        self.rows[:, at + 1 : self.count + 1] = self.rows[:, at : self.count].copy()
        self.rows[:, at] = offset, offset + size, block.first, block.last
        self.count, self.top = self.count + 1, max(self.top, offset + size)
        return offset

    def lowest_gap(self, block: Lifetime, size: int) -> int:
        """The lowest offset with `size` bytes that are free throughout the block's lifetime."""
        n = self.count
        beside = np.flatnonzero((self.first[:n] <= block.last) & (self.last[:n] >= block.first))
        if not beside.size:
            return 0
        reached = np.maximum.accumulate(self.end[beside])
        room = self.start[beside]
        room[1:] -= reached[:-1]
        fits = int((room >= size).argmax())
        if room[fits] < size:
            return int(reached[-1])
        return int(reached[fits - 1]) if fits else 0


def _lower_bound(blocks: Sequence[Lifetime]) -> int:
    """The peak of live bytes over all steps."""
    changes = Counter[int]()
    for b in blocks:
        changes[b.first] += aligned(b.nbytes)
        changes[b.last + 1] -= aligned(b.nbytes)
    return max(itertools.accumulate(changes[step] for step in sorted(changes)), default=0)
