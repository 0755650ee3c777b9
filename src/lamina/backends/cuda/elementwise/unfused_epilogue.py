"""An epilogue as a separate in-place kernel after the head: the baseline for fused plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lamina.backends import Plan
from lamina.backends.cuda.elementwise.loop import KernelOperand, Statement, elementwise
from lamina.backends.cuda.elementwise.pointwise import chain_values
from lamina.backends.cuda.launch.indexing import broadcast_strides, memory_order
from lamina.backends.cuda.launch.program import Aligned, Launches, source, target, wide_type
from lamina.backends.cuda.select.formulations import Formulation, Problem, expects
from lamina.ops.core import Op
from lamina.ops.primitives import Gelu, GeluGrad, SiluGrad
from lamina.runtime import Device
from lamina.spec import Policy, Spec

#: Bytes of a result that a kernel writes in little more time than its launch takes.
_SMALL = 1 << 20


def pays_apart(problem: Problem, steps: Sequence[Op], device: Device, policy: Policy) -> bool:
    """Whether the unfused form of a head with steps is worth building: it is timed, known, or expected to be best."""
    return bool(steps) and (_expected(problem, steps, device) or expects(problem, "split", device, policy))


def beside_fused(problem: Problem, unfused: Formulation, steps: Sequence[Op], device: Device) -> Problem:
    """The problem including the unfused form: first if it is expected to be best, else last."""
    fused = problem.formulations
    first = _expected(problem, steps, device)
    return replace(problem, formulations=(unfused, *fused) if first else (*fused, unfused))


def _expected(problem: Problem, steps: Sequence[Op], device: Device) -> bool:
    """Whether steps are expected to be faster in a separate kernel.

    An error function after a product costs cuDNN's fused engines more time than they save in traffic (1.1 to 2.1
    times, bfloat16, compute capability 9.0), unless the result stays in the cache anyway. The gradient of silu takes
    them 22 microseconds for a result of any size, where a small product and a separate kernel take 10.
    """
    erf = any(isinstance(s, Gelu) or (isinstance(s, GeluGrad) and s.approximate == "none") for s in steps)
    nbytes = problem.outputs[0].nbytes
    if any(isinstance(s, SiluGrad) for s in steps) and nbytes <= _SMALL:
        return True
    return erf and nbytes > device.machine.l2_bytes // 4


def unfused_formulation(
    head: Plan, steps: Sequence[Op], out: Spec, extras: Sequence[Spec], first: int
) -> Formulation:
    """The head's own plan, then one elementwise kernel on its result.

    head: a plan whose inputs are the first ones of the fused op, and whose output has the layout of `out`. extras:
    specs of the further operands, inputs from number `first` on.
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
