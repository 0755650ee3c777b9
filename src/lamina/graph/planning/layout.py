"""From nodes to steps: choose a kernel for each node, settle every layout, and say where each value lies.

A slot is a place that holds one value in one layout. Several slots may share one block of memory: views, outputs
computed in place, donated state. Reorders are inserted wherever a kernel needs a layout other than its input's; those
of values that never change run once, in the prologue.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from lamina.backends import Backend, NoKernel, Plan, passing_plan
from lamina.graph.ir.graph import Graph, Node, Value, is_made_once, reachable
from lamina.graph.planning.memory import Lifetime, place
from lamina.graph.planning.program import PlannedGraph, PlannedStep, Slot
from lamina.graph.planning.schedule import schedule
from lamina.graph.planning.streams import behind_the_chain
from lamina.ops.core import Op
from lamina.ops.primitives import Fused, FusedElementwise
from lamina.ops.primitives.shape import Reshape, Slice, Transpose
from lamina.spec import Layout, Policy, Spec, uint8
from lamina.spec.layout import plainest
from lamina.tensors import plan_of, relaid_of, reorder_of

#: Bytes of the widest access, at whose multiples parts of tensors begin; the smallest part with gaps for which the
#: whole is kept, as a fraction of it.
_ACCESS, _LEAST_PART = 16, 8


class Plans:
    """A backend's plans, each made once: repeated layers and programs for other shapes share them.

    Where the plans will run, threads start compiling what they need while the next ones are being made.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend, self._runs = backend, backend.device.planned is None

    @property
    def overlaps(self) -> bool:
        """Whether steps may run concurrently, on streams of the device."""
        return self._backend.device.kind != "cpu"

    def plan(self, op: Op, specs: Sequence[Spec], policy: Policy) -> Plan:
        """The plan for op on inputs of these specs, or a faster one found since. Raises NoKernel."""
        return self._begun(plan_of(self._backend, op, tuple(specs), policy).latest)

    def reads(self, op: Op, specs: Sequence[Spec], policy: Policy, positions: Sequence[int]) -> Plan | None:
        """The plan for op if it takes parts of tensors, the operands at some positions, as they lie; else None."""
        if not self._backend.reads_parts:
            return None
        try:
            plan = plan_of(self._backend, op, tuple(specs), policy).latest
        except NoKernel:
            return None
        return plan if all(plan.inputs[i].same_memory(specs[i]) for i in positions) else None

    def reorder(self, source: Spec, target: Spec) -> Plan:
        """The plan that copies a tensor from one layout to another."""
        return self._begun(reorder_of(self._backend, source, target))

    def _begun(self, plan: Plan) -> Plan:
        if self._runs:
            plan.compile_ahead()
        return plan


def plan_graph(
    graph: Graph,
    plans: Plans,
    donate: Mapping[int, int],
    resident: Collection[int],
    early: int = 0,
    *,
    scarce: bool = False,
) -> PlannedGraph:
    """Plan every node of the graph and place the temporaries in one arena.

    early: this many of the first outputs are computed, and readable, before any step that they do not need. With
        early outputs, donated inputs are memory owned by the caller: row-major, and written only where a new value is
        computed in place; the caller copies the others there.
    scarce: saving memory matters more than concurrency.
    """
    return _Planner(graph, plans, donate, resident, early, holds=plans.overlaps and not scarce).run()


