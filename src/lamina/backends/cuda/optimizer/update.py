"""Optimizer steps over one tensor or many: one pass over parameters, gradients and moments, 16 bytes at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lamina.backends import Plan
from lamina.backends.cuda.elementwise.pointwise import full
from lamina.backends.cuda.elementwise.reduce import dense
from lamina.backends.cuda.launch.program import (
    VECTOR,
    Argument,
    Launch,
    Program,
    c_type,
    constants,
    kernel_plan,
    looping,
    scratch,
)
from lamina.backends.cuda.optimizer.rule import rule_text
from lamina.backends.cuda.optimizer.table import address_table
from lamina.backends.cuda.registry import kernels
from lamina.ops.primitives.update import Update
from lamina.runtime import Device
from lamina.spec import Policy, Spec

#: Blocks per tensor if norms are computed: every block of the step adds up the sums of all of them.
_MOST_SUMS = 1024


@kernels(Update, source="kernel")
def update(op: Update, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """(p', *moments', *scalars'[, step']) from the op's inputs, all moments laid out like the parameter."""
    like = dense(specs[0] if specs[0].layout is not None else specs[1]).physical
    shaped = 2 + len(op.moments)
    inputs = (*(full(s, like) for s in specs[:shaped]), *(s.fixed for s in specs[shaped:]))
    made = op.infer(*specs)
    outputs = (*(full(s, like) for s in made[: shaped - 1]), *(s.fixed for s in made[shaped - 1 :]))

    def steps(aligned: bool) -> tuple[Launch, ...]:
        launches = update_launches(op, [inputs], [outputs], aligned)
        if specs[0].numel == 0:
            return tuple(s for s in launches if s.program.name == "state_foreach")
        if op.norms:
            return launches
        first, *others = launches
        threads = -(-specs[0].numel // _width(inputs, aligned))
        alone = looping(first.program, threads, first.arguments, each=4)
        return (replace(first, grid=alone.grid, waves=alone.waves), *others)

    return kernel_plan(
        device,
        inputs,
        outputs,
        steps(True),
        label=op.name,
        workspace=update_workspace(op, [inputs], [outputs]),
        aliases=dict(op.inplace),
        plain=lambda: steps(False),
    )


def update_launches(
    op: Update, inputs: Sequence[tuple[Spec, ...]], outputs: Sequence[tuple[Spec, ...]], aligned: bool
) -> tuple[Launch, ...]:
    """Sums for norms, if the rule reads any; one launch over the elements of all parts; one that advances scalars and
    step counts."""
    p, g = inputs[0][:2]
    width = _width(inputs[0], aligned)
    most = _MOST_SUMS if op.norms else 1 << 30
    table, blocks, parts = address_table(_sizes(inputs), inputs, outputs, width, most)
    sizes = {"MOMENTS": len(op.moments), "SCALARS": len(op.scalars), "NORMS": op.norms}
    numbers = constants(V=width, COUNTED=int(op.counted), **sizes)
    kinds = {"T": p.dtype, "G": g.dtype, "RATE": inputs[0][-1].dtype}
    types = "".join(f"typedef {c_type(dtype)} {name};\n" for name, dtype in kinds.items())
    text = f"{types}{numbers}{parts}{rule_text(op, p.dtype)}"

    def launch(name: str, grid: int, threads: int, *others: Argument) -> Launch:
        return Launch(Program(name, "optimizer/update.cu", text), (grid,), (threads,), (table, *others))

    sums = (launch("norms_foreach", blocks, 256, scratch()),) if op.norms else ()
    state = (launch("state_foreach", 1, 32),) if op.counted or op.scalars else ()
    return (*sums, launch("update_foreach", blocks, 256, scratch()), *state)


def update_workspace(
    op: Update, inputs: Sequence[tuple[Spec, ...]], outputs: Sequence[tuple[Spec, ...]]
) -> int:
    """Bytes of the blocks' sums; the launches for unaligned addresses have the most blocks."""
    return 8 * op.norms * address_table(_sizes(inputs), inputs, outputs, 1, _MOST_SUMS)[1]


def _sizes(inputs: Sequence[tuple[Spec, ...]]) -> list[int]:
    """Elements of each parameter."""
    return [part[0].numel for part in inputs]


def _width(inputs: Sequence[Spec], aligned: bool) -> int:
    """Elements per access: 16 bytes of the wider of parameter and gradient."""
    return VECTOR // max(s.dtype.itemsize for s in inputs[:2]) if aligned else 1
