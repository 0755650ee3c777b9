"""Softmax and its logarithm, forward and backward: a thread, a warp or a block per group of elements.

Contiguous groups of up to 1,024 elements of a half type are read once and held in registers. The forward functions
read parts of tensors where they lie.
"""

from __future__ import annotations

from collections.abc import Sequence

from lamina.backends import Plan
from lamina.backends.cuda.elementwise.pointwise import full
from lamina.backends.cuda.elementwise.reduce import dense, spaces
from lamina.backends.cuda.elementwise.shape import plain_layout
from lamina.backends.cuda.launch.indexing import (
    Space,
    dense_layout,
    index_type,
    memory_order,
    offset_function,
)
from lamina.backends.cuda.launch.program import (
    VECTOR,
    Bindable,
    Place,
    Program,
    c_type,
    constants,
    kernel_plan,
    lanes_of,
    looping,
    source,
    target,
)
from lamina.backends.cuda.registry import kernels
from lamina.ops.primitives.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad
from lamina.runtime import Device
from lamina.spec import Policy, Spec

#: Registers of a thread for the elements of a group.
_MOST = 32


def lanes_for(kept: Space, reduced: Space) -> int:
    """Threads that share a group: one when contiguous elements belong to different groups."""
    inner = min((abs(s) for s in reduced.strides[0] if s), default=1)
    outer = min((abs(s) for s in kept.strides[0] if s), default=1 << 62)
    if reduced.count <= 8 or (outer < inner and kept.count >= 1024):
        return 1
    return 32 if reduced.count <= 2048 else 256


@kernels(Softmax, LogSoftmax, source="kernel")
def softmax(op: Softmax, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The forward functions."""
    x = plain_layout(specs[0])
    out = full(x, dense_layout(x.shape, memory_order(x.shape, x.physical.strides)))
    return _plan(op, [x], out, "softmax", {0: 0}, device)


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
    kept, reduced, _ = spaces(inputs[0], op.axis, [out.physical.strides])
    text = f"typedef {index_type(kept.reach + reduced.reach)} Index;\ntypedef {c_type(out.dtype)} T;\n"
    logarithm = isinstance(op, (LogSoftmax, LogSoftmaxGrad))
    text += constants(OUTPUTS=kept.count, COUNT=reduced.count, KIND=int(logarithm))
    for which, space in (("kept", kept), ("reduced", reduced)):
        text += offset_function(which, space) + offset_function(f"result_{which}", space, 1)
    places: tuple[Place, ...] = (*(source(i) for i in range(len(inputs))), target())

    def steps(aligned: bool) -> tuple[Bindable, ...]:
        held = held_in_lanes(kept, reduced, out) if aligned else None
        width, lanes, turns = held or (0, lanes_for(kept, reduced), 0)
        how = constants(LANES=lanes) + (constants(V=width, TURNS=turns) if held else "")
        program = Program(name, "elementwise/softmax.cu", text + how)
        return (looping(program, kept.count * lanes, places),)

    return kernel_plan(
        device, inputs, [out], steps(True), label=op.name, aliases=aliases, plain=lambda: steps(False)
    )


def held_in_lanes(kept: Space, reduced: Space, spec: Spec) -> tuple[int, int, int] | None:
    """(elements per access, lanes that share a group, accesses per lane), for contiguous groups in whole accesses
    that fit in the lanes' registers; else None."""
    width = VECTOR // spec.dtype.itemsize
    if len(reduced.sizes) != 1 or set(reduced.strides) != {(1,)}:
        return None
    while width > 1 and (reduced.count % width or any(s % width for row in kept.strides for s in row)):
        width //= 2
    lanes, turns = lanes_of(reduced.count // width, _MOST * 4 // (width * spec.dtype.compute.itemsize))
    if width * spec.dtype.itemsize < 4 or turns * width * spec.dtype.compute.itemsize > _MOST * 4:
        return None
    return width, lanes, turns
