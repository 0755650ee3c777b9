"""Planned programs with each value at its planned place: views, copies, and in-place computations.

Ops are computed by their NumPy reference, so that a program for a GPU runs without one; the places of values and
the operands of steps are as planned.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lamina.backends.reference import run_reference
from lamina.graph.planning.program import PlannedGraph, PlannedStep, Slot
from lamina.ops.core import Array
from lamina.spec import pack, unpack
from lamina.spec.layout import physical_elements


def run_laid(program: PlannedGraph, arrays: Sequence[Array]) -> list[Array]:
    """The outputs of a program, donated ones too."""
    memory = {s: pack(a, s.spec.physical) for s, a in zip(program.inputs, arrays, strict=True)}
    for value, slot in program.constants.items():
        assert value.constant is not None
        memory[slot] = pack(value.constant.numpy(), slot.spec.physical)
    for step in (*program.prologue, *program.steps):
        _run(step, memory)
    return [_shown(slot, memory) for slot in program.outputs]


def run_in_arena(program: PlannedGraph, arrays: Sequence[Array], steps: Sequence[PlannedStep]) -> list[Array]:
    """The same with temporaries at their places in one arena, and steps in the given order: premature overwriting
    shows in the outputs."""
    memory = {s: pack(a, s.spec.physical).copy() for s, a in zip(program.inputs, arrays, strict=True)}
    arena = np.full(program.placement.nbytes, 0xFF, np.uint8)  # NaN where nothing was written
    for slot, offset in zip(program.temporaries, program.placement.offsets, strict=True):
        memory[slot] = arena[offset : offset + slot.spec.nbytes].view(slot.spec.dtype.numpy)
    for step in steps:
        if not step.plan.view:
            given = [_shown(slot, memory).copy() for slot in step.inputs]
            found = given if step.node is None else run_reference(step.node.op, given)
            for slot, y in zip(step.outputs, found, strict=True):
                first, flat = slot.offset // slot.spec.dtype.itemsize, pack(y, slot.spec.physical).reshape(-1)
                memory[slot.base].reshape(-1)[first : first + flat.size] = flat
    return [_shown(slot, memory) for slot in program.outputs]


def _run(step: PlannedStep, memory: dict[Slot, Array]) -> None:
    for slot, spec in zip(
        (*step.inputs, *step.outputs), (*step.plan.inputs, *step.plan.outputs), strict=True
    ):
        assert slot.spec.same_memory(spec), f"{step.label}: {slot.spec} is planned as {spec}"
    if step.plan.view:
        assert step.outputs[0].base is step.inputs[0].base
        return
    given = [_shown(slot, memory) for slot in step.inputs]
    found = given if step.node is None else run_reference(step.node.op, given)
    for slot, y in zip(step.outputs, found, strict=True):
        memory[slot.base] = pack(y, slot.spec.physical)


def _shown(slot: Slot, memory: dict[Slot, Array]) -> Array:
    first, layout = slot.offset // slot.spec.dtype.itemsize, slot.spec.physical
    flat = memory[slot.base].reshape(-1)[first:][: physical_elements(layout, slot.spec.shape)]
    return unpack(flat, layout, slot.spec.shape)


def copies(program: PlannedGraph) -> list[str]:
    """The reorders in every run, as text."""
    return [f"{s.inputs[0].spec} -> {s.outputs[0].spec}" for s in program.steps if s.node is None]
