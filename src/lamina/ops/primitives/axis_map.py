"""AxisMap: a linear map along one axis as a value: interpolation, padding from the axis itself, sliding windows.

Each output element is a weighted sum of a few elements of the axis. The weights are in a table (compressed sparse
rows) that NumPy computes once, so that every backend uses the same numbers; the transposed table is the gradient,
which is therefore a gather too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from lamina._cached import cached_property
from lamina.spec import ShapeError

Array = np.ndarray[Any, Any]

#: Rows of up to this many elements are summed element by element, longer ones by NumPy's reduceat.
_FEW = 48
#: For longer axes only the most recent tables are cached.
_LONG = 1 << 14


@dataclass(frozen=True, repr=False)
class AxisMap:
    """A map from an axis of `size` elements to one of `out` (the other way round if `transposed`).

    kind and numbers, with `scale` the number of input elements per output element:

        identity                ()
        nearest, nearest-exact  (scale,)
        linear, cubic           (scale, 1 if corners are aligned else 0); Keys' kernel with a = -0.75
        linear-antialias, cubic-antialias  the same; the kernel is stretched by the scale (a = -0.5, as Pillow's)
        area                    ()  the mean of the elements floor(i * size / out) … ceil((i + 1) * size / out) - 1
        cells                   (cells,)  the elements of that many such cells, cell by cell, each padded to the
                                size of the largest by repeating its last element
        reflect, replicate, circular  (number of elements prepended,)
        patches                 (kernel, stride, padding before, dilation): the elements under the kernel, tap by tap
    """

    kind: str
    size: int
    out: int
    numbers: tuple[float, ...] = ()
    transposed: bool = False

    def __post_init__(self) -> None:
        if self.kind not in _ROWS:
            raise ValueError(f"axis map: kind must be one of {', '.join(_ROWS)}, got {self.kind!r}")
        if len(self.numbers) != _NUMBERS.get(self.kind, 0) or self.size < 0 or self.out < 0:
            raise ShapeError(
                f"axis map: sizes must be >= 0 and numbers as {self.kind!r} takes them, got {self!r}"
            )
        object.__setattr__(self, "numbers", tuple(map(float, self.numbers)))

    def __repr__(self) -> str:
        """For example linear[4>7,0.5,0]; linear[4<7,0.5,0] is the transposed map."""
        sizes = f"{self.size}<{self.out}" if self.transposed else f"{self.size}>{self.out}"
        return f"{self.kind}[{','.join([sizes, *(f'{n:.17g}' for n in self.numbers)])}]"

    @property
    def source(self) -> int:
        """The size of the axis that is read."""
        return self.out if self.transposed else self.size

    @property
    def target(self) -> int:
        """The size of the axis that is written."""
        return self.size if self.transposed else self.out

    @property
    def adjoint(self) -> AxisMap:
        """The transposed map."""
        return replace(self, transposed=not self.transposed)

    @property
    def table(self) -> SparseRows:
        """Its weights. Raises ShapeError when elements are taken from an empty axis."""
        return (_table if max(self.size, self.out) <= _LONG else _long_table)(self)


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Row i of the map: the elements at[start[i]:start[i + 1]], with their weights (float64, all nonzero)."""

    start: Array
    at: Array
    weight: Array

    @property
    def rows(self) -> int:
        """The number of output elements."""
        return len(self.start) - 1

    @cached_property
    def counts(self) -> Array:
        """The number of elements that each row reads."""
        return np.diff(self.start)

    @cached_property
    def longest(self) -> int:
        """The largest number of elements that a row reads."""
        return int(self.counts.max(initial=0))

    @cached_property
    def moves(self) -> bool:
        """Whether each row copies a single element: pure data movement."""
        return bool((self.counts == 1).all() and (self.weight == 1).all())

    def apply(self, x: Array, axis: int) -> Array:
        """The map along an axis of x, in x's dtype."""
        if self.moves:
            return np.take(x, self.at, axis)
        if self.longest > _FEW:
            return self._by_segments(x, axis)
        if self.longest and self.counts.min() == self.longest:
            return self._by_taps(x, axis)
        return self._by_rows(x, axis)

    def _along(self, weight: Array, x: Array, axis: int) -> Array:
        return weight.astype(x.dtype).reshape((-1,) + (1,) * (x.ndim - 1 - axis))

    def _by_taps(self, x: Array, axis: int) -> Array:
        at, weight = self.at.reshape(self.rows, -1), self.weight.reshape(self.rows, -1)
        y = np.take(x, at[:, 0], axis)
        y *= self._along(weight[:, 0], x, axis)
        for k in range(1, self.longest):
            part = np.take(x, at[:, k], axis)
            part *= self._along(weight[:, k], x, axis)
            y += part
        return y

    def _by_rows(self, x: Array, axis: int) -> Array:
        y = np.zeros((*x.shape[:axis], self.rows, *x.shape[axis + 1 :]), x.dtype)
        for k in range(self.longest):
            rows = np.flatnonzero(self.counts > k)
            entry = self.start[rows] + k
            part = np.take(x, self.at[entry], axis)
            part *= self._along(self.weight[entry], x, axis)
            whole = len(rows) == self.rows
            y[(slice(None),) * axis + (slice(None) if whole else rows,)] += part
        return y

    def _by_segments(self, x: Array, axis: int) -> Array:
        y = np.zeros((*x.shape[:axis], self.rows, *x.shape[axis + 1 :]), x.dtype)
        rows = np.flatnonzero(self.counts)
        parts = np.take(x, self.at, axis)
        parts *= self._along(self.weight, x, axis)
        y[(slice(None),) * axis + (rows,)] = np.add.reduceat(parts, self.start[rows], axis)
        return y


class _Entries(NamedTuple):
    """Individual entries of a table, in any order."""

    row: Array
    at: Array
    weight: Array


def _compressed(entries: _Entries, rows: int) -> SparseRows:
    row, at, weight = (np.asarray(part).reshape(-1) for part in entries)
    kept = weight != 0
    row, at, weight = row[kept], at[kept], weight[kept]
    order = np.lexsort((at, row))
    start = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows)[:rows])])
    return SparseRows(start.astype(np.int64), at[order].astype(np.int64), weight[order].astype(np.float64))


