"""Tuning between calls: unmeasured plans compete while functions and predictors are called.

Calls differ from training steps in four ways, which shape what happens between them.

They come on demand. A program of 0.3 ms that is called every 100 ms must not be delayed by contests of 100 ms because
that much time has passed: the budget and the size of a part follow from the program's own time, measured by
synchronizing with a call now and then (`TunedCalls.seconds`), and are never more than the time that has passed. The
two seconds before any tuning are seconds of that time. The extra time of a timed run is charged where that run ends,
not where the next begins.

Several programs are called alternately: each has its own time, so that a contest fits the call that it precedes.

Threads call concurrently. One of them tunes; the others notice and just run. Only while a part of a contest is held
do the user's calls wait, and the part waits for calls that have begun: their kernels would be queued behind those of
the contest anyway, and distort its times. Deadlocks are excluded: the turn to tune is only ever tried, and calls that
have begun are waited for with a timeout, after which the part is postponed. So a thread inside a call (an op of the
user's that calls a function) cannot wait for itself. While the device's stream is being captured nothing is done.

Calls are short. They are counted, and inspected one by one only where they take milliseconds, else one of many, of
even more where nothing may be done soon; where nothing is left to learn or to put in, the program's user calls its
executable directly, as if there had never been a tuner.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import TracebackType
from typing import Any, Protocol, cast

from lamina.graph.run.executable import Executable
from lamina.graph.run.timeline import recording
from lamina.graph.run.tuning import (
    APART,
    AS_EVER,
    BEGIN,
    FIRST,
    SHARE,
    WARM,
    Budget,
    PartKind,
    TunedProgram,
    Tuner,
)
from lamina.graph.run.two_pass import TwoPassProgram
from lamina.runtime import LibraryState
from lamina.tensors import Tensor

#: One call is inspected per this many seconds of calls, but at least one per so many calls; likewise where nothing
#: may be done soon.
_LOOK_SECONDS, _MOST_UNSEEN = 5e-3, 16
_REST_SECONDS, _MOST_RESTING = 0.1, 256
#: Calls until a call's time is measured again: doubled each time, from the fewest to the most. The minimum of the
#: latest measurements counts: others may have been disturbed.
_FEWEST_BETWEEN, _MOST_BETWEEN, _MEASURED = 16, 1024, 4
#: Seconds to wait for calls that have begun.
_PATIENCE = 0.02


class CallBudget(Budget):
    """How much tuning may be done before the next call. call: seconds that its program takes."""

    call = 0.0

    @property
    def run(self) -> float:
        """Seconds of the next call."""
        return self.call

    def called(self, count: int, seconds: float) -> None:
        """Account for this many calls, which took this long."""
        self._earn(seconds)
        self._rare = min(self._rare + count / APART, FIRST)

    def waited(self, seconds: float) -> None:
        """Nothing is earned: a call's time is measured, including the calls that were only queued."""


class UsesProgram(Protocol):
    """The user of a program. calls: its executable, or the tuner's stand-in for it."""

    calls: Any


class TunedCalls:
    """A program's calls, in place of its executable: now and then one is inspected. user: whose `calls` it is.

    seconds: what a call takes on the device and the host; 0 while that is not known.
    """

    def __init__(self, tuner: CallTuner, executable: Executable, user: UsesProgram) -> None:
        self.executable = executable
        self._tuner, self._user = tuner, weakref.ref(user)
        self._count, self._look = 0, WARM + 1  # the first calls load and capture
        self._until_measured, self._between = 0, _FEWEST_BETWEEN
        self._latest: deque[float] = deque(maxlen=_MEASURED)
        self._last = 0.0

    def __call__(self, *inputs: Any) -> tuple[Tensor, ...]:
        """Call the executable."""
        if not self.is_due():
            return self.executable(*inputs)
        with self.looked_at():
            return self.executable(*inputs)

    def is_due(self) -> bool:
        """Count a call; whether it is to be made within `looked_at`."""
        self._count += 1
        return self._count >= self._look

    def looked_at(self) -> AbstractContextManager[object]:
        """A context manager for an inspected call, which may tune before it."""
        return self._tuner.before_call(self)

    @property
    def seconds(self) -> float:
        """Seconds of a call."""
        return min(self._latest, default=0.0)

    @property
    def is_to_be_measured(self) -> bool:
        """Whether it is time to measure a call."""
        return self._until_measured <= 0

    def passed(self, now: float, *, rests: bool) -> tuple[int, float]:
        """The number of calls since the last inspection, and their time. rests: nothing may be done soon."""
        count, self._count = self._count, 0
        took = min(now - self._last, count * self.seconds)
        self._last = now
        self._until_measured -= count
        seconds, most = (_REST_SECONDS, _MOST_RESTING) if rests else (_LOOK_SECONDS, _MOST_UNSEEN)
        most = most if self.seconds else _MOST_UNSEEN  # then the next call is to be measured
        self._look = max(1, min(most, int(seconds / max(self.seconds, 1e-9))))
        return count, took

    def measured(self, seconds: float) -> None:
        """Record the time of a call that was synchronized with."""
        self._latest.append(seconds)
        self._until_measured = self._between
        self._between = min(2 * self._between, _MOST_BETWEEN)

    def changed(self) -> None:
        """Its plans have changed: earlier times no longer hold, but serve as an estimate for the next calls."""
        self._latest = deque([self.seconds], _MEASURED)
        self._until_measured, self._between = WARM, _FEWEST_BETWEEN

    def end(self) -> None:
        """Nothing is left to tune: the user calls the executable."""
        user = self._user()
        if user is not None:
            user.calls = self.executable


