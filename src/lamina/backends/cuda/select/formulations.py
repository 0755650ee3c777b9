"""Several formulations of one op compete: candidates are formulations x engines x knobs.

A `Formulation` is perhaps own kernels that bring the operands into another form, then one cuDNN graph or an own
kernel, then perhaps kernels that bring the result back. Policies:

    heuristic   the first formulation and engine that can be made within the workspace limit
    auto        what is known to be fastest for the problem, or for the nearest one that is known (`known`), as far as
                it can be made within the policy; else as heuristic. What was not measured for this very problem
                is `open`: a few candidates compete between the runs of programs
    fallback    the same, from cuDNN's list of functional engines
    fastest     every candidate is run on random data, checked (its result, and that nothing was written outside
                the output or beyond the workspace), timed, and the best is remembered in the plan store; it is the
                heuristic's own unless another one is clearly faster. Of a problem of the package's database, for
                which all have competed on this model of GPU, these are that choice and the first ones of each
                formulation. Meanwhile a scout has the candidates of the next problems made
    by name     "plain eng58{25:0}", "plain eng58", "direct", "halved": that formulation and engine and no other

With `Policy.once` the first choice for an op serves all sizes that the same filter meets, where it can.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, zip_longest
from typing import Any

from lamina.backends import (
    Call,
    NoKernel,
    NonDeterministicError,
    OpenChoice,
    Plan,
    PlanTape,
    Run,
    TuningSlices,
)
from lamina.backends.cuda.launch.program import (
    VECTOR,
    WORKSPACE_ALIGNMENT,
    Bindable,
    Launch,
    Launches,
    Place,
    Program,
    Together,
    kernel_plan,
    round_up,
)
from lamina.backends.cuda.select import autotune
from lamina.backends.cuda.select.expected import expected_saving
from lamina.backends.cuda.select.known import ProblemPlace, contested, is_measured, known_choices, outclassed
from lamina.backends.cuda.select.target import target_of
from lamina.c.errors import CudnnError
from lamina.cudnn import (
    Choice,
    EngineConfig,
    ExecutionPlan,
    Graph,
    Handle,
    NumericalNote,
    Target,
    VariantPack,
    drawn_store,
    handle_of,
    key_text,
    known_wrong,
    plan_store,
    scouted_target,
)
from lamina.cudnn import autotune as tune
from lamina.cudnn.contest import checks_of
from lamina.runtime import CompileError, Device, DeviceError, digest
from lamina.runtime.shared_lock import swift_turns
from lamina.spec import DType, Policy, Spec, bfloat16, float16

#: Engines that are only functional are tried if there are fewer good ones than this.
ENOUGH = 4
#: Problems with less arithmetic also try own kernels if there are engines.
_QUICK = 1e8
#: Problems with more arithmetic are worth engines and knob values that no heuristic names; so many of them, and so
#: many rounds of continuing from the best.
_LARGE, _MOST_VARIANTS, _ROUNDS = 1e12, 40, 2
#: Problems with more arithmetic are checked against the first candidate, others against own kernels.
_SLOW = 2e10
#: Between runs, the number of the preferred formulation's engines that compete, and of candidates in all.
_FEW, _MOST_FEW = 6, 12

_first_choices: dict[tuple[Device, str, Policy], Choice] = {}
#: Called with the outcome of every contest.
_watchers: list[Callable[[ContestOutcome], None]] = []


# ------------------------------------------------------------------------------------------------------- formulations


@dataclass(frozen=True)
class Execute:
    """One run of a cuDNN plan: uid -> address, and the offset of its own scratch memory in the workspace."""

    plan: ExecutionPlan
    pointers: Mapping[int, Place]
    offset: int = 0

    def bind(self, device: Device, call: Call) -> Run:
        """Fix the addresses."""
        handle = handle_of(device)
        addresses = {uid: place.address(call) for uid, place in self.pointers.items()}
        misaligned = [hex(a) for a in addresses.values() if a % VECTOR]
        if misaligned:
            raise ValueError(
                f"cuDNN's plan takes addresses that are multiples of {VECTOR}, got {', '.join(misaligned)}; "
                "copy the tensor to memory of its own"
            )
        workspace = call.workspace + self.offset if self.plan.workspace else 0
        return self.plan.bind(handle, VariantPack(addresses, workspace), call.stream)

    def recorded(self, device: Device, call: Call, tape: PlanTape) -> list[Any] | None:
        """As data, if the engine can be serialized; numbers on the host as their bytes."""
        try:
            text = self.plan.json
        except CudnnError:
            return None
        operands: list[Any] = []
        for uid, place in self.pointers.items():
            values = getattr(place, "values", None)
            operands.append([uid, place.address(call)] if values is None else [uid, values.tobytes().hex()])
        workspace = call.workspace + self.offset if self.plan.workspace else 0
        return [["cudnn", tape.store(text.encode()), operands, workspace, self.plan.workspace]]


#: Makes a cuDNN graph, and the address of each uid.
MakeGraph = Callable[[], tuple[Graph, Mapping[int, Place]]]


@dataclass(frozen=True)
class Formulation:
    """One formulation.

    graph: makes the cuDNN graph and the address of each uid; None if own kernels do everything.
    before, after: kernels around the graph. steps: instead of a graph, the kernels.
    scratch: bytes at the start of the workspace that the kernels and the graph share.
    spare: timed only if the other formulations have few candidates.
    parts: for an op that stands for several, the plans of these, if this formulation runs them one after the other.
    """

    name: str
    graph: MakeGraph | None = None
    before: tuple[Bindable, ...] = ()
    after: tuple[Bindable, ...] = ()
    steps: tuple[Bindable, ...] = ()
    scratch: int = 0
    spare: bool = False
    parts: tuple[Plan, ...] = ()


@dataclass(frozen=True)
class Problem:
    """One op on operands of given specs, and the formulations to compute it, preferred ones first.

    flops: its arithmetic. plain: own kernels that work at any address (and serve as reference for others if there is
        little arithmetic). family: the key without the sizes that `Policy.once` ignores; "" if each size is a problem
        of its own. kind: the op with its attributes except sizes, which neighbouring problems share; "" if there are
        none. apart: makes the formulation that runs an op's parts one after the other, if the plans of these are only
        worth making for a contest.
    """

    key: str
    label: str
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    formulations: tuple[Formulation, ...]
    flops: float
    plain: tuple[Bindable, ...] = ()
    aliases: Mapping[int, int] = field(default_factory=dict)
    family: str = ""
    kind: str = ""
    apart: Callable[[], Formulation] | None = None

    @property
    def place(self) -> ProblemPlace:
        """Its place among other problems."""
        return ProblemPlace.of(self.kind, self.inputs, self.outputs)

    @property
    def dtype(self) -> DType:
        """The operands' element type."""
        return self.inputs[0].dtype

    @property
    def op(self) -> str:
        """The op's name, without attributes and epilogue."""
        return re.split(r"\W", self.kind, maxsplit=1)[0]


