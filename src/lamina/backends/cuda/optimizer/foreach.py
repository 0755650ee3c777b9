"""One card on many dense tensors in one launch: a table of addresses comes along as a parameter."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.backends import NoKernel, Plan
from lamina.backends.cuda.elementwise.pointwise import EXPRESSIONS, card_value
from lamina.backends.cuda.launch.program import (
    VECTOR,
    Launch,
    Place,
    Program,
    Table,
    c_type,
    constants,
    kernel_plan,
    source,
    target,
    wide_type,
)
from lamina.backends.cuda.optimizer.update import access_width, rule_text
from lamina.backends.cuda.registry import kernels
from lamina.ops.core import Op
from lamina.ops.primitives.cast import Cast
from lamina.ops.primitives.foreach import Foreach
from lamina.ops.primitives.update import AdamUpdate, SgdUpdate
from lamina.runtime import Device
from lamina.spec import Policy, Spec

#: Bytes that a kernel's parameters may have from CUDA 12.1 on, less room for the others.
_MOST_BYTES = 32_000
#: Accesses of each thread: enough work for a block to be worth its start.
_ACCESSES = 4


@kernels(Foreach, source="kernel")
def foreach(op: Foreach, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The parts laid out as the card alone would have them; raises NoKernel where they do not suit one kernel."""
    single = op.op
    numbers = type(single) in EXPRESSIONS and all(s.numel == 1 for s in specs)
    if not numbers and not isinstance(single, SgdUpdate | AdamUpdate | Cast):
        raise NoKernel(f"cuda: no kernel for many of {single.name}, but for tensors of one element")
    plans = [kernels.plan(single, part, device, policy) for part in op.parts(specs)]
    inputs, outputs = [p.inputs for p in plans], [p.outputs for p in plans]
    _check(single, inputs, outputs)

    def steps(aligned: bool) -> tuple[Launch, ...]:
        if numbers and not isinstance(single, Cast):
            return (_numbers(single, inputs, outputs),)
        return _launches(single, inputs, outputs, aligned)

    n_in, n_out = len(inputs[0]), len(outputs[0])
    aliases = {i * n_out + o: i * n_in + k for i, plan in enumerate(plans) for o, k in plan.aliases.items()}
    return kernel_plan(
        device,
        [s for part in inputs for s in part],
        [s for part in outputs for s in part],
        steps(True),
        label=f"foreach {op.count} x {single.name}",
        aliases=aliases,
        plain=lambda: steps(False),
    )


def _check(op: Op, inputs: Sequence[tuple[Spec, ...]], outputs: Sequence[tuple[Spec, ...]]) -> None:
    """One kernel needs equal dtypes, elements in one order without gaps, and a table that fits."""
    kinds = {tuple(s.dtype for s in (*i, *o)) for i, o in zip(inputs, outputs, strict=True)}
    if len(kinds) > 1:
        raise NoKernel(f"cuda: many of {op.name} need equal dtypes, got {len(kinds)} kinds")
    for i, o in zip(inputs, outputs, strict=True):
        full = [s for s in (*i, *o) if s.shape == i[0].shape]
        if any(s.tag is None or s.physical != full[0].physical for s in full):
            raise NoKernel(f"cuda: many of {op.name} need operands that lie alike, got {i}")
    if len(inputs) * (2 + len(inputs[0]) + len(outputs[0])) * 8 > _MOST_BYTES:
        raise NoKernel(f"cuda: {len(inputs)} of {op.name} are more than a launch can be told of")


def _numbers(op: Op, inputs: Sequence[tuple[Spec, ...]], outputs: Sequence[tuple[Spec, ...]]) -> Launch:
    """An elementwise card on tensors of one element: a thread for each."""
    taken, (out,) = [s.dtype for s in inputs[0]], outputs[0]
    names, types = [f"a{i}" for i in range(len(taken))], [wide_type(t) for t in taken]
    value = card_value(op, names, types, "v", out.dtype)
    reads = "".join(
        f"    const {wide} {name} = widen(*(const {c_type(dtype)} *)row[{2 + i}]);\n"
        for i, (name, wide, dtype) in enumerate(zip(names, types, taken, strict=True))
    )
    table, _, parts = _table(inputs, outputs, 1)
    text = f"""#define V 1
{parts}#include "foreach.cuh"
extern "C" __global__ void __launch_bounds__(256) numbers_group(const __grid_constant__ Table table)
{{
    const int part = blockIdx.x * 256 + threadIdx.x;
    if (part >= PARTS) return;
    const u64 *row = table.v + part * WIDTH;
{reads}    const {value.type} v = {value.expression};
    *({c_type(out.dtype)} *)row[{2 + len(taken)}] = narrow<{c_type(out.dtype)}>(v);
}}
"""
    return Launch(Program("numbers_group", text=text), (-(-len(inputs) // 256),), (256,), (table,))


def _launches(
    op: Op,
    inputs: Sequence[tuple[Spec, ...]],
    outputs: Sequence[tuple[Spec, ...]],
    aligned: bool,
) -> tuple[Launch, ...]:
    """The launches on all parts that have elements."""
    assert isinstance(op, SgdUpdate | AdamUpdate | Cast)
    if isinstance(op, Cast):
        return _casts(inputs, outputs, aligned)
    width = access_width(inputs[0], aligned=aligned)
    table, blocks, parts = _table(inputs, outputs, width)
    text = rule_text(op, inputs[0], width) + parts
    name = "sgd_group" if isinstance(op, SgdUpdate) else "adam_group"
    update = Launch(Program(name, "optimizer/update.cu", text), (blocks,), (256,), (table,))
    if isinstance(op, SgdUpdate):
        return (update,)
    counts = Launch(Program("adam_count_group", "optimizer/update.cu", text), (1,), (32,), (table,))
    return (update, counts)


def _casts(
    inputs: Sequence[tuple[Spec, ...]], outputs: Sequence[tuple[Spec, ...]], aligned: bool
) -> tuple[Launch, ...]:
    x, y = inputs[0][0].dtype, outputs[0][0].dtype
    width = VECTOR // max(x.itemsize, y.itemsize) if aligned else 1
    table, blocks, parts = _table(inputs, outputs, width)
    text = f"typedef {c_type(x)} S;\ntypedef {c_type(y)} T;\n#define V {width}\n{parts}"
    return (Launch(Program("cast_group", "optimizer/cast.cu", text), (blocks,), (256,), (table,)),)


def _table(
    inputs: Sequence[tuple[Spec, ...]], outputs: Sequence[tuple[Spec, ...]], width: int
) -> tuple[Table, int, str]:
    """The table of all parts, how many blocks work on it, and the constants of foreach.cuh."""
    entries: list[Place | int] = []
    first, n_in, n_out = 0, len(inputs[0]), len(outputs[0])
    for i, part in enumerate(inputs):
        places = [source(i * n_in + k) for k in range(n_in)]
        places += [target(i * n_out + k) for k in range(n_out)]
        entries += [first, part[0].numel, *places]
        first += max(1, -(-part[0].numel // (256 * width * _ACCESSES)))
    row = len(entries) // len(inputs)
    return Table(tuple(entries)), first, constants(PARTS=len(inputs), WIDTH=row)
