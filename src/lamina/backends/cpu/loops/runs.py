"""Maps that move elements, by runs: contiguous elements of an axis that stay contiguous are copied at once.

Reflect and replicate padding, rolling and patches are a few runs of the innermost axis, the same in every row, and
rows that are selected by index. Elements outside of runs are moved one by one; those without a source are zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod

import numpy as np

from lamina.backends.cpu.library import Held, Location, at_input, at_output
from lamina.backends.cpu.loops.code import Code, Scalar, where
from lamina.backends.cpu.loops.kernel import LoopKernel
from lamina.ops.core import Array
from lamina.ops.primitives.axis_map import SparseRows
from lamina.ops.primitives.map_axes import MapAxes
from lamina.spec import DType, Spec, int64

#: Elements from which a memcpy is worth its call, and the average length of a row's parts from which runs pay.
_RUN, _AVERAGE = 8, 4


@dataclass(frozen=True, eq=False)
class RowRuns:
    """A row of the result. runs: [(to, from, count)]; single: [(to, from)], from -1 for zeros."""

    runs: Array
    single: Array

    @property
    def parts(self) -> int:
        """How many copies a row takes."""
        return len(self.runs) + len(self.single)


def sources(rows: SparseRows) -> Array | None:
    """The source index of each row, -1 for none; None where something is computed."""
    if rows.longest > 1 or not (rows.weight == 1).all():
        return None
    at = np.full(rows.rows, -1, np.int64)
    at[rows.counts == 1] = rows.at
    return at


def row_runs(at: Array, behind: int) -> RowRuns:
    """The runs of an axis with these source indices, with `behind` elements after each."""
    begins = np.flatnonzero(np.concatenate([[True], (np.diff(at) != 1) | (at[1:] < 0) | (at[:-1] < 0)]))
    counts = np.diff(np.concatenate([begins, [len(at)]]))
    long = (counts * behind >= _RUN) & (at[begins] >= 0)
    runs = np.ascontiguousarray(np.stack([begins, at[begins], counts], 1)[long] * behind)
    held = np.repeat(long, counts)
    to = np.flatnonzero(~held)
    single = np.stack([to, at[to]], 1)
    if behind > 1:
        every = np.arange(behind)
        found = np.where(single[:, 1:] < 0, -1, single[:, 1:] * behind + every)
        single = np.stack([single[:, :1] * behind + every, found], 2).reshape(-1, 2)
    return RowRuns(runs, np.ascontiguousarray(single))


def moved(op: MapAxes, x: Spec, y: Spec, dtype: DType) -> LoopKernel | None:
    """The kernel for row-major x and y; None where elements are computed, or runs are short."""
    tables = {axis: sources(m.table) for axis, m in enumerate(op.maps) if m is not None}
    known = {axis: at for axis, at in tables.items() if at is not None}
    if not tables or len(known) < len(tables):
        return None
    first, last = min(known), max(known)
    row, size = row_runs(known[last], prod(x.shape[last + 1 :])), prod(y.shape[last:])
    if row.parts * _AVERAGE > size:
        return None
    parameters: list[Location | Held | int] = [at_input(0), at_output(), prod(x.shape[last:]), size]
    parameters += [Held(row.runs), len(row.runs), Held(row.single), len(row.single)]
    for axis in range(first, last):
        parameters += [x.shape[axis], y.shape[axis]]
        parameters += [Held(known[axis])] if axis in known else []
    zeros = any(bool((at < 0).any()) for at in known.values())
    text = partial(_text, dtype, tuple(axis in known for axis in range(first, last)), zeros)
    return LoopKernel(text, parameters, prod(x.shape[:first]), 2 * y.numel)


@lru_cache(maxsize=256)
def _text(dtype: DType, mapped: tuple[bool, ...], zeros: bool) -> str:
    """mapped: whether each axis before the rows is indexed, or unchanged."""
    code = Code()
    rows = _RowCopies(code, dtype, zeros)
    axes = [(code.size(), code.size(), code.array(int64) if m else None) for m in mapped]
    first, last = code.share()

    def along(depth: int, x: Scalar, y: Scalar, inside: Scalar | None) -> None:
        """The loops over the axes before the rows: x and y count rows, `inside` tells whether there is a source."""
        if depth == len(axes):
            rows.one(x, y, inside)
            return
        source, target, table = axes[depth]
        with code.loop(0, target) as i:
            at, there = i, inside
            if table is not None:
                at = table[i]
                if zeros:
                    there = at >= 0 if inside is None else inside & (at >= 0)
                    at = where(at < 0, 0, at)
            along(depth + 1, x * source + at, y * target + i, there)

    with code.loop(first, last) as plane:
        along(0, plane, plane, None)
    return code.text()


class _RowCopies:
    """The parameters of rows, and how one is written."""

    def __init__(self, code: Code, dtype: DType, zeros: bool) -> None:
        self.code, self.zeros = code, zeros
        self.x, self.y = code.array(dtype), code.array(dtype)
        self.read, self.written = code.sizes(2)
        self.runs, self.count = code.array(int64), code.size()
        self.single, self.singles = code.array(int64), code.size()

    def one(self, x_row: Scalar, y_row: Scalar, inside: Scalar | None) -> None:
        """Row y_row from row x_row, or zeros."""
        code, source, target = self.code, x_row * self.read, y_row * self.written
        if inside is None:
            self._filled(source, target)
            return
        with code.when(inside):
            self._filled(source, target)
        with (
            code.when(code.call("logical_not", (inside,))),
            code.loop(0, self.written, independent=True) as j,
        ):
            self.y[target + j] = 0

    def _filled(self, source: Scalar, target: Scalar) -> None:
        code = self.code
        with code.loop(0, self.count) as r:
            to, start, length = (self.runs[r * 3 + k] for k in range(3))
            code.copy(self.y, target + to, self.x, source + start, length)
        with code.loop(0, self.singles) as e:
            to, start = self.single[e * 2], self.single[e * 2 + 1]
            if self.zeros:
                self.y[target + to] = where(start < 0, 0, self.x[source + np.maximum(start, 0)])
            else:
                self.y[target + to] = self.x[source + start]
