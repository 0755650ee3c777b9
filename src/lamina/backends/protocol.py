"""Floor 3: the only layer where ops and libraries meet.

A backend turns (op, input specs) into a Plan once, and the plan runs many times:

    plan = backend.plan(op, specs, policy)       choose the kernel, the layouts and the workspace
    run = plan.bind(Call(inputs, outputs, workspace, stream))     fix the addresses
    run()                                                         compute

Input specs whose layout is None are open: the plan chooses the layout. Others state the tensor's present layout; a
plan may still require another layout in `plan.inputs`, and the executor then inserts a `backend.reorder` plan. The
order in the executor is infer, plan, place memory, run.
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
    """The policy allows only bitwise reproducible results, and the backend has no such kernel for the op.

    The message names the op, the kernel and the reason.
    """


class Call(NamedTuple):
    """Addresses for one plan: the bytes at inputs[i] have the layout of plan.inputs[i]. `stream` is a handle, 0 on
    hosts."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    workspace: int = 0
    stream: int = 0


class PlanTape(Protocol):
    """A recorder that serializes plans."""

    def keep(self, data: Any) -> int:
        """The virtual address of constant bytes."""
        ...

    def store(self, data: Any) -> list[int]:
        """The offset in the file of bytes that no kernel reads (machine code, a text), and their number."""
        ...

    def counters(self, count: int) -> int:
        """The virtual address of `count` 32-bit zeros, which kernels leave zero except for the top bit."""
        ...


class Meaning(NamedTuple):
    """An op's NumPy reference as a step, on memory in the layouts of the specs."""

    op: Op
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    call: Call


class Again(NamedTuple):
    """An op as a step that is replanned on loading: the plan's kernels cannot be serialized."""

    op: Op
    plan: Plan
    call: Call


