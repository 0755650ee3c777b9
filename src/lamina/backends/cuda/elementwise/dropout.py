"""Dropout, and its mask alone: drawn by logical position, so that it is the same in every layout."""

from __future__ import annotations

from lamina.backends import Plan
from lamina.backends.cuda.elementwise.pointwise import full
from lamina.backends.cuda.elementwise.reduce import dense
from lamina.backends.cuda.launch.indexing import collapse, index_type, offset_function
from lamina.backends.cuda.launch.program import (
    Bindable,
    Copy,
    Number,
    Program,
    c_type,
    constants,
    kernel_plan,
    looping,
    source,
    target,
)
from lamina.backends.cuda.registry import kernels
from lamina.ops.primitives.dropout import Dropout, DropoutMask, scale, threshold
from lamina.runtime import Device
from lamina.spec import Policy, Spec


@kernels(Dropout, source="kernel")
def dropout(op: Dropout, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """(y, mask, next state)."""
    y, mask, state = op.infer(*specs)
    x = dense(specs[0])
    outputs = [full(y, x.physical), full(mask, x.physical), state.fixed]
    inputs = [x, specs[1].fixed]
    if x.numel == 0:
        moved = Copy(target(2), source(1), specs[1].nbytes)  # nothing was drawn: the state does not advance
        return kernel_plan(device, inputs, outputs, [moved], label=op.name)
    # The space is row-major over the logical axes: element i of the generator lies at at(i).
    space = collapse(x.shape, [x.physical.strides], tuple(range(x.ndim)))
    together = space.strides[0][-1] == 1 and space.sizes[-1] % 4 == 0
    together = together and all(s % 4 == 0 for s in space.strides[0][:-1])

    def steps(aligned: bool) -> tuple[Bindable, ...]:
        text = f"typedef {space.index_type} Index;\ntypedef {c_type(x.dtype)} T;\n#define DROPOUT\n"
        text += constants(V=4 if together and aligned and x.dtype.itemsize * 4 <= 16 else 1)
        text += offset_function("at", space)
        program = Program("dropout", "elementwise/random.cu", text)
        places = (source(0), source(1), target(0), target(1), target(2))
        numbers = Number(x.numel, "i64"), Number(threshold(op.p), "u64"), Number(float(scale(op.p)), "f64")
        return (looping(program, -(-x.numel // 4), (*places, *numbers), each=4),)

    return kernel_plan(
        device, inputs, outputs, steps(True), label=op.name, plain=lambda: steps(False), aliases={0: 0}
    )


@kernels(DropoutMask, source="kernel")
def dropout_mask(op: DropoutMask, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """(mask, next state)."""
    mask, state = (spec.fixed for spec in op.infer(specs[0]))
    inputs, outputs = [specs[0].fixed], [mask, state]
    if mask.numel == 0:
        moved = Copy(target(1), source(0), state.nbytes)  # nothing was drawn: the state does not advance
        return kernel_plan(device, inputs, outputs, [moved], label=op.name)

    def steps(aligned: bool) -> tuple[Bindable, ...]:
        text = f"typedef {index_type(mask.numel + 4)} Index;\ntypedef {c_type(mask.dtype)} T;\n"
        together = aligned and mask.numel % 4 == 0 and mask.dtype.itemsize * 4 <= 16
        text += "#define DROPOUT_MASK\n" + constants(V=4 if together else 1)
        program = Program("dropout_mask", "elementwise/random.cu", text)
        numbers = Number(mask.numel, "i64"), Number(threshold(op.p), "u64")
        return (looping(program, -(-mask.numel // 4), (source(0), target(0), target(1), *numbers), each=4),)

    return kernel_plan(device, inputs, outputs, steps(True), label=op.name, plain=lambda: steps(False))