@dataclass(frozen=True)
class Candidate:
    """A formulation with an engine; seconds: as timed."""

    formulation: Formulation
    plan: ExecutionPlan | None
    steps: tuple[Bindable, ...]
    workspace: int
    seconds: float | None = None

    @property
    def label(self) -> str:
        """Its readable name."""
        return (
            self.formulation.name
            if self.plan is None
            else f"{self.formulation.name} {engine_name(self.plan)}"
        )

    @property
    def choice(self) -> Choice:
        """The entry for the plan store."""
        if self.plan is None or self.plan.config is None:
            return Choice(self.formulation.name)
        return Choice(self.formulation.name, *self.plan.config.key)


@dataclass(frozen=True)
class ContestOutcome:
    """What a contest found.

    key: the winner's in the plan store. first: the previous choice, the heuristic's. times: each correct candidate
        with its milliseconds. refusals: why others were rejected.
    """

    problem: Problem
    policy: Policy
    key: str
    first: Choice
    best: Choice
    times: tuple[tuple[Choice, float], ...]
    refusals: tuple[str, ...]


@contextmanager
def watched(told: Callable[[ContestOutcome], None]) -> Iterator[None]:
    """Within this context `told` is called with the outcome of each contest, in the thread that held it."""
    _watchers.append(told)
    try:
        yield
    finally:
        _watchers.remove(told)


def engine_name(plan: ExecutionPlan) -> str:
    """An execution plan's engine and knobs in short."""
    return key_text(plan.config.key) if plan.config else "plan"


def candidate(
    formulation: Formulation, plan: ExecutionPlan | None, pointers: Mapping[int, Place]
) -> Candidate:
    """A formulation with one plan, cuDNN's workspace behind the formulation's own scratch."""
    if plan is None:
        return Candidate(formulation, None, formulation.steps, formulation.scratch)
    offset = round_up(formulation.scratch, WORKSPACE_ALIGNMENT)
    execute = Execute(plan, pointers, offset)
    steps = (*formulation.before, execute, *formulation.after)
    return Candidate(
        formulation, plan, steps, offset + plan.workspace if plan.workspace else formulation.scratch
    )