def _made(axis: AxisMap) -> SparseRows:
    n, out = axis.size, axis.out
    if n == 0 and out and axis.kind != "patches":
        raise ShapeError(f"axis map: {axis} takes elements of an axis that has none")
    found = _ROWS[axis.kind](n, out, *axis.numbers)
    if axis.transposed:
        found = _Entries(found.at, found.row, found.weight)
    return _compressed(found, axis.target)


_table = lru_cache(maxsize=512)(_made)
_long_table = lru_cache(maxsize=4)(_made)


def _taps(first: Array, weights: Array, n: int) -> _Entries:
    """Row i: weights[i, k] for the element first[i] + k, clamped to the ends."""
    rows, taps = weights.shape
    at = np.clip(first[:, None] + np.arange(taps), 0, n - 1).astype(np.int64)
    return _Entries(np.repeat(np.arange(rows), taps), at, weights)


def _single(at: Array) -> _Entries:
    return _Entries(np.arange(len(at)), at, np.ones(len(at)))


def _identity(n: int, out: int) -> _Entries:
    return _single(np.arange(n))


def _nearest(n: int, out: int, scale: float) -> _Entries:
    """floor(i * scale) in float32, as PyTorch computes it."""
    if out in (n, 2 * n):
        return _single(np.arange(out) // max(out // max(n, 1), 1))
    at = np.floor(np.arange(out, dtype=np.float32) * np.float32(scale))
    return _single(np.minimum(at.astype(np.int64), n - 1))


def _nearest_exact(n: int, out: int, scale: float) -> _Entries:
    at = np.floor(((np.arange(out) + 0.5) * np.float64(np.float32(scale))).astype(np.float32))
    return _single(np.minimum(at.astype(np.int64), n - 1))


def _centres(out: int, scale: float, align: float) -> Array:
    """The positions of the output elements on the input axis."""
    i = np.arange(out, dtype=np.float64)
    return i * scale if align else (i + 0.5) * scale - 0.5


def _linear(n: int, out: int, scale: float, align: float) -> _Entries:
    at = np.clip(_centres(out, scale, align), 0, n - 1)
    first = np.floor(at)
    part = at - first
    return _taps(first, np.stack([1 - part, part], 1), n)


def _cubic(n: int, out: int, scale: float, align: float) -> _Entries:
    at = _centres(out, scale, align)
    first = np.floor(at)
    part = (at - first)[:, None]
    return _taps(first - 1, keys(part - np.array([-1, 0, 1, 2]), -0.75), n)


def keys(t: Array, a: float) -> Array:
    """R. Keys' cubic convolution kernel (1981) at the distances t."""
    t = np.abs(t)
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0.0))


