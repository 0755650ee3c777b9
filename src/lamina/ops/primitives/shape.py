"""Ops that move elements and compute nothing: reshape, transpose, concat, slice, pad, expand, flip."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from lamina.ops.core import Array, BatchAxes, BatchAxis, Op, Sample, call, listing, operand
from lamina.spec import DTYPES, Shape, ShapeError, Spec, as_shape, broadcast_shapes, normalize_axis


@dataclass(frozen=True)
class Reshape(Op):
    """The same elements in row-major order under another shape. A view wherever the input is contiguous."""

    shape: Shape
    dtypes = DTYPES
    inplace = {0: 0}

    def infer(self, x: Spec) -> tuple[Spec]:  # type: ignore[override]
        self.check_float(x)
        out = self.result(self.shape, x.dtype)
        if out.numel != x.numel:
            raise ShapeError(f"{self.name}: {x} has {x.numel} elements, shape {self.shape} holds {out.numel}")
        return (out,)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        b = axes[0]
        return None if b is None else _reshaped_axis(inputs[0].shape, self.shape, b)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return (grads[0].reshape(inputs[0].shape),)

    def reference(self, x: Array) -> tuple[Array]:  # type: ignore[override]
        return (x.reshape(self.shape),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        cases: list[tuple[Shape, Shape]] = [
            ((2, 3, 4), (6, 4)), ((6,), (1, 2, 1, 3)), ((1,), ()), ((0, 3), (3, 0, 2)), ((5, 7), (7, 5)),
        ]  # fmt: skip
        for x, shape in cases:
            yield Sample.of(cls(shape), x)


def _reshaped_axis(before: Shape, after: Shape, b: BatchAxis) -> BatchAxes | None:
    """Where the samples lie then: along the axis with as many elements before it, if whole samples fit there."""
    if prod(before) == 0:
        return None
    outside, count = prod(before[: b.axis]), before[b.axis] // b.size
    for axis, extent in enumerate(after):
        if prod(after[:axis]) == outside and extent % count == 0:
            return (BatchAxis(axis, extent // count),)
    return None


@dataclass(frozen=True)
class Transpose(Op):
    """Axes in another order: axis i of the output is axis order[i] of the input."""

    order: tuple[int, ...]
    dtypes = DTYPES

    def infer(self, x: Spec) -> tuple[Spec]:  # type: ignore[override]
        self.check_float(x)
        if sorted(self.order) != list(range(x.ndim)):
            raise ShapeError(
                f"{self.name}: order {self.order} does not name each of the {x.ndim} axes of {x} once"
            )
        return (self.result(tuple(x.shape[a] for a in self.order), x.dtype),)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        b = axes[0]
        return None if b is None else (BatchAxis(self.order.index(b.axis), b.size),)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        back = tuple(self.order.index(a) for a in range(len(self.order)))
        return (call(Transpose(back), grads[0]),)

    def reference(self, x: Array) -> tuple[Array]:  # type: ignore[override]
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
    """Tensors one after the other along an axis; all other sizes are equal."""

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

    def infer(self, x: Spec) -> tuple[Spec]:  # type: ignore[override]
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

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        """Spread the gradient by the step, then pad it with zeros up to the input's shape."""
        g, shape = grads[0], inputs[0].shape
        if g.spec.numel == 0:
            return (g.sum().expand(shape),)
        spread = _spread(g, self.step)
        cut = tuple(
            slice(0, min(size, n - start))
            for size, n, start in zip(spread.shape, shape, self.start, strict=True)
        )
        spread = spread[cut]
        pairs = tuple(
            (start, n - start - size) for size, n, start in zip(spread.shape, shape, self.start, strict=True)
        )
        return (call(Pad(pairs), spread),)

    def reference(self, x: Array) -> tuple[Array]:  # type: ignore[override]
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

    def infer(self, x: Spec) -> tuple[Spec]:  # type: ignore[override]
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

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        start = tuple(lo for lo, _ in self.pairs)
        stop = tuple(lo + n for lo, n in zip(start, inputs[0].shape, strict=True))
        return (call(Slice(start, stop, (1,) * len(start)), grads[0]),)

    def reference(self, x: Array) -> tuple[Array]:  # type: ignore[override]
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
    """Repeat along axes of size 1 (and new leading axes) up to `shape`, by NumPy's broadcasting rule."""

    shape: Shape
    dtypes = DTYPES

    def infer(self, x: Spec) -> tuple[Spec]:  # type: ignore[override]
        self.check_float(x)
        if broadcast_shapes(x.shape, self.shape, self.name) != self.shape:
            raise ShapeError(f"{self.name}: {x} does not expand to {self.shape}")
        return (self.result(self.shape, x.dtype),)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        b = axes[0]
        if b is None or self.shape[b.axis - inputs[0].ndim] != inputs[0].shape[b.axis]:
            return None
        return (BatchAxis(b.axis + len(self.shape) - inputs[0].ndim, b.size),)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return (grads[0].sum_to(inputs[0].shape),)

    def reference(self, x: Array) -> tuple[Array]:  # type: ignore[override]
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
class Flip(Op):
    """Elements in reverse order along some axes."""

    axes: tuple[int, ...]
    dtypes = DTYPES

    def infer(self, x: Spec) -> tuple[Spec]:  # type: ignore[override]
        self.check_float(x)
        for axis in self.axes:
            normalize_axis(axis, x.ndim, self.name)
        return (x.open,)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        b = axes[0]
        return (b,) if b and b.axis not in self.axes else None

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return (call(self, grads[0]),)

    def reference(self, x: Array) -> tuple[Array]:  # type: ignore[override]
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


