"""Running sums, products and extrema, in the order of the axis."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from math import prod

import numpy as np

from lamina.backends import Plan
from lamina.backends.cpu.library import at_input, at_output
from lamina.backends.cpu.loops.code import Code, Scalar, least
from lamina.backends.cpu.loops.kernel import LoopKernel
from lamina.backends.cpu.loops.table import loops, worthwhile
from lamina.ops.primitives.scan import Scan
from lamina.runtime import Device
from lamina.spec import DType, Policy, Spec, float32, float64

#: Lines that are summed at once: each step waits only for the previous one of its own line. Lines of 2^n bytes map to
#: the same cache sets: if 8 are read and written, an 8-way cache of 32 KiB holds none of them (3 ns an element
#: instead of 0.4, AVX2).
_SIDE_BY_SIDE = 4
#: Columns that a thread processes at a time.
_COLUMNS = 256
_FUNCTIONS = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum", "logsumexp": "logaddexp"}


@loops(Scan, source="loops")
def scan(op: Scan, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """Several lines at once: separate lines, or the columns after the axis."""
    x = specs[0].open.fixed
    work = worthwhile(op, [x], [x])
    axis = op.axis % x.ndim
    lines, count, behind = prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :])
    last = behind == 1
    adds = op.kind in ("sum", "prod")  # then rounding errors would grow with the length
    wide = float64 if adds and x.dtype == float32 else x.dtype.compute
    text = partial(_lines if last else _columns, _FUNCTIONS[op.kind], x.dtype, wide)
    steps = -(-lines // _SIDE_BY_SIDE) if last else lines * -(-behind // _COLUMNS)
    numbers = [lines, count] if last else [count, behind, -(-behind // _COLUMNS)]
    kernel = LoopKernel(text, [at_input(0), at_output(), *numbers], steps, work)
    return Plan((x,), (x,), kernel, aliases={0: 0}, label="loops scan")


@lru_cache(maxsize=256)
def _lines(function: str, dtype: DType, wide: DType) -> str:
    """Along the last axis."""
    code = Code()
    x, y = code.array(dtype), code.array(dtype)
    lines, count = code.sizes(2)
    first, last = code.share()

    def together(starts: Sequence[Scalar]) -> None:
        sums = [code.variable(x[start], wide.numpy) for start in starts]
        for total, start in zip(sums, starts, strict=True):
            y[start] = total.get()
        with code.loop(1, count) as i:
            for total, start in zip(sums, starts, strict=True):
                total.set(code.call(function, (total.get(), x[start + i])))
                y[start + i] = total.get()

    with code.loop(first, last) as step:
        line = step * _SIDE_BY_SIDE
        with code.when(line + _SIDE_BY_SIDE <= lines):
            together([(line + k) * count for k in range(_SIDE_BY_SIDE)])
        with code.when(line + _SIDE_BY_SIDE > lines), code.loop(line, lines) as rest:
            together([rest * count])
    return code.text()


@lru_cache(maxsize=256)
def _columns(function: str, dtype: DType, wide: DType) -> str:
    """Along an axis with others behind it."""
    code = Code()
    x, y = code.array(dtype), code.array(dtype)
    count, behind, parts = code.sizes(3)
    first, last = code.share()
    total = code.scratch(wide, code.value(_COLUMNS, np.dtype(np.int64)))
    with code.loop(first, last) as step:
        start = code.remainder(step, parts) * _COLUMNS
        base = code.quotient(step, parts) * count * behind + start
        width = least(behind - start, _COLUMNS)
        with code.loop(0, width, independent=True) as j:
            value = x[base + j]
            total[j] = value
            y[base + j] = value
        with code.loop(1, count) as i:
            row = base + i * behind
            with code.loop(0, width, independent=True) as j:
                value = code.call(function, (total[j], x[row + j]))
                total[j] = value
                y[row + j] = value
    return code.text()
