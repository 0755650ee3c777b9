"""Singular values and eigenvalues of symmetric matrices: a block per matrix, by Jacobi's rotations in float64."""

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
from lamina.backends.cuda.registry import kernels
from lamina.ops.primitives.decompose import SingularValues, SymmetricEigen
from lamina.runtime import Device
from lamina.spec import Policy, Spec

#: Sweeps over all pairs of columns: convergence is quadratic, so that about eight are needed in float64.
SWEEPS = 40


@kernels(SymmetricEigen, SingularValues, source="kernel")
def jacobi(
    op: SymmetricEigen | SingularValues, specs: tuple[Spec, ...], device: Device, policy: Policy
) -> Plan:
    """The matrices are row-major, one after another."""
    x = specs[0].open.fixed
    outputs = [s.fixed for s in op.infer(x.open)]
    *lead, m, n = x.shape
    count = prod(lead)
    if not x.numel:
        return kernel_plan(device, [x], outputs, [], label=op.name)
    text = f"typedef {c_type(x.dtype)} T;\n" + constants(M=m, N=n, SWEEPS=SWEEPS)
    places = (source(), *map(target, range(len(outputs))), scratch())
    launch = Launch(Program(op.name, "matmul/jacobi.cu", text), (count,), (128,), places)
    workspace = 8 * count * (n * m + n * n + n)
    return kernel_plan(device, [x], outputs, [launch], label=op.name, workspace=workspace)