def _spread(x: Any, step: Shape) -> Any:
    """x with step - 1 zeros after each element of each axis: sizes n * step."""
    if all(s == 1 for s in step):
        return x
    apart = x.reshape(tuple(part for n in x.shape for part in (n, 1)))
    filled = call(Pad(tuple(pair for s in step for pair in ((0, 0), (0, s - 1)))), apart)
    return filled.reshape(tuple(n * s for n, s in zip(x.shape, step, strict=True)))


def reshape(x: Any, shape: int | Sequence[int]) -> Any:
    """x under another shape; one size may be -1. Raises ShapeError when the element counts differ."""
    x = operand(x)
    sizes = [shape] if isinstance(shape, int) else list(shape)
    if sizes.count(-1) > 1:
        raise ShapeError(f"reshape: only one size may be -1, got {tuple(sizes)}")
    if -1 in sizes:
        known = prod(s for s in sizes if s != -1)
        if known == 0 or x.spec.numel % known:
            raise ShapeError(
                f"reshape: {x.spec} has {x.spec.numel} elements, {tuple(sizes)} takes multiples of {known}"
            )
        sizes[sizes.index(-1)] = x.spec.numel // known
    target = as_shape(sizes, "reshape")
    return x if target == x.shape else call(Reshape(target), x)


def flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Axes start_dim … end_dim (inclusive) as one, as torch.flatten."""
    x = operand(x)
    if x.ndim == 0:
        return reshape(x, (1,))
    first, last = normalize_axis(start_dim, x.ndim, "flatten"), normalize_axis(end_dim, x.ndim, "flatten")
    if first > last:
        raise ShapeError(f"flatten: start_dim {start_dim} lies behind end_dim {end_dim} in {x.spec}")
    joined = prod(x.shape[first : last + 1])
    return reshape(x, (*x.shape[:first], joined, *x.shape[last + 1 :]))


def squeeze(x: Any, axis: int | Sequence[int] | None = None) -> Any:
    """x without the given axes of size 1, or without all of them."""
    x = operand(x)
    if axis is None:
        axes = {a for a, n in enumerate(x.shape) if n == 1}
    else:
        given = (axis,) if isinstance(axis, int) else axis
        axes = {normalize_axis(a, x.ndim, "squeeze") for a in given}
    if any(x.shape[a] != 1 for a in axes):
        raise ShapeError(f"squeeze: axes {sorted(axes)} of {x.spec} are not all of size 1")
    return reshape(x, tuple(n for a, n in enumerate(x.shape) if a not in axes))


def unsqueeze(x: Any, axis: int) -> Any:
    """x with a new axis of size 1 at `axis` of the result."""
    x = operand(x)
    place = normalize_axis(axis, x.ndim + 1, "unsqueeze")
    return reshape(x, (*x.shape[:place], 1, *x.shape[place:]))


def transpose(x: Any, order: Sequence[int] | None = None) -> Any:
    """Axis i of the result is axis order[i] of x; without an order the axes are reversed."""
    x = operand(x)
    axes = tuple(reversed(range(x.ndim))) if order is None else tuple(order)
    axes = tuple(normalize_axis(a, x.ndim, "transpose") for a in axes)
    return x if axes == tuple(range(x.ndim)) else call(Transpose(axes), x)


def permute(x: Any, dims: Sequence[int]) -> Any:
    """`transpose` under torch's name."""
    return transpose(x, dims)


