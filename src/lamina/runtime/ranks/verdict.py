"""Which rank is at fault: rules on the known state of every rank, in plain values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Limits:
    """Timeouts in seconds, chosen so that every rank has ended within `timeout` of a fault.

    silent: without a heartbeat of a process, sent every `beat`. stalled: of others waiting for a rank. grace:
    for a process to exit by itself.
    """

    timeout: float = 30.0

    @property
    def beat(self) -> float:
        """Interval of heartbeats."""
        return min(1.0, self.timeout / 30)

    @property
    def silent(self) -> float:
        """Without a heartbeat."""
        return self.timeout / 2

    @property
    def stalled(self) -> float:
        """Of others waiting for a rank."""
        return self.timeout * 0.7

    @property
    def grace(self) -> float:
        """For a process to exit by itself."""
        return min(5.0, self.timeout / 6)


@dataclass
class Rank:
    """The known state of a rank.

    heard: time of its last message. moved: when it last began a step or a collective, or announced long work.
    facts: `Progress.facts`. through: when it reported the end of long work. place: its process and machine.
    end: how it ended, "" while it runs; done: it ended successfully.
    seen: how and when the launcher saw its process end, while its last messages may not have been read yet.
    """

    number: int
    heard: float
    moved: float
    place: str = ""
    joined: bool = False
    done: bool = False
    end: str = ""
    seen: tuple[str, float] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    through: float = -math.inf

    def update(self, facts: dict[str, Any], now: float) -> None:
        """It reports its progress."""
        if facts.get("patience") or any(facts.get(k) != self.facts.get(k) for k in ("step", "counts", "op")):
            self.moved = now
        if self.facts.get("patience") and not facts.get("patience"):
            self.through = now
        self.facts, self.heard = facts, now

    @property
    def step(self) -> int:
        """The last step that it began."""
        return int(self.facts.get("step", -1))

    @property
    def op(self) -> str:
        """The collective that it is in, "" for none."""
        return str(self.facts.get("op", ""))

    def count(self, group: str) -> int:
        """How many collectives of a group it has begun."""
        return int(self.facts.get("counts", {}).get(group, 0))

    def waits(self, now: float) -> float:
        """Seconds that it has been in its collective."""
        return float(self.facts["since"]) + now - self.heard if self.op else 0.0

    def is_patient(self, now: float) -> bool:
        """Whether it announced long work. now: it may have done so since."""
        return float(self.facts.get("patience", 0.0)) > max(now - self.heard, 0.0)

    @property
    def which(self) -> str:
        """The ranks of its collective, and its number among theirs."""
        group = str(self.facts["group"])
        number = self.count(group)
        ranks = "all ranks" if group == "world" else f"ranks {group}"
        return f" (number {number} of {ranks})" if number else f" ({ranks})"

    @property
    def where(self) -> str:
        """Where in the program it is, "" if it never reported it."""
        if not self.facts:
            return ""
        step = f"in step {self.step}" if self.step >= 0 else "before the first step"
        if self.op:
            return f"{step}, in {self.op}{self.which}"
        doing = self.facts.get("doing")
        return f"{step}, {doing}" if doing else f"{step}, in no collective operation"


#: Number of operations, of all groups, that are kept for comparison.
_KEPT = 1 << 14


class Courses:
    """Whether ranks run the same operations: the checksum up to each operation of a group, from the first rank to
    report it."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, int], tuple[int, str, int]] = {}

    def differ(self, rank: Rank) -> Blame | None:
        """The first difference between a rank's reports and those of other ranks; names both, and their
        operations."""
        for group, entries in rank.facts.get("courses", {}).items():
            for count, seal, text in entries:
                number, what, other = self._first.setdefault((group, count), (seal, text, rank.number))
                if number == seal:
                    continue
                ranks = "all ranks" if group == "world" else f"ranks {group}"
                how = (
                    f"comes to {text} as operation {count} of {ranks}, where rank {other} comes to {what}"
                    if what != text
                    else f"comes to operation {count} of {ranks} by another way than rank {other}"
                )
                return Blame(
                    -1,
                    f"rank {rank.number} {how}: ranks must run the same program, whose branches do not depend on the "
                    "rank",
                    rank.step,
                    str(text),
                )
        while len(self._first) > _KEPT:
            del self._first[next(iter(self._first))]
        return None


