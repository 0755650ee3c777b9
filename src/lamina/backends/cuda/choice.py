"""Several ways to compute one op compete: formulations x engines x knobs.

A `Way` is a formulation: perhaps own kernels that bring the operands into another form, then one cuDNN graph or an
own kernel, then perhaps kernels that bring the result back. Policies:

    heuristic   the first way and engine that can be made within the workspace limit
    fallback    the same, from cuDNN's list of functional engines
    fastest     every way x engine is run on random data, checked (its result, and that nothing was written outside
                the output or beyond the workspace), timed, and the best is remembered in the plan store
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from lamina.backends import Call, NoKernel, Plan, Run
from lamina.backends.cuda import tuning
from lamina.backends.cuda.program import (
    VECTOR,
    WORKSPACE_ALIGNMENT,
    Launches,
    Place,
    Step,
    kernel_plan,
    round_up,
)
from lamina.backends.cuda.store import Choice, PlanStore
from lamina.backends.cuda.targets import target_of
from lamina.c import cudnn as c
from lamina.c.errors import CudnnError
from lamina.cudnn import (
    EngineConfig,
    ExecutionPlan,
    Graph,
    Handle,
    NumericalNote,
    Target,
    VariantPack,
    handle_of,
    key_text,
)
from lamina.runtime import Device
from lamina.spec import DType, Policy, Spec, bfloat16, float16, float32

#: Plans of one way that the runtime compiler makes take about a second each: so many of them are tried.
MOST_COMPILED = 4
#: Engines that only work, and are slow, are tried when there are fewer good ones than this.
ENOUGH = 4
#: Problems with less arithmetic than this also try own kernels where there are engines.
_QUICK = 1e8

_N = NumericalNote


# ------------------------------------------------------------------------------------------------------- ways


@dataclass(frozen=True)
class Execute:
    """One run of a cuDNN plan: uid -> address, and where in the workspace its own scratch memory begins."""

    plan: ExecutionPlan
    pointers: Mapping[int, Place]
    offset: int = 0

    def bind(self, device: Device, call: Call) -> Run:
        """Fix the addresses."""
        handle = handle_of(device)
        addresses = {uid: place.address(call) for uid, place in self.pointers.items()}
        crooked = [hex(a) for a in addresses.values() if a % VECTOR]
        if crooked:
            raise ValueError(
                f"cuDNN's plan takes addresses that are multiples of {VECTOR}, got {', '.join(crooked)}; "
                "copy the tensor to memory of its own"
            )
        workspace = call.workspace + self.offset if self.plan.workspace else 0
        return self.plan.bind(handle, VariantPack(addresses, workspace), call.stream)


#: Makes a cuDNN graph and says which address each uid has.
MakeGraph = Callable[[], tuple[Graph, Mapping[int, Place]]]


@dataclass(frozen=True)
class Way:
    """One formulation.

    graph: makes the cuDNN graph and says which address each uid has; None where own kernels do it all.
    before, after: kernels around the graph. steps: instead of a graph, the kernels.
    scratch: bytes at the start of the workspace that the kernels and the graph share.
    """

    name: str
    graph: MakeGraph | None = None
    before: tuple[Step, ...] = ()
    after: tuple[Step, ...] = ()
    steps: tuple[Step, ...] = ()
    scratch: int = 0


@dataclass(frozen=True)
class Problem:
    """One op on operands of given specs, and the ways to compute it, preferred ones first.

    flops: how much arithmetic it is. plain: own kernels that work at any address (and check the others where the
    arithmetic is little).
    """

    key: str
    label: str
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    ways: tuple[Way, ...]
    flops: float
    plain: tuple[Step, ...] = ()
    aliases: Mapping[int, int] = field(default_factory=dict)

    @property
    def dtype(self) -> DType:
        """The operands' element type."""
        return self.inputs[0].dtype


@dataclass(frozen=True)
class Candidate:
    """A way with an engine: something that can run."""

    way: Way
    plan: ExecutionPlan | None
    steps: tuple[Step, ...]
    workspace: int

    @property
    def label(self) -> str:
        """As people read it."""
        return self.way.name if self.plan is None else f"{self.way.name} {engine_name(self.plan)}"

    @property
    def choice(self) -> Choice:
        """What the store keeps."""
        if self.plan is None or self.plan.config is None:
            return Choice(self.way.name)
        return Choice(self.way.name, *self.plan.config.key)


