"""A pool of items that serve one call at a time, created on demand for concurrent calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

from lamina.runtime.errors import OutOfMemoryError
from lamina.runtime.fork import renew_after_fork

T = TypeVar("T")

#: Seconds for which a waiting call may be overtaken: running calls continue sooner than a sleeping one wakes.
_PATIENCE = 1e-3


class Pool(Generic[T]):
    """Items that each call takes and gives back: a free one, a new one up to `bound`, or it waits.

    Taking and giving back cost no lock while an item is free: `pop` and `append` of a list are atomic. Waiting
    calls form a queue; one that has waited for `_PATIENCE` is late, and from then on only the first of the queue
    takes an item.
    """

    def __init__(self, make: Callable[[], T], bound: int) -> None:
        self._make, self.bound = make, bound
        self.items: list[T] = []  # all items created
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child, which has no other threads: every item is free."""
        self._free: list[T] = list(self.items)
        self._growing = 0  # items being created
        self._closed = False  # `all` is collecting: nothing new is created
        self._lock, self._collecting = threading.Lock(), threading.Lock()
        self._collected = threading.Condition(self._lock)  # for the one that collects
        self._line: dict[threading.Condition, None] = {}  # one for each waiting call, in order
        self._late: set[threading.Condition] = set()  # the late ones among them

    def take(self) -> T:
        """An item for exclusive use until it is given back.

        Raises errors of its creation; if memory does not suffice for another one, the existing ones must do.
        """
        if not self._closed and not self._late:
            try:
                return self._free.pop()
            except IndexError:
                pass
        while not (found := self._wait()):
            self._grow()
        return found.pop()

    def give(self, item: T) -> None:
        """Give an item back."""
        self._free.append(item)  # before the check of the queue: waiting calls check here afterwards
        if self._line or self._closed:
            with self._lock:
                self._wake()

    @contextmanager
    def all(self, seconds: float | None = None) -> Iterator[list[T]]:
        """All items, once no call uses them any more; new calls wait until the end of the block.

        Raises TimeoutError if calls continue for more than `seconds`; they are not disturbed.
        """
        end = None if seconds is None else time.monotonic() + seconds
        if not self._collecting.acquire(timeout=-1 if seconds is None else seconds):
            raise TimeoutError
        held: list[T] = []
        try:
            with self._lock:
                self._closed = True
                while self._growing or len(held) < len(self.items):
                    with suppress(IndexError):
                        held.append(self._free.pop())
                        continue
                    if not self._collected.wait(None if end is None else end - time.monotonic()):
                        raise TimeoutError
            yield held
        finally:
            with self._lock:
                self._closed = False
                self._free += held
                self._wake()
            self._collecting.release()

    def _wait(self) -> list[T]:
        """Wait in the queue. Returns a free item, or nothing: then the caller creates one, already counted in
        `_growing`."""
        mine, end = threading.Condition(self._lock), time.monotonic() + _PATIENCE
        with self._lock:
            try:
                self._line[mine] = None
                while True:
                    if not self._closed and (not self._late or next(iter(self._line)) is mine):
                        with suppress(IndexError):
                            return [self._free.pop()]
                        if len(self.items) + self._growing < self.bound:
                            self._growing += 1
                            return []
                    mine.wait(None if mine in self._late else max(0.0, end - time.monotonic()))
                    if time.monotonic() >= end:  # however often it was woken and overtaken
                        self._late.add(mine)
            finally:
                self._late.discard(mine)
                self._line.pop(mine, None)
                self._wake()

    def _wake(self) -> None:
        """After a change (the lock is held): wake the collector, or else the first of the queue."""
        if self._closed:
            self._collected.notify()
        elif self._line:
            next(iter(self._line)).notify()

    def _grow(self) -> None:
        """Create one more."""
        made: list[T] = []
        try:
            made.append(self._make())
        except (MemoryError, OutOfMemoryError):
            if not self.items:
                raise
            self.bound = len(self.items)
        finally:
            with self._lock:
                self._growing -= 1
                self.items += made
                self._free += made
                self._wake()