class _Planner:
    """The state of planning one graph: which slots hold each value so far."""

    def __init__(
        self,
        graph: Graph,
        plans: Plans,
        donate: Mapping[int, int],
        resident: Collection[int],
        early: int,
        *,
        holds: bool,
    ) -> None:
        self.graph, self.plans, self.donate, self.early, self.holds = graph, plans, dict(donate), early, holds
        self.donor = {o: i for i, o in donate.items()}  # output index -> the input that it replaces
        self.resident = set(resident) | set(donate)
        self.home: dict[Value, Slot] = {}  # the slot that a value was made in
        self.copies: dict[tuple[Slot, Layout], Slot] = {}  # reordered forms of a slot
        self.packs: dict[tuple[Slot, Plan], Slot] = {}  # packed forms of a slot, by the plan that packs it
        # Temporaries without a reader so far, whose layout may still change.
        self.makers: dict[Slot, PlannedStep] = {}
        self.views: dict[Slot, list[PlannedStep]] = {}  # by the slot whose memory they view, in order
        self.uses = graph.uses()
        self.program = PlannedGraph([], [], {}, name=graph.name)
        self.frozen: set[Slot] = set()  # values that do not change between runs
        self.donors: set[Slot] = set()  # inputs whose memory is written
        self.finished: set[Slot] = set()  # the slots from which outputs are read

    def run(self) -> PlannedGraph:
        program = self.program
        self.make_sources()
        nodes, outputs = schedule(self.graph, self.donate), self.graph.outputs
        needed = set(reachable(outputs[: self.early]))
        for node in nodes:
            if node in needed:
                self.add_node(node)
        program.outputs += [self.finish(i, v) for i, v in enumerate(outputs[: self.early])]
        program.halfway = len(program.steps)
        for node in nodes:
            if node not in needed:
                self.add_node(node)
        program.outputs += [self.finish(i, v) for i, v in enumerate(outputs) if i >= self.early]
        for slot in [*program.inputs, *program.constants.values()]:
            slot.spec = slot.spec.fixed
        self.share_memory()
        self.place()
        return program

    def make_sources(self) -> None:
        """Slots of inputs and constants. Residents and constants have open layouts: the first reader determines
        them."""
        for i, value in enumerate(self.graph.inputs):
            stays = i in self.resident
            is_open = stays and not (self.early and i in self.donate)
            slot = Slot(
                value.spec if is_open else value.spec.fixed, "resident" if stays else "input", value.name
            )
            self.program.inputs.append(slot)
            self.home[value] = slot
            if i in self.donate:
                self.donors.add(slot)
            elif stays:
                self.frozen.add(slot)
        for value in self.graph.constants:
            slot = Slot(value.spec, "constant")
            self.program.constants[value] = self.home[value] = slot
            self.frozen.add(slot)

    def add_node(self, node: Node) -> None:
        sources = [self.home[v] for v in node.inputs]
        try:
            plan = self.chosen(node, sources, [s.spec for s in sources])
        except NoKernel as error:
            if str(node.origin):
                error.add_note(f"in {node.origin}")
            raise
        if plan.packed is not None and sources[plan.packed.index] in self.frozen:
            at, pack, plan = plan.packed.index, plan.packed.pack, plan.packed.plan
            sources[at] = self.prepared(sources[at], pack)
        inputs = tuple(
            self.in_layout(s, w, settles=not plan.view) for s, w in zip(sources, plan.inputs, strict=True)
        )
        once = node.op.effect != "collective" and self.stays(node.op, inputs, plan.outputs)
        outputs = tuple(Slot(spec, "resident" if once else "temporary") for spec in plan.outputs)
        if plan.view:
            outputs[0].shares, outputs[0].begins = inputs[0].base, inputs[0].offset + plan.offset
        self.home.update(zip(node.outputs, outputs, strict=True))
        if once:
            self.frozen.update(outputs)
        steps = self.program.prologue if once else self.program.steps
        step = PlannedStep(plan, inputs, outputs, node, _workspace(plan))
        steps.append(step)
        if plan.view:
            self.views.setdefault(outputs[0].base, []).append(step)
        elif not once:
            self.may_change(step)

    def chosen(self, node: Node, sources: Sequence[Slot], specs: Sequence[Spec]) -> Plan:
        """The plan for a node on slots with the layouts of the specs. A part of a tensor becomes a view if it is
        contiguous, or if all readers read it where it lies.

        Parts of values that do not change between runs are copied once instead, so that the whole need not be kept.
        """
        if isinstance(node.op, Slice) and sources[0] not in self.frozen:
            part = _part(node.op, specs[0])
            if part is not None and self.stays_within(node, specs[0], part.outputs[0]):
                return part
        return self.plans.plan(node.op, specs, node.policy)

    def stays_within(self, node: Node, whole: Spec, part: Spec) -> bool:
        """Whether a part remains where it is: it is contiguous, or large enough to keep the whole for it, and read as
        it lies."""
        if part.nbytes == part.numel * part.dtype.itemsize:
            return True
        return part.numel * _LEAST_PART >= whole.numel and self.is_read_so(node.outputs[0], part)

    def is_read_so(self, value: Value, spec: Spec) -> bool:
        """Whether every reader of a value, also of its views, takes it in the layout of the spec."""
        for reader, _ in self.uses[value]:
            if reader is None:
                return False
            specs = [self.home[v].spec if v in self.home else v.spec for v in reader.inputs]
            positions = [i for i, v in enumerate(reader.inputs) if v is value]
            for i in positions:
                specs[i] = spec
            plan = self.plans.reads(reader.op, specs, reader.policy, positions)
            if plan is None or (plan.view and not self.is_read_so(reader.outputs[0], plan.outputs[0])):
                return False
        return True

    def may_change(self, step: PlannedStep) -> None:
        """Let the first reader that requires a layout choose that of the step's output."""
        if step.plan.relaid is not None:
            self.makers[step.outputs[0]] = step

    def prepared(self, slot: Slot, pack: Plan) -> Slot:
        """The packed form of a value that does not change between runs, computed in the prologue."""
        if (slot, pack) not in self.packs:
            made = self.packs[slot, pack] = Slot(pack.outputs[0], "resident", slot.name)
            given = self.in_layout(slot, pack.inputs[0])
            self.program.prologue.append(PlannedStep(pack, (given,), (made,), None, _workspace(pack)))
            self.frozen.add(made)
        return self.packs[slot, pack]

    def stays(self, op: Op, inputs: Sequence[Slot], outputs: Sequence[Spec]) -> bool:
        """Whether an op's results are the same in every run, and kept."""
        same = bool(inputs) and all(s in self.frozen for s in inputs)
        return same and is_made_once(op, [s.spec for s in inputs], outputs)

    def in_layout(self, slot: Slot, wanted: Spec, *, settles: bool = True) -> Slot:
        """The slot itself if it has the wanted layout or can be given it; else a reordered copy of it.

        settles: whether the slot is read, not only viewed.
        """
        if slot.spec.layout is None:
            slot.spec = wanted.fixed
        if not slot.spec.same_memory(wanted) and not self.made_so(slot, wanted):
            slot = self.copied(slot, wanted)
        if settles:
            self.makers.pop(slot.base, None)
        return slot

    def copied(self, slot: Slot, wanted: Spec) -> Slot:
        """A copy in another layout, made once."""
        form = slot, plainest(wanted.physical, wanted.shape)
        if form not in self.copies:
            self.copies[form] = self.reorder(slot, wanted)
        copy = self.copies[form]
        if not copy.spec.same_memory(wanted):  # since then made so for another reader
            copy = self.copies[form] = self.reorder(slot, wanted)
        return copy

    def made_so(self, slot: Slot, wanted: Spec) -> bool:
        """Let the step that writes the slot's memory, which has no reader yet, write the wanted layout, if it can."""
        step, views = self.makers.get(slot.base), self.views.get(slot.base, [])
        if step is None:
            return False
        layout = _seen_through(slot, wanted, views)
        plan = None if layout is None else relaid_of(step.plan, layout)
        if plan is None:
            return False
        shown = {slot.base: plan.outputs[0]}
        again = list[Plan]()
        for view in views:
            (source,), (out,) = view.inputs, view.outputs
            assert view.node is not None
            again.append(self.chosen(view.node, view.inputs, [shown[source]]))
            if not again[-1].view or not again[-1].inputs[0].same_memory(shown[source]):
                return False
            shown[out] = again[-1].outputs[0]
        step.plan = plan
        step.workspace = _workspace(plan)
        for view, made in zip(views, again, strict=True):
            view.plan, view.outputs[0].begins = made, view.inputs[0].offset + made.offset
        for changed, spec in shown.items():
            changed.spec = spec
        return True

    def reorder(self, slot: Slot, wanted: Spec) -> Slot:
        plan = self.plans.reorder(slot.spec, wanted.fixed)
        once = slot in self.frozen
        copy = Slot(wanted.fixed, "resident" if once else "temporary", slot.name)
        steps = self.program.prologue if once else self.program.steps
        step = PlannedStep(plan, (slot,), (copy,), None, _workspace(plan))
        steps.append(step)
        self.makers.pop(slot.base, None)
        if once:
            self.frozen.add(copy)
        else:
            self.may_change(step)
        return copy

    def finish(self, index: int, value: Value) -> Slot:
        """The slot to read an output from: in its own layout, or for donated state in the layout of its input.

        Channel-blocked layouts are private to this program's kernels: such an output is reordered to row-major.
        """
        slot = self.home[value]
        donor = self.donor.get(index)
        wanted = slot.spec.fixed
        if wanted.tag is None or wanted.physical.is_blocked:
            wanted = value.spec.fixed
        if donor is not None:
            old = self.program.inputs[donor]
            old.spec = old.spec if old.spec.layout is not None else slot.spec.fixed
            wanted = old.spec
        found = self.in_layout(slot, wanted)
        # State is overwritten while the program runs: a view of the old value needs a place of its own, and so does a
        # value that becomes two states.
        if found.base in self.donors or (donor is not None and found in self.finished):
            found = self.reorder(found, wanted)
        self.finished.add(found)
        return found

    def share_memory(self) -> None:
        """Compute in place where plans and lifetimes allow it, and give donated state its input's memory."""
        self.set_lifetimes()
        targets = {self.program.outputs[o]: self.program.inputs[i] for i, o in self.donate.items()}
        for step_index, step in enumerate(self.program.steps):
            beside = _by_memory(step.inputs) if step.plan.aliases else {}
            for o, i in step.plan.aliases.items():
                if not _read_otherwise(step, step.inputs[i], beside[step.inputs[i].base]):
                    self.alias(step_index, step.inputs[i], step.outputs[o], targets)
        self.set_lifetimes()
        self.copy_donated(targets)
        self.set_lifetimes()
        if self.holds:
            self.hold()

    def alias(self, index: int, source: Slot, output: Slot, targets: dict[Slot, Slot]) -> None:
        """Let an output take over its input's memory if the input is dead afterwards."""
        base = source.base
        wanted = targets.get(output)
        if output.shares is not None or base.last > index or not source.spec.same_memory(output.spec):
            return
        if source.spec.nbytes != base.spec.nbytes:  # a part: it would keep the whole alive
            return
        if (wanted is None and base.kind == "temporary") or (wanted is not None and wanted is base):
            output.shares = base
            base.last = max(base.last, output.last)

    def copy_donated(self, targets: dict[Slot, Slot]) -> None:
        """State that was not computed in place is written directly to its home if every reader of the old value has
        run by then, and copied there otherwise."""
        for new, old in targets.items():
            base = new.base
            if base.kind == "temporary" and base.first > old.last and base.spec.nbytes == old.spec.nbytes:
                base.shares = old if new.spec.same_memory(old.spec) else None
            if new.base is not old and not self.early:
                plan = self.plans.reorder(new.spec, old.spec)
                self.program.steps.append(PlannedStep(plan, (new,), (old,), None, _workspace(plan)))

    def set_lifetimes(self) -> None:
        """First write and last read of every base, in step numbers; outputs live to the end."""
        steps, end = self.program.steps, len(self.program.steps)
        for step in steps:
            for slot in (*step.inputs, *step.outputs):
                slot.first = slot.last = -1
        for index, step in enumerate(steps):
            for slot in (*step.inputs, *step.outputs):
                for held in (slot, slot.base):
                    held.first = index if held.first < 0 else held.first
                    held.last = max(held.last, index)
            if step.workspace is not None:
                step.workspace.first = step.workspace.last = index
        for slot in self.program.outputs[self.early :]:
            slot.last = slot.base.last = end
        for slot in self.program.outputs[: self.early]:  # read between the two halves
            for held in (slot, slot.base):
                held.last = max(held.last, self.program.halfway)

    def hold(self) -> None:
        """Keep the memory of updates' and collectives' operands to the end of the program: otherwise steps that reuse
        it would have to wait for them. (Anything larger than a step's results, such as the gradients that are summed
        into a bias gradient, is not kept for it.)"""
        steps = self.program.steps
        for i in behind_the_chain(steps):
            most = sum(slot.spec.nbytes for slot in steps[i].outputs)
            for slot in (*steps[i].inputs, *steps[i].outputs):
                if slot.base.spec.nbytes <= most:
                    slot.base.last = max(slot.base.last, len(steps))

    def place(self) -> None:
        """Assign offsets to temporaries and workspaces."""
        slots: dict[Slot, None] = {}
        for step in self.program.steps:
            for slot in (*step.outputs, *([step.workspace] if step.workspace else [])):
                if slot.base.kind == "temporary":
                    slots.setdefault(slot.base)
        self.program.temporaries = list(slots)
        self.program.placement = place([Lifetime(s.spec.nbytes, s.first, s.last) for s in slots])


