"""Dropout: the mask is drawn in NumPy and applied by one multiplication."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lamina import onednn
from lamina.backends import Call, NoKernel, Plan, Run
from lamina.backends.cpu.library import attempt, computes, data_type, kernels
from lamina.backends.cpu.random import Words
from lamina.onednn import ARG, Memory, MemoryDesc, Primitive, PrimitiveDesc, scale_argument
from lamina.ops.primitives.dropout import Dropout, DropoutGrad, DropoutMask, scale, threshold
from lamina.ops.primitives.random import next_state
from lamina.runtime import Device, host_array
from lamina.spec import Policy, Spec, float32


@kernels(Dropout, source="onednn")
def dropout(op: Dropout, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """(y, mask, next state) from x and the state; row-major, since random words are assigned in that order."""
    x, state = (s.open.fixed for s in specs)
    computes(x)
    outputs = tuple(s.fixed for s in op.infer(x, state))
    made = _multiply(x.numel, x)

    def make(call: Call) -> Run:
        mask = host_array(call.outputs[1], (x.numel,), np.bool_)
        before = host_array(call.inputs[1], (2,), np.int64)
        after = host_array(call.outputs[2], (2,), np.int64)
        draw, least = Words(x.numel), threshold(op.p)
        apply = _bind(made, op.p, call.inputs[0], call.outputs[1], call.outputs[0], x.numel, x)

        def run() -> None:
            words = draw(int(before[0]), int(before[1]))
            np.greater_equal(words, least, out=mask)
            apply()
            after[:] = next_state(before, x.numel)

        return run

    return Plan(
        (x, state), outputs, make, aliases={0: 0}, label=f"numpy philox, onednn {made.implementation}"
    )


@kernels(DropoutMask, source="numpy")
def dropout_mask(op: DropoutMask, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """(mask, next state) from the state."""
    mask, state = (s.fixed for s in op.infer(specs[0]))
    if mask.dtype != float32:
        raise NoKernel(f"cpu: a mask of {mask} is left to NumPy")

    def make(call: Call) -> Run:
        kept = host_array(call.outputs[0], (mask.numel,), np.float32)
        before, after = (host_array(p, (2,), np.int64) for p in (call.inputs[0], call.outputs[1]))
        draw, least = Words(mask.numel), threshold(op.p)

        def run() -> None:
            words = draw(int(before[0]), int(before[1]))
            np.greater_equal(words, least, out=kept, casting="unsafe")
            after[:] = next_state(before, mask.numel)

        return run

    return Plan((specs[0].open.fixed,), (mask, state), make, label="numpy philox")


@kernels(DropoutGrad, source="onednn")
def dropout_grad(op: DropoutGrad, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """dx from g and the mask."""
    g, mask = (s.open.fixed for s in specs)
    computes(g)
    made = _multiply(g.numel, g)

    def make(call: Call) -> Run:
        return _bind(made, op.p, call.inputs[0], call.inputs[1], call.outputs[0], g.numel, g)

    label = f"onednn {made.implementation}"
    return Plan((g, mask), (g,), make, aliases={0: 0}, label=label)


def _multiply(count: int, like: Spec) -> PrimitiveDesc:
    """values * scale * mask, the mask as bytes 0 or 1."""
    values, mask = MemoryDesc((count,), data_type(like.dtype)), MemoryDesc((count,), "u8")
    attributes = onednn.Attributes(scales={ARG.SRC_0: 0})
    made = attempt(lambda: onednn.binary("mul", values, mask, values, attributes=attributes))
    if made is None:
        raise NoKernel(f"cpu: oneDNN has no masked product of {like}")
    return made


def _bind(made: PrimitiveDesc, p: float, x: int, mask: int, y: int, count: int, like: Spec) -> Run:
    factor = np.full(1, scale(p), np.float32)
    return Primitive(made).bind(
        {
            ARG.SRC_0: Memory(made.argument(ARG.SRC_0), x),
            ARG.SRC_1: Memory(made.argument(ARG.SRC_1), mask),
            ARG.DST: Memory(made.argument(ARG.DST), y),
            scale_argument(ARG.SRC_0): Memory(MemoryDesc((1,)), factor.ctypes.data, keep=factor),
        }
    )
