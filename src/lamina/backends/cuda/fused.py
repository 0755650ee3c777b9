"""Fused ops: convolutions and products with their epilogue in one cuDNN plan, elementwise chains in one kernel.

Any other head, and an epilogue that no engine supports, is refused: the graph then keeps the steps separate.
"""

from __future__ import annotations

from lamina.backends import NoKernel, Plan
from lamina.backends.cuda.conv.conv import data_grad_plan, forward_plan
from lamina.backends.cuda.cudnn_graphs.epilogue import split
from lamina.backends.cuda.elementwise.pointwise import chain_plan, chain_values, expression_of, op_value
from lamina.backends.cuda.launch.program import wide_type
from lamina.backends.cuda.matmul.matmul import matmul_plan
from lamina.backends.cuda.matmul.normed_matmul_fusion import NormedMatmul, normed_plan
from lamina.backends.cuda.quantize.quantize import eights_plan
from lamina.backends.cuda.registry import kernels
from lamina.ops.primitives.conv import Conv, ConvDataGrad
from lamina.ops.primitives.fused import Fused
from lamina.ops.primitives.matmul import Matmul
from lamina.ops.primitives.quantize import QuantizedConv, QuantizedMatmul
from lamina.runtime import Device
from lamina.spec import Policy, Spec


@kernels(Fused, source="cudnn")
def fused(op: Fused, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """A head and its steps."""
    op.infer(*specs)
    head, steps = op.ops[0], op.ops[1:]
    if expression_of(head) is not None:
        return _chain(op, specs, device)
    if isinstance(head, Conv):
        return forward_plan(head, specs, split(steps, specs, 2), device, policy)
    if isinstance(head, ConvDataGrad):
        return data_grad_plan(head, specs, split(steps, specs, 2), device, policy)
    if isinstance(head, Matmul):
        return matmul_plan(head, specs, split(steps, specs, 2), device, policy)
    if isinstance(head, NormedMatmul):
        return normed_plan(head, specs, split(steps, specs, op.head_arity(len(specs))), device)
    if isinstance(head, QuantizedConv | QuantizedMatmul):
        return eights_plan(head, specs, steps, device)
    raise NoKernel(f"cuda does not fuse steps with {head.name}")


def _chain(op: Fused, specs: tuple[Spec, ...], device: Device) -> Plan:
    """A chain of elementwise ops as one generated kernel."""
    (out,) = op.infer(*specs)
    taken = op.head_arity(len(specs))
    types = [wide_type(s.dtype) for s in specs[:taken]]
    running = op.ops[0].infer(*specs[:taken])[0]
    head = op_value(op.ops[0], [f"a{i}" for i in range(taken)], types, "v", running.dtype)
    values = [head, *chain_values(op.ops[1:], running, head, specs[taken:], taken)]
    label = "+".join(step.name for step in op.ops)
    alike = [i for i, s in enumerate(specs) if s.shape == out.shape and s.dtype == out.dtype]
    aliases = {0: alike[0]} if alike else {}
    return chain_plan(specs, out, values, values[-1].name, device, label, aliases)