def engine_name(plan: ExecutionPlan) -> str:
    """An execution plan's engine and knobs in short."""
    return key_text(plan.config.key) if plan.config else "plan"


def candidate(way: Way, plan: ExecutionPlan | None, pointers: Mapping[int, Place]) -> Candidate:
    """A way with one plan, cuDNN's workspace behind the way's own scratch."""
    if plan is None:
        return Candidate(way, None, way.steps, way.scratch)
    offset = round_up(way.scratch, WORKSPACE_ALIGNMENT)
    execute = Execute(plan, pointers, offset)
    steps = (*way.before, execute, *way.after)
    return Candidate(way, plan, steps, offset + plan.workspace if plan.workspace else way.scratch)


# --------------------------------------------------------------------------------------------------- choosing


def choose(problem: Problem, device: Device, policy: Policy) -> Plan:
    """The plan for a problem under a policy. Raises NoKernel with everything that was tried."""
    refusals: list[str] = []
    target = target_of(device)
    if policy.algorithm == "fastest" and isinstance(target, Handle):
        found = _fastest(problem, device, target, policy, refusals)
    else:
        modes = ("fallback",) if policy.algorithm == "fallback" else ("a", "fallback")
        found = next(candidates(problem, target, policy, modes, refusals), None)
    if found is None:
        listing = "".join(f"\n  - {reason}" for reason in refusals)
        raise NoKernel(f"cuda has no plan for {problem.key}:{listing}")
    return make_plan(problem, found, device)


def make_plan(problem: Problem, chosen: Candidate, device: Device) -> Plan:
    """The plan that runs a candidate."""
    plain = problem.plain
    return Plan(
        inputs=problem.inputs,
        outputs=problem.outputs,
        make=Launches(device, chosen.steps, (lambda: plain) if plain else None),
        workspace=chosen.workspace,
        aliases=dict(problem.aliases),
        label=f"{'kernel' if chosen.plan is None else 'cudnn'} {problem.label} {chosen.label}",
    )


def candidates(
    problem: Problem,
    target: Target,
    policy: Policy,
    modes: Sequence[str],
    refusals: list[str],
) -> Iterator[Candidate]:
    """What could run, way by way and best first within each, made as it is asked for."""
    limit = policy.workspace_limit
    for way in problem.ways:
        reasons: list[str] = []
        if limit is not None and way.scratch > limit:
            reasons.append(f"needs {way.scratch} bytes of workspace, the limit is {limit}")
        elif way.graph is None:
            yield candidate(way, None, {})
        else:
            yield from _of_graph(way, way.graph, problem.dtype, target, policy, modes, reasons)
        refusals += [f"{way.name}: {reason}" for reason in reasons]


def _of_graph(
    way: Way,
    make: MakeGraph,
    dtype: DType,
    target: Target,
    policy: Policy,
    modes: Sequence[str],
    reasons: list[str],
) -> Iterator[Candidate]:
    """The candidates of a way that is a cuDNN graph."""
    limit = policy.workspace_limit
    try:
        graph, pointers = make()
    except CudnnError as error:
        reasons.append(f"graph: {error.code}: {error.message}")
        return
    plans = graph.plans(
        target,
        modes,
        workspace_limit=None if limit is None else max(0, limit - round_up(way.scratch, WORKSPACE_ALIGNMENT)),
        accept=lambda config: unwanted(config, dtype, policy),
        refusals=reasons,
    )
    for plan in plans:
        yield candidate(way, plan, pointers)


def unwanted(config: EngineConfig, dtype: DType, policy: Policy) -> str:
    """Why the policy forbids an engine, "" when it does not."""
    notes = config.engine.numerical_notes
    if policy.deterministic and _N.CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC in notes:
        return "not deterministic"
    rounds = notes & {_N.CUDNN_NUMERICAL_NOTE_TENSOR_CORE, _N.CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS}
    if rounds and dtype == float32 and not policy.tf32:
        return "rounds float32 to TF32, which the policy does not allow (tf32=True does)"
    if _N.CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION in notes and policy.algorithm != "fallback":
        return "sums in a half type"
    return ""