def with_plans(program: PlannedGraph, better: Mapping[Plan, Plan]) -> PlannedGraph:
    """The program with other plans for the steps of every run, on the same slots except for workspaces.

    Plans with other layouts or other in-place outputs are left out.
    """
    fits = {old: new for old, new in better.items() if _alike(old, new)}
    steps, dropped = list[PlannedStep](), set[Slot]()
    for index, step in enumerate(program.steps):
        plan = fits.get(step.plan)
        if plan is None:
            steps.append(step)
            continue
        workspace = _workspace(plan)
        if workspace is not None:
            workspace.first = workspace.last = index
        if step.workspace is not None:
            dropped.add(step.workspace)
        steps.append(replace(step, plan=plan, workspace=workspace))
    held = [s for s in program.temporaries if s not in dropped]
    old = {step.workspace for step in program.steps}
    held += [s.workspace for s in steps if s.workspace is not None and s.workspace not in old]
    placement = place([Lifetime(s.spec.nbytes, s.first, s.last) for s in held])
    return replace(program, steps=steps, temporaries=held, placement=placement)


def _alike(old: Plan, new: Plan) -> bool:
    """Whether one plan can replace another."""
    pairs = [*zip(old.inputs, new.inputs, strict=True), *zip(old.outputs, new.outputs, strict=True)]
    return all(a.same_memory(b) for a, b in pairs) and dict(old.aliases) == dict(new.aliases) and not old.view


