"""Reductions over neighbouring axes: rows of their own, or rows behind each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from math import prod
from typing import NamedTuple

import numpy as np

from lamina.backends import NoKernel, Plan
from lamina.backends.cpu.library import Location, at_input, at_output
from lamina.backends.cpu.loops.code import INDEX, Code, Elements, Scalar, Variable, least, where
from lamina.backends.cpu.loops.kernel import InOrder, LoopKernel
from lamina.backends.cpu.loops.space import common_layout
from lamina.backends.cpu.loops.table import loops, worthwhile
from lamina.ops.primitives.reduce import Reduce
from lamina.runtime import Device
from lamina.spec import DType, Policy, Spec

#: Columns that a thread reduces at a time.
_COLUMNS = 256
#: Extrema side by side, and the elements of a row from which on that pays.
_LANES, _LONG_ROW = 64, 96
#: Rows of more elements are left to others, who add up parts.
_LONGEST = 1 << 14


class Combination(NamedTuple):
    """What is combined by which function of NumPy, from which number on, and what is made of the end."""

    function: str
    initial: float
    before: Callable[[Scalar], Scalar] = lambda x: x
    after: Callable[[Scalar], Scalar] = lambda x: x


_KINDS = {
    "sum": Combination("add", 0),
    "mean": Combination("add", 0),
    "prod": Combination("multiply", 1),
    "max": Combination("maximum", -np.inf),
    "min": Combination("minimum", np.inf),
    "norm1": Combination("add", 0, np.abs),
    "norm2": Combination("add", 0, np.square, np.sqrt),
    "amax": Combination("maximum", 0, np.abs),
    "mul_no_zeros": Combination("multiply", 1, lambda x: where(x == 0, 1, x)),
}


@loops(Reduce, source="loops")
def reduce(op: Reduce, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """One result for each row, or for each column."""
    y = op.infer(specs[0].open)[0].fixed
    worthwhile(op, specs, [y])
    if y.numel == 1:
        return _total(op, specs[0], y)
    x = specs[0].open.fixed
    work, axes = 2 * x.numel, [a for a in op.axes if x.shape[a] != 1]
    if (
        not axes
        or not x.dtype.is_float
        or any(x.shape[a] != 1 and a not in axes for a in range(axes[0], axes[-1]))
    ):
        raise NoKernel(f"cpu: {op} of {x} is left to NumPy")
    outer, count, behind = (
        prod(x.shape[: axes[0]]),
        prod(x.shape[a] for a in axes),
        prod(x.shape[axes[-1] + 1 :]),
    )
    if count > _LONGEST:
        raise NoKernel(f"cpu: {op} of rows of {count} is left to NumPy")
    last = behind == 1
    text = partial(_rows if last else _columns, op.kind, x.dtype)
    parts = -(-behind // _COLUMNS)
    numbers = [count] if last else [count, behind, parts]
    kernel = LoopKernel(text, [at_input(0), at_output(), *numbers], outer * parts, work)
    return Plan((x,), (y,), kernel, label="loops reduce")


def _total(op: Reduce, x: Spec, y: Spec) -> Plan:
    """Of all elements, as they lie: that of parts of one size first, whoever works on them."""
    if not x.dtype.is_float:
        raise NoKernel(f"cpu: {op} of {x} is left to NumPy")
    x = Spec(x.shape, x.dtype, common_layout(x.shape, [x]))
    parts, wide = -(-x.numel // _LONGEST), x.dtype.compute
    place = Location("workspace", 0)
    first, last = (
        partial(_parts, op.kind, *form) for form in ((x.dtype, wide, True), (wide, y.dtype, False))
    )
    kernels = (
        LoopKernel(first, [at_input(0), place, x.numel, _LONGEST], parts, x.numel),
        LoopKernel(last, [place, at_output(), parts, x.numel], 1, parts),
    )
    return Plan((x,), (y,), InOrder(kernels), parts * wide.itemsize, label="loops reduce")


@lru_cache(maxsize=256)
def _parts(name: str, dtype: DType, out: DType, first_level: bool) -> str:
    """Each part of so many elements to one; or all parts to the result."""
    code, kind = Code(), _KINDS[name]
    x, y, count, size = code.array(dtype), code.array(out), code.size(), code.size()
    lanes = _lanes(code, kind, dtype)
    first, last = code.share()
    with code.loop(first, last) as part:
        total = code.variable(kind.initial, dtype.compute.numpy)
        begin = part * size
        here = least(size, count - begin) if first_level else count
        before = kind.before if first_level else lambda value: value
        done = _in_lanes(code, kind, lambda i: before(x[begin + i]), here, total, lanes)
        with code.loop(done, here) as i:
            _combine(code, kind, total, before(x[begin + i]))
        y[part] = total.get() if first_level else _end(name, total.get(), size)
    return code.text()


@lru_cache(maxsize=256)
def _rows(name: str, dtype: DType) -> str:
    """Along the last axis."""
    code, kind = Code(), _KINDS[name]
    x, y, count = code.array(dtype), code.array(dtype), code.size()
    lanes = _lanes(code, kind, dtype)
    first, last = code.share()
    with code.loop(first, last) as row:
        total = code.variable(kind.initial, dtype.compute.numpy)
        start = row * count
        done = _in_lanes(code, kind, lambda i: kind.before(x[start + i]), count, total, lanes)
        with code.loop(done, count) as i:
            _combine(code, kind, total, kind.before(x[start + i]))
        y[row] = _end(name, total.get(), count)
    return code.text()


def _combine(code: Code, kind: Combination, total: Variable, value: Scalar) -> None:
    if kind.function == "add":
        total.add(value)
    else:
        total.set(code.call(kind.function, (total.get(), value)))


def _lanes(code: Code, kind: Combination, dtype: DType) -> Elements | None:
    """Extrema side by side: their order does not matter, which LLVM does not know of those that keep NaN."""
    if kind.function not in ("maximum", "minimum"):
        return None
    return code.scratch(dtype.compute, code.value(_LANES, INDEX))


def _in_lanes(
    code: Code,
    kind: Combination,
    value: Callable[[Scalar], Scalar],
    count: Scalar,
    total: Variable,
    lanes: Elements | None,
) -> Scalar:
    """Combine the first elements, as many as fill whole lanes, of a row that is long; gives how many these were."""
    if lanes is None:
        return code.value(0, INDEX)
    whole = code.quotient(count, code.value(_LANES, INDEX)) * _LANES
    whole = where(count < _LONG_ROW, 0, whole)
    with code.when(whole > 0):
        with code.loop(0, _LANES, independent=True) as j:
            lanes[j] = kind.initial
        with code.loop(0, whole, _LANES) as i, code.loop(0, _LANES, independent=True) as j:
            lanes[j] = code.call(kind.function, (lanes[j], value(i + j)))
        with code.loop(0, _LANES) as j:
            _combine(code, kind, total, lanes[j])
    return whole


def _end(name: str, total: Scalar, count: Scalar) -> Scalar:
    found = _KINDS[name].after(total)
    return found / count.astype(found.dtype) if name == "mean" else found


@lru_cache(maxsize=256)
def _columns(name: str, dtype: DType) -> str:
    """Along an axis with others behind it."""
    code, kind = Code(), _KINDS[name]
    x, y = code.array(dtype), code.array(dtype)
    count, behind, parts = code.sizes(3)
    first, last = code.share()
    total = code.scratch(dtype.compute, code.value(_COLUMNS, np.dtype(np.int64)))
    with code.loop(first, last) as step:
        start = code.remainder(step, parts) * _COLUMNS
        outer, width = code.quotient(step, parts), least(behind - start, _COLUMNS)
        with code.loop(0, width, independent=True) as j:
            total[j] = kind.initial
        with code.loop(0, count) as i:
            row = (outer * count + i) * behind + start
            with code.loop(0, width, independent=True) as j:
                total[j] = code.call(kind.function, (total[j], kind.before(x[row + j])))
        with code.loop(0, width, independent=True) as j:
            y[outer * behind + start + j] = _end(name, total[j], count)
    return code.text()
