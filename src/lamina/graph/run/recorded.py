"""Compiled graphs as data for `lamina.replay`; steps that it cannot run without ops are replanned when they are
read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lamina import backends
from lamina.backends import Again, Backend, Call, Meaning, NoKernel, Plan, Run
from lamina.backends.reference import by_numpy
from lamina.graph.ir.serialize import decode_op, encode_op
from lamina.graph.planning.program import PlannedStep, Slot
from lamina.graph.run.executable import Executable
from lamina.ops.core import Op
from lamina.replay.addresses import ARENA, COUNTERS, INPUTS, KEPT, Regions, virtual
from lamina.replay.errors import OtherMachineError, PlanFileError
from lamina.replay.file import Parts
from lamina.replay.specs import decode_spec, encode_spec
from lamina.runtime import Device, to_host
from lamina.spec import Policy, Spec
from lamina.tensors import relaid_of


class Recording:
    """Serializes an executable: bytes that it reads go into `parts`, `data` is the rest.

    Raises RuntimeError for one that cannot run (the null backend, no weights), ValueError for one that updates state.
    """

    def __init__(self, executable: Executable, parts: Parts) -> None:
        if executable.donate:
            raise ValueError(
                f"{executable.graph.name} updates state; what is saved answers and changes nothing"
            )
        executable.check_ready()
        self._from, self._parts, self._zeros = executable, parts, 0
        program = executable.program
        offsets = zip(program.temporaries, program.placement.offsets, strict=True)
        self._places: dict[Slot, int] = {slot: virtual(ARENA, offset) for slot, offset in offsets}
        given = [slot for slot in program.inputs if slot.kind == "input"]
        self._places |= {slot: virtual(INPUTS + i) for i, slot in enumerate(given)}
        steps = [data for step in program.steps if not step.plan.view for data in self._step(step)]
        outputs = [[self._pointer(s), encode_spec(s.spec)] for s in program.outputs]
        self.data: dict[str, Any] = {
            "arena": program.placement.nbytes,
            "counters": 4 * self._zeros,
            "inputs": [[s.name, encode_spec(s.spec)] for s in given],
            "outputs": outputs,
            "steps": steps,
        }

    # the interface for plans
    def keep(self, data: Any) -> int:
        """The virtual address of constant bytes."""
        return virtual(KEPT, self._parts.add(data))

    def store(self, data: Any) -> list[int]:
        """The offset of bytes in the file, and their number."""
        return [self._parts.add(data), memoryview(data).nbytes]

    def counters(self, count: int) -> int:
        """The virtual address of `count` 32-bit zeros."""
        found, self._zeros = self._zeros, self._zeros + -(-count // 32) * 32
        return virtual(COUNTERS, 4 * found)

    # ---- steps
    def _pointer(self, slot: Slot) -> int:
        base = slot.base
        if base not in self._places:
            self._places[base] = self._kept(base)
        return self._places[base] + slot.offset

    def _kept(self, slot: Slot) -> int:
        """The address of memory that no call writes."""
        nbytes = slot.spec.nbytes
        if not nbytes:
            return virtual(KEPT)
        return self.keep(to_host(self._from.shared(slot).view(0, nbytes)))

    def _step(self, step: PlannedStep) -> list[Any]:
        call = Call(
            tuple([self._pointer(s) for s in step.inputs]),
            tuple([self._pointer(s) for s in step.outputs]),
            self._pointer(step.workspace) if step.workspace else 0,
        )
        found = step.plan.recorded(call, self)
        if found is None:
            found = [self._planned_anew(step, call)]
        return [self._as_data(data) for data in found]

    def _planned_anew(self, step: PlannedStep, call: Call) -> list[Any]:
        """A step whose kernels cannot be serialized: the op, or the reorder."""
        what = ["reorder"] if step.node is None else _named(step.node.op, step.node.policy)
        return self._anew(what, step.plan, call)

    def _anew(self, what: list[Any], plan: Plan, call: Call) -> list[Any]:
        backend = self._from.backend
        again = _plan(backend, what, plan.inputs, plan.outputs)
        if not _fits(again, plan.inputs, plan.outputs, plan.workspace):
            raise ValueError(
                f"{plan.label} cannot be saved: planned again, it is {again.label}, on other layouts"
            )
        specs = [[encode_spec(s) for s in specs] for specs in (plan.inputs, plan.outputs)]
        return [
            "anew",
            backend.name,
            what,
            *specs,
            plan.workspace,
            [list(call.inputs), list(call.outputs), call.workspace],
        ]

    def _as_data(self, data: Any) -> Any:
        """The step with every op in it serialized by its NumPy reference."""
        if isinstance(data, Again):
            return self._anew(_named(data.op, Policy()), data.plan, data.call)
        if isinstance(data, Meaning):
            specs = [[encode_spec(s) for s in specs] for specs in (data.inputs, data.outputs)]
            return [
                "numpy",
                data.op.name,
                encode_op(data.op),
                *specs,
                list(data.call.inputs),
                list(data.call.outputs),
            ]
        return [self._as_data(d) for d in data] if isinstance(data, list) else data


def _named(op: Op, policy: Policy) -> list[Any]:
    """The op or reorder to be replanned."""
    return ["op", op.name, encode_op(op), dataclasses.asdict(policy)]


def _fits(plan: Plan, inputs: Sequence[Spec], outputs: Sequence[Spec], workspace: int) -> bool:
    pairs = [*zip(plan.inputs, inputs, strict=True), *zip(plan.outputs, outputs, strict=True)]
    return plan.workspace <= workspace and all(a.same_memory(b) for a, b in pairs)


# ---------------------------------------------------------------------------------------------------------- reading
Bind = Callable[[Regions, int], Run]


def meaning(name: Any, fields: Any, inputs: Any, outputs: Any, sources: Any, targets: Any) -> Bind:
    """An op's NumPy reference as a step. Raises GraphFileError, and what the op's `infer` raises."""
    op = decode_op(name, fields)
    given, made = ([decode_spec(s) for s in specs] for specs in (inputs, outputs))
    _check(op.infer(*(s.open for s in given)), made, name)

    def bind(memory: Regions, stream: int) -> Run:
        return by_numpy(op, given, made, Call(*_addresses(memory, given, made, sources, targets)))

    return bind


def anew(
    device: Device, backend: Any, what: Any, inputs: Any, outputs: Any, workspace: Any, addresses: Any
) -> Bind:
    """A step that is planned on loading. Raises OtherMachineError where its plan differs from the saved one."""
    planner = backends.get(device, str(backend))
    given, made = ([decode_spec(s) for s in specs] for specs in (inputs, outputs))
    plan = _plan(planner, what, given, made)
    if (
        len(plan.inputs) != len(given)
        or len(plan.outputs) != len(made)
        or not _fits(plan, given, made, workspace)
    ):
        raise OtherMachineError(f"{plan.label} does not fit where the plan has {what[0]} {what[1:2]}")
    sources, targets, scratch = addresses

    def bind(memory: Regions, stream: int) -> Run:
        found = _addresses(memory, given, made, sources, targets)
        return plan.bind(Call(*found, memory.at(scratch, workspace), stream))

    return bind


def _plan(planner: Backend, what: Any, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> Plan:
    if what == ["reorder"]:
        return planner.reorder(inputs[0], outputs[0])
    _, name, fields, policy = what
    try:
        plan = planner.plan(decode_op(name, fields), inputs, _policy(policy))
    except NoKernel as error:
        raise OtherMachineError(str(error)) from None
    return _laid_as(plan, outputs)


def _laid_as(plan: Plan, outputs: Sequence[Spec]) -> Plan:
    """The plan with its output in the layout that its reader needed, where it offers that layout."""
    if not outputs or outputs[0].open != plan.outputs[0].open or outputs[0].same_memory(plan.outputs[0]):
        return plan
    is_dense = outputs[0].tag is not None and not outputs[0].physical.is_blocked
    relaid = relaid_of(plan, outputs[0].physical) if is_dense else None
    return plan if relaid is None else relaid


def _policy(fields: Mapping[str, Any]) -> Policy:
    return Policy(**fields)


def _addresses(
    memory: Regions, inputs: Sequence[Spec], outputs: Sequence[Spec], sources: Any, targets: Any
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    given, made = (
        tuple([memory.at(address, spec.nbytes) for address, spec in zip(addresses, specs, strict=True)])
        for addresses, specs in ((sources, inputs), (targets, outputs))
    )
    return given, made


def _check(inferred: Sequence[Spec], outputs: Sequence[Spec], name: Any) -> None:
    """Raise PlanFileError unless these are the outputs' shapes and dtypes."""
    if [s.open for s in inferred] != [s.open for s in outputs]:
        raise PlanFileError(f"{name} gives {list(inferred)}, not {list(outputs)}")
