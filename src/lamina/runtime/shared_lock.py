"""A readers-writer lock, the one that calls of recorded programs take, and how soon Python's own changes hands."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from lamina.runtime.fork import renew_after_fork

#: Seconds after which Python's lock changes hands where somebody wants it to.
_TURN = 2e-4


class SharedLock:
    """Any number of threads hold it shared, or one has it exclusively; who waits for that goes before newcomers."""

    def __init__(self) -> None:
        self._side = _SharedSide(self)
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child, where no other thread is: nobody holds it."""
        self._changed = threading.Condition()
        self._readers: list[None] = []  # one for each that holds it shared: `append` and `pop` are atomic
        self._claims = 0  # threads that have it exclusively, or wait for that
        self._writing = False

    def shared(self) -> AbstractContextManager[None]:
        """Within the block nobody holds it exclusively. While nobody wants that it costs no lock."""
        return self._side

    def _enter(self) -> None:
        self._readers.append(None)  # before the look at claims: who claims looks at readers afterwards
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
    """What `SharedLock.shared` gives: one object for all that hold it."""

    def __init__(self, lock: SharedLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock._enter()

    def __exit__(self, *exception: object) -> None:
        self._lock._leave()


#: Held shared while one of several contexts replays a recorded program, exclusively by the calls before, in which
#: libraries load kernels and everything is recorded. Where these were beside replays, captures were broken off, and
#: an answer was wrong.
recording = SharedLock()


class _PythonsLock:
    """How many want it to change hands soon, and after how many seconds it does without them."""

    lock, wanted, usual = threading.Lock(), 0, 0.0

    @classmethod
    def want(cls, more: int) -> None:
        """So many more."""
        with cls.lock:
            if not cls.wanted:
                cls.usual = sys.getswitchinterval()
                sys.setswitchinterval(min(_TURN, cls.usual))
            cls.wanted += more
            if not cls.wanted:
                sys.setswitchinterval(cls.usual)


@contextmanager
def swift_turns() -> Iterator[None]:
    """Meanwhile Python's lock changes hands soon: who let go of it would wait 5 ms to have it back."""
    _PythonsLock.want(1)
    try:
        yield
    finally:
        _PythonsLock.want(-1)
