"""Rows in another order: copied in the widest words that divide them."""

from __future__ import annotations

from math import gcd

from lamina.backends import Plan
from lamina.backends.cuda.launch.indexing import index_type
from lamina.backends.cuda.launch.program import (
    VECTOR,
    Launch,
    Program,
    constants,
    kernel_plan,
    looping,
    source,
    target,
)
from lamina.backends.cuda.registry import kernels
from lamina.ops.primitives.sequence import TakeRows
from lamina.runtime import Device
from lamina.spec import Policy, Spec

_WORDS = {16: "Pack<u32, 4>", 8: "u64", 4: "u32", 2: "u16", 1: "u8"}


@kernels(TakeRows, source="kernel")
def take_rows(op: TakeRows, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """Row-major rows; by elements where an address is not aligned."""
    inputs = [s.open.fixed for s in specs]
    y = op.infer(*inputs)[0].fixed
    if not y.numel:
        return kernel_plan(device, inputs, [y], [], label=op.name)
    item = y.dtype.itemsize
    wide = _launch(inputs[0], y, gcd(y.shape[1] * item, VECTOR))
    return kernel_plan(
        device, inputs, [y], [wide], label=op.name, plain=lambda: (_launch(inputs[0], y, item),)
    )


def _launch(x: Spec, y: Spec, word: int) -> Launch:
    """One thread per word of `word` bytes."""
    width = y.shape[1] * y.dtype.itemsize // word
    text = f"typedef {_WORDS[word]} W;\ntypedef {index_type(max(x.nbytes, y.nbytes) // word)} Index;\n"
    text += constants(COUNT=y.shape[0], ROWS=x.shape[0], WIDTH=width)
    program = Program("take_rows", "elementwise/take_rows.cu", text)
    return looping(program, y.shape[0] * width, (source(0), source(1), target()))
