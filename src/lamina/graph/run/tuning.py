"""Tuning between runs: unmeasured plans compete while a program runs again and again, and winners replace the plans
between two runs.

It begins when programs have run for a few seconds: shorter ones are not worth it, and are not disturbed. Then the
kernels of one run are timed in place (`Timeline`): a plan's time, its number of uses, and its distance from the
machine's limit give the expected gain of its contest. Contests are held in the order of gain per cost; one that is
not expected to pay for itself within minutes is not held. Threads build the candidates; contests are held in small
parts before a run begins, in at most a tenth of the runs' time (a fifth, while contests are expected to pay for
themselves in seconds), and so that a run with its part rarely takes twice as long as a run alone. Winners are put in
when runs have lost as much by waiting for them as the change of plans takes.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from lamina.backends import OpenChoice, Plan, TuningSlices
from lamina.graph.planning.cost import least_seconds
from lamina.graph.run.executable import Executable
from lamina.graph.run.timeline import Timeline, recording
from lamina.runtime import OutOfMemoryError, renew_after_fork, usable_cores
from lamina.runtime.shared_lock import swift_turns

#: The fraction of the time that tuning may take; the fraction while contests are expected to pay for themselves
#: within so many seconds of runs; the fraction where that takes longer than so many; the most seconds that may be
#: saved up.
SHARE, EAGER, SOON, CALM, LATE, SAVED_UP = 0.1, 0.2, 20.0, 0.03, 60.0, 1.0
#: Seconds of runs before anything is tuned.
BEGIN = 2.0
#: A longer interval between two runs (and than two runs take), in seconds, is a pause of the program's, and earns
#: nothing.
PAUSE = 0.5
#: Work that takes longer than a run (a part of a contest, a change of plans) is done once per so many runs, or after
#: as few as this if there was none for long.
APART, FIRST = 128, 3
#: Factor on a part's average time among the latest so many of its kind, for its expected time. Parts before a run are
#: expected to take at most this fraction of the run's time together.
MARGIN, _LATEST, WITHIN = 1.5, 16, 0.75
#: The most by which a part's time grows with its memory: launches and waits do not grow.
_LARGER = 4.0
#: Runs of a program before anything is tuned, and number of runs over which a run's time is averaged.
WARM, _RUNS = 4, 64
#: A contest that is not expected to pay for itself within this multiple of the run time so far waits, and is never
#: held where that would take more than so many seconds: a program that has run for long will run for long.
AS_LONG, PAYBACK = 2.0, 600.0
#: Estimated cost of a contest: seconds, and runs of the plan.
_CONTEST, _CONTEST_RUNS = 0.02, 60
#: The assumed time of an untimed plan, as a multiple of its lower bound.
_USUAL = 2.0
#: A contest may take one in so many parts of the free memory.
_FREE = 4
#: The environment variable that turns tuning off, regardless of programs, where it is "0".
_VARIABLE = "LAMINA_TUNING"


class PartKind(NamedTuple):
    """Parts of similar time: the activity, and its memory (the bit length of the number of bytes)."""

    name: str
    size: int = 0


#: Kinds of work other than contests.
SWAP, TIMING = PartKind("swap"), PartKind("timing")
#: The context of a run that is not timed.
AS_EVER: AbstractContextManager[object] = nullcontext()


def share_of(worth: float | None) -> float:
    """The fraction of the time that may be spent when the next contest is worth this much (None: unknown)."""
    if worth is None:
        return SHARE
    return EAGER if worth * SOON >= 1 else SHARE if worth * LATE >= 1 else CALM


def without_longest(seconds: Collection[float]) -> float:
    """The average without the longest one, if there are several; 0 of none."""
    if len(seconds) < 2:
        return sum(seconds)
    return (sum(seconds) - max(seconds)) / (len(seconds) - 1)


def beginning(choice: OpenChoice) -> PartKind:
    """The first part of its contest; the others are of the same size."""
    return PartKind("begin", choice.nbytes.bit_length())


class TuningThreads:
    """Threads that run tasks in order, and end when there are none; process exit waits for their current tasks.

    Meanwhile the GIL is switched more often (`swift_turns`).
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._tasks: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._running, self._lock = 0, threading.Lock()

    def submit(self, task: Callable[[], Any]) -> Future[Any]:
        """Have a thread do the task."""
        made: Future[Any] = Future()
        with self._lock:
            self._tasks.append((task, made))
            if self._running < self.most:
                self._running += 1
                threading.Thread(target=self._run, name="lamina tuning").start()
        return made

    def drop(self) -> None:
        """Drop the tasks that have not begun; without a lock, since garbage collection may call it anywhere."""
        self._tasks.clear()

    def _run(self) -> None:
        with swift_turns():
            while (found := self._next()) is not None:
                task, made = found
                try:
                    made.set_result(task())
                except Exception as error:
                    made.set_exception(error)

    def _next(self) -> tuple[Callable[[], Any], Future[Any]] | None:
        """The next task; None where there is none, and the thread ends."""
        with self._lock:
            if threading.main_thread().is_alive():
                with suppress(IndexError):
                    return self._tasks.popleft()
            self._running -= 1
            return None


