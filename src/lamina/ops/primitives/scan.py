"""Cumulative sums, products and extrema along an axis, and differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np

from lamina.ops.arguments import DTypeLike, checked
from lamina.ops.core import INTEGERS, Arg, Array, BatchAxes, Op, Sample, call, first_axis, operand
from lamina.ops.primitives.cast import cast
from lamina.ops.primitives.gather import GatherGrad
from lamina.ops.primitives.pointwise import exp, log, where
from lamina.ops.primitives.shape import cat, flip, slice_axis
from lamina.spec import FLOATS, DTypeError, Shape, ShapeError, Spec, bool_, float32, int64, normalize_axis

T = TypeVar("T")
ScanKind = Literal["sum", "prod", "max", "min", "logsumexp"]
_ACCUMULATE: dict[ScanKind, Callable[[Array, int], Any]] = {
    "sum": lambda x, axis: np.cumsum(x, axis, dtype=_wide(x)).astype(x.dtype, copy=False),
    "prod": lambda x, axis: np.cumprod(x, axis, dtype=_wide(x)).astype(x.dtype, copy=False),
    "max": lambda x, axis: np.maximum.accumulate(x, axis),
    "min": lambda x, axis: np.minimum.accumulate(x, axis),
    "logsumexp": lambda x, axis: np.logaddexp.accumulate(x, axis),
}


def _wide(x: Array) -> Any:
    """The accumulation dtype: rounding would grow with the length of the axis."""
    return np.float64 if x.dtype == np.float32 else x.dtype


@dataclass(frozen=True)
class Scan(Op):
    """y[i] combines x[0] … x[i] along an axis by their sum, prod, max, min or logsumexp.

    Half types accumulate in float32, on a CPU float32 sums and products in float64, as in torch; each result is
    rounded once. NaN propagates. The gradient of max and min goes to the last of equal elements.
    """

    kind: ScanKind
    axis: int
    dtypes = (*FLOATS, *INTEGERS)
    inplace = {0: 0}

    def infer(self, x: Spec) -> tuple[Spec]:
        self.check_float(x)
        normalize_axis(self.axis, x.ndim, self.name)
        if self.kind == "logsumexp" and not x.dtype.is_float:
            raise DTypeError(f"{self.name}: logsumexp of {x} is not defined; cast with ops.cast")
        return (x.open,)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        return first_axis(axes, allowed=[a for a in range(inputs[0].ndim) if a != self.axis])

    def stacked(self, size: int, inputs: Sequence[Spec], batched: Sequence[bool]) -> Op:
        return Scan(self.kind, self.axis % inputs[0].ndim + 1)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        (g,), (x,), (y,) = grads, inputs, outputs
        if self.kind == "sum":
            return (_from_end(g, self.axis),)
        if self.kind == "prod":
            return (_product_gradient(g, x, y, self.axis),)
        if self.kind == "logsumexp":
            return (_logsumexp_gradient(g, x, y, self.axis),)
        return (call(GatherGrad(self.axis, x.shape[self.axis]), g, _last_hit(x, y, self.axis)),)

    def reference(self, x: Array) -> tuple[Array]:
        return (_ACCUMULATE[self.kind](x, self.axis),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        cases: list[tuple[Shape, int]] = [
            ((7,), 0), ((3, 5), 1), ((2, 3, 4), 1), ((0, 3), 0), ((3, 0), 1), ((2, 1500), 1), ((300, 40), 0),
        ]  # fmt: skip
        for kind in _ACCUMULATE:
            for shape, axis in cases:
                arg = (
                    Arg(shape, low=0.5, high=1.5)
                    if kind == "prod"
                    else Arg(shape, distinct=kind in ("max", "min"))
                )
                if kind == "prod" and max(shape) > 100:
                    arg = Arg(shape, low=0.999, high=1.001)
                yield Sample.of(cls(kind, axis), arg, dtypes=FLOATS)
        exact: tuple[ScanKind, ...] = ("sum", "prod", "max", "min")
        for kind in exact:
            numbers = Arg((3, 9), low=-2, high=3, integers=True)
            yield Sample.of(cls(kind, 1), numbers, dtypes=INTEGERS[:2])


def _from_end(g: Any, axis: int, kind: ScanKind = "sum") -> Any:
    """The scan in reverse."""
    return flip(call(Scan(kind, axis), flip(g, axis)), axis)


def _product_gradient(g: Any, x: Any, y: Any, axis: int) -> Any:
    """Where x is nonzero the reverse cumulative sum of g * y, divided by x. The first 0 of a line gets the products
    of later elements without it, up to the next 0; elements after it get nothing."""
    zero = x == 0
    first = zero & (call(Scan("sum", axis), zero.cast(int64)) == 1)
    without = call(Scan("prod", axis), where(first, 1.0, x))
    others = _from_end(g * y, axis) / where(zero, 1.0, x)
    return where(first, _from_end(g * without, axis), where(zero, 0.0, others))


#: Added to the positive and to the negative part of a cotangent, whose logarithms then are finite: the gradient stays
#: linear in cotangents that are zero, as those are at which forward derivatives are taken.
FLOOR = 1e-15


def _logsumexp_gradient(g: Any, x: Any, y: Any, axis: int) -> Any:
    """The reverse cumulative sum of g[i] * exp(x - y[i]), in logarithms: of positive and of negative g separately."""
    if x.dtype.itemsize < 4:
        wide = _logsumexp_gradient(cast(g, float32), cast(x, float32), cast(y, float32), axis)
        return cast(wide, x.dtype)
    reached, positive = y > -np.inf, g > 0
    shift = where(reached, y, 0.0)

    def summed(part: Any) -> Any:
        size = where(reached, log(part + FLOOR) - shift, -np.inf)
        return exp(where(x > -np.inf, x + _from_end(size, axis, "logsumexp"), -np.inf))

    return summed(where(positive, g, 0.0)) - summed(where(positive, 0.0, -g))


def _last_hit(x: Any, y: Any, axis: int) -> Any:
    """For each running extremum the index of the last element so far that attains it."""
    along = np.arange(x.shape[axis]).reshape([-1 if a == axis else 1 for a in range(x.ndim)])
    return call(Scan("max", axis), where((x == y) | (x != x), along, 0))


class CumMax(NamedTuple, Generic[T]):
    """The largest elements so far, and the int64 index of the last of each."""

    values: T
    indices: T


class CumMin(NamedTuple, Generic[T]):
    """The smallest elements so far, and the int64 index of the last of each."""

    values: T
    indices: T


@checked
def cumsum(input: Any, dim: int, *, dtype: DTypeLike | None = None) -> Any:
    """The cumulative sums along an axis, as torch.cumsum.

    dtype: input is cast to it first, and the sums have it; by default integers and booleans become int64. A scalar
    has one sum, itself. Raises ShapeError for an axis that does not exist.
    """
    return _of_type(_scan("cumsum", "sum", _summable("cumsum", input, dtype), dim), dtype)


@checked
def cumprod(input: Any, dim: int, *, dtype: DTypeLike | None = None) -> Any:
    """The cumulative products along an axis; dtype as in `cumsum`. torch.cumprod."""
    return _of_type(_scan("cumprod", "prod", _summable("cumprod", input, dtype), dim), dtype)


@checked
def logcumsumexp(input: Any, dim: int) -> Any:
    """The logarithm of the cumulative sums of exp along an axis. torch.logcumsumexp."""
    return _scan("logcumsumexp", "logsumexp", operand(input, "logcumsumexp"), dim)


@checked
def cummax(input: Any, dim: int) -> CumMax[Any]:
    """The cumulative maximum along an axis, and its index: a named tuple (values, indices)."""
    return CumMax(*_extremum("cummax", "max", input, dim))


@checked
def cummin(input: Any, dim: int) -> CumMin[Any]:
    """The cumulative minimum along an axis, and its index: a named tuple (values, indices)."""
    return CumMin(*_extremum("cummin", "min", input, dim))


def _summable(what: str, input: Any, dtype: DTypeLike | None) -> Any:
    x = operand(input, what)
    if dtype is not None:
        x = cast(x, dtype)
    return x if x.dtype.is_float else cast(x, int64)


def _of_type(x: Any, dtype: DTypeLike | None) -> Any:
    return x if dtype is None else cast(x, dtype)


def _scan(what: str, kind: ScanKind, x: Any, dim: int) -> Any:
    axis = normalize_axis(dim, max(x.ndim, 1), what)
    return call(Scan(kind, axis), x) if x.ndim else x


def _extremum(what: str, kind: ScanKind, input: Any, dim: int) -> tuple[Any, Any]:
    x = operand(input, what)
    if x.dtype == bool_:
        values, indices = _extremum(what, kind, cast(x, "uint8"), dim)
        return cast(values, bool_), indices
    flat = x if x.ndim else x.reshape((1,))
    values = _scan(what, kind, flat, dim)
    indices = _last_hit(flat, values, normalize_axis(dim, flat.ndim, what))
    return values.reshape(x.shape), indices.reshape(x.shape)


# ---- differences and areas


@checked
def diff(input: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """The n-th differences of neighbors along an axis, with values prepended and appended. torch.diff."""
    x = operand(input, "diff")
    if n < 0 or x.ndim == 0:
        raise ShapeError(f"diff: needs an axis and n >= 0, got {x.spec} and {n}")
    axis = normalize_axis(dim, x.ndim, "diff")
    if n == 0:
        return x.clone()
    parts = [prepend, x, append]
    given = [operand(p, "diff") for p in parts if p is not None]
    x = cat(given, axis) if len(given) > 1 else x
    for _ in range(min(n, x.shape[axis])):
        size = x.shape[axis]
        after, before = slice_axis(x, axis, 1, size), slice_axis(x, axis, 0, size - 1)
        x = after != before if x.dtype == bool_ else after - before
    return x


@checked
def gradient(
    input: Any,
    *,
    spacing: float | Sequence[float] = 1.0,
    dim: int | Sequence[int] | None = None,
    edge_order: int = 1,
) -> list[Any]:
    """The numerical derivative of input along each axis of dim, by default all. torch.gradient.

    spacing: the distance of neighbors, one for all axes or one per axis. edge_order: the order of accuracy at the
    ends, 1 or 2. Raises ShapeError for an axis of fewer than edge_order + 1 elements, ValueError for mismatched
    numbers.
    """
    x = operand(input, "gradient")
    x = x if x.dtype.is_float else cast(x, "float32")
    given = range(x.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    axes = [normalize_axis(d, x.ndim, "gradient") for d in given]
    apart = [spacing] * len(axes) if isinstance(spacing, (int, float)) else list(spacing)
    if edge_order not in (1, 2) or len(apart) != len(axes):
        raise ValueError(
            f"gradient: needs edge_order 1 or 2 and a spacing for each axis, got {edge_order} and {spacing} for "
            f"{len(axes)} axes"
        )
    return [_slopes(x, axis, float(h), edge_order) for axis, h in zip(axes, apart, strict=True)]


def _slopes(x: Any, axis: int, h: float, edge_order: int) -> Any:
    size = x.shape[axis]
    if size < edge_order + 1:
        raise ShapeError(f"gradient: needs {edge_order + 1} elements along axis {axis}, got {x.spec}")

    def at(i: int, count: int = 1) -> Any:
        return slice_axis(x, axis, i, i + count)

    if edge_order == 1:
        ends = at(1) - at(0), at(size - 1) - at(size - 2)
    else:
        ends = (
            2.0 * at(1) - 1.5 * at(0) - 0.5 * at(2),
            1.5 * at(size - 1) - 2.0 * at(size - 2) + 0.5 * at(size - 3),
        )
    inner = [(at(2, size - 2) - at(0, size - 2)) * 0.5] if size > 2 else []
    return cat([ends[0], *inner, ends[1]], axis) * (1.0 / h)


def _areas(what: str, y: Any, x: Any, dx: Any, dim: int) -> tuple[Any, int]:
    """The areas of the trapezoids between neighbors, and the axis."""
    y = operand(y, what, "y")
    axis = normalize_axis(dim, y.ndim, what)
    size = y.shape[axis]
    both = slice_axis(y, axis, min(1, size), size) + slice_axis(y, axis, 0, max(size - 1, 0))
    if x is None:
        return both * (dx * 0.5), axis
    place = operand(x, what, "x")
    if place.ndim == 1:
        place = place.reshape([-1 if a == axis else 1 for a in range(y.ndim)])
    along = place.ndim - y.ndim + axis
    n = place.shape[along]
    widths = slice_axis(place, along, min(1, n), n) - slice_axis(place, along, 0, max(n - 1, 0))
    return both * widths * 0.5, axis


@checked
def trapezoid(y: Any, x: Any = None, *, dx: float = 1.0, dim: int = -1) -> Any:
    """The integral of y along an axis by the trapezoidal rule, at positions x or spacing dx. torch.trapezoid."""
    areas, axis = _areas("trapezoid", y, x, dx, dim)
    return areas.sum(axis)


@checked
def cumulative_trapezoid(y: Any, x: Any = None, *, dx: float = 1.0, dim: int = -1) -> Any:
    """The cumulative integrals of y, from the second element on. torch.cumulative_trapezoid."""
    areas, axis = _areas("cumulative_trapezoid", y, x, dx, dim)
    return cumsum(areas, axis)