# --------------------------------------------------------------------------------------------------- choosing


def choose(problem: Problem, device: Device, policy: Policy) -> Plan:
    """The plan for a problem under a policy. Raises NoKernel with everything that was tried."""
    refusals: list[str] = []
    target = target_of(device)
    found = _first_choice(problem, device, target, policy)
    if found is None:
        found = _choose(problem, device, target, policy, refusals)
    if found is None:
        listing = "".join(f"\n  - {reason}" for reason in refusals)
        varying = policy.deterministic and any("not deterministic" in reason for reason in refusals)
        kind = NonDeterministicError if varying else NoKernel
        raise kind(f"cuda has no plan for {problem.key}:{listing}")
    if policy.once:
        _first_choices.setdefault((device, problem.family, policy), found.choice)
    return replace(make_plan(problem, found, device), open=_open(problem, found, device, policy))


def _choose(
    problem: Problem, device: Device, target: Target, policy: Policy, refusals: list[str]
) -> Candidate | None:
    """The candidate for a problem under a policy."""
    if policy.named and problem.family:
        return _named(problem, target, policy, refusals)
    if policy.algorithm == "fastest" and isinstance(target, Handle):
        return _fastest(problem, device, target, policy, refusals)
    if policy.algorithm == "fastest" and scouted_target() is not None:
        return _ahead_of_contest(problem, device, target, policy)
    if policy.algorithm == "auto" and (found := _known(problem, device, target, policy)) is not None:
        return found
    found = _drawn_first(problem, device, target, policy, refusals)
    if found is None or policy.algorithm == "fallback" or not _takes_any_steps(found, problem):
        return found
    limit = policy.workspace_limit
    apart = (one for one in _apart(problem) if limit is None or one.scratch <= limit)
    return next((candidate(one, None, {}) for one in apart), found)


def _takes_any_steps(one: Candidate, problem: Problem) -> bool:
    """Whether it is cuDNN's generic engine for epilogues of convolutions, which uses no tensor cores, although these
    support the convolution.

    Separate steps take between a half and a fortieth of its time: a convolution followed by a clipped relu, or a 1-D
    grouped one with a bias (bfloat16, one image, cuDNN 9.19, compute capability 9.0).
    """
    half = problem.op.startswith("conv") and problem.dtype in (float16, bfloat16)
    return half and one.plan is not None and one.plan.config is not None and one.plan.config.key[0] == 0


def _drawn_first(
    problem: Problem, device: Device, target: Target, policy: Policy, refusals: list[str]
) -> Candidate | None:
    """The first candidate that can be built: the earlier answer of cuDNN's heuristics for the same problem, in any
    process, else their present one (which takes milliseconds, also for each formulation that they refuse).
    """
    modes = ("fallback",) if policy.algorithm == "fallback" else ("a", "fallback")
    asks = problem.formulations and problem.formulations[0].graph is not None
    if not asks or not _is_there(device):
        return next(candidates(problem, target, policy, modes, refusals), None)
    store, key = drawn_store(device), f"{policy.algorithm} {_store_key(problem, policy)}"
    remembered = store.get(key)
    found = None if remembered is None else rebuild(problem, remembered, target, policy)
    if found is not None:
        return found
    found = next(candidates(problem, target, policy, modes, refusals), None)
    if found is not None and scouted_target() is None:  # a scout assumes every plan to be possible
        store.put(key, found.choice)
    return found


def _is_there(device: Device) -> bool:
    """Whether it is a GPU of this machine, for which a scout may be planning."""
    return device.planned is None or scouted_target() is not None


def _store_key(problem: Problem, policy: Policy) -> str:
    """The key of a problem under a policy, for the stores. It includes the formulations: a new one invalidates old
    answers."""
    allowed = f"deterministic={policy.deterministic}, workspace_limit={policy.workspace_limit}"
    formulations = ",".join(formulation.name for formulation in problem.formulations)
    return f"{problem.key} tf32={policy.tf32}, {allowed}, ways={formulations}"


def _first_choice(problem: Problem, device: Device, target: Target, policy: Policy) -> Candidate | None:
    """The choice for the first sizes of the same family, if it supports these ones, too."""
    if not policy.once or not problem.family:
        return None
    choice = _first_choices.get((device, problem.family, policy))
    return None if choice is None else rebuild(problem, choice, target, policy)


