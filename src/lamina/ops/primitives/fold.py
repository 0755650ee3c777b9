"""Sliding windows as columns (im2col), and columns summed into an image: unfold and fold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from lamina.ops.arguments import Sizes, checked
from lamina.ops.core import Array, BatchAxes, Op, Sample, call, first_axis, operand
from lamina.ops.primitives.axis_map import AxisMap
from lamina.ops.primitives.map_axes import mapped
from lamina.ops.primitives.window import Padding, Window, per_axis, window
from lamina.spec import DTYPES, FLOATS, Shape, ShapeError, Spec


@checked
def unfold(
    input: Any,
    kernel_size: Sizes,
    dilation: Sizes = 1,
    padding: Padding = 0,
    stride: Sizes = 1,
) -> Any:
    """im2col: input [N, C, H, W] to columns [N, C * prod(kernel), positions], as torch.nn.functional.unfold.

    Also for a single image [C, H, W], and beyond torch for volumes [N, C, D, H, W]. Its gradient is `fold`; `conv2d`
    does not use it. Raises ShapeError, DTypeError.
    """
    x = operand(input, "unfold")
    if x.ndim == 3:
        return unfold(x.unsqueeze(0), kernel_size, dilation, padding, stride).squeeze(0)
    if x.ndim not in (4, 5):
        raise ShapeError(f"unfold: input must be [N, C, H, W], [C, H, W] or [N, C, D, H, W], got {x.spec}")
    kernel = per_axis("unfold", "kernel_size", kernel_size, x.ndim - 2, 1)
    win = window("unfold", kernel, stride, padding, dilation)
    win.output(x.shape[2:], kernel, "unfold")
    return call(Im2col(kernel, win), x)


@checked
def fold(
    input: Any,
    output_size: Sizes,
    kernel_size: Sizes,
    dilation: Sizes = 1,
    padding: Padding = 0,
    stride: Sizes = 1,
) -> Any:
    """col2im: columns [N, C * prod(kernel), positions] summed into [N, C, *output_size], as torch.nn.functional.fold.

    output_size: of an image (one int for both axes) or, beyond torch, of a volume. Also for the columns of a single
    image, [C * prod(kernel), positions]. Sums are in a fixed order; the gradient is `unfold`. Raises ShapeError or
    DTypeError.
    """
    x = operand(input, "fold")
    if x.ndim == 2:
        return fold(x.unsqueeze(0), output_size, kernel_size, dilation, padding, stride).squeeze(0)
    rank = 2 if isinstance(output_size, int) else max(2, len(output_size))
    size = per_axis("fold", "output_size", output_size, rank, 1)
    kernel = per_axis("fold", "kernel_size", kernel_size, rank, 1)
    win = window("fold", kernel, stride, padding, dilation)
    spatial = win.output(size, kernel, "fold")
    if x.ndim != 3 or x.shape[1] % prod(kernel) or x.shape[2] != prod(spatial):
        raise ShapeError(
            f"fold: a kernel of {kernel} on {size} needs columns [N, C * {prod(kernel)}, {prod(spatial)}], "
            f"got {x.spec}"
        )
    return call(Col2im(size, kernel, win), x)


@dataclass(frozen=True)
class Im2col(Op):
    """x [N, C, *spatial] -> columns [N, C * prod(kernel), positions]: what the kernel covers, zeros outside."""

    kernel: Shape
    window: Window
    dtypes = DTYPES

    def infer(self, x: Spec) -> tuple[Spec]:
        self.check_float(x)
        _check(self, self.window, self.kernel)
        if x.ndim != self.window.rank + 2:
            raise ShapeError(f"{self.name}: {self.window.rank} spatial axes are N, C and these, got {x}")
        spatial = self.window.output(x.shape[2:], self.kernel, self.name)
        return (self.result((x.shape[0], x.shape[1] * prod(self.kernel), prod(spatial)), x.dtype),)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return (call(Col2im(inputs[0].shape[2:], self.kernel, self.window), grads[0]),)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        return first_axis(axes)

    def composed(self, x: Any) -> Sequence[Any]:
        """A gather along each axis, tap by tap, and a transposition."""
        sizes, rank = x.shape[2:], self.window.rank
        spatial = self.window.output(sizes, self.kernel)
        y = mapped(x, [None, None, *patch_maps(self.window, self.kernel, sizes, spatial)])
        pairs = (size for pair in zip(self.kernel, spatial, strict=True) for size in pair)
        order = (0, 1, *range(2, 2 + 2 * rank, 2), *range(3, 3 + 2 * rank, 2))
        columns = (x.shape[0], x.shape[1] * prod(self.kernel), prod(spatial))
        return (y.reshape((*x.shape[:2], *pairs)).permute(order).reshape(columns),)

    def reference(self, x: Array) -> tuple[Array]:
        (n, c, *sizes), rank = x.shape, self.window.rank
        spatial = self.window.output(tuple(sizes), self.kernel)
        windows = self.window.patches(self.window.pad(x), self.kernel)  # [N, C, *spatial, *kernel]
        order = (0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))
        columns = windows.transpose(order).reshape((n, c * prod(self.kernel), prod(spatial)))
        return (np.ascontiguousarray(columns),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape, kernel, win in _CASES:
            yield Sample.of(cls(kernel, win), shape, dtypes=FLOATS)
        yield Sample.of(cls((2, 2), _CASES[0][2]), (2, 3, 4, 5), dtypes=DTYPES)


@dataclass(frozen=True)
class Col2im(Op):
    """Columns [N, C * prod(kernel), positions] -> y [N, C, *size]: the transpose of `Im2col`, summed tap by tap."""

    size: Shape
    kernel: Shape
    window: Window

    def infer(self, x: Spec) -> tuple[Spec]:
        self.check_float(x)
        _check(self, self.window, self.kernel)
        if len(self.size) != self.window.rank:
            raise ShapeError(f"{self.name}: size {self.size} must name {self.window.rank} axes")
        taps, positions = prod(self.kernel), prod(self.window.output(self.size, self.kernel, self.name))
        if x.ndim != 3 or x.shape[1] % taps or x.shape[2] != positions:
            raise ShapeError(f"{self.name}: columns must be [N, C * {taps}, {positions}], got {x}")
        return (self.result((x.shape[0], x.shape[1] // taps, *self.size), x.dtype),)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return (call(Im2col(self.kernel, self.window), grads[0]),)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        return first_axis(axes)

    def composed(self, x: Any) -> Sequence[Any]:
        """A transposition, and a sum along each axis."""
        rank, channels = self.window.rank, x.shape[1] // prod(self.kernel)
        spatial = self.window.output(self.size, self.kernel)
        order = (0, 1, *(axis for a in range(rank) for axis in (2 + a, 2 + rank + a)))
        apart = x.reshape((x.shape[0], channels, *self.kernel, *spatial)).permute(order)
        sizes = tuple(k * n for k, n in zip(self.kernel, spatial, strict=True))
        back = [m.adjoint for m in patch_maps(self.window, self.kernel, self.size, spatial)]
        return (mapped(apart.reshape((x.shape[0], channels, *sizes)), [None, None, *back]),)

    def reference(self, x: Array) -> tuple[Array]:
        channels = x.shape[1] // prod(self.kernel)
        spatial = self.window.output(self.size, self.kernel)
        columns = x.reshape((x.shape[0], channels, prod(self.kernel), *spatial))
        padded = np.zeros((x.shape[0], channels, *self.window.padded(self.size)), x.dtype)
        for tap, places in enumerate(self.window.taps(self.kernel, spatial)):
            padded[places] += columns[:, :, tap]
        return (np.ascontiguousarray(self.window.crop(padded)),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for (n, c, *sizes), kernel, win in _CASES:
            spatial = win.output(tuple(sizes), kernel)
            yield Sample.of(cls(tuple(sizes), kernel, win), (n, c * prod(kernel), prod(spatial)))


_CASES: tuple[tuple[Shape, Shape, Window], ...] = (
    ((2, 3, 5, 6), (2, 2), Window((1, 1), ((0, 0), (0, 0)), (1, 1))),
    ((2, 3, 5, 8), (3, 3), Window((1, 1), ((1, 1), (1, 1)), (1, 1))),
    ((1, 2, 7, 8), (3, 2), Window((2, 3), ((1, 0), (2, 1)), (1, 2))),
    ((2, 1, 9), (4,), Window((3,), ((1, 1),), (2,))),
    ((1, 2, 3, 4, 5), (2, 1, 3), Window((1, 2, 1), ((0, 1), (0, 0), (1, 1)), (1, 1, 1))),
    ((0, 2, 4, 4), (2, 2), Window((1, 1), ((0, 0), (0, 0)), (1, 1))),
)  # fmt: skip


def _check(op: Op, win: Window, kernel: Shape) -> None:
    """Raise ShapeError unless the kernel has the window's axes, and the window no groups and no flip."""
    if len(kernel) != win.rank or win.groups != 1 or win.flip:
        raise ShapeError(f"{op.name}: kernel {kernel} and {win} must name the same axes; no groups, no flip")


def patch_maps(win: Window, kernel: Shape, sizes: Shape, spatial: Shape) -> list[AxisMap]:
    """One map per spatial axis: to the kernel's elements at all positions, tap by tap."""
    axes = zip(sizes, kernel, spatial, win.stride, win.padding, win.dilation, strict=True)
    return [AxisMap("patches", n, k * out, (k, s, lo, d)) for n, k, out, s, (lo, _), d in axes]