def uneven(rank: Rank, ranks: Sequence[Rank]) -> Blame | None:
    """A step for which a rank reported another number of samples than another rank did."""
    for other in ranks:
        for group, (calls, changes) in rank.facts.get("parts", {}).items():
            others = other.facts.get("parts", {}).get(group, (0, []))
            for call in sorted({first for first, _ in (*changes, *others[1])}):
                own, found = _samples_in(call, calls, changes), _samples_in(call, *others)
                if own is not None and found is not None and own != found:
                    return Blame(
                        -1,
                        f"rank {rank.number} trains on {own} samples where rank {other.number} trains on {found}, in "
                        f"call {call} of their steps: gradients of all ranks count alike, whatever number of samples "
                        "they are of; drop_last=True leaves a shorter batch out, pad_last=True fills it up, and "
                        "DataParallel(equal_parts=False) is for what is meant so",
                        rank.step,
                        rank.op,
                    )
    return None


def _samples_in(call: int, calls: int, changes: Sequence[tuple[int, int | None]]) -> int | None:
    """The number of samples of a step, None if it is unknown, or the step was not made yet."""
    known = [samples for first, samples in changes if first <= call <= calls]
    return known[-1] if known else None


@dataclass(frozen=True)
class Blame:
    """Why all ranks end: the rank at fault (-1: no single one), the reason, and where it was."""

    rank: int
    reason: str
    step: int = -1
    op: str = ""
    where: str = ""
    place: str = ""
    ago: float = 0.0

    @classmethod
    def of(cls, rank: Rank, reason: str, now: float) -> Blame:
        """For a rank. ago: seconds since its last report."""
        return cls(rank.number, reason, rank.step, rank.op, rank.where, rank.place, now - rank.heard)

    def __str__(self) -> str:
        if self.rank < 0:
            return self.reason
        place = f" ({self.place})" if self.place else ""
        heard = f", as it said {self.ago:.1f} s before" if self.ago >= 0.05 else ""
        where = f"; it was {self.where}{heard}" if self.where else ""
        return f"rank {self.rank}{place} {self.reason}{where}"

    def facts(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def judge(ranks: Sequence[Rank], now: float, limits: Limits) -> Blame | None:
    """The first rule that a rank violates, None if there is none."""
    for rank in ranks:
        if rank.end:
            return Blame.of(rank, rank.end, now)
    for rank in ranks:
        if rank.joined and not rank.done and now - rank.heard > limits.silent:
            return Blame.of(
                rank,
                f"has been silent for {now - rank.heard:.0f} s: its process is stopped, or its machine is gone",
                now,
            )
    return _kept_waiting(ranks, now, limits) or _left_behind(ranks, now, limits)


def _kept_waiting(ranks: Sequence[Rank], now: float, limits: Limits) -> Blame | None:
    """A rank waits in a collective that another one has not reached."""
    for waiting in ranks:
        if waiting.done or waiting.waits(now) <= 2 * limits.beat:
            continue
        group = str(waiting.facts["group"])
        members = [r for r in ranks if group == "world" or str(r.number) in group.split(",")]
        number = waiting.count(group)  # 0: the counts of partners are not comparable
        late = [r for r in members if (r.count(group) < number if number else not r.op)]
        # Waiting for a rank that has ended is futile; a launcher may soon report its status.
        gone = [r for r in late if r.done and now - r.heard > 2 * limits.beat]
        in_vain = min(waiting.waits(now), now - max(r.through for r in members))  # after announced long work
        if not gone and (in_vain <= limits.stalled or any(r.is_patient(now) for r in members)):
            continue
        what = f"{waiting.op}{waiting.which}" + (f" of step {waiting.step}" if waiting.step >= 0 else "")
        if late:
            first = min(gone or late, key=lambda r: (r.count(group), r.number))
            came = "ended without coming to" if first.done else "has not come to"
            return Blame.of(
                first,
                f"{came} {what}, in which rank {waiting.number} has waited for {waiting.waits(now):.0f} s",
                now,
            )
        if all(r.waits(now) > limits.stalled for r in members):
            return Blame(
                -1, f"all ranks hang in {what} for {waiting.waits(now):.0f} s", waiting.step, waiting.op
            )
    return None


def _left_behind(ranks: Sequence[Rank], now: float, limits: Limits) -> Blame | None:
    """A rank is steps behind the others, and neither moves: device work is waited for outside of collectives."""
    if any(r.is_patient(now) for r in ranks) or len(ranks) < 2:
        return None
    first, last = max(ranks, key=lambda r: r.step), min(ranks, key=lambda r: r.step)
    still = min(now - first.moved, now - last.moved)
    if last.step >= first.step or still <= limits.stalled or first.done:
        return None
    return Blame.of(
        last,
        f"has not come to step {first.step}, in which rank {first.number} has waited for {still:.0f} s",
        now,
    )
