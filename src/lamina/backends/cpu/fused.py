"""A head and the elementwise steps after it as one primitive."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.backends import NoKernel, Plan
from lamina.backends.cpu import conv, matmul, pointwise, quantize
from lamina.backends.cpu.library import computes, kernels
from lamina.backends.cpu.post import Post
from lamina.ops.core import inferred
from lamina.ops.primitives.conv import Conv
from lamina.ops.primitives.fused import Fused
from lamina.ops.primitives.matmul import Matmul
from lamina.ops.primitives.pointwise import Add, Div, Mul, Sub
from lamina.ops.primitives.quantize import QuantizedConv, QuantizedMatmul
from lamina.runtime import Device
from lamina.spec import Policy, Spec


@kernels(Fused, source="onednn")
def fused(op: Fused, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """A convolution, product or sum with bias, activation, and sums or products with other tensors."""
    head, steps = op.ops[0], op.ops[1:]
    if isinstance(head, QuantizedConv | QuantizedMatmul):
        return quantize.eights(head, specs, steps, policy)
    if not isinstance(head, Conv | Matmul | Add | Sub | Mul | Div):
        raise NoKernel(f"cpu: no fusion onto {head}")
    computes(*specs)
    (y,) = inferred(op, *[s.open for s in specs])
    taken = op.head_arity(len(specs))
    post = Post.of(steps, specs[taken:], y, head)
    if isinstance(head, Conv):
        return conv.forward(head, specs[:taken], post, specs[taken:], policy)
    if isinstance(head, Matmul):
        return matmul.product(head, specs[:taken], post, specs[taken:])
    return pointwise.joined(head, specs[:taken], post, specs[taken:])
