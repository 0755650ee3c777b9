"""Softmax, its logarithm and their gradients along an axis that is not the last: many columns at once; the logarithm
along the last axis row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from math import prod

import numpy as np

from lamina.backends import NoKernel, Plan
from lamina.backends.cpu.library import at_input, at_output
from lamina.backends.cpu.loops.code import INDEX, Code, Elements, Scalar, least
from lamina.backends.cpu.loops.kernel import LoopKernel
from lamina.backends.cpu.loops.table import loops, worthwhile
from lamina.ops.primitives.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad
from lamina.runtime import Device
from lamina.spec import DType, Policy, Spec

#: Columns that a thread processes at once.
_COLUMNS = 256


@loops(Softmax, LogSoftmax, SoftmaxGrad, LogSoftmaxGrad, source="loops")
def softmax(
    op: Softmax | LogSoftmax | SoftmaxGrad | LogSoftmaxGrad,
    specs: Sequence[Spec],
    device: Device,
    policy: Policy,
) -> Plan:
    """Over adjacent axes; along the last one oneDNN is as fast, but its log-softmax is off by 4e-6."""
    inputs = tuple(s.open.fixed for s in specs)
    x = inputs[0]
    exact = isinstance(op, LogSoftmax) and x.numel > 0
    work = 8 * (2 * x.numel if exact else worthwhile(op, inputs, [x]))
    first, last = op.axis[0], op.axis[-1]
    outer, count, behind = prod(x.shape[:first]), prod(x.shape[first : last + 1]), prod(x.shape[last + 1 :])
    if len(op.axis) != last - first + 1 or (behind == 1 and not exact):
        raise NoKernel(f"cpu: {op} of {x} is left to others")
    if behind == 1:
        kernel = LoopKernel(partial(_row, x.dtype), [at_input(0), at_output(), count], outer, work)
        return Plan(inputs, (x,), kernel, aliases=dict(op.inplace), label=f"loops {op.name}")
    parts = -(-behind // _COLUMNS)
    log = isinstance(op, LogSoftmax | LogSoftmaxGrad)
    text = partial(_gradient if isinstance(op, SoftmaxGrad | LogSoftmaxGrad) else _forward, x.dtype, log)
    places = [*(at_input(i) for i in range(len(inputs))), at_output()]
    kernel = LoopKernel(text, [*places, count, behind, parts], outer * parts, work)
    return Plan(inputs, (x,), kernel, aliases=dict(op.inplace), label=f"loops {op.name}")


class _Columns:
    """Adjacent columns: their start, and loops over their rows."""

    def __init__(self, code: Code) -> None:
        self.code = code
        self.count, self.behind, self.parts = code.sizes(3)

    def of(self, step: Scalar) -> None:
        """Move to the columns of a step."""
        code = self.code
        begin = code.remainder(step, self.parts) * _COLUMNS
        self.width = least(self.behind - begin, _COLUMNS)
        self.start = code.quotient(step, self.parts) * self.count * self.behind + begin

    def own(self, dtype: DType) -> Elements:
        """Storage for one number per column."""
        return self.code.scratch(dtype, self.code.value(_COLUMNS, INDEX))

    def each(self, change: Callable[[Scalar], None]) -> None:
        """Loop over the columns."""
        with self.code.loop(0, self.width, independent=True) as j:
            change(j)

    def rows(self, change: Callable[[Scalar, Scalar], None]) -> None:
        """Loop over the rows, with each element's offset and its column."""
        with self.code.loop(0, self.count) as i:
            row = self.start + i * self.behind
            with self.code.loop(0, self.width, independent=True) as j:
                change(row + j, j)


@lru_cache(maxsize=64)
def _forward(dtype: DType, log: bool) -> str:
    code = Code()
    x, y = code.array(dtype), code.array(dtype)
    columns = _Columns(code)
    first, last = code.share()
    top, total = columns.own(dtype.compute), columns.own(dtype.compute)

    def begin(j: Scalar) -> None:
        top[j], total[j] = -np.inf, 0

    def highest(at: Scalar, j: Scalar) -> None:
        top[j] = np.maximum(top[j], x[at])

    def added(at: Scalar, j: Scalar) -> None:
        total[j] = total[j] + np.exp(x[at] - top[j])

    def ended(j: Scalar) -> None:
        total[j] = np.log(total[j]) if log else 1 / total[j]

    def written(at: Scalar, j: Scalar) -> None:
        apart = x[at] - top[j]
        y[at] = apart - total[j] if log else np.exp(apart) * total[j]

    with code.loop(first, last) as step:
        columns.of(step)
        columns.each(begin)
        columns.rows(highest)
        columns.rows(added)
        columns.each(ended)
        columns.rows(written)
    return code.text()


@lru_cache(maxsize=64)
def _row(dtype: DType) -> str:
    code = Code()
    x, y = code.array(dtype), code.array(dtype)
    count = code.size()
    first, last = code.share()
    kind = dtype.compute.numpy
    with code.loop(first, last) as step:
        start = step * count
        top, total = code.variable(-np.inf, kind), code.variable(0, kind)
        with code.loop(0, count) as i:
            top.set(np.maximum(top.get(), x[start + i]))
        with code.loop(0, count) as i:
            total.add(np.exp(x[start + i] - top.get()))
        whole = code.call("log", (total.get(),))
        with code.loop(0, count, independent=True) as i:
            y[start + i] = x[start + i] - top.get() - whole
    return code.text()


@lru_cache(maxsize=64)
def _gradient(dtype: DType, log: bool) -> str:
    code = Code()
    y, g, dx = (code.array(dtype) for _ in range(3))
    columns = _Columns(code)
    first, last = code.share()
    total = columns.own(dtype.compute)

    def begin(j: Scalar) -> None:
        total[j] = 0

    def added(at: Scalar, j: Scalar) -> None:
        total[j] = total[j] + (g[at] if log else y[at] * g[at])

    def written(at: Scalar, j: Scalar) -> None:
        dx[at] = g[at] - np.exp(y[at]) * total[j] if log else y[at] * (g[at] - total[j])

    with code.loop(first, last) as step:
        columns.of(step)
        columns.each(begin)
        columns.rows(added)
        columns.rows(written)
    return code.text()