def _antialiased(n: int, out: int, scale: float, reach: int, kernel: Callable[[Array], Array]) -> _Entries:
    """A kernel stretched by the scale where the axis shrinks; its weights sum to 1 at each position."""
    wide = max(scale, 1.0)
    centre = (np.arange(out) + 0.5) * scale
    first = np.maximum(np.trunc(centre - reach * wide + 0.5), 0)
    last = np.minimum(np.trunc(centre + reach * wide + 0.5), n)
    taps = np.arange(max(1, int((last - first).max(initial=1))))
    weights = kernel((first[:, None] + taps - centre[:, None] + 0.5) / wide)
    weights = np.where(first[:, None] + taps < last[:, None], weights, 0.0)
    return _taps(first, weights / weights.sum(1, keepdims=True), n)


def _linear_antialias(n: int, out: int, scale: float, align: float) -> _Entries:
    return _antialiased(n, out, scale, 1, lambda t: np.maximum(1 - np.abs(t), 0))


def _cubic_antialias(n: int, out: int, scale: float, align: float) -> _Entries:
    return _antialiased(n, out, scale, 2, lambda t: keys(t, -0.5))


def cells(n: int, out: int) -> tuple[Array, Array]:
    """The first elements of `out` cells of an axis, and their sizes."""
    i = np.arange(out)
    first = i * n // max(out, 1)
    return first, -(-(i + 1) * n // max(out, 1)) - first


def longest_cell(n: int, out: int) -> int:
    """The size of the largest cell."""
    return int(cells(n, out)[1].max(initial=1))


def _area(n: int, out: int) -> _Entries:
    first, count = cells(n, out)
    row = np.repeat(np.arange(out), count)
    at = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
    return _Entries(row, at, np.repeat(1 / np.maximum(count, 1), count))


def _cells(n: int, out: int, count: float) -> _Entries:
    first, sizes = cells(n, int(count))
    taps = np.arange(out // max(int(count), 1))
    return _single((first[:, None] + np.minimum(taps, sizes[:, None] - 1)).reshape(-1))


def _reflect(n: int, out: int, before: float) -> _Entries:
    period = max(2 * (n - 1), 1)
    at = np.abs((np.arange(out) - int(before)) % period)
    return _single(np.where(at < n, at, period - at))


def _replicate(n: int, out: int, before: float) -> _Entries:
    return _single(np.clip(np.arange(out) - int(before), 0, n - 1))


def _circular(n: int, out: int, before: float) -> _Entries:
    return _single((np.arange(out) - int(before)) % n)


def _patches(n: int, out: int, kernel: float, stride: float, before: float, dilation: float) -> _Entries:
    positions = out // int(kernel)
    at = np.arange(int(kernel))[:, None] * int(dilation) + np.arange(positions) * int(stride) - int(before)
    at = at.reshape(-1)
    inside = np.flatnonzero((at >= 0) & (at < n))
    return _Entries(inside, at[inside], np.ones(len(inside)))


_ROWS: dict[str, Callable[..., _Entries]] = {
    "identity": _identity,
    "nearest": _nearest,
    "nearest-exact": _nearest_exact,
    "linear": _linear,
    "cubic": _cubic,
    "linear-antialias": _linear_antialias,
    "cubic-antialias": _cubic_antialias,
    "area": _area,
    "cells": _cells,
    "reflect": _reflect,
    "replicate": _replicate,
    "circular": _circular,
    "patches": _patches,
}
_NUMBERS = {
    "nearest": 1,
    "nearest-exact": 1,
    "linear": 2,
    "cubic": 2,
    "linear-antialias": 2,
    "cubic-antialias": 2,
    "reflect": 1,
    "replicate": 1,
    "circular": 1,
    "patches": 4,
    "cells": 1,
}