@dataclass(frozen=True, eq=False)
class Plan:
    """A kernel chosen for an op: operand specs with layouts, bytes of workspace, and how to bind it.

    Plans are compared by identity, so that things derived from a plan can be cached by it.

    inputs, outputs: specs with layouts named.
    make: binds addresses and gives the function that runs. It may be called many times.
    workspace: bytes of scratch memory that `Call.workspace` must point to (256-byte aligned).
    aliases: output index -> input index; the output may overwrite that input, if the input is dead afterwards.
    view: output 0 *is* input 0 (a reshape), or a part of its memory: no memory, no work.
    offset: of a view, the byte offset of output 0 within input 0.
    label: the kernel's name for `lamina plan`: "cudnn conv eng=…", "onednn jit:avx512_core", "kernel max_pool". Only
        informative.
    seconds: how long a run takes, where candidates were timed.
    arithmetic: the share of the op's multiplications that the kernel performs: less than 1 for fast algorithms.
    varies: why results are not bitwise reproducible ("" where they are): for instance atomic sums.
    packed: alternatives for an input that does not change between runs.
    parts: for an op that stands for several, the plans of these, if running them one after the other was chosen; ()
        for a fused formulation.
    objection: for an op that stands for several, why these are expected to be faster one after the other; "" where
        they are not.
    record: the choice as data, if a contest made it: another process adopts it from that (`OpenChoice.adopting`).
    open: the contest that may still be held while programs run, if the plan was chosen without measurement.
    relaid: gives the plan with output 0 in another layout, or None where a copy after it is as fast.
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
        """The plan that was since found to be faster, else itself."""
        won = None if self.open is None else self.open.winner
        return self if won is None else won

    def bind(self, call: Call) -> Run:
        """Fix the addresses; the returned function computes (or queues the work on the call's stream)."""
        return self.make(call)

    @property
    def launches(self) -> int:
        """How many kernels a run queues, as far as known."""
        return int(getattr(self.make, "launches", 1))

    def compile_ahead(self) -> None:
        """Have threads start the work that `bind` would otherwise wait for, mostly compilation."""
        begin = getattr(self.make, "compile_ahead", None)
        if begin is not None:
            begin()

    def recorded(self, call: Call, tape: PlanTape) -> list[Any] | None:
        """The steps of a run as data for `lamina.replay`; None where they cannot be serialized.

        call: of virtual addresses (`lamina.replay.addresses`). tape: stores further data of the steps.
        """
        record = getattr(self.make, "recorded", None)
        found: list[Any] | None = None if record is None else record(call, tape)
        return found


@dataclass(frozen=True, eq=False)
class Packed:
    """A kernel that reads a prepacked input: packed once, where the input does not change between runs.

    index: of the input. pack: makes the packed form. plan: the kernel, which reads that form in its place.
    """

    index: int
    pack: Plan
    plan: Plan


#: A contest in small parts: each `next` runs one, and gives the kind of the next one; parts of a kind take about as
#: long. It returns the winner, and the seconds that it saves per run; None where the plan stays.
TuningSlices = Generator[str, None, "tuple[Plan, float] | None"]


def _unknown() -> None:
    """The answer about a plan for which no measurements are kept."""


def _cannot_adopt(record: Any) -> None:
    """The adoption of a winner that cannot be serialized: none."""


class OpenChoice:
    """An open question about a plan that was chosen without measurement: whether another one is faster.

    The winner reads and writes the same memory (specs and aliases): it can take the plan's place in a program.

    Args:
        candidates: builds the candidates. It may take seconds, and is called in a separate thread.
        contest: (result of `candidates`, the bytes of memory that it may take) -> the contest. Its parts run between
            the runs of a program, in the program's thread.
        expected: (the plan's seconds, a lower bound for its work on the machine) -> the seconds that a winner saves,
            on average over such plans.
        known: whether the plan is the measured winner by now, in this process or another one; None if nobody has
            measured its problem.
        name: of its problem, the same in all processes on the same model of GPU; "" for none.
        adopting: (the record of a winner of another process's contest) -> the contest that adopts that plan: it is
            built, runs once, and wins if it is correct, whatever its time.

    Attributes:
        winner: the faster plan, once known. saving: the seconds it saves per run.
        nbytes: of the plan's operands, as set by a program that runs it.
        done: whether nothing more will be learnt. settled: the number of choices that are done.
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
        """Claim the contest for an owner, as long as that lives: plans are shared by many programs."""
        with OpenChoice._taking:
            held = None if self._owner is None else self._owner()
            if self.done or held not in (None, owner):
                return False
            self._owner = weakref.ref(owner)
            return True

    def settle(self, found: tuple[Plan, float] | None) -> None:
        """Record the result of the contest."""
        if found is not None:
            self.winner, self.saving = found
        self.done = True
        with OpenChoice._taking:
            OpenChoice.settled += 1


def passing_plan(specs: Sequence[Spec], label: str) -> Plan:
    """The plan of an op whose output is its unchanged first input: a view; the other inputs only order it."""
    given = tuple(s.fixed for s in specs)
    return Plan(given, given[:1], _passing, view=True, label=f"view {label}")


def _passing(call: Call) -> Run:
    return _nothing


def _nothing() -> None:
    """A view runs nothing."""


Kernel = Callable[..., Plan]  # (op, specs, device, policy) -> Plan
K = TypeVar("K", bound=Kernel)


class Backend(ABC):
    """Plans ops for one device. `kernels` maps op classes to planning functions.

    reads_parts: whether a kernel that takes a tensor with gaps between its lines is as fast as one for dense tensors.
    """

    name: str
    reads_parts = False

    def __init__(self, device: Device) -> None:
        self.device = device

    def plan(self, op: Op, specs: Sequence[Spec], policy: Policy) -> Plan:
        """The plan for op on inputs of these specs.

        Raises NoKernel; NonDeterministicError where the policy demands reproducible bits and the plan does not give
        them.
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
        """The source of the op's kernel ("onednn", "numpy", "cudnn", "kernel", …), "" when there is none.

        Only for reports.
        """

    def has_kernel(self, op: type[Op]) -> bool:
        """Whether the op has a kernel of its own, rather than its NumPy reference or none."""
        return False

    def joins(self, op: Op, specs: Sequence[Spec]) -> bool:
        """Whether the op, elementwise or a reduction, may be a step of a `FusedElementwise` that is one kernel."""
        return False

    def fusions(self) -> Sequence[Fusion]:
        """The backend's fusions of ops that a graph records separately, in the order in which they are tried."""
        return ()

    def remembered_by(self) -> dict[str, Any] | None:
        """What its plans depend on beside op, specs and policy, in plain values; None where its programs are not
        cached on disk."""
        return None

    def forms(self) -> Mapping[type, Callable[[Any], Any]]:
        """How objects in its plans are serialized, by class, in the form of `object.__reduce__`."""
        return {}

    def scouted(self, way: Callable[[Backend], object]) -> AbstractContextManager[object]:
        """Within this context plans may be prepared before they are requested.

        way: requests from a backend the plans that are going to be requested. It may be called in a thread, with a
            backend whose plans do not run; its exceptions are ignored.
        """
        return nullcontext()


class Kernels:
    """A backend's table of planning functions, filled by its modules: `@kernels(Conv, source="onednn")`.

    A planning function has the signature (op, specs, device, policy) -> Plan and raises NoKernel for ops or specs
    that it does not support.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self._table: dict[type[Op], tuple[Kernel, str]] = {}
        self._found: dict[type[Op], tuple[Kernel, str] | None] = {}  # cache of `_entry`

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
        """The source of the kernel, "" when there is none."""
        found = self._entry(op)
        return found[1] if found else ""

    def _entry(self, op: type[Op]) -> tuple[Kernel, str] | None:
        """The class's own entry, or else that of an abstract base class."""
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
    """The plan, if the policy allows it. Raises NonDeterministicError."""
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
    """The value of `Fusion.check` where the pattern suffices."""
    return ""


def worthwhile(plan: Plan) -> str:
    """Why a fused op's plan does not pay: it runs the parts one after the other, or these are expected to be faster.
    "" where it pays."""
    if not plan.parts:
        return plan.objection
    return "the unfused form is as fast" if plan.seconds is not None else "there is no fused kernel for it"


@dataclass(frozen=True)
class Fusion:
    """A pattern of ops for which a backend has a single kernel.

    name: for reports and `after`.
    pattern: of the ops. make: the replacement of its values, by `PatternMatch.apply`.
    op: the class of the fused op whose plan decides; None if there is nothing to decide.
    check: why a match cannot be fused, in words; "" where it can.
    profit: why the plan does not pay, in words; "" where it does.
    after: names of fusions that are tried before this one.
    stage: when it is tried: on "ops"; on "chains", when elementwise steps are joined in `Fused` with the ops before
        them; or on "expressions", when those that read each other's results are one `FusedElementwise`.
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
        """All fusions, each after those in its `after`. Raises ValueError for a cycle, KeyError for an unknown
        name."""
        order: dict[str, Fusion] = {}
        for name in sorted(self._found):
            order.update((fusion.name, fusion) for fusion in self._before(name, order, ()))
        return tuple(order.values())

    def _before(self, name: str, order: Mapping[str, Fusion], path: tuple[str, ...]) -> Iterator[Fusion]:
        """A fusion after those in its `after`, without those already in the order."""
        if name in path:
            raise ValueError(f"fusions name each other: {' after '.join((*path, name))}")
        if name not in order:
            for other in self._found[name].after:
                yield from self._before(other, order, (*path, name))
            yield self._found[name]
