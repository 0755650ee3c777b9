"""A cache of compiled programs, limited in number and memory; the least recently used ones are dropped first."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, Protocol, TypeVar

from lamina.graph.planning.rematerialize import as_bytes
from lamina.runtime import Device

#: The default limit on the number of programs.
MOST = 64
#: And on their part of the device's memory.
SHARE = 4


class TakesMemory(Protocol):
    """A compiled graph: its device, and the bytes that it takes there."""

    @property
    def device(self) -> Device:
        """Where it runs."""

    @property
    def own_bytes(self) -> int:
        """Its memory."""


class HoldsExecutable(Protocol):
    """Something around a compiled graph."""

    @property
    def executable(self) -> TakesMemory:
        """The compiled graph."""


P = TypeVar("P", bound=HoldsExecutable)


class Programs(Generic[P]):
    """Programs by key, several for one key where they hold under different circumstances.

    Lookups need no lock; callers of `add` hold one. A program that is dropped while it runs ends its run.

    Args:
        most: the most programs that are kept.
        most_bytes: how much memory of their own they may have together (arenas, inputs, results; no parameters):
            bytes, or such as "2 GiB"; by default a quarter of the device's memory. The newest one is always kept.
        what: for messages, who asks.
    """

    def __init__(self, most: int = MOST, most_bytes: int | str | None = None, what: str = "programs") -> None:
        if not isinstance(most, int) or most < 1:
            raise ValueError(f"{what}: max_programs must be at least 1, got {most}")
        self.most = most
        self.most_bytes = None if most_bytes is None else as_bytes(most_bytes, f"{what}: max_program_bytes")
        self._found: dict[Hashable, list[P]] = {}
        self._used: dict[int, int] = {}
        self._clock = itertools.count()

    def find(self, key: Hashable, holds: Callable[[P], bool] | None = None) -> P | None:
        """A program of this key for which `holds` is true; it counts as used now."""
        for program in self._found.get(key, ()):
            if holds is None or holds(program):
                self.touch(program)
                return program
        return None

    def count(self, key: Hashable) -> int:
        """The number of programs of this key."""
        return len(self._found.get(key, ()))

    def newest(self, key: Hashable) -> P | None:
        """The program of this key that was made last."""
        return next(reversed(self._found.get(key, ())), None)

    def touch(self, program: P) -> None:
        """Mark a program as used now."""
        self._used[id(program)] = next(self._clock)

    def add(self, key: Hashable, program: P, keep: Callable[[P], bool] | None = None) -> None:
        """Keep one more, and of the others of its key those for which `keep` is true; evict what exceeds the
        limits."""
        others = [p for p in self._found.get(key, ()) if keep is None or keep(p)]
        self._found[key] = [*others, program]
        self.touch(program)
        self._drop()

    def __iter__(self) -> Iterator[P]:
        return iter([p for each in list(self._found.values()) for p in each])

    def __len__(self) -> int:
        return sum(map(len, list(self._found.values())))

    def clear(self) -> None:
        """Drop all."""
        self._found, self._used = {}, {}

    @property
    def nbytes(self) -> int:
        """The memory that they have of their own."""
        return sum(p.executable.own_bytes for p in self)

    def _drop(self) -> None:
        every = sorted(self, key=lambda p: self._used.get(id(p), -1), reverse=True)
        sizes = list(itertools.accumulate(p.executable.own_bytes for p in every))
        room = self._room(every[0])
        kept = {id(p) for i, p in enumerate(every) if i == 0 or (i < self.most and sizes[i] <= room)}
        found = {key: [p for p in each if id(p) in kept] for key, each in self._found.items()}
        self._found = {key: each for key, each in found.items() if each}
        self._used = {i: when for i, when in self._used.items() if i in kept}

    def _room(self, program: P) -> int:
        if self.most_bytes is not None:
            return self.most_bytes
        device = program.executable.device
        return 1 << 62 if device.planned is not None else device.memory_info().total // SHARE
