"""How far this process is: its step, and the collective operation it is in. Its watchdog tells the other ranks.

What runs steps and collectives writes here, by attributes alone; nothing waits, but where all ranks agree after
which step they stop.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

#: Seconds that a rank waits for the others' word on when to stop, before it stops by itself.
_AGREEMENT = 20.0
#: Of how many operations the last ones are told, and every how manieth before.
_TOLD, _SPACING = 64, 256
#: Of how many changes of a step's size the last ones are told.
_CHANGES = 16
#: Texts that are known to have been told.
_KNOWN = 4096


def group_name(ranks: Sequence[int], size: int) -> str:
    """What a group of ranks in a world of this size is called, alike on all of them."""
    return "world" if len(ranks) == size else ",".join(map(str, ranks))


class Course:
    """What a group does together, in order: how many operations there were, and a checksum over all of them.

    latest: of the last ones number, checksum up to there, and text. marks: number and checksum at every 256th.
    """

    def __init__(self) -> None:
        self.count = self._seal = 0
        self.latest: deque[tuple[int, int, str]] = deque(maxlen=_TOLD)
        self.marks: deque[tuple[int, int, str]] = deque(maxlen=8)

    def add(self, what: str) -> None:
        """One more."""
        self.count += 1
        self._seal = zlib.crc32(what.encode(), self._seal)
        entry = self.count, self._seal, what
        self.latest.append(entry)
        if self.count % _SPACING == 0:
            self.marks.append(entry)

    def facts(self) -> list[tuple[int, int, str]]:
        """What other ranks' are compared with."""
        return [*self.marks, *self.latest]


class PartSizes:
    """By how many samples a rank trains in each of the steps that a group makes together.

    calls: how many steps there were. changes: since which of them, counted from 1, it is of so many (None: unknown).
    """

    def __init__(self) -> None:
        self.calls = 0
        self.changes: deque[tuple[int, int | None]] = deque(maxlen=_CHANGES)
        self._known: set[int | None] = set()

    def add(self, samples: int | None) -> bool:
        """One more step; whether it is of a number of samples that none before was of."""
        self.calls += 1
        if not self.changes or self.changes[-1][1] != samples:
            self.changes.append((self.calls, samples))
        news = samples not in self._known
        self._known.add(samples)
        return news

    def facts(self) -> tuple[int, list[tuple[int, int | None]]]:
        """What other ranks' are compared with."""
        return self.calls, list(self.changes)


class Progress:
    """The step and the operation of one process.

    step: the number of the last step that was begun, -1 before the first. calls: how many steps were begun.
    op, group: the collective that is under way, "" where none is, and of which ranks; of several threads that which
    has waited longest.
    counts: how many collectives of each group were begun. courses: which, so that ranks that do different things are
    noticed; parts: the sizes of its steps, likewise. tell is called when one is new. doing, until: work that others
    wait for, and until when it may take (`time.monotonic`).
    last: the number of the call that is the last one, None while nobody wants to stop; why says who does. stopped:
    why this rank has stopped, when it has.
    """

    def __init__(self) -> None:
        self.step, self.calls = -1, 0
        self._under_way: dict[int, tuple[float, str, str]] = {}  # by thread: since when, operation, group
        self.counts: dict[str, int] = {}
        self.courses: dict[str, Course] = {}
        self.parts: dict[str, PartSizes] = {}
        self.tell: Callable[[], object] | None = None
        self._known: set[str] = set()
        self._news = 0
        self.doing, self.until = "", 0.0
        self.last: int | None = None
        self.why = self.stopped = ""
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
        if self.within:
            yield
            return
        self.counts[group] = self.counts.get(group, 0) + counted
        thread = threading.get_ident()
        self._under_way[thread] = time.monotonic(), op, group
        try:
            yield
        finally:
            del self._under_way[thread]

    @property
    def within(self) -> bool:
        """Whether this thread is in a collective operation."""
        return threading.get_ident() in self._under_way

    @property
    def op(self) -> str:
        """The operation that is under way, "" where none is."""
        return self._longest()[1]

    @property
    def group(self) -> str:
        """Of which ranks it is."""
        return self._longest()[2]

    def _longest(self) -> tuple[float, str, str]:
        return min(list(self._under_way.values()), default=(0.0, "", ""))

    def comes_to(self, group: str, what: str) -> None:
        """This rank is about to do something that every rank of the group does as the same one of its operations.

        what: the operation, its types and shapes, as all ranks have them.
        """
        self.courses.setdefault(group, Course()).add(what)
        news = self._news > 0 or what not in self._known
        self._news = max(self._news - 1, 0)
        if what not in self._known:
            if len(self._known) == _KNOWN:
                self._known.clear()
            self._known.add(what)
        if news and self.tell is not None:
            self.tell()

    def trains_on(self, group: str, samples: int | None) -> None:
        """The step that begins is of so many samples on this rank, and of as many on all ranks of the group.

        None: of how many nobody can say.
        """
        if self.parts.setdefault(group, PartSizes()).add(samples) and self.tell is not None:
            self.tell()

    def tell_next(self, count: int) -> None:
        """So many operations are those of a program that has not run before: each is told at once."""
        self._news = count

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
        now, (since, op, group) = time.monotonic(), self._longest()
        return {
            "step": self.step,
            "op": op,
            "group": group,
            "since": now - since if op else 0.0,
            "counts": dict(self.counts),
            "courses": {group: course.facts() for group, course in list(self.courses.items())},
            "parts": {group: parts.facts() for group, parts in list(self.parts.items())},
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
        """Call number `last` is the last one; what was decided before stays."""
        with self._decided:
            if self.last is None:
                self.last, self.why = last, why
            self._held = False
            self._decided.notify_all()

    def stop(self) -> None:
        """This rank has stopped where all agreed to; further steps are begun as before."""
        with self._decided:
            self.stopped, self.last, self.why = self.why, None, ""

    @property
    def is_over(self) -> bool:
        """Whether this is the last step, as all ranks agreed. Waits where they are agreeing."""
        with self._decided:
            if self._held:
                self._decided.wait_for(lambda: not self._held, _AGREEMENT)
            return self.last is not None and self.calls >= self.last


#: Of this process.
progress = Progress()
