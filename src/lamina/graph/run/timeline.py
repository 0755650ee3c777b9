"""Execution traces: the kernels of compiled graphs and host activity as spans of time in Chrome's trace format.

While a timeline records, every call of a compiled graph in this thread notes when each of its kernels began and
ended, and on which stream: calls are otherwise unchanged (their results count, a step trains), but each is
synchronized with. On a GPU the program is captured once more with an event before and after each kernel, on its
streams.

chrome://tracing and https://ui.perfetto.dev show the files: a rank is a process there, a stream a thread.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lamina._json import parse_json
from lamina.graph.planning.cost import work
from lamina.graph.planning.program import PlannedStep
from lamina.ops.arguments import checked
from lamina.ops.primitives.fused import Fused
from lamina.ops.primitives.fused_elementwise import FusedElementwise
from lamina.runtime import write_atomically

_FORMAT = "lamina timeline 1"
#: The kind of an op in a timeline, by its effect; any other is "compute".
_KINDS = {"collective": "communication", "update": "update"}
_RECORDING: ContextVar[Timeline | None] = ContextVar("lamina timeline", default=None)


@dataclass(frozen=True)
class Span:
    """One interval of activity.

    kind: "compute", "update", "communication", "reorder", or "host". lane: where it ran, "stream 0" or "host".
    begin: nanoseconds by the rank's clock (time.monotonic_ns). nanoseconds: how long. details: human-readable.
    """

    name: str
    kind: str
    lane: str
    begin: int
    nanoseconds: int
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """Its end, in nanoseconds by the same clock."""
        return self.begin + self.nanoseconds


class Timeline:
    """The spans of one rank. `record` fills it, `save` writes it.

    calls: record this many calls of compiled graphs, after `skip` others; None: all.
    rank: whose. offset, error: the rank's clock minus rank 0's, and its error bound, in nanoseconds
        (`clock_offset`).
    """

    def __init__(self, calls: int | None = None, *, skip: int = 0, rank: int = 0) -> None:
        self.calls, self.skip, self.rank = calls, skip, rank
        self.offset = self.error = 0
        self.spans: list[Span] = []
        self.recorded = 0

    @property
    def is_open(self) -> bool:
        """Whether current work is recorded."""
        return not self.skip and (self.calls is None or self.recorded < self.calls)

    @contextmanager
    def record(self) -> Iterator[Timeline]:
        """Record this thread's work within the block."""
        before = _RECORDING.set(self)
        try:
            yield self
        finally:
            _RECORDING.reset(before)

    @contextmanager
    def host(self, name: str) -> Iterator[None]:
        """Note a host activity within the block."""
        begin = time.monotonic_ns()
        try:
            yield
        finally:
            self.spans.append(Span(name, "host", "host", begin, time.monotonic_ns() - begin))

    @checked
    def add_call(
        self, name: str, steps: Sequence[PlannedStep], times: Sequence[StepTime], begin: int, end: int
    ) -> None:
        """Add a call of a compiled graph: the times of each step, and when the host called and finished waiting."""
        self.recorded += 1
        self.spans.append(Span(name, "host", "host", begin, end - begin))
        self.spans += [_span(step, at) for step, at in zip(steps, times, strict=True)]

    @property
    def communication(self) -> float:
        """Seconds with communication in flight."""
        return _covered(s for s in self.spans if s.kind == "communication") / 1e9

    @property
    def exposed(self) -> float:
        """Seconds with communication in flight and no computation beside it."""
        busy = [s for s in self.spans if s.kind not in ("communication", "host")]
        both = [s for s in self.spans if s.kind != "host"]
        return (_covered(both) - _covered(busy)) / 1e9

    def events(self) -> list[dict[str, Any]]:
        """The events in Chrome's trace format; times are rank 0's, in microseconds."""
        lanes = {lane: number for number, lane in enumerate(sorted({s.lane for s in self.spans}))}
        found = [_named("process", f"rank {self.rank}", self.rank)]
        found += [_named("thread", lane, self.rank, number) for lane, number in lanes.items()]
        return found + [
            {
                "ph": "X",
                "pid": self.rank,
                "tid": lanes[s.lane],
                "name": s.name,
                "cat": s.kind,
                "ts": (s.begin - self.offset) / 1e3,
                "dur": s.nanoseconds / 1e3,
                "args": dict(s.details),
            }
            for s in sorted(self.spans, key=lambda s: s.begin)
        ]

    @checked
    def save(self, path: str | Path) -> None:
        """Write it as a file for chrome://tracing or Perfetto. Raises OSError."""
        _write(path, self.events(), [{"rank": self.rank, "clock_error_us": self.error / 1e3}])


