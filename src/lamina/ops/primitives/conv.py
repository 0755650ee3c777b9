"""Convolution and its two gradients: three linear ops that share one Window and are closed under vjp.

    Conv            x [N, C, *S],  w [K, C/g, *k]  ->  y  [N, K, *O]
    ConvDataGrad g [N, K, *O], w [K, C/g, *k] -> dx [N, C, *S] also transposed convolution ConvFilterGrad x [N, C,
    *S], g [N, K, *O] -> dw [K, C/g, *k]

with one to three spatial axes. O = (S + lo + hi - dilation * (k - 1) - 1) // stride + 1.
Counterparts: cudnnConvolutionForward, …BackwardData, …BackwardFilter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from lamina.ops.arguments import Sizes, checked
from lamina.ops.core import Array, BatchAxes, Folded, Op, Sample, call, first_axis, operand
from lamina.ops.primitives.shape import pad_axes
from lamina.ops.primitives.window import Padding, Window, per_axis, window
from lamina.spec import Shape, ShapeError, Spec, as_shape, policy

__all__ = [
    "Conv",
    "ConvDataGrad",
    "ConvFilterGrad",
    "Window",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
]

#: Bytes of unfolded input that the references hold at a time.
_CHUNK = 1 << 26


@dataclass(frozen=True)
class Conv(Op):
    """y[n, k, o] = sum over c, t of x[n, c, o * stride + t * dilation - lo] * w[k, c, t], per group."""

    window: Window
    arity = 2

    def infer(self, x: Spec, w: Spec) -> tuple[Spec]:
        self.check_float(x, w)
        _check_ranks(self, self.window, x, w)
        _check_channels(self, self.window, x, w)
        spatial = self.window.output(x.shape[2:], w.shape[2:], self.name)
        return (self.result((x.shape[0], w.shape[0], *spatial), x.dtype),)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        return first_axis(axes)

    def folded(self, size: int) -> Folded:
        """Per-sample filters: each sample's channels become groups of their own."""
        return Folded(Conv(self.window.repeated(size)), (1, 0), (1,))

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        (g,), (x, w) = grads, inputs
        return (
            call(ConvDataGrad(self.window, x.shape[2:]), g, w),
            call(ConvFilterGrad(self.window, w.shape[2:]), x, g),
        )

    def flops(self, x: Spec, w: Spec) -> int:
        return 2 * self.infer(x, w)[0].numel * prod(w.shape[1:])

    def reference(self, x: Array, w: Array) -> tuple[Array]:
        kernel = w.shape[2:]
        spatial = self.window.output(x.shape[2:], kernel)
        rows = _filter_matrix(w, self.window)
        y = np.empty((x.shape[0], w.shape[0], *spatial), x.dtype)
        padded = self.window.pad(x)
        for part in _chunks(x, kernel, spatial):
            columns = _columns(padded[part], kernel, self.window)
            y[part] = np.matmul(rows, columns).reshape(-1, *y.shape[1:])
        return (y,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for win, x, w in _CASES:
            yield Sample.of(cls(win), x, w)


@dataclass(frozen=True)
class ConvDataGrad(Op):
    """The gradient of Conv in x, which has spatial sizes `shape`: the adjoint for a fixed filter."""

    window: Window
    shape: Shape  # spatial sizes of x
    arity = 2

    def infer(self, g: Spec, w: Spec) -> tuple[Spec]:
        self.check_float(g, w)
        _check_ranks(self, self.window, g, w)
        expected = self.window.output(_spatial(self, self.window, self.shape), w.shape[2:], self.name)
        if g.shape[1] != w.shape[0] or w.shape[0] % self.window.groups:
            raise ShapeError(
                f"{self.name}: gradient {g} has {g.shape[1]} channels, filter {w} makes {w.shape[0]} "
                f"in {self.window.groups} groups"
            )
        if g.shape[2:] != expected:
            raise ShapeError(
                f"{self.name}: an input of spatial shape {self.shape} gives outputs of {expected}, "
                f"but the gradient {g} has {g.shape[2:]}"
            )
        return (self.result((g.shape[0], w.shape[1] * self.window.groups, *self.shape), g.dtype),)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        return first_axis(axes)

    def folded(self, size: int) -> Folded:
        """Per-sample filters: each sample's channels become groups of their own."""
        return Folded(ConvDataGrad(self.window.repeated(size), self.shape), (1, 0), (1,))

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        (t,), (g, w) = grads, inputs
        return call(Conv(self.window), t, w), call(ConvFilterGrad(self.window, w.shape[2:]), t, g)

    def flops(self, g: Spec, w: Spec) -> int:
        return 2 * g.numel * prod(w.shape[1:])

    def reference(self, g: Array, w: Array) -> tuple[Array]:
        win, kernel, spatial = self.window, w.shape[2:], g.shape[2:]
        rows = np.ascontiguousarray(_filter_matrix(w, win).swapaxes(1, 2))
        channels = w.shape[1] * win.groups
        padded = np.zeros((g.shape[0], channels, *win.padded(self.shape)), g.dtype)
        for part in _chunks(padded, kernel, spatial):
            grouped = g[part].reshape(-1, win.groups, w.shape[0] // win.groups, prod(spatial))
            columns = np.matmul(rows, grouped).reshape(-1, channels, prod(kernel), *spatial)
            for i, tap in enumerate(win.taps(kernel, spatial)):
                padded[(part, *tap[1:])] += columns[:, :, i]
        return (win.crop(padded),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for win, x, w in _CASES:
            yield Sample.of(cls(win, x[2:]), _output(win, x, w), w)


@dataclass(frozen=True)
class ConvFilterGrad(Op):
    """The gradient of Conv in w, which has spatial sizes `shape`: the adjoint for a fixed input."""

    window: Window
    shape: Shape  # spatial sizes of w
    arity = 2

    def infer(self, x: Spec, g: Spec) -> tuple[Spec]:
        self.check_float(x, g)
        _check_ranks(self, self.window, x, g)
        expected = self.window.output(x.shape[2:], _spatial(self, self.window, self.shape), self.name)
        if x.shape[0] != g.shape[0] or x.shape[1] % self.window.groups or g.shape[1] % self.window.groups:
            raise ShapeError(
                f"{self.name}: input {x} and gradient {g} need equal batches and channels that "
                f"{self.window.groups} groups divide"
            )
        if g.shape[2:] != expected:
            raise ShapeError(
                f"{self.name}: input {x} with a filter of {self.shape} gives outputs of {expected}, "
                f"but the gradient {g} has {g.shape[2:]}"
            )
        return (self.result((g.shape[1], x.shape[1] // self.window.groups, *self.shape), x.dtype),)

    def folded(self, size: int) -> Folded:
        """Per-sample gradients: each sample's channels become groups of their own."""
        return Folded(ConvFilterGrad(self.window.repeated(size), self.shape), (1, 1), (0,))

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        (t,), (x, g) = grads, inputs
        return call(ConvDataGrad(self.window, x.shape[2:]), g, t), call(Conv(self.window), x, t)

    def flops(self, x: Spec, g: Spec) -> int:
        return 2 * g.numel * x.shape[1] // self.window.groups * prod(self.shape)

    def reference(self, x: Array, g: Array) -> tuple[Array]:
        win, spatial = self.window, g.shape[2:]
        channels = x.shape[1] // win.groups
        rows = g.shape[1] // win.groups
        dw = np.zeros((win.groups, rows, channels * prod(self.shape)), x.dtype)
        padded = win.pad(x)
        for part in _chunks(x, self.shape, spatial):
            columns = _columns(padded[part], self.shape, win)
            grouped = g[part].reshape(-1, win.groups, rows, prod(spatial))
            dw += np.matmul(grouped, columns.swapaxes(2, 3)).sum(0)
        shaped = dw.reshape(g.shape[1], channels, *self.shape)
        return (_mirror(shaped) if win.flip else shaped,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for win, x, w in _CASES:
            yield Sample.of(cls(win, w[2:]), x, _output(win, x, w))


def _check_ranks(op: Op, win: Window, a: Spec, b: Spec) -> None:
    if a.ndim != win.rank + 2 or b.ndim != win.rank + 2:
        raise ShapeError(
            f"{op.name}: a window with {win.rank} spatial axes needs tensors of rank {win.rank + 2}, "
            f"got {a} and {b}"
        )


def _check_channels(op: Op, win: Window, x: Spec, w: Spec) -> None:
    """x [N, C, …] and w [K, C/groups, …]."""
    if x.shape[1] != w.shape[1] * win.groups:
        raise ShapeError(
            f"{op.name}: input {x} has {x.shape[1]} channels, but filter {w} with groups={win.groups} "
            f"takes {w.shape[1] * win.groups}"
        )
    if w.shape[0] % win.groups:
        raise ShapeError(f"{op.name}: groups={win.groups} does not divide the {w.shape[0]} filters of {w}")


def _spatial(op: Op, win: Window, shape: Shape) -> Shape:
    if len(shape) != win.rank:
        raise ShapeError(f"{op.name}: shape must be {win.rank} spatial sizes, got {shape}")
    return as_shape(shape, f"{op.name}: shape")


def _mirror(w: Array) -> Array:
    return np.flip(w, tuple(range(2, w.ndim)))


def _filter_matrix(w: Array, win: Window) -> Array:
    """w [K, C/g, *k] as [g, K/g, C/g * k], ordered for cross-correlation."""
    taps = _mirror(w) if win.flip else w
    return taps.reshape(win.groups, w.shape[0] // win.groups, prod(w.shape[1:]))


def _columns(padded: Array, kernel: Shape, win: Window) -> Array:
    """Padded input [n, C, *] unfolded to [n, g, C/g * k, O]: a copy, k times as large as the input."""
    patches = win.patches(padded, kernel)
    rank = win.rank
    order = (0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))
    count, channels = padded.shape[:2]
    positions = prod(patches.shape[2 : 2 + rank])
    rows = channels // win.groups * prod(kernel)
    return patches.transpose(order).reshape(count, win.groups, rows, positions)


def _chunks(x: Array, kernel: Shape, spatial: Shape) -> Iterator[slice]:
    """Slices of the batch whose unfolded input is within _CHUNK bytes."""
    per_image = max(1, x.shape[1] * prod(kernel) * prod(spatial) * x.itemsize)
    step = max(1, _CHUNK // per_image)
    for start in range(0, x.shape[0], step):
        yield slice(start, min(start + step, x.shape[0]))


def _output(win: Window, x: Shape, w: Shape) -> Shape:
    return (x[0], w[0], *win.output(x[2:], w[2:]))


_PLAIN = Window((1, 1), ((0, 0), (0, 0)), (1, 1))
_CASES: tuple[tuple[Window, Shape, Shape], ...] = (
    (_PLAIN, (2, 3, 7, 6), (4, 3, 3, 2)),
    (replace(_PLAIN, padding=((1, 1), (1, 1))), (2, 16, 5, 5), (16, 16, 3, 3)),
    (replace(_PLAIN, stride=(2, 3), padding=((2, 1), (0, 2))), (1, 3, 9, 8), (5, 3, 4, 3)),
    (replace(_PLAIN, stride=(3, 2)), (2, 2, 8, 7), (3, 2, 1, 1)),  # stride > kernel
    (replace(_PLAIN, dilation=(2, 3), padding=((2, 2), (3, 3))), (2, 2, 6, 7), (3, 2, 3, 2)),
    (replace(_PLAIN, groups=3, padding=((1, 1), (1, 1))), (2, 6, 5, 4), (9, 2, 3, 3)),
    (replace(_PLAIN, groups=5, stride=(2, 2)), (1, 5, 5, 7), (5, 1, 3, 3)),  # depthwise
    (replace(_PLAIN, flip=True, padding=((1, 0), (2, 1))), (2, 3, 5, 5), (2, 3, 2, 3)),
    (_PLAIN, (1, 1, 1, 9), (1, 1, 1, 4)),
    (_PLAIN, (0, 2, 4, 4), (3, 2, 3, 3)),
    (Window((2,), ((1, 3),), (2,), 2), (3, 4, 11), (6, 2, 3)),
    (Window((1,), ((0, 0),), (1,), 1, True), (2, 3, 5), (4, 3, 2)),
    (Window((1, 2, 1), ((1, 1), (0, 1), (0, 0)), (1, 1, 2)), (2, 2, 3, 5, 4), (3, 2, 2, 3, 2)),
)


def _conv(
    rank: int,
    x: Any,
    w: Any,
    bias: Any,
    stride: Sizes,
    padding: Padding,
    dilation: Sizes,
    groups: int,
    flip: bool,
    algorithm: str | None,
) -> Any:
    what = f"conv{rank}d"
    x, w, single = _operands(what, rank, x, w)
    win = window(what, w.shape[2:], stride, padding, dilation, groups, flip=flip)
    with policy(algorithm=algorithm) if algorithm else nullcontext():
        y = call(Conv(win), x, w)
    y = y if bias is None else _add_bias(what, y, bias)
    return y.squeeze(0) if single else y


def _conv_transpose(
    rank: int,
    x: Any,
    w: Any,
    bias: Any,
    stride: Sizes,
    padding: Padding,
    output_padding: Sizes,
    groups: int,
    dilation: Sizes,
    flip: bool,
    algorithm: str | None,
) -> Any:
    what = f"conv_transpose{rank}d"
    x, w, single = _operands(what, rank, x, w)
    kernel = w.shape[2:]
    win = window(what, kernel, stride, padding, dilation, groups, flip=flip)
    extra = per_axis(what, "output_padding", output_padding, rank, 0)
    if any(e >= max(s, d) for e, s, d in zip(extra, win.stride, win.dilation, strict=True)):
        raise ShapeError(
            f"{what}: output_padding {extra} must be smaller than stride {win.stride} or dilation {win.dilation}"
        )
    sizes = tuple(
        (n - 1) * s - sum(pair) + span + e
        for n, s, pair, span, e in zip(
            x.shape[2:], win.stride, win.padding, win.span(kernel), extra, strict=True
        )
    )
    if any(size < 0 for size in sizes):
        raise ShapeError(
            f"{what}: padding {win.padding} leaves nothing of the output of {x.spec} by {w.spec}"
        )
    wide = any(e >= s for e, s in zip(extra, win.stride, strict=True))
    with policy(algorithm=algorithm) if algorithm else nullcontext():
        y = _uncut(x, w, win, sizes) if wide else call(ConvDataGrad(win, sizes), x, w)
    y = y if bias is None else _add_bias(what, y, bias)
    return y.squeeze(0) if single else y


def _uncut(x: Any, w: Any, win: Window, sizes: Shape) -> Any:
    """A transposed convolution whose output exceeds the kernel's reach: without padding, then cropped and padded."""
    rank = win.rank
    bare = replace(win, padding=((0, 0),) * rank)
    spans = zip(x.shape[2:], win.stride, win.span(w.shape[2:]), strict=True)
    whole = tuple((n - 1) * s + span for n, s, span in spans)
    ends = zip(win.padding, whole, sizes, strict=True)
    pairs = [(-lo, size - (n - lo)) for (lo, _), n, size in ends]
    return pad_axes(call(ConvDataGrad(bare, whole), x, w), [(0, 0), (0, 0), *pairs])


def _operands(what: str, rank: int, input: Any, weight: Any) -> tuple[Any, Any, bool]:
    """Input with a batch axis, weight, and whether the input was unbatched. Raises ShapeError."""
    x, w = operand(input, what), operand(weight, what, "weight")
    if x.ndim not in (rank + 1, rank + 2) or w.ndim != rank + 2:
        raise ShapeError(
            f"{what}: input [N, C, *spatial] and filter [K, C/groups, *kernel] must be of rank {rank + 2} "
            f"(the input {rank + 1} without N), got {x.spec} and {w.spec}"
        )
    single = x.ndim == rank + 1
    return (x.unsqueeze(0) if single else x), w, single


def _add_bias(what: str, y: Any, bias: Any) -> Any:
    bias = operand(bias, what, "bias")
    if bias.shape != (y.shape[1],):
        raise ShapeError(f"{what}: bias must be of shape ({y.shape[1]},), got {bias.spec}")
    return y + bias.reshape((1, y.shape[1], *(1,) * (y.ndim - 2)))


@checked
def conv1d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    *,
    flip: bool = False,
    algorithm: str | None = None,
) -> Any:
    """One-dimensional convolution: `conv2d` with one spatial axis."""
    return _conv(1, input, weight, bias, stride, padding, dilation, groups, flip, algorithm)


@checked
def conv2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    *,
    flip: bool = False,
    algorithm: str | None = None,
) -> Any:
    """Two-dimensional convolution, as torch.nn.functional.conv2d.

    input [N, C, H, W], weight [K, C/groups, h, w], bias [K] or None, all of one float dtype.
    padding: "valid", "half", "full", "same", an int, one int or one (lo, hi) pair per axis.
    flip: true convolution, with the filters mirrored, instead of cross-correlation.
    algorithm: how the plan of this call is chosen (see spec.Policy), by default the policy in force.
    Raises ShapeError or DTypeError naming the argument.
    """
    return _conv(2, input, weight, bias, stride, padding, dilation, groups, flip, algorithm)


@checked
def conv3d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    *,
    flip: bool = False,
    algorithm: str | None = None,
) -> Any:
    """Three-dimensional convolution: `conv2d` with three spatial axes."""
    return _conv(3, input, weight, bias, stride, padding, dilation, groups, flip, algorithm)


@checked
def conv_transpose1d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
    *,
    flip: bool = False,
    algorithm: str | None = None,
) -> Any:
    """One-dimensional transposed convolution: `conv_transpose2d` with one spatial axis."""
    return _conv_transpose(
        1, input, weight, bias, stride, padding, output_padding, groups, dilation, flip, algorithm
    )


@checked
def conv_transpose2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
    *,
    flip: bool = False,
    algorithm: str | None = None,
) -> Any:
    """Two-dimensional transposed convolution, as torch.nn.functional.conv_transpose2d.

    input [N, C, H, W], weight [C, K/groups, h, w], bias [K] or None. It is the data gradient of the
    convolution with the same window: the output has (H - 1) * stride - lo - hi + reach + output_padding rows.
    output_padding (smaller than stride or dilation) selects among the possible input sizes of that convolution.
    Raises ShapeError or DTypeError naming the argument.
    """
    return _conv_transpose(
        2, input, weight, bias, stride, padding, output_padding, groups, dilation, flip, algorithm
    )


@checked
def conv_transpose3d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
    *,
    flip: bool = False,
    algorithm: str | None = None,
) -> Any:
    """Three-dimensional transposed convolution: `conv_transpose2d` with three spatial axes."""
    return _conv_transpose(
        3, input, weight, bias, stride, padding, output_padding, groups, dilation, flip, algorithm
    )
