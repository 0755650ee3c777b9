"""A compiled graph: kernels chosen, memory placed once; then a call is a list of bound kernels.

On a GPU the first call runs the kernels one by one (libraries load lazily), the second captures them as one CUDA
graph, and every later call launches that graph.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from lamina import backends
from lamina.backends import Backend, Plan, Run
from lamina.graph.ir.graph import Graph
from lamina.graph.passes.manager import optimize, refusals
from lamina.graph.passes.pattern import Report
from lamina.graph.planning.layout import Plans, plan_graph, with_plans
from lamina.graph.planning.program import PlannedGraph, PlannedStep, Slot
from lamina.graph.planning.rematerialize import as_bytes, plan_within
from lamina.graph.run.collector import collector_paused
from lamina.graph.run.context import ExecutionContext, Given, place_constants
from lamina.graph.run.host_context import HostContext
from lamina.graph.run.prologue import Prologue
from lamina.graph.run.remembered import Answer, answered, question
from lamina.graph.run.staging import Staging
from lamina.graph.run.turn import Turns, turns_of
from lamina.runtime import (
    Buffer,
    CaptureInvalidated,
    Device,
    OutOfMemoryError,
    Stream,
    device,
    human_bytes,
    renew_after_fork,
    usable_cores,
)
from lamina.runtime.pool import Pool
from lamina.spec import ShapeError, Spec
from lamina.tensors import Tensor, as_tensor, tensors_changed, tensors_version

_where = device  # the argument of `compile` has the same name


def compile(
    graph: Graph,
    device: Device | str = "auto",
    *,
    donate: Mapping[int, int] | None = None,
    resident: Collection[int] = (),
    backend: str | None = None,
    optimize: bool = True,
    poison: bool = False,
    memory_limit: int | str | None = None,
    contexts: int | None = None,
) -> Executable:
    """Choose kernels and layouts, place memory, and return the graph as something that runs.

    donate: input index -> output index. The input is state (parameters, momentum) that the run updates in
        place: the output takes over its memory and is not returned.
    resident: indices of inputs that stay in place from call to call without being changed (weights).
    backend: "cpu", "cuda", "reference" or "null"; default: the device's own.
    optimize: run the graph passes first.
    poison: fill memory with NaNs as soon as it is dead, to prove that nothing reads it (slow; for tests).
    memory_limit: bytes, or such as "8 GiB", that the arena of temporaries and workspaces may take: where it would be
        larger, intermediate values are computed again right before they are read instead of being kept.
    contexts: for serving: this many calls may run at the same time, on a GPU too, each with a stream and
        memory of its own. Outputs lie on the host, and resident inputs are those of the last `load`, whatever became
        of them.
    Raises TypeError for anything but a graph and for contexts that are no integer, NoKernel when the backend cannot
    compute a node, ShapeError when a donated pair does not match, MemoryLimitError when no plan is found that needs
    so little memory, ValueError for contexts below 1, or with `donate`.
    """
    if not isinstance(graph, Graph):
        what = getattr(graph, "__name__", type(graph).__name__)
        raise TypeError(
            f"compile: takes a Graph, got {what}; lamina.jit compiles a function or a network, "
            "lamina.trace makes its graph"
        )
    where = _where(device)
    donated = dict(donate or {})
    _check_donations(graph, donated, resident)
    limit = None if memory_limit is None else as_bytes(memory_limit)
    _check_contexts(contexts, donated)
    with collector_paused():
        return Executable(
            graph,
            where,
            donated,
            resident,
            backend,
            improve=optimize,
            poison=poison,
            memory_limit=limit,
            contexts=contexts,
        )


class Executable:
    """A graph with its kernels chosen and its memory placed.

    Call `load` with the resident inputs first, if there are any; then call it with the other inputs. Outputs are
    new tensors, without the donated ones; on a CPU the large ones lie where they were computed, and a later call
    takes that memory again only when nothing of the result is alive.

    Threads may share it, with the results of a single thread. Where calls update state, or a device's queue
    serializes them anyway (a GPU, unless compiled with `contexts`), calls run or are queued one at a time, each as a
    whole; those that update state also wait for other executables that update the same tensors. Elsewhere concurrent
    calls have an `ExecutionContext` each, up to one per core, on the same weights.
    """

    def __init__(
        self,
        graph: Graph,
        where: Device,
        donate: Mapping[int, int],
        resident: Collection[int],
        backend: str | None,
        *,
        improve: bool,
        poison: bool,
        memory_limit: int | None = None,
        contexts: int | None = None,
    ) -> None:
        self.device = where
        self.backend = backends.get(where, backend)
        graph = graph.unmarked()
        asked = question(
            graph,
            self.backend,
            donate=sorted(donate.items()),
            resident=sorted(resident),
            improve=improve,
            limit=memory_limit,
        )
        made = partial(_planned, graph, self.backend, donate, resident, improve, memory_limit)
        answer = answered(asked, self.backend, made)
        self.graph, self.program, self.passes = answer.graph, answer.program, answer.passes
        self.refusals = refusals(self.passes)  # fusions that the backend has no plan for
        self.recomputed = len(self.graph.nodes) - answer.kept  # nodes that run twice to save memory
        self.memory_limit = memory_limit
        self.donate = dict(donate)
        self.resident = sorted({*resident, *donate})
        self._free = sorted({*range(len(self.graph.inputs))} - {*self.resident})
        self._idle = _idle(self.program, {*self.resident} - {*donate})
        self._ready = False  # whether `check_ready` has nothing to say
        self._poison = poison
        self._state: dict[int, Tensor] = {}
        self._turns = Turns()  # that serialize updates of the state
        self._places: list[tuple[Tensor, Buffer]] = []  # the state's tensors, and the memory that kernels use
        self._versions: list[tuple[Tensor, int]] = []  # of tensors that are not updated, when last read
        self._seen = -1  # the `tensors_version` at which the state was last found to be settled
        self._updated: list[Tensor] = []  # the state that each call updates
        self._shared: dict[Slot, Buffer] = {}  # state, constants, and prologue results
        self._prologue = Prologue(self.program, self._shared, where)
        self._wants = [_Wanted(self.program.inputs[i], self.graph.inputs[i].name) for i in self._free]
        self._staging = threading.Lock()  # held while a staging is created
        renew_after_fork(self)
        self._contexts: Pool[ExecutionContext]
        self._serves = contexts is not None
        self._runs = self.backend.name != "null" and where.planned is None
        if self._runs:
            self._queues = where.default_stream.queues
            most = contexts or (1 if donate or self._queues else usable_cores())
            self._contexts = Pool(self._context, most)
            self._place_constants()

    def renew(self) -> None:
        """In a forked child: another thread may have held the lock."""
        self._staging = threading.Lock()

    def _context(self) -> ExecutionContext:
        donated = set(self.donate.values())
        results = [s for o, s in enumerate(self.program.outputs) if o not in donated]
        kind = HostContext if self._serves and self._queues else ExecutionContext
        return kind(self.program, results, self._shared, self.device, self._poison)

    def _place_constants(self) -> None:
        """Allocate the memory that contexts share, except for resident inputs, and a first context."""
        self._shared |= place_constants(self.program, self.device)
        self._contexts.give(self._contexts.take())
        if not self.resident:
            self._prologue.run()
            self._wait_for_prologue()

    def __reduce__(self) -> str:
        raise TypeError(
            "a compiled graph holds addresses and cannot be pickled or copied; pickle the network, or save the graph "
            "(lamina.graph.save), and compile again"
        )

    def __repr__(self) -> str:
        given = ", ".join(map(str, self.given))
        made = ", ".join(
            str(v.spec) for o, v in enumerate(self.graph.outputs) if o not in self.donate.values()
        )
        parts = [f"{self.kernels} kernels", f"arena {human_bytes(self.peak_bytes)}"]
        if self.resident:
            nbytes = sum(self.graph.inputs[i].spec.nbytes for i in self.resident)
            parts.append(f"{len(self.resident)} resident tensors {human_bytes(nbytes)}")
        on = (
            f"{self.device}"
            if self.backend.name == self.device.kind
            else f"{self.device}, {self.backend.name}"
        )
        return f"Executable({self.graph.name} on {on}: ({given}) -> ({made}); {', '.join(parts)})"

    @property
    def given(self) -> list[Spec]:
        """The inputs of each call: those that are not resident."""
        return [self.graph.inputs[i].spec for i in self._free]

    @property
    def kernels(self) -> int:
        """How many kernels or library calls one run is; views count as none."""
        return sum(not step.plan.view for step in self.program.steps)

    # ---- state
    def load(self, tensors: Mapping[int, Tensor], beside: Iterable[Executable] = ()) -> None:
        """Make tensors the resident state: input index -> tensor. Their values move, in place, into the memory and
        the layout that the plans need; from then on each run reads them there (and updates donated ones). Tensors
        that no kernel touches keep the layout of another program. Calls of other threads that have begun end first.

        beside: executables that were loaded with the same values: equal results of the prologue (filters in the
            layouts of kernels, batch norms folded into them) are shared with them.

        Where nothing runs (the null backend, an absent GPU), the tensors are only checked. Raises KeyError for
        a missing or unknown index, ShapeError for a tensor that does not fit.
        """
        if sorted(tensors) != self.resident:
            raise KeyError(f"load: the resident inputs are {self.resident}, got {sorted(tensors)}")
        for i, x in tensors.items():
            wanted = self.graph.inputs[i].spec
            if x.spec.open != wanted:
                raise ShapeError(f"load: input {i} is {wanted}, got {x.spec}")
        if not self._runs:
            return
        self._turns = turns_of(tensors.values(), [x for i, x in tensors.items() if i in self.donate])
        with self._turns, self._contexts.all() as contexts, collector_paused():
            moved = self._settle(tensors)
            values = {self.program.inputs[i]: (id(x), x.version) for i, x in tensors.items()}
            moved |= self._prologue.run(values, [other._prologue for other in beside])
            if moved:
                for context in contexts:
                    context.unbind()
            self._wait_for_prologue()

    def _settle(self, tensors: Mapping[int, Tensor]) -> bool:
        """Move the state to where kernels read it; whether any of it has moved."""
        moved = False
        lying: dict[int, list[tuple[int, Tensor]]] = {}  # by the memory that they share
        for i, x in self._state.items():
            lying.setdefault(id(x.buffer), []).append((i, x))
        for i, x in tensors.items():
            slot = self.program.inputs[i]
            lies_well = x.device == self.device and (i in self._idle or x.spec.same_memory(slot.spec))
            if (
                not lies_well
                or (i in self.donate and x.read_only)
                or _shares(x, lying.get(id(x.buffer), ()), i)
            ):
                x.move_into(self.device.allocate(slot.spec.nbytes), slot.spec)
            if i not in self._idle:
                moved |= self._shared.get(slot) is not x.buffer
                self._shared[slot] = x.buffer
        self._state = dict(tensors)
        touched = {i: x for i, x in tensors.items() if i not in self._idle}
        self._places = [(x, x.buffer) for x in touched.values()]
        self._seen = -1
        self._versions = [(x, x.version) for i, x in touched.items() if i not in self.donate]
        self._updated = [x for i, x in tensors.items() if i in self.donate]
        return moved

    def _wait_for_prologue(self) -> None:
        """Serving contexts have streams of their own: they must not read before the device's queue has finished."""
        if self._serves:
            self.device.default_stream.synchronize()

    def is_settled(self) -> bool:
        """Whether the state is at the place, and has the values, of the last `load`: another executable, or the user,
        may have moved or overwritten it."""
        now = tensors_version()
        if now == self._seen:  # no tensor was moved or overwritten since
            return True
        for x, buffer in self._places:
            if x.buffer is not buffer:
                return False
        for x, version in self._versions:
            if x.version != version:
                return False
        self._seen = now
        return True

    def change_plans(self, better: Mapping[Plan, Plan]) -> bool:
        """Replace some plans from the next call on; the graph is captured anew at once. State stays where it is;
        calls of other threads that have begun end first.

        Returns False, and changes nothing, where it needs more memory than there is, or than it may take, or cannot
        be captured.
        """
        program = with_plans(self.program, better)
        if self.memory_limit is not None and program.placement.nbytes > self.memory_limit:
            return False
        if self._runs:
            with self._turns, self._contexts.all() as contexts:
                try:
                    for context in contexts:
                        context.change(program)
                        context.record()
                except (OutOfMemoryError, CaptureInvalidated):
                    for context in contexts:
                        context.change(self.program)
                    return False
                self.program = program
        else:
            self.program = program
        return True

    def put_back(self, program: PlannedGraph) -> None:
        """Run the program that was in place before `change_plans`, from the next call on, which captures it.

        Raises OutOfMemoryError, and then changes nothing.
        """
        if self._runs:
            with self._turns, self._contexts.all() as contexts:
                for context in contexts:
                    context.change(program)
        self.program = program

    def synchronize(self) -> None:
        """Wait for all that its calls have queued."""
        self.device.default_stream.synchronize()

    @contextmanager
    def held(self, seconds: float) -> Iterator[None]:
        """Within the block no call runs: those that have begun end first, others wait.

        Raises TimeoutError where some have not ended after `seconds`.
        """
        with self._contexts.all(seconds):
            yield

    # ---- running
    def __call__(self, *inputs: Any) -> tuple[Tensor, ...]:
        """Run on the inputs that are not resident, in order. Returns the outputs that are not donated."""
        if not self._ready:
            self.check_ready()
        given = self._given(inputs)
        if not self.donate:
            return self._run(given)
        with self._turns:
            return self._run(given)

    def _run(self, given: Sequence[tuple[Slot, Given]]) -> tuple[Tensor, ...]:
        context = self._take()
        try:
            return context(given)
        finally:
            if self._updated:
                for x in self._updated:
                    x.version += 1
                tensors_changed()
            self._contexts.give(context)

    def _take(self) -> ExecutionContext:
        """A context on the current state."""
        while True:
            context = self._contexts.take()
            if self._serves or self.is_settled():
                return context
            self._contexts.give(context)
            self.load(self._state)

    def bound_steps(self, stream: Stream | None = None) -> list[tuple[PlannedStep, Run]]:
        """Every step that launches something, in order, bound to its addresses: for measurements.

        stream: where they run, by default the device's default stream.

        Raises RuntimeError for the null backend, or before `load`.
        """
        self.check_ready()
        context = self._take()
        self._contexts.give(context)
        return [(step, context.bound(step, stream)) for step in self.program.steps if not step.plan.view]

    def check_ready(self) -> None:
        """Raise RuntimeError where it cannot run: on the null backend, an absent GPU, or before `load`."""
        if self.backend.name == "null":
            raise RuntimeError("the null backend plans graphs but cannot run them; compile for another one")
        if not self._runs:
            _ = self.device.platform  # raises with the reason
        if len(self._state) != len(self.resident):
            raise RuntimeError(
                f"call load() first: inputs {self.resident} are resident and have no values yet"
            )
        self._ready = True

    def shared(self, slot: Slot) -> Buffer:
        """The memory of a weight, a constant, or a prologue result."""
        return self._shared[slot]

    @property
    def is_captured(self) -> bool:
        """Whether calls launch one CUDA graph."""
        return any(c.is_captured for c in self._contexts.items)

    @property
    def contexts(self) -> int:
        """How many execution contexts exist: as many as calls ran at once, up to the cores."""
        return len(self._contexts.items)

    @property
    def peak_bytes(self) -> int:
        """Bytes of the arena that holds every temporary and workspace of one call; each context has one."""
        return self.program.placement.nbytes

    @property
    def own_bytes(self) -> int:
        """Bytes of device memory that only this program uses: of contexts, and of prologue results."""
        contexts = len(self._contexts.items) if self._runs else 0
        given = sum(spec.nbytes for spec in self.given)
        others = {self.program.inputs[i] for i in self.resident} | self._prologue.borrowed
        shared = sum(s.spec.nbytes for s in self._shared if s not in others)
        return int(contexts * (self.peak_bytes + given) + shared)

    @property
    def unplanned_bytes(self) -> int:
        """What the temporaries would take if each had memory of its own."""
        return self.program.placement.unplanned

    # ---- inputs
    def _given(self, inputs: Sequence[Any]) -> list[tuple[Slot, Given]]:
        """The inputs, checked; those for a GPU that are on the host in pinned memory."""
        if len(inputs) != len(self._free):
            raise TypeError(f"{self.graph.name} takes {len(self._free)} inputs, got {len(inputs)}")
        given: list[tuple[Slot, Given]] = []
        staged = self._queues and not self._serves
        for i, x in enumerate(inputs):
            want = self._wants[i]
            slot = want.slot
            if isinstance(x, np.ndarray):
                if x.shape != slot.spec.shape or x.dtype != slot.spec.dtype.numpy:
                    raise ShapeError(
                        f"input {want.name} is {slot.spec}, got an array {x.dtype}{list(x.shape)}"
                    )
                given.append((slot, self._way(want).fill(x) if staged else np.ascontiguousarray(x)))
                continue
            found = x if isinstance(x, Tensor) else as_tensor(x)
            spec = found.spec
            if spec is not want.seen:
                if spec.open != slot.spec.open:
                    raise ShapeError(f"input {want.name} is {slot.spec}, got {spec}")
                want.seen = spec
            if staged and _is_pageable(found):
                given.append((slot, self._way(want).fill(found._values())))
                continue
            given.append((slot, found))
        return given

    def _way(self, want: _Wanted) -> Staging:
        """The staging of an input."""
        if want.staging is None:
            with self._staging:
                want.staging = want.staging or Staging(self.device, want.slot.spec.nbytes)
        return want.staging


