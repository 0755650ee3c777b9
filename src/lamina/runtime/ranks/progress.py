"""How far this process is: its step, and the collective operation it is in. Its watchdog tells the other ranks.

What runs steps and collectives writes here, by attributes alone; nothing waits, but where all ranks agree after
which step they stop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: Seconds that a rank waits for the others' word on when to stop, before it stops by itself.
_AGREEMENT = 20.0


class Progress:
    """The step and the operation of one process.

    step: the number of the last step that was begun, -1 before the first. calls: how many steps were begun.
    op, group, since: the collective that is under way, "" where none is, of which ranks, and since when.
    counts: how many collectives of each group were begun. doing, until: work that others wait for, and until when
    it may take (`time.monotonic`).
    last: the number of the call that is the last one, None while nobody wants to stop; why says who does.
    """

    def __init__(self) -> None:
        self.step, self.calls = -1, 0
        self.op, self.group, self.since = "", "", 0.0
        self.counts: dict[str, int] = {}
        self.doing, self.until = "", 0.0
        self.last: int | None = None
        self.why = ""
        self._held = False
        self._decided = threading.Condition()

    def begin_step(self, number: int) -> None:
        """Step `number` begins, counted from 0. Where ranks are agreeing when to stop, it waits for that."""
        with self._decided:
            if self._held:
                self._decided.wait_for(lambda: not self._held, _AGREEMENT)
            self.step, self.calls = number, self.calls + 1

    @contextmanager
    def collective(self, op: str, group: str = "world", *, counted: bool = True) -> Iterator[None]:
        """A collective operation that may wait for other ranks; one within another is a part of it.

        group: names its ranks, alike on all of them. counted: False for the wait for one that was begun before.
        """
        outer = self.op, self.group, self.since
        if not self.op:
            self.counts[group] = self.counts.get(group, 0) + counted
            self.group, self.since, self.op = group, time.monotonic(), op
        try:
            yield
        finally:
            self.op, self.group, self.since = outer

    @contextmanager
    def patience(self, seconds: float, doing: str) -> Iterator[None]:
        """Work that other ranks may have to wait for, for so many seconds, without taking this one for hung."""
        outer = self.doing, self.until
        self.doing, self.until = doing, time.monotonic() + seconds
        try:
            yield
        finally:
            self.doing, self.until = outer

    def facts(self) -> dict[str, Any]:
        """As JSON has it; times are seconds from now."""
        now, op = time.monotonic(), self.op
        return {
            "step": self.step,
            "op": op,
            "group": self.group if op else "",
            "since": now - self.since if op else 0.0,
            "counts": dict(self.counts),
            "doing": self.doing,
            "patience": max(self.until - now, 0.0),
        }

    # ---- the agreement when to stop
    def hold(self) -> int:
        """Begin no further step until `decide` is called; how many were begun."""
        with self._decided:
            if self.last is None:
                self._held = True
            return self.calls

    def decide(self, last: int, why: str) -> None:
        """Call number `last` is the last one."""
        with self._decided:
            self.last, self.why, self._held = last, why, False
            self._decided.notify_all()

    @property
    def is_over(self) -> bool:
        """Whether this is the last step, as all ranks agreed. Waits where they are agreeing."""
        with self._decided:
            if self._held:
                self._decided.wait_for(lambda: not self._held, _AGREEMENT)
            return self.last is not None and self.calls >= self.last


#: Of this process.
progress = Progress()
