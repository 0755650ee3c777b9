"""Reductions of an elementwise formula along any axes: rows, columns, or all elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from typing import NamedTuple

import numpy as np

from lamina.backends import NoKernel, Plan
from lamina.backends.cpu.library import Held, Location, at_output
from lamina.backends.cpu.loops.code import BOOL, INDEX, Code, Scalar, Variable, least, where
from lamina.backends.cpu.loops.formula import Formula, LaidOperands, computed
from lamina.backends.cpu.loops.kernel import InOrder, LoopKernel
from lamina.backends.cpu.loops.space import LoopSpace, common_layout, space
from lamina.backends.cpu.loops.table import loops, worthwhile
from lamina.ops.core import Op
from lamina.ops.primitives.fused_elementwise import FusedElementwise
from lamina.ops.primitives.reduce import Reduce
from lamina.runtime import Device
from lamina.spec import DType, Layout, Policy, Spec, contiguous

#: Columns that a thread reduces at a time.
_COLUMNS = 256
#: Longer rows are left to other kernels, which add up partial results.
_LONGEST = 1 << 14


class Combination(NamedTuple):
    """The combination of a reduction: the terms, NumPy's function, the initial value, and the final step."""

    function: str
    initial: float
    before: Callable[[Scalar], Scalar] = lambda x: x
    after: Callable[[Scalar], Scalar] = lambda x: x

    def first(self, dtype: DType) -> float:
        """The initial value; in a dtype without infinities the lowest or highest number."""
        if not np.isinf(self.initial) or dtype.is_float:
            return self.initial
        limits = np.iinfo(dtype.numpy)
        return int(limits.min if self.initial < 0 else limits.max)


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
def reduce(op: Op, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """A reduction, or an expression that ends in one."""
    (y,) = (s.fixed for s in op.infer(*(s.open for s in specs)))
    work = worthwhile(op, specs, [y])
    if any(s.numel == 0 for s in specs):
        raise NoKernel(f"cpu: {op} of no elements")
    formula, last = Formula.of(op, specs), op.ops[-1] if isinstance(op, FusedElementwise) else op
    assert isinstance(last, Reduce)
    reduced = _Reduced.of(op, last, [s.open for s in specs])
    if formula.check(reduced.dtype):
        raise NoKernel(f"cpu: {op}: what may be in doubt is made before it is reduced")
    layout = common_layout(reduced.shape, formula.wholes, formula.parts)
    try:
        return _plan(formula, reduced, layout, y, work)
    except NoKernel:
        if layout == contiguous(reduced.shape):
            raise
        return _plan(formula, reduced, contiguous(reduced.shape), y, work)


@dataclass(frozen=True)
class _Reduced:
    """The reduction: shape and dtype of its operand, kind, and the dtypes of accumulation and result."""

    op: Reduce
    shape: tuple[int, ...]
    dtype: DType
    wide: DType
    out: DType

    @classmethod
    def of(cls, op: Op, last: Reduce, specs: Sequence[Spec]) -> _Reduced:
        """From an expression, or from the reduction alone."""
        if isinstance(op, FusedElementwise) and len(op.ops) > 1:
            (x,) = FusedElementwise(op.ops[:-1], op.reads[:-1]).infer(*specs)
        else:
            x = specs[0]
        (y,) = last.infer(x)
        return cls(last, x.shape, x.dtype, y.dtype.compute, y.dtype)

    @property
    def count(self) -> int:
        """How many elements are reduced to one."""
        return prod(self.shape[a] for a in self.op.axes)


def _plan(formula: Formula, reduced: _Reduced, layout: Layout, y: Spec, work: int) -> Plan:
    operands = formula.laid(reduced.shape, layout)
    kept = tuple(1 if a in reduced.op.axes else n for a, n in enumerate(reduced.shape))
    result = Spec(kept, reduced.out).fixed
    nested = space(reduced.shape, layout, [*operands.specs, result])
    given = _Given(formula.op, formula.dtypes, reduced.dtype, reduced.wide, reduced.out, reduced.op.kind)
    if y.numel == 1:
        return _total(given, nested, operands, y)
    kernel = _lines(given, nested, operands, reduced.count, work)
    return Plan(tuple(operands.inputs), (y,), kernel, label="loops reduce")


@dataclass(frozen=True)
class _Given:
    """The specialization of a kernel, beside its loops: the formula, its dtypes, and how results are combined."""

    op: Op
    dtypes: tuple[DType, ...]
    dtype: DType
    wide: DType
    out: DType
    kind: str

    @property
    def combination(self) -> Combination:
        """The combination."""
        return _KINDS[self.kind]

    def value(self, code: Code, values: Sequence[Scalar]) -> Scalar:
        """One term, rounded to its type."""
        found = code.convert(computed(self.op, values), self.dtype.numpy)
        return self.combination.before(code.convert(code.rounded(found), self.wide.numpy))


def _order(nested: LoopSpace) -> tuple[list[int], list[int], bool]:
    """The loops over kept and over reduced axes, outermost first; whether the innermost one is kept."""
    sums = [stride == 0 for stride in nested.strides[-1]]
    kept = [i for i, s in enumerate(sums) if not s]
    reduced = [i for i, s in enumerate(sums) if s]
    return kept, reduced, not sums[-1]


def _lines(given: _Given, nested: LoopSpace, operands: LaidOperands, count: int, work: int) -> LoopKernel:
    """One result for each row, or for each column."""
    kept, summed, columns = _order(nested)
    if not summed or count > _LONGEST:
        raise NoKernel(f"cpu: a reduction of rows of {count} is left to others")
    order = [*kept[:-1], *summed, kept[-1]] if columns else [*kept, *summed]
    outer = len(kept) - columns
    sizes = [nested.sizes[i] for i in order]
    strides = [[row[i] for i in order] for row in nested.strides]
    parts = -(-sizes[-1] // _COLUMNS) if columns else 1
    fixed = tuple(row[-1] if row[-1] in (0, 1) else None for row in strides)
    same = tuple(not any(row) for row in strides)
    form = _Form(len(sizes), outer, fixed, same, columns)
    numbers = [*sizes, *(s for row in strides for s in row), count, parts]
    text = partial(_text, given, form)
    steps = prod(sizes[:outer]) * parts
    return LoopKernel(text, [*operands.places, at_output(), *numbers], steps, work)


@dataclass(frozen=True)
class _Form:
    """The loops of a kernel: how many in all, and of these over rows; the innermost strides if known, loop-invariant
    operands, and whether the innermost loop is over columns."""

    rank: int
    outer: int
    fixed: tuple[int | None, ...]
    same: tuple[bool, ...]
    columns: bool


class _Loops:
    """The parameters of a kernel: arrays, the result last, and sizes and strides of all loops."""

    def __init__(self, code: Code, given: _Given, form: _Form, result: DType) -> None:
        self.code, self.given, self.form = code, given, form
        self.arrays = [code.array(dtype) for dtype in (*given.dtypes, result)]
        self.sizes = code.sizes(form.rank)
        self.strides = [code.sizes(form.rank) for _ in self.arrays]
        self.by = [
            code.value(f, INDEX) if f is not None else row[-1]
            for f, row in zip(form.fixed, self.strides, strict=True)
        ]

    def begin(self) -> None:
        """Load loop-invariant operands."""
        self.once = [a[0] if s else None for a, s in zip(self.arrays[:-1], self.form.same, strict=False)]

    def bases(self, number: Scalar) -> list[Scalar]:
        """The offset of a step of the outer loops in each operand."""
        code, outer, places = self.code, self.form.outer, list[Scalar]()
        for size in reversed(self.sizes[1:outer]):
            places.insert(0, code.remainder(number, size))
            number = code.quotient(number, size)
        if outer:
            places.insert(0, number)
        found = []
        for row in self.strides:
            total = code.value(0, INDEX)
            for place, stride in zip(places, row, strict=False):
                total = total + place * stride
            found.append(total)
        return found

    def inside(self, stack: ExitStack, bases: Sequence[Scalar], loops: Sequence[int]) -> list[Scalar]:
        """The offsets of the operands within further loops."""
        found = list(bases)
        for k in loops:
            i = stack.enter_context(self.code.loop(0, self.sizes[k]))
            found = [base + i * row[k] for base, row in zip(found, self.strides, strict=True)]
        return found

    def value(self, bases: Sequence[Scalar], i: Scalar) -> Scalar:
        """The term at iteration i of the innermost loop."""
        values = [
            array[base + i * apart] if held is None else held
            for array, base, apart, held in zip(self.arrays[:-1], bases, self.by, self.once, strict=False)
        ]
        return self.given.value(self.code, values)


@lru_cache(maxsize=256)
def _text(given: _Given, form: _Form) -> str:
    """The assembly for rows or columns."""
    code = Code()
    nest = _Loops(code, given, form, given.out)
    count, parts = code.sizes(2)
    (_row_results if not form.columns else _column_results)(code, given, nest, count, parts)
    return code.text()


def _row_results(code: Code, given: _Given, nest: _Loops, count: Scalar, parts: Scalar) -> None:
    kind, form = given.combination, nest.form
    first, last = code.share()
    nest.begin()
    with code.loop(first, last) as row:
        total = code.variable(kind.first(given.wide), given.wide.numpy)
        bases = nest.bases(row)
        with ExitStack() as stack:
            inner = nest.inside(stack, bases, range(form.outer, form.rank - 1))
            _combine_all(code, kind, lambda i: nest.value(inner, i), nest.sizes[-1], total)
        nest.arrays[-1][bases[-1]] = _end(given.kind, total.get(), count)


def _column_results(code: Code, given: _Given, nest: _Loops, count: Scalar, parts: Scalar) -> None:
    kind, form = given.combination, nest.form
    totals = code.scratch(given.wide, code.value(_COLUMNS, INDEX))
    first, last = code.share()
    nest.begin()
    with code.loop(first, last) as step:
        start = code.remainder(step, parts) * _COLUMNS
        width = least(nest.sizes[-1] - start, _COLUMNS)
        bases = nest.bases(code.quotient(step, parts))
        bases = [base + start * apart for base, apart in zip(bases, nest.by, strict=True)]
        with code.loop(0, width, independent=True) as j:
            totals[j] = kind.first(given.wide)
        with ExitStack() as stack:
            inner = nest.inside(stack, bases, range(form.outer, form.rank - 1))
            with code.loop(0, width, independent=True) as j:
                totals[j] = code.call(kind.function, (totals[j], nest.value(inner, j)))
        with code.loop(0, width, independent=True) as j:
            nest.arrays[-1][bases[-1] + j * nest.by[-1]] = _end(given.kind, totals[j], count)


def _total(given: _Given, nested: LoopSpace, operands: LaidOperands, y: Spec) -> Plan:
    """Full reduction in memory order: first parts of fixed size, independent of the number of threads."""
    flat = len(nested.sizes) == 1
    longest = _LONGEST if flat else nested.sizes[-1]
    if longest > _LONGEST:
        raise NoKernel(f"cpu: a reduction of rows of {longest} is left to others")
    parts = -(-nested.count // longest)
    place = Location("workspace", 0)
    fixed = tuple(row[-1] if row[-1] in (0, 1) else None for row in nested.strides)
    same = tuple(not any(row) for row in nested.strides)
    form = _Form(len(nested.sizes), len(nested.sizes) - 1, fixed, same, False)
    numbers = [*nested.sizes, *(s for row in nested.strides for s in row)]
    first: list[Location | Held | int] = [*operands.places, place, *numbers, *([longest] if flat else [])]
    kernels = (
        LoopKernel(partial(_parts, given, form), first, parts, nested.count * len(operands.places)),
        LoopKernel(partial(_sum_of_parts, given), [place, at_output(), parts, nested.count], 1, parts),
    )
    room = parts * given.wide.itemsize
    return Plan(tuple(operands.inputs), (y,), InOrder(kernels), room, label="loops reduce")


@lru_cache(maxsize=256)
def _parts(given: _Given, form: _Form) -> str:
    """One result per part: a number of iterations of a single loop, or a row of several."""
    code, kind = Code(), given.combination
    nest = _Loops(code, given, form, given.wide)
    size = code.size() if form.rank == 1 else None
    first, last = code.share()
    nest.begin()
    with code.loop(first, last) as part:
        total = code.variable(kind.first(given.wide), given.wide.numpy)
        bases, here = nest.bases(part), nest.sizes[-1]
        if size is not None:
            begin = part * size
            here = least(here - begin, size)
            bases = [base + begin * apart for base, apart in zip(bases, nest.by, strict=True)]
        _combine_all(code, kind, partial(nest.value, bases), here, total)
        nest.arrays[-1][part] = total.get()
    return code.text()


@lru_cache(maxsize=256)
def _sum_of_parts(given: _Given) -> str:
    """Combine the results of all parts."""
    code, kind = Code(), given.combination
    x, y, parts, count = code.array(given.wide), code.array(given.out), code.size(), code.size()
    first, last = code.share()
    with code.loop(first, last):
        total = code.variable(kind.first(given.wide), given.wide.numpy)
        _combine_all(code, kind, lambda i: x[i], parts, total)
        y[0] = _end(given.kind, total.get(), count)
    return code.text()


def _combine_all(
    code: Code, kind: Combination, value: Callable[[Scalar], Scalar], count: Scalar, total: Variable
) -> None:
    """Combine `count` values into a scalar."""
    if kind.function in ("maximum", "minimum") and total.dtype.kind == "f":
        _extreme(code, kind, value, count, total)
        return
    with code.loop(0, count) as i:
        _combine(code, kind, total, value(i))


def _extreme(
    code: Code, kind: Combination, value: Callable[[Scalar], Scalar], count: Scalar, total: Variable
) -> None:
    """The largest or smallest value by full vectors, with a separate test for NaN."""
    best, is_nan = code.variable(total.get(), total.dtype), code.variable(False, BOOL)
    with code.loop(0, count) as i:
        found = value(i)
        best.choose(kind.function == "maximum", found)
        is_nan.set(is_nan.get() | code.call("isnan", (found,)))
    seen = code.call("isnan", (total.get(),)) | is_nan.get()
    total.set(where(seen, np.nan, best.get()))


def _combine(code: Code, kind: Combination, total: Variable, value: Scalar) -> None:
    if kind.function == "add":
        total.add(value)
    elif kind.function == "multiply":
        total.multiply(value)
    else:
        total.set(code.call(kind.function, (total.get(), value)))


def _end(name: str, total: Scalar, count: Scalar) -> Scalar:
    found = _KINDS[name].after(total)
    return found / count.astype(found.dtype) if name == "mean" else found
