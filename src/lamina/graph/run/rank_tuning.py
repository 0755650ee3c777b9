"""Tuning between steps where ranks train together: each rank holds part of the contests, and all change plans before
the same run.

A contest on one rank delays all others, which wait for it in the next collective. So ranks meet before certain runs
(counting those with collectives, which all ranks begin equally often) and exchange by one host-side all-gather how
long runs took, what is open, and what was found. From this every rank computes the same schedule: before which of the
next runs parts of contests are held, for how many seconds at most, and before which run ranks meet again. Between
meetings there is no communication. Meetings are rarer the less there is to do; where nothing is left, the distance
doubles each time, and they only serve programs compiled since.

A problem is identified by its name. It is assigned to one of the ranks that have it; its winner is sent as data to
the others, which build it, run it once and check it. A winner that one of them cannot build is rejected for all.
Winners that all have are put in at a meeting: all recapture their programs, exchange whether that succeeded, and roll
back where one could not. So ranks with the same model of GPU always run the same plans, and what each computes
redundantly (updates of parameters) stays identical on all of them.
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

#: The fewest runs between two meetings, and seconds of runs, which double while there is nothing to do, up to so many
#: times.
SHORTEST, ROUND, DOUBLED = 8, 0.5, 7
#: The fewest runs until ranks meet again where nothing is left to do.
SETTLED = 64
#: Ranks meet again after at most this multiple of the runs so far: the first ones say little about a run's time.
_LONGER = 4
#: Runs of a program before it is tuned: it is captured meanwhile.
_WARM = 4
_AS_EVER: AbstractContextManager[object] = nullcontext()


class TunedRanks(Protocol):
    """The ranks that train together, such as `lamina.distributed.DataParallel`."""

    @property
    def ranks(self) -> Group:
        """The ranks."""
        ...

    @property
    def place(self) -> int:
        """This rank's position among them."""
        ...

    def gather_objects(self, value: object) -> list[Any]:
        """The value of each rank; all ranks call it. Raises RankError where another rank has ended."""
        ...


