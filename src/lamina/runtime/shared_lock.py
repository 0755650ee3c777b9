"""A readers-writer lock, its instance for calls of recorded programs, and shorter GIL switch intervals."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from lamina.runtime.fork import renew_after_fork

#: Switch interval of the GIL in seconds while some thread needs it soon.
_TURN = 2e-4


class SharedLock:
    """A readers-writer lock: many threads hold it shared, or one exclusively; waiting writers precede new readers."""

    def __init__(self) -> None:
        self._side = _SharedSide(self)
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child, which has no other threads: nobody holds it."""
        self._changed = threading.Condition()
        self._readers: list[None] = []  # one for each reader: `append` and `pop` are atomic
        self._claims = 0  # writers, active or waiting
        self._writing = False

    def shared(self) -> AbstractContextManager[None]:
        """Within the block nobody holds it exclusively. While there is no writer it costs no lock."""
        return self._side

    def _enter(self) -> None:
        self._readers.append(None)  # before the check of claims: writers check readers after claiming
        while self._claims:
            self._leave()
            with self._changed:
                while self._claims:
                    self._changed.wait()
            self._readers.append(None)

    def _leave(self) -> None:
        self._readers.pop()
        if self._claims:
            with self._changed:
                self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Within the block nobody else holds it."""
        with self._changed:
            self._claims += 1
            try:
                while self._writing or self._readers:
                    self._changed.wait()
            except BaseException:
                self._claims -= 1
                self._changed.notify_all()
                raise
            self._writing = True
        try:
            yield
        finally:
            with self._changed:
                self._writing = False
                self._claims -= 1
                self._changed.notify_all()


class _SharedSide:
    """The context manager of `SharedLock.shared`: one object for all readers."""

    def __init__(self, lock: SharedLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock._enter()

    def __exit__(self, *exception: object) -> None:
        self._lock._leave()


#: Held shared while one of several contexts replays a recorded program, exclusively by the calls before, in which
#: libraries load kernels and everything is recorded. When these ran beside replays, captures were invalidated, and
#: one result was wrong.
recording = SharedLock()


class _PythonsLock:
    """The number of threads that want short GIL switch intervals, and the usual interval."""

    lock, wanted, usual = threading.Lock(), 0, 0.0

    @classmethod
    def want(cls, more: int) -> None:
        """Add to the number of these threads."""
        with cls.lock:
            if not cls.wanted:
                cls.usual = sys.getswitchinterval()
                sys.setswitchinterval(min(_TURN, cls.usual))
            cls.wanted += more
            if not cls.wanted:
                sys.setswitchinterval(cls.usual)


@contextmanager
def swift_turns() -> Iterator[None]:
    """Within the block the GIL switches soon: a thread that released it would wait 5 ms to have it back."""
    _PythonsLock.want(1)
    try:
        yield
    finally:
        _PythonsLock.want(-1)
