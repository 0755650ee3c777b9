"""Optimizer steps: one pass over parameters, gradient and moments, 16 bytes at a time, in place."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.backends import Plan
from lamina.backends.cuda.elementwise.pointwise import full
from lamina.backends.cuda.elementwise.reduce import dense
from lamina.backends.cuda.launch.program import (
    VECTOR,
    Bindable,
    Launch,
    Number,
    Program,
    c_type,
    constants,
    kernel_plan,
    looping,
    source,
    target,
)
from lamina.backends.cuda.registry import kernels
from lamina.ops.primitives.update import AdamUpdate, SgdUpdate
from lamina.runtime import Device
from lamina.spec import Policy, Spec


@kernels(SgdUpdate, source="kernel")
def sgd_update(op: SgdUpdate, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """(p', m') from (p, g, m, rate)."""
    p = dense(specs[0] if specs[0].layout is not None else specs[1])
    inputs = [*(full(s, p.physical) for s in specs[:3]), specs[3].fixed]
    outputs = [full(o, p.physical) for o in op.infer(*specs)]

    def steps(aligned: bool) -> tuple[Bindable, ...]:
        return _steps("sgd_update", op, inputs, 2, 4, aligned)

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

    def steps(aligned: bool) -> tuple[Bindable, ...]:
        update = _steps("adam_update", op, inputs, 3, 6, aligned)
        text = rule_text(op, inputs, 1)
        count = Launch(
            Program("adam_count", "optimizer/update.cu", text), (1,), (32,), (source(4), target(3))
        )
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


def rule_text(op: SgdUpdate | AdamUpdate, inputs: Sequence[Spec], width: int) -> str:
    """The constants of update.cu for a rule on parameters and gradients as `inputs` has them."""
    types = f"typedef {c_type(inputs[0].dtype)} T;\ntypedef {c_type(inputs[1].dtype)} G;\n"
    rule = "SGD" if isinstance(op, SgdUpdate) else "ADAM"
    return f"#define {rule}\n#define V {width}\n{types}{_numbers(op)}"


def _numbers(op: SgdUpdate | AdamUpdate) -> str:
    """The rule's numbers; those of the other rule are 0, for the source to be whole."""
    names = ("MOMENTUM", "DAMPENING", "NESTEROV", "HAS_MOMENTUM", "BETA1", "BETA2", "EPS", "DECOUPLED")
    numbers: dict[str, int | str | float] = dict.fromkeys(names, 0)
    numbers["WEIGHT_DECAY"] = _real(op.weight_decay)
    if isinstance(op, SgdUpdate):
        numbers |= {"MOMENTUM": _real(op.momentum), "DAMPENING": _real(op.dampening)}
        numbers |= {"NESTEROV": int(op.nesterov), "HAS_MOMENTUM": int(op.momentum != 0)}
    else:
        numbers |= {"BETA1": _real(op.beta1), "BETA2": _real(op.beta2), "EPS": _real(op.eps)}
        numbers["DECOUPLED"] = int(op.decoupled)
    return constants(**numbers)


def access_width(inputs: Sequence[Spec], *, aligned: bool) -> int:
    """Elements per access: 16 bytes of the wider of parameter and gradient."""
    return VECTOR // max(s.dtype.itemsize for s in inputs[:2]) if aligned else 1


def _steps(
    name: str,
    op: SgdUpdate | AdamUpdate,
    inputs: Sequence[Spec],
    written: int,
    read: int,
    aligned: bool,
) -> tuple[Bindable, ...]:
    """One launch over all elements; nothing for an empty tensor."""
    count = inputs[0].numel
    if count == 0:
        return ()
    width = access_width(inputs, aligned=aligned)
    program = Program(name, "optimizer/update.cu", rule_text(op, inputs, width))
    places = (*(source(i) for i in range(read)), *(target(i) for i in range(written)))
    return (looping(program, -(-count // width), (*places, Number(count, "i64")), each=4),)