@dataclass(frozen=True)
class StepTime:
    """The time of a step: its stream, and nanoseconds by the host's clock."""

    stream: int
    begin: int
    nanoseconds: int


def recording() -> Timeline | None:
    """The timeline that is recording in this thread."""
    found = _RECORDING.get()
    return found if found is not None and found.is_open else None


def next_call() -> Timeline | None:
    """The timeline that is to record the call about to begin."""
    found = _RECORDING.get()
    if found is None:
        return None
    open = recording()
    if found.skip:
        found.skip -= 1
    return open


def host_span(name: str) -> Any:
    """A block of host activity, noted where a timeline records."""
    found = recording()
    return nullcontext() if found is None else found.host(name)


def _span(step: PlannedStep, at: StepTime) -> Span:
    flops, nbytes = work(step)
    details = {"kernel": step.plan.label, "bytes": nbytes} | ({"flop": flops} if flops else {})
    lane = f"stream {at.stream}"
    if step.node is None:
        return Span("reorder", "reorder", lane, at.begin, at.nanoseconds, details)
    op = step.node.op
    name = " > ".join(part.name for part in op.ops) if isinstance(op, Fused | FusedElementwise) else op.name
    details |= {"op": str(op), "from": str(step.node.origin)}
    return Span(name, _KINDS.get(op.effect, "compute"), lane, at.begin, at.nanoseconds, details)


def _covered(spans: Iterable[Span]) -> int:
    """Nanoseconds covered by at least one of the spans."""
    total, reached = 0, None
    for s in sorted(spans, key=lambda s: s.begin):
        if reached is None or s.end > reached:
            total += s.end - (s.begin if reached is None else max(s.begin, reached))
            reached = s.end
    return total


def _named(what: str, name: str, process: int, thread: int = 0) -> dict[str, Any]:
    return {"ph": "M", "name": f"{what}_name", "pid": process, "tid": thread, "args": {"name": name}}


def _write(path: str | Path, events: list[dict[str, Any]], ranks: list[dict[str, Any]]) -> None:
    text = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"format": _FORMAT, "ranks": ranks}}
    write_atomically(path, [json.dumps(text).encode()])


# ---- several ranks


@checked
def clock_offset(exchange: Callable[[int], Sequence[int]], rank: int, rounds: int = 8) -> tuple[int, int]:
    """This rank's clock minus rank 0's, and the error bound, in nanoseconds.

    exchange: gives every rank's number to every rank, such as `lamina.distributed.all_gather_object`; all ranks call.

    No rank has all numbers before every rank has given its own: each round bounds the difference of two clocks from
    both sides, and the midpoint of the intersection over all rounds is taken (Marzullo, Owicki 1983). Where the
    clocks may be identical, as those of processes on one machine are, the difference is 0.
    """
    if rounds < 1:
        raise ValueError(f"clock_offset: rounds must be at least 1, got {rounds}")
    given, had = [], []
    for _ in range(rounds):
        given.append(time.monotonic_ns())
        exchange(0)
        had.append(time.monotonic_ns())
    firsts = [(exchange(a)[0], exchange(b)[0]) for a, b in zip(given, had, strict=True)]
    low = max(a - end for a, (_, end) in zip(given, firsts, strict=True))
    high = min(b - begin for b, (begin, _) in zip(had, firsts, strict=True))
    if rank == 0 or low <= 0 <= high:
        return 0, 0 if rank == 0 else max(high, -low)
    return (low + high) // 2, abs(high - low) // 2 + 1


@checked
def merge_timelines(paths: Sequence[str | Path], out: str | Path) -> int:
    """Merge the timelines of several ranks into one file; returns how many ranks it shows.

    Raises ValueError for files that are no timelines, or of one rank twice, OSError.
    """
    events: list[dict[str, Any]] = []
    ranks: list[dict[str, Any]] = []
    for path in paths:
        try:
            text = parse_json(Path(path).read_bytes())
            if text["otherData"]["format"] != _FORMAT:
                raise ValueError(text["otherData"]["format"])
            events += list(text["traceEvents"])
            ranks += list(text["otherData"]["ranks"])
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path}: is no timeline that Lamina wrote") from None
    numbers = [r["rank"] for r in ranks]
    twice = sorted({n for n in numbers if numbers.count(n) > 1})
    if twice or not ranks:
        raise ValueError(
            f"merge_timelines: rank {twice[0]} comes twice" if twice else "merge_timelines: no files"
        )
    _write(out, events, sorted(ranks, key=lambda r: int(r["rank"])))
    return len(ranks)
