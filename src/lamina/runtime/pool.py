"""A pool: what one call at a time may use, made on demand for calls at the same time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from lamina.runtime.errors import OutOfMemoryError
from lamina.runtime.fork import renew_after_fork

T = TypeVar("T")


class Pool(Generic[T]):
    """Items of which each call takes one and gives it back: a free one, a new one up to `bound`, or it waits.

    Taking and giving back cost no lock while something is free: `pop` and `append` of a list are atomic.
    """

    def __init__(self, make: Callable[[], T], bound: int) -> None:
        self._make, self.bound = make, bound
        self.items: list[T] = []  # all that were made
        self._free: list[T] = []
        self._growing = 0  # items that are being made
        self._waiting = 0
        self._closed = False  # `all` is collecting: nothing new is made
        self._changed = threading.Condition()
        self._collecting = threading.Lock()
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child, where no other thread is: every item is free."""
        self._free, self._growing, self._waiting, self._closed = list(self.items), 0, 0, False
        self._changed, self._collecting = threading.Condition(), threading.Lock()

    def take(self) -> T:
        """An item that nobody else uses until it is given back.

        Raises what making one raises; where memory does not suffice for another one, those there are must do.
        """
        while True:
            try:
                if not self._closed:
                    return self._free.pop()
            except IndexError:
                pass
            self._wait_for(self._may_take)
            if self._starts_to_grow():
                self._grow()

    def give(self, item: T) -> None:
        """Give an item back."""
        self._free.append(item)
        if self._waiting:
            with self._changed:
                self._changed.notify_all() if self._closed else self._changed.notify()

    @contextmanager
    def all(self, seconds: float | None = None) -> Iterator[list[T]]:
        """Every item there is, once no call uses it any more; new calls wait till the end of the block.

        Raises TimeoutError where calls go on for more than so many seconds; then they were not disturbed.
        """
        end = None if seconds is None else time.monotonic() + seconds
        if not self._collecting.acquire(timeout=-1 if seconds is None else seconds):
            raise TimeoutError
        try:
            with self._changed:
                self._closed = True
            held: list[T] = []
            try:
                while self._growing or len(held) < len(self.items):
                    try:
                        held.append(self._free.pop())
                    except IndexError:
                        self._wait_for(
                            lambda: self._free or (not self._growing and len(held) == len(self.items)), end
                        )
                yield held
            finally:
                with self._changed:
                    self._closed = False
                    self._free += held
                    self._changed.notify_all()
        finally:
            self._collecting.release()

    def _wait_for(self, event: Callable[[], Any], end: float | None = None) -> None:
        """Wait until the event is there. Raises TimeoutError where it is not at the time `end`."""
        with self._changed:
            self._waiting += 1  # before the look at what is free: whoever gives back looks here afterwards
            try:
                left = None if end is None else max(0.0, end - time.monotonic())
                if not self._changed.wait_for(event, left):
                    raise TimeoutError
            finally:
                self._waiting -= 1

    def _may_take(self) -> bool:
        return not self._closed and (bool(self._free) or self._may_grow())

    def _may_grow(self) -> bool:
        return not self._closed and len(self.items) + self._growing < self.bound

    def _starts_to_grow(self) -> bool:
        """Whether nothing is free and this call is to make another one."""
        with self._changed:
            starts = not self._free and self._may_grow()
            self._growing += starts
            return starts

    def _grow(self) -> None:
        """Make one more."""
        made: list[T] = []
        try:
            made.append(self._make())
        except (MemoryError, OutOfMemoryError):
            if not self.items:
                raise
            self.bound = len(self.items)
        finally:
            with self._changed:
                self._growing -= 1
                self.items += made
                self._free += made
                self._changed.notify_all()
