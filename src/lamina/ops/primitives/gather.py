"""Indexing along an axis, and its adjoint: gather, scatter and the functions built on them.

An index counts from the front, or (negative) from the back. One out of range is an IndexError on a CPU; on a GPU,
where kernels cannot raise, gathered values are NaN (0 for integers) and scattered ones are skipped, unless the policy
sets `check_indices` (see `CheckIndex`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite, prod
from typing import Any, Literal

import numpy as np

from lamina.ops.arguments import Number, checked
from lamina.ops.core import (
    Arg,
    Array,
    BatchAxes,
    Op,
    Sample,
    call,
    is_number,
    listing,
    operand,
    recorder,
    recording,
)
from lamina.ops.primitives.cast import cast
from lamina.ops.primitives.check_index import CheckIndex, check_index, watched
from lamina.ops.primitives.elementary import div
from lamina.ops.primitives.full_like import full_like, zeros_like
from lamina.ops.primitives.pointwise import where
from lamina.ops.primitives.shape import expand, slice_axis
from lamina.ops.primitives.special import largest
from lamina.spec import (
    DTYPES,
    DType,
    DTypeError,
    Shape,
    ShapeError,
    Spec,
    bool_,
    current_policy,
    int32,
    int64,
    normalize_axis,
)

#: How an element is combined with the values scattered onto it.
ScatterMode = Literal["set", "add", "mul", "min", "max"]
_COMBINE: dict[str, np.ufunc] = {
    "add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum
}  # fmt: skip


@dataclass(frozen=True)
class Gather(Op):
    """y[i, k, j] = x[i, index[i, k, j], j] along an axis: NumPy's take_along_axis.

    index: int32 or int64, of x's rank; along the other axes of x's size, or of size 1 to share the index.
    """

    axis: int
    arity = 2
    dtypes = DTYPES

    def infer(self, x: Spec, index: Spec) -> tuple[Spec]:
        _check(self, x, index)
        if any(
            i not in (1, n)
            for a, (i, n) in enumerate(zip(index.shape, x.shape, strict=True))
            if a != self.axis
        ):
            raise ShapeError(
                f"{self.name}: index must be of x's size, or 1, but along axis {self.axis}, got {listing((x, index))}"
            )
        return (self.result(_replaced(x.shape, self.axis, index.shape[self.axis]), x.dtype),)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        return _line_axes(self.axis, inputs, axes)

    def stacked(self, size: int, inputs: Sequence[Spec], batched: Sequence[bool]) -> Op | None:
        return Gather(self.axis + 1) if all(batched) else None

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return call(GatherGrad(self.axis, inputs[0].shape[self.axis]), grads[0], inputs[1]), None

    def reference(self, x: Array, index: Array) -> tuple[Array]:
        try:
            if prod(index.shape) == index.shape[self.axis]:  # one index for all lines
                return (np.take(x, index.reshape(-1), self.axis),)
            return (x[_places(x.shape, self.axis, index)],)
        except IndexError:
            _check_range("gather", index, x.shape[self.axis])
            raise

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for x, index, axis in _CASES:
            yield Sample.of(cls(axis), x, _index(index, x[axis]))
        for x, index, axis in _CASES[:3]:
            numbers = Arg(x, low=0, high=2, integers=True)
            yield Sample.of(cls(axis), numbers, _index(index, x[axis], int32), dtypes=DTYPES[4:])


@dataclass(frozen=True)
class GatherGrad(Op):
    """(g, index) -> x of `size` along an axis: each element the sum of the g at its index, in order.

    Half types are summed in float32. g and index have the shapes of `Gather`'s output and index.
    """

    axis: int
    size: int
    arity = 2

    def infer(self, g: Spec, index: Spec) -> tuple[Spec]:
        _check(self, g, index)
        _check_source(self, g, index, g)
        return (self.result(_replaced(g.shape, self.axis, self.size), g.dtype),)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        return _line_axes(self.axis, inputs, axes)

    def stacked(self, size: int, inputs: Sequence[Spec], batched: Sequence[bool]) -> Op | None:
        return GatherGrad(self.axis + 1, self.size) if all(batched) else None

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return call(Gather(self.axis), grads[0], inputs[1]), None

    def reference(self, g: Array, index: Array) -> tuple[Array]:
        base = np.zeros(_replaced(g.shape, self.axis, self.size), g.dtype)
        return (_scattered("gather_grad", "add", self.axis, base, index, g),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for x, index, axis in _CASES:
            yield Sample.of(cls(axis, x[axis]), _replaced(x, axis, index[axis]), _index(index, x[axis]))


@dataclass(frozen=True)
class Scatter(Op):
    """(x, index, source) -> x with x[i, index[i, k, j], j] updated for each element of source in row-major order.

    mode: "set" (the last of several counts), "add", "mul", "min" or "max". source: x's dtype and rank, along the
    other axes at most of x's size; elements of x beyond it are unchanged. index: int32 or int64, of source's shape,
    or of size 1 along the other axes to share the index. Deterministic on every device; half types are combined in
    float32. The gradient of min and max is shared by equal elements.
    """

    axis: int
    mode: ScatterMode
    arity = 3
    dtypes = DTYPES
    inplace = {0: 0}

    def infer(self, x: Spec, index: Spec, source: Spec) -> tuple[Spec]:
        _check(self, x, index)
        _check_source(self, source, index, x)
        if x.dtype != source.dtype:
            raise DTypeError(f"{self.name}: x and source must be of one dtype, got {listing((x, source))}")
        return (x.open,)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        x, _, source = inputs
        if any(s != n for a, (s, n) in enumerate(zip(source.shape, x.shape, strict=True)) if a != self.axis):
            return None
        return _line_axes(self.axis, inputs, axes)

    def stacked(self, size: int, inputs: Sequence[Spec], batched: Sequence[bool]) -> Op | None:
        return Scatter(self.axis + 1, self.mode) if all(batched) else None

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        """g to the surviving elements of x, and g at its position to each surviving element of source."""
        (g,), (x, index, source), (y,) = grads, inputs, outputs
        if self.mode == "add":
            return g, None, self._at(g, index, source)
        if self.mode == "set":
            kept = call(self, g, index, zeros_like(source))
            return kept, None, where(self._wins(x, index, source), self._at(g, index, source), 0.0)
        if self.mode == "mul":
            return self._product_vjp(g, x, index, source)
        first = (x == y).cast(x.dtype)
        others = (source == self._at(y, index, source)).cast(x.dtype)
        share = g / call(Scatter(self.axis, "add"), first, index, others)
        return share * first, None, self._at(share, index, source) * others

    def _wins(self, x: Any, index: Any, source: Any) -> Any:
        """Whether an element of source is the last one at its position."""
        along = [-1 if a == self.axis else 1 for a in range(x.ndim)]
        number = zeros_like(source, dtype=int64) + np.arange(source.shape[self.axis]).reshape(along)
        return self._at(call(self, zeros_like(x, dtype=int64), index, number), index, source) == number

    def _product_vjp(self, g: Any, x: Any, index: Any, source: Any) -> Sequence[Any]:
        """The product of the other factors: that of the nonzero ones by division, 0 if another factor is 0."""
        none, nones = x == 0, source == 0
        product = call(self, where(none, 1.0, x), index, where(nones, 1.0, source))
        zeros = call(Scatter(self.axis, "add"), none.cast(x.dtype), index, nones.cast(x.dtype))

        def slope(product: Any, zeros: Any, own: Any, is_zero: Any) -> Any:
            others = product / where(is_zero, 1.0, own)
            return where(zeros == is_zero.cast(x.dtype), others, 0.0)

        there = [self._at(v, index, source) for v in (g, product, zeros)]
        return g * slope(product, zeros, x, none), None, there[0] * slope(there[1], there[2], source, nones)

    def _at(self, x: Any, index: Any, source: Any) -> Any:
        """The elements of x at the positions of source's elements."""
        return call(Gather(self.axis), _cut(x, source.shape, self.axis), index)

    def reference(self, x: Array, index: Array, source: Array) -> tuple[Array]:
        return (_scattered("scatter", self.mode, self.axis, x.copy(), index, source),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        modes: tuple[ScatterMode, ...] = ("set", "add", "mul", "min", "max")
        for mode in modes:
            for x, index, axis in _CASES:
                source = _replaced(x, axis, index[axis])
                given = [Arg(s, low=0.6, high=1.4) if mode == "mul" else Arg(s) for s in (x, source)]
                yield Sample.of(
                    cls(axis, mode), given[0], _index(index, x[axis]), given[1], dtypes=DTYPES[:4]
                )
            numbers = [Arg(s, low=-2, high=3, integers=True) for s in ((4, 5), (4, 9))]
            yield Sample.of(
                cls(1, mode), numbers[0], _index((1, 9), 5, int32), numbers[1], dtypes=DTYPES[4:8]
            )
        yield Sample.of(cls(0, "add"), (5, 4, 3), _index((7, 2, 3), 5), (7, 2, 3), dtypes=DTYPES[:4])
        yield Sample.of(cls(1, "set"), (5, 4, 3), _index((2, 6, 1), 4), (2, 6, 2), dtypes=DTYPES[:4])
        many = (2, 300)  # few positions, many elements: more than one thread searches
        yield Sample.of(cls(1, "add"), (2, 3), _index(many, 3), many, dtypes=DTYPES[:4])


#: (shape of x, shape of the index, axis)
_CASES: list[tuple[Shape, Shape, int]] = [
    ((5,), (7,), 0), ((4, 6), (4, 3), 1), ((6, 5), (4, 1), 0), ((2, 5, 3), (2, 70, 3), 1), ((3, 4), (0, 4), 0),
    ((2, 7, 16), (1, 5, 1), 1), ((3, 2, 40), (3, 2, 90), 2), ((1, 300), (1, 700), 1),
]  # fmt: skip


def _index(shape: Shape, size: int, dtype: DType = int64) -> Arg:
    return Arg(shape, dtype, low=-size, high=size, integers=True, differentiable=False)


def _replaced(shape: Shape, axis: int, size: int) -> Shape:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _check(op: Any, x: Spec, index: Spec) -> None:
    op.check_float(x)
    if index.dtype not in (int32, int64):
        raise DTypeError(f"{op.name}: index must be int32 or int64, got {index}; cast it with ops.cast")
    if index.ndim != x.ndim or not 0 <= op.axis < x.ndim:
        raise ShapeError(
            f"{op.name}: index must have as many axes as x, and axis be one, got {listing((x, index))}"
        )


def _check_source(op: Any, source: Spec, index: Spec, x: Spec) -> None:
    """Check that each element of source has an index and, except along the axis, a position in x."""
    if source.ndim != x.ndim:
        raise ShapeError(f"{op.name}: source must have x's rank, got {listing((x, index, source))}")
    for a, (n, i, s) in enumerate(zip(x.shape, index.shape, source.shape, strict=True)):
        if (i != s) if a == op.axis else (i not in (1, s) or s > n):
            raise ShapeError(
                f"{op.name}: along axis {a} source of {s} fits neither an index of {i} nor x of {n}: "
                f"{listing((x, index, source))}"
            )


def _line_axes(axis: int, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
    """Lines along the axis are independent: samples keep an axis that all inputs (but a shared index) have."""
    b = axes[0]
    if b is None or b.axis == axis:
        return None
    for x, other in zip(inputs[1:], axes[1:], strict=True):
        if other != (None if x.shape[b.axis] == 1 and inputs[0].shape[b.axis] != 1 else b):
            return None
    return (b,)


def _from_front(what: str, index: Array, size: int) -> Array:
    """Indices counted from the front. Raises IndexError."""
    found = np.where(index < 0, index + size, index)
    if found.size and (int(found.min()) < 0 or int(found.max()) >= size):
        check_index(what, index, size, least=-size)
    return found


def _scattered(what: str, mode: ScatterMode, axis: int, base: Array, index: Array, source: Array) -> Array:
    """base, updated in place. NumPy processes indices in row-major order, so the last one wins."""
    places = _places(source.shape, axis, index)
    try:
        if mode == "set":
            base[places] = source
        else:
            _COMBINE[mode].at(base, places[0] if len(places) == 1 else places, source)
    except IndexError:
        _check_range(what, index, base.shape[axis])
        raise
    return base


def _check_range(what: str, index: Array, size: int) -> None:
    """Raise the IndexError that names the op and the index.

    NumPy checks indices itself, and counts negative ones from the back: checks of our own before would take several
    times as long as indexing a small array.
    """
    check_index(what, index, size, least=-size)


def _places(shape: Shape, axis: int, index: Array) -> tuple[Array, ...]:
    """For an array of a shape the indices along each axis: `index` along one, each line's own along the others."""
    lines = _short_grid(shape) if sum(shape) < _SHORT else _grid(shape)
    return *lines[:axis], index, *lines[axis + 1 :]


def _grid(shape: Shape) -> tuple[Array, ...]:
    """An open grid over a shape."""
    return tuple(np.ogrid[tuple(slice(n) for n in shape)])


#: The grids that are kept have fewer elements: making them takes longer than indexing a small array.
_SHORT = 4096
_short_grid = lru_cache(maxsize=256)(_grid)


def _cut(x: Any, shape: Sequence[int], axis: int) -> Any:
    """The leading part of x with the given shape, except along one axis."""
    for a, n in enumerate(shape):
        if a != axis and n < x.shape[a]:
            x = slice_axis(x, a, 0, n)
    return x


# ---- one index per element


@checked
def gather(input: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Any:
    """y[i, j] = input[index[i, j], j] for dim 0, and so on; index has input's rank and may be smaller. torch.gather.

    The gradient accumulates in the order of the indices and is deterministic. sparse_grad: has no effect, gradients
    are dense. Raises ShapeError, DTypeError, IndexError.
    """
    given = operand(index, "gather", "index")
    x, index, axis = _lines("gather", input, dim, given)
    return call(Gather(axis), _cut(_of_rank_1(x), index.shape, axis), index).reshape(given.shape)


def _of_rank_1(x: Any) -> Any:
    return x if x.ndim else x.reshape((1,))


def _lines(what: str, input: Any, dim: int, index: Any) -> tuple[Any, Any, int]:
    """The operands and the axis; a 0-d index becomes one of size 1. Raises ShapeError, DTypeError."""
    x, index = operand(input, what), operand(index, what, "index")
    axis = normalize_axis(dim, max(x.ndim, 1), what)
    flat, index = _of_rank_1(x), _of_rank_1(index)
    index = index if index.spec.numel else cast(index, int64)
    if index.dtype not in (int32, int64):
        raise DTypeError(f"{what}: index must be int32 or int64, got {index.spec}; cast it with ops.cast")
    if index.spec.numel == 0 and index.ndim != flat.ndim:
        index = index.reshape((0,) * flat.ndim)
    if index.ndim != flat.ndim:
        raise ShapeError(f"{what}: index {index.spec} must have as many axes as input {x.spec}")
    for a, (i, n) in enumerate(zip(index.shape, flat.shape, strict=True)):
        if a != axis and i > n:
            raise ShapeError(f"{what}: index {index.spec} is larger than input {x.spec} along axis {a}")
    return x, watched_on_request(what, index, flat.shape[axis]), axis


def watched_index(what: str, index: Any, size: int) -> Any:
    """index counted from the front, and checked: on a CPU, elsewhere if the policy asks for it. IndexError."""
    if isinstance(index, np.ndarray):
        return _from_front(what, index.astype(np.int64), size)
    return call(CheckIndex(what, size), where(index < 0, index + size, index))


def watched_on_request(what: str, index: Any, size: int) -> Any:
    """index, checked first if the policy asks for it, with negative values unchanged."""
    if current_policy().check_indices:
        watched(what, where(index < 0, index + size, index), size)
    return index


@checked
def scatter(
    input: Any, dim: int, index: Any, src: Any, *, reduce: Literal["add", "multiply"] | None = None
) -> Any:
    """input with y[index[i, j], j] = src[i, j] for dim 0, and so on; src may be a number. torch.scatter.

    index and src may be smaller than input, and index smaller than src. Of several elements for one position the last
    in row-major order counts, and has the gradient. reduce: "add" and "multiply" combine with the existing value.
    Raises ShapeError, DTypeError, IndexError.
    """
    modes: dict[str | None, ScatterMode] = {None: "set", "add": "add", "multiply": "mul"}
    return _scatter("scatter", input, dim, index, src, modes[reduce])


@checked
def scatter_add(input: Any, dim: int, index: Any, src: Any) -> Any:
    """input with src[i, j] added at [index[i, j], j] for dim 0, and so on: in order, deterministically.

    index and src as for `scatter`. torch.scatter_add.
    """
    return _scatter("scatter_add", input, dim, index, src, "add")


def _scatter(what: str, input: Any, dim: int, index: Any, src: Any, mode: ScatterMode) -> Any:
    x, index, axis = _lines(what, input, dim, index)
    source = _source(what, x, index, src, axis)
    return call(Scatter(axis, mode), _of_rank_1(x), index, source).reshape(x.shape)


def _source(what: str, x: Any, index: Any, src: Any, axis: int) -> Any:
    """src in index's shape and x's dtype. Raises ShapeError where it is smaller, DTypeError."""
    if is_number(src):
        return full_like(index, src, dtype=x.dtype)
    source = _of_rank_1(operand(src, what, "src"))
    if source.dtype != x.dtype:
        raise DTypeError(f"{what}: src must have input's dtype, got {listing((x.spec, source.spec))}")
    if index.spec.numel == 0:
        return source.reshape((source.spec.numel,))[:0].reshape(index.shape)
    if source.ndim != index.ndim or any(i > s for i, s in zip(index.shape, source.shape, strict=True)):
        raise ShapeError(f"{what}: src {source.spec} must be at least of the shape of index {index.spec}")
    return _cut(source, index.shape, -1)


Combination = Literal["sum", "prod", "mean", "amax", "amin"]
_MODES: dict[str, ScatterMode] = {"sum": "add", "prod": "mul", "mean": "add", "amax": "max", "amin": "min"}


@checked
def scatter_reduce(
    input: Any, dim: int, index: Any, src: Any, reduce: Combination, *, include_self: bool = True
) -> Any:
    """input with the sum, product, mean, maximum or minimum of src's elements at index; torch.scatter_reduce.

    include_self: whether input's own element participates; elements without an index are unchanged either way.
    """
    x, index, axis = _lines("scatter_reduce", input, dim, index)
    source = _source("scatter_reduce", x, index, src, axis)
    return _reduced(_of_rank_1(x), index, source, axis, reduce, include_self).reshape(x.shape)


def _reduced(x: Any, index: Any, source: Any, axis: int, reduce: str, include_self: bool) -> Any:
    base = x
    if not include_self:
        base = call(Scatter(axis, "set"), x, index, full_like(source, _neutral(reduce, x.dtype)))
    found = call(Scatter(axis, _MODES[reduce]), base, index, source)
    if reduce != "mean":
        return found
    count = full_like(x, int(include_self), dtype=int64)
    count = call(Scatter(axis, "add"), count, index, full_like(source, 1, dtype=int64))
    count = where(count == 0, 1, count).cast(x.dtype)
    return found / count if x.dtype.is_float else div(found, count, rounding_mode="floor")


def _neutral(reduce: str, dtype: DType) -> Number:
    """The neutral element of a reduction."""
    if reduce in ("sum", "mean", "prod"):
        return 1 if reduce == "prod" else 0
    if dtype.is_float:
        return -np.inf if reduce == "amax" else np.inf
    limits = np.iinfo(dtype.numpy)
    return int(limits.min if reduce == "amax" else limits.max)


@checked
def take_along_dim(input: Any, indices: Any, dim: int | None = None) -> Any:
    """The elements of input at indices along dim, both broadcast along the other axes; without dim in the flattened
    input. torch.take_along_dim."""
    x, index = operand(input, "take_along_dim"), operand(indices, "take_along_dim", "indices")
    if dim is None:
        return gather(x.reshape((x.spec.numel,)), 0, index.reshape((index.spec.numel,)))
    if x.ndim != index.ndim:
        raise ShapeError(f"take_along_dim: indices {index.spec} must have as many axes as input {x.spec}")
    axis = normalize_axis(dim, x.ndim, "take_along_dim")
    both = np.broadcast_shapes(_replaced(x.shape, axis, 1), _replaced(index.shape, axis, 1))
    return gather(
        expand(x, _replaced(both, axis, x.shape[axis])),
        axis,
        expand(index, _replaced(both, axis, index.shape[axis])),
    )


@checked
def take(input: Any, index: Any) -> Any:
    """The elements of the flattened input at index, in index's shape. torch.take."""
    x, index = operand(input, "take"), operand(index, "take", "index")
    return gather(x.reshape((x.spec.numel,)), 0, index.reshape((index.spec.numel,))).reshape(index.shape)


@checked
def put(input: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    """input with elements of source, in row-major order, at positions index of the flattened input. torch.put.

    accumulate: add to the existing values. Without it, of equal indices the last one counts.
    """
    x, index = operand(input, "put"), operand(index, "put", "index")
    values = operand(source, "put", "source").cast(x.dtype)
    flat, at, new = (y.reshape((y.spec.numel,)) for y in (x, index, values))
    return (scatter_add if accumulate else scatter)(flat, 0, at, new).reshape(x.shape)


# ---- one index per slice


@checked
def index_select(input: Any, dim: int, index: Any) -> Any:
    """The slices of input along dim at a vector of indices. torch.index_select."""
    x, index, axis = _slices("index_select", input, dim, index)
    found = call(Gather(axis), _of_rank_1(x), index)
    return found if x.ndim else found.reshape(() if index.spec.numel == 1 else (index.spec.numel,))


def _slices(what: str, input: Any, dim: int, index: Any) -> tuple[Any, Any, int]:
    """The operands and the axis, and the vector of indices with broadcast axes of size 1."""
    x, index = operand(input, what), operand(index, what, "index")
    axis = normalize_axis(dim, max(x.ndim, 1), what)
    if index.ndim > 1 or index.dtype not in (int32, int64):
        kind = ShapeError if index.ndim > 1 else DTypeError
        raise kind(f"{what}: index must be a vector of int32 or int64, got {index.spec}")
    rank = max(x.ndim, 1)
    wide = index.reshape(tuple(index.spec.numel if a == axis else 1 for a in range(rank)))
    return x, watched_on_request(what, wide, x.shape[axis] if x.ndim else 1), axis


@checked
def index_add(input: Any, dim: int, index: Any, source: Any, *, alpha: Number = 1) -> Any:
    """input with alpha * source's slices added at a vector of indices. torch.index_add."""
    scaled = operand(source, "index_add", "source")
    return _onto_slices("index_add", input, dim, index, scaled if alpha == 1 else scaled * alpha, "add")


@checked
def index_copy(input: Any, dim: int, index: Any, source: Any) -> Any:
    """input with the slices at a vector of indices replaced by source's. torch.index_copy."""
    return _onto_slices("index_copy", input, dim, index, source, "set")


@checked
def index_fill(input: Any, dim: int, index: Any, value: Any) -> Any:
    """input with the slices at a vector of indices filled with one value. torch.index_fill."""
    x, wide, axis = _slices("index_fill", input, dim, index)
    shape = _replaced(_of_rank_1(x).shape, axis, wide.spec.numel)
    if is_number(value):
        source = expand(full_like(cast(wide, x.dtype), value), shape)
    else:
        source = expand(cast(operand(value, "index_fill", "value"), x.dtype), shape)
    return call(Scatter(axis, "set"), _of_rank_1(x), wide, source).reshape(x.shape)


@checked
def index_reduce(
    input: Any,
    dim: int,
    index: Any,
    source: Any,
    reduce: Literal["prod", "mean", "amax", "amin"],
    *,
    include_self: bool = True,
) -> Any:
    """input with source's slices reduced (product, mean, …) into those at a vector of indices.

    torch.index_reduce; include_self as in `scatter_reduce`.
    """
    x, wide, axis = _slices("index_reduce", input, dim, index)
    flat = _of_rank_1(x)
    source = _slices_of("index_reduce", flat, wide, source, axis)
    return _reduced(flat, wide, source, axis, reduce, include_self).reshape(x.shape)


def _onto_slices(what: str, input: Any, dim: int, index: Any, source: Any, mode: ScatterMode) -> Any:
    x, wide, axis = _slices(what, input, dim, index)
    flat = _of_rank_1(x)
    return call(Scatter(axis, mode), flat, wide, _slices_of(what, flat, wide, source, axis)).reshape(x.shape)


def _slices_of(what: str, x: Any, wide: Any, source: Any, axis: int) -> Any:
    """One slice of source per index. Raises ShapeError, DTypeError."""
    source = operand(source, what, "source")
    shape = _replaced(x.shape, axis, wide.spec.numel)
    if source.ndim == 0 and shape == (1,):
        source = source.reshape((1,))
    if source.shape != shape:
        raise ShapeError(f"{what}: source must be of shape {shape} for input {x.spec}, got {source.spec}")
    if source.dtype != x.dtype:
        raise DTypeError(f"{what}: source must have input's dtype, got {listing((x.spec, source.spec))}")
    return source


# ---- masks


def masked_fill(input: Any, mask: Any, value: Any) -> Any:
    """value (a number or a 0-d tensor) where the boolean mask is true, else input. torch.masked_fill.

    A finite number beyond input's type becomes the type's lowest or highest: float32's lowest, by which attention
    hides scores, does the same in half precision.
    """
    x, mask = operand(input, "masked_fill"), checked_mask("masked_fill", mask)
    if not is_number(value):
        value = operand(value, "masked_fill", "value")
        if value.ndim:
            raise ShapeError(f"masked_fill: value must be a number or have no axes, got {value.spec}")
    elif not x.dtype.is_float:
        if value != int(value):
            raise DTypeError(f"masked_fill: {x.dtype} does not hold value {value}; cast input with ops.cast")
        value = full_like(x, int(value))
    elif isfinite(value):
        most = largest(x.dtype)
        value = min(max(value, -most), most)
    return where(mask, value if is_number(value) else cast(value, x.dtype), x)


def checked_mask(what: str, mask: Any) -> Any:
    """A mask as an operand. Raises DTypeError unless it is boolean."""
    found = operand(mask, what, "mask")
    if found.dtype != bool_:
        raise DTypeError(f"{what}: mask must be bool, got {found.spec}; compare with 0")
    return found


def host_values(
    what: str, x: Any, name: str, instead: str = "use where or masked_fill, which keep the shape"
) -> Array:
    """An operand's values, for a data-dependent result shape. Raises TypeError if they are not yet available.

    instead: what to write where they are not.
    """
    found: Any = operand(x, what, name)
    by = recorder()
    once: Any = None if by is None else by.numbers_once(found)
    if once is not None:
        with recording(None):
            return np.asarray(once.numpy())
    try:
        return np.asarray(found.numpy())
    except TypeError as error:
        raise TypeError(
            f"{what}: the shape of the result depends on the numbers in {name}, which a graph does not have while it "
            f"is recorded: {instead}, or call it outside of the graph"
        ) from error
