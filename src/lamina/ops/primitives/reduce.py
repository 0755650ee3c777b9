"""Reductions along axes, index reductions, and functions composed of them."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod as product
from typing import Any, Generic, NamedTuple, TypeVar, overload

import numpy as np

from lamina.ops.arguments import Dims, DTypeLike, checked
from lamina.ops.core import (
    NUMBERS,
    Arg,
    Array,
    BatchAxes,
    BatchAxis,
    Op,
    Operand,
    Sample,
    call,
    made,
    operand,
)
from lamina.ops.primitives.cast import cast
from lamina.ops.primitives.pointwise import maximum, minimum, where
from lamina.spec import (
    DTYPES,
    FLOATS,
    DType,
    DTypeError,
    Shape,
    ShapeError,
    Spec,
    int8,
    int32,
    int64,
    normalize_axes,
    normalize_axis,
    uint8,
)

T = TypeVar("T")


def _by(ufunc: np.ufunc, x: Array, axes: tuple[int, ...], keepdims: bool) -> Any:
    """np.sum, np.prod, np.max or np.min without their wrappers, whose overhead equals the sum of a small array."""
    reduced: Any = ufunc.reduce
    return reduced(x, axes, keepdims=keepdims)


#: Kinds and their NumPy implementations: (array, axes, keepdims) -> array.
_KINDS: dict[str, Callable[[Array, tuple[int, ...], bool], Any]] = {
    "sum": lambda x, a, k: _by(np.add, x, a, k),
    "mean": lambda x, a, k: _by(np.add, x, a, k) / product(x.shape[i] for i in a),
    "prod": lambda x, a, k: _by(np.multiply, x, a, k),
    "max": lambda x, a, k: _by(np.maximum, x, a, k),
    "min": lambda x, a, k: _by(np.minimum, x, a, k),
    "norm1": lambda x, a, k: _by(np.add, np.abs(x), a, k),
    "norm2": lambda x, a, k: np.sqrt(_by(np.add, np.square(x), a, k)),
    "amax": lambda x, a, k: _by(np.maximum, np.abs(x), a, k),
    "mul_no_zeros": lambda x, a, k: _by(np.multiply, np.where(x == 0, 1, x), a, k),
}
KINDS = tuple(_KINDS)
_NEEDS_ELEMENTS = ("max", "min", "amax")
_FLOAT_ONLY = ("mean", "norm1", "norm2", "amax", "mul_no_zeros")


@dataclass(frozen=True)
class Reduce(Op):
    """Reduce all elements along `axes` (sorted, counted from the front) to one value.

    kind: sum, mean, prod, max, min, norm1 (sum of magnitudes), norm2 (root of the sum of squares), amax
    (largest magnitude), mul_no_zeros (product of the nonzero elements): the kinds of cudnnReduceTensor.
    Half types are summed in float32. Sums and products of integers and booleans are int64.
    The gradient of max, min and amax is shared evenly among equal extrema; with `first` (max and min, one axis) all
    of it goes to the one at the index of `ArgMax` or `ArgMin`.
    """

    kind: str
    axes: tuple[int, ...]
    keepdims: bool = False
    first: bool = False
    dtypes = DTYPES

    def infer(self, x: Spec) -> tuple[Spec]:
        self.check_float(x)
        if self.kind not in _KINDS:
            raise ShapeError(f"{self.name}: kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if normalize_axes(self.axes, x.ndim, self.name) != self.axes:
            raise ShapeError(f"{self.name}: axes must be sorted and counted from the front, got {self.axes}")
        if self.first and (self.kind not in ("max", "min") or len(self.axes) != 1):
            raise ShapeError(f"{self.name}: first is for max and min along one axis, got {self}")
        if self.kind in _NEEDS_ELEMENTS and builtins.any(x.shape[a] == 0 for a in self.axes):
            raise ShapeError(f"{self.name}: {self.kind} of no elements along axes {self.axes} of {x}")
        return (self.result(_reduced(x.shape, self.axes, self.keepdims), self._result(x.dtype)),)

    def _result(self, dtype: DType) -> DType:
        if dtype.is_float:
            return dtype
        if self.kind in _FLOAT_ONLY or (dtype.kind == "b" and self.kind in ("max", "min")):
            raise DTypeError(f"{self.name}: {self.kind} of {dtype} is not defined; cast with ops.cast")
        return int64 if self.kind in ("sum", "prod") else dtype

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        b = axes[0]
        if b is None or b.axis in self.axes:
            return None
        gone = 0 if self.keepdims else builtins.sum(a < b.axis for a in self.axes)
        return (BatchAxis(b.axis - gone, b.size),)

    def stacked(self, size: int, inputs: Sequence[Spec], batched: Sequence[bool]) -> Op:
        return replace(self, axes=tuple(a + 1 for a in self.axes))

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        x = inputs[0]
        kept = _reduced(x.shape, self.axes, keepdims=True)
        g, y = grads[0].reshape(kept), outputs[0].reshape(kept)
        if self.first:
            return (_gradient_of_first(self.kind, g, x, self.axes[0]),)
        return (_gradient(self.kind, g, x, y, self.axes),)

    def reference(self, x: Array) -> tuple[Array]:
        wide = x.astype(np.int64) if x.dtype.kind in "iub" and self.kind in ("sum", "prod") else x
        return (_KINDS[self.kind](wide, self.axes, self.keepdims),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        shapes: list[tuple[Shape, tuple[int, ...], bool]] = [
            ((3, 5), (1,), False), ((2, 7, 5, 3), (0, 2, 3), False), ((1, 17), (0, 1), True),
            ((4, 3, 2), (), False), ((6, 1, 9), (1, 2), True),
        ]  # fmt: skip
        for kind in KINDS:
            for shape, axes, keep in shapes:
                arg = Arg(shape, distinct=True)
                if kind in ("prod", "mul_no_zeros"):  # avoids overflow of half types
                    arg = Arg(shape, low=0.6, high=1.4)
                yield Sample.of(cls(kind, axes, keep), arg, dtypes=FLOATS)
        for kind in ("max", "min"):
            yield Sample.of(cls(kind, (1,), first=True), Arg((3, 5, 2), distinct=True), dtypes=FLOATS)
        yield Sample.of(cls("sum", (0, 2, 3)), (33, 20, 9, 9), dtypes=FLOATS)
        yield Sample.of(cls("sum", (0,)), (0, 3), dtypes=FLOATS)
        for kind in ("sum", "prod", "max", "min"):
            yield Sample.of(
                cls(kind, (1,)), Arg((4, 5), low=-4, high=5, integers=True), dtypes=(int64, int32, int8)
            )


def _gradient(kind: str, g: Any, x: Any, y: Any, axes: tuple[int, ...]) -> Any:
    """The gradient of one kind; g and y keep the reduced axes with size 1."""
    if kind == "sum":
        return g.expand(x.shape)
    if kind == "mean":
        return (g * (1.0 / builtins.max(1, product(x.shape[a] for a in axes)))).expand(x.shape)
    if kind == "norm1":
        return g * x.sign()
    if kind == "norm2":  # 0 where the norm is 0
        zero = y == 0
        return g * x / where(zero, 1.0, y) * zero.logical_not().cast(x.dtype)
    if kind in ("max", "min"):
        hit = (x == y).cast(x.dtype)
        return hit * (g / _total(hit, axes))
    if kind == "amax":
        hit = (x.abs() == y).cast(x.dtype)
        return hit * x.sign() * (g / _total(hit, axes))
    zero = x == 0
    safe = where(zero, 1.0, x)
    others = (
        g * call(Reduce("mul_no_zeros", axes, True), x) / safe
    )  # the product of the other nonzero elements
    if kind == "mul_no_zeros":
        return where(zero, 0.0, others)
    # The product of the others is 0 if one of them is: with two zeros everywhere, with one except at it.
    other_zeros = _total(zero.cast(x.dtype), axes) - zero.cast(x.dtype)
    return where(other_zeros == 0, others, 0.0)


def _gradient_of_first(kind: str, g: Any, x: Any, axis: int) -> Any:
    """g, with `axis` of size 1, at the first extremum along it, 0 elsewhere."""
    chosen = call((ArgMax if kind == "max" else ArgMin)(axis), x).reshape(g.shape)
    places = np.arange(x.shape[axis]).reshape((-1,) + (1,) * (x.ndim - 1 - axis))
    return where(chosen == places, g, 0.0)


def _total(x: Any, axes: tuple[int, ...]) -> Any:
    """The sum along axes, kept as size 1; for no axes x itself (where `sum` reduces all)."""
    return call(Reduce("sum", axes, True), x)


@dataclass(frozen=True)
class ArgMax(Op):
    """The int64 index of the first largest element along an axis, which is removed."""

    axis: int
    differentiable = False
    dtypes = NUMBERS

    def infer(self, x: Spec) -> tuple[Spec]:
        self.check_float(x)
        axis = normalize_axis(self.axis, x.ndim, self.name)
        if x.shape[axis] == 0:
            raise ShapeError(f"{self.name}: axis {axis} of {x} has no elements")
        return (self.result(_reduced(x.shape, (axis,), False), int64),)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        b, axis = axes[0], self.axis % inputs[0].ndim
        return None if b is None or b.axis == axis else (BatchAxis(b.axis - (axis < b.axis), b.size),)

    def stacked(self, size: int, inputs: Sequence[Spec], batched: Sequence[bool]) -> Op:
        return replace(self, axis=self.axis % inputs[0].ndim + 1)

    def reference(self, x: Array) -> tuple[Array]:
        return (np.argmax(x, self.axis),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        cases: list[tuple[Shape, int]] = [((7,), 0), ((3, 10), 1), ((2, 5, 3), 1), ((4, 1), 1), ((0, 3), 1)]
        for shape, axis in cases:
            yield Sample.of(cls(axis), Arg(shape, distinct=True), dtypes=FLOATS)
            yield Sample.of(cls(axis), Arg(shape, low=0, high=3, integers=True))  # ties: the first counts


@dataclass(frozen=True)
class ArgMin(ArgMax):
    """The int64 index of the first smallest element along an axis, which is removed."""

    def reference(self, x: Array) -> tuple[Array]:
        return (np.argmin(x, self.axis),)


def _reduced(shape: Shape, axes: tuple[int, ...], keepdims: bool) -> Shape:
    if keepdims:
        return tuple(1 if a in axes else n for a, n in enumerate(shape))
    return tuple(n for a, n in enumerate(shape) if a not in axes)


class MaxDim(NamedTuple, Generic[T]):
    """The largest elements along an axis, and the int64 index of the first of each."""

    values: T
    indices: T


class MinDim(NamedTuple, Generic[T]):
    """The smallest elements along an axis, and the int64 index of the first of each."""

    values: T
    indices: T


def reduce(
    kind: str, input: Any, dim: Dims = None, keepdim: bool = False, dtype: Any = None, first: bool = False
) -> Any:
    """The reduction of one of KINDS along dim (an int, several; None or an empty tuple: all), of input in `dtype`."""
    x = operand(input, kind)
    if dtype is not None:
        return cast(reduce(kind, cast(x, dtype), dim, keepdim), dtype)
    axes = dims(dim, x.ndim, kind)
    op = made(Reduce, kind, axes, bool(keepdim), first and len(axes) == 1)
    if x.dtype.kind == "b" and kind in ("max", "min"):
        return cast(call(op, cast(x, uint8)), x.dtype)
    return call(op, x)


def dims(dim: Dims, rank: int, what: str) -> tuple[int, ...]:
    """Axes counted from the front, sorted; None and () mean all. A 0-d tensor accepts 0 and -1, as torch's do."""
    if dim is None:
        return tuple(range(rank))
    given = (dim,) if isinstance(dim, (int, np.integer)) else tuple(dim)
    found = normalize_axes([int(d) for d in given], builtins.max(rank, 1), what)
    return tuple(range(rank)) if not found or rank == 0 else found