def _named(problem: Problem, target: Target, policy: Policy, refusals: list[str]) -> Candidate | None:
    """The candidate that the policy names: a formulation, an engine, and perhaps its knobs."""
    formulation, _, engine = policy.algorithm.partition(" ")
    single = replace(problem, formulations=tuple(w for w in problem.formulations if w.name == formulation))
    if not single.formulations:
        refusals.append(
            f"{policy.algorithm!r}: the formulations are {', '.join(w.name for w in problem.formulations)}"
        )

    def other(config: EngineConfig) -> str:
        name = key_text(config.key)
        return "" if name == engine or name.startswith(engine + "{") else f"not {policy.algorithm!r}"

    return next(candidates(single, target, policy, ("a", "b", "fallback"), refusals, other), None)


def _known(problem: Problem, device: Device, target: Target, policy: Policy) -> Candidate | None:
    """The first known choice, for the problem or for a neighbouring one, that can be built for it."""
    for choice in known_choices(problem.place, device):
        found = rebuild(problem, choice, target, policy)
        if found is not None:
            return found
    return None


def expects(problem: Problem, name: str, device: Device, policy: Policy) -> bool:
    """Whether a formulation that takes time to build is worth it: all compete, or it is the known choice."""
    if policy.algorithm == "fastest":
        return True
    return policy.algorithm == "auto" and any(
        choice.formulation == name for choice in islice(known_choices(problem.place, device), 1)
    )


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
        seconds=chosen.seconds,
        varies=_varies(chosen),
        parts=chosen.formulation.parts,
    )


def _varies(chosen: Candidate) -> str:
    """Why a candidate's results may not be bitwise reproducible."""
    config = None if chosen.plan is None else chosen.plan.config
    random = NumericalNote.CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC
    return (
        f"cuDNN's note on its engine {chosen.label}"
        if config and random in config.engine.numerical_notes
        else ""
    )


def candidates(
    problem: Problem,
    target: Target,
    policy: Policy,
    modes: Sequence[str],
    refusals: list[str],
    accept: tune.Accept | None = None,
) -> Iterator[Candidate]:
    """The candidates, formulation by formulation and best first within each, built lazily.

    accept: gives the reason why an engine is unwanted, in addition to the policy.
    """
    limit = policy.workspace_limit
    for formulation in problem.formulations:
        reasons: list[str] = []
        if limit is not None and formulation.scratch > limit:
            reasons.append(f"needs {formulation.scratch} bytes of workspace, the limit is {limit}")
        elif formulation.graph is None:
            yield candidate(formulation, None, {})
        else:
            wanted = _wanted(problem.dtype, policy, accept)
            yield from _of_graph(formulation, formulation.graph, target, limit, modes, wanted, reasons)
        refusals += [f"{formulation.name}: {reason}" for reason in reasons]


def _wanted(dtype: DType, policy: Policy, accept: tune.Accept | None) -> tune.Accept:
    """The conditions of the policy and `accept` combined."""
    return lambda config: unwanted(config, dtype, policy) or (accept(config) if accept else "")


def _of_graph(
    formulation: Formulation,
    make: MakeGraph,
    target: Target,
    limit: int | None,
    modes: Sequence[str],
    wanted: tune.Accept,
    reasons: list[str],
) -> Iterator[Candidate]:
    """The candidates of a formulation that is a cuDNN graph, none where no graph can be made."""
    try:
        graph, pointers = make()
    except CudnnError as error:
        reasons.append(f"graph: {error.code}: {error.message}")
        return
    except NoKernel as error:  # such as steps that own kernels compute, and for which cuDNN has no nodes
        reasons.append(f"graph: {error}")
        return
    left = None if limit is None else _left(formulation, limit)
    for plan in graph.plans(target, modes, workspace_limit=left, accept=wanted, refusals=reasons):
        yield candidate(formulation, plan, pointers)


def _left(formulation: Formulation, limit: int) -> int:
    """The part of a limit that a formulation's own scratch memory leaves for cuDNN's."""
    return max(0, limit - round_up(formulation.scratch, WORKSPACE_ALIGNMENT))


def unwanted(config: EngineConfig, dtype: DType, policy: Policy) -> str:
    """Why the policy forbids an engine, "" when it does not."""
    return tune.unwanted(
        config,
        dtype.name,
        deterministic=policy.deterministic,
        tf32=policy.tf32,
        half_sums=policy.algorithm == "fallback",
    )


# --------------------------------------------------------------------------------------------------- fastest


