"""LU factors by elimination in float64, a block per matrix, larger ones by panels; exchanges as orders of rows."""

from __future__ import annotations

from math import prod

from lamina.backends import Plan
from lamina.backends.cuda.launch.program import (
    Launch,
    Program,
    c_type,
    constants,
    kernel_plan,
    scratch,
    source,
    target,
)
from lamina.backends.cuda.matmul import panels
from lamina.backends.cuda.registry import kernels
from lamina.ops.primitives.lu import PivotedFactor, RowOrder
from lamina.runtime import Device
from lamina.spec import Policy, Spec

_THREADS = 256


@kernels(PivotedFactor, source="kernel")
def pivoted_factor(op: PivotedFactor, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The matrices are row-major, one after another."""
    x = specs[0].open.fixed
    outputs = [s.fixed for s in op.infer(x.open)]
    *lead, m, n = x.shape
    if not x.numel:
        return kernel_plan(device, [x], outputs, [], label=op.name)
    if min(m, n) > panels.PANEL and panels.columns_of_a_block(m, 1, device.machine):
        made = panels.Eliminated(x, None, prod(lead), device.machine, left=True)
        launches, label = [*made.launches, made.stored()], f"{op.name} panels"
        return kernel_plan(device, [x], outputs, launches, label=label, workspace=made.nbytes)
    text = f"typedef {c_type(x.dtype)} T;\n" + constants(M=m, N=n, K=min(m, n), COUNT=prod(lead), INVERSE=0)
    places = (source(), target(0), target(1), scratch())
    launch = Launch(Program(op.name, "matmul/lu.cu", text), (prod(lead),), (_THREADS,), places)
    return kernel_plan(device, [x], outputs, [launch], label=op.name, workspace=8 * x.numel)


@kernels(RowOrder, source="kernel")
def row_order(op: RowOrder, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The pivots of one matrix after another's."""
    pivots = specs[0].open.fixed
    (found,) = (s.fixed for s in op.infer(pivots.open))
    if not found.numel:
        return kernel_plan(device, [pivots], [found], [], label=op.name)
    *lead, count = pivots.shape
    matrices = prod(lead)
    sizes = constants(M=op.rows, N=1, K=count, COUNT=matrices, INVERSE=int(op.inverse))
    program = Program(op.name, "matmul/lu.cu", f"typedef f64 T;\n{sizes}")
    places = (source(), target(), scratch())
    launch = Launch(program, (-(-matrices // _THREADS),), (_THREADS,), places)
    workspace = 4 * found.numel if op.inverse else 8
    return kernel_plan(device, [pivots], [found], [launch], label=op.name, workspace=workspace)