def _seen_through(slot: Slot, wanted: Spec, views: Sequence[PlannedStep]) -> Layout | None:
    """The layout of a view's source such that the view has the wanted layout; None where no layout does that."""
    makers = {view.outputs[0]: view for view in views}
    if wanted.physical.is_blocked:
        return None
    while slot.shares is not None:
        view = makers[slot]
        assert view.node is not None
        (source,), op = view.inputs, view.node.op
        if isinstance(op, Transpose):
            strides = wanted.physical.strides
            layout = Layout(tuple(strides[op.order.index(axis)] for axis in range(len(op.order))))
        elif isinstance(op, Reshape):
            given, before = wanted.reshaped(source.spec.shape)
            if not given.same_memory(wanted):
                return None
            layout = before.physical
        else:
            return None
        slot, wanted = source, Spec(source.spec.shape, source.spec.dtype, layout)
    return wanted.physical


def _part(op: Slice, spec: Spec) -> Plan | None:
    """The view of a part that begins at an address aligned as kernels presume of tensors; else None.

    [3, B, H, T, D] split into three along its first axis gives contiguous parts; split along its last one, parts with
    gaps.
    """
    (part,) = op.infer(spec)
    if spec.layout is None or spec.physical.is_blocked or not part.numel or any(s != 1 for s in op.step):
        return None
    strides = spec.physical.strides
    offset = op.first_within(strides) * spec.dtype.itemsize
    if offset % _ACCESS:
        return None
    layout = plainest(Layout(strides), part.shape)
    whole = passing_plan([spec], "part")
    return replace(whole, outputs=(Spec(part.shape, part.dtype, layout),), offset=offset)


def _by_memory(slots: Sequence[Slot]) -> dict[Slot, list[Slot]]:
    """The slots, grouped by the slot whose memory they share."""
    found: dict[Slot, list[Slot]] = {}
    for slot in slots:
        found.setdefault(slot.base, []).append(slot)
    return found


def _read_otherwise(step: PlannedStep, slot: Slot, shown: Sequence[Slot]) -> bool:
    """Whether a step also reads an input's memory at other places than where it would write, so that it cannot run in
    place.

    It does where another input views that memory in another order or in part, and where another input is the same
    value and the op is not elementwise (such as adding a tensor to itself at some indices).

    shown: all that the step reads of that memory.
    """
    if any(s.offset != slot.offset or not s.spec.same_memory(slot.spec) for s in shown):
        return True
    return len(shown) > 1 and (step.node is None or not _is_elementwise(step.node.op))


def _is_elementwise(op: Op) -> bool:
    """Whether each output element depends only on the elements at the same position of all inputs."""
    return all(part.elementwise for part in (op.ops if isinstance(op, Fused | FusedElementwise) else (op,)))


def _workspace(plan: Plan) -> Slot | None:
    return Slot(Spec((plan.workspace,), uint8).fixed, "temporary", "workspace") if plan.workspace else None