def _fastest(
    problem: Problem, device: Device, handle: Handle, policy: Policy, refusals: list[str]
) -> Candidate | None:
    """The remembered choice, if it still builds; else the best of all candidates, which is remembered.

    The formulations are part of the key: after a new one is added, the contest is held again.
    """
    store, key = plan_store(device), _store_key(problem, policy)
    remembered = store.get(key)
    if remembered is not None:
        found = rebuild(problem, remembered, handle, policy)
        if found is not None:
            return replace(found, seconds=_seconds(remembered.milliseconds))
    with _loading(problem, device):
        limit = tune.budget(handle.device, policy.workspace_limit)
        entries = _entries(problem, device, handle, policy, limit, refusals)
    times: list[tuple[Candidate, float]] = []
    best = _contest(problem, device, entries, policy, refusals, times)
    if best is None:
        return None
    thorough = problem.flops >= _LARGE and contested(problem.place, device) is None
    for _ in range(_ROUNDS if thorough else 0):
        more = _neighbours(problem, best[0], handle, policy, refusals)
        better = _contest(problem, device, [best[0], *more], policy, refusals, times) if more else None
        if better is None or better[0] is best[0]:
            break
        best = better
    found, milliseconds = best
    heuristic = next((taken for one, taken in times if one is entries[0]), 0.0)
    choice = replace(found.choice, milliseconds=milliseconds, heuristic=heuristic)
    place = problem.place
    store.put(key, choice, place.nature, place.sizes)
    timed = tuple((one.choice, taken) for one, taken in times)
    for told in _watchers:
        told(ContestOutcome(problem, policy, key, entries[0].choice, choice, timed, tuple(refusals)))
    return replace(found, seconds=_seconds(milliseconds))


def _ahead_of_contest(problem: Problem, device: Device, target: Target, policy: Policy) -> Candidate | None:
    """In a scout's thread: have all candidates of a contest built while earlier ones are held; returns the first. If
    a winner is remembered, only that is built."""
    place = problem.place
    remembered = plan_store(device).placed(place.nature).get(place.sizes) if place.nature else None
    found = None if remembered is None else rebuild(problem, remembered, target, policy)
    if found is not None:
        return found
    for program in _programs(problem):
        program.compile_ahead(device.machine.target)
    limit = tune.MOST_WORKSPACE if policy.workspace_limit is None else policy.workspace_limit
    entries = _entries(problem, device, target, policy, limit, [])
    return entries[0] if entries else None


def _seconds(milliseconds: float) -> float | None:
    """None if there is no measurement."""
    return milliseconds / 1e3 if milliseconds else None


@contextmanager
def _loading(problem: Problem, device: Device) -> Iterator[None]:
    """Within this context threads compile and load the own kernels that the contest will run; errors are raised
    there."""

    def load(program: Program) -> None:
        device.make_current()
        program.load(device)

    programs = _programs(problem)
    with ThreadPoolExecutor(tune.threads(len(programs))) as pool:
        for program in programs:
            pool.submit(load, program)
        yield


def _programs(problem: Problem) -> set[Program]:
    """The programs of formulations that are timed in any case, and of the reference."""
    timed = [
        formulation
        for formulation in problem.formulations
        if not formulation.spare and formulation.steps != problem.plain
    ]
    steps = [
        step
        for formulation in timed
        for step in (*formulation.before, *formulation.steps, *formulation.after)
    ]
    steps += problem.plain if problem.flops < _SLOW else ()
    return {step.program for step in steps if isinstance(step, Launch | Together)}


def _contest(
    problem: Problem,
    device: Device,
    entries: Sequence[Candidate],
    policy: Policy,
    refusals: list[str],
    times: list[tuple[Candidate, float]],
) -> tuple[Candidate, float] | None:
    """The fastest correct candidate and its milliseconds; every correct one is appended to `times`."""
    with swift_turns():  # plans of the next problems are being built
        return autotune.best(
            entries,
            device,
            problem.inputs,
            problem.outputs,
            tune.tolerance_of(problem.dtype.name, tf32=policy.tf32),
            plain=problem.plain,
            slow=problem.flops >= _SLOW,
            refusals=refusals,
            times=times,
        )


def _neighbours(
    problem: Problem, best: Candidate, handle: Handle, policy: Policy, refusals: list[str]
) -> list[Candidate]:
    """The best candidate's engine with one knob's value changed."""
    if best.formulation.graph is None or best.plan is None or best.plan.config is None:
        return []
    graph, pointers = best.formulation.graph()
    near = tune.neighbours(graph.build(handle), best.plan.config.key)
    configs = tune.accepted(near, _wanted(problem.dtype, policy, None), refusals)
    left = _left(best.formulation, tune.budget(handle.device, policy.workspace_limit))
    plans = tune.build_all(configs, handle, [left] * len(configs))
    made = [candidate(best.formulation, plan, pointers) for plan in plans if not isinstance(plan, str)]
    return made[:_MOST_VARIANTS]


