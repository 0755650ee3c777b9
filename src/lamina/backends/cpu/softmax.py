"""Softmax and its logarithm over one axis of row-major tensors."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from lamina import onednn
from lamina.backends import NoKernel, Plan
from lamina.backends.cpu.guarded import guarded
from lamina.backends.cpu.library import at_input, at_output, attempt, computes, desc, kernels, single
from lamina.backends.cpu.loops import table
from lamina.onednn import ARG
from lamina.ops.primitives.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad
from lamina.replay.guards import below_infinity
from lamina.runtime import Device
from lamina.spec import Policy, Spec


@kernels(Softmax, LogSoftmax, source="onednn")
def softmax(op: Softmax | LogSoftmax, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """y from x."""
    x = _plain(op, specs[0])
    made = attempt(
        lambda: onednn.softmax_forward(
            desc(x), desc(x), op.axis[0], log=isinstance(op, LogSoftmax), prop="inference"
        )
    )
    if made is None:
        raise NoKernel(f"cpu: oneDNN has no kernel for {op} on {x}")
    operands = {ARG.SRC: (desc(x), at_input(0)), ARG.DST: (desc(x), at_output())}
    return guarded(single(made, [x], [x], operands, aliases={0: 0}), op, below_infinity)


@kernels(SoftmaxGrad, LogSoftmaxGrad, source="onednn")
def softmax_grad(
    op: SoftmaxGrad | LogSoftmaxGrad, specs: Sequence[Spec], device: Device, policy: Policy
) -> Plan:
    """dx from y and the gradient g of y."""
    y = _plain(op, specs[0])
    here, log = desc(y), isinstance(op, LogSoftmaxGrad)
    made = attempt(
        lambda: onednn.softmax_backward(
            here,
            here,
            here,
            op.axis[0],
            hint=onednn.softmax_forward(here, here, op.axis[0], log=log),
            log=log,
        )
    )
    if made is None:
        raise NoKernel(f"cpu: oneDNN has no kernel for {op} on {y}")
    operands = {
        ARG.DST: (here, at_input(0)),
        ARG.DIFF_DST: (here, at_input(1)),
        ARG.DIFF_SRC: (here, at_output()),
    }
    return single(made, [y, y], [y], operands)


def _plain(op: Softmax | LogSoftmax | SoftmaxGrad | LogSoftmaxGrad, x: Spec) -> Spec:
    computes(x)
    if len(op.axis) != 1:
        raise NoKernel(f"cpu: oneDNN's softmax runs over one axis, {op} over several")
    if isinstance(op, LogSoftmax) and x.numel and table.answers(op):
        raise NoKernel(f"cpu: {op} of {x} is left to loops: oneDNN's logarithm of the sum is off by 4e-6")
    if prod(x.shape[op.axis[0] + 1 :]) > 1 and x.numel >= table.LEAST and table.answers(op):
        raise NoKernel(f"cpu: {op} of {x} is left to loops: oneDNN goes through columns one by one")
    return x.open.fixed
