"""Timing the kernels that oneDNN offers, for policies that ask for the fastest."""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter

import numpy as np

from lamina.onednn import ARG, Memory, MemoryDesc, Primitive, PrimitiveDesc, post_op_argument

_ARGUMENTS = (
    ARG.SRC,
    ARG.WEIGHTS,
    ARG.BIAS,
    ARG.DST,
    ARG.DIFF_SRC,
    ARG.DIFF_WEIGHTS,
    ARG.DIFF_DST,
    ARG.SCRATCHPAD,
    *map(post_op_argument, range(8)),
)
_RUNS = 3


def fastest(candidates: Iterable[PrimitiveDesc]) -> PrimitiveDesc | None:
    """The fastest candidate, None when there is none. Surrounding reorders are not counted."""
    timed = [(seconds(made), i, made) for i, made in enumerate(candidates)]
    return min(timed)[2] if timed else None


def seconds(made: PrimitiveDesc) -> float:
    """The minimum of a few runs on memory of its own."""
    operands = {a: made.argument(a) for a in _ARGUMENTS}
    run = Primitive(made).bind({a: _memory(desc) for a, desc in operands.items() if desc.ndim})
    run()
    best = float("inf")
    for _ in range(_RUNS):
        start = perf_counter()
        run()
        best = min(best, perf_counter() - start)
    return best


def _memory(desc: MemoryDesc) -> Memory:
    """Memory filled with a small number: 0x3c3c3c3c is 0.01 in float32 and in the half types."""
    held = np.full(desc.nbytes, 0x3C, np.uint8)
    return Memory(desc, held.ctypes.data, keep=held)
