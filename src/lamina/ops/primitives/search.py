"""Searching and counting: positions in sorted rows, counts in bins, nonzero elements, distinct elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, overload

import numpy as np

from lamina.ops.arguments import checked
from lamina.ops.core import NUMBERS, Arg, Array, Op, Sample, call, is_number, listing, operand, together
from lamina.ops.primitives.cast import cast
from lamina.ops.primitives.full_like import full_like, ones_like
from lamina.ops.primitives.gather import Gather, Scatter, host_values
from lamina.ops.primitives.pointwise import floor
from lamina.ops.primitives.pointwise import where as chosen
from lamina.ops.primitives.reduce import amax, amin
from lamina.ops.primitives.selection import indices
from lamina.ops.primitives.shape import stack, unsqueeze
from lamina.ops.primitives.statistics import any
from lamina.spec import (
    DTypeError,
    Shape,
    ShapeError,
    Spec,
    as_shape,
    bool_,
    float32,
    int32,
    int64,
    normalize_axis,
)


@dataclass(frozen=True)
class SearchSorted(Op):
    """(sorted rows [R, N], values [R, M] of their dtype) -> int64 [R, M]: how many elements of the row are smaller.

    right: smaller or equal. NaN is larger than everything.
    """

    right: bool = False
    arity = 2
    differentiable = False
    dtypes = NUMBERS

    def infer(self, rows: Spec, values: Spec) -> tuple[Spec]:
        self.check_float(rows, values)
        if rows.ndim != 2 or values.ndim != 2 or rows.shape[0] != values.shape[0]:
            raise ShapeError(
                f"{self.name}: needs rows [R, N] and values [R, M], got {listing((rows, values))}"
            )
        return (self.result(values.shape, int64),)

    def reference(self, rows: Array, values: Array) -> tuple[Array]:
        side: Literal["left", "right"] = "right" if self.right else "left"
        found = [np.searchsorted(row, v, side) for row, v in zip(rows, values, strict=True)]
        return (np.stack(found) if found else np.zeros(values.shape, np.int64),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        cases: list[tuple[Shape, Shape]] = [
            ((1, 7), (1, 30)),
            ((3, 1), (3, 4)),
            ((2, 0), (2, 3)),
            ((0, 3), (0, 2)),
        ]
        for right in (False, True):
            for rows, values in cases:
                ordered = Arg(rows, value=tuple(2 * i % 14 for i in range(prod(rows))))
                if rows[0] > 1:
                    ordered = Arg(rows, low=3, high=4, integers=True)
                yield Sample.of(cls(right), ordered, Arg(values, low=0, high=15, integers=True))


@checked
def searchsorted(
    sorted_sequence: Any,
    input: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: Literal["left", "right"] | None = None,
    sorter: Any = None,
) -> Any:
    """The insertion positions of input's elements in sorted rows: after all smaller elements, with right=True
    (side="right") also after all equal ones. torch.searchsorted.

    sorted_sequence: one row for all, or one per row of input. sorter: the permutation that sorts it.
    """
    rows = operand(sorted_sequence, "searchsorted", "sorted_sequence")
    if is_number(input):  # 2.5 is between the integers 2 and 3
        rows, input = together("searchsorted", rows, input)
    x = operand(input, "searchsorted")
    if right and side == "left":
        raise ValueError("searchsorted: side='left' and right=True say opposite things")
    if sorter is not None:
        order = operand(sorter, "searchsorted", "sorter")
        if order.shape != rows.shape:
            raise ShapeError(f"searchsorted: sorter {order.spec} must be of the shape of {rows.spec}")
        rows = call(Gather(rows.ndim - 1), rows, order)
    if rows.ndim != 1 and (rows.ndim == 0 or rows.shape[:-1] != x.shape[:-1]):
        raise ShapeError(
            f"searchsorted: sorted_sequence {rows.spec} must be a row, or have the first axes of {x.spec}"
        )
    if rows.dtype != x.dtype:
        raise DTypeError(
            f"searchsorted: sorted_sequence is {rows.spec} and input {x.spec}; cast one with ops.cast"
        )
    count = prod(rows.shape[:-1])
    width = x.spec.numel if rows.ndim == 1 else x.shape[-1]
    found = call(
        SearchSorted(right or side == "right"),
        rows.reshape((count, rows.shape[-1])),
        x.reshape((count, width)),
    )
    return cast(found.reshape(x.shape), int32 if out_int32 else int64)


@checked
def bucketize(input: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> Any:
    """The bucket between sorted boundaries that contains each element. torch.bucketize."""
    edges = operand(boundaries, "bucketize", "boundaries")
    if edges.ndim != 1:
        raise ShapeError(f"bucketize: boundaries must be a vector, got {edges.spec}")
    return searchsorted(edges, input, out_int32=out_int32, right=right)


# ---- counts


def _counts(index: Any, size: int, weights: Any) -> Any:
    """The sums of the weights of each number below size; negative indices are ignored."""
    base = np.zeros(size + 1, weights.dtype.numpy)
    spare = chosen(index < 0, size, index)
    return call(Scatter(0, "add"), base, spare, weights)[:size]


@checked
def bincount(input: Any, weights: Any = None, minlength: int = 0) -> Any:
    """The number of occurrences of each nonnegative integer, or the sum of its weights. torch.bincount.

    The size is the largest number + 1, at least minlength: it is data-dependent.
    """
    x = operand(input, "bincount")
    if x.dtype.kind not in "iu" or x.ndim != 1:
        raise DTypeError(f"bincount: takes a vector of integers, got {x.spec}")
    instead = "count by lamina.zeros(n).index_add(0, index, ones), whose length is known"
    numbers = host_values("bincount", x, "input", instead)
    if numbers.size and numbers.min() < 0:
        raise ValueError(f"bincount: numbers must be >= 0, got {numbers.min()}")
    size = max(int(numbers.max()) + 1 if numbers.size else 0, minlength)
    index = cast(x, int64)
    w = ones_like(index) if weights is None else operand(weights, "bincount", "weights")
    w = w if w.dtype.is_float or weights is None else cast(w, "float64")
    return _counts(index, size, w)


@checked
def unravel_index(indices: Any, shape: int | Sequence[int]) -> tuple[Any, ...]:
    """The coordinates along each axis of a tensor of this shape for flat row-major indices.

    As torch.unravel_index, for integers. Raises DTypeError for other dtypes.
    """
    x = operand(indices, "unravel_index", "indices")
    if x.dtype.kind not in "iu":
        raise DTypeError(f"unravel_index: indices must be integers, got {x.spec}")
    rest, found = cast(x, int64), []
    for size in reversed(as_shape([shape] if isinstance(shape, int) else shape, "unravel_index: shape")):
        found.append(rest % size)
        rest = rest // size
    return tuple(reversed(found))


@checked
def histc(input: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """The number of elements in each of a number of equal-width bins between min and max. torch.histc.

    Equal min and max mean the smallest and largest element. Elements outside, and NaN, are ignored.
    """
    x = operand(input, "histc")
    if bins < 1 or min > max:
        raise ValueError(f"histc: bins must be >= 1 and min <= max, got {bins}, {min} and {max}")
    x = x.reshape((x.spec.numel,))
    wide = x if x.dtype.is_float else cast(x, float32)
    low: Any = full_like(wide[:1], min) if wide.spec.numel else operand(np.zeros(1, wide.dtype.numpy))
    high: Any = full_like(low, max)
    if min == max and wide.spec.numel:
        low, high = amin(wide).reshape((1,)), amax(wide).reshape((1,))
    alone = low == high
    low, high = chosen(alone, low - 1, low), chosen(alone, high + 1, high)
    place = floor((wide - low) * bins / (high - low))
    place = chosen(place >= bins, bins - 1, place)
    inside = (wide >= low) & (wide <= high)
    index = cast(chosen(inside, place, -1.0), int64)
    return cast(_counts(index, bins, ones_like(index)), x.dtype)


@checked
def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Any:
    """Whether each element is among the test elements. torch.isin; assume_unique has no effect."""
    first, second = (
        operand(v, "isin", n) for v, n in ((elements, "elements"), (test_elements, "test_elements"))
    )
    found = any(unsqueeze(first, -1) == second.reshape((second.spec.numel,)), -1)
    return found.logical_not() if invert else found


# ---- data-dependent result shapes


def nonzero(input: Any, *, as_tuple: bool = False) -> Any:
    """The int64 indices of the nonzero elements, one per row; as_tuple: a vector per axis. torch.nonzero.

    The shape is data-dependent. Within `lamina.jit` and training steps each number of elements is a program of its
    own; a TypeError in other graphs. Synchronizes with a GPU.
    """
    x = operand(input, "nonzero")
    flags = x.reshape((1,)) if x.ndim == 0 else x
    flags = flags if x.dtype == bool_ else flags != 0
    found = [
        _placed(np.ascontiguousarray(c, np.int64) if isinstance(c, np.ndarray) else c, x)
        for c in indices("nonzero", flags, "input")
    ]
    if as_tuple:
        return tuple(found)
    return stack(found, 1) if x.ndim else _placed(np.zeros((found[0].shape[0], 0), np.int64), x)


def _placed(values: Array, x: Any) -> Any:
    """An array moved to the device of an operand."""
    found = operand(values)
    return found.to(x.device)


def argwhere(input: Any) -> Any:
    """`nonzero`."""
    return nonzero(input)


@overload
def where(condition: Any) -> tuple[Any, ...]: ...
@overload
def where(condition: Any, input: Any, other: Any) -> Any: ...
def where(condition: Any, input: Any = None, other: Any = None) -> Any:
    """input where condition (bool) is true, else other, in their common dtype; numbers take the tensor's.

    A condition alone gives the positions where it is true (nonzero), a vector per axis: `nonzero(as_tuple=True)`.
    Raises TypeError if one of input and other is missing.
    """
    if input is None and other is None:
        return nonzero(condition, as_tuple=True)
    if input is None or other is None:
        missing = "input" if input is None else "other"
        raise TypeError(
            f"where: {missing} is missing; give input and other, or condition alone for its places"
        )
    return chosen(condition, input, other)


@checked
def unique(
    input: Any,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The distinct elements in order, or the distinct slices of an axis; optionally with the position of each element
    among them and their counts. torch.unique; always sorted.

    The shape is data-dependent: a TypeError while a graph is recorded. Synchronizes with a GPU. NaN are all distinct.
    """
    x = operand(input, "unique")
    axis = None if dim is None else normalize_axis(dim, max(x.ndim, 1), "unique")
    values = host_values("unique", x, "input")
    if axis is not None and values.ndim == 0:
        values = values.reshape(1)
    found, inverse, counts = np.unique(
        values, return_inverse=True, return_counts=True, axis=axis, equal_nan=False
    )
    inverse = inverse.reshape(-1 if axis is not None else x.shape)
    return _chosen(x, (found, inverse, counts), return_inverse, return_counts)