class CallTuner(Tuner):
    """Tunes the programs of one user, whose threads call them at the same time. Arguments as for `Tuner`."""

    budget: CallBudget

    def __init__(
        self,
        ended: str = "",
        clock: Callable[[], float] = time.perf_counter,
        threads: int | None = None,
        begin: float | None = None,
    ) -> None:
        super().__init__(ended, clock, threads, begin)
        self.budget = CallBudget(BEGIN if begin is None else begin)
        self._turn = threading.Lock()  # the turn to tune
        self._disturbed = False  # a call that a part waited for did not end in time
        self._libraries = LibraryState()  # the parts of one contest run on several threads

    def calls(self, executable: Executable | TwoPassProgram, user: UsesProgram) -> Any:
        """What the user of a program calls: the executable if none of its choices is open, else `TunedCalls`."""
        executable = cast("Executable", executable)  # two-pass programs have the attributes read here
        if self.state.ended or executable.device.planned is not None:
            return executable
        program = TunedProgram(executable)
        if not program.choices:
            return executable
        self._known[executable] = program
        return TunedCalls(self, executable, user)

    def renew(self) -> None:
        """In a forked child, which has neither the threads nor the GPU."""
        super().renew()
        self._turn = threading.Lock()

    def before_call(self, calls: TunedCalls) -> AbstractContextManager[object]:
        """At the start of an inspected call, which is made within the returned context manager. Nothing happens while
        another thread tunes or is in an inspected call."""
        if self.state.ended:
            calls.end()
            return AS_EVER
        if not self._turn.acquire(blocking=False):
            return AS_EVER
        found: AbstractContextManager[object] = AS_EVER
        try:
            found = self._within(calls)
        finally:
            if found is AS_EVER:
                self._turn.release()
        return found

    def _within(self, calls: TunedCalls) -> AbstractContextManager[object]:
        executable = calls.executable
        program = self._known[executable]
        if program.is_settled and not self.state.open:
            calls.end()
            return AS_EVER
        self._last = self._clock()
        count, took = calls.passed(self._last, rests=self._rests(program))
        self.budget.called(count, took)
        if executable.device.default_stream.capturing:
            return AS_EVER
        if calls.is_to_be_measured and recording() is None:
            executable.synchronize()
            return _NotedCall(self, calls, AS_EVER, measured=True)
        self.budget.call = calls.seconds
        program.missed += (count - 1) * program.saving
        swaps, self._disturbed = self.state.swaps, False
        within = self._worked(program, executable)
        if self.state.swaps != swaps:
            calls.changed()
        noted = within is not AS_EVER or self._beside is not None
        return _NotedCall(self, calls, within, measured=False) if noted else AS_EVER

    def _rests(self, program: TunedProgram) -> bool:
        """Whether nothing may be done soon: too little is earned, or open choices would not pay yet."""
        is_poor = self.budget.credit <= -SHARE * _REST_SECONDS
        is_under_way = self._contest is not None or bool(self._made) or bool(program.better)
        return is_poor or (program.taken and not is_under_way)

    def note(self, calls: TunedCalls, seconds: float, *, measured: bool) -> None:
        """Record the time of an inspected call (measured: it was synchronized with), and release the turn."""
        try:
            if measured:
                calls.measured(seconds)
            elif self._beside is not None:
                (kind, before), self._beside = self._beside, None
                self._spent(kind, before + max(0.0, seconds - calls.seconds))
        finally:
            self._turn.release()

    def now(self) -> float:
        """Seconds by the tuner's clock."""
        return self._clock()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Within the block no thread is in a call of any of the tuner's programs. Raises TimeoutError."""
        with ExitStack() as stack:
            for found in self._known.keyrefs():
                executable = found()
                if executable is not None:
                    stack.enter_context(executable.held(_PATIENCE))
            yield

    def _wait(self, executable: Executable) -> None:
        executable.synchronize()

    def _timed(self, program: TunedProgram, executable: Executable) -> AbstractContextManager[object]:
        """Of a two-pass program only the first pass runs within the context manager: its plans are ranked by
        their lower bounds."""
        if isinstance(executable, TwoPassProgram) and executable.kernels[1]:
            self._take(program)
            return AS_EVER
        return super()._timed(program, executable)

    def _next(self, executable: Executable) -> PartKind | None:
        return None if self._disturbed else super()._next(executable)

    def _part(self, executable: Executable) -> None:
        """One part of the contest, while no call runs and the device is idle; skipped where waiting for that takes
        long."""
        try:
            with self._alone(), executable.device.current(), self._libraries.used():
                executable.synchronize()
                super()._part(executable)
        except TimeoutError:
            self._disturbed = True

    def _swap(self, program: TunedProgram, executable: Executable) -> None:
        try:
            with self._alone():
                pass  # no thread is stuck in a call
        except TimeoutError:
            return
        super()._swap(program, executable)


class _NotedCall:
    """Context manager of a call whose time is recorded; where it is measured, it is synchronized with."""

    def __init__(
        self, tuner: CallTuner, calls: TunedCalls, within: AbstractContextManager[object], *, measured: bool
    ) -> None:
        self._tuner, self._calls, self._inner, self._measured = tuner, calls, within, measured
        self._begin = 0.0

    def __enter__(self) -> None:
        self._inner.__enter__()
        self._begin = self._tuner.now()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._inner.__exit__(kind, error, trace)
            if self._measured and kind is None:
                self._calls.executable.synchronize()
        finally:
            self._tuner.note(
                self._calls, self._tuner.now() - self._begin, measured=self._measured and kind is None
            )
