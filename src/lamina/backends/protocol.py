"""Floor 3: the only place where ops and libraries meet.

A backend turns (op, input specs) into a Plan once, and the plan runs many times:

    plan = backend.plan(op, specs, policy)       choose the kernel, the layouts and the workspace
    run = plan.bind(Call(inputs, outputs, workspace, stream))     fix the addresses
    run()                                                         compute

Input specs whose layout is None are open: the plan names the layout that it wants. Others say how the
tensor lies in memory now; a plan may still ask for another layout in `plan.inputs`, and whoever executes
it puts a `backend.reorder` plan in between. The order in the executor is infer, plan, place memory, run.
"""

from __future__ import annotations

import operator
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from lamina.backends.pattern import Pattern, PatternMatch, Results
from lamina.ops.core import REGISTRY, Op
from lamina.runtime import Device
from lamina.spec import Layout, Policy, Spec

Run = Callable[[], None]


class NoKernel(NotImplementedError):
    """The backend has no kernel for the op with these specs; the message names op, specs and the reason."""


class NonDeterministicError(NoKernel):
    """The policy allows only what gives the same bits from run to run, and the backend has nothing such for the op.

    The message names the op, the kernel and the reason.
    """


class Call(NamedTuple):
    """Addresses for one plan: bytes at inputs[i] lie as plan.inputs[i] says. `stream` is a handle, 0 on hosts."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    workspace: int = 0
    stream: int = 0


class PlanTape(Protocol):
    """What takes plans down as data."""

    def keep(self, data: Any) -> int:
        """The virtual address of bytes that stay the same."""
        ...

    def store(self, data: Any) -> list[int]:
        """Where bytes that no kernel reads (machine code, a text) lie in the file, and how many they are."""
        ...

    def counters(self, count: int) -> int:
        """The virtual address of so many zeros of 32 bits, which kernels leave zero but for the top bit."""
        ...


class Meaning(NamedTuple):
    """An op's NumPy meaning as a step, on memory that lies as the specs say."""

    op: Op
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    call: Call


class Again(NamedTuple):
    """An op as a step that is planned again where it is read: the plan's kernels have no form as data."""

    op: Op
    plan: Plan
    call: Call


@dataclass(frozen=True, eq=False)
class Plan:
    """A kernel chosen for an op: specs as they must lie in memory, bytes of workspace, and how to bind it.

    Two plans are equal when they are one object, so that what is made of a plan can be kept by it.

    inputs, outputs: specs with layouts named.
    make: binds addresses and gives the function that runs. It may be called many times.
    workspace: bytes of scratch memory that `Call.workspace` must point to (256-byte aligned).
    aliases: output index -> input index; the output may lie where that input lay, if the input is dead after.
    view: output 0 *is* input 0 (a reshape), or a piece of its memory: no memory, no work.
    offset: of a view, how many bytes into input 0 output 0 begins.
    label: what runs, for `lamina plan`: "cudnn conv eng=…", "onednn jit:avx512_core", "kernel max_pool". For people:
        nothing is decided by it.
    seconds: how long a run takes, where candidates were timed.
    arithmetic: the share of the op's multiplications that the kernel makes: less than 1 by fast algorithms.
    varies: why results may have other bits from run to run ("" where they have the same): sums by atomic operations.
    packed: what may run instead where an input stays the same from run to run.
    parts: for an op that stands for several, the plans of these, where running them one after the other is what was
        chosen; () where one formulation does it all.
    objection: for an op that stands for several, why these are faster one after the other by the machine's rates; ""
        where they are not.
    record: the choice as data, where a contest has made it: another process makes it by that (`OpenChoice.adopting`).
    open: what may be learnt of it while programs run, where it was chosen without being measured.
    relaid: the same with output 0 in another layout of the same inputs, or None where a copy behind it is as fast.
    """

    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    make: Callable[[Call], Run]
    workspace: int = 0
    aliases: Mapping[int, int] = field(default_factory=dict)
    view: bool = False
    offset: int = 0
    label: str = ""
    seconds: float | None = None
    arithmetic: float = 1.0
    varies: str = ""
    parts: tuple[Plan, ...] = ()
    objection: str = ""
    packed: Packed | None = None
    record: Any = None
    open: OpenChoice | None = None
    relaid: Callable[[Layout], Plan | None] | None = None

    @property
    def latest(self) -> Plan:
        """The plan that was found to be faster in its place since, else itself."""
        won = None if self.open is None else self.open.winner
        return self if won is None else won

    def bind(self, call: Call) -> Run:
        """Fix the addresses; the returned function computes (or queues the work on the call's stream)."""
        return self.make(call)

    @property
    def launches(self) -> int:
        """How many kernels a run queues, as far as that is known."""
        return int(getattr(self.make, "launches", 1))

    def compile_ahead(self) -> None:
        """Have threads begin with what `bind` would otherwise wait for, compilers above all."""
        begin = getattr(self.make, "compile_ahead", None)
        if begin is not None:
            begin()

    def recorded(self, call: Call, tape: PlanTape) -> list[Any] | None:
        """The steps of a run as data for `lamina.replay`; None where there is no such form.

        call: of virtual addresses (`lamina.replay.addresses`). tape: takes what the steps need beside.
        """
        record = getattr(self.make, "recorded", None)
        found: list[Any] | None = None if record is None else record(call, tape)
        return found


