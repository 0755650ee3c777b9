"""Library handles that serve one caller at a time, and their internal memory.

Each thread has a state of its own. Work passed between threads, and work that runs concurrently on the device,
has another one, which a thread adopts while it binds and records: recorded work keeps using a handle's memory.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any


class LibraryState:
    """held: handles by key (a kind and a device)."""

    def __init__(self) -> None:
        self.held: dict[Hashable, Any] = {}

    @contextmanager
    def used(self) -> Iterator[None]:
        """Within the block this thread uses this state; no other thread may do so."""
        before = _local.__dict__.get("state")
        _local.state = self
        try:
            yield
        finally:
            if before is None:
                del _local.state
            else:
                _local.state = before


_local = threading.local()


def library_state() -> LibraryState:
    """The current thread's state."""
    found: LibraryState | None = _local.__dict__.get("state")
    if found is None:
        found = _local.__dict__.get("own")
    if found is None:
        found = _local.own = LibraryState()
    return found