def _entries(
    problem: Problem, device: Device, target: Target, policy: Policy, limit: int, refusals: list[str]
) -> list[Candidate]:
    """All candidates for timing, the heuristic's first one first.

    Good engines of every formulation; functional ones, spare formulations and own kernels where those are few. Those
    of `_contested_before` where there are any.
    """
    if few := _contested_before(problem, device, target, policy, limit):
        return few
    drawn = [w for w in problem.formulations if w.graph is not None and not w.spare]
    made = _made(problem, device, drawn, target, policy, limit, ("a", "b"), refusals)
    poor = [w for w in drawn if sum(one.formulation is w for one in made) < ENOUGH]
    if len(made) < ENOUGH:
        poor += [w for w in problem.formulations if w.spare]
    known = {one.choice for one in made}
    functional = ("a", "fallback")
    more = _made(problem, device, poor, target, policy, limit, functional, refusals) if poor else []
    made += [one for one in more if one.choice not in known]
    found: list[Candidate] = []
    for formulation in problem.formulations:
        if formulation.graph is not None:
            found += [one for one in made if one.formulation is formulation]
        elif formulation.scratch > limit:
            refusals.append(
                f"{formulation.name}: needs {formulation.scratch} bytes of workspace, the limit is {limit}"
            )
        elif formulation.steps != problem.plain or len(found) < ENOUGH or problem.flops <= _QUICK:
            found.append(candidate(formulation, None, {}))  # own kernels only cost time against good engines
    return found


def _contested_before(
    problem: Problem, device: Device, target: Target, policy: Policy, limit: int
) -> list[Candidate]:
    """The first candidates of each formulation and the choice of the package's database, if it knows this very
    problem and its choice can be made within the policy and the limit; else nothing.
    """
    choice = contested(problem.place, device)
    best = None if choice is None else rebuild(problem, choice, target, policy)
    if best is None or best.workspace > limit:
        return []
    few = drawn(replace(problem, apart=None), target, policy, limit)  # parts hold contests of their own
    return few if any(one.choice == best.choice for one in few) else [*few, best]


def _made(
    problem: Problem,
    device: Device,
    formulations: Sequence[Formulation],
    target: Target,
    policy: Policy,
    limit: int,
    modes: Sequence[str],
    refusals: list[str],
) -> list[Candidate]:
    """The candidates of graph formulations, all plans built concurrently: the heuristics' first of each, and those
    that no measurement rules out.
    """
    drafts: list[tuple[Formulation, Mapping[int, Place], EngineConfig]] = []
    for formulation in formulations:
        assert formulation.graph is not None
        reasons: list[str] = []
        try:
            graph, pointers = formulation.graph()
        except CudnnError as error:
            refusals.append(f"{formulation.name}: graph: {error.code}: {error.message}")
            continue
        named = graph.candidates(target, modes)
        reasons += named.refusals
        wanted = _wanted(problem.dtype, policy, tune.few_compiled())
        every = [*named, *_beyond(problem, graph, target, named)]
        configs = [
            one
            for i, one in enumerate(every)
            if not i or not (_slow(problem, one) or _outclassed(problem, formulation, one, device))
        ]
        drafts += [(formulation, pointers, config) for config in tune.accepted(configs, wanted, reasons)]
        refusals += [f"{formulation.name}: {reason}" for reason in reasons]
    drafts = [draft for draft in drafts if draft[0].scratch <= limit]
    limits = [_left(formulation, limit) for formulation, _, _ in drafts]
    plans = tune.build_all([config for _, _, config in drafts], target, limits)
    found = []
    for (formulation, pointers, _), plan in zip(drafts, plans, strict=True):
        if isinstance(plan, str):
            refusals.append(f"{formulation.name}: {plan}")
        else:
            found.append(candidate(formulation, plan, pointers))
    return found


def _slow(problem: Problem, config: EngineConfig) -> str:
    """Why an engine is not even tried, "" where it is. Without tensor cores it takes ten times as long as others, and
    some take minutes (engine 19 of cuDNN 9.19, for the gradient of tied embeddings of 50,257 words).
    """
    half = problem.dtype in (float16, bfloat16) and problem.flops >= _SLOW
    uses = NumericalNote.CUDNN_NUMERICAL_NOTE_TENSOR_CORE in config.engine.numerical_notes
    return "uses no tensor cores" if half and not uses else ""