@dataclass(frozen=True, eq=False)
class Packed:
    """A kernel that reads an input as it was prepared beforehand: once, where that stays the same from run to run.

    index: which input. pack: makes one output of it. plan: the kernel, which reads that output in its place.
    """

    index: int
    pack: Plan
    plan: Plan


#: A contest in small parts: each `next` does one, and tells the kind of the next one; parts of a kind take about as
#: long. It returns the winner, and by how many seconds a run of it is shorter; None where the plan stays.
TuningSlices = Generator[str, None, "tuple[Plan, float] | None"]


def _unknown() -> None:
    """What is known of a plan that nobody keeps measurements of."""


def _cannot_adopt(record: Any) -> None:
    """What becomes of a winner that has no form as data."""


class OpenChoice:
    """What may be learnt of a plan that was chosen without being measured: whether another one is faster.

    The winner reads and writes the same memory (specs and aliases): it can take the plan's place in a program.

    Args:
        candidates: makes what competes. It may take seconds, and is called in a thread of its own.
        contest: (what `candidates` made, the bytes of memory that it may take) -> the contest. Its parts are done
            between the runs of a program, by the thread that runs it.
        expected: (the plan's seconds, the least that the machine needs for its work) -> by how many seconds the
            winner is shorter, on average over such plans.
        known: whether the plan is what measurements name by now, of this process or another one; None where nobody
            has measured its problem.
        name: of its problem, alike in all processes where that is the same, on the same model of GPU; "" for none.
        adopting: (the record of a winner, of another process's contest) -> the contest by which that plan comes here:
            it is made, runs once, and wins where it is right, whatever its time.

    Attributes:
        winner: the plan that is faster, once it is known. saving: by how many seconds a run.
        nbytes: of what the plan reads and writes, as a program that runs it has said.
        done: whether nothing more will be learnt. settled: how many there are of which that is true.
    """

    settled = 0
    _taking = threading.Lock()

    def __init__(
        self,
        candidates: Callable[[], Any],
        contest: Callable[[Any, int], TuningSlices],
        expected: Callable[[float, float], float] = operator.sub,
        known: Callable[[], bool | None] = _unknown,
        name: str = "",
        adopting: Callable[[Any], OpenChoice | None] = _cannot_adopt,
    ) -> None:
        self.candidates, self.contest, self.expected, self.known = candidates, contest, expected, known
        self.name, self.adopting = name, adopting
        self.winner: Plan | None = None
        self.saving, self.nbytes = 0.0, 0
        self.done = False
        self._owner: weakref.ref[object] | None = None

    def take(self, owner: object) -> bool:
        """Whether it is the owner's to find out, as long as that lives: plans are shared by many programs."""
        with OpenChoice._taking:
            held = None if self._owner is None else self._owner()
            if self.done or held not in (None, owner):
                return False
            self._owner = weakref.ref(owner)
            return True

    def settle(self, found: tuple[Plan, float] | None) -> None:
        """What the contest returned."""
        if found is not None:
            self.winner, self.saving = found
        self.done = True
        with OpenChoice._taking:
            OpenChoice.settled += 1


