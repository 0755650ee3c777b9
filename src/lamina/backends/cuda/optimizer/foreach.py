"""One op on many dense tensors in one launch: a table of addresses comes along as a parameter."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.backends import NoKernel, Plan
from lamina.backends.cuda.elementwise.pointwise import expression_of, op_value
from lamina.backends.cuda.launch.program import (
    VECTOR,
    Launch,
    Program,
    c_type,
    kernel_plan,
    wide_type,
)
from lamina.backends.cuda.optimizer.table import MOST_BYTES, address_table
from lamina.backends.cuda.optimizer.update import update_launches, update_workspace
from lamina.backends.cuda.registry import kernels
from lamina.ops.core import Op
from lamina.ops.primitives.cast import Cast
from lamina.ops.primitives.foreach import Foreach
from lamina.ops.primitives.update import Update
from lamina.runtime import Device
from lamina.spec import Policy, Spec


@kernels(Foreach, source="kernel")
def foreach(op: Foreach, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The parts laid out as the op alone would have them; raises NoKernel where they do not suit one kernel."""
    single = op.op
    numbers = expression_of(single) is not None and all(s.numel == 1 for s in specs)
    if not numbers and not isinstance(single, Update | Cast):
        raise NoKernel(f"cuda: no kernel for many of {single.name}, but for tensors of one element")
    plans = [kernels.plan(single, part, device, policy) for part in op.parts(specs)]
    inputs, outputs = [p.inputs for p in plans], [p.outputs for p in plans]
    _check(single, inputs, outputs)

    def steps(aligned: bool) -> tuple[Launch, ...]:
        if isinstance(single, Update):
            return update_launches(single, inputs, outputs, aligned)
        if isinstance(single, Cast):
            return _casts(inputs, outputs, aligned)
        return (_numbers(single, inputs, outputs),)

    n_in, n_out = len(inputs[0]), len(outputs[0])
    aliases = {i * n_out + o: i * n_in + k for i, plan in enumerate(plans) for o, k in plan.aliases.items()}
    return kernel_plan(
        device,
        [s for part in inputs for s in part],
        [s for part in outputs for s in part],
        steps(True),
        label=f"foreach {op.count} x {single.name}",
        workspace=update_workspace(single, inputs, outputs) if isinstance(single, Update) else 0,
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
    if len(inputs) * (2 + len(inputs[0]) + len(outputs[0])) * 8 > MOST_BYTES:
        raise NoKernel(f"cuda: {len(inputs)} of {op.name} are more than a launch can be told of")


def _numbers(op: Op, inputs: Sequence[tuple[Spec, ...]], outputs: Sequence[tuple[Spec, ...]]) -> Launch:
    """An elementwise op on tensors of one element: a thread for each."""
    taken, (out,) = [s.dtype for s in inputs[0]], outputs[0]
    names, types = [f"a{i}" for i in range(len(taken))], [wide_type(t) for t in taken]
    value = op_value(op, names, types, "v", out.dtype)
    reads = "".join(
        f"    const {wide} {name} = widen(*(const {c_type(dtype)} *)row[{2 + i}]);\n"
        for i, (name, wide, dtype) in enumerate(zip(names, types, taken, strict=True))
    )
    table, _, parts = address_table(inputs, outputs, 1)
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


def _casts(
    inputs: Sequence[tuple[Spec, ...]], outputs: Sequence[tuple[Spec, ...]], aligned: bool
) -> tuple[Launch, ...]:
    x, y = inputs[0][0].dtype, outputs[0][0].dtype
    width = VECTOR // max(x.itemsize, y.itemsize) if aligned else 1
    table, blocks, parts = address_table(inputs, outputs, width)
    text = f"typedef {c_type(x)} S;\ntypedef {c_type(y)} T;\n#define V {width}\n{parts}"
    return (Launch(Program("cast_group", "optimizer/cast.cu", text), (blocks,), (256,), (table,)),)
