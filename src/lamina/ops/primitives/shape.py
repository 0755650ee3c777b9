"""Data-movement ops without arithmetic: reshape, transpose, concat, slice, pad, expand, flip."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from math import copysign, prod
from typing import Any, Literal, SupportsIndex

import numpy as np

from lamina.ops.arguments import Dims, Number, checked, shown
from lamina.ops.core import Array, BatchAxes, BatchAxis, Op, Operand, Sample, call, listing, made, operand
from lamina.ops.primitives.axis_map import AxisMap
from lamina.ops.primitives.cast import cast
from lamina.ops.primitives.map_axes import mapped
from lamina.spec import (
    DTYPES,
    Shape,
    ShapeError,
    Spec,
    as_shape,
    broadcast_shapes,
    normalize_axes,
    normalize_axis,
    promote_types,
)
from lamina.spec.layout import reshaped_strides


@dataclass(frozen=True)
class Reshape(Op):
    """The same elements in row-major order in another shape. A view if the input is contiguous."""

    shape: Shape
    dtypes = DTYPES
    inplace = {0: 0}
    takes_part = True

    def infer(self, x: Spec) -> tuple[Spec]:
        self.check_float(x)
        out = self.result(self.shape, x.dtype)
        if out.numel != x.numel:
            raise ShapeError(f"{self.name}: {x} has {x.numel} elements, shape {self.shape} holds {out.numel}")
        return (out,)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        b = axes[0]
        return None if b is None else _reshaped_axis(inputs[0].shape, self.shape, b)

    def stacked(self, size: int, inputs: Sequence[Spec], batched: Sequence[bool]) -> Op:
        return Reshape((size, *self.shape))

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return (grads[0].reshape(inputs[0].shape),)

    def strides_within(self, shape: Shape, strides: Shape) -> Shape | None:
        return reshaped_strides(shape, strides, self.shape)

    def reference(self, x: Array) -> tuple[Array]:
        return (x.reshape(self.shape),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        cases: list[tuple[Shape, Shape]] = [
            ((2, 3, 4), (6, 4)), ((6,), (1, 2, 1, 3)), ((1,), ()), ((0, 3), (3, 0, 2)), ((5, 7), (7, 5)),
        ]  # fmt: skip
        for x, shape in cases:
            yield Sample.of(cls(shape), x)


def _reshaped_axis(before: Shape, after: Shape, b: BatchAxis) -> BatchAxes | None:
    """The batch axis after a reshape: the axis preceded by as many elements, if whole samples fit there."""
    if prod(before) == 0:
        return None
    outside, count = prod(before[: b.axis]), before[b.axis] // b.size
    for axis, extent in enumerate(after):
        if prod(after[:axis]) == outside and extent % count == 0:
            return (BatchAxis(axis, extent // count),)
    return None


@dataclass(frozen=True)
class Transpose(Op):
    """The axes permuted: axis i of the output is axis order[i] of the input."""

    order: tuple[int, ...]
    dtypes = DTYPES
    takes_part = True

    def infer(self, x: Spec) -> tuple[Spec]:
        self.check_float(x)
        if sorted(self.order) != list(range(x.ndim)):
            raise ShapeError(
                f"{self.name}: order {self.order} does not name each of the {x.ndim} axes of {x} once"
            )
        return (self.result(tuple(x.shape[a] for a in self.order), x.dtype),)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        b = axes[0]
        return None if b is None else (BatchAxis(self.order.index(b.axis), b.size),)

    def stacked(self, size: int, inputs: Sequence[Spec], batched: Sequence[bool]) -> Op:
        return Transpose((0, *(a + 1 for a in self.order)))

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        back = tuple(self.order.index(a) for a in range(len(self.order)))
        return (call(Transpose(back), grads[0]),)

    def strides_within(self, shape: Shape, strides: Shape) -> Shape:
        return tuple(strides[a] for a in self.order)

    def reference(self, x: Array) -> tuple[Array]:
        return (x.transpose(self.order),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        cases: list[tuple[Shape, Shape]] = [
            ((2, 3), (1, 0)), ((2, 3, 5, 7), (0, 2, 3, 1)), ((4, 1, 3), (2, 0, 1)), ((5,), (0,)),
            ((0, 2, 3), (1, 2, 0)), ((33, 17), (1, 0)),
        ]  # fmt: skip
        for x, order in cases:
            yield Sample.of(cls(order), x)


@dataclass(frozen=True)
class Concat(Op):
    """Tensors concatenated along an axis; all other sizes are equal."""

    axis: int
    dtypes = DTYPES
    arity = None

    def infer(self, *inputs: Spec) -> tuple[Spec]:
        if not inputs:
            raise ShapeError(f"{self.name}: nothing to join; give one tensor or more")
        self.check_float(*inputs)
        first = inputs[0]
        axis = normalize_axis(self.axis, first.ndim, self.name)
        rest = _without(first.shape, axis)
        if any(x.ndim != first.ndim or _without(x.shape, axis) != rest for x in inputs):
            raise ShapeError(f"{self.name}: sizes must be equal but along axis {axis}: {listing(inputs)}")
        joined = sum(x.shape[axis] for x in inputs)
        return (self.result((*first.shape[:axis], joined, *first.shape[axis + 1 :]), first.dtype),)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        b, axis = axes[0], self.axis % inputs[0].ndim
        return (b,) if b and b.axis != axis and all(other == b for other in axes) else None

    def stacked(self, size: int, inputs: Sequence[Spec], batched: Sequence[bool]) -> Op | None:
        return Concat(self.axis % inputs[0].ndim + 1) if all(batched) else None

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        sizes = [x.shape[self.axis] for x in inputs]
        return split(grads[0], sizes, self.axis)

    def reference(self, *inputs: Array) -> tuple[Array]:
        return (np.concatenate(inputs, self.axis),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample.of(cls(0), (2, 3), (1, 3))
        yield Sample.of(cls(1), (2, 3, 5, 5), (2, 16, 5, 5), (2, 1, 5, 5))
        yield Sample.of(cls(1), (3, 4))
        yield Sample.of(cls(2), (2, 1, 3), (2, 1, 0), (2, 1, 4))
        yield Sample.of(cls(0), (7,), (9,))


@dataclass(frozen=True)
class Slice(Op):
    """Elements start, start + step, … below stop, along each axis; 0 <= start <= stop <= size, step >= 1."""

    start: Shape
    stop: Shape
    step: Shape
    dtypes = DTYPES
    takes_part = True

    def infer(self, x: Spec) -> tuple[Spec]:
        self.check_float(x)
        if not len(self.start) == len(self.stop) == len(self.step) == x.ndim:
            raise ShapeError(f"{self.name}: start, stop and step must have {x.ndim} ints for {x}, got {self}")
        for axis, (a, b, s, n) in enumerate(zip(self.start, self.stop, self.step, x.shape, strict=True)):
            if not 0 <= a <= b <= n or s < 1:
                raise ShapeError(
                    f"{self.name}: {a}:{b}:{s} is outside axis {axis} of {x} (0 <= start <= stop <= {n})"
                )
        return (self.result(tuple(len(range(*t)) for t in self._ranges()), x.dtype),)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        b = axes[0]
        if b is None or (self.start[b.axis], self.stop[b.axis], self.step[b.axis]) != (
            0,
            inputs[0].shape[b.axis],
            1,
        ):
            return None
        return (b,)

    def stacked(self, size: int, inputs: Sequence[Spec], batched: Sequence[bool]) -> Op:
        return Slice((0, *self.start), (size, *self.stop), (1, *self.step))

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        """Dilate the gradient by the step, then zero-pad it to the input's shape."""
        g, shape = grads[0], inputs[0].shape
        if g.spec.numel == 0:
            return (g.sum().expand(shape),)
        spread = spread_apart(g, self.step)
        cut = tuple(
            slice(0, min(size, n - start))
            for size, n, start in zip(spread.shape, shape, self.start, strict=True)
        )
        spread = spread[cut]
        pairs = tuple(
            (start, n - start - size) for size, n, start in zip(spread.shape, shape, self.start, strict=True)
        )
        return (call(Pad(pairs), spread),)

    def strides_within(self, shape: Shape, strides: Shape) -> Shape:
        return tuple(a * b for a, b in zip(strides, self.step, strict=True))

    def first_within(self, strides: Shape) -> int:
        return sum(a * b for a, b in zip(self.start, strides, strict=True))

    def reference(self, x: Array) -> tuple[Array]:
        return (x[tuple(slice(*t) for t in self._ranges())],)

    def _ranges(self) -> Iterable[tuple[int, int, int]]:
        return zip(self.start, self.stop, self.step, strict=True)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample.of(cls((1,), (6,), (1,)), (7,))
        yield Sample.of(cls((0, 2), (3, 9), (2, 3)), (3, 10))
        yield Sample.of(cls((0, 1, 0, 2), (2, 3, 5, 7), (1, 1, 2, 4)), (2, 4, 5, 7))
        yield Sample.of(cls((1, 0), (1, 3), (1, 1)), (2, 3))
        yield Sample.of(cls((0, 0), (1, 17), (1, 1)), (1, 17))


