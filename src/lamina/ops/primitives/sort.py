"""Sorting along an axis, and functions based on it: top k, ranks, medians, quantiles, distinct elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from lamina.ops.arguments import checked
from lamina.ops.core import NUMBERS, Arg, Array, BatchAxes, Op, Sample, bind, call, operand
from lamina.ops.primitives.cast import cast
from lamina.ops.primitives.gather import GatherGrad
from lamina.ops.primitives.shape import transpose
from lamina.spec import FLOATS, Shape, ShapeError, Spec, bool_, int64, normalize_axis, uint8

T = TypeVar("T")


@dataclass(frozen=True)
class Sort(Op):
    """(values, int64 indices) of x [..., N] -> [..., K]: the first K elements of each sorted row.

    Stable: equal elements keep their order, ascending and descending. NaN is larger than everything. K: by default
    all.
    """

    descending: bool = False
    first: int | None = None
    dtypes = NUMBERS

    def infer(self, x: Spec) -> tuple[Spec, Spec]:
        self.check_float(x)
        if x.ndim == 0 or not 0 <= self.count(x) <= x.shape[-1]:
            raise ShapeError(f"{self.name}: needs rows of at least {self.first or 0} elements, got {x}")
        shape = (*x.shape[:-1], self.count(x))
        return self.result(shape, x.dtype), self.result(shape, int64)

    def count(self, x: Spec) -> int:
        """The number of elements kept per row."""
        return x.shape[-1] if self.first is None else self.first

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        b = axes[0]
        return None if b is None or b.axis == inputs[0].ndim - 1 else (b, b)

    def stacked(self, size: int, inputs: Sequence[Spec], batched: Sequence[bool]) -> Op:
        return self

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        if grads[0] is None:
            return (None,)
        axis, x = inputs[0].ndim - 1, inputs[0]
        return (call(GatherGrad(axis, x.shape[axis]), grads[0], outputs[1]),)

    def reference(self, x: Array) -> tuple[Array, Array]:
        order = _descending(x) if self.descending else np.argsort(x, -1, kind="stable")
        order = order[..., : self.first]
        return np.take_along_axis(x, order, -1), order

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        shapes: list[Shape] = [(7,), (3, 5), (2, 3, 33), (4, 1), (0, 3), (3, 0), (1, 2100)]
        for shape in shapes:
            for descending in (False, True):
                yield Sample.of(cls(descending), Arg(shape, distinct=True), dtypes=FLOATS[:2])
        ties = Arg((5, 300), low=-3, high=4, integers=True)
        yield Sample.of(cls(), ties)
        yield Sample.of(cls(True), Arg((2, 1500), low=0, high=9, integers=True))
        yield Sample.of(cls(True, 3), Arg((4, 9), distinct=True), dtypes=FLOATS[:2])
        yield Sample.of(cls(False, 5), Arg((2, 2600), distinct=True), dtypes=FLOATS[:2])
        yield Sample.of(cls(True, 700), Arg((1, 1300), low=-50, high=50, integers=True))


def _descending(x: Array) -> Array:
    """The stable descending order: the reverse of the ascending order of the reversed row."""
    back = np.argsort(x[..., ::-1], -1, kind="stable")
    order: Array = x.shape[-1] - 1 - back[..., ::-1]
    return order


class SortedDim(NamedTuple, Generic[T]):
    """Sorted elements along an axis, and their int64 indices in the input."""

    values: T
    indices: T


class TopKDim(NamedTuple, Generic[T]):
    """The largest or smallest elements along an axis, and their int64 indices in the input."""

    values: T
    indices: T


@checked
def sort(input: Any, dim: int = -1, descending: bool = False, *, stable: bool = False) -> SortedDim[Any]:
    """The elements along dim sorted, and their indices: a named tuple (values, indices), as torch.sort.

    Equal elements keep their order, whatever `stable` says; NaN is larger than everything.
    """
    return SortedDim(*_sorted("sort", input, dim, descending))


@checked
def argsort(input: Any, dim: int = -1, descending: bool = False, *, stable: bool = False) -> Any:
    """The indices that sort the elements along dim, as torch.argsort; always stable."""
    return _sorted("argsort", input, dim, descending)[1]


@checked
def msort(input: Any) -> Any:
    """The elements sorted along the first axis."""
    return _sorted("msort", input, 0, False)[0]


@checked
def topk(input: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> TopKDim[Any]:
    """The k largest (or smallest) elements along dim, sorted, and their indices; as torch.topk.

    Of equal elements the first ones count, in order (PyTorch leaves this unspecified). sorted: they always are.
    Raises ShapeError if k is larger than the axis.
    """
    x = operand(input, "topk")
    axis = normalize_axis(dim, max(x.ndim, 1), "topk")
    size = x.shape[axis] if x.ndim else 1
    if not 0 <= k <= size:
        raise ShapeError(f"topk: k must be in 0 … {size}, the size of axis {dim} of {x.spec}, got {k}")
    return TopKDim(*_sorted("topk", x, dim, largest, k))


def _sorted(what: str, input: Any, dim: int, descending: bool, first: int | None = None) -> tuple[Any, Any]:
    """Sorted values and indices along any axis, also of booleans."""
    x = operand(input, what)
    axis = normalize_axis(dim, max(x.ndim, 1), what)
    if x.dtype == bool_:
        values, indices = _sorted(what, cast(x, uint8), dim, descending, first)
        return cast(values, bool_), indices
    rows = transpose(x, axis, -1) if x.ndim else x.reshape((1,))
    values, indices = bind(Sort(descending, None if first == rows.shape[-1] else first), rows)
    if x.ndim == 0:
        shape = (0,) if first == 0 else ()
        return values.reshape(shape), indices.reshape(shape)
    return transpose(values, axis, -1), transpose(indices, axis, -1)
