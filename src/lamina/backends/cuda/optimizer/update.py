"""Optimizer steps over one tensor or many: one pass over parameters, gradients and moments, 16 bytes at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lamina.backends import Plan
from lamina.backends.cuda.elementwise.pointwise import full
from lamina.backends.cuda.elementwise.reduce import dense
from lamina.backends.cuda.launch.program import (
    VECTOR,
    Launch,
    Program,
    c_type,
    constants,
    kernel_plan,
    looping,
)
from lamina.backends.cuda.optimizer.rule import rule_text
from lamina.backends.cuda.optimizer.table import address_table
from lamina.backends.cuda.registry import kernels
from lamina.ops.primitives.update import Update
from lamina.runtime import Device
from lamina.spec import Policy, Spec


@kernels(Update, source="kernel")
def update(op: Update, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """(p', *moments'[, step']) from (p, g, *moments[, step], rate), all laid out like the parameter."""
    like = dense(specs[0] if specs[0].layout is not None else specs[1]).physical
    shaped = 2 + len(op.moments)
    inputs = (*(full(s, like) for s in specs[:shaped]), *(s.fixed for s in specs[shaped:]))
    made = op.infer(*specs)
    outputs = (*(full(s, like) for s in made[: shaped - 1]), *(s.fixed for s in made[shaped - 1 :]))

    def steps(aligned: bool) -> tuple[Launch, ...]:
        if specs[0].numel == 0:
            return update_launches(op, [inputs], [outputs], aligned)[1:]
        first, *others = update_launches(op, [inputs], [outputs], aligned)
        threads = -(-specs[0].numel // _width(inputs, aligned))
        alone = looping(first.program, threads, first.arguments, each=4)
        return (replace(first, grid=alone.grid, waves=alone.waves), *others)

    return kernel_plan(
        device,
        inputs,
        outputs,
        steps(True),
        label=op.name,
        aliases=dict(op.inplace),
        plain=lambda: steps(False),
    )


def update_launches(
    op: Update, inputs: Sequence[tuple[Spec, ...]], outputs: Sequence[tuple[Spec, ...]], aligned: bool
) -> tuple[Launch, ...]:
    """One launch over the elements of all parts, and one that moves their counts of steps on."""
    p, g = inputs[0][:2]
    width = _width(inputs[0], aligned)
    table, blocks, parts = address_table(inputs, outputs, width)
    numbers = constants(V=width, MOMENTS=len(op.moments), COUNTED=int(op.counted))
    types = f"typedef {c_type(p.dtype)} T;\ntypedef {c_type(g.dtype)} G;\n"
    text = f"{types}{numbers}{parts}{rule_text(op, p.dtype)}"
    step = Launch(Program("update_foreach", "optimizer/update.cu", text), (blocks,), (256,), (table,))
    count = Launch(Program("count_foreach", "optimizer/update.cu", text), (1,), (32,), (table,))
    return (step, count) if op.counted else (step,)


def _width(inputs: Sequence[Spec], aligned: bool) -> int:
    """Elements per access: 16 bytes of the wider of parameter and gradient."""
    return VECTOR // max(s.dtype.itemsize for s in inputs[:2]) if aligned else 1
