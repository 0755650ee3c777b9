"""`Group`: some ranks of a world, as a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """The ranks that take part in a collective, in order: `Group(0, 2)`, `Group(range(4))`.

    Equal groups share a communicator. Raises ValueError for no ranks, a negative one, or one twice.
    """

    ranks: tuple[int, ...]

    def __init__(self, *members: int | Sequence[int], ranks: Sequence[int] = ()) -> None:
        first = members[0] if len(members) == 1 else None
        given = first if isinstance(first, Sequence) else members
        object.__setattr__(self, "ranks", tuple(given or ranks))
        if not self.ranks or any(not isinstance(r, int) or r < 0 for r in self.ranks):
            raise ValueError(f"Group: ranks must be at least one number from 0 on, got {self.ranks}")
        if len(set(self.ranks)) != len(self.ranks):
            raise ValueError(f"Group: each rank may stand once, got {self.ranks}")

    @property
    def size(self) -> int:
        """How many ranks."""
        return len(self.ranks)

    def __str__(self) -> str:
        first, last = self.ranks[0], self.ranks[-1]
        if self.size > 2 and self.ranks == tuple(range(first, last + 1)):
            return f"ranks {first}-{last}"
        return "ranks " + ",".join(map(str, self.ranks))
