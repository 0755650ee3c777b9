"""The progress of this process: its step, and its current collective. Its watchdog reports it to the other ranks.

Steps and collectives record it here by plain attributes; nothing waits, except while all ranks agree after
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

#: Seconds that a rank waits for the agreement on when to stop, before it stops by itself.
_AGREEMENT = 20.0
#: Number of latest operations reported, and the interval of those reported before.
_TOLD, _SPACING = 64, 256
#: Number of latest changes of a step's size reported.
_CHANGES = 16
#: Capacity of the set of texts that were reported already.
_KNOWN = 4096


def group_name(ranks: Sequence[int], size: int) -> str:
    """The name of a group of ranks in a world of this size, the same on all of them."""
    return "world" if len(ranks) == size else ",".join(map(str, ranks))


class Course:
    """The sequence of a group's operations: their number, and a checksum over all of them.

    latest: number, cumulative checksum and text of the last ones. marks: the same for every 256th.
    """

    def __init__(self) -> None:
        self.count = self._seal = 0
        self.latest: deque[tuple[int, int, str]] = deque(maxlen=_TOLD)
        self.marks: deque[tuple[int, int, str]] = deque(maxlen=8)

    def add(self, what: str) -> None:
        """Append an operation."""
        self.count += 1
        self._seal = zlib.crc32(what.encode(), self._seal)
        entry = self.count, self._seal, what
        self.latest.append(entry)
        if self.count % _SPACING == 0:
            self.marks.append(entry)

    def facts(self) -> list[tuple[int, int, str]]:
        """The entries compared with those of other ranks."""
        return [*self.marks, *self.latest]


class PartSizes:
    """The number of samples that a rank trains on in each of a group's steps.

    calls: how many steps there were. changes: the steps, counted from 1, since which it is a certain number
    (None: unknown).
    """

    def __init__(self) -> None:
        self.calls = 0
        self.changes: deque[tuple[int, int | None]] = deque(maxlen=_CHANGES)
        self._known: set[int | None] = set()

    def add(self, samples: int | None) -> bool:
        """Append a step; whether its number of samples is new."""
        self.calls += 1
        if not self.changes or self.changes[-1][1] != samples:
            self.changes.append((self.calls, samples))
        news = samples not in self._known
        self._known.add(samples)
        return news

    def facts(self) -> tuple[int, list[tuple[int, int | None]]]:
        """The entries compared with those of other ranks."""
        return self.calls, list(self.changes)


class Progress:
    """The step and the operation of one process.

    step: the number of the last step begun, -1 before the first. calls: how many steps were begun.
    op, group: the collective in progress ("" for none) and its ranks; with several threads the one
    that has waited longest.
    counts: how many collectives of each group were begun. courses: their sequences, to detect ranks that
    diverge; parts: the sizes of its steps, likewise. tell is called for a new one. doing, until: work that others
    wait for, and its deadline (`time.monotonic`).
    last: the number of the last call to make, None while no rank requests a stop; why: the request. stopped:
    why this rank has stopped, if it has.
    """

    def __init__(self) -> None:
        self.step, self.calls = -1, 0
        self._under_way: dict[int, tuple[float, str, str]] = {}  # by thread: start time, operation, group
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
        """Step `number` begins, counted from 0. While ranks are agreeing when to stop, it waits."""
        with self._decided:
            if self._held:
                self._decided.wait_for(lambda: not self._held, _AGREEMENT)
            self.step, self.calls = number, self.calls + 1

    @contextmanager
    def collective(self, op: str, group: str = "world", *, counted: bool = True) -> Iterator[None]:
        """A collective operation that may wait for other ranks; a nested one is part of the outer one.

        group: names its ranks, the same on all of them. counted: False for the wait for an operation begun before.
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
        """The operation in progress, "" for none."""
        return self._longest()[1]

    @property
    def group(self) -> str:
        """The ranks of the operation in progress."""
        return self._longest()[2]

    def _longest(self) -> tuple[float, str, str]:
        return min(list(self._under_way.values()), default=(0.0, "", ""))

    def comes_to(self, group: str, what: str) -> None:
        """This rank is about to begin an operation that every rank of the group has at the same position of its
        sequence.

        what: the operation, its types and shapes, the same on all ranks.
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
        """The step that begins has this number of samples on this rank, and must have as many on all ranks of the
        group.

        None: unknown.
        """
        if self.parts.setdefault(group, PartSizes()).add(samples) and self.tell is not None:
            self.tell()

    def tell_next(self, count: int) -> None:
        """The next `count` operations belong to a program that has not run before: each is reported at once."""
        self._news = count

    @contextmanager
    def patience(self, seconds: float, doing: str) -> Iterator[None]:
        """Work for which other ranks may have to wait this many seconds without considering this one hung."""
        outer = self.doing, self.until
        self.doing, self.until = doing, time.monotonic() + seconds
        try:
            yield
        finally:
            self.doing, self.until = outer

    def facts(self) -> dict[str, Any]:
        """As JSON values; times are seconds from now."""
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

    # ---- agreement to stop
    def hold(self) -> int:
        """Begin no further step until `decide` is called; returns how many were begun."""
        with self._decided:
            if self.last is None:
                self._held = True
            return self.calls

    def decide(self, last: int, why: str) -> None:
        """Call number `last` is the last one; an earlier decision stays."""
        with self._decided:
            if self.last is None:
                self.last, self.why = last, why
            self._held = False
            self._decided.notify_all()

    def stop(self) -> None:
        """This rank has stopped as agreed; later steps begin as before."""
        with self._decided:
            self.stopped, self.last, self.why = self.why, None, ""

    @property
    def is_over(self) -> bool:
        """Whether this is the last step, as agreed by all ranks. Waits while they are agreeing."""
        with self._decided:
            if self._held:
                self._decided.wait_for(lambda: not self._held, _AGREEMENT)
            return self.last is not None and self.calls >= self.last


#: The progress of this process.
progress = Progress()
