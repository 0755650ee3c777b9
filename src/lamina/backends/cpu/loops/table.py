"""Which ops have generated loops, and when these pay."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.backends import Kernels, NoKernel
from lamina.backends.cpu.loops import compiler
from lamina.ops.core import Op
from lamina.ops.custom import CustomOp
from lamina.ops.primitives.fused import Fused
from lamina.ops.primitives.fused_elementwise import FusedElementwise
from lamina.ops.primitives.reduce import Reduce
from lamina.ops.primitives.shape import Expand
from lamina.spec import Spec

#: Planning functions by op class; under `Op` that of elementwise ops, whose NumPy reference is their kernel.
loops = Kernels("cpu")
#: Fewer elements, read and written, are left to NumPy: compiling a kernel takes 20 ms.
LEAST = 8192


def is_elementwise(op: Op) -> bool:
    """Whether the op, or each of its steps, is elementwise; the first step may be a broadcast."""
    if isinstance(op, FusedElementwise):
        return not isinstance(op.ops[-1], Reduce)
    first, *steps = op.ops if isinstance(op, Fused) else (op,)
    if any(isinstance(step, CustomOp) and step.has_run for step in (first, *steps)):
        return False  # it has its own planning function
    return (first.elementwise or isinstance(first, Expand)) and all(step.elementwise for step in steps)


def answers(op: Op) -> bool:
    """Whether loops can be generated for the op."""
    own = loops.get(type(op))
    return compiler.available() and own is not None and (own is not loops.get(Op) or is_elementwise(op))


def worthwhile(op: Op, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> int:
    """The number of elements read and written. Raises NoKernel where they are too few."""
    work = sum(s.numel for s in (*inputs, *outputs))
    if work < LEAST or any(s.numel == 0 for s in outputs):
        raise NoKernel(f"cpu: {op.name} on {work} elements is not worth a kernel")
    return work
