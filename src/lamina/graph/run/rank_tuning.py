"""Tuning between steps where ranks train together: each holds a part of the contests, and all change plans before the
same run.

A contest on one rank delays all others, which wait for it in the next collective operation. So ranks meet before
certain runs (those with collective operations count, which all ranks begin equally often) and tell each other by one
host-side all-gather how long runs took, what is open, and what was found. From what was gathered every rank computes
the same: before which of the next runs parts of contests are held, in how many seconds at most, and before which
run ranks meet again. Between meetings nobody communicates. Meetings are rarer the less there is to do, and where
nothing is left they come after twice as many runs each time, for programs that were compiled since.

A problem is known by its name. It is dealt to one of the ranks that have it; what wins there goes as data to the
others, which make it, run it once and check it. A winner that one of them cannot make is nobody's. What all have is
put in at a meeting: all record their programs anew, tell each other whether that went well, and go back where one
could not. So ranks with one model of GPU always run the same plans, and what each computes for itself (updates of
parameters) stays the same on all of them.
"""

from __future__ import annotations

import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, Protocol

from lamina.backends import OpenChoice, Plan, TuningSlices
from lamina.graph.run.executable import Executable
from lamina.graph.run.timeline import Timeline, recording
from lamina.graph.run.tuning import (
    APART,
    AS_LONG,
    BEGIN,
    FIRST,
    MARGIN,
    PAUSE,
    PAYBACK,
    SAVED_UP,
    SHARE,
    SWAP,
    TIMING,
    Budget,
    PartKind,
    TunedProgram,
    Tuner,
    beginning,
    share_of,
)
from lamina.runtime import OutOfMemoryError
from lamina.spec import Group

#: Runs between two meetings at least, and seconds of runs, which double where there is nothing to do, so often.
SHORTEST, ROUND, DOUBLED = 8, 0.5, 7
#: Runs after which ranks meet again where nothing is left to do, at least.
SETTLED = 64
#: Ranks meet again after so many times the runs that there were at most: the first ones say little of what one takes.
_LONGER = 4
#: Runs of a program before it is tuned: it is recorded meanwhile.
_WARM = 4
_AS_EVER: AbstractContextManager[object] = nullcontext()


class TunedRanks(Protocol):
    """The ranks that train together, such as `lamina.distributed.DataParallel`."""

    @property
    def ranks(self) -> Group:
        """Who they are."""
        ...

    @property
    def place(self) -> int:
        """This rank's among them."""
        ...

    def gather_objects(self, value: object) -> list[Any]:
        """Each rank's value; all call it. Raises RankError where another rank has ended."""
        ...


@dataclass(frozen=True)
class RankReport:
    """What a rank tells at a meeting.

    failed: why it tunes no more, "" where it does. elapsed: seconds since the last meeting, pauses left out. spent:
    seconds of parts before each run that was appointed. need: the seconds that its next part takes. calls: runs of
    all programs since then. busy: whether it has something under way. ready: whether the program that is about to run
    was recorded. untimed: whether its kernels are to be timed. timeable: whether they can be. fresh: how many of
    its plans would change. missed: seconds that runs lost without that; change: those that it takes. pending: whether
    other programs are to be timed or changed. offers: problems that are open, with what each is worth. found:
    problems whose contests have ended, with the winner's record (None: what is in use stays). made: problems whose
    winners can run here, or cannot.
    """

    failed: str = ""
    elapsed: float = 0.0
    spent: tuple[float, ...] = ()
    need: float = 0.0
    calls: int = 0
    busy: bool = False
    ready: bool = False
    untimed: bool = False
    timeable: bool = True
    fresh: int = 0
    missed: float = 0.0
    change: float = 0.0
    pending: bool = False
    offers: tuple[tuple[str, float], ...] = ()
    found: tuple[tuple[str, Any], ...] = ()
    made: tuple[tuple[str, bool], ...] = ()


