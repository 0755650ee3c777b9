"""Values at labels and their gradient: a thread for each label, or for each element."""

from __future__ import annotations

from math import prod

from lamina.backends import Plan
from lamina.backends.cuda.launch.indexing import index_type
from lamina.backends.cuda.launch.program import (
    Program,
    c_type,
    constants,
    kernel_plan,
    looping,
    source,
    target,
)
from lamina.backends.cuda.registry import kernels
from lamina.ops.primitives.nll_loss import NllLoss, NllLossGrad
from lamina.runtime import Device
from lamina.spec import Policy, Spec


@kernels(NllLoss, NllLossGrad, source="kernel")
def nll_loss(op: NllLoss | NllLossGrad, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """One launch."""
    inputs = [s.open.fixed for s in specs]
    outputs = [s.fixed for s in op.infer(*inputs)]
    gradient = isinstance(op, NllLossGrad)
    labels, x = (inputs[0], outputs[0]) if gradient else (inputs[1], inputs[0])
    threads = outputs[0].numel
    if threads == 0:
        return kernel_plan(device, inputs, outputs, [], label=op.name)
    text = f"typedef {index_type(x.numel)} Index;\ntypedef {c_type(x.dtype)} T;\ntypedef {c_type(labels.dtype)} L;\n"
    text += constants(
        COUNT=labels.numel,
        CLASSES=x.shape[1],
        POSITIONS=prod(x.shape[2:]),
        HAS_WEIGHT=int(len(inputs) == 3),
        HAS_IGNORE=int(op.ignore_index is not None),
        IGNORE=f"{op.ignore_index or 0}LL",
    )
    weighted = len(inputs) == 3
    given = (source(0), source(1), source(2) if weighted else source(0))
    results = [target(0)] if gradient else [target(0), target(1 if weighted else 0)]
    launch = looping(Program(op.name, "elementwise/nll_loss.cu", text), threads, (*given, *results))
    return kernel_plan(device, inputs, outputs, [launch], label=op.name)