def swapaxes(x: Any, axis1: int, axis2: int) -> Any:
    """x with two axes exchanged."""
    x = operand(x)
    order = list(range(x.ndim))
    a, b = normalize_axis(axis1, x.ndim, "swapaxes"), normalize_axis(axis2, x.ndim, "swapaxes")
    order[a], order[b] = order[b], order[a]
    return transpose(x, order)


def concat(tensors: Sequence[Any], axis: int = 0) -> Any:
    """Tensors of one dtype joined along an axis. Raises ShapeError when the other sizes differ."""
    xs = [operand(x) for x in tensors]
    if not xs:
        raise ShapeError("concat: nothing to join; give one tensor or more")
    return call(Concat(normalize_axis(axis, xs[0].ndim, "concat")), *xs)


def stack(tensors: Sequence[Any], axis: int = 0) -> Any:
    """Tensors of one shape joined along a new axis."""
    xs = [operand(x) for x in tensors]
    if not xs or any(x.shape != xs[0].shape for x in xs):
        raise ShapeError(f"stack: needs tensors of one shape, got {listing([x.spec for x in xs])}")
    place = normalize_axis(axis, xs[0].ndim + 1, "stack")
    return concat([unsqueeze(x, place) for x in xs], place)


def split(x: Any, sizes: int | Sequence[int], axis: int = 0) -> tuple[Any, ...]:
    """x cut along an axis into parts of the given sizes (or of one size, the last part perhaps smaller)."""
    x = operand(x)
    place = normalize_axis(axis, x.ndim, "split")
    total = x.shape[place]
    if isinstance(sizes, int):
        if sizes < 1:
            raise ShapeError(f"split: the size of a part must be >= 1, got {sizes}")
        sizes = [min(sizes, total - start) for start in range(0, total, sizes)]
    if sum(sizes) != total or any(s < 0 for s in sizes):
        raise ShapeError(f"split: sizes {tuple(sizes)} do not sum to the {total} of axis {axis} of {x.spec}")
    if len(sizes) == 1:
        return (x,)
    parts, start = [], 0
    for size in sizes:
        parts.append(slice_axis(x, place, start, start + size))
        start += size
    return tuple(parts)