class Budget:
    """How much tuning may be done before the next run.

    Args:
        begin: seconds of runs before any tuning.
    """

    def __init__(self, begin: float = 0.0) -> None:
        self.share = SHARE
        self.credit = -SHARE * begin  # seconds; below 0 also where a part took longer than was expected
        self.passed_seconds = 0.0  # of runs, without pauses
        self._runs: deque[float] = deque(maxlen=_RUNS)
        self._queued = 0  # runs since the last synchronization
        self._parts: dict[PartKind, deque[float]] = {}
        self._rare = float(FIRST)  # how often work may take longer than a run

    @property
    def run(self) -> float:
        """Seconds of a run, on average, without the longest one, which may include a pause."""
        return without_longest(self._runs)

    def passed(self, seconds: float) -> None:
        """Account for a run and the program's work around it; an outlier counts as a pause."""
        known = max(PAUSE, 2 * self.run)
        self._runs.append(seconds)
        self._earn(min(seconds, known))
        self._rare = min(self._rare + 1 / APART, FIRST)
        self._queued += 1

    def waited(self, seconds: float) -> None:
        """Distribute the extra time of a synchronization over the runs since the last one, which were only queued."""
        for number in range(1, min(self._queued, len(self._runs)) + 1):
            self._runs[-number] += seconds / self._queued
        self._queued = 0
        self._earn(seconds)

    def _earn(self, seconds: float) -> None:
        self.passed_seconds += seconds
        self.credit = min(self.credit + self.share * seconds, SAVED_UP)

    def allows(self, kind: PartKind, spent: float = 0.0) -> bool:
        """Whether a part of this kind may be done now, after others of `spent` seconds before the same run."""
        expected = MARGIN * self.expected(kind)
        if self.credit < expected or self.credit <= 0:
            return False
        return spent + expected <= WITHIN * self.run or (spent == 0 and self._rare >= 1)

    def spent(self, kind: PartKind, seconds: float) -> None:
        """Charge a part of this time."""
        self._parts.setdefault(kind, deque(maxlen=_LATEST)).append(seconds)
        self.credit -= seconds
        if seconds > self.run:
            self._rare -= 1

    def allows_debt(self) -> bool:
        """Whether work may be done on credit, to be earned afterwards."""
        return self.credit > 0 and self._rare >= 1

    def expected(self, kind: PartKind) -> float:
        """Expected seconds of a part of this kind, from those of the nearest size; 0 where none was done.

        With more memory it takes longer, in proportion up to a factor of _LARGER. The longest one is left out: some
        first runs load parts of a library, in twenty times the time of the others.
        """
        known = [size for name, size in self._parts if name == kind.name]
        if not known:
            return 0.0
        nearest = min(known, key=lambda size: (abs(size - kind.size), -size))
        usual = without_longest(self._parts[PartKind(kind.name, nearest)])
        return usual * min(2.0 ** max(0, kind.size - nearest), _LARGER)


