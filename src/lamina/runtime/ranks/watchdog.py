"""The watchdog: a thread of each rank that reports its progress to the monitor, and ends the process when a rank
fails.

It also ends a process in a collective operation that will never return: callbacks abort operations
(`on_fault`), the main thread gets a RankError when it runs Python, and if it does not return in time, the
error is printed and the process ends at once. So each rank reports one error, which names the rank at fault.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any

from lamina.runtime.fork import renew_after_fork
from lamina.runtime.ranks.communicator import RankError
from lamina.runtime.ranks.monitor import Line, RankMonitor
from lamina.runtime.ranks.progress import progress
from lamina.runtime.ranks.verdict import Blame, Limits

#: The environment variable with the address of the launcher's monitor.
MONITOR = "LAMINA_MONITOR"
#: The exit status of a rank that ends because of another one (EX_TEMPFAIL: a restart may help).
ENDED = 75
#: The signal by which the watchdog's thread interrupts the main thread; no library is known to use it.
_SIGNAL = signal.SIGRTMAX - 4


class Watchdog:
    """The watchdog of this process; made by `watch`."""

    def __init__(self, address: str, rank: int, monitor: RankMonitor | None = None) -> None:
        host, port, self._token = address.rsplit(":", 2)
        self.rank = rank
        self.error: RankError | None = None
        self.limits = Limits()
        self._monitor, self._holder = monitor, -1
        self._line = Line(socket.create_connection((host, int(port)), 30.0))
        self._line.connection.settimeout(None)
        self._line.send(
            rank=rank, token=self._token, place=f"process {os.getpid()} on {socket.gethostname()}"
        )
        self._line.send(at=progress.facts())
        self._known = threading.Event()  # set when there is an error
        self._answers: dict[int, Any] = {}
        self._answered = threading.Condition()
        self._asked = 0
        self._told = self._over = self._failed = self._doomed = self._raises = False
        self._stop = ""
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="lamina watchdog", daemon=True)
        renew_after_fork(self)

    def start(self) -> None:
        """Start watching."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(_SIGNAL, self._raise)
            self._raises = True
        self._hook, sys.excepthook = sys.excepthook, self._uncaught
        atexit.register(self._exit)
        progress.tell = self._report
        self._thread.start()

    def _report(self) -> None:
        self._line.send(at=progress.facts())

    # ---- agreements of ranks besides collectives
    def set(self, key: str, value: Any) -> None:
        """Set a named value (JSON) that all ranks can read."""
        self._line.send(set=[key, value])

    def get(self, key: str, timeout: float) -> Any:
        """The named value, once a rank has set it. Raises TimeoutError, and RankError when a rank fails."""
        with self._answered:
            self._asked += 1
            number = self._asked
            self._line.send(get=[key, number])
            self._answered.wait_for(lambda: number in self._answers or self.error is not None, timeout)
            if number in self._answers:
                return self._answers.pop(number)
        if self.error is not None:
            raise self.error
        raise TimeoutError(f"no rank said {key!r} within {timeout:g} s")

    def ask_to_stop(self, why: str) -> None:
        """Ask all ranks to stop, after a step that they agree on: `progress.is_over`. Signal handlers may call it."""
        self._stop = why
        self._wake.send(b".")

    def explain(self, seconds: float | None = None) -> RankError | None:
        """Why a collective failed: the error that names the rank at fault, if it is known in time."""
        self._report()
        self._known.wait(self.limits.grace if seconds is None else seconds)
        return self.error

    def close(self) -> None:
        """Stop watching; the others learn that this rank has ended successfully."""
        self._over, progress.tell = True, None
        self._line.send(at=progress.facts(), bye=True)
        with suppress(OSError):
            self._wake.send(b".")
        if self._thread.is_alive():
            self._thread.join(self.limits.grace)
        if self._raises:
            signal.signal(_SIGNAL, signal.SIG_DFL)
        if sys.excepthook == self._uncaught:
            sys.excepthook = self._hook
        for held in (self._wake, self._woken):
            held.close()
        self._line.connection.close()
        if self._monitor is not None:
            self._wait_for_others(self.limits.grace)
            self._monitor.close()

    def _wait_for_others(self, seconds: float) -> None:
        """Keep the monitor for a while, for ranks that have not ended yet."""
        end = time.monotonic() + seconds
        assert self._monitor is not None
        own = () if self._over else (self.rank,)  # which has already reported
        while time.monotonic() < end and any(
            r.joined and not (r.done or r.end or r.number in own) for r in self._monitor.ranks
        ):
            time.sleep(0.01)

    def renew(self) -> None:
        """In a forked child, which is no rank: leave the connection to the parent."""
        self._line.connection.close()
        self._monitor = progress.tell = None
        sys.excepthook = self._hook
        atexit.unregister(self._exit)
        _current.clear()

    # ---- the thread
    def _run(self) -> None:
        beat, heard = 0.0, time.monotonic()
        while not self._over:
            ready, _, _ = select.select([self._line.connection, self._woken], [], [], self.limits.beat)
            now = time.monotonic()
            if self._woken in ready:
                self._woken.recv(64)
                if self._stop and not self._over:
                    self._line.send(at=progress.facts(), stop=self._stop)
            if self._line.connection in ready:
                messages = self._line.receive()
                if messages is None:
                    self._lost(
                        "has ended, and the monitor with it"
                        if self._holder >= 0
                        else "the launcher has ended"
                    )
                    return
                heard = now
                for message in messages:
                    self._take(message)
            if self._doomed:
                self._end()
                return
            if now - heard > self.limits.silent + self.limits.grace and self._holder >= 0:
                self._lost(
                    f"has been silent for {now - heard:.0f} s: its process is stopped, or its machine is gone"
                )
                return
            if now - beat >= self.limits.beat:
                self._report()
                beat = now

    def _take(self, message: dict[str, Any]) -> None:
        if "welcome" in message:
            self._holder, self.limits = message["welcome"], Limits(message["timeout"])
        elif "verdict" in message:
            self._blame(Blame(**message["verdict"]))
        elif "answer" in message:
            with self._answered:
                self._answers[message["answer"]] = message["value"]
                self._answered.notify_all()
        elif "hold" in message:
            self._line.send(begun=progress.hold())
        elif "last" in message:
            progress.decide(message["last"], message["why"])

    def _lost(self, what: str) -> None:
        if not self._over:
            self._blame(Blame(self._holder, what) if self._holder >= 0 else Blame(-1, what))
            self._end()

    def _blame(self, verdict: Blame) -> None:
        """Turn the verdict into an error, which says where this rank was."""
        self._doomed = True
        if self.error is None and not self._failed:
            own = "" if verdict.rank == self.rank else f"; rank {self.rank} was {_here()}"
            self.error = RankError(f"{verdict}{own}")
            self.error.failed, self.error.step, self.error.op = verdict.rank, verdict.step, verdict.op
            self._known.set()
            with self._answered:
                self._answered.notify_all()

    def _end(self) -> None:
        """End the process: after a grace period for the program to handle the error."""
        end = time.monotonic() + self.limits.grace
        threading.Thread(target=_abort, name="lamina abort", daemon=True).start()
        if self._raises and self.error is not None:
            signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)
        while time.monotonic() < end:
            time.sleep(0.05)
        self.leave()

    def _raise(self, number: int, frame: FrameType | None) -> None:
        if self.error is not None and not self._told:
            raise self.error

    # ---- process exit
    def _uncaught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """The hook for uncaught errors: one due to another rank is printed in one line, an own one as usual and
        reported to the others."""
        if self.error is not None and _is_due_to(error, self.error):
            self._tell()
            return
        if issubclass(kind, KeyboardInterrupt) and progress.stopped:  # all ranks end so, after the same step
            self._hook(kind, error, trace)
            return
        self._failed = True
        text = " ".join(str(error).split())[:500]
        self._line.send(at=progress.facts(), failed=f"raised {kind.__name__}" + (f": {text}" if text else ""))
        self._hook(kind, error, trace)

    def _exit(self) -> None:
        """At interpreter exit: after a fault no communicator is closed, which would wait for other ranks."""
        if self.error is None and not self._failed:
            return
        if self._failed and self._monitor is not None:
            time.sleep(2 * self.limits.beat)  # the report must reach the others
        self.leave()

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            print(f"rank {self.rank}: {type(self.error).__name__}: {self.error}", file=sys.stderr, flush=True)

    def leave(self) -> None:
        """End the process with its error, if any."""
        if self.error is not None:
            self._tell()
        if self._monitor is not None:
            # Closing a connection with unread data would discard what the other side has not read: the verdict.
            self._wait_for_others(self.limits.grace / 2)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(1 if self._failed else ENDED)