def passing_plan(specs: Sequence[Spec], label: str) -> Plan:
    """The plan of an op whose output is its first input as it lies: a view; the other inputs are only waited for."""
    given = tuple(s.fixed for s in specs)
    return Plan(given, given[:1], _passing, view=True, label=f"view {label}")


def _passing(call: Call) -> Run:
    return _nothing


def _nothing() -> None:
    """What a view runs."""


Kernel = Callable[..., Plan]  # (op, specs, device, policy) -> Plan
K = TypeVar("K", bound=Kernel)


class Backend(ABC):
    """Plans ops for one device. `kernels` maps op classes to planning functions."""

    name: str

    def __init__(self, device: Device) -> None:
        self.device = device

    def plan(self, op: Op, specs: Sequence[Spec], policy: Policy) -> Plan:
        """The plan for op on inputs of these specs.

        Raises NoKernel; NonDeterministicError where the policy wants the same bits and the plan does not give them.
        """
        return repeatable(self.choose(op, specs, policy), op, policy, self.name)

    @abstractmethod
    def choose(self, op: Op, specs: Sequence[Spec], policy: Policy) -> Plan:
        """The kernel for op on inputs of these specs. Raises NoKernel."""

    @abstractmethod
    def reorder(self, source: Spec, target: Spec) -> Plan:
        """The plan that copies a tensor from one layout to another (same shape and dtype)."""

    @abstractmethod
    def supports(self, op: type[Op]) -> str:
        """Where the op's kernel comes from ("onednn", "numpy", "cudnn", "kernel", …), "" when there is none.

        For reports: nothing is decided by it.
        """

    def has_kernel(self, op: type[Op]) -> bool:
        """Whether the op runs as a kernel made for it, rather than as its NumPy meaning or not at all."""
        return False

    def joins(self, op: Op, specs: Sequence[Spec]) -> bool:
        """Whether the op, elementwise or a reduction, may be a step of an `FusedElementwise` that is one kernel."""
        return False

    def fusions(self) -> Sequence[Fusion]:
        """What the backend can do at once that a graph records as several ops, in the order in which it is tried."""
        return ()

    def remembered_by(self) -> dict[str, Any] | None:
        """What its plans depend on beside op, specs and policy, in plain values; None where its programs are not kept
        on disk.
        """
        return None

    def forms(self) -> Mapping[type, Callable[[Any], Any]]:
        """How what its plans hold is written down, by class: as `object.__reduce__` does it."""
        return {}

    def scouted(self, way: Callable[[Backend], object]) -> AbstractContextManager[object]:
        """Within this context plans may be prepared before they are asked for.

        way: asks a backend for those that are going to be asked for. It may be called in a thread, with a backend
            whose plans do not run; what it raises is passed over.
        """
        return nullcontext()