@checked
def sum(input: Any, dim: Dims = None, keepdim: bool = False, *, dtype: DTypeLike | None = None) -> Any:
    """The sum along dim; int64 for integers and booleans. dtype: input is cast to it first, and the sum has it."""
    return reduce("sum", input, dim, keepdim, dtype)


@checked
def mean(input: Any, dim: Dims = None, keepdim: bool = False, *, dtype: DTypeLike | None = None) -> Any:
    """The mean along dim; NaN if there are no elements. dtype: input is cast to it first."""
    return reduce("mean", input, dim, keepdim, dtype)


@checked
def prod(input: Any, dim: Dims = None, keepdim: bool = False, *, dtype: DTypeLike | None = None) -> Any:
    """The product along dim; int64 for integers and booleans. dtype: the product's; input is cast to it first."""
    return reduce("prod", input, dim, keepdim, dtype)


@checked
def amax(input: Any, dim: Dims = None, keepdim: bool = False) -> Any:
    """The largest element along dim; equal ones share the gradient."""
    return reduce("max", input, dim, keepdim)


@checked
def amin(input: Any, dim: Dims = None, keepdim: bool = False) -> Any:
    """The smallest element along dim; equal ones share the gradient."""
    return reduce("min", input, dim, keepdim)


@overload
def max(input: Any) -> Any: ...


