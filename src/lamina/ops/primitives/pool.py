"""Pooling: maximum, average and sum over a sliding window, with their gradients as ops.

Inputs are [N, C, *spatial] with one to three spatial axes. Padding is never the maximum; average pooling counts it
("include"), does not count it ("exclude"), or only sums ("sum"). Counterparts: cudnnPoolingForward and …Backward,
resample nodes of the graph API.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from lamina.ops.arguments import Sizes, checked
from lamina.ops.core import Arg, Array, BatchAxes, Op, Sample, bind, call, first_axis, operand
from lamina.ops.primitives.axis_map import AxisMap
from lamina.ops.primitives.map_axes import mapped
from lamina.ops.primitives.pointwise import eq, where
from lamina.ops.primitives.window import Padding, Window, per_axis, window
from lamina.spec import DType, DTypeError, Shape, ShapeError, Spec, float32, int32, int64, uint8

MODES = ("include", "exclude", "sum")


def index_dtype(kernel: Shape) -> DType:
    """The dtype of MaxPool's index: uint8 for kernels of fewer than 256 elements, else int32."""
    return uint8 if prod(kernel) < 256 else int32


class _Pool(Op):
    kernel: Shape
    window: Window

    def outputs(self, x: Spec) -> Spec:
        """The spec of the pooled x. Raises ShapeError."""
        self.check_float(x)
        return self.result((*x.shape[:2], *self.positions(x)), x.dtype)

    def positions(self, x: Spec, shape: Shape | None = None) -> Shape:
        """The number of window positions along the spatial axes of x, or of `shape`."""
        win, rank = self.window, self.window.rank
        spatial = x.shape[2:] if shape is None else shape
        if x.ndim != rank + 2 or len(self.kernel) != rank or len(spatial) != rank:
            raise ShapeError(
                f"{self.name}: kernel {self.kernel} and a window with {rank} spatial axes need "
                f"a tensor of rank {rank + 2}, got {x}"
            )
        if win.groups != 1 or win.flip:
            raise ShapeError(f"{self.name}: groups and flip have no meaning for pooling, got {win}")
        if any(max(p) >= s for p, s in zip(win.padding, win.span(self.kernel), strict=True)):
            raise ShapeError(
                f"{self.name}: padding {win.padding} must be smaller than the kernel's reach "
                f"{win.span(self.kernel)}, else a window covers padding only"
            )
        return win.output(spatial, self.kernel, self.name)

    def check_index(self, index: Spec, shape: Shape) -> None:
        """Raise unless `index` is a valid index of MaxPool with this shape."""
        if index.dtype != index_dtype(self.kernel):
            raise DTypeError(f"{self.name}: index must be {index_dtype(self.kernel)}, got {index}")
        if index.shape != shape:
            raise ShapeError(f"{self.name}: index {index} must have shape {shape}")


@dataclass(frozen=True)
class MaxPool(_Pool):
    """x [N, C, *S] -> y [N, C, *O], and with index=True also the position of each maximum in its window.

    The index is the offset of the first maximum in the kernel, row-major, padded positions counted (but never
    chosen): uint8, or int32 for kernels of 256 elements or more. NaN counts as the largest value.
    """

    kernel: Shape
    window: Window
    index: bool = False

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        y = self.outputs(x)
        return (y, Spec(y.shape, index_dtype(self.kernel))) if self.index else (y,)

    def prune(self, used: Sequence[bool]) -> Op:
        return replace(self, index=False) if self.index and not any(used[1:]) else self

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        return first_axis(axes, 1 + self.index, (0, 1))

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        x = inputs[0]
        index = outputs[1] if self.index else bind(replace(self, index=True), x)[1]
        return (call(MaxPoolGrad(self.kernel, self.window, x.shape[2:]), grads[0], index),)

    def reference(self, x: Array) -> tuple[Array, ...]:
        taps = list(self.window.taps(self.kernel, self.window.output(x.shape[2:], self.kernel)))
        padded = self.window.pad(x, -np.inf)
        best = padded[taps[0]].copy()
        for tap in taps[1:]:
            np.maximum(best, padded[tap], out=best)
        return (best, self._first(padded, best, taps)) if self.index else (best,)

    def _first(self, padded: Array, best: Array, taps: Sequence[tuple[slice, ...]]) -> Array:
        """The first tap with each maximum, excluding padding: iterating backwards, each overwrites the last."""
        real = self.window.pad(np.ones((1, 1, *self.window.unpadded(padded.shape[2:])), bool))
        index = np.zeros(best.shape, index_dtype(self.kernel).numpy)
        odd = bool(np.isnan(best).any())
        for i in range(len(taps) - 1, -1, -1):
            met = padded[taps[i]] == best
            if odd:
                met |= np.isnan(padded[taps[i]])
            np.copyto(index, i, where=met & real[taps[i]], casting="unsafe")
        return index

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for i, (kernel, win, x) in enumerate(_CASES):
            yield Sample.of(cls(kernel, win, i % 2 == 0), Arg(x, distinct=True))
        kernel, win, x = _CASES[1]
        yield Sample.of(
            cls(kernel, win, True), Arg(x, low=0, high=3, integers=True, differentiable=False)
        )  # ties