class Kernels:
    """A backend's table of planning functions, filled by its modules: `@kernels(Conv, source="onednn")`.

    A planning function has the signature (op, specs, device, policy) -> Plan and raises NoKernel when the
    op or the specs are outside what it covers.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self._table: dict[type[Op], tuple[Kernel, str]] = {}
        self._found: dict[type[Op], tuple[Kernel, str] | None] = {}  # what `_entry` has looked for

    def __call__(self, *ops: type[Op], source: str) -> Callable[[K], K]:
        """Register the decorated function for these op classes."""

        def register(kernel: K) -> K:
            for op in ops:
                self._table[op] = (kernel, source)
            self._found.clear()
            return kernel

        return register

    def get(self, op: type[Op]) -> Kernel | None:
        """The planning function of an op class."""
        found = self._entry(op)
        return found[0] if found else None

    def source(self, op: type[Op]) -> str:
        """Where the kernel comes from, "" when there is none."""
        found = self._entry(op)
        return found[1] if found else ""

    def _entry(self, op: type[Op]) -> tuple[Kernel, str] | None:
        """The class's own entry, or else that of an abstract class that it is one of."""
        if op not in self._found:
            bases = (b for b in op.__mro__ if b in self._table and b not in REGISTRY.values())
            self._found[op] = self._table.get(op) or next((self._table[b] for b in bases), None)
        return self._found[op]

    def plan(self, op: Op, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
        """Look the op up and plan it. Raises NoKernel with the op's name when there is no entry."""
        kernel = self.get(type(op))
        if kernel is None:
            raise NoKernel(f"{self.backend} has no kernel for {op.name} ({', '.join(map(str, specs))})")
        return repeatable(kernel(op, tuple(specs), device, policy), op, policy, self.backend)


def repeatable(plan: Plan, op: Op, policy: Policy, backend: str) -> Plan:
    """The plan, where the policy allows it. Raises NonDeterministicError."""
    reason = plan.varies or op.varies
    if policy.deterministic and reason:
        given = ", ".join(str(s.open) for s in plan.inputs)
        raise NonDeterministicError(
            f"{backend}: {op.name} ({given}) by {plan.label or 'its kernel'} may give other bits from run to run: "
            f"{reason}; use_deterministic_algorithms(False), or policy(deterministic=False), allows it"
        )
    return plan


# --------------------------------------------------------------------------------------------------------- fusions


def no_objection(match: PatternMatch) -> str:
    """What `Fusion.check` says where the pattern is enough."""
    return ""


def worthwhile(plan: Plan) -> str:
    """Why a fused op's plan does not pay: it runs the parts one after the other, or these are faster. "" where it
    pays.
    """
    if not plan.parts:
        return plan.objection
    return "the unfused form is as fast" if plan.seconds is not None else "there is no fused kernel for it"


@dataclass(frozen=True)
class Fusion:
    """A pattern of ops that a backend has one kernel for.

    name: as reports and `after` say it.
    pattern: what is looked for. make: the values that it becomes, by `PatternMatch.apply`.
    op: the class of what is made whose plan decides; None where nothing is left to decide.
    check: why a match cannot be fused, in words; "" where it can.
    profit: why the plan does not pay, in words; "" where it does.
    after: names of fusions that are tried before this one.
    stage: when it is tried: on "ops"; on "chains", when elementwise steps stand in `Fused` with the ops before them;
        or on "expressions", when those that read each other's results are one `FusedElementwise`.
    """

    name: str
    pattern: Pattern
    make: Callable[[PatternMatch], Results | None]
    op: type[Op] | None = None
    check: Callable[[PatternMatch], str] = no_objection
    profit: Callable[[Plan], str] = worthwhile
    after: tuple[str, ...] = ()
    stage: Literal["ops", "chains", "expressions"] = "ops"


class Fusions:
    """A backend's fusions, filled by its modules: `fusions.add(Fusion(…))`."""

    def __init__(self) -> None:
        self._found: dict[str, Fusion] = {}

    def add(self, fusion: Fusion) -> Fusion:
        """Register a fusion. Raises ValueError for a name that is taken."""
        if fusion.name in self._found:
            raise ValueError(f"there is a fusion {fusion.name!r} already")
        self._found[fusion.name] = fusion
        return fusion

    def ordered(self) -> tuple[Fusion, ...]:
        """All, each behind those that it names. Raises ValueError when they name each other, KeyError for no name."""
        order: dict[str, Fusion] = {}
        for name in sorted(self._found):
            order.update((fusion.name, fusion) for fusion in self._before(name, order, ()))
        return tuple(order.values())

    def _before(self, name: str, order: Mapping[str, Fusion], path: tuple[str, ...]) -> Iterator[Fusion]:
        """A fusion behind those that it names, without those that stand in the order."""
        if name in path:
            raise ValueError(f"fusions name each other: {' after '.join((*path, name))}")
        if name not in order:
            for other in self._found[name].after:
                yield from self._before(other, order, (*path, name))
            yield self._found[name]