@dataclass
class SharedProblem:
    """A problem, as all ranks know it.

    worth: what its contest is expected to win. holders: the ranks (places) that have it. contestant: who holds its
    contest, None where nobody does. record: of the winner, once there is one. made: where that can run by now.
    done: whether nothing more will be learnt; agreed: whether the winner is everywhere, and may be put in.
    """

    worth: float
    holders: list[int]
    contestant: int | None = None
    record: Any = None
    made: set[int] = field(default_factory=set)
    done: bool = False
    agreed: bool = False


@dataclass(frozen=True)
class Appointments:
    """What ranks do until they meet again: before every `every`-th run, `count` times, parts of at most `seconds`; of
    at most `need`, which is more than a run takes, the first `long` times."""

    every: int = 1
    count: int = 0
    seconds: float = 0.0
    long: int = 0
    need: float = 0.0

    def allowed(self, run: int) -> float | None:
        """Seconds before run number `run` since ranks met (1 is the first one); None where nothing was appointed."""
        number, rest = divmod(run, self.every)
        if rest or not 0 < number <= self.count:
            return None
        return self.need if number <= self.long else self.seconds


class Schedule:
    """What all ranks compute alike of what they told: runs, credit, problems, and when they meet again."""

    def __init__(self, begin: float) -> None:
        self.credit = -SHARE * begin  # seconds that may be spent
        self.passed_seconds = 0.0  # of runs
        self.run, self.call = 0.0, 0.0  # seconds of a run with collective operations; of any program's
        self.problems: dict[str, SharedProblem] = {}
        self.length = 1  # runs until the next meeting
        self.idle = 0  # meetings at which nothing was to be done, one after the other
        self.runs = 0  # at all, up to this meeting
        self._rare = float(FIRST)

    def take(self, reports: Sequence[RankReport]) -> None:
        """What was told."""
        self._account(reports)
        fresh: set[str] = set()
        for place, report in enumerate(reports):
            for name, worth in report.offers:
                known = self.problems.get(name)
                if known is None:
                    known = self.problems[name] = SharedProblem(worth, [])
                    fresh.add(name)
                known.worth = max(known.worth, worth)
                if place not in known.holders:
                    known.holders.append(place)
        for report in reports:
            for name, record in report.found:
                self._found(self.problems[name], record)
        self._deal(fresh, len(reports))
        for place, report in enumerate(reports):
            for name, good in report.made:
                self._made(self.problems[name], place, good)

    def _account(self, reports: Sequence[RankReport]) -> None:
        runs, elapsed = self.length, max(r.elapsed for r in reports)
        self.runs += runs
        count = max(len(r.spent) for r in reports)
        spent = sum(max(r.spent[i] if i < len(r.spent) else 0.0 for r in reports) for i in range(count))
        own = max(0.0, elapsed - spent)
        if own > 0:
            self.run, self.call = own / runs, own / max(runs, *(r.calls for r in reports))
        self.passed_seconds += own
        self.credit = min(self.credit + self.share * own, SAVED_UP) - spent
        self._rare = min(self._rare + runs / APART, FIRST)

    def _found(self, shared: SharedProblem, record: Any) -> None:
        if shared.done or shared.record is not None:
            return  # another rank's winner was told before
        shared.record, shared.done, shared.contestant = record, record is None, None

    def _deal(self, fresh: set[str], ranks: int) -> None:
        """Each new problem that is worth it to the rank among its holders that has the fewest, the best first."""
        load = [sum(p.contestant == r for p in self.problems.values()) for r in range(ranks)]
        for name in sorted(fresh, key=lambda n: (-self.problems[n].worth, n)):
            shared = self.problems[name]
            if shared.done or shared.record is not None:
                continue
            if shared.worth * PAYBACK < 1:
                shared.done = True
                continue
            shared.contestant = min(shared.holders, key=lambda r: (load[r], r))
            load[shared.contestant] += 1

    def _made(self, shared: SharedProblem, place: int, good: bool) -> None:
        if shared.done:
            return
        shared.made.add(place)
        if not good:
            shared.record, shared.done = None, True
        elif shared.made >= set(shared.holders):
            shared.done = shared.agreed = True

    @property
    def open(self) -> list[SharedProblem]:
        """Of which something is to be learnt."""
        return [p for p in self.problems.values() if not p.done]

    @property
    def share(self) -> float:
        """The part of the time that may be spent."""
        return share_of(max((p.worth for p in self.open), default=None))

    def is_due(self, worth: float) -> bool:
        """Whether a contest of such a worth may be held by now; see AS_LONG."""
        return worth * AS_LONG * self.passed_seconds >= 1

    def changes(self, reports: Sequence[RankReport]) -> bool:
        """Whether plans are changed now."""
        if not all(r.ready for r in reports) or not any(r.fresh for r in reports) or self.credit <= 0:
            return False
        return not self.open or max(r.missed for r in reports) >= max(r.change for r in reports)

    def times(self, reports: Sequence[RankReport]) -> bool:
        """Whether the run that begins is timed kernel by kernel."""
        return (
            self.credit > 0
            and any(r.untimed for r in reports)
            and all(r.ready and r.timeable for r in reports)
        )

    def appoint(self, reports: Sequence[RankReport], *, soon: bool) -> Appointments:
        """What is done until the next meeting, which is `length` runs from now. soon: something was done now."""
        active = soon or any(r.busy or r.found or r.made or r.offers for r in reports)
        left = bool(self.open) or any(r.pending or r.untimed or r.fresh for r in reports)
        self.idle = 0 if active else self.idle + 1
        if not (active or left) or self.idle > DOUBLED:
            self.length = max(SETTLED, self.runs)
            return Appointments()
        run = max(self.run, 1e-9)
        self.length = SHORTEST
        if self.run > 0 and not soon:
            waits = -self.credit / self.share  # seconds of runs until something may be done
            wanted = ceil(max(ROUND * 2.0**self.idle, waits) / run)
            self.length = max(SHORTEST, min(wanted, _LONGER * self.runs))
        self.length |= 1  # programs that take turns come to be met
        seconds, need, most = run / 2, max(r.need for r in reports), self.length - 1
        seconds = need if seconds < need <= run else seconds
        credit, long = max(self.credit, 0.0), 0
        if need > run:
            long = min(int(self._rare + self.length / APART), int(credit / need), most)
            self._rare -= long
        count = min(long + int((credit - long * need) / seconds), most)
        return Appointments(max(1, (self.length - 1) // max(count, 1)), count, seconds, long, need)


@dataclass
class _TuningJob:
    """A contest that is held here, or a winner of another rank that is brought here.

    held: what gives the parts. adopts: whether it is another rank's winner. made: what a thread makes for it.
    kind: of the next part.
    """

    name: str
    held: OpenChoice
    adopts: bool
    made: Future[Any]
    kind: PartKind
    parts: TuningSlices | None = None


class _RankProgram(TunedProgram):
    """What is open of a program, by the names of problems."""

    def __init__(self, executable: Executable) -> None:
        super().__init__(executable, across_ranks=True)
        self.offered: set[OpenChoice] = set()
        self.skipped_timing = False

    def open_choices(self, run: float) -> list[tuple[float, OpenChoice]]:
        """Those that were not offered yet, with what they are worth. run: seconds of a run."""
        left = [(use, c) for c, use in self._uses.items() if c.name and c not in self.offered]
        return [(use.worth(choice, run), choice) for use, choice in left]

    def fresh(self, plans: dict[str, tuple[Plan, float]]) -> dict[Plan, Plan]:
        """The plans that would change. plans: of problems, by their names."""
        left = [
            p for p in self._counts if p not in self.tried and p.open is not None and p.open.name in plans
        ]
        return {p: plans[p.open.name][0] for p in left if p.open is not None}

    def saves(self, plans: dict[str, tuple[Plan, float]]) -> float:
        """By how many seconds a run gets shorter then."""
        fresh = self.fresh(plans)
        return sum(self._counts[p] * plans[p.open.name][1] for p in fresh if p.open is not None)


class RankTuner(Tuner):
    """Tunes the programs of one user on all ranks that train together; see the module.

    Args:
        ranks: who trains together; all make one, and call `before` with programs whose collective operations
            answer each other.
        ended, clock, threads, begin: as for `Tuner`.
    """

    def __init__(
        self,
        ranks: TunedRanks,
        ended: str = "",
        clock: Callable[[], float] = time.perf_counter,
        threads: int | None = None,
        begin: float | None = None,
    ) -> None:
        super().__init__(ended, clock, threads, begin)
        self._ranks = ranks
        self.schedule = Schedule(BEGIN if begin is None else begin)
        self.meetings = 0
        self._over = False
        self._failed = self.state.ended
        self._programs: weakref.WeakKeyDictionary[Executable, _RankProgram] = weakref.WeakKeyDictionary()
        self._run = 0  # runs with collective operations since the last meeting
        self._calls = 0  # runs of any program since then
        self._now = Appointments()
        self._elapsed, self._spent_now = 0.0, list[float]()
        self._timing = False  # whether the run that is under way is timed
        self._costs = Budget()  # what parts of each kind take
        self._kinds: set[PartKind] = set()  # of parts that were done here
        self._choices: dict[str, list[OpenChoice]] = {}  # of this rank, by problem
        self._jobs: list[_TuningJob] = []
        self._begun: set[str] = set()  # problems whose contest was begun here
        self._adopting: set[str] = set()
        self._plans: dict[str, tuple[Plan, float]] = {}  # winners that can run here, and what they save
        self._news: dict[str, Any] = {}  # what was found here and not told yet
        self._arrived: dict[str, bool] = {}  # likewise, which winners of others can run here
        self._settled: set[str] = set()

    # ---- before a run
    def before(self, executable: Executable) -> AbstractContextManager[object]:
        """Where a run begins: do what all ranks do before it. Errors of tuning end it on all ranks when they meet
        next, with a warning. Raises RankError where another rank has ended.
        """
        if self._over:
            return _AS_EVER
        program = self._programs.get(executable)
        if program is None:
            program = self._programs[executable] = _RankProgram(executable)
        program.runs += 1
        self._calls += 1
        self._passed(counts=program.runs > _WARM)
        if not program.together:
            return self._attempt(lambda: self._apart(program, executable)) or _AS_EVER
        self._run += 1
        if self._run == self.schedule.length:
            return self._meet(program, executable)
        allowed = self._now.allowed(self._run)
        if allowed is not None:
            self._hold(program, executable, allowed)
        return _AS_EVER

    def end(self, reason: str) -> None:
        """No more of it, on this rank; threads end when they have made what they are at."""
        self._over = True
        self._stop()
        for choices in self._choices.values():
            for choice in choices:
                if not choice.done:
                    choice.settle(None)
        self.state = replace(self.state, ended=reason, open=0)

    def renew(self) -> None:
        """In a forked child, which is no rank."""
        super().renew()
        self._over, self._jobs = True, []

    def _stop(self) -> None:
        for job in self._jobs:
            if job.parts is not None:
                job.parts.close()
        self._jobs = []
        self._workers.drop()

    def _attempt(self, work: Callable[[], Any]) -> Any:
        """What is this rank's own to do: an error is told at the next meeting, and nothing is done until then."""
        if self._failed:
            return None
        try:
            return work()
        except Exception as error:
            self._failed = f"{type(error).__name__}: {error}"
            self._stop()
            return None

    def _passed(self, *, counts: bool = True) -> None:
        """Note how long the run before took; what it took longer where it was timed was spent.

        counts: False for the first runs of a program, which is recorded meanwhile.
        """
        now = self._clock()
        if self._last is not None:
            took, run = now - self._last, self.schedule.run
            if self._timing:
                self._spend(TIMING, max(0.0, took - run))
                took = min(took, run)
            if counts:
                self._elapsed += min(took, max(PAUSE, 2 * run))
        self._timing, self._last = False, now

    def _spend(self, kind: PartKind | None, seconds: float) -> None:
        """So long took what all ranks do before the same run."""
        if kind is not None:
            self._costs.spent(kind, seconds)
        self._spent_now.append(seconds)
        self._elapsed += seconds
        self.state = replace(self.state, seconds=self.state.seconds + seconds)

    def _waited(self, executable: Executable) -> None:
        """Until the device is idle: what it does by then are runs, which were only queued."""
        executable.device.default_stream.synchronize()
        now = self._clock()
        assert self._last is not None
        self._elapsed += now - self._last
        self._last = now

    # ---- parts of contests
    def _hold(self, program: _RankProgram, executable: Executable, allowed: float) -> None:
        """Parts, as many as fit into so many seconds; none where the program's policy lets nothing change."""
        spent = 0.0
        if program.choices and not self._failed:
            self._attempt(self._begin_contests)
            if self._next_job() is not None:
                self._waited(executable)
                begin = self._clock()
                self._attempt(lambda: self._parts(executable, allowed))
                self._last = self._clock()
                spent = self._last - begin
        self._spend(None, spent)

    def _parts(self, executable: Executable, allowed: float) -> None:
        spent = 0.0
        while (job := self._next_job()) is not None and spent < allowed:
            kind = job.kind
            if spent + MARGIN * self._costs.expected(kind) > allowed:
                return
            begin = self._clock()
            self._one_part(job, executable)
            took = self._clock() - begin
            spent += took
            self._costs.spent(kind, took)
            self._kinds.add(kind)

    def _need(self, kind: PartKind) -> float:
        """What the next part is expected to take, or those of other kinds that are no longer than a run."""
        expected = {k: MARGIN * self._costs.expected(k) for k in {*self._kinds, kind}}
        return max(s for k, s in expected.items() if k == kind or s <= self.schedule.run)

    def _next_job(self) -> _TuningJob | None:
        """The one that is under way, else one whose candidates are made; winners of others come first."""
        begun = [job for job in self._jobs if job.parts is not None]
        made = [job for job in self._jobs if job.made.done()]
        return next(iter([*begun, *(j for j in made if j.adopts), *made]), None)

    def _one_part(self, job: _TuningJob, executable: Executable) -> None:
        """One part."""
        try:
            if job.parts is None:
                job.parts = job.held.contest(job.made.result(), self._room(executable))
            job.kind = job.kind._replace(name=next(job.parts))
            return
        except StopIteration as end:
            found = end.value
        except (MemoryError, OutOfMemoryError):
            found = None
        self._jobs.remove(job)
        self._ended(job, found)

    def _ended(self, job: _TuningJob, found: tuple[Plan, float] | None) -> None:
        record = None if found is None else found[0].record
        if job.adopts:
            self._arrived[job.name] = found is not None
        else:
            self._news[job.name] = record
        if found is not None and record is not None:
            self._plans[job.name] = found

    def _begin_contests(self) -> None:
        """Let threads make candidates for problems that are this rank's, of few ahead of their contests."""
        own = [
            (-p.worth, name)
            for name, p in self.schedule.problems.items()
            if p.contestant == self._ranks.place and name not in self._begun and self.schedule.is_due(p.worth)
        ]
        for _, name in sorted(own):
            if len(self._jobs) >= 2 * self._workers.most:
                return
            self._begun.add(name)
            choice = self._choices[name][0]
            made = self._workers.submit(choice.candidates)
            self._jobs.append(_TuningJob(name, choice, False, made, beginning(choice)))

    def _begin_adopting(self) -> None:
        """Bring winners of other ranks here."""
        for name, shared in self.schedule.problems.items():
            if shared.record is None or name in self._adopting or name not in self._choices:
                continue
            self._adopting.add(name)
            self._jobs = [job for job in self._jobs if job.name != name or self._given_up(job)]
            mine = self._plans.get(name)
            if mine is not None and mine[0].record == shared.record:
                self._arrived[name] = True
                continue
            self._plans.pop(name, None)
            held = self._choices[name][0].adopting(shared.record)
            if held is None:
                self._arrived[name] = False
            else:
                made = self._workers.submit(held.candidates)
                self._jobs.append(_TuningJob(name, held, True, made, beginning(self._choices[name][0])))

    @staticmethod
    def _given_up(job: _TuningJob) -> bool:
        """Ends a contest that another rank's makes needless."""
        if job.parts is not None:
            job.parts.close()
        return False

    # ---- meetings
    def _meet(self, program: _RankProgram, executable: Executable) -> AbstractContextManager[object]:
        """Tell and hear what ranks know, and do what all do then."""
        self._waited(executable)
        report = self._attempt(lambda: self._report(program)) or RankReport(self._failed)
        reports: list[RankReport] = self._ranks.gather_objects(report)
        self.meetings += 1
        self._clear(report)
        if any(r.failed for r in reports):
            self._end_all(reports)
            return _AS_EVER
        self.schedule.take(reports)
        changes, times = self.schedule.changes(reports), self.schedule.times(reports)
        self._attempt(self._follow)
        if changes:
            self._change(program, executable)
        elif not times and report.untimed and report.ready:
            program.skipped_timing = not report.timeable
        self._now = self.schedule.appoint(reports, soon=changes or times)
        self._count()
        self._last = self._clock()
        self._timing = times and not changes
        return (self._attempt(lambda: self._timed_run(program)) if self._timing else None) or _AS_EVER

    def _report(self, program: _RankProgram) -> RankReport:
        self._rank_programs()
        offers = self._offers()
        job = next(iter(sorted(self._jobs, key=lambda job: job.parts is None)), None)
        ready = program.runs > _WARM
        fresh = program.fresh(self._agreed())
        program.missed += self._run * program.saves(self._agreed())
        others = [p for p in self._programs.values() if p is not program and p.runs > _WARM and p.choices]
        return RankReport(
            elapsed=self._elapsed,
            spent=tuple(self._spent_now),
            need=0.0 if job is None else self._need(job.kind),
            calls=self._calls,
            busy=bool(self._jobs),
            ready=ready,
            untimed=bool(program.choices) and not program.taken,
            timeable=recording() is None,
            fresh=len(fresh),
            missed=program.missed,
            change=self._costs.expected(SWAP) or self._costs.expected(TIMING),
            pending=any(not p.taken or (p.together and p.fresh(self._agreed())) for p in others),
            offers=offers,
            found=tuple(self._news.items()),
            made=tuple(self._arrived.items()),
        )

    def _clear(self, report: RankReport) -> None:
        """What was told is told."""
        self._run = self._calls = 0
        self._elapsed, self._spent_now = 0.0, []
        for name, _ in report.found:
            self._news.pop(name, None)
        for name, _ in report.made:
            self._arrived.pop(name, None)

    def _rank_programs(self) -> None:
        """By what the timelines say of each program whose kernels were timed."""
        for program in self._programs.values():
            if not program.taken and (program.timeline is not None or program.skipped_timing):
                program.rank(self.schedule.call)

    def _offers(self) -> tuple[tuple[str, float], ...]:
        """Problems that this rank has, and does not know to be another user's of this process; what it knows of them
        already is told, too."""
        worth: dict[str, float] = {}
        for program in self._programs.values():
            for value, choice in program.open_choices(self.schedule.call) if program.taken else ():
                if not choice.done and not choice.take(self):
                    continue  # once it is known
                program.offered.add(choice)
                held = self._choices.setdefault(choice.name, [])
                held.append(choice)
                worth[choice.name] = worth.get(choice.name, 0.0) + value
                if choice.done and len(held) == 1:
                    won = choice.winner
                    self._news[choice.name] = None if won is None else won.record
                    if won is not None and won.record is not None:
                        self._plans[choice.name] = won, choice.saving
        return tuple(worth.items())

    def _agreed(self) -> dict[str, tuple[Plan, float]]:
        """Winners that all ranks have, as plans of this one."""
        known = self.schedule.problems
        return {n: found for n, found in self._plans.items() if n in known and known[n].agreed}

    def _follow(self) -> None:
        """Do what was decided: settle what is done, begin what is to be done."""
        agreed = self._agreed()
        for name, shared in self.schedule.problems.items():
            if not shared.done or name not in self._choices or (shared.agreed and name not in agreed):
                continue
            for choice in self._choices[name]:
                if not choice.done:
                    choice.settle(agreed.get(name))
        self._begin_adopting()
        self._begin_contests()

    def _timed_run(self, program: _RankProgram) -> AbstractContextManager[object]:
        """Within this the run's kernels are timed."""
        if program.taken or not program.choices:
            return Timeline(calls=1).record()  # all record their programs once more, or none does
        program.timeline = Timeline(calls=1)
        return program.timeline.record()

    def _change(self, program: _RankProgram, executable: Executable) -> None:
        """Change plans on all ranks, or on none."""
        former = executable.program
        fresh = program.fresh(self._agreed())
        begin = self._clock()
        good = self._attempt(lambda: executable.change_plans(fresh))
        every = self._ranks.gather_objects(bool(good))
        if good and not all(every):
            self._attempt(lambda: executable.put_back(former))
        program.tried |= set(fresh)
        program.missed = 0.0
        self._spend(SWAP, self._clock() - begin)
        self.state = replace(self.state, swaps=self.state.swaps + int(all(every)))

    def _apart(self, program: _RankProgram, executable: Executable) -> AbstractContextManager[object]:
        """Of a program without collective operations (of gradients that are only gathered) this rank changes the
        plans by itself, to those that all have."""
        if program.runs <= _WARM or not program.choices or self.schedule.credit <= 0:
            return _AS_EVER
        if not program.taken:
            if recording() is not None or program.timeline is not None:
                return _AS_EVER
            program.timeline = Timeline(calls=1)
            return program.timeline.record()
        fresh = program.fresh(self._agreed())
        if not fresh:
            return _AS_EVER
        program.missed += program.saves(self._agreed())
        if not self.schedule.open or program.missed >= self._costs.expected(SWAP):
            self._waited(executable)
            changed = executable.change_plans(fresh)
            program.tried |= set(fresh)
            program.missed = 0.0
            self.state = replace(self.state, swaps=self.state.swaps + int(changed))
        return _AS_EVER

    def _end_all(self, reports: Sequence[RankReport]) -> None:
        """On all ranks, with one warning each, but where all were told to do nothing."""
        numbers = self._ranks.ranks.ranks
        failed = [(numbers[place], r.failed) for place, r in enumerate(reports) if r.failed]
        told = "; ".join(f"rank {rank}: {why}" for rank, why in failed)
        alike = len(failed) == len(reports) and len({why for _, why in failed}) == 1
        self.end(failed[0][1] if alike else told)
        if not (alike and self.meetings == 1):
            warnings.warn(
                f"tuning between runs has ended on all ranks that train together: {told}",
                RuntimeWarning,
                stacklevel=5,
            )

    def _count(self, ended: OpenChoice | None = None) -> None:
        worth = [p for p in self.schedule.problems.values() if p.worth * PAYBACK >= 1 or p.record is not None]
        done = [p for p in worth if p.done]
        self.state = replace(
            self.state, open=len(worth) - len(done), done=len(done), won=sum(p.agreed for p in done)
        )