def _planned(
    graph: Graph,
    backend: Backend,
    donate: Mapping[int, int],
    resident: Collection[int],
    improve: bool,
    memory_limit: int | None,
) -> Answer:
    """The graph improved and planned; a scout runs ahead through the same steps."""
    stays = {graph.inputs[i] for i in resident if i not in donate}
    passes: list[Report] = []

    def improved(backend: Backend, reports: list[Report]) -> Graph:
        return optimize(graph, backend, stays, reports) if improve else graph

    def plans_ahead(backend: Backend) -> None:
        plan_graph(improved(backend, []), Plans(backend), donate, resident)

    with backend.scouted(plans_ahead):
        better = improved(backend, passes)
        kept = len(better.nodes)
        if memory_limit is None:
            program = plan_graph(better, Plans(backend), donate, resident)
        else:
            better, program = plan_within(better, backend, donate, resident, memory_limit)
    return Answer(better, program, passes, kept)


@dataclass(eq=False, slots=True)
class _Wanted:
    """An input of each call. seen: a spec that was passed for it and fits. staging: of host arrays, once there were
    any."""

    slot: Slot
    name: str
    seen: Spec | None = None
    staging: Staging | None = None


def _is_pageable(x: Tensor) -> bool:
    """Whether the values are in host memory that a GPU does not copy from by itself."""
    return x.device.kind == "cpu" and not x.buffer.pinned


