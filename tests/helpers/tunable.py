"""A backend whose plans are open: NumPy's, for which contests find others with the same results."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

import pytest

from lamina.backends import Backend, Call, OpenChoice, Plan, Run, TuningSlices
from lamina.backends.reference import backend as reference
from lamina.graph.run import context, tuning
from lamina.ops.core import Op
from lamina.runtime import Device
from lamina.spec import Policy, Spec


@dataclass
class Clock:
    """A clock that a test advances, from any of its threads."""

    now: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Advance by this many seconds."""
        with self._lock:  # an interrupted thread would set the clock back
            self.now += seconds


class Tunable(Backend):
    """Plans of the reference backend, open if the policy lets them change, except views.

    clock: advances by `part` seconds with each part of a contest, of which each has `parts`.
    expected: the seconds that each contest is expected to save.
    wins: whether another plan wins for an op; it saves a millisecond, and takes `workspace` bytes of scratch memory.
    adopts: whether a winner of another process's contest can be made here for an op.
    ran: how often first plans and winners ran. rooms: the memory given to contests. held: the ops whose
    contests finished; adopted: those whose winners came from elsewhere.
    """

    name = "reference"

    def __init__(
        self,
        clock: Clock,
        wins: Callable[[Op], bool] = lambda op: True,
        parts: int = 5,
        part: float = 0.001,
        workspace: int = 512,
        expected: float = 1e-3,
        adopts: Callable[[Op], bool] = lambda op: True,
    ) -> None:
        super().__init__(Device("cpu"))
        self.plain = reference(Device("cpu"))
        self.clock, self.wins, self.parts, self.part, self.workspace = clock, wins, parts, part, workspace
        self.expected, self.adopts = expected, adopts
        self.ran = {"first": 0, "winner": 0}
        self.rooms: list[int] = []
        self.held: list[str] = []
        self.adopted: list[str] = []

    def choose(self, op: Op, specs: Sequence[Spec], policy: Policy) -> Plan:
        plan = self.plain.choose(op, specs, policy)
        if plan.view or op.effect == "collective" or policy.deterministic or policy.algorithm != "auto":
            return plan
        counted = replace(plan, make=_Counted(plan.make, self.ran, "first"))
        winner = replace(
            plan,
            make=_Counted(plan.make, self.ran, "winner"),
            workspace=self.workspace,
            record=f"faster {op}",
        )
        choice = OpenChoice(
            lambda: self.made(op),
            lambda made, room: self.contest(op, winner, room),
            lambda seconds, least: self.expected,
            name=f"{op} {' '.join(map(str, plan.inputs))}",
            adopting=partial(self.adopting, op, winner),
        )
        return replace(counted, open=choice)

    def made(self, op: Op) -> Op:
        """The work of threads."""
        return op

    def contest(self, op: Op, winner: Plan, room: int) -> TuningSlices:
        """This many parts of this many seconds."""
        self.rooms.append(room)
        for _ in range(self.parts):
            self.clock.advance(self.part)
            yield "time"
        self.clock.advance(self.part)
        self.held.append(op.name)
        return (winner, 1e-3) if self.wins(op) else None

    def adopting(self, op: Op, winner: Plan, record: Any) -> OpenChoice:
        """The adoption of a winner here: one part."""
        assert record == winner.record

        def parts(made: Op, room: int) -> TuningSlices:
            self.clock.advance(self.part)
            yield "run"
            self.adopted.append(op.name)
            return (winner, 1e-3) if self.adopts(op) else None

        return OpenChoice(lambda: op, parts)

    def reorder(self, source: Spec, target: Spec) -> Plan:
        return self.plain.reorder(source, target)

    def supports(self, op: type[Op]) -> str:
        return self.plain.supports(op)


@dataclass(frozen=True)
class _Counted:
    """Binds a plan, and counts its runs."""

    make: Callable[[Call], Run]
    ran: dict[str, int] = field(hash=False)
    name: str = ""

    def __call__(self, call: Call) -> Run:
        run = self.make(call)

        def counted() -> None:
            self.ran[self.name] += 1
            run()

        return counted


class Inline(tuning.TuningThreads):
    """Executes tasks at once."""

    def submit(self, task: Callable[[], Any]) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(task())
        except Exception as error:
            done.set_exception(error)
        return done


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels take exactly one microsecond each, independent of the machine's load."""
    ticks = count(0, 1000)
    monkeypatch.setattr(context, "monotonic_ns", lambda: next(ticks))


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "TuningThreads", Inline)
