"""What libraries keep for one caller at a time: their handles, and the memory that lies behind them.

A thread has one state of its own. What several threads work for in turn, and what works beside others on the device,
has another, which a thread takes while it binds and records for it: recorded work goes on using a handle's memory.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any


class LibraryState:
    """held: handles, by what names them (a kind and a device)."""

    def __init__(self) -> None:
        self.held: dict[Hashable, Any] = {}

    @contextmanager
    def used(self) -> Iterator[None]:
        """This thread works with this state within the block; no other thread may meanwhile."""
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
    """The one that this thread works with."""
    found: LibraryState | None = _local.__dict__.get("state")
    if found is None:
        found = _local.__dict__.get("own")
    if found is None:
        found = _local.own = LibraryState()
    return found