def _idle(program: PlannedGraph, kept: Collection[int]) -> frozenset[int]:
    """The kept inputs that no step reads: state that one of several programs on it passes through."""
    steps = (*program.prologue, *program.steps)
    read = {slot.base for step in steps for slot in step.inputs} | {slot.base for slot in program.outputs}
    return frozenset([i for i in kept if program.inputs[i] not in read])


def _shares(x: Tensor, others: Sequence[tuple[int, Tensor]], index: int) -> bool:
    """Whether one of the other inputs shares its memory with x, the input at `index`."""
    return any(y is not x and y.buffer is x.buffer for i, y in others if i != index)


def _check_contexts(contexts: Any, donate: Mapping[int, int]) -> None:
    if contexts is None:
        return
    if isinstance(contexts, bool) or not isinstance(contexts, int | np.integer):
        raise TypeError(f"compile: contexts must be an int or None, got {contexts!r}")
    if contexts < 1 or donate:
        reason = "calls that update state run one after another" if donate else "at least 1 is needed"
        raise ValueError(f"compile: contexts={contexts}: {reason}")


def _check_donations(graph: Graph, donate: Mapping[int, int], resident: Collection[int]) -> None:
    for i in (*donate, *resident):
        if not 0 <= i < len(graph.inputs):
            raise ValueError(f"compile: input {i} is not one of the graph's {len(graph.inputs)} inputs")
    if len(set(donate.values())) != len(donate):
        raise ValueError(f"compile: an output is donated to two inputs: {dict(donate)}")
    for i, o in donate.items():
        if not 0 <= o < len(graph.outputs):
            raise ValueError(f"compile: output {o} is not one of the graph's {len(graph.outputs)} outputs")
        if graph.inputs[i].spec != graph.outputs[o].spec:
            raise ShapeError(
                f"compile: input {i} {graph.inputs[i].spec} cannot be updated by output {o} "
                f"{graph.outputs[o].spec}"
            )
