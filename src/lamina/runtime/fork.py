"""What holds after a fork: the child goes on with the forking thread alone.

Locks that other threads held at that moment would stay locked in the child for ever. Who keeps such a lock says so
with `renew_after_fork`, and makes a new one in the child.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Renewable(Protocol):
    """Something with locks, or with parts that other threads had taken."""

    def renew(self) -> None:
        """Called in the child: take all back, and make new locks."""
        ...


_renewables: WeakSet[Renewable] = WeakSet()


def renew_after_fork(owner: Renewable) -> None:
    """Have `owner.renew()` called in every child that this process forks, as long as the owner lives."""
    _renewables.add(owner)


def _renew() -> None:
    for owner in list(_renewables):
        owner.renew()


os.register_at_fork(after_in_child=_renew)
