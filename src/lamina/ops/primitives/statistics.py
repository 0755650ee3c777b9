"""Statistics: any and all, NaN-ignoring sums, medians, quantiles, modes."""

from __future__ import annotations

import builtins
import math
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np

from lamina.ops.arguments import Dims, DTypeLike, checked, shown
from lamina.ops.core import call, is_number, operand
from lamina.ops.primitives.arrange import movedim
from lamina.ops.primitives.cast import cast
from lamina.ops.primitives.elementary import lerp, round
from lamina.ops.primitives.full_like import full_like
from lamina.ops.primitives.gather import gather
from lamina.ops.primitives.marker import stop_gradient
from lamina.ops.primitives.pointwise import ceil, floor, maximum, where
from lamina.ops.primitives.reduce import amax, amin, argmax, sum
from lamina.ops.primitives.scan import Scan
from lamina.ops.primitives.shape import cat, slice_axis, unsqueeze
from lamina.ops.primitives.sort import argsort, sort
from lamina.spec import ShapeError, bool_, float32, float64, int64, normalize_axis

T = TypeVar("T")


class AMinMax(NamedTuple, Generic[T]):
    """The smallest and the largest elements."""

    min: T
    max: T


class KthValueDim(NamedTuple, Generic[T]):
    """The k-th smallest elements along an axis, and their int64 indices."""

    values: T
    indices: T


class MedianDim(NamedTuple, Generic[T]):
    """The medians along an axis, and their int64 indices."""

    values: T
    indices: T


class ModeDim(NamedTuple, Generic[T]):
    """The most frequent elements along an axis, and the int64 index of the last of each."""

    values: T
    indices: T


# ---- truth and sums


@checked
def any(input: Any, dim: Dims = None, keepdim: bool = False) -> Any:
    """Whether any element along dim is true (nonzero). torch.any."""
    x = operand(input, "any")
    return _kept_bytes(sum(x != 0, dim, keepdim) != 0, x)


@checked
def all(input: Any, dim: Dims = None, keepdim: bool = False) -> Any:
    """Whether all elements along dim are true (nonzero). torch.all."""
    x = operand(input, "all")
    return _kept_bytes(sum(x == 0, dim, keepdim) == 0, x)


def _kept_bytes(found: Any, x: Any) -> Any:
    """torch returns uint8 for uint8."""
    return cast(found, x.dtype) if x.dtype.kind == "u" else found


@checked
def count_nonzero(input: Any, dim: Dims = None) -> Any:
    """The number of nonzero elements along dim, as int64."""
    return sum(operand(input, "count_nonzero") != 0, dim)


@checked
def nansum(input: Any, dim: Dims = None, keepdim: bool = False, *, dtype: DTypeLike | None = None) -> Any:
    """The sum along dim, NaN counting as 0."""
    return sum(_without_nan(operand(input, "nansum")), dim, keepdim, dtype=dtype)


def _without_nan(x: Any) -> Any:
    return where(x != x, 0.0, x) if x.dtype.is_float else x


@checked
def nanmean(input: Any, dim: Dims = None, keepdim: bool = False, *, dtype: DTypeLike | None = None) -> Any:
    """The mean along dim, ignoring NaN."""
    x = operand(input, "nanmean")
    x = x if dtype is None else cast(x, dtype)
    count = sum((x == x), dim, keepdim)
    return sum(_without_nan(x), dim, keepdim) / cast(count, x.dtype)


@checked
def aminmax(input: Any, *, dim: int | None = None, keepdim: bool = False) -> AMinMax[Any]:
    """The smallest and the largest element along dim, by default of all: a named tuple (min, max)."""
    return AMinMax(amin(input, dim, keepdim), amax(input, dim, keepdim))


# ---- ranks


def _rows(what: str, input: Any, dim: int) -> tuple[Any, int]:
    """input with at least one axis, and the axis."""
    x = operand(input, what)
    axis = normalize_axis(dim, max(x.ndim, 1), what)
    return (x if x.ndim else x.reshape((1,))), axis


def _rank(x: Any, place: Any, axis: int, keepdim: bool, order: Any = None) -> tuple[Any, Any]:
    """The elements of given ranks (an int, or a tensor of them with size 1 along the axis), and their indices."""
    order = argsort(x, axis) if order is None else order
    if isinstance(place, builtins.int):
        index = slice_axis(order, axis, place, place + 1)
    else:
        index = gather(order, axis, place)
    values = gather(x, axis, index)
    if keepdim:
        return values, index
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    return values.reshape(shape), index.reshape(shape)


@checked
def kthvalue(input: Any, k: int, dim: int = -1, keepdim: bool = False) -> KthValueDim[Any]:
    """The k-th smallest elements along dim, 1-based, and their indices. torch.kthvalue."""
    x, axis = _rows("kthvalue", input, dim)
    if not 1 <= k <= x.shape[axis]:
        raise ShapeError(f"kthvalue: k must be in 1 … {x.shape[axis]} for axis {dim} of {x.spec}, got {k}")
    return KthValueDim(*_of_rank(input, _rank(x, k - 1, axis, keepdim)))


def _of_rank(input: Any, found: tuple[Any, Any]) -> tuple[Any, Any]:
    """Results for a 0-d input have no axes."""
    return found if operand(input).ndim else (found[0].reshape(()), found[1].reshape(()))