@dataclass(frozen=True)
class Pad(Op):
    """`value` before and after each axis: pairs[i] = (before, after), both >= 0."""

    pairs: tuple[tuple[int, int], ...]
    value: float = 0.0
    dtypes = DTYPES

    def infer(self, x: Spec) -> tuple[Spec]:
        self.check_float(x)
        if len(self.pairs) != x.ndim or any(side < 0 for pair in self.pairs for side in pair):
            raise ShapeError(
                f"{self.name}: pairs must be {x.ndim} pairs of ints >= 0 for {x}, got {self.pairs}"
            )
        return (
            self.result(tuple(n + lo + hi for n, (lo, hi) in zip(x.shape, self.pairs, strict=True)), x.dtype),
        )

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        b = axes[0]
        return (b,) if b and self.pairs[b.axis] == (0, 0) else None

    def stacked(self, size: int, inputs: Sequence[Spec], batched: Sequence[bool]) -> Op:
        return Pad(((0, 0), *self.pairs), self.value)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        start = tuple(lo for lo, _ in self.pairs)
        stop = tuple(lo + n for lo, n in zip(start, inputs[0].shape, strict=True))
        return (call(Slice(start, stop, (1,) * len(start)), grads[0]),)

    def reference(self, x: Array) -> tuple[Array]:
        return (np.pad(x, self.pairs, constant_values=self.value) if self.pairs else x,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample.of(cls(((1, 2),)), (3,))
        yield Sample.of(cls(((0, 0), (0, 0), (2, 1), (0, 3)), 1.5), (2, 3, 4, 5))
        yield Sample.of(cls(((0, 1), (1, 0)), -2.0), (0, 3))
        yield Sample.of(cls(((0, 0), (0, 7))), (5, 1))
        yield Sample.of(cls(((3, 0), (0, 0), (1, 1))), (1, 2, 3))


@dataclass(frozen=True)
class Expand(Op):
    """Repeat along axes of size 1 (and new leading axes) to `shape`, by NumPy's broadcasting rule."""

    shape: Shape
    dtypes = DTYPES

    def infer(self, x: Spec) -> tuple[Spec]:
        self.check_float(x)
        if broadcast_shapes(x.shape, self.shape, self.name) != self.shape:
            raise ShapeError(f"{self.name}: {x} does not expand to {self.shape}")
        return (self.result(self.shape, x.dtype),)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        b = axes[0]
        if b is None or self.shape[b.axis - inputs[0].ndim] != inputs[0].shape[b.axis]:
            return None
        return (BatchAxis(b.axis + len(self.shape) - inputs[0].ndim, b.size),)

    def stacked(self, size: int, inputs: Sequence[Spec], batched: Sequence[bool]) -> Op | None:
        return Expand((size, *self.shape)) if inputs[0].ndim == len(self.shape) else None

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return (grads[0].sum_to(inputs[0].shape),)

    def reference(self, x: Array) -> tuple[Array]:
        return (np.broadcast_to(x, self.shape),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        cases: list[tuple[Shape, Shape]] = [
            ((), (3, 5)), ((1, 4, 1), (2, 4, 3)), ((5,), (2, 5)), ((1, 1), (1, 17)), ((3, 1), (3, 0)),
            ((2, 3), (2, 3)),
        ]  # fmt: skip
        for x, shape in cases:
            yield Sample.of(cls(shape), x)


@dataclass(frozen=True)
class After(Op):
    """(x, other) -> x itself, with a control dependency: it is not read from here before `other` is computed. A view;
    equal nodes that read x here and elsewhere are not merged, so that x's consumers are recomputed."""

    dtypes = DTYPES
    arity = 2

    def infer(self, x: Spec, other: Spec) -> tuple[Spec]:
        self.check_float(x)
        return (x.open,)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        return axes[:1]

    def stacked(self, size: int, inputs: Sequence[Spec], batched: Sequence[bool]) -> Op:
        return self

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return grads[0], None

    def reference(self, x: Array, other: Array) -> tuple[Array]:
        return (x,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        cases: list[tuple[Shape, Shape]] = [
            ((5,), ()), ((2, 3, 4), (7,)), ((), (2, 2)), ((0, 3), (1,)), ((1, 4, 3, 3), (1, 4, 3, 3)),
        ]  # fmt: skip
        for x, other in cases:
            yield Sample.of(cls(), x, other)


@dataclass(frozen=True)
class Flip(Op):
    """Elements in reverse order along some axes."""

    axes: tuple[int, ...]
    dtypes = DTYPES

    def infer(self, x: Spec) -> tuple[Spec]:
        self.check_float(x)
        for axis in self.axes:
            normalize_axis(axis, x.ndim, self.name)
        return (x.open,)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        b = axes[0]
        return (b,) if b and b.axis not in self.axes else None

    def stacked(self, size: int, inputs: Sequence[Spec], batched: Sequence[bool]) -> Op:
        return Flip(tuple(a % inputs[0].ndim + 1 for a in self.axes))

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return (call(self, grads[0]),)

    def reference(self, x: Array) -> tuple[Array]:
        return (np.flip(x, self.axes),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        cases: list[tuple[Shape, Shape]] = [
            ((5,), (0,)), ((2, 3, 4), (1, 2)), ((1, 7), (0, 1)), ((0, 3), (1,)), ((3, 2), ()),
        ]  # fmt: skip
        for x, axes in cases:
            yield Sample.of(cls(axes), x)


def _without(shape: Shape, axis: int) -> Shape:
    return shape[:axis] + shape[axis + 1 :]


def spread_apart(x: Any, step: Shape) -> Any:
    """x dilated, with step - 1 zeros after each element of each axis: sizes n * step."""
    if all(s == 1 for s in step):
        return x
    apart = x.reshape(tuple(part for n in x.shape for part in (n, 1)))
    filled = call(Pad(tuple(pair for s in step for pair in ((0, 0), (0, s - 1)))), apart)
    return filled.reshape(tuple(n * s for n, s in zip(x.shape, step, strict=True)))


@checked
def reshape(input: Any, shape: int | Sequence[SupportsIndex]) -> Any:
    """input in another shape; one size may be -1. Raises ShapeError if the element counts differ."""
    x = operand(input, "reshape")
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    target = as_shape(_completed(sizes, x.spec) if -1 in sizes else sizes, "reshape: shape")
    return x if target == x.shape else call(made(Reshape, target), x)


def _completed(sizes: tuple[SupportsIndex, ...], x: Spec) -> tuple[int, ...]:
    """Sizes with -1 resolved. Raises ShapeError."""
    given = [int(s) for s in sizes]
    if given.count(-1) > 1:
        raise ShapeError(f"reshape: only one size may be -1, got {sizes}")
    known = prod(s for s in given if s != -1)
    if known == 0 or x.numel % known:
        raise ShapeError(f"reshape: {x} has {x.numel} elements, {sizes} takes multiples of {known}")
    return tuple(x.numel // known if s == -1 else s for s in given)


@checked
def flatten(input: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Axes start_dim … end_dim (inclusive) merged into one, as torch.flatten."""
    x = operand(input, "flatten")
    rank = max(x.ndim, 1)
    first, last = normalize_axis(start_dim, rank, "flatten"), normalize_axis(end_dim, rank, "flatten")
    if x.ndim == 0:
        return reshape(x, (1,))
    if first > last:
        raise ShapeError(f"flatten: start_dim {start_dim} comes after end_dim {end_dim} in {x.spec}")
    joined = prod(x.shape[first : last + 1])
    return reshape(x, (*x.shape[:first], joined, *x.shape[last + 1 :]))


@checked
def squeeze(input: Any, dim: Dims = None) -> Any:
    """input without its axes of size 1, or only those in dim; axes of other sizes are kept, as in torch."""
    x = operand(input, "squeeze")
    axes = set(range(x.ndim)) if dim is None else set(_axes(dim, x, "squeeze"))
    return reshape(x, tuple(n for a, n in enumerate(x.shape) if a not in axes or n != 1))


@checked
def unsqueeze(input: Any, dim: int) -> Any:
    """input with a new axis of size 1 at `dim` of the result."""
    x = operand(input, "unsqueeze")
    place = normalize_axis(dim, x.ndim + 1, "unsqueeze")
    return reshape(x, (*x.shape[:place], 1, *x.shape[place:]))


@checked
def transpose(input: Any, dim0: int, dim1: int) -> Any:
    """input with two axes swapped; `permute` reorders all of them."""
    x = operand(input, "transpose")
    order, rank = list(range(x.ndim)), max(x.ndim, 1)
    a, b = normalize_axis(dim0, rank, "transpose"), normalize_axis(dim1, rank, "transpose")
    if x.ndim:
        order[a], order[b] = order[b], order[a]
    return permute(x, order)


@checked
def permute(input: Any, dims: Sequence[int]) -> Any:
    """The axes permuted: axis i of the result is axis dims[i] of input. Raises ShapeError."""
    x = operand(input, "permute")
    if sorted(d % x.ndim if x.ndim else d for d in dims) != list(range(x.ndim)) or _outside(dims, x.ndim):
        raise ShapeError(f"permute: dims {tuple(dims)} must name each of the {x.ndim} axes of {x.spec} once")
    axes = tuple(int(d) % x.ndim for d in dims)
    return x if axes == tuple(range(x.ndim)) else call(made(Transpose, axes), x)


def _outside(dims: Sequence[int], rank: int) -> bool:
    return any(not -rank <= d < rank for d in dims)


def _axes(dim: int | Sequence[int], x: Any, what: str) -> tuple[int, ...]:
    """Axes counted from the front, sorted; a 0-d tensor accepts 0 and -1, as torch's do."""
    given = (dim,) if isinstance(dim, (int, np.integer)) else dim
    return normalize_axes([int(d) for d in given], max(x.ndim, 1), what)


@checked
def cat(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Tensors concatenated along an axis, in their common dtype. Raises ShapeError if the other sizes differ.

    A tensor of shape (0,) is skipped, as in torch.
    """
    xs = _tensors("cat", tensors)
    if len({x.dtype for x in xs}) > 1:
        kind = reduce(promote_types, (x.dtype for x in xs))
        xs = [cast(x, kind) for x in xs]
    xs = [x for x in xs if x.shape != (0,)] or xs[:1]
    return call(Concat(normalize_axis(_one_dim("cat", dim), xs[0].ndim, "cat")), *xs)


@checked
def stack(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Tensors of one shape stacked along a new axis."""
    xs = _tensors("stack", tensors)
    if any(x.shape != xs[0].shape for x in xs):
        raise ShapeError(f"stack: needs tensors of one shape, got {listing([x.spec for x in xs])}")
    place = normalize_axis(_one_dim("stack", dim), xs[0].ndim + 1, "stack")
    return cat([unsqueeze(x, place) for x in xs], place)


def _tensors(what: str, tensors: Any) -> list[Any]:
    if isinstance(tensors, (str, bytes, Operand)) or not isinstance(tensors, Iterable):
        raise TypeError(f"{what}: tensors must be a sequence of tensors, got {shown(tensors)}")
    xs = [operand(x, what, f"tensors[{i}]") for i, x in enumerate(tensors)]
    if not xs:
        raise ShapeError(f"{what}: tensors is empty; give one tensor or more")
    return xs


def _one_dim(what: str, dim: Any) -> int:
    if not isinstance(dim, (int, np.integer)) or isinstance(dim, bool):
        raise TypeError(f"{what}: dim must be an int, got {shown(dim)}")
    return int(dim)


@checked
def split(tensor: Any, split_size_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Any, ...]:
    """tensor split along an axis into parts of the given sizes (or of one size, the last part possibly smaller)."""
    x, sizes = operand(tensor, "split", "tensor"), split_size_or_sections
    place = normalize_axis(dim, x.ndim, "split")
    total = x.shape[place]
    if isinstance(sizes, (int, np.integer)):
        if sizes < 1 and not sizes == total == 0:
            raise ShapeError(f"split: the size of a part must be >= 1, got {sizes}")
        sizes = [min(sizes, total - start) for start in range(0, total, max(sizes, 1))] or [0]
    if sum(sizes) != total or any(s < 0 for s in sizes):
        raise ShapeError(f"split: sizes {tuple(sizes)} do not sum to the {total} of axis {dim} of {x.spec}")
    if len(sizes) == 1:
        return (x,)
    parts, start = [], 0
    for size in sizes:
        parts.append(slice_axis(x, place, start, start + int(size)))
        start += int(size)
    return tuple(parts)


@checked
def chunk(input: Any, chunks: int, dim: int = 0) -> tuple[Any, ...]:
    """input split along an axis into (at most) a number of parts of equal size, the last possibly smaller."""
    x = operand(input, "chunk")
    if chunks < 1:
        raise ShapeError(f"chunk: chunks must be >= 1, got {chunks}")
    total = x.shape[normalize_axis(dim, x.ndim, "chunk")]
    if total == 0:
        return split(x, [0] * chunks, dim)
    return split(x, -(-total // chunks), dim)


def slice_axis(x: Any, axis: int, start: int, stop: int, step: int = 1) -> Any:
    """x[..., start:stop:step, ...] along one axis, by the Slice op; start and stop are not clipped."""
    x = operand(x)
    begin, end, every = [0] * x.ndim, list(x.shape), [1] * x.ndim
    begin[axis], end[axis], every[axis] = start, stop, step
    return call(Slice(tuple(begin), tuple(end), tuple(every)), x)


@checked
def pad(
    input: Any,
    pad: Sequence[int],
    mode: Literal["constant", "reflect", "replicate", "circular"] = "constant",
    value: Number | None = None,
) -> Any:
    """input padded, as torch.nn.functional.pad.

    pad: (before, after) of the last axis, then of the one before it, and so on; a negative number crops. mode:
    "constant" fills with `value` (0 by default); "reflect" mirrors without the edge, "replicate" repeats the edge,
    "circular" wraps around. Raises ShapeError for cropping or mirroring more than there is.
    """
    x = operand(input, "pad")
    if len(pad) % 2 or len(pad) > 2 * x.ndim:
        raise ShapeError(
            f"pad: pad must be (before, after) of the last axis, then of those before it: an even number of at most "
            f"{2 * x.ndim} ints for {x.spec}, got {tuple(pad)}"
        )
    pairs = [(int(pad[i]), int(pad[i + 1])) for i in range(0, len(pad), 2)][::-1]
    pairs = [(0, 0)] * (x.ndim - len(pairs)) + pairs
    if mode == "constant":
        made = pad_axes(x, pairs, 0 if value is None else value)
        return made if any(side > 0 for pair in pairs for side in pair) else made.clone()
    if value:
        raise ValueError(f"pad: value belongs to mode 'constant', got {value} with mode {mode!r}")
    if mode == "circular":  # cropped elements are not wrapped around
        x = pad_axes(x, [(min(lo, 0), min(hi, 0)) for lo, hi in pairs])
        pairs = [(max(lo, 0), max(hi, 0)) for lo, hi in pairs]
    return mapped(x, [_extended(x, axis, *pair, mode) for axis, pair in enumerate(pairs)])


def pad_axes(x: Any, pairs: Sequence[tuple[int, int]], value: Number = 0.0) -> Any:
    """x padded with `value`: one (before, after) pair per axis, first axis first; negative numbers crop."""
    cut = [(max(0, -lo), n - max(0, -hi)) for n, (lo, hi) in zip(x.shape, pairs, strict=True)]
    if any(start > stop for start, stop in cut):
        raise ShapeError(
            f"pad: {tuple(pairs)} (before, after) per axis cuts off more than there is of {x.spec}"
        )
    if any(side < 0 for pair in pairs for side in pair):
        x = call(Slice(tuple(a for a, _ in cut), tuple(b for _, b in cut), (1,) * x.ndim), x)
    given = tuple((max(0, lo), max(0, hi)) for lo, hi in pairs)
    if not any(map(any, given)):
        return x
    if value == 0 and copysign(1, value) < 0 and x.dtype.is_float:  # as a field it would compare equal to 0.0
        return -call(Pad(given), -x)
    return call(Pad(given, float(value)), x)


def _extended(x: Any, axis: int, lo: int, hi: int, mode: str) -> AxisMap | None:
    """The map of an axis to itself with its continuation. Raises ShapeError."""
    if lo == hi == 0:
        return None
    n = x.shape[axis]
    most = {"reflect": n - 1, "circular": n}.get(mode, max(lo, hi, 0) if n else 0)
    if not (-n <= lo <= most and -n <= hi <= most and n + lo + hi >= 0):
        raise ShapeError(
            f"pad: mode {mode!r} takes {-n} to {most} for axis {axis} of {x.spec}, got ({lo}, {hi})"
        )
    return AxisMap(mode, n, n + lo + hi, (lo,))


@checked
def expand(input: Any, size: Sequence[SupportsIndex]) -> Any:
    """input repeated to `size` by NumPy's broadcasting rule; -1 keeps a size. torch.Tensor.expand."""
    x = operand(input, "expand")
    lead = len(size) - x.ndim
    if lead < 0:
        raise ShapeError(f"expand: size {tuple(size)} has fewer axes than {x.spec}")
    sizes = tuple([x.shape[i - lead] if s == -1 and i >= lead else s for i, s in enumerate(size)])
    target = as_shape(sizes, "expand: size")
    return x if target == x.shape else call(made(Expand, target), x)


def repeated(values: Any, shape: Shape, what: str) -> Any:
    """values broadcast to the shape of a tensor that they are written to. Raises ShapeError if they do not fit."""
    lead = len(shape) - values.ndim
    if lead < 0 or any(size not in (1, n) for size, n in zip(values.shape, shape[lead:], strict=True)):
        raise ShapeError(f"{what}: cannot write shape {values.shape} into a tensor of shape {shape}")
    return call(made(Expand, shape), values)


@checked
def flip(input: Any, dims: int | Sequence[int]) -> Any:
    """input reversed along some axes."""
    x = operand(input, "flip")
    axes = _axes(dims, x, "flip")
    return x.clone() if x.ndim == 0 or not axes else call(Flip(axes), x)


@checked
def space_to_depth(input: Any, block: int | Sequence[int]) -> Any:
    """Blocks of space become channels: [N, C, H, W] -> [N, C * b * b, H / b, W / b], for any number of axes.

    Channel c * b * b + i * b + j has the elements at (i, j) of the blocks, as torch's pixel_unshuffle.
    """
    x = operand(input, "space_to_depth")
    blocks = _blocks("space_to_depth", x, block)
    space = x.shape[2:]
    if any(n % b for n, b in zip(space, blocks, strict=True)):
        raise ShapeError(f"space_to_depth: block {blocks} does not divide the spatial sizes of {x.spec}")
    outer = tuple(n // b for n, b in zip(space, blocks, strict=True))
    rank = len(blocks)
    apart = reshape(x, (*x.shape[:2], *(part for pair in zip(outer, blocks, strict=True) for part in pair)))
    order = (0, 1, *range(3, 3 + 2 * rank, 2), *range(2, 2 + 2 * rank, 2))
    made = reshape(permute(apart, order), (x.shape[0], x.shape[1] * prod(blocks), *outer))
    return made.clone() if prod(blocks) == 1 else made  # not a view of x


@checked
def depth_to_space(input: Any, block: int | Sequence[int]) -> Any:
    """The inverse of `space_to_depth`: [N, C * b * b, H, W] -> [N, C, H * b, W * b] (pixel_shuffle)."""
    x = operand(input, "depth_to_space")
    blocks = _blocks("depth_to_space", x, block)
    if x.shape[1] % prod(blocks):
        raise ShapeError(f"depth_to_space: block {blocks} does not divide the channels of {x.spec}")
    channels, space, rank = x.shape[1] // prod(blocks), x.shape[2:], len(blocks)
    apart = reshape(x, (x.shape[0], channels, *blocks, *space))
    order = (0, 1, *(part for a in range(rank) for part in (2 + rank + a, 2 + a)))
    sizes = tuple(n * b for n, b in zip(space, blocks, strict=True))
    made = reshape(permute(apart, order), (x.shape[0], channels, *sizes))
    return made.clone() if prod(blocks) == 1 else made  # not a view of x


@checked
def pixel_unshuffle(input: Any, downscale_factor: int) -> Any:
    """`space_to_depth` of [..., C, H, W], as torch.nn.functional.pixel_unshuffle."""
    return _over_images("pixel_unshuffle", space_to_depth, input, downscale_factor)


@checked
def pixel_shuffle(input: Any, upscale_factor: int) -> Any:
    """`depth_to_space` of [..., C, H, W], as torch.nn.functional.pixel_shuffle."""
    return _over_images("pixel_shuffle", depth_to_space, input, upscale_factor)


@checked
def channel_shuffle(input: Any, groups: int) -> Any:
    """The channels of [N, C, *] interleaved: of g groups of C / g, first one of each group, then the next of each.

    torch.nn.functional.channel_shuffle (ShuffleNet; Zhang et al. 2018). Raises ShapeError unless groups divides C.
    """
    x = operand(input, "channel_shuffle")
    if x.ndim < 3 or groups < 1 or x.shape[1] % groups:
        raise ShapeError(
            f"channel_shuffle: needs [N, C, *spatial] and groups that divide C, got {x.spec} and {groups}"
        )
    apart = reshape(x, (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]))
    made = reshape(transpose(apart, 1, 2), x.shape)
    return made.clone() if groups in (1, x.shape[1]) else made  # not a view of x


@checked
def unflatten(input: Any, dim: int, sizes: Sequence[int]) -> Any:
    """One axis split into several, one of whose sizes may be -1: the inverse of `flatten`, as torch.unflatten."""
    x = operand(input, "unflatten")
    axis = normalize_axis(dim, x.ndim, "unflatten")
    known = prod(s for s in sizes if s != -1)
    free = list(sizes).count(-1)
    if not sizes or free > 1 or (x.shape[axis] % known if free and known else known != x.shape[axis]):
        raise ShapeError(
            f"unflatten: sizes {tuple(sizes)} do not multiply to the {x.shape[axis]} of axis {dim} of {x.spec}"
        )
    filled = [x.shape[axis] // known if s == -1 else s for s in sizes]
    return reshape(x, (*x.shape[:axis], *filled, *x.shape[axis + 1 :]))


def _over_images(what: str, function: Callable[..., Any], input: Any, factor: int) -> Any:
    """A function of [N, C, H, W] applied to any number of leading axes."""
    x = operand(input, what)
    if x.ndim < 3 or factor < 1:
        raise ShapeError(f"{what}: needs [..., C, H, W] and a factor >= 1, got {x.spec} and {factor}")
    lead = x.shape[:-3]
    y = function(x.reshape((prod(lead), *x.shape[-3:])), factor)
    return y.reshape((*lead, *y.shape[1:]))


@checked
def space_to_batch(input: Any, block: int | Sequence[int]) -> Any:
    """Split space into tiles that become batch samples: [N, C, H, W] -> [N * b * b, C, H / b, W / b].

    Tile (i, j) of image n (rows i * H / b …) is image (n * b + i) * b + j of the result.
    """
    x = operand(input, "space_to_batch")
    tiles = _blocks("space_to_batch", x, block)
    if any(n % b for n, b in zip(x.shape[2:], tiles, strict=True)):
        raise ShapeError(f"space_to_batch: block {tiles} does not divide the spatial sizes of {x.spec}")
    inner = tuple(n // b for n, b in zip(x.shape[2:], tiles, strict=True))
    rank = len(tiles)
    apart = reshape(x, (*x.shape[:2], *(part for pair in zip(tiles, inner, strict=True) for part in pair)))
    order = (0, *range(2, 2 + 2 * rank, 2), 1, *range(3, 3 + 2 * rank, 2))
    return reshape(permute(apart, order), (x.shape[0] * prod(tiles), x.shape[1], *inner))


@checked
def batch_to_space(input: Any, block: int | Sequence[int]) -> Any:
    """The inverse of `space_to_batch`: [N * b * b, C, H, W] -> [N, C, H * b, W * b]."""
    x = operand(input, "batch_to_space")
    tiles = _blocks("batch_to_space", x, block)
    if x.shape[0] % prod(tiles):
        raise ShapeError(f"batch_to_space: block {tiles} does not divide the batch of {x.spec}")
    rank, space = len(tiles), x.shape[2:]
    apart = reshape(x, (x.shape[0] // prod(tiles), *tiles, x.shape[1], *space))
    order = (0, 1 + rank, *(part for a in range(rank) for part in (1 + a, 2 + rank + a)))
    sizes = tuple(n * b for n, b in zip(space, tiles, strict=True))
    return reshape(permute(apart, order), (x.shape[0] // prod(tiles), x.shape[1], *sizes))


@checked
def swap_halves(input: Any, dim: int = 0) -> Any:
    """The first and the second half of an axis swapped: two batches exchange positions."""
    x = operand(input, "swap_halves")
    size = x.shape[normalize_axis(dim, x.ndim, "swap_halves")]
    if size % 2:
        raise ShapeError(f"swap_halves: axis {dim} of {x.spec} has no two equal halves")
    upper, lower = split(x, [size // 2, size // 2], dim)
    return cat([lower, upper], dim)


@checked
def swap_pairs(input: Any, dim: int = 0) -> Any:
    """Every even element of an axis swapped with the odd one after it."""
    x = operand(input, "swap_pairs")
    place = normalize_axis(dim, x.ndim, "swap_pairs")
    size = x.shape[place]
    if size % 2:
        raise ShapeError(f"swap_pairs: axis {dim} of {x.spec} has an odd size")
    paired = reshape(x, (*x.shape[:place], size // 2, 2, *x.shape[place + 1 :]))
    return reshape(flip(paired, place + 1), x.shape)


@checked
def resize_nearest(input: Any, scale: int | Sequence[int]) -> Any:
    """Each spatial element repeated `scale` times along each axis: nearest-neighbor upsampling.

    x [N, C, *spatial]; its gradient sums the copies. As torch's interpolate(mode="nearest") with an integer
    scale_factor.
    """
    x = operand(input, "resize_nearest")
    factors = _blocks("resize_nearest", x, scale)
    axes = zip(x.shape[2:], factors, strict=True)
    return mapped(
        x, [None, None, *(AxisMap("nearest", n, n * f, (1 / f,)) if f != 1 else None for n, f in axes)]
    )


def _blocks(what: str, x: Any, block: int | Sequence[int]) -> Shape:
    rank = x.ndim - 2
    sizes = (block,) * rank if isinstance(block, int) else tuple(block)
    if rank < 1 or len(sizes) != rank or any(b < 1 for b in sizes):
        raise ShapeError(
            f"{what}: needs [N, C, *spatial] and one int >= 1 or one per spatial axis, "
            f"got {block} for {x.spec}"
        )
    return sizes
