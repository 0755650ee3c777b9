"""Softmax and its logarithm, forward and backward: a thread, a warp or a block per group of elements."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.backends import Plan
from lamina.backends.cuda.elementwise.pointwise import full
from lamina.backends.cuda.elementwise.reduce import dense, spaces
from lamina.backends.cuda.launch.indexing import Space, index_type, offset_function
from lamina.backends.cuda.launch.program import (
    Place,
    Program,
    c_type,
    constants,
    kernel_plan,
    looping,
    source,
    target,
)
from lamina.backends.cuda.registry import kernels
from lamina.ops.primitives.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad
from lamina.runtime import Device
from lamina.spec import Policy, Spec


def lanes_for(kept: Space, reduced: Space) -> int:
    """Threads that share a group: one when neighbours in memory belong to different groups."""
    inner = min((abs(s) for s in reduced.strides[0] if s), default=1)
    outer = min((abs(s) for s in kept.strides[0] if s), default=1 << 62)
    if reduced.count <= 8 or (outer < inner and kept.count >= 1024):
        return 1
    return 32 if reduced.count <= 2048 else 256


@kernels(Softmax, LogSoftmax, source="kernel")
def softmax(op: Softmax, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The forward functions."""
    x = dense(specs[0])
    return _plan(op, [x], full(op.infer(*specs)[0], x.physical), "softmax", {0: 0}, device)


@kernels(SoftmaxGrad, LogSoftmaxGrad, source="kernel")
def softmax_grad(op: SoftmaxGrad, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The gradients from the outputs."""
    y = dense(specs[0])
    g = full(specs[1], y.physical)
    return _plan(op, [y, g], full(op.infer(*specs)[0], y.physical), "softmax_grad", {0: 1}, device)


def _plan(
    op: Softmax | SoftmaxGrad,
    inputs: Sequence[Spec],
    out: Spec,
    name: str,
    aliases: dict[int, int],
    device: Device,
) -> Plan:
    if out.numel == 0:
        return kernel_plan(device, inputs, [out], [], label=op.name, aliases=aliases)
    kept, reduced, _ = spaces(inputs[0], op.axis)
    lanes = lanes_for(kept, reduced)
    index = index_type(kept.reach + reduced.reach)
    logarithm = isinstance(op, (LogSoftmax, LogSoftmaxGrad))
    text = f"typedef {index} Index;\ntypedef {c_type(out.dtype)} T;\n"
    text += constants(LANES=lanes, OUTPUTS=kept.count, COUNT=reduced.count, KIND=int(logarithm))
    text += offset_function("kept", kept) + offset_function("reduced", reduced)
    places: tuple[Place, ...] = (*(source(i) for i in range(len(inputs))), target())
    launch = looping(Program(name, "elementwise/softmax.cu", text), kept.count * lanes, places)
    return kernel_plan(device, inputs, [out], [launch], label=op.name, aliases=aliases)
