"""The monitor: tracks the progress of every rank, and tells all of them when one is at fault.

It is a thread of the launcher (`lamina run`), or of rank 0. Processes connect by TCP and send lines of JSON;
connections without the token, which only processes of the run have, are rejected. It also keeps named values,
by which ranks agree while their main threads do something else (which shards of a checkpoint are written).
"""

from __future__ import annotations

import json
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from lamina._json import parse_json
from lamina.runtime.ranks.listening import listening
from lamina.runtime.ranks.verdict import Blame, Courses, Limits, Rank, judge, uneven

#: Longest line in bytes: longer ones are no message of the protocol.
_LONGEST = 1 << 20


class Line:
    """A connection that carries lines of JSON; threads may share its `send`."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._came = bytearray()
        self._turn = threading.Lock()

    def send(self, **message: Any) -> None:
        """Send a message; a closed peer is detected when reading."""
        with self._turn, suppress(OSError):
            self.connection.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]] | None:
        """The messages received; None if the peer has closed the connection or violates the protocol."""
        try:
            part = self.connection.recv(1 << 16)
            self._came += part
            *lines, rest = bytes(self._came).split(b"\n")
            found = [parse_json(line) for line in lines]
        except (OSError, ValueError):
            return None
        if not part or len(rest) > _LONGEST or not all(isinstance(m, dict) for m in found):
            return None
        self._came = bytearray(rest)
        return found


class RankMonitor:
    """Watches the ranks of a world, in a thread.

    size: how many. holder: the rank whose process this is, -1 for a launcher. host: the address to listen on, as
    reachable by the ranks. limits: timeouts. address: the argument of `watch`; the token in it is secret.
    """

    def __init__(self, size: int, limits: Limits, *, host: str = "127.0.0.1", holder: int = -1) -> None:
        now = time.monotonic()
        self.limits, self.holder = limits, holder
        self.ranks = [Rank(number, now, now) for number in range(size)]
        self.verdict: Blame | None = None
        self._courses = Courses()
        self._apart: Blame | None = None
        self.decided = threading.Event()
        self._beaten = now
        self._token = secrets.token_hex(16)
        self._listener = listening(host)
        self.address = f"{host}:{self._listener.getsockname()[1]}:{self._token}"
        self._lines: dict[int, Line] = {}
        self._values: dict[str, Any] = {}
        self._waiting: dict[str, list[tuple[Line, int]]] = {}
        self._begun: dict[int, int] = {}
        self._stops: str = ""
        self._turn = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="lamina monitor", daemon=True)

    def start(self) -> None:
        """Start listening and judging."""
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._thread.start()

    def close(self) -> None:
        """Stop; the ranks notice."""
        self._wake.close()
        if self._thread.is_alive():
            self._thread.join()
        for held in (self._listener, self._woken):
            held.close()

    def ended(self, number: int, reason: str) -> None:
        """Called when the launcher saw a process end, "" for success. A reason goes into the verdict, unless the rank
        gave one."""
        with self._turn:
            rank, now = self.ranks[number], time.monotonic()
            if reason and self.verdict is None and (not rank.end or rank.end == _GONE):
                rank.end, rank.seen = "", (reason, now)
            elif not reason:
                rank.done = True
            self._judge(now)

    # ---- the thread
    def _serve(self) -> None:
        before = time.monotonic()
        while True:
            events = self._selector.select(self.limits.beat)
            now = time.monotonic()
            if now - before > 5 * self.limits.beat + 1:  # this process was suspended: no rank could be heard
                self._forgive(now)
            before = now
            for key, _ in events:
                if key.data is None:
                    self._end()
                    return
                key.data()
            with self._turn:
                self._judge(time.monotonic())  # after the messages just received
            self._beat(now)

    def _forgive(self, now: float) -> None:
        for rank in self.ranks:
            rank.heard = rank.moved = now

    def _end(self) -> None:
        """Close all connections, also those that have not identified themselves."""
        for key in list(self._selector.get_map().values()):
            if key.fileobj not in (self._listener, self._woken):
                self._selector.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]  # none was registered by its number
        self._selector.close()

    def _beat(self, now: float) -> None:
        """A heartbeat to every rank, so that it knows that the monitor is alive."""
        if now - self._beaten >= self.limits.beat:
            self._beaten = now
            for line in list(self._lines.values()):
                line.send(beat=True)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(1.0)  # for sends: a stopped process does not read
        line = Line(connection)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._hear(line, -1))

    def _hear(self, line: Line, number: int) -> None:
        """Handle the messages of a connection; the first one is its rank, with the token."""
        messages = line.receive()
        if messages is None:
            self._leave(line, number)
            return
        for message in messages:
            if number < 0:
                number = self._greet(line, message)
                if number < 0:
                    self._leave(line, -1)
                    return
            else:
                self._take(self.ranks[number], line, message)

    def _greet(self, line: Line, message: dict[str, Any]) -> int:
        number = message.get("rank")
        token = str(message.get("token", ""))
        if not isinstance(number, int) or not 0 <= number < len(self.ranks):
            return -1
        if not secrets.compare_digest(token.encode(), self._token.encode()):
            return -1
        rank = self.ranks[number]
        rank.place, rank.joined, rank.heard = str(message.get("place", "")), True, time.monotonic()
        rank.done = False  # it had left, and joins again
        self._lines[number] = line
        self._selector.modify(line.connection, selectors.EVENT_READ, lambda: self._hear(line, number))
        line.send(welcome=self.holder, timeout=self.limits.timeout)
        if self.verdict is not None:
            line.send(verdict=self.verdict.facts())
        return number

    def _leave(self, line: Line, number: int) -> None:
        self._selector.unregister(line.connection)
        line.connection.close()
        if self._lines.get(number) is line:
            del self._lines[number]
            rank = self.ranks[number]
            with self._turn:
                if not rank.done and not rank.end and rank.seen is None:
                    rank.end, rank.moved = _GONE, time.monotonic()

    def _take(self, rank: Rank, line: Line, message: dict[str, Any]) -> None:
        answers: dict[str, Callable[[Any], None]] = {
            "at": lambda facts: self._update(rank, facts),
            "failed": lambda reason: setattr(rank, "end", rank.end or str(reason)),
            "bye": lambda _: setattr(rank, "done", True),
            "set": lambda pair: self._set(*pair),
            "get": lambda asked: self._get(line, *asked),
            "stop": self._stop,
            "begun": lambda count: self._agree(rank.number, count),
        }
        for kind, content in message.items():
            if kind in answers:
                with suppress(TypeError, ValueError, KeyError):
                    answers[kind](content)

    def _update(self, rank: Rank, facts: dict[str, Any]) -> None:
        rank.update(facts, time.monotonic())
        self._apart = self._apart or self._courses.differ(rank) or uneven(rank, self.ranks)

    # ---- named values
    def _set(self, key: str, value: Any) -> None:
        self._values[key] = value
        for line, number in self._waiting.pop(key, ()):
            line.send(answer=number, value=value)

    def _get(self, line: Line, key: str, number: int) -> None:
        if key in self._values:
            line.send(answer=number, value=self._values[key])
        else:
            self._waiting.setdefault(key, []).append((line, number))

    # ---- agreement to stop
    def _stop(self, why: str) -> None:
        """A rank requests a stop: hold all of them, and ask how many steps each has begun."""
        if not self._stops:
            self._stops = str(why)
            for line in self._lines.values():
                line.send(hold=True)

    def _agree(self, number: int, count: int) -> None:
        """All continue up to the step after the last one that any of them has begun: a rank that waits to begin that
        step has already checked whether the one before was the last."""
        self._begun[number] = int(count)
        if self._begun.keys() >= self._lines.keys():
            for line in self._lines.values():
                line.send(last=max(self._begun.values()) + 1, why=self._stops)
            self._stops, self._begun = "", {}

    # ---- the verdict
    def _judge(self, now: float) -> None:
        if self.verdict is None:
            for rank in self.ranks:
                # Its last messages are read once its connection has ended, which a forked child may keep open.
                if (
                    rank.seen
                    and not rank.end
                    and (rank.number not in self._lines or now - rank.seen[1] > _WORDS)
                ):
                    rank.end = rank.seen[0]
            heard = [r for r in self.ranks if not self._is_asked(r, now)]
            found = self._apart or judge(heard, now, self.limits)
            if found is not None:
                self.verdict = found
                for line in list(self._lines.values()):
                    line.send(verdict=found.facts())
                self.decided.set()

    def _is_asked(self, rank: Rank, now: float) -> bool:
        """Whether the launcher may soon report how a process that is gone has ended."""
        return self.holder < 0 and rank.end == _GONE and now - rank.moved < _WORDS


#: Seconds that a message may be delayed: of a process that has ended, or of the launcher about it.
_WORDS = 1.0
_GONE = "has ended without a word (killed, or crashed)"
