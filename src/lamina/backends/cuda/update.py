"""Optimizer steps: one pass over parameters, gradient and moments, 16 bytes at a time, in place."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.backends import Plan
from lamina.backends.cuda.pointwise import full
from lamina.backends.cuda.program import (
    VECTOR,
    Launch,
    Number,
    Program,
    Step,
    blocks_for,
    c_type,
    constants,
    kernel_plan,
    source,
    target,
)
from lamina.backends.cuda.reduce import dense
from lamina.backends.cuda.table import kernels
from lamina.ops.update import AdamUpdate, SgdUpdate
from lamina.runtime import Device
from lamina.spec import Policy, Spec


@kernels(SgdUpdate, source="kernel")
def sgd_update(op: SgdUpdate, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """(p', m') from (p, g, m, rate)."""
    p = dense(specs[0] if specs[0].layout is not None else specs[1])
    inputs = [*(full(s, p.physical) for s in specs[:3]), specs[3].fixed]
    outputs = [full(o, p.physical) for o in op.infer(*specs)]
    numbers = constants(
        MOMENTUM=_real(op.momentum),
        DAMPENING=_real(op.dampening),
        WEIGHT_DECAY=_real(op.weight_decay),
        NESTEROV=int(op.nesterov),
        HAS_MOMENTUM=int(op.momentum != 0),
        BETA1=0,
        BETA2=0,
        EPS=0,
        DECOUPLED=0,
    )

    def steps(aligned: bool) -> tuple[Step, ...]:
        return _steps("sgd_update", "SGD", numbers, inputs, 2, 4, aligned)

    return kernel_plan(
        device,
        inputs,
        outputs,
        steps(True),
        label=op.name,
        aliases=dict(op.inplace),
        plain=lambda: steps(False),
    )


@kernels(AdamUpdate, source="kernel")
def adam_update(op: AdamUpdate, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """(p', m', v', step') from (p, g, m, v, step, rate)."""
    p = dense(specs[0] if specs[0].layout is not None else specs[1])
    inputs = [*(full(s, p.physical) for s in specs[:4]), specs[4].fixed, specs[5].fixed]
    outputs = [*(full(o, p.physical) for o in op.infer(*specs)[:3]), specs[4].fixed]
    numbers = constants(
        BETA1=_real(op.beta1),
        BETA2=_real(op.beta2),
        EPS=_real(op.eps),
        WEIGHT_DECAY=_real(op.weight_decay),
        DECOUPLED=int(op.decoupled),
        MOMENTUM=0,
        DAMPENING=0,
        NESTEROV=0,
        HAS_MOMENTUM=0,
    )

    def steps(aligned: bool) -> tuple[Step, ...]:
        update = _steps("adam_update", "ADAM", numbers, inputs, 3, 6, aligned)
        text = _text("ADAM", numbers, inputs, 1)
        count = Launch(Program("adam_count", "update.cu", text), (1,), (32,), (source(4), target(3)))
        return (*update, count)

    return kernel_plan(
        device,
        inputs,
        outputs,
        steps(True),
        label=op.name,
        aliases=dict(op.inplace),
        plain=lambda: steps(False),
    )


def _real(value: float) -> str:
    return f"({float(value)!r})"


def _text(rule: str, numbers: str, inputs: Sequence[Spec], width: int) -> str:
    types = f"typedef {c_type(inputs[0].dtype)} T;\ntypedef {c_type(inputs[1].dtype)} G;\n"
    return f"#define {rule}\n#define V {width}\n{types}{numbers}"


def _steps(
    name: str,
    rule: str,
    numbers: str,
    inputs: Sequence[Spec],
    written: int,
    read: int,
    aligned: bool,
) -> tuple[Step, ...]:
    """One launch over all elements; nothing for an empty tensor."""
    p, g = inputs[:2]
    if p.numel == 0:
        return ()
    width = VECTOR // max(p.dtype.itemsize, g.dtype.itemsize) if aligned else 1
    program = Program(name, "update.cu", _text(rule, numbers, inputs, width))
    places = (*(source(i) for i in range(read)), *(target(i) for i in range(written)))
    grid = (blocks_for(-(-p.numel // width), 256) * 4,)
    return (Launch(program, grid, (256,), (*places, Number(p.numel, "i64"))),)