@dataclass(frozen=True)
class RankReport:
    """What a rank reports at a meeting.

    failed: why it no longer tunes, "" while it does. elapsed: seconds since the last meeting, without pauses. spent:
        seconds of parts before each appointed run. need: expected seconds of its next part. calls: runs of all
        programs since then.
    busy: whether it has something under way. ready: whether the program about to run is captured. untimed: whether
        its kernels still have to be timed. timeable: whether they can be. fresh: how many of its plans would change.
        missed: seconds that runs lost without that change; change: the seconds that it takes. pending: whether other
        programs have to be timed or changed. offers: open problems, with the worth of each. found: problems whose
        contests have ended, with the winner's record (None: the present plan stays). made: problems whose winners can
        run here, or cannot.
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

    worth: the expected gain of its contest. holders: the ranks (by position) that have it. contestant: the rank that
        holds its contest, or None. record: of the winner, once there is one. made: the ranks that can run it so far.
    done: whether nothing more will be learnt; agreed: whether all ranks have the winner, so that it may be put in.
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
    """What ranks do until they meet again: before every `every`-th run, `count` times, parts of at most `seconds`, of
    which the first `long` times parts of at most `need`, which is longer than a run."""

    every: int = 1
    count: int = 0
    seconds: float = 0.0
    long: int = 0
    need: float = 0.0

    def allowed(self, run: int) -> float | None:
        """Seconds of parts before run number `run` since the meeting (1 is the first one); None where nothing was
        appointed."""
        number, rest = divmod(run, self.every)
        if rest or not 0 < number <= self.count:
            return None
        return self.need if number <= self.long else self.seconds


class Schedule:
    """The state that all ranks compute alike from the reports: run time, credit, problems, and when they meet
    again."""

    def __init__(self, begin: float) -> None:
        self.credit = -SHARE * begin  # seconds that may be spent
        self.passed_seconds = 0.0  # of runs
        self.run, self.call = 0.0, 0.0  # seconds of a run with collectives; of any program's
        self.problems: dict[str, SharedProblem] = {}
        self.length = 1  # runs until the next meeting
        self.idle = 0  # consecutive meetings with nothing to do
        self.runs = 0  # in total, up to this meeting
        self._rare = float(FIRST)

    def take(self, reports: Sequence[RankReport]) -> None:
        """Process the reports of a meeting."""
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
            return  # another rank's winner was reported first
        shared.record, shared.done, shared.contestant = record, record is None, None

    def _deal(self, fresh: set[str], ranks: int) -> None:
        """Assign each new problem that is worth it to the holder with the fewest, the best first."""
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
        """The problems about which something is still to be learnt."""
        return [p for p in self.problems.values() if not p.done]

    @property
    def share(self) -> float:
        """The fraction of the time that may be spent."""
        return share_of(max((p.worth for p in self.open), default=None))

    def is_due(self, worth: float) -> bool:
        """Whether a contest of this worth may be held by now; see AS_LONG."""
        return worth * AS_LONG * self.passed_seconds >= 1

    def changes(self, reports: Sequence[RankReport]) -> bool:
        """Whether plans are changed now."""
        if not all(r.ready for r in reports) or not any(r.fresh for r in reports) or self.credit <= 0:
            return False
        return not self.open or max(r.missed for r in reports) >= max(r.change for r in reports)

    def times(self, reports: Sequence[RankReport]) -> bool:
        """Whether the run about to begin is timed kernel by kernel."""
        return (
            self.credit > 0
            and any(r.untimed for r in reports)
            and all(r.ready and r.timeable for r in reports)
        )

    def appoint(self, reports: Sequence[RankReport], *, soon: bool) -> Appointments:
        """The appointments until the next meeting, `length` runs from now. soon: something was done at this one."""
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
        self.length |= 1  # odd, so that alternating programs all get their meetings
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
    """A contest that is held here, or another rank's winner that is adopted here.

    held: yields its parts. adopts: whether it is another rank's winner. made: the future of what a thread builds for
        it.
    kind: of the next part.
    """

    name: str
    held: OpenChoice
    adopts: bool
    made: Future[Any]
    kind: PartKind
    parts: TuningSlices | None = None


class _RankProgram(TunedProgram):
    """The open choices of a program, by the names of problems."""

    def __init__(self, executable: Executable) -> None:
        super().__init__(executable, across_ranks=True)
        self.offered: set[OpenChoice] = set()
        self.skipped_timing = False

    def open_choices(self, run: float) -> list[tuple[float, OpenChoice]]:
        """Those not offered yet, with their worth. run: seconds of a run."""
        left = [(use, c) for c, use in self._uses.items() if c.name and c not in self.offered]
        return [(use.worth(choice, run), choice) for use, choice in left]

    def fresh(self, plans: dict[str, tuple[Plan, float]]) -> dict[Plan, Plan]:
        """The plans that would change. plans: by the names of problems."""
        left = [
            p for p in self._counts if p not in self.tried and p.open is not None and p.open.name in plans
        ]
        return {p: plans[p.open.name][0] for p in left if p.open is not None}

    def saves(self, plans: dict[str, tuple[Plan, float]]) -> float:
        """The seconds by which that shortens a run."""
        fresh = self.fresh(plans)
        return sum(self._counts[p] * plans[p.open.name][1] for p in fresh if p.open is not None)


class RankTuner(Tuner):
    """Tunes the programs of one user on all ranks that train together; see the module's docstring.

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
        self._run = 0  # runs with collectives since the last meeting
        self._calls = 0  # runs of any program since then
        self._now = Appointments()
        self._elapsed, self._spent_now = 0.0, list[float]()
        self._timing = False  # whether the run that is under way is timed
        self._costs = Budget()  # expected time of parts, by kind
        self._kinds: set[PartKind] = set()  # of parts that were done on this rank
        self._choices: dict[str, list[OpenChoice]] = {}  # of this rank, by problem
        self._jobs: list[_TuningJob] = []
        self._begun: set[str] = set()  # problems whose contest was begun here
        self._adopting: set[str] = set()
        self._plans: dict[str, tuple[Plan, float]] = {}  # winners that can run here, and what they save
        self._news: dict[str, Any] = {}  # results found here and not reported yet
        self._arrived: dict[str, bool] = {}  # likewise, whether winners of other ranks can run here
        self._settled: set[str] = set()

    # ---- before a run
    def before(self, executable: Executable) -> AbstractContextManager[object]:
        """At the start of a run: do what all ranks do before it. Errors of tuning end it on all ranks at their next
        meeting, with a warning. Raises RankError where another rank has ended."""
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
        """Stop tuning on this rank; threads end after their current task."""
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
        """Do this rank's own work: an error is reported at the next meeting, and nothing is done until then."""
        if self._failed:
            return None
        try:
            return work()
        except Exception as error:
            self._failed = f"{type(error).__name__}: {error}"
            self._stop()
            return None

    def _passed(self, *, counts: bool = True) -> None:
        """Record the time of the previous run; the extra time of a timed run is charged as spent.

        counts: False for the first runs of a program, which is captured meanwhile.
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
        """Charge seconds that all ranks spent before the same run."""
        if kind is not None:
            self._costs.spent(kind, seconds)
        self._spent_now.append(seconds)
        self._elapsed += seconds
        self.state = replace(self.state, seconds=self.state.seconds + seconds)

    def _waited(self, executable: Executable) -> None:
        """Wait until the device is idle: the time until then belongs to runs that were only queued."""
        executable.device.default_stream.synchronize()
        now = self._clock()
        assert self._last is not None
        self._elapsed += now - self._last
        self._last = now

    # parts of contests
    def _hold(self, program: _RankProgram, executable: Executable, allowed: float) -> None:
        """As many parts as fit into the allowed seconds; none where the program's policy forbids changes."""
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
        """The expected seconds of the next part, or of parts of other kinds that are no longer than a run."""
        expected = {k: MARGIN * self._costs.expected(k) for k in {*self._kinds, kind}}
        return max(s for k, s in expected.items() if k == kind or s <= self.schedule.run)

    def _next_job(self) -> _TuningJob | None:
        """The job under way, else one whose candidates are built; adoptions come first."""
        begun = [job for job in self._jobs if job.parts is not None]
        made = [job for job in self._jobs if job.made.done()]
        return next(iter([*begun, *(j for j in made if j.adopts), *made]), None)

    def _one_part(self, job: _TuningJob, executable: Executable) -> None:
        """Run one part."""
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
        """Let threads build candidates for problems assigned to this rank, a few ahead of their contests."""
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
        """Begin to build winners of other ranks."""
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
        """End a contest that another rank's result makes unnecessary."""
        if job.parts is not None:
            job.parts.close()
        return False

    # ---- meetings
    def _meet(self, program: _RankProgram, executable: Executable) -> AbstractContextManager[object]:
        """Exchange reports, and do what all do then."""
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
        """Drop what has been reported."""
        self._run = self._calls = 0
        self._elapsed, self._spent_now = 0.0, []
        for name, _ in report.found:
            self._news.pop(name, None)
        for name, _ in report.made:
            self._arrived.pop(name, None)

    def _rank_programs(self) -> None:
        """Rank the open choices of each program by the timeline of its timed run."""
        for program in self._programs.values():
            if not program.taken and (program.timeline is not None or program.skipped_timing):
                program.rank(self.schedule.call)

    def _offers(self) -> tuple[tuple[str, float], ...]:
        """The problems of this rank that no other user in this process tunes; results already known for them are
        reported as found."""
        worth: dict[str, float] = {}
        for program in self._programs.values():
            for value, choice in program.open_choices(self.schedule.call) if program.taken else ():
                if not choice.done and not choice.take(self):
                    continue  # once its result is known
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
        """Winners that all ranks have, as plans of this rank."""
        known = self.schedule.problems
        return {n: found for n, found in self._plans.items() if n in known and known[n].agreed}

    def _follow(self) -> None:
        """Apply the decisions: close what is done, begin what is assigned."""
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
        """A context manager that times the run's kernels."""
        if program.taken or not program.choices:
            return Timeline(calls=1).record()  # all ranks recapture their programs, or none does
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
        """In a program without collectives (whose gradients are only gathered) this rank changes plans by itself, to
        those that all ranks have."""
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
        """Stop on all ranks, with one warning each, unless all were told to do nothing."""
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
