"""LU factors of small matrices and the orders of their rows, matrix by matrix; rows are vectorized."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from math import prod

import numpy as np

from lamina.backends import NoKernel, Plan
from lamina.backends.cpu.library import at_input, at_output
from lamina.backends.cpu.loops.code import Code, fused, where
from lamina.backends.cpu.loops.kernel import LoopKernel
from lamina.backends.cpu.loops.table import loops
from lamina.ops.primitives.lu import PivotedFactor, RowOrder
from lamina.runtime import Device
from lamina.spec import DType, Policy, Spec, int32

#: With fewer multiplications NumPy is done before a kernel is compiled; a matrix of more does not stay in the cache,
#: and NumPy multiplies its blocks.
_FEWEST, _MOST = 1 << 6, 1 << 27
#: The fewest exchanges.
_EXCHANGES = 4


@loops(PivotedFactor, source="loops")
def pivoted_factor(op: PivotedFactor, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """By elimination, column by column."""
    x = specs[0].open.fixed
    outputs = tuple(s.fixed for s in op.infer(x))
    *lead, m, n = x.shape
    k, count = min(m, n), prod(lead)
    if not m * n * k * count >= _FEWEST or m * n * k > _MOST:
        raise NoKernel(f"cpu: {op.name} of {x} is left to NumPy")
    places = [at_input(0), at_output(0), at_output(1)]
    kernel = LoopKernel(partial(_factors, x.dtype), [*places, m, n, k], count, m * n * k * count)
    return Plan((x,), outputs, kernel, label="loops pivoted_factor")


@loops(RowOrder, source="loops")
def row_order(op: RowOrder, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """By exchanges, one after the other."""
    pivots = specs[0].open.fixed
    (found,) = (s.fixed for s in op.infer(pivots))
    if pivots.numel < _EXCHANGES:
        raise NoKernel(f"cpu: {op.name} of {pivots.numel} exchanges is left to NumPy")
    count = prod(pivots.shape[:-1])
    text = partial(_order, op.inverse)
    numbers = [op.rows, pivots.shape[-1]]
    kernel = LoopKernel(text, [at_input(0), at_output(), *numbers], count, found.numel)
    return Plan((pivots,), (found,), kernel, label="loops row_order")


@lru_cache(maxsize=16)
def _factors(dtype: DType) -> str:
    code = Code()
    x, y, pivots = code.array(dtype), code.array(dtype), code.array(int32)
    m, n, count = code.sizes(3)
    first, last = code.share()
    with code.loop(first, last) as matrix:
        start = matrix * m * n
        with code.loop(0, m * n, independent=True) as e:
            y[start + e] = x[start + e]
        with code.loop(0, count) as k:
            own = start + k * n
            at, most = code.variable(k), code.variable(np.absolute(y[own + k]), dtype.numpy)
            with code.loop(k + 1, m) as i:
                size = code.call("absolute", (y[start + i * n + k],))
                first_nan = code.call("not_equal", (size, size)) & code.call(
                    "equal", (most.get(), most.get())
                )
                with code.when((size > most.get()) | first_nan):
                    most.set(size)
                    at.set(i)
            pivots[matrix * count + k] = at.get() + 1
            other = start + at.get() * n
            with code.when(at.get() > k), code.loop(0, n, independent=True) as j:
                held = y[own + j]
                y[own + j] = y[other + j]
                y[other + j] = held
            pivot = y[own + k]
            divisor = where(pivot == 0, code.value(1.0, dtype.numpy), pivot)
            with code.loop(k + 1, m) as i:
                row = start + i * n
                factor = y[row + k] / divisor
                y[row + k] = factor
                with code.loop(k + 1, n, independent=True) as j:
                    y[row + j] = fused(code, -factor, y[own + j], y[row + j])
    return code.text()


@lru_cache(maxsize=2)
def _order(inverse: bool) -> str:
    code = Code()
    pivots, found = code.array(int32), code.array(int32)
    rows, count = code.sizes(2)
    order = code.scratch(int32, rows)
    first, last = code.share()
    with code.loop(first, last) as matrix:
        with code.loop(0, rows) as i:
            order[i] = i
        with code.loop(0, count) as k:
            at = pivots[matrix * count + k].astype(np.int64) - 1
            with code.when((at >= 0) & (at < rows)):
                held = order[k]
                order[k] = order[at]
                order[at] = held
        with code.loop(0, rows) as i:
            if inverse:
                found[matrix * rows + order[i].astype(np.int64)] = i
            else:
                found[matrix * rows + i] = order[i]
    return code.text()
