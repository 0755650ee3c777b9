"""Work that begins before anybody waits for its result: compilers in threads."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from lamina.runtime.cores import usable_cores
from lamina.runtime.fork import renew_after_fork

#: Compilers do not get faster by more threads than this.
_MOST_THREADS = 32


class Ahead:
    """Tasks in threads, one for each core, begun in the order in which they are given.

    What a task raises is left to whoever asks for its result and does the work again. A line on stderr tells how far
    they are as often as they have taken `patience` seconds.

    what: what is made, for that line. spare: cores that are left to others.
    """

    def __init__(self, what: str, patience: float = 3.0, *, spare: int = 0) -> None:
        self.what, self.patience, self.spare = what, patience, spare
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child, where no thread works: nothing is under way."""
        self._threads: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._given = self._done = 0
        self._told = 0.0  # when a line was written last, or when there was nothing to do

    def begin(self, task: Callable[[], object]) -> None:
        """Have a thread do the task."""
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
        finally:  # an error stays in the future, at which nobody looks
            line = self._finished()
            if line:
                print(line, file=sys.stderr, flush=True)

    def _finished(self) -> str:
        """Count a task that is done; a line where it is time for one."""
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


#: The own kernels that programs are going to launch.
compilers = Ahead("compiling kernels")
