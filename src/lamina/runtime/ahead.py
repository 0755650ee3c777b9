"""Work that starts before its result is needed: compilers in threads."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from lamina.runtime.cores import usable_cores
from lamina.runtime.fork import renew_after_fork

#: Compilation does not get faster with more threads than this.
_MOST_THREADS = 32


class Ahead:
    """Tasks in threads, one per core, started in the order of submission.

    Errors of a task are dropped: the consumer of its result does the work again. Progress is printed on
    stderr every `patience` seconds.

    what: the kind of result, for the progress line. spare: cores left to others.
    """

    def __init__(self, what: str, patience: float = 3.0, *, spare: int = 0) -> None:
        self.what, self.patience, self.spare = what, patience, spare
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child, which has none of the threads: nothing is in progress."""
        self._threads: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._given = self._done = 0
        self._told = 0.0  # when a line was printed last, or when the queue was last empty

    def begin(self, task: Callable[[], object]) -> None:
        """Queue a task."""
        with self._lock:
            if self._threads is None:
                most = max(1, min(_MOST_THREADS, usable_cores() - self.spare))
                self._threads = ThreadPoolExecutor(most, "lamina ahead")
            if not self._given:
                self._told = time.monotonic()
            self._given += 1
            self._threads.submit(self._run, task)

    def _run(self, task: Callable[[], object]) -> None:
        try:
            task()
        finally:  # an error stays in the future, which is never read
            line = self._finished()
            if line:
                print(line, file=sys.stderr, flush=True)

    def _finished(self) -> str:
        """Count a finished task; returns a progress line if one is due."""
        with self._lock:
            self._done += 1
            if self._done == self._given:
                self._given = self._done = 0
                return ""
            now = time.monotonic()
            if now - self._told < self.patience:
                return ""
            self._told = now
            return f"lamina: {self.what}: {self._done} of {self._given}"


#: Kernels of this library that programs are going to launch.
compilers = Ahead("compiling kernels")