@dataclass(frozen=True)
class MaxPoolGrad(_Pool):
    """(g [N, C, *O], index) -> dx [N, C, *shape]: g scattered to the maxima; overlaps are summed."""

    kernel: Shape
    window: Window
    shape: Shape  # spatial sizes of x
    arity = 2

    def infer(self, g: Spec, index: Spec) -> tuple[Spec]:
        self.check_float(g)
        _check_gradient(self, g, self.shape)
        self.check_index(index, g.shape)
        return (self.result((*g.shape[:2], *self.shape), g.dtype),)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        return (axes[0],) if axes[0] and axes[0] == axes[1] and axes[0].axis < 2 else None

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return call(MaxPoolGather(self.kernel, self.window), grads[0], inputs[1]), None

    def reference(self, g: Array, index: Array) -> tuple[Array]:
        padded = np.zeros((*g.shape[:2], *self.window.padded(self.shape)), g.dtype)
        for i, tap in enumerate(self.window.taps(self.kernel, g.shape[2:])):
            padded[tap] += np.where(index == i, g, g.dtype.type(0))
        return (self.window.crop(padded),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for kernel, win, x in _CASES:
            y = (*x[:2], *win.output(x[2:], kernel))
            yield Sample.of(cls(kernel, win, x[2:]), y, _index(kernel, y))


@dataclass(frozen=True)
class MaxPoolGather(_Pool):
    """(t [N, C, *S], index) -> [N, C, *O]: t at the maxima, the adjoint of MaxPoolGrad; 0 from padding."""

    kernel: Shape
    window: Window
    arity = 2

    def infer(self, t: Spec, index: Spec) -> tuple[Spec]:
        y = self.outputs(t)
        self.check_index(index, y.shape)
        return (y,)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        return (axes[0],) if axes[0] and axes[0] == axes[1] and axes[0].axis < 2 else None

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        t, index = inputs
        return call(MaxPoolGrad(self.kernel, self.window, t.shape[2:]), grads[0], index), None

    def reference(self, t: Array, index: Array) -> tuple[Array]:
        padded = self.window.pad(t)
        y = np.zeros(index.shape, t.dtype)
        for i, tap in enumerate(self.window.taps(self.kernel, index.shape[2:])):
            np.copyto(y, padded[tap], where=index == i)
        return (y,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for kernel, win, x in _CASES:
            y = (*x[:2], *win.output(x[2:], kernel))
            yield Sample.of(cls(kernel, win), x, _index(kernel, y))


@dataclass(frozen=True)
class AvgPool(_Pool):
    """x [N, C, *S] -> y [N, C, *O]: the window's sum, divided by its size ("include"), by its number of non-padding
    elements ("exclude"), or not at all ("sum").
    """

    kernel: Shape
    window: Window
    mode: str = "include"

    def infer(self, x: Spec) -> tuple[Spec]:
        _check_mode(self, self.mode)
        return (self.outputs(x),)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        return first_axis(axes, 1, (0, 1))

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return (call(AvgPoolGrad(self.kernel, self.window, self.mode, inputs[0].shape[2:]), grads[0]),)

    def reference(self, x: Array) -> tuple[Array]:
        spatial = self.window.output(x.shape[2:], self.kernel)
        padded = self.window.pad(x)
        y = np.zeros((*x.shape[:2], *spatial), x.dtype)
        for tap in self.window.taps(self.kernel, spatial):
            y += padded[tap]
        return (y / _divisor(self, x.shape[2:], spatial).astype(x.dtype),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for mode in MODES:
            for kernel, win, x in _CASES:
                yield Sample.of(cls(kernel, win, mode), x)


@dataclass(frozen=True)
class AvgPoolGrad(_Pool):
    """g [N, C, *O] -> dx [N, C, *shape]: each g spread over its window, divided as AvgPool divides."""

    kernel: Shape
    window: Window
    mode: str
    shape: Shape  # spatial sizes of x

    def infer(self, g: Spec) -> tuple[Spec]:
        _check_mode(self, self.mode)
        self.check_float(g)
        _check_gradient(self, g, self.shape)
        return (self.result((*g.shape[:2], *self.shape), g.dtype),)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        return first_axis(axes, 1, (0, 1))

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return (call(AvgPool(self.kernel, self.window, self.mode), grads[0]),)

    def reference(self, g: Array) -> tuple[Array]:
        share = g / _divisor(self, self.shape, g.shape[2:]).astype(g.dtype)
        padded = np.zeros((*g.shape[:2], *self.window.padded(self.shape)), g.dtype)
        for tap in self.window.taps(self.kernel, g.shape[2:]):
            padded[tap] += share
        return (self.window.crop(padded),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for mode in MODES:
            for kernel, win, x in _CASES:
                yield Sample.of(cls(kernel, win, mode, x[2:]), (*x[:2], *win.output(x[2:], kernel)))


_CASES: tuple[tuple[Shape, Window, Shape], ...] = (
    ((2, 2), Window((2, 2), ((0, 0), (0, 0)), (1, 1)), (2, 3, 6, 8)),
    ((3, 3), Window((2, 2), ((1, 1), (1, 1)), (1, 1)), (2, 5, 7, 6)),
    ((3, 2), Window((1, 3), ((2, 1), (0, 1)), (1, 1)), (1, 16, 5, 8)),
    ((2, 1), Window((3, 2), ((0, 0), (0, 0)), (1, 1)), (2, 1, 8, 7)),  # stride > kernel
    ((2, 3), Window((1, 1), ((0, 1), (2, 0)), (2, 1)), (1, 2, 5, 4)),  # dilated
    ((3, 3), Window((2, 2), ((0, 0), (0, 0)), (1, 1)), (0, 3, 7, 7)),
    ((1, 4), Window((1, 4), ((0, 0), (0, 0)), (1, 1)), (2, 3, 1, 9)),
    ((3,), Window((2,), ((1, 2),), (1,)), (2, 3, 9)),
    ((2, 2, 3), Window((2, 1, 2), ((0, 1), (1, 0), (1, 1)), (1, 1, 1)), (1, 2, 4, 3, 5)),
    ((17, 16), Window((2, 2), ((0, 0), (0, 0)), (1, 1)), (1, 2, 18, 17)),  # an index of more than 8 bits
)


def _check_mode(op: Op, mode: str) -> None:
    if mode not in MODES:
        raise ValueError(f"{op.name}: mode must be one of {', '.join(MODES)}, got {mode!r}")


def _check_gradient(op: _Pool, g: Spec, shape: Shape) -> None:
    expected = op.positions(g, shape)
    if g.shape[2:] != expected:
        raise ShapeError(
            f"{op.name}: an input of spatial shape {shape} gives outputs of {expected}, "
            f"but the gradient is {g}"
        )


def _index(kernel: Shape, y: Shape) -> Arg:
    return Arg(y, index_dtype(kernel), low=0, high=prod(kernel), integers=True, differentiable=False)


def _divisor(op: AvgPool | AvgPoolGrad, spatial: Shape, positions: Shape) -> Array:
    """The divisor of the sum at each position, shape [*O] or []."""
    if op.mode == "exclude":
        return counts(op.kernel, op.window, spatial, positions)
    return np.array(prod(op.kernel) if op.mode == "include" else 1, np.float64)


def counts(kernel: Shape, win: Window, spatial: Shape, positions: Shape) -> Array:
    """The number of non-padding elements in each window (at least 1), shape [*O]."""
    found = np.ones(positions)
    for axis, (k, n, out) in enumerate(zip(kernel, spatial, positions, strict=True)):
        start = np.arange(out) * win.stride[axis] - win.padding[axis][0]
        taps = start[:, None] + np.arange(k) * win.dilation[axis]
        inside = ((taps >= 0) & (taps < n)).sum(1)
        found *= inside.reshape((-1,) + (1,) * (len(kernel) - 1 - axis))
    return np.maximum(found, 1)


# Functions with the names and signatures of torch.nn.functional. All also take a single image [C, *spatial].


def unbatched(what: str, input: Any, rank: int) -> tuple[Any, bool]:
    """The input with a batch axis, and whether it was unbatched. Raises ShapeError."""
    x = operand(input, what)
    if x.ndim not in (rank + 1, rank + 2):
        raise ShapeError(
            f"{what}: input must be of rank {rank + 2}, [N, C, *spatial], or {rank + 1} without N, got {x.spec}"
        )
    return (x.unsqueeze(0), True) if x.ndim == rank + 1 else (x, False)


def _window(
    what: str,
    rank: int,
    x: Any,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Padding,
    dilation: Sizes,
    ceil_mode: bool,
) -> tuple[Shape, Window, Window]:
    """Kernel, window with ceil_mode's extra padding, window without it."""
    kernel = per_axis(what, "kernel_size", kernel_size, rank, 1)
    step = kernel if stride is None or (not isinstance(stride, int) and not len(stride)) else stride
    win = window(what, kernel, step, padding, dilation)
    return kernel, _ceil(win, x.shape[2:], kernel) if ceil_mode else win, win


def _ceil(win: Window, spatial: Shape, kernel: Shape) -> Window:
    """Additional padding after each axis, so that a last incomplete window counts if it starts before the end."""
    pairs = []
    for n, (lo, hi), span, s in zip(spatial, win.padding, win.span(kernel), win.stride, strict=True):
        last = -(-(n + lo + hi - span) // s) * s  # start of the last window, including padding
        if last >= n + lo:
            last -= s
        pairs.append((lo, max(hi, last + span - n - lo)))
    return replace(win, padding=tuple(pairs))


def _max_pool(
    rank: int,
    input: Any,
    kernel: Sizes,
    stride: Sizes | None,
    padding: Padding,
    dilation: Sizes,
    ceil_mode: bool,
    return_indices: bool,
) -> Any:
    what = f"max_pool{rank}d"
    x, single = unbatched(what, input, rank)
    size, win, _ = _window(what, rank, x, kernel, stride, padding, dilation, ceil_mode)
    if not return_indices:
        y = call(MaxPool(size, win, True), x)
        return y.squeeze(0) if single else y
    y, offset = bind(MaxPool(size, win, True), x)
    found = y, plane_index(offset, size, win, x.shape[2:])
    return tuple(v.squeeze(0) for v in found) if single else found


def plane_index(offset: Any, kernel: Shape, win: Window, spatial: Shape) -> Any:
    """The position of each maximum in its image, row-major over the spatial axes (int64), from that in its window."""
    rest, found = offset.cast(float32), None  # exact: a kernel has far less than 2^24 elements
    for axis in reversed(range(len(kernel))):
        above = (rest * (1.0 / kernel[axis]) + 0.5 / kernel[axis]).floor()
        tap = (rest - above * float(kernel[axis])).cast(int64)
        start = np.arange(offset.shape[2 + axis]) * win.stride[axis] - win.padding[axis][0]
        start = start.reshape((-1,) + (1,) * (len(kernel) - 1 - axis))
        place = (tap * win.dilation[axis] + start) * prod(spatial[axis + 1 :])
        found, rest = place if found is None else found + place, above
    return found


def _avg_pool(
    rank: int,
    input: Any,
    kernel: Sizes,
    stride: Sizes | None,
    padding: Padding,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Any:
    what = f"avg_pool{rank}d"
    x, single = unbatched(what, input, rank)
    if divisor_override == 0:
        raise ValueError(f"{what}: divisor_override must not be 0")
    size, win, plain = _window(what, rank, x, kernel, stride, padding, 1, ceil_mode)
    y = _averaged(x, size, win, plain, count_include_pad, divisor_override)
    return y.squeeze(0) if single else y


def _averaged(
    x: Any, size: Shape, win: Window, plain: Window, count_include_pad: bool, divisor_override: int | None
) -> Any:
    """The averages; `plain` is the caller's window, `win` the one with ceil_mode's padding."""
    if divisor_override is not None:
        return call(AvgPool(size, win, "sum"), x) * (1.0 / divisor_override)
    if not count_include_pad:
        return call(AvgPool(size, win, "exclude"), x)
    if win == plain:
        return call(AvgPool(size, win, "include"), x)
    # ceil_mode's padding is not counted, the caller's own is.
    own = Window(win.stride, tuple((0, 0) for _ in size), win.dilation)
    positions = win.output(x.shape[2:], size)
    weight = 1 / counts(size, own, plain.padded(x.shape[2:]), positions)
    return call(AvgPool(size, win, "sum"), x) * weight.astype(x.dtype.numpy)


def _sum_pool(
    rank: int, input: Any, kernel: Sizes, stride: Sizes | None, padding: Padding, ceil_mode: bool
) -> Any:
    what = f"sum_pool{rank}d"
    x, single = unbatched(what, input, rank)
    size, win, _ = _window(what, rank, x, kernel, stride, padding, 1, ceil_mode)
    y = call(AvgPool(size, win, "sum"), x)
    return y.squeeze(0) if single else y


@checked
def max_pool1d(
    input: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """`max_pool2d` with one spatial axis."""
    return _max_pool(1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@checked
def max_pool2d(
    input: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest element of each window of input [N, C, H, W], as torch.nn.functional.max_pool2d.

    stride: the kernel's size by default. padding: as in conv2d, smaller than the kernel's reach; it is never the
    maximum. ceil_mode: a last incomplete window also counts, if it starts inside the input. return_indices: also the
    position of each in its image, row-major over the spatial axes, in int64. The gradient goes to the first maximum
    of each window. Raises ShapeError or DTypeError.
    """
    return _max_pool(2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@checked
def max_pool3d(
    input: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """`max_pool2d` with three spatial axes."""
    return _max_pool(3, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@checked
def max_pool1d_with_indices(
    input: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Any:
    """`max_pool1d` with return_indices."""
    return _max_pool(1, input, kernel_size, stride, padding, dilation, ceil_mode, True)


@checked
def max_pool2d_with_indices(
    input: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Any:
    """(The largest element of each window, its position in the image): `max_pool2d` with return_indices."""
    return _max_pool(2, input, kernel_size, stride, padding, dilation, ceil_mode, True)


@checked
def max_pool3d_with_indices(
    input: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Any:
    """`max_pool3d` with return_indices."""
    return _max_pool(3, input, kernel_size, stride, padding, dilation, ceil_mode, True)


@checked
def avg_pool1d(
    input: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Any:
    """`avg_pool2d` with one spatial axis."""
    return _avg_pool(1, input, kernel_size, stride, padding, ceil_mode, count_include_pad, None)


@checked
def avg_pool2d(
    input: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """The mean of each window of input [N, C, H, W], as torch.nn.functional.avg_pool2d.

    count_include_pad: whether padding counts as zeros (ceil_mode's padding never counts). divisor_override: divide
    the sums by this instead. Raises ShapeError or DTypeError.
    """
    return _avg_pool(2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


@checked
def avg_pool3d(
    input: Any,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """`avg_pool2d` with three spatial axes."""
    return _avg_pool(3, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


@checked
def sum_pool1d(
    input: Any, kernel_size: Sizes, stride: Sizes | None = None, padding: Padding = 0, ceil_mode: bool = False
) -> Any:
    """`sum_pool2d` with one spatial axis."""
    return _sum_pool(1, input, kernel_size, stride, padding, ceil_mode)


@checked
def sum_pool2d(
    input: Any, kernel_size: Sizes, stride: Sizes | None = None, padding: Padding = 0, ceil_mode: bool = False
) -> Any:
    """The sum of each window of input [N, C, H, W]; padding counts as 0."""
    return _sum_pool(2, input, kernel_size, stride, padding, ceil_mode)


@checked
def sum_pool3d(
    input: Any, kernel_size: Sizes, stride: Sizes | None = None, padding: Padding = 0, ceil_mode: bool = False
) -> Any:
    """`sum_pool2d` with three spatial axes."""
    return _sum_pool(3, input, kernel_size, stride, padding, ceil_mode)


def global_avg_pool(input: Any) -> Any:
    """The mean over all spatial axes, kept as size 1: [N, C, 1, ...]."""
    x = operand(input, "global_avg_pool")
    return x.mean(tuple(range(2, x.ndim)), keepdim=True) if x.ndim > 2 else x


def global_max_pool(input: Any) -> Any:
    """The largest element over all spatial axes, kept as size 1: [N, C, 1, ...]."""
    x = operand(input, "global_max_pool")
    return x.amax(tuple(range(2, x.ndim)), keepdim=True) if x.ndim > 2 else x


def _adaptive_avg_pool(rank: int, input: Any, output_size: Any) -> Any:
    """Position i averages the elements floor(i * n / o) … ceil((i + 1) * n / o) - 1 of its axis."""
    what = f"adaptive_avg_pool{rank}d"
    x, single = unbatched(what, input, rank)
    sizes = output_sizes(what, x, output_size)
    y = _adapted(what, x, sizes)
    return y.squeeze(0) if single else y


def output_sizes(what: str, x: Any, output_size: Any) -> Shape:
    """One size for all spatial axes of x, or one per axis; None keeps a size. Raises ShapeError."""
    rank = x.ndim - 2
    given: Any = (
        (output_size,) * rank
        if output_size is None or isinstance(output_size, (int, np.integer))
        else tuple(output_size)
    )
    filled = [n if o is None else o for o, n in zip(given, x.shape[2:], strict=False)]
    return per_axis(what, "output_size", filled if len(given) == rank else given, rank, 1)


def _adapted(what: str, x: Any, sizes: Shape) -> Any:
    if all(o == 1 for o in sizes):
        return global_avg_pool(x)
    if all(n % o == 0 for n, o in zip(x.shape[2:], sizes, strict=True)):
        kernel = tuple(n // o for n, o in zip(x.shape[2:], sizes, strict=True))
        return call(AvgPool(kernel, window(what, kernel, kernel), "include"), x)
    axes = zip(x.shape[2:], sizes, strict=True)
    return mapped(x, [None, None, *(AxisMap("area", n, o) if n != o else None for n, o in axes)])


@checked
def adaptive_avg_pool1d(input: Any, output_size: int | Sequence[int | None] | None) -> Any:
    """`adaptive_avg_pool2d` with one spatial axis."""
    return _adaptive_avg_pool(1, input, output_size)


@checked
def adaptive_avg_pool2d(input: Any, output_size: int | Sequence[int | None] | None) -> Any:
    """Means over windows that divide the spatial axes into `output_size` parts; None keeps a size.

    As torch.nn.functional.adaptive_avg_pool2d: windows overlap where the sizes do not divide.
    """
    return _adaptive_avg_pool(2, input, output_size)


@checked
def adaptive_avg_pool3d(input: Any, output_size: int | Sequence[int | None] | None) -> Any:
    """`adaptive_avg_pool2d` with three spatial axes."""
    return _adaptive_avg_pool(3, input, output_size)


def _lp_pool(
    rank: int, input: Any, norm_type: float, kernel_size: Sizes, stride: Sizes | None, ceil_mode: bool
) -> Any:
    what = f"lp_pool{rank}d"
    x, single = unbatched(what, input, rank)
    if not 0 < norm_type < np.inf:
        raise ValueError(f"{what}: norm_type must be > 0 and finite, got {norm_type}")
    size, win, plain = _window(what, rank, x, kernel_size, stride, 0, 1, ceil_mode)
    power = x if norm_type == 1 else x**norm_type
    sums = _averaged(power, size, win, plain, True, None) * float(prod(size))
    y = sums if norm_type == 1 else _root(sums, norm_type)
    return y.squeeze(0) if single else y


def _root(sums: Any, norm_type: float) -> Any:
    """sums ** (1 / norm_type), with gradient 0 where a sum is 0 (windows after a relu), as torch's, instead of
    infinity, which times the inner gradient of 0 would be NaN."""
    is_zero = eq(sums, 0.0)
    return where(is_zero, sums, where(is_zero, 1.0, sums) ** (1 / norm_type))


@checked
def lp_pool1d(
    input: Any, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> Any:
    """`lp_pool2d` with one spatial axis."""
    return _lp_pool(1, input, norm_type, kernel_size, stride, ceil_mode)


@checked
def lp_pool2d(
    input: Any, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> Any:
    """(sum of x ** norm_type over each window) ** (1 / norm_type) of input [N, C, H, W] or [C, H, W].

    As torch.nn.functional.lp_pool2d: norm_type 1 sums, infinity (`max_pool2d`) is its limit; incomplete last windows
    from ceil_mode are scaled as if they were complete. stride: the kernel's size by default. NaN where a sum of odd
    powers is negative; the gradient is 0 where a sum is 0. Raises ShapeError, ValueError.
    """
    return _lp_pool(2, input, norm_type, kernel_size, stride, ceil_mode)


@checked
def lp_pool3d(
    input: Any, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> Any:
    """`lp_pool2d` with three spatial axes."""
    return _lp_pool(3, input, norm_type, kernel_size, stride, ceil_mode)
