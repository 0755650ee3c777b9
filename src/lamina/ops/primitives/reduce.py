"""Reductions along axes, index reductions, and what is composed of them."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod as product
from typing import Any

import numpy as np

from lamina.ops.core import NUMBERS, Arg, Array, BatchAxes, BatchAxis, Op, Sample, call, operand
from lamina.ops.primitives.pointwise import where
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
)

Axes = int | Sequence[int] | None

#: Kinds and what they are in NumPy: (array, axes, keepdims) -> array.
_KINDS: dict[str, Callable[[Array, tuple[int, ...], bool], Any]] = {
    "sum": lambda x, a, k: np.sum(x, a, keepdims=k),
    "mean": lambda x, a, k: np.sum(x, a, keepdims=k) / product(x.shape[i] for i in a),
    "prod": lambda x, a, k: np.prod(x, a, keepdims=k),
    "max": lambda x, a, k: np.max(x, a, keepdims=k),
    "min": lambda x, a, k: np.min(x, a, keepdims=k),
    "norm1": lambda x, a, k: np.sum(np.abs(x), a, keepdims=k),
    "norm2": lambda x, a, k: np.sqrt(np.sum(np.square(x), a, keepdims=k)),
    "amax": lambda x, a, k: np.max(np.abs(x), a, keepdims=k),
    "mul_no_zeros": lambda x, a, k: np.prod(np.where(x == 0, 1, x), a, keepdims=k),
}
KINDS = tuple(_KINDS)
_NEEDS_ELEMENTS = ("max", "min", "amax")
_FLOAT_ONLY = ("mean", "norm1", "norm2", "amax", "mul_no_zeros")


@dataclass(frozen=True)
class Reduce(Op):
    """One value for all elements along `axes` (sorted, counted from the front).

    kind: sum, mean, prod, max, min, norm1 (sum of magnitudes), norm2 (root of the sum of squares), amax
    (largest magnitude), mul_no_zeros (product of what is not zero): the kinds of cudnnReduceTensor.
    Half types are summed in float32. Sums and products of integers and booleans are int64.
    The gradient of max, min and amax is shared evenly among equal extrema.
    """

    kind: str
    axes: tuple[int, ...]
    keepdims: bool = False
    dtypes = DTYPES

    def infer(self, x: Spec) -> tuple[Spec]:  # type: ignore[override]
        self.check_float(x)
        if self.kind not in _KINDS:
            raise ShapeError(f"{self.name}: kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if normalize_axes(self.axes, x.ndim, self.name) != self.axes:
            raise ShapeError(f"{self.name}: axes must be sorted and counted from the front, got {self.axes}")
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

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        x = inputs[0]
        kept = _reduced(x.shape, self.axes, keepdims=True)
        g, y = grads[0].reshape(kept), outputs[0].reshape(kept)
        return (_gradient(self.kind, g, x, y, self.axes),)

    def reference(self, x: Array) -> tuple[Array]:  # type: ignore[override]
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
                if kind in ("prod", "mul_no_zeros"):  # nothing that overflows a half type
                    arg = Arg(shape, low=0.6, high=1.4)
                yield Sample.of(cls(kind, axes, keep), arg, dtypes=FLOATS)
        yield Sample.of(cls("sum", (0, 2, 3)), (33, 20, 9, 9), dtypes=FLOATS)
        yield Sample.of(cls("sum", (0,)), (0, 3), dtypes=FLOATS)
        for kind in ("sum", "prod", "max", "min"):
            yield Sample.of(
                cls(kind, (1,)), Arg((4, 5), low=-4, high=5, integers=True), dtypes=(int64, int32, int8)
            )


def _gradient(kind: str, g: Any, x: Any, y: Any, axes: tuple[int, ...]) -> Any:
    """The gradient of one kind; g and y have the reduced axes as size 1."""
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
        return hit * (g / hit.sum(axes, keepdims=True))
    if kind == "amax":
        hit = (x.abs() == y).cast(x.dtype)
        return hit * x.sign() * (g / hit.sum(axes, keepdims=True))
    zero = x == 0
    safe = where(zero, 1.0, x)
    others = (
        g * call(Reduce("mul_no_zeros", axes, True), x) / safe
    )  # the product of the others that are not 0
    if kind == "mul_no_zeros":
        return where(zero, 0.0, others)
    # The product of the others is 0 when one of them is: with two zeros everywhere, with one but at it.
    other_zeros = zero.cast(x.dtype).sum(axes, keepdims=True) - zero.cast(x.dtype)
    return where(other_zeros == 0, others, 0.0)


@dataclass(frozen=True)
class ArgMax(Op):
    """The int64 index of the first largest element along an axis, which disappears."""

    axis: int
    differentiable = False
    dtypes = NUMBERS

    def infer(self, x: Spec) -> tuple[Spec]:  # type: ignore[override]
        self.check_float(x)
        axis = normalize_axis(self.axis, x.ndim, self.name)
        if x.shape[axis] == 0:
            raise ShapeError(f"{self.name}: axis {axis} of {x} has no elements")
        return (self.result(_reduced(x.shape, (axis,), False), int64),)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        b, axis = axes[0], self.axis % inputs[0].ndim
        return None if b is None or b.axis == axis else (BatchAxis(b.axis - (axis < b.axis), b.size),)

    def reference(self, x: Array) -> tuple[Array]:  # type: ignore[override]
        return (np.argmax(x, self.axis),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        cases: list[tuple[Shape, int]] = [((7,), 0), ((3, 10), 1), ((2, 5, 3), 1), ((4, 1), 1), ((0, 3), 1)]
        for shape, axis in cases:
            yield Sample.of(cls(axis), Arg(shape, distinct=True), dtypes=FLOATS)
            yield Sample.of(cls(axis), Arg(shape, low=0, high=3, integers=True))  # ties: the first counts


@dataclass(frozen=True)
class ArgMin(ArgMax):
    """The int64 index of the first smallest element along an axis, which disappears."""

    def reference(self, x: Array) -> tuple[Array]:  # type: ignore[override]
        return (np.argmin(x, self.axis),)


def _reduced(shape: Shape, axes: tuple[int, ...], keepdims: bool) -> Shape:
    if keepdims:
        return tuple(1 if a in axes else n for a, n in enumerate(shape))
    return tuple(n for a, n in enumerate(shape) if a not in axes)


def reduce(kind: str, x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """The reduction of one of KINDS along axis (an int, several, or None for all)."""
    x = operand(x)
    return call(Reduce(kind, normalize_axes(axis, x.ndim, kind), keepdims), x)


def sum(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """The sum along axes; of integers in int64."""
    return reduce("sum", x, axis, keepdims)


def mean(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """The mean along axes; NaN where there are no elements."""
    return reduce("mean", x, axis, keepdims)


def prod(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """The product along axes; of integers in int64."""
    return reduce("prod", x, axis, keepdims)


def max(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """The largest element along axes."""
    return reduce("max", x, axis, keepdims)


def min(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """The smallest element along axes."""
    return reduce("min", x, axis, keepdims)


def norm1(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """The sum of magnitudes along axes."""
    return reduce("norm1", x, axis, keepdims)


def norm2(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """The Euclidean norm along axes; its gradient is 0 where the norm is 0."""
    return reduce("norm2", x, axis, keepdims)


def abs_max(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """The largest magnitude along axes (cuDNN's amax)."""
    return reduce("amax", x, axis, keepdims)


def mul_no_zeros(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
    """The product of the elements along axes that are not zero."""
    return reduce("mul_no_zeros", x, axis, keepdims)


def var(x: Any, axis: Axes = None, correction: float = 1, keepdims: bool = False) -> Any:
    """The variance along axes: squared distances from the mean, summed, by (elements - correction)."""
    x = operand(x)
    axes = normalize_axes(axis, x.ndim, "var")
    count = product(x.shape[a] for a in axes)
    apart = x - mean(x, axes, keepdims=True)
    freedom = count - correction
    return sum(apart * apart, axes, keepdims) * (1.0 / freedom if freedom > 0 else float("nan"))


def argmax(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """The int64 index of the first largest element along an axis, or in the flattened tensor."""
    return _arg(ArgMax, "argmax", x, axis, keepdims)


def argmin(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """The int64 index of the first smallest element along an axis, or in the flattened tensor."""
    return _arg(ArgMin, "argmin", x, axis, keepdims)


def _arg(card: type[ArgMax], what: str, x: Any, axis: int | None, keepdims: bool) -> Any:
    x = operand(x)
    if axis is None:
        found = call(card(0), x.reshape((x.spec.numel,)))
        return found.reshape((1,) * x.ndim) if keepdims else found
    place = normalize_axis(axis, x.ndim, what)
    found = call(card(place), x)
    return found.reshape(_reduced(x.shape, (place,), True)) if keepdims else found


def max_and_argmax(x: Any, axis: int, keepdims: bool = False) -> tuple[Any, Any]:
    """The largest element along an axis and the index of the first one."""
    return max(x, axis, keepdims), argmax(x, axis, keepdims)


def sum_to(x: Any, shape: Sequence[int]) -> Any:
    """x summed down to a shape that broadcasts to x's: the gradient of broadcasting."""
    x = operand(x)
    target = tuple(shape)
    if target == x.shape:
        return x
    lead = x.ndim - len(target)
    if lead < 0 or builtins.any(t not in (1, n) for t, n in zip(target, x.shape[lead:], strict=True)):
        raise ShapeError(f"sum_to: {target} does not broadcast to the shape of {x.spec}")
    axes = tuple(a for a, n in enumerate(x.shape) if a < lead or (target[a - lead] == 1 and n != 1))
    return call(Reduce("sum", axes), x).reshape(target) if axes else x.reshape(target)
