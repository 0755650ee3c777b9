"""Recovery after a fork: only the forking thread exists in the child.

Locks that other threads held at that moment would stay locked in the child forever. Owners of such locks register
with `renew_after_fork`, and create new ones in the child.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol
from weakref import WeakSet


class Renewable(Protocol):
    """An object with locks, or with parts that other threads had taken."""

    def renew(self) -> None:
        """Called in the child: reclaim all parts, and create new locks."""
        ...


_renewables: WeakSet[Renewable] = WeakSet()


def renew_after_fork(owner: Renewable) -> None:
    """Call `owner.renew()` in every child that this process forks, as long as the owner lives."""
    _renewables.add(owner)


class RenewedLock:
    """A module's reentrant `lock`, new in a forked child: another thread of the parent may have held it."""

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """In the child."""
        self.lock = threading.RLock()


def _renew() -> None:
    for owner in list(_renewables):
        owner.renew()


os.register_at_fork(after_in_child=_renew)