def _outclassed(problem: Problem, formulation: Formulation, config: EngineConfig, device: Device) -> bool:
    """Whether measurements of many problems rule an engine out."""
    return outclassed(problem.op, problem.inputs[0], formulation.name, config.key[0], device)


def _beyond(
    problem: Problem, graph: Graph, target: Target, named: Iterable[EngineConfig]
) -> list[EngineConfig]:
    """For a large problem, additional engines that accept its graph but that the heuristics omit."""
    if problem.flops < _LARGE:
        return []
    try:
        return tune.unnamed(graph.build(target), {config.key[0] for config in named})
    except CudnnError:
        return []  # the graph itself is refused, as the heuristics reported


def rebuild(problem: Problem, choice: Choice, target: Target, policy: Policy) -> Candidate | None:
    """The candidate that a choice names, or None if it no longer exists or violates the policy."""
    formulation = next((w for w in problem.formulations if w.name == choice.formulation), None)
    if formulation is None:
        return None
    plan, pointers = None, dict[int, Place]()
    if formulation.graph is not None:
        try:
            graph, places = formulation.graph()
            plan, pointers = graph.rebuild(target, choice.key), dict(places)
        except CudnnError:
            return None
        if plan.config is None or unwanted(plan.config, problem.dtype, policy):
            return None
        if plan.config.graph is None or known_wrong(plan.config.graph.values["operations"], choice.engine):
            return None
    found = candidate(formulation, plan, pointers)
    over = policy.workspace_limit is not None and found.workspace > policy.workspace_limit
    return None if over else found


# ---------------------------------------------------------------------------------------------- between runs


def _open(problem: Problem, chosen: Candidate, device: Device, policy: Policy) -> OpenChoice | None:
    """The open question of a plan, if this very problem was not measured and the policy allows changes of plans."""
    fixed = policy.algorithm != "auto" or policy.deterministic or policy.once or policy.check_finite
    if fixed or not problem.kind or is_measured(problem.place, device):
        return None
    return OpenChoice(
        partial(_few, problem, chosen, device, policy),
        partial(_learn, problem, device, policy),
        partial(expected_saving, problem.op),
        partial(_is_known, problem.place, chosen.choice, device),
        digest(device.name, problem.place.nature, str(problem.place.sizes), _store_key(problem, policy)),
        partial(_adopting, problem, chosen, device, policy),
    )


def _is_known(place: ProblemPlace, choice: Choice, device: Device) -> bool | None:
    """Whether measurements rank this choice first; None if there are none of this very problem."""
    if not is_measured(place, device):
        return None
    first = next(known_choices(place, device))
    return (first.formulation, first.key) == (choice.formulation, choice.key)


def _few(problem: Problem, chosen: Candidate, device: Device, policy: Policy) -> list[Candidate]:
    """A few candidates, with their kernels loaded: the one in use, those of neighbouring problems, the first of each
    formulation. Runs in a separate thread."""
    with device.current():
        target, limit = target_of(device), tune.budget(device, policy.workspace_limit)
        near = [rebuild(problem, choice, target, policy) for choice in known_choices(problem.place, device)]
        fitting = [one for one in near if one is not None and one.workspace <= limit]
        fitting += drawn(problem, target, policy, limit)
        found = list({one.choice: one for one in fitting if one.choice != chosen.choice}.values())
        for check in checks_of({spec.dtype.name for spec in (*problem.inputs, *problem.outputs)}):
            check.load(device)
        return [chosen, *(one for one in found[: _MOST_FEW - 1] if _loads(one, device))]


def drawn(problem: Problem, target: Target, policy: Policy, limit: int) -> list[Candidate]:
    """The first candidates of each formulation with at most `limit` bytes of workspace, round-robin."""
    accept = tune.few_compiled(_FEW)
    preferred = next((w for w in problem.formulations if w.graph is not None), None)
    lists = [
        list(islice(_firsts(problem, w, target, policy, limit, accept), _FEW if w is preferred else 2))
        for w in (*problem.formulations, *_apart(problem))
        if not w.spare
    ]
    return [one for rank in zip_longest(*lists) for one in rank if one is not None and one.workspace <= limit]


def _apart(problem: Problem) -> list[Formulation]:
    """The formulation that runs the parts one after the other, if the problem has it and the parts have plans."""
    try:
        return [] if problem.apart is None else [problem.apart()]
    except NoKernel:
        return []


