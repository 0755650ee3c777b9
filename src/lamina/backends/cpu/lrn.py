"""Local response normalization by oneDNN, for windows of odd size, in the layout of x."""

from __future__ import annotations

from collections.abc import Sequence

from lamina import onednn
from lamina.backends import NoKernel, Plan
from lamina.backends.cpu.library import at_input, at_output, computes, desc, kernels, single
from lamina.backends.cpu.norm import first_layout
from lamina.onednn import ARG, PrimitiveDesc
from lamina.ops.primitives.lrn import LocalResponseNorm
from lamina.runtime import Device
from lamina.spec import Policy, Spec


@kernels(LocalResponseNorm, source="onednn")
def local_response_norm(op: LocalResponseNorm, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """y from x."""
    computes(specs[0])
    if op.size % 2 == 0:
        raise NoKernel(f"cpu: oneDNN's windows have a middle, {op} has none")

    def create(x: Spec) -> PrimitiveDesc:
        return onednn.lrn_forward(
            desc(x), desc(x), size=op.size, alpha=op.alpha, beta=op.beta, k=op.k, prop="inference"
        )

    x, made = first_layout(op, specs, create)
    return single(made, [x], [x], {ARG.SRC: (desc(x), at_input(0)), ARG.DST: (desc(x), at_output())})
