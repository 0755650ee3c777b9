"""Factors of matrices, linear systems and determinants, by elimination in float64: a block per matrix, larger ones by
panels.
"""

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
from lamina.ops.primitives.determinant import Cofactors, Determinant
from lamina.ops.primitives.factorize import (
    CholeskyFactor,
    Factorization,
    LinearSolve,
    LogDeterminant,
    TriangularSolve,
)
from lamina.runtime import Device
from lamina.spec import Policy, Spec


@kernels(
    CholeskyFactor, LinearSolve, LogDeterminant, TriangularSolve, Determinant, Cofactors, source="kernel"
)
def factorize(op: Factorization, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The matrices are row-major, one after another; an operand without leading axes is read by all blocks."""
    inputs = [s.open.fixed for s in specs]
    outputs = [s.fixed for s in op.infer(*(s.open for s in specs))]
    lead = outputs[0].shape[: None if isinstance(op, LogDeterminant | Determinant) else -2]
    rows, columns = inputs[0].shape[-1], inputs[1].shape[-1] if len(inputs) > 1 else 0
    columns = rows if isinstance(op, Cofactors) else columns
    count, label = prod(lead), op.name
    if not any(s.numel for s in outputs):
        return kernel_plan(device, inputs, outputs, [], label=label)
    if (
        rows > panels.PANEL
        and panels.columns_of_a_block(rows, 1, device.machine)
        and not isinstance(op, Cofactors)
    ):
        launches, workspace = _by_panels(op, inputs, count, device)
        return kernel_plan(device, inputs, outputs, launches, label=f"{label} panels", workspace=workspace)
    reads = [prod(s.shape[-2:]) if s.ndim > 2 else 0 for s in (*inputs, *inputs)]
    sizes = constants(N=rows, K=columns, READS_A=reads[0], READS_B=reads[1])
    upper, unit = (op.upper, op.unit) if isinstance(op, TriangularSolve) else (False, False)
    shape = constants(UPPER=int(upper), UNIT=int(unit))
    program = Program(op.name, "matmul/factorize.cu", f"typedef {c_type(inputs[0].dtype)} T;\n{sizes}{shape}")
    places = (*map(source, range(len(inputs))), *map(target, range(len(outputs))), scratch())
    launch = Launch(program, (count,), (256,), places)
    width = columns if isinstance(op, TriangularSolve) else rows + columns
    workspace = 8 * count * rows * (width + isinstance(op, Cofactors))  # and the order of the columns
    return kernel_plan(device, inputs, outputs, [launch], label=label, workspace=max(workspace, 8))


def _by_panels(op: Factorization, inputs: list[Spec], count: int, device: Device) -> tuple[list[Launch], int]:
    """Launches and bytes of scratch memory."""
    machine, a, b = device.machine, inputs[0], inputs[1] if len(inputs) > 1 else None
    if isinstance(op, CholeskyFactor):
        return panels.cholesky(inputs[0])
    if isinstance(op, TriangularSolve) and b is not None:
        return panels.triangular_solve(op, a, b, count, machine), 8
    if isinstance(op, LinearSolve):
        made = panels.Eliminated(a, b, count, machine, left=False, info=target(1))
        return [*made.launches, made.solution()], made.nbytes
    made = panels.Eliminated(a, None, count, machine, left=False)
    return [*made.launches, made.determinant(op.name, 1 + isinstance(op, LogDeterminant))], made.nbytes