def _chosen(x: Any, found: Sequence[Array], inverse: bool, counts: bool) -> Any:
    """The requested results."""
    kinds = (x.dtype.numpy, np.int64, np.int64)
    given = [_placed(np.array(v, k, order="C"), x) for v, k in zip(found, kinds, strict=True)]
    kept = [v for v, asked in zip(given, (True, inverse, counts), strict=True) if asked]
    return kept[0] if len(kept) == 1 else tuple(kept)


@checked
def unique_consecutive(
    input: Any, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """input without elements (slices of an axis) equal to the previous one; other results as in `unique`.

    torch.unique_consecutive.
    """
    x = operand(input, "unique_consecutive")
    values = host_values("unique_consecutive", x, "input")
    axis = 0 if dim is None else normalize_axis(dim, max(x.ndim, 1), "unique_consecutive")
    rows = values.reshape(-1) if dim is None or values.ndim == 0 else np.moveaxis(values, axis, 0)
    flat = rows.reshape(len(rows), prod(rows.shape[1:]))
    first = np.ones(len(rows), bool)
    first[1:] = (flat[1:] != flat[:-1]).any(1)
    starts = np.flatnonzero(first)
    inverse = np.cumsum(first) - 1
    counts = np.diff(np.append(starts, len(rows)))
    found = rows[starts] if dim is None or values.ndim == 0 else np.moveaxis(rows[starts], 0, axis)
    inverse = inverse.reshape(x.shape) if dim is None else inverse
    return _chosen(x, (found, inverse, counts), return_inverse, return_counts)