def _loads(one: Candidate, device: Device) -> bool:
    """Load a candidate's own kernels; whether that succeeded."""
    try:
        for step in one.steps:
            if isinstance(step, Launch | Together):
                step.program.load(device)
    except (CompileError, DeviceError):
        return False
    return True


def _firsts(
    problem: Problem,
    formulation: Formulation,
    target: Target,
    policy: Policy,
    limit: int,
    accept: tune.Accept,
) -> Iterator[Candidate]:
    """The heuristic's candidates of a formulation, built lazily; own kernels as in `_entries`."""
    if formulation.graph is not None:
        wanted = _wanted(problem.dtype, policy, lambda config: _slow(problem, config) or accept(config))
        for made in _of_graph(formulation, formulation.graph, target, limit, ("a",), wanted, []):
            if not threading.main_thread().is_alive():
                return  # the process is exiting, and waits for this thread
            yield made
    elif formulation.steps != problem.plain or problem.flops <= _QUICK:
        yield candidate(formulation, None, {})


def _compared(
    problem: Problem, device: Device, policy: Policy, entries: Sequence[Candidate], room: int
) -> Generator[str, None, tuple[tuple[Candidate, float] | None, dict[Choice, float]]]:
    """The contest in small parts: the fastest correct candidate, and the milliseconds of all correct ones."""
    times: list[tuple[Candidate, float]] = []
    found = yield from autotune.slices(
        entries,
        device,
        problem.inputs,
        problem.outputs,
        tune.tolerance_of(problem.dtype.name, tf32=policy.tf32),
        refusals=[],
        times=times,
        room=room,
    )
    return found, {one.choice: taken for one, taken in times}


def _learn(
    problem: Problem, device: Device, policy: Policy, entries: Sequence[Candidate], room: int
) -> TuningSlices:
    """The contest between a few candidates, which are checked against the one in use. The result is stored."""
    if len(entries) < 2:
        return None
    found, times = yield from _compared(problem, device, policy, entries, room)
    held = times.get(entries[0].choice)
    if found is None or held is None:
        return None  # the one in use did not pass: there is no reference
    best, milliseconds = found
    place = problem.place
    learnt = replace(best.choice, milliseconds=milliseconds, heuristic=held)
    plan_store(device).put("", learnt, place.nature, place.sizes)
    if best is entries[0]:
        return None
    plan = make_plan(problem, replace(best, seconds=milliseconds / 1e3), device)
    return replace(plan, record=learnt), (held - milliseconds) / 1e3


def _adopting(
    problem: Problem, chosen: Candidate, device: Device, policy: Policy, learnt: Choice
) -> OpenChoice:
    """The adoption of the winner of another process's contest."""
    return OpenChoice(
        partial(_pair, problem, chosen, device, policy, learnt),
        partial(_adopt, problem, device, policy, learnt),
    )


def _pair(
    problem: Problem, chosen: Candidate, device: Device, policy: Policy, learnt: Choice
) -> list[Candidate]:
    """The candidate in use and the learnt one, with their kernels loaded; only the first if the other cannot be built
    here. Runs in a separate thread."""
    with device.current():
        found = rebuild(problem, learnt, target_of(device), policy)
        for check in checks_of({spec.dtype.name for spec in (*problem.inputs, *problem.outputs)}):
            check.load(device)
        return [chosen, *(one for one in (found,) if one is not None and _loads(one, device))]


def _adopt(
    problem: Problem, device: Device, policy: Policy, learnt: Choice, entries: Sequence[Candidate], room: int
) -> TuningSlices:
    """The contest between the candidate in use and the one learnt elsewhere, which wins if it is correct; it is
    stored as if measured here."""
    if len(entries) < 2:
        return None
    _, times = yield from _compared(problem, device, policy, entries, room)
    taken = times.get(entries[1].choice)
    if taken is None:
        return None
    place = problem.place
    if not is_measured(place, device):
        plan_store(device).put("", learnt, place.nature, place.sizes)
    plan = make_plan(problem, replace(entries[1], seconds=taken / 1e3), device)
    return replace(plan, record=learnt), (learnt.heuristic - learnt.milliseconds) / 1e3


def nothing_to_do(
    problem_inputs: Sequence[Spec], outputs: Sequence[Spec], device: Device, label: str
) -> Plan:
    """The plan for an empty result."""
    return kernel_plan(device, problem_inputs, outputs, [], label=label)