@overload
def max(input: Any, dim: int, keepdim: bool = False) -> MaxDim[Any]: ...


@overload
def max(input: Any, other: Any) -> Any: ...


def max(input: Any, *args: Any, **options: Any) -> Any:
    """The largest element; with dim a named tuple (values, indices); with a tensor `maximum`; as torch.max.

    Of equal elements along dim the one at the index gets the gradient; `amax` shares it, along any axes.
    """
    return _extreme("max", input, args, options)


@overload
def min(input: Any) -> Any: ...


@overload
def min(input: Any, dim: int, keepdim: bool = False) -> MinDim[Any]: ...


@overload
def min(input: Any, other: Any) -> Any: ...


def min(input: Any, *args: Any, **options: Any) -> Any:
    """The smallest element; with dim a named tuple (values, indices); with a tensor `minimum`; as torch.min.

    Of equal elements along dim the one at the index gets the gradient; `amin` shares it, along any axes.
    """
    return _extreme("min", input, args, options)


def _extreme(kind: str, input: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """max and min, whose second argument is absent, an axis, or a tensor to compare with."""
    if not args and not options:
        return reduce(kind, input)
    beside = args[0] if args else options.get("other")
    if isinstance(beside, (Operand, np.ndarray)) or hasattr(beside, "__dlpack__"):
        return _compared(kind, input, *args[:1], **options)
    return _EXTREMA[kind](input, *args, **options)


@checked
def _max(input: Any, dim: int, keepdim: bool = False) -> MaxDim[Any]:
    return MaxDim(reduce("max", input, dim, keepdim, first=True), argmax(input, dim, keepdim))


@checked
def _min(input: Any, dim: int, keepdim: bool = False) -> MinDim[Any]:
    return MinDim(reduce("min", input, dim, keepdim, first=True), argmin(input, dim, keepdim))


_EXTREMA = {"max": _max, "min": _min}


def _compared(kind: str, input: Any, other: Any) -> Any:
    return (maximum if kind == "max" else minimum)(input, other)


@checked
def norm1(input: Any, dim: Dims = None, keepdim: bool = False) -> Any:
    """The sum of magnitudes along dim."""
    return reduce("norm1", input, dim, keepdim)


@checked
def norm2(input: Any, dim: Dims = None, keepdim: bool = False) -> Any:
    """The Euclidean norm along dim; its gradient is 0 where the norm is 0."""
    return reduce("norm2", input, dim, keepdim)


@checked
def abs_max(input: Any, dim: Dims = None, keepdim: bool = False) -> Any:
    """The largest magnitude along dim (cuDNN's amax)."""
    return reduce("amax", input, dim, keepdim)


@checked
def mul_no_zeros(input: Any, dim: Dims = None, keepdim: bool = False) -> Any:
    """The product of the nonzero elements along dim."""
    return reduce("mul_no_zeros", input, dim, keepdim)


@checked
def var(
    input: Any,
    dim: Dims | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Any:
    """The variance along dim: squared deviations from the mean, summed, divided by (elements - correction).

    correction: 1 by default; unbiased=False is correction=0. A bool in place of dim is `unbiased`, as in torch.
    """
    return _moments("var", input, dim, unbiased, keepdim, correction)[0]


@checked
def std(
    input: Any,
    dim: Dims | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Any:
    """The standard deviation along dim, the root of `var`; its gradient is 0 where it is 0."""
    return _root(_moments("std", input, dim, unbiased, keepdim, correction)[0])


@checked
def var_mean(
    input: Any,
    dim: Dims | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Any, Any]:
    """Variance and mean along dim; arguments as in `var`."""
    return _moments("var_mean", input, dim, unbiased, keepdim, correction)


@checked
def std_mean(
    input: Any,
    dim: Dims | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Any, Any]:
    """Standard deviation and mean along dim; arguments as in `var`."""
    found, middle = _moments("std_mean", input, dim, unbiased, keepdim, correction)
    return _root(found), middle


def _root(variance: Any) -> Any:
    """The square root, with gradient 0 where it is 0."""
    nothing = variance == 0
    return where(nothing, 0.0, where(nothing, 1.0, variance).sqrt())


def _moments(
    what: str, input: Any, dim: Any, unbiased: bool | None, keepdim: bool, correction: float | None
) -> tuple[Any, Any]:
    """Variance and mean."""
    x = operand(input, what)
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if unbiased is not None and correction is not None:
        raise TypeError(f"{what}: give unbiased or correction, not both")
    if correction is None:
        correction = 0.0 if unbiased is False else 1.0
    axes = dims(dim, x.ndim, what)
    middle = mean(x, axes, True) if axes else x
    apart = x - middle
    freedom = product(x.shape[a] for a in axes) - correction
    factor = 1.0 / freedom if freedom > 0 else float("inf")  # NaN for a sum of 0
    found = call(Reduce("sum", axes, bool(keepdim)), apart * apart) * factor
    return found, middle if keepdim else middle.reshape(found.shape)


@checked
def argmax(input: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The int64 index of the first largest element along dim, or in the flattened tensor."""
    return _arg(ArgMax, "argmax", input, dim, keepdim)


@checked
def argmin(input: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The int64 index of the first smallest element along dim, or in the flattened tensor."""
    return _arg(ArgMin, "argmin", input, dim, keepdim)


def _arg(op_class: type[ArgMax], what: str, input: Any, dim: int | None, keepdim: bool) -> Any:
    x = operand(input, what)
    x = cast(x, uint8) if x.dtype.kind == "b" else x
    if dim is None or x.ndim == 0:
        if dim is not None:
            dims(dim, 0, what)
        found = call(op_class(0), x.reshape((x.spec.numel,)))
        return found.reshape((1,) * x.ndim) if keepdim else found
    place = normalize_axis(dim, x.ndim, what)
    found = call(op_class(place), x)
    return found.reshape(_reduced(x.shape, (place,), True)) if keepdim else found


@checked
def sum_to(input: Any, shape: Sequence[int]) -> Any:
    """input summed to a shape that broadcasts to input's: the gradient of broadcasting."""
    x = operand(input, "sum_to")
    target = tuple(shape)
    if target == x.shape:
        return x
    lead = x.ndim - len(target)
    if lead < 0 or builtins.any(t not in (1, n) for t, n in zip(target, x.shape[lead:], strict=True)):
        raise ShapeError(f"sum_to: {target} does not broadcast to the shape of {x.spec}")
    axes = tuple(a for a, n in enumerate(x.shape) if a < lead or (target[a - lead] == 1 and n != 1))
    return call(Reduce("sum", axes), x).reshape(target) if axes else x.reshape(target)
