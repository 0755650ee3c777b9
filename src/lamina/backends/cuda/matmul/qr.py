"""Orthogonal and triangular factors by Householder's reflections in float64: a block per matrix, or by panels."""

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
from lamina.ops.primitives.qr import CompleteOrthogonalFactor, OrthogonalFactor, TriangularFactor
from lamina.runtime import Device
from lamina.spec import Policy, Spec


@kernels(OrthogonalFactor, TriangularFactor, CompleteOrthogonalFactor, source="kernel")
def orthogonal_factor(
    op: OrthogonalFactor | TriangularFactor | CompleteOrthogonalFactor,
    specs: tuple[Spec, ...],
    device: Device,
    policy: Policy,
) -> Plan:
    """The matrices are row-major, one after another; Q of a matrix without columns is the unit matrix."""
    x = specs[0].open.fixed
    outputs = [s.fixed for s in op.infer(x.open)]
    *lead, m, n = x.shape
    if not any(s.numel for s in outputs):
        return kernel_plan(device, [x], outputs, [], label=op.name)
    columns = 0 if isinstance(op, TriangularFactor) else outputs[0].shape[-1]
    if min(m, n) > panels.PANEL:
        launches, workspace = panels.orthogonal(x, columns, outputs[-1].shape[-2], device.machine)
        return kernel_plan(device, [x], outputs, launches, label=f"{op.name} panels", workspace=workspace)
    size = m * n + min(m, n) + m * columns
    sizes = constants(M=m, N=n, Q=columns, R=outputs[-1].shape[-2], SIZE=size)
    name = "orthogonal_factor" if columns else TriangularFactor.name
    program = Program(name, "matmul/qr.cu", f"typedef {c_type(x.dtype)} T;\n{sizes}")
    places = (source(), *map(target, range(len(outputs))), scratch())
    launch = Launch(program, (prod(lead),), (256,), places)
    return kernel_plan(device, [x], outputs, [launch], label=op.name, workspace=max(8 * prod(lead) * size, 8))