# --------------------------------------------------------------------------------------------------- fastest


def _fastest(
    problem: Problem, device: Device, handle: Handle, policy: Policy, refusals: list[str]
) -> Candidate | None:
    """The remembered choice, if it still builds; else the best of all candidates, which is remembered."""
    store, key = plan_store(device), f"{problem.key} {policy}"
    remembered = store.get(key)
    if remembered is not None:
        found = rebuild(problem, remembered, handle, policy)
        if found is not None:
            return found
    entries = _entries(problem, device, handle, policy, refusals)
    contest = tuning.Contest(device, problem.inputs, problem.outputs, _tolerance(problem.dtype, policy))
    best = contest.best(entries, plain=problem.plain, flops=problem.flops, refusals=refusals)
    if best is None:
        return None
    found, milliseconds = best
    chosen = found.choice
    store.put(key, Choice(chosen.way, chosen.engine, chosen.knobs, milliseconds))
    return found


def _entries(
    problem: Problem, device: Device, handle: Handle, policy: Policy, refusals: list[str]
) -> list[Candidate]:
    """All candidates for timing: good engines of every way, functional ones where there are few of those."""
    limit = policy.workspace_limit
    if limit is None:
        limit = device.memory_info().free // 4
    bounded = Policy(policy.tf32, policy.deterministic, policy.algorithm, limit)
    found: list[Candidate] = []
    for way in problem.ways:
        if way.steps and way.steps == problem.plain and len(found) >= ENOUGH and problem.flops > _QUICK:
            continue  # own kernels are for what engines refuse: against engines they only cost time
        single = Problem(problem.key, problem.label, problem.inputs, problem.outputs, (way,), 0)
        good = _limited(candidates(single, handle, bounded, ("a", "b"), refusals))
        if len(good) < ENOUGH and way.graph is not None:
            known = {e.choice for e in good}
            more = _limited(candidates(single, handle, bounded, ("fallback",), refusals))
            good += [e for e in more if e.choice not in known]
        found += good
    return found


def _limited(found: Iterator[Candidate]) -> list[Candidate]:
    """Candidates, of which few are compiled at run time."""
    kept: list[Candidate] = []
    compiled = 0
    for one in found:
        if one.plan is not None and _is_compiled(one.plan):
            compiled += 1
        kept.append(one)
        if compiled >= MOST_COMPILED:
            break
    return kept


def _is_compiled(plan: ExecutionPlan) -> bool:
    note = c.cudnnBackendBehaviorNote_t.CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION
    return plan.config is not None and note in plan.config.engine.behavior_notes


def rebuild(problem: Problem, choice: Choice, target: Target, policy: Policy) -> Candidate | None:
    """The candidate that a choice names, or None when it does not exist any more or breaks the policy."""
    way = next((w for w in problem.ways if w.name == choice.way), None)
    if way is None:
        return None
    if way.graph is None:
        return candidate(way, None, {})
    try:
        graph, pointers = way.graph()
        plan = graph.rebuild(target, choice.key)
    except CudnnError:
        return None
    found = candidate(way, plan, pointers)
    over = policy.workspace_limit is not None and found.workspace > policy.workspace_limit
    forbidden = plan.config is None or unwanted(plan.config, problem.dtype, policy)
    return None if over or forbidden else found


@cache
def plan_store(device: Device) -> PlanStore:
    """The store for a device."""
    return PlanStore(device.name, ".".join(map(str, c.library.version)))


def _tolerance(dtype: DType, policy: Policy) -> float:
    """The largest ||result - expected|| / ||expected|| of a right candidate."""
    if dtype == bfloat16:
        return 2e-2
    if dtype == float16:
        return 4e-3
    if dtype == float32:
        return 4e-3 if policy.tf32 else 5e-5
    return 1e-11


def nothing_to_do(
    problem_inputs: Sequence[Spec], outputs: Sequence[Spec], device: Device, label: str
) -> Plan:
    """The plan for a result without elements."""
    return kernel_plan(device, problem_inputs, outputs, [], label=label)
