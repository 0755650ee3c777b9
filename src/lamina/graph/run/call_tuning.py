"""Tuning between calls: plans that nobody measured compete while functions and predictors are called.

Calls differ from training steps in four ways, and so does what is done between them.

They come when somebody asks. A program of 0.3 ms that is asked every 100 ms must not find contests of 100 ms in its
way because that much time has passed: what earns, and what bounds a part, is what the program itself takes, by a call
that is waited for now and then (`TunedCalls.seconds`), and no more than has passed. Two seconds before anything is
tuned are two seconds of that. What a timed run takes longer is noted where that run ends, not where the next begins.

Several programs are called in turns: each has seconds of its own, so that a contest fits the call that it precedes.

Threads call at the same time. One of them tunes, the others find it at that and run. Only while a part of a contest
is held the user's calls wait, and it for those that have begun: their kernels would be queued behind those of the
contest anyway, and make its times wrong. Nobody waits for the one that tunes while holding what that waits for: the
turn to tune is only ever tried, and what has begun is waited for so long and no longer, then the part is held later.
So a thread that is in a call (an op of the user's that calls a function) cannot wait for itself. Where the device's
stream is being recorded nothing is done.

Calls are short. They are counted, and looked at one by one only where they take milliseconds, one of many where
nothing may be done soon; where nothing is left to learn or to put in, the program's user calls its executable as if
there had never been a tuner.
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

#: Of calls that take so many seconds together one is looked at, but one of so many at least; and where nothing may be
#: done soon.
_LOOK_SECONDS, _MOST_UNSEEN = 5e-3, 16
_REST_SECONDS, _MOST_RESTING = 0.1, 256
#: Calls until a call's time is measured again: twice as many as before, from the fewest to the most. The least of the
#: latest measurements counts: others may have been disturbed.
_FEWEST_BETWEEN, _MOST_BETWEEN, _MEASURED = 16, 1024, 4
#: Seconds that calls are waited for which have begun.
_PATIENCE = 0.02


class CallBudget(Budget):
    """How much may be done before the next call. call: seconds that its program takes."""

    call = 0.0

    @property
    def run(self) -> float:
        """Seconds of the call that is next."""
        return self.call

    def called(self, count: int, seconds: float) -> None:
        """So many calls took so long."""
        self._earn(seconds)
        self._rare = min(self._rare + count / APART, FIRST)

    def waited(self, seconds: float) -> None:
        """Nothing is earned: what calls take is measured, those that were only queued too."""


class UsesProgram(Protocol):
    """Who calls a program. calls: its executable, or what tunes it beside."""

    calls: Any


class TunedCalls:
    """A program's calls, in place of its executable: now and then one is looked at. user: whose `calls` it is.

    seconds: what a call takes on the device and the host; 0 where that is not known yet.
    """

    def __init__(self, tuner: CallTuner, executable: Executable, user: UsesProgram) -> None:
        self.executable = executable
        self._tuner, self._user = tuner, weakref.ref(user)
        self._count, self._look = 0, WARM + 1  # the first ones load and record
        self._until_measured, self._between = 0, _FEWEST_BETWEEN
        self._latest: deque[float] = deque(maxlen=_MEASURED)
        self._last = 0.0

    def __call__(self, *inputs: Any) -> tuple[Tensor, ...]:
        """As the executable."""
        if not self.is_due():
            return self.executable(*inputs)
        with self.looked_at():
            return self.executable(*inputs)

    def is_due(self) -> bool:
        """Count a call; whether it is to be made within `looked_at`."""
        self._count += 1
        return self._count >= self._look

    def looked_at(self) -> AbstractContextManager[object]:
        """What a call is made within before which tuning may go on."""
        return self._tuner.before_call(self)

    @property
    def seconds(self) -> float:
        """What a call takes."""
        return min(self._latest, default=0.0)

    @property
    def is_to_be_measured(self) -> bool:
        """Whether it is time to measure a call."""
        return self._until_measured <= 0

    def passed(self, now: float, *, rests: bool) -> tuple[int, float]:
        """How many calls were made since the last look, and what they took. rests: nothing may be done soon."""
        count, self._count = self._count, 0
        took = min(now - self._last, count * self.seconds)
        self._last = now
        self._until_measured -= count
        seconds, most = (_REST_SECONDS, _MOST_RESTING) if rests else (_LOOK_SECONDS, _MOST_UNSEEN)
        most = most if self.seconds else _MOST_UNSEEN  # which is to be measured
        self._look = max(1, min(most, int(seconds / max(self.seconds, 1e-9))))
        return count, took

    def measured(self, seconds: float) -> None:
        """So long took a call that was waited for."""
        self._latest.append(seconds)
        self._until_measured = self._between
        self._between = min(2 * self._between, _MOST_BETWEEN)

    def changed(self) -> None:
        """Its plans are others: what calls took says nothing any more, but the next ones take about as much."""
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
        self._turn = threading.Lock()  # whose turn it is to tune
        self._disturbed = False  # a call did not end that a part waited for
        self._libraries = LibraryState()  # parts of a contest are done by several threads

    def calls(self, executable: Executable | TwoPassProgram, user: UsesProgram) -> Any:
        """What the user of a program calls: the executable, where nothing of it is open, else `TunedCalls`."""
        executable = cast("Executable", executable)  # two passes have what is read here
        if self.state.ended or executable.device.planned is not None:
            return executable
        program = TunedProgram(executable)
        if not program.choices:
            return executable
        self._known[executable] = program
        return TunedCalls(self, executable, user)

    def renew(self) -> None:
        """In a forked child, where no thread is, nor a GPU."""
        super().renew()
        self._turn = threading.Lock()

    def before_call(self, calls: TunedCalls) -> AbstractContextManager[object]:
        """Where a call begins that is looked at; it is made within what is returned. Where another thread is at
        this, or in a call, nothing happens."""
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
        """Whether nothing may be done soon: too little is earned, or what is open would not pay yet."""
        is_poor = self.budget.credit <= -SHARE * _REST_SECONDS
        is_under_way = self._contest is not None or bool(self._made) or bool(program.better)
        return is_poor or (program.taken and not is_under_way)

    def note(self, calls: TunedCalls, seconds: float, *, measured: bool) -> None:
        """So long took a call that was looked at (measured: and waited for); the turn is another's."""
        try:
            if measured:
                calls.measured(seconds)
            elif self._beside is not None:
                (kind, before), self._beside = self._beside, None
                self._spent(kind, before + max(0.0, seconds - calls.seconds))
        finally:
            self._turn.release()

    def now(self) -> float:
        """Seconds by its clock."""
        return self._clock()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Within the block no thread is in a call of any of its programs. Raises TimeoutError."""
        with ExitStack() as stack:
            for found in self._known.keyrefs():
                executable = found()
                if executable is not None:
                    stack.enter_context(executable.held(_PATIENCE))
            yield

    def _wait(self, executable: Executable) -> None:
        executable.synchronize()

    def _timed(self, program: TunedProgram, executable: Executable) -> AbstractContextManager[object]:
        """Of two passes the first alone is run within what is returned: their plans are ranked by least times."""
        if isinstance(executable, TwoPassProgram) and executable.kernels[1]:
            self._take(program)
            return AS_EVER
        return super()._timed(program, executable)

    def _next(self, executable: Executable) -> PartKind | None:
        return None if self._disturbed else super()._next(executable)

    def _part(self, executable: Executable) -> None:
        """One part of the contest, where nobody is in a call and the device is idle; none where that takes long."""
        try:
            with self._alone(), executable.device.current(), self._libraries.used():
                executable.synchronize()
                super()._part(executable)
        except TimeoutError:
            self._disturbed = True

    def _swap(self, program: TunedProgram, executable: Executable) -> None:
        try:
            with self._alone():
                pass  # no thread is in a call that will not end
        except TimeoutError:
            return
        super()._swap(program, executable)


class _NotedCall:
    """What a call is made within whose time is noted; where it is measured, it is waited for."""

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