def chunk(x: Any, chunks: int, axis: int = 0) -> tuple[Any, ...]:
    """x cut along an axis into (at most) so many parts of equal size, the last perhaps smaller."""
    x = operand(x)
    if chunks < 1:
        raise ShapeError(f"chunk: the number of parts must be >= 1, got {chunks}")
    total = x.shape[normalize_axis(axis, x.ndim, "chunk")]
    return split(x, max(1, -(-total // chunks)), axis)


def slice_axis(x: Any, axis: int, start: int, stop: int, step: int = 1) -> Any:
    """x[..., start:stop:step, ...] along one axis, as the Slice op; start and stop are not clipped."""
    x = operand(x)
    begin, end, every = [0] * x.ndim, list(x.shape), [1] * x.ndim
    begin[axis], end[axis], every[axis] = start, stop, step
    return call(Slice(tuple(begin), tuple(end), tuple(every)), x)


def getitem(x: Any, key: Any) -> Any:
    """NumPy's basic indexing: ints, slices, None and Ellipsis. A negative step flips the axis.

    Raises ShapeError for an index outside the axis, TypeError for index arrays and masks.
    """
    x = operand(x)
    keys = _expand_key(key if isinstance(key, tuple) else (key,), x)
    start, stop, step, flips, shape = [], [], [], [], []
    axis = 0
    for k in keys:
        if k is None:
            shape.append(1)
            continue
        n = x.shape[axis]
        if isinstance(k, slice):
            first, last, by = k.indices(n)
            count = len(range(first, last, by))
            if by < 0:
                first, by = first + (count - 1) * by, -by
                flips.append(axis)
            shape.append(count)
        else:
            first, count, by = _index(k, n, axis, x), 1, 1
        start.append(first if count else 0)
        stop.append(start[-1] + (count - 1) * by + 1 if count else 0)
        step.append(by)
        axis += 1
    whole = all(a == 0 and b == n and s == 1 for a, b, s, n in zip(start, stop, step, x.shape, strict=True))
    y = x if whole else call(Slice(tuple(start), tuple(stop), tuple(step)), x)
    return reshape(flip(y, flips) if flips else y, shape)


def _expand_key(key: tuple[Any, ...], x: Any) -> list[Any]:
    """The key with Ellipsis and missing axes written out."""
    used = sum(k is not None and k is not Ellipsis for k in key)
    dots = [i for i, k in enumerate(key) if k is Ellipsis]
    if used > x.ndim or len(dots) > 1:
        raise ShapeError(f"getitem: index {key} has too many entries for {x.spec}")
    place = dots[0] if dots else len(key)
    rest = [slice(None)] * (x.ndim - used)
    return [*key[:place], *rest, *key[place + len(dots) :]]


def _index(k: Any, n: int, axis: int, x: Any) -> int:
    try:
        i = int(k.__index__())
    except (AttributeError, TypeError):
        raise TypeError(
            f"getitem: an index must be an int, slice, None or Ellipsis, got {type(k).__name__} for {x.spec}"
        ) from None
    if not -n <= i < n:
        raise ShapeError(f"getitem: index {i} is outside axis {axis} of {x.spec}")
    return i % n


def pad(x: Any, pairs: Sequence[tuple[int, int]], value: float = 0.0) -> Any:
    """x with `value` around it: one (before, after) pair per axis, first axis first (as numpy.pad).

    A negative number cuts elements off. Raises ShapeError when it cuts more than there is.
    """
    x = operand(x)
    given = tuple((int(lo), int(hi)) for lo, hi in pairs)
    if len(given) != x.ndim:
        raise ShapeError(f"pad: needs {x.ndim} (before, after) pairs for {x.spec}, got {given}")
    if any(side < 0 for pair in given for side in pair):
        start = tuple(max(0, -lo) for lo, _ in given)
        stop = tuple(n - max(0, -hi) for n, (_, hi) in zip(x.shape, given, strict=True))
        x = call(Slice(start, stop, (1,) * x.ndim), x)
        given = tuple((max(0, lo), max(0, hi)) for lo, hi in given)
    return call(Pad(given, float(value)), x) if any(map(any, given)) else x


def expand(x: Any, shape: Sequence[int]) -> Any:
    """x repeated up to `shape` by NumPy's broadcasting rule; -1 keeps a size."""
    x = operand(x)
    lead = len(shape) - x.ndim
    sizes = (x.shape[i - lead] if s == -1 and i >= lead else s for i, s in enumerate(shape))
    target = as_shape(sizes, "expand")
    return x if target == x.shape else call(Expand(target), x)


def flip(x: Any, axes: int | Sequence[int]) -> Any:
    """x reversed along some axes."""
    x = operand(x)
    given = (axes,) if isinstance(axes, int) else axes
    return call(Flip(tuple(sorted(normalize_axis(a, x.ndim, "flip") for a in given))), x)


def space_to_depth(x: Any, block: int | Sequence[int]) -> Any:
    """Blocks of space become channels: [N, C, H, W] -> [N, C * b * b, H / b, W / b], for any number of axes.

    Channel c * b * b + i * b + j holds the elements at (i, j) of the blocks, as torch's pixel_unshuffle.
    """
    x = operand(x)
    blocks = _blocks("space_to_depth", x, block)
    space = x.shape[2:]
    if any(n % b for n, b in zip(space, blocks, strict=True)):
        raise ShapeError(f"space_to_depth: block {blocks} does not divide the spatial sizes of {x.spec}")
    outer = tuple(n // b for n, b in zip(space, blocks, strict=True))
    rank = len(blocks)
    apart = reshape(x, (*x.shape[:2], *(part for pair in zip(outer, blocks, strict=True) for part in pair)))
    order = (0, 1, *range(3, 3 + 2 * rank, 2), *range(2, 2 + 2 * rank, 2))
    return reshape(transpose(apart, order), (x.shape[0], x.shape[1] * prod(blocks), *outer))


def depth_to_space(x: Any, block: int | Sequence[int]) -> Any:
    """The inverse of `space_to_depth`: [N, C * b * b, H, W] -> [N, C, H * b, W * b] (pixel_shuffle)."""
    x = operand(x)
    blocks = _blocks("depth_to_space", x, block)
    if x.shape[1] % prod(blocks):
        raise ShapeError(f"depth_to_space: block {blocks} does not divide the channels of {x.spec}")
    channels, space, rank = x.shape[1] // prod(blocks), x.shape[2:], len(blocks)
    apart = reshape(x, (x.shape[0], channels, *blocks, *space))
    order = (0, 1, *(part for a in range(rank) for part in (2 + rank + a, 2 + a)))
    sizes = tuple(n * b for n, b in zip(space, blocks, strict=True))
    return reshape(transpose(apart, order), (x.shape[0], channels, *sizes))


def pixel_unshuffle(x: Any, downscale_factor: int) -> Any:
    """`space_to_depth` under torch's name."""
    return space_to_depth(x, downscale_factor)


def pixel_shuffle(x: Any, upscale_factor: int) -> Any:
    """`depth_to_space` under torch's name."""
    return depth_to_space(x, upscale_factor)


def space_to_batch(x: Any, block: int | Sequence[int]) -> Any:
    """Cut space into tiles that become images: [N, C, H, W] -> [N * b * b, C, H / b, W / b].

    Tile (i, j) of image n (rows i * H / b …) is image (n * b + i) * b + j of the result.
    """
    x = operand(x)
    tiles = _blocks("space_to_batch", x, block)
    if any(n % b for n, b in zip(x.shape[2:], tiles, strict=True)):
        raise ShapeError(f"space_to_batch: block {tiles} does not divide the spatial sizes of {x.spec}")
    inner = tuple(n // b for n, b in zip(x.shape[2:], tiles, strict=True))
    rank = len(tiles)
    apart = reshape(x, (*x.shape[:2], *(part for pair in zip(tiles, inner, strict=True) for part in pair)))
    order = (0, *range(2, 2 + 2 * rank, 2), 1, *range(3, 3 + 2 * rank, 2))
    return reshape(transpose(apart, order), (x.shape[0] * prod(tiles), x.shape[1], *inner))


def batch_to_space(x: Any, block: int | Sequence[int]) -> Any:
    """The inverse of `space_to_batch`: [N * b * b, C, H, W] -> [N, C, H * b, W * b]."""
    x = operand(x)
    tiles = _blocks("batch_to_space", x, block)
    if x.shape[0] % prod(tiles):
        raise ShapeError(f"batch_to_space: block {tiles} does not divide the batch of {x.spec}")
    rank, space = len(tiles), x.shape[2:]
    apart = reshape(x, (x.shape[0] // prod(tiles), *tiles, x.shape[1], *space))
    order = (0, 1 + rank, *(part for a in range(rank) for part in (1 + a, 2 + rank + a)))
    sizes = tuple(n * b for n, b in zip(space, tiles, strict=True))
    return reshape(transpose(apart, order), (x.shape[0] // prod(tiles), x.shape[1], *sizes))


def swap_halves(x: Any, axis: int = 0) -> Any:
    """The upper and the lower half of an axis exchanged: two batches change places."""
    x = operand(x)
    size = x.shape[normalize_axis(axis, x.ndim, "swap_halves")]
    if size % 2:
        raise ShapeError(f"swap_halves: axis {axis} of {x.spec} has no two equal halves")
    upper, lower = split(x, [size // 2, size // 2], axis)
    return concat([lower, upper], axis)


def swap_pairs(x: Any, axis: int = 0) -> Any:
    """Every even element of an axis exchanged with the odd one behind it."""
    x = operand(x)
    place = normalize_axis(axis, x.ndim, "swap_pairs")
    size = x.shape[place]
    if size % 2:
        raise ShapeError(f"swap_pairs: axis {axis} of {x.spec} has an odd size")
    paired = reshape(x, (*x.shape[:place], size // 2, 2, *x.shape[place + 1 :]))
    return reshape(flip(paired, place + 1), x.shape)


def resize_nearest(x: Any, scale: int | Sequence[int]) -> Any:
    """Each spatial element repeated `scale` times along each axis: nearest-neighbour enlargement.

    x [N, C, *spatial]; its gradient sums the copies. As torch's interpolate(mode="nearest") with an integer
    scale_factor.
    """
    x = operand(x)
    factors = _blocks("resize_nearest", x, scale)
    apart = reshape(x, (*x.shape[:2], *(part for n in x.shape[2:] for part in (n, 1))))
    sizes = tuple(part for pair in zip(x.shape[2:], factors, strict=True) for part in pair)
    whole = tuple(n * f for n, f in zip(x.shape[2:], factors, strict=True))
    return reshape(expand(apart, (*x.shape[:2], *sizes)), (*x.shape[:2], *whole))


def _blocks(what: str, x: Any, block: int | Sequence[int]) -> Shape:
    rank = x.ndim - 2
    sizes = (block,) * rank if isinstance(block, int) else tuple(block)
    if rank < 1 or len(sizes) != rank or any(b < 1 for b in sizes):
        raise ShapeError(
            f"{what}: needs [N, C, *spatial] and one int >= 1 or one per spatial axis, "
            f"got {block} for {x.spec}"
        )
    return sizes