@dataclass(frozen=True)
class TuningState:
    """The progress of tuning.

    open, done: choices. won: those whose plan was beaten. swaps: how often plans were changed. seconds: spent between
    runs. ended: why tuning has stopped, "" while it goes on.
    """

    open: int = 0
    done: int = 0
    won: int = 0
    swaps: int = 0
    seconds: float = 0.0
    ended: str = ""

    def __str__(self) -> str:
        ended = f"; ended: {self.ended}" if self.ended else ""
        return f"{self.open} open, {self.done} done, {self.won} won, {self.swaps} swaps, {self.seconds:.2f} s{ended}"


class Tuner:
    """Tunes the programs of one user between their runs: each run is made within `before`, by one thread at a time.

    Args:
        ended: why it does nothing, "" if it tunes. The environment may turn it off, too (LAMINA_TUNING=0).
        clock: seconds, such as time.perf_counter.
        threads: how many build candidates.
        begin: seconds of runs before anything is tuned (by default BEGIN).
    """

    def __init__(
        self,
        ended: str = "",
        clock: Callable[[], float] = time.perf_counter,
        threads: int | None = None,
        begin: float | None = None,
    ) -> None:
        self.budget = Budget(BEGIN if begin is None else begin)
        self.state = TuningState(ended=ended or _switched_off())
        self._clock, self._workers = clock, TuningThreads(threads or max(1, min(8, usable_cores() // 4)))
        weakref.finalize(self, self._workers.drop).atexit = False
        self._last: float | None = None  # the start of the latest run
        self._known: weakref.WeakKeyDictionary[Executable, TunedProgram] = weakref.WeakKeyDictionary()
        # With their worth; their candidates are not being built yet.
        self._waiting: list[tuple[float, OpenChoice]] = []
        self._made: list[tuple[OpenChoice, Future[Any]]] = []  # being built, or built
        self._contest: tuple[OpenChoice, TuningSlices, PartKind] | None = None
        # The extra work of the current run: its kind, and the seconds spent on it before the run.
        self._beside: tuple[PartKind, float] | None = None
        renew_after_fork(self)

    def before(self, executable: Executable) -> AbstractContextManager[object]:
        """At the start of a run: tune as far as the budget allows, put winners in. The run is made within the
        returned context manager, which may time its kernels. An error ends tuning with a warning."""
        if self.state.ended:
            return AS_EVER
        program = self._known.get(executable)
        if program is None:
            program = self._known[executable] = TunedProgram(executable)
        if not program.choices or (program.is_settled and not self.state.open):
            self._last = None
            return AS_EVER
        program.runs += 1
        if program.runs <= WARM:  # captured meanwhile
            self._last = self._clock()
            return AS_EVER
        self._passed()
        return self._worked(program, executable)

    def _worked(self, program: TunedProgram, executable: Executable) -> AbstractContextManager[object]:
        """`_work`; an error ends tuning with a warning."""
        try:
            return self._work(program, executable)
        except Exception as error:
            self.end(f"{type(error).__name__}: {error}")
            warnings.warn(f"tuning between runs has ended: {self.state.ended}", RuntimeWarning, stacklevel=4)
            return AS_EVER

    def end(self, reason: str) -> None:
        """Stop tuning: threads end after their current task."""
        if self._contest is not None:
            self._contest[1].close()
            self._contest[0].settle(None)
        for _, choice in (*self._waiting, *((0.0, choice) for choice, _ in self._made)):
            choice.settle(None)
        self._workers.drop()
        self._contest, self._waiting, self._made = None, [], []
        self.state = replace(self.state, ended=reason, open=0)

    def renew(self) -> None:
        """In a forked child, which has neither the threads nor the GPU."""
        self._contest, self._waiting, self._made = None, [], []
        self.state = replace(self.state, ended="a forked process")

    # ---- before a run
    def _passed(self) -> None:
        """Record the time of the previous run; extra time is charged to the extra work that it did."""
        now = self._clock()
        if self._last is not None:
            took, more = now - self._last, 0.0
            if self._beside is not None:
                more = max(0.0, took - self.budget.run)
                kind, before = self._beside
                self._spent(kind, before + more)
                self._beside = None
            self.budget.passed(took - more)
        self._last = now

    def _work(self, program: TunedProgram, executable: Executable) -> AbstractContextManager[object]:
        if self.budget.credit <= 0:
            return AS_EVER
        if not program.taken:
            if program.timeline is None and recording() is None:
                return self._timed(program, executable)
            self._take(program)
        self._prepare()
        program.look()
        change = self.budget.expected(SWAP) or self.budget.expected(TIMING)
        if program.is_worth(change) and self.budget.allows_debt():
            self._wait(executable)
            self._swap(program, executable)
            return AS_EVER
        spent, waited = 0.0, False
        while (kind := self._next(executable)) is not None and self.budget.allows(kind, spent):
            if not waited:
                self._wait(executable)
                waited = True
            begin = self._clock()
            self._part(executable)
            took = self._clock() - begin
            spent += took
            self._spent(kind, took)
        self._last = self._clock()
        return AS_EVER

    def _timed(self, program: TunedProgram, executable: Executable) -> AbstractContextManager[object]:
        """A context manager that times the run's kernels."""
        self._wait(executable)
        self._last = self._clock()
        self._beside = TIMING, 0.0
        program.timeline = Timeline(calls=1)
        return program.timeline.record()

    def _take(self, program: TunedProgram) -> None:
        """Select the choices that are worth a contest."""
        program.rank(self.budget.run)
        self._waiting += [(worth, choice) for worth, choice in program.ranked if choice.take(self)]
        self._waiting.sort(key=lambda pair: -pair[0])
        self._count()

    def _wait(self, executable: Executable) -> None:
        """Wait until the device is idle: the time until then belongs to runs of the program that were only queued."""
        assert self._last is not None
        executable.device.default_stream.synchronize()
        self.budget.waited(self._clock() - self._last)

    def _spent(self, kind: PartKind, seconds: float) -> None:
        self.budget.spent(kind, seconds)
        self.state = replace(self.state, seconds=self.state.seconds + seconds)

    def _swap(self, program: TunedProgram, executable: Executable) -> None:
        begin = self._clock()
        changed = executable.change_plans(program.better)
        program.tried |= set(program.better)
        program.seen, program.missed, program.saving = -1, 0.0, 0.0
        self._last = self._clock()
        self._beside = SWAP, self._last - begin
        self.state = replace(self.state, swaps=self.state.swaps + int(changed))

    # ---- contests
    def _prepare(self) -> None:
        """Let threads build candidates, a few choices ahead of their contests."""
        patience = AS_LONG * self.budget.passed_seconds
        while self._waiting and len(self._made) < 2 * self._workers.most:
            worth, choice = self._waiting[0]
            self.budget.share = share_of(worth)
            if worth * patience < 1:
                return
            del self._waiting[0]
            self._made.append((choice, self._workers.submit(choice.candidates)))

    def _next(self, executable: Executable) -> PartKind | None:
        """The kind of the next part; None while candidates are being built, or where nothing is left."""
        if self._contest is not None:
            return self._contest[2]
        for number, (choice, made) in enumerate(self._made):
            if made.done():
                contest = choice.contest(made.result(), self._room(executable))
                del self._made[number]
                kind = beginning(choice)
                self._contest = choice, contest, kind
                return kind
        return None

    def _part(self, executable: Executable) -> None:
        """Run one part of the contest."""
        assert self._contest is not None
        choice, contest, kind = self._contest
        try:
            self._contest = choice, contest, kind._replace(name=next(contest))
            return
        except StopIteration as end:
            choice.settle(end.value)
        except (MemoryError, OutOfMemoryError):
            choice.settle(None)
        self._contest = None
        self._count(choice)

    def _room(self, executable: Executable) -> int:
        """Bytes that a contest may take: of the free memory, within the program's limit."""
        free = int(executable.device.memory_info().free) // _FREE
        limit = executable.memory_limit
        return free if limit is None else max(0, min(free, limit - executable.peak_bytes))

    def _count(self, ended: OpenChoice | None = None) -> None:
        running = int(self._contest is not None)
        won = int(ended is not None and ended.winner is not None)
        self.state = replace(
            self.state,
            open=len(self._waiting) + len(self._made) + running,
            done=self.state.done + int(ended is not None),
            won=self.state.won + won,
        )


@dataclass
class ChoiceUse:
    """How a program uses a choice: the number of steps, the sum of their lower bounds, and their measured time if
    timed."""

    count: int = 0
    least: float = 0.0
    seconds: float = 0.0

    def worth(self, choice: OpenChoice, run: float) -> float:
        """The expected saving per run for each second that the contest takes."""
        least = self.least / self.count
        seconds = self.seconds / self.count or _USUAL * least
        saved = self.count * choice.expected(seconds, least)
        return saved / max(run, seconds * self.count) / (_CONTEST + _CONTEST_RUNS * seconds)


class TunedProgram:
    """The open choices of a program.

    together: whether ranks exchange data in it, which all have to change their plans before the same run.
    choices: the open ones; none where ranks exchange data, unless they tune it together (`across_ranks`). ranked:
    those that are worth a contest, with their worth, the best first. timeline: of the run whose kernels were timed.
    taken: whether they were ranked. better: plans that can be put in.
    saving: the seconds by which they shorten a run. missed: the seconds that runs have lost without them.
    is_open: whether more is to be learnt. tried: plans that were changed, or could not be.
    """

    def __init__(self, executable: Executable, across_ranks: bool = False) -> None:
        self.runs, self.taken = 0, False
        self.tried: set[Plan] = set()
        self.better: dict[Plan, Plan] = {}
        self.saving, self.missed, self.is_open, self.seen = 0.0, 0.0, True, -1
        self.timeline: Timeline | None = None
        self.ranked: list[tuple[float, OpenChoice]] = []
        self._counts: dict[Plan, int] = {}
        self._uses: dict[OpenChoice, ChoiceUse] = {}
        self._kernels: list[OpenChoice | None] = []  # of each step that launches something
        steps = executable.program.steps
        self.together = any(s.node is not None and s.node.op.effect == "collective" for s in steps)
        for step in () if self.together and not across_ranks else steps:
            choice = step.plan.open
            if not step.plan.view:
                self._kernels.append(choice)
            if choice is not None:
                self._counts[step.plan] = self._counts.get(step.plan, 0) + 1
                use = self._uses.setdefault(choice, ChoiceUse())
                use.count += 1
                use.least += least_seconds(step, executable.device.machine)
                choice.nbytes = sum(slot.spec.nbytes for slot in (*step.inputs, *step.outputs))

    @property
    def choices(self) -> list[OpenChoice]:
        """The open choices, in the order of the steps."""
        return list(self._uses)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to learn, nor to put in."""
        return self.taken and not self.is_open and not self.better

    def rank(self, run: float) -> None:
        """Select the choices that are worth a contest, from the timeline. run: seconds of a run."""
        spans = [] if self.timeline is None else [s for s in self.timeline.spans if s.kind != "host"]
        for choice, span in zip(self._kernels, spans, strict=bool(spans)):
            if choice is not None:
                self._uses[choice].seconds += span.nanoseconds / 1e9
        worth = [(use.worth(choice, run), choice) for choice, use in self._uses.items()]
        self.ranked = sorted([pair for pair in worth if pair[0] * PAYBACK >= 1], key=lambda pair: -pair[0])
        self.taken, self.timeline = True, None

    def look(self) -> None:
        """Take over results found since the last time, by anyone."""
        self.missed += self.saving
        if self.seen == OpenChoice.settled:
            return
        self.seen = OpenChoice.settled
        fresh = [p for p in self._counts if p not in self.tried and p.latest is not p]
        self.better = {plan: plan.latest for plan in fresh}
        self.saving = sum(self._counts[p] * p.open.saving for p in fresh if p.open is not None)
        self.is_open = not all(choice.done for _, choice in self.ranked)

    def is_worth(self, seconds: float) -> bool:
        """Whether a change of plans that takes `seconds` is due: all is known, or runs have lost as much without
        it."""
        return bool(self.better) and (not self.is_open or self.missed >= seconds)


def _switched_off() -> str:
    return f"{_VARIABLE}=0" if os.environ.get(_VARIABLE) == "0" else ""