def _here() -> str:
    facts = progress.facts()
    return (f"in step {facts['step']}" if facts["step"] >= 0 else "before the first step") + (
        f", in {facts['op']}" if facts["op"] else ""
    )


def _is_due_to(error: BaseException | None, cause: BaseException) -> bool:
    """Whether an error is another one, or was raised because of it."""
    while error is not None:
        if error is cause:
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def collective(op: str, group: str = "world", *, counted: bool = True) -> Iterator[None]:
    """A collective operation that may wait for other ranks, and fails when they do; see `Progress.collective`.

    An error due to a failed rank is replaced by the one that names this rank, if it is known in time.
    """
    with progress.collective(op, group, counted=counted):
        try:
            yield
        except (TypeError, ValueError, MemoryError):
            raise
        except Exception as error:
            cause = _current[0].explain() if _current else None
            if cause is None or cause is error:
                raise
            raise cause from error


_current: list[Watchdog] = []
_callbacks: list[Callable[[], object]] = []


def watch(address: str, rank: int, monitor: RankMonitor | None = None) -> Watchdog:
    """Watch this process as this rank from now on. address: of the monitor; `monitor` if it is in this process."""
    if _current:
        raise RuntimeError(f"rank {_current[0].rank} is watched already")
    made = Watchdog(address, rank, monitor)
    _current.append(made)
    made.start()
    return made


def watchdog() -> Watchdog | None:
    """The watchdog of this process, None if it is not watched."""
    return _current[0] if _current else None


def unwatch() -> None:
    """Stop watching, as a success."""
    if _current:
        found = _current.pop()
        atexit.unregister(found._exit)
        try:
            found.close()
        except RankError:  # another rank failed meanwhile
            found.leave()


def on_fault(callback: Callable[[], object]) -> Callable[[], None]:
    """Call this, in a thread, when a rank has failed: to abort operations that would wait for it forever.

    Returns a function that unregisters it.
    """
    _callbacks.append(callback)
    return lambda: _callbacks.remove(callback)


def _abort() -> None:
    for callback in list(_callbacks):
        with suppress(Exception):
            callback()
