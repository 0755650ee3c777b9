"""A pool: what one call at a time may use, made on demand for calls at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

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
                return self._free.pop()
            except IndexError:
                self._wait_for(self._may_grow)
            if self._starts_to_grow():
                self._grow()

    def give(self, item: T) -> None:
        """Give an item back."""
        self._free.append(item)
        if self._waiting:
            with self._changed:
                self._changed.notify()

    @contextmanager
    def all(self) -> Iterator[list[T]]:
        """Every item there is, once no call uses it any more; new calls wait till the end of the block."""
        with self._collecting:
            with self._changed:
                self._closed = True
            held: list[T] = []
            try:
                while self._growing or len(held) < len(self.items):
                    try:
                        held.append(self._free.pop())
                    except IndexError:
                        self._wait_for(lambda: not self._growing and len(held) == len(self.items))
                yield held
            finally:
                with self._changed:
                    self._closed = False
                    self._free += held
                    self._changed.notify_all()

    def _wait_for(self, event: Callable[[], bool]) -> None:
        """Wait until something is free, or the event is there."""
        with self._changed:
            self._waiting += 1  # before the look at what is free: whoever gives back looks here afterwards
            try:
                self._changed.wait_for(lambda: self._free or event())
            finally:
                self._waiting -= 1

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
