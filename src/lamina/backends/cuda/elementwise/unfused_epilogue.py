"""An epilogue in a kernel of its own, in place behind the head: what fused plans have to beat."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.backends import Plan
from lamina.backends.cuda.elementwise.pointwise import KernelOperand, Statement, chain_values, elementwise
from lamina.backends.cuda.launch.indexing import broadcast_strides, memory_order
from lamina.backends.cuda.launch.program import Aligned, Launches, source, target, wide_type
from lamina.backends.cuda.select.formulations import Formulation
from lamina.ops.core import Op
from lamina.spec import Spec


def unfused_formulation(
    head: Plan, steps: Sequence[Op], out: Spec, extras: Sequence[Spec], first: int
) -> Formulation:
    """The head's own plan, then one elementwise kernel on its result.

    head: a plan whose inputs are the first ones of the fused op, and whose output lies as `out`. extras: specs of the
    further operands, inputs from number `first` on.
    """
    assert isinstance(head.make, Launches)
    strides = out.physical.strides
    value = Statement("a0", wide_type(out.dtype), "")
    body = chain_values(steps, out, value, extras, 1)
    operands = [KernelOperand(out.dtype, strides, target())]
    operands += [
        KernelOperand(s.dtype, broadcast_strides(s, out.shape), source(i))
        for i, s in enumerate(extras, first)
    ]
    order = memory_order(out.shape, strides)
    written = KernelOperand(out.dtype, strides, target())
    chain = elementwise(out.shape, order, operands, [written], body, [body[-1].name])
    return Formulation("split", steps=(Aligned(), *head.make.steps, chain), scratch=head.workspace)
