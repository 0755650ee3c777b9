"""Processes that compile: in one process, a compiler of CUDA's does one thing at a time, however many threads ask.

A builder is a further Python process, without a GPU of its own. It is sent a function and what to call it with, and
sends back what that gives. Builders are started when they are needed, and end when for a while nobody has
asked, or when the process that started them ends.
"""

from __future__ import annotations

import atexit
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from io import BufferedRWPair
from typing import Any, NamedTuple, TypeVar

from lamina.runtime.fork import renew_after_fork
from lamina.runtime.platforms import usable_cores

#: So many processes at most: each holds compilers in memory.
_MOST = 16
#: Seconds after which a builder that nobody asks ends.
_IDLE = 20.0
T = TypeVar("T")
_PROGRAM = (
    "import sys; from lamina.runtime.builders import serve; serve(int(sys.argv[1]), float(sys.argv[2]))"
)


class _Process(NamedTuple):
    """A process, and the way to it."""

    process: subprocess.Popen[bytes]
    connection: BufferedRWPair

    def end(self) -> None:
        """Have it end, whatever it does; who waits for its answer meets the end of the connection."""
        self.process.kill()
        self.process.wait()
        with suppress(OSError):  # something was on its way
            self.connection.close()


class Builders:
    """Any thread may ask them. most: how many processes; 0: none."""

    def __init__(self, most: int, idle: float = _IDLE) -> None:
        self.most, self.idle = most, idle
        self._share = most
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child: the processes are the parent's."""
        self._free = threading.Condition()
        self._resting: list[_Process] = []
        self._all: set[_Process] = set()
        self._possible = self.most > 0

    def shared_by(self, processes: int) -> None:
        """So many processes of this machine have builders: each starts its share, one at least."""
        self._share = max(self.most // processes, min(self.most, 1))

    def ask(
        self, function: Callable[..., T], *request: Any, environment: Mapping[str, str] | None = None
    ) -> T | None:
        """What a function gives in a process; None where there can be none, or it was lost on the way.

        The function, what it is called with, gives and raises can be pickled; what it raises is raised here.
        environment: variables for a process that is started. Waits for a process that is free.
        """
        message = pickle.dumps((function, request))  # what cannot travel is told before a process is taken
        for _ in range(2):  # one that has rested may just have ended
            builder = self._taken(environment or {})
            if builder is None:
                return None
            try:
                _send(builder.connection, message)
                found, error = pickle.loads(_received(builder.connection))
            except (OSError, EOFError):
                self._lose(builder)
                continue
            with self._free:
                self._resting.append(builder)
                self._free.notify()
            if error is not None:
                raise error
            answer: T = found
            return answer
        with self._free:  # what ended two may end all
            self._possible = False
            self._free.notify_all()
        return None

    def _taken(self, environment: Mapping[str, str]) -> _Process | None:
        with self._free:
            self._free.wait_for(lambda: self._resting or not self._possible or len(self._all) < self._share)
            if self._resting:
                return self._resting.pop()
            if not self._possible:
                return None
            try:
                builder = _started(environment, self.idle)
            except OSError:  # no interpreter to be started, no memory, no descriptors
                self._possible = False
                self._free.notify_all()
                return None
            self._all.add(builder)
            return builder

    def _lose(self, builder: _Process) -> None:
        builder.end()
        with self._free:
            self._all.discard(builder)
            self._free.notify()

    def end(self) -> None:
        """End all processes. They are started anew for whoever asks again."""
        with self._free:
            ending, self._all, self._resting = self._all, set(), []
        for builder in ending:
            builder.end()


def _started(environment: Mapping[str, str], idle: float) -> _Process:
    """A new process, which finds the same packages. Raises OSError."""
    here, there = socket.socketpair()
    with here, there:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(there.fileno()), str(idle)],
            pass_fds=[there.fileno()],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)} | dict(environment),
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # an interrupt at the terminal is for who asked
        )
        return _Process(process, here.makefile("rwb"))


def _send(connection: BufferedRWPair, message: bytes) -> None:
    pickle.dump(message, connection)  # as bytes, which end where they end, whatever they hold
    connection.flush()


def _received(connection: BufferedRWPair) -> bytes:
    """The next message. Raises EOFError, OSError where there is none."""
    message: bytes = pickle.load(connection)
    return message


def serve(number: int, idle: float) -> None:
    """In a builder: answer until nobody asks. number: of the socket's descriptor."""
    with socket.socket(fileno=number) as there, there.makefile("rwb") as connection:
        there.settimeout(idle)
        with suppress(EOFError, OSError):
            while True:
                _send(connection, _answer(_received(connection)))


def _answer(message: bytes) -> bytes:
    try:
        function, request = pickle.loads(message)
        return pickle.dumps((function(*request), None))
    except Exception as error:
        try:
            return pickle.dumps((None, error))
        except Exception:  # an error that holds what cannot travel
            return pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}")))


def _wanted() -> int:
    """How many processes LAMINA_BUILDERS says, or one for each core."""
    said = os.environ.get("LAMINA_BUILDERS", "")
    return int(said) if said.isdecimal() else min(_MOST, usable_cores())


#: Those of this process.
builders = Builders(_wanted())
atexit.register(builders.end)