@checked
def median(input: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower of the middle elements; with dim a named tuple (values, indices). NaN if there is one.

    Without dim equal elements share the gradient; with dim it goes to the one at the index. torch.median.
    """
    return _median("median", input, dim, keepdim, ignore_nan=False)


@checked
def nanmedian(input: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """`median`, ignoring NaN."""
    return _median("nanmedian", input, dim, keepdim, ignore_nan=True)


def _median(what: str, input: Any, dim: int | None, keepdim: bool, *, ignore_nan: bool) -> Any:
    if dim is None:
        x = operand(input, what)
        if x.spec.numel == 0:
            return full_like(sum(x.cast("float32")), math.nan).cast(x.dtype)
        found = _median(what, x.reshape((x.spec.numel,)), 0, False, ignore_nan=ignore_nan)[0]
        return _shared(x, stop_gradient(found)) if x.dtype.is_float else found
    x, axis = _rows(what, input, dim)
    n = x.shape[axis]
    if n == 0:
        raise ShapeError(f"{what}: axis {dim} of {x.spec} has no elements")
    place: Any = (n - 1) // 2
    if x.dtype.is_float:
        nans = sum(x != x, axis, True)
        middle = where(nans == 0, (n - 1) // 2, n - nans)  # NaN is sorted last
        if ignore_nan:
            middle = maximum((n - nans - 1).cast("float64") * 0.5, 0.0).cast(int64)
        place = middle
    return MedianDim(*_of_rank(input, _rank(x, place, axis, keepdim)))


def _shared(x: Any, value: Any) -> Any:
    """A value of x whose gradient is shared evenly by all elements equal to it."""
    return amax(where((x == value) | ((x != x) & (value != value)), x, -math.inf))


@checked
def mode(input: Any, dim: int = -1, keepdim: bool = False) -> ModeDim[Any]:
    """The most frequent element along dim, the smallest of several, and the index where it is last. torch.mode."""
    x, axis = _rows("mode", input, dim)
    n = x.shape[axis]
    if n == 0:
        raise ShapeError(f"mode: axis {dim} of {x.spec} has no elements")
    values, order = sort(x, axis)
    along = np.arange(n).reshape([-1 if a == axis else 1 for a in range(x.ndim)])
    before = slice_axis(values, axis, 0, n - 1) != slice_axis(values, axis, 1, n)
    first = cat([full_like(slice_axis(values, axis, 0, 1), True, dtype=bool_), before], axis)
    start = call(Scan("max", axis), where(first, along, 0))
    run = along - start  # number of equal elements before it
    best = argmax(run, axis, keepdim=True)
    return ModeDim(*_of_rank(input, _rank(x, best, axis, keepdim, order)))


Interpolation = Literal["linear", "lower", "higher", "midpoint", "nearest"]


@checked
def quantile(
    input: Any,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: Interpolation = "linear",
) -> Any:
    """The elements of rank q * (n - 1) along dim (by default of all), q a number or a vector of them in 0 … 1.

    For several q the results are along a new first axis. interpolation: between neighbors, if the rank is fractional.
    NaN if there is one. torch.quantile.
    """
    return _quantile("quantile", input, q, dim, keepdim, interpolation, ignore_nan=False)


@checked
def nanquantile(
    input: Any,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: Interpolation = "linear",
) -> Any:
    """`quantile`, ignoring NaN."""
    return _quantile("nanquantile", input, q, dim, keepdim, interpolation, ignore_nan=True)


def _quantile(
    what: str, input: Any, q: Any, dim: int | None, keepdim: bool, interpolation: str, *, ignore_nan: bool
) -> Any:
    x = operand(input, what)
    # Ranks need more precision than elements: in rows longer than 2,048, half ranks are between two float16 numbers.
    numbers = is_number(q) or (isinstance(q, list | tuple) and builtins.all(map(is_number, q)))
    wide, given = float64 if numbers or x.dtype == float64 else float32, operand(q, what, "q")
    parts = operand(np.asarray(q, np.float64)) if numbers else cast(given, wide)
    if parts.ndim > 1 or not x.dtype.is_float:
        raise ShapeError(
            f"{what}: takes floats, and for q a number or a vector, got {x.spec} and {parts.spec}"
        )
    known = np.asarray(q, np.float64) if numbers or isinstance(q, np.ndarray) else np.zeros(0)
    if not ((known >= 0) & (known <= 1)).all():
        raise ValueError(f"{what}: q must be in 0 … 1, got {shown(q)}")
    flat = x if x.ndim and dim is not None else x.reshape((x.spec.numel,))
    axis = normalize_axis(0 if dim is None else dim, max(flat.ndim, 1), what)
    if flat.shape[axis] == 0:
        raise ShapeError(f"{what}: axis {dim} of {x.spec} has no elements")
    rows = movedim(flat, axis, -1)
    values, count = sort(rows, -1)[0], sum(rows == rows, -1, True)
    n = rows.shape[-1]
    rank = parts.reshape((-1,)) * cast((count if ignore_nan else count * 0 + n) - 1, wide)
    rank = maximum(rank, 0.0)
    if not ignore_nan:
        rank = where(count == n, rank, float(n - 1))  # NaN is the last one
    found = movedim(_between(values, rank, interpolation), -1, 0)
    if keepdim and x.ndim:
        found = found.reshape((-1, *(1,) * x.ndim)) if dim is None else unsqueeze(found, axis + 1)
    return found.reshape(found.shape[1:]) if parts.ndim == 0 else found


def _between(values: Any, rank: Any, interpolation: str) -> Any:
    """The elements of sorted rows at possibly fractional ranks: [..., N] and [..., Q] to [..., Q]."""
    low, high = floor(rank), ceil(rank)
    if interpolation in ("lower", "higher", "nearest"):
        rank = {"lower": low, "higher": high, "nearest": round(rank)}[interpolation]
        return gather(values, -1, cast(rank, int64))
    below, above = (gather(values, -1, cast(r, int64)) for r in (low, high))
    return lerp(below, above, 0.5 if interpolation == "midpoint" else cast(rank - low, values.dtype))
