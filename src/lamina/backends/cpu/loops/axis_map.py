"""MapAxes: interpolation, reflect and replicate padding, patches and their gradients, plane by plane.

The axes before the first mapped one count planes, which are divided among threads. Within a plane the maps run one
after the other, as in the op's reference, through thread-local memory that stays in cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod

import numpy as np

from lamina.backends import Plan
from lamina.backends.cpu.library import Held, Location, at_input, at_output
from lamina.backends.cpu.loops.code import Code, Elements, Scalar, fused, where
from lamina.backends.cpu.loops.kernel import InOrder, LoopKernel
from lamina.backends.cpu.loops.rearrange import RAW
from lamina.backends.cpu.loops.runs import moved
from lamina.backends.cpu.loops.table import loops, worthwhile
from lamina.ops.core import Array
from lamina.ops.primitives.axis_map import SparseRows
from lamina.ops.primitives.map_axes import MapAxes
from lamina.runtime import Device
from lamina.spec import DType, Policy, Shape, Spec, int32

#: Rows of at most this many elements are unrolled; longer ones are a loop.
_WRITTEN_OUT = 8
#: The most bytes of a plane between two maps in thread-local memory.
_OWN = 1 << 18


@dataclass(frozen=True)
class MapForm:
    """The specialization of a kernel: how many elements a row reads (0: any number), whether some rows read fewer,
    whether elements are copied unweighted, and whether the axis is the last one."""

    taps: int
    ragged: bool
    moves: bool
    last: bool


@dataclass(frozen=True)
class PlaneMap:
    """One map within a plane: lines before the axis, the sizes of the axis, and elements after it."""

    form: MapForm
    rows: SparseRows
    before: int
    source: int
    target: int
    behind: int

    def parameters(self, dtype: DType) -> list[Held | int]:
        """Its tables and sizes, in the order in which the loops take them."""
        if self.form.taps:
            at, weight = _by_taps(self.rows, self.form.taps)
            tables = [at]
        else:
            at, weight = self.rows.at.astype(np.int32), self.rows.weight
            tables = [at, self.rows.start.astype(np.int32)]
        if not self.form.moves:
            tables.append(weight.astype(dtype.compute.numpy))
        return [
            *(Held(np.ascontiguousarray(t)) for t in tables),
            self.before,
            self.source,
            self.target,
            self.behind,
        ]


def _by_taps(rows: SparseRows, taps: int) -> tuple[Array, Array]:
    """[taps, rows]: elements, -1 for none, and weights."""
    at = np.full((taps, rows.rows), -1, np.int32)
    weight = np.zeros((taps, rows.rows))
    row = np.repeat(np.arange(rows.rows), rows.counts)
    tap = np.arange(len(row)) - np.repeat(rows.start[:-1], rows.counts)
    at[tap, row], weight[tap, row] = rows.at, rows.weight
    return at, weight


@loops(MapAxes, source="loops")
def mapped(op: MapAxes, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """All maps in one kernel; one kernel per map where the intermediate results are too large for the cache."""
    x, (out,) = specs[0].open.fixed, op.infer(specs[0])
    y = out.fixed
    worthwhile(op, [x], [y])
    by_runs = moved(op, x, y, RAW[x.dtype.itemsize])
    if by_runs is not None:
        return Plan((x,), (y,), by_runs, label="loops map_axes by runs")
    dtype = RAW[x.dtype.itemsize] if op.moves else x.dtype
    axes = sorted(op.axes, key=op._growth)
    first = min(axes, default=0)
    shapes = [x.shape]
    for axis in axes:
        found = op.maps[axis]
        assert found is not None
        shapes.append((*shapes[-1][:axis], found.target, *shapes[-1][axis + 1 :]))
    between = max((prod(s[first:]) for s in shapes[1:-1]), default=0)
    if between * dtype.compute.itemsize <= _OWN:
        passes = [_pass(op, axis, shape, first) for axis, shape in zip(axes, shapes, strict=False)]
        kernel = _planes(passes, dtype, dtype, prod(x.shape[:first]), between, at_input(0), at_output())
        return Plan((x,), (y,), kernel, label="loops map_axes")
    return _axis_by_axis(op, axes, shapes, dtype, x, y)


def _axis_by_axis(
    op: MapAxes, axes: Sequence[int], shapes: Sequence[Shape], dtype: DType, x: Spec, y: Spec
) -> Plan:
    """One kernel for each map, through workspace."""
    wide, kernels, workspace, place = dtype.compute, list[LoopKernel](), 0, at_input(0)
    for number, axis in enumerate(axes):
        is_last = number == len(axes) - 1
        target = at_output() if is_last else Location("workspace", workspace)
        dtypes = (dtype if number == 0 else wide, dtype if is_last else wide)
        outer = prod(shapes[number][:axis])
        made = _pass(op, axis, shapes[number], axis)
        kernels.append(_planes([made], *dtypes, outer, 0, place, target))
        if not is_last:
            workspace += -(-prod(shapes[number + 1]) * wide.itemsize // 256) * 256
        place = target
    return Plan((x,), (y,), InOrder(kernels), workspace, label="loops map_axes")


def _pass(op: MapAxes, axis: int, shape: Shape, first: int) -> PlaneMap:
    """The map of an axis within planes that begin at the axis `first`."""
    found = op.maps[axis]
    assert found is not None
    rows, behind = found.table, prod(shape[axis + 1 :])
    taps = rows.longest if 0 < rows.longest <= _WRITTEN_OUT else 0
    ragged = bool((rows.counts != rows.longest).any())
    moves = bool((rows.weight == 1).all()) and rows.longest <= 1
    return PlaneMap(
        MapForm(taps, ragged, moves, behind == 1),
        rows,
        prod(shape[first:axis]),
        found.source,
        found.target,
        behind,
    )


def _planes(
    passes: Sequence[PlaneMap],
    source: DType,
    target: DType,
    planes: int,
    between: int,
    x: Location,
    y: Location,
) -> LoopKernel:
    """The kernel that maps plane by plane."""
    text = partial(_text, tuple(p.form for p in passes), source, target)
    first, last = passes[0], passes[-1]
    sizes = (first.before * first.source * first.behind, last.before * last.target * last.behind)
    parameters: list[Location | Held | int] = [x, y, *sizes, between, max(p.behind for p in passes)]
    for p in passes:
        parameters += p.parameters(source)
    work = planes * sum(p.before * p.target * p.behind * max(p.rows.longest, 1) for p in passes)
    return LoopKernel(text, parameters, planes, work)


@lru_cache(maxsize=1024)
def _text(forms: tuple[MapForm, ...], source: DType, target: DType) -> str:
    code = Code()
    x, y = code.array(source), code.array(target)
    read, written, between, width = code.sizes(4)
    taken = [_MapLoops(code, form, source.compute) for form in forms]
    kept = [code.scratch(source.compute, between) for _ in forms[1:]][:2]
    row = code.scratch(source.compute, width) if not all(f.taps or f.last for f in forms) else None
    first, last = code.share()
    with code.loop(first, last) as plane:
        memory, base = x, plane * read
        for number, one in enumerate(taken):
            is_last = number == len(taken) - 1
            into, start = (
                (y, plane * written) if is_last else (kept[number % 2], code.value(0, np.dtype(np.int64)))
            )
            one.run(memory, base, into, start, row)
            memory, base = into, start
    return code.text()


class _MapLoops:
    """One map's parameters in a kernel, and its loops."""

    def __init__(self, code: Code, form: MapForm, wide: DType) -> None:
        self.code, self.form = code, form
        self.at = code.array(int32)
        self.start = None if form.taps else code.array(int32)
        self.weight = None if form.moves else code.array(wide)
        self.before, self.source, self.target, self.behind = code.sizes(4)
        self.wide = wide.numpy

    def run(self, x: Elements, x_base: Scalar, y: Elements, y_base: Scalar, row: Elements | None) -> None:
        """Map a plane of x to one of y."""
        code = self.code
        with code.loop(0, self.before) as line:
            x_line, y_line = (
                x_base + line * self.source * self.behind,
                y_base + line * self.target * self.behind,
            )
            if self.form.taps and self.form.last:
                with code.loop(0, self.target, independent=True) as i:
                    y[y_line + i] = self._sum([self._element(x, x_line, i, t) for t in range(self.form.taps)])
            elif self.form.taps:
                self._by_rows(x, x_line, y, y_line)
            elif self.form.last:
                with code.loop(0, self.target) as i:
                    y[y_line + i] = self._added(x, x_line, i)
            else:
                assert row is not None
                self._by_long_rows(x, x_line, y, y_line, row)

    def _tap(self, i: Scalar, tap: int) -> tuple[Scalar, Scalar | None]:
        """The index of row i's tap, and its weight."""
        place = i + self.target * tap
        return self.at[place], None if self.weight is None else self.weight[place]

    def _sum(self, parts: Sequence[tuple[Scalar, Scalar | None]]) -> Scalar:
        """The weighted sum of elements."""
        value, weight = parts[0]
        total = value if weight is None else value * weight
        for value, weight in parts[1:]:
            total = total + value if weight is None else fused(self.code, value, weight, total)
        return total

    def _element(self, x: Elements, line: Scalar, i: Scalar, tap: int) -> tuple[Scalar, Scalar | None]:
        at, weight = self._tap(i, tap)
        if not self.form.ragged:
            return x[line + at], weight
        return where(at < 0, 0, x[line + np.maximum(at, 0)]), weight

    def _by_rows(self, x: Elements, x_line: Scalar, y: Elements, y_line: Scalar) -> None:
        """Rows of the elements after the axis, which share index and weight."""
        code = self.code
        with code.loop(0, self.target) as i:
            taps = [self._tap(i, t) for t in range(self.form.taps)]
            there = [at >= 0 for at, _ in taps]
            starts = [x_line + np.maximum(at, 0) * self.behind for at, _ in taps]
            to = y_line + i * self.behind
            with code.loop(0, self.behind, independent=True) as j:
                parts = []
                for start, inside, (_, weight) in zip(starts, there, taps, strict=True):
                    value = x[start + j]
                    parts.append((where(inside, value, 0) if self.form.ragged else value, weight))
                y[to + j] = self._sum(parts)

    def _added(self, x: Elements, line: Scalar, i: Scalar) -> Scalar:
        """The sum of any number of elements of a line."""
        assert self.start is not None
        total = self.code.variable(0, self.wide)
        with self.code.loop(self.start[i], self.start[i + 1]) as k:
            value = x[line + self.at[k]]
            total.add(value if self.weight is None else value * self.weight[k])
        return total.get()

    def _by_long_rows(self, x: Elements, x_line: Scalar, y: Elements, y_line: Scalar, row: Elements) -> None:
        """Sums of any number of rows, accumulated in a thread-local row."""
        code = self.code
        assert self.start is not None
        with code.loop(0, self.target) as i:
            with code.loop(0, self.behind, independent=True) as j:
                row[j] = 0
            with code.loop(self.start[i], self.start[i + 1]) as k:
                start = x_line + self.at[k] * self.behind
                weight = None if self.weight is None else self.weight[k]
                with code.loop(0, self.behind, independent=True) as j:
                    value = x[start + j]
                    row[j] = row[j] + value if weight is None else fused(code, value, weight, row[j])
            to = y_line + i * self.behind
            with code.loop(0, self.behind, independent=True) as j:
                y[to + j] = row[j]
