"""Sliding windows as columns (im2col), and columns summed into an image: unfold and fold."""

from __future__ import annotations

from math import prod
from typing import Any

from lamina.ops.arguments import Sizes, checked
from lamina.ops.core import operand
from lamina.ops.primitives.axis_map import AxisMap
from lamina.ops.primitives.map_axes import mapped
from lamina.ops.primitives.window import Padding, Window, per_axis, window
from lamina.spec import Shape, ShapeError


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
    rank = x.ndim - 2
    kernel = per_axis("unfold", "kernel_size", kernel_size, rank, 1)
    win = window("unfold", kernel, stride, padding, dilation)
    spatial = win.output(x.shape[2:], kernel, "unfold")
    y = mapped(x, [None, None, *_patches(win, kernel, x.shape[2:], spatial)])
    apart = y.reshape((*x.shape[:2], *(size for pair in zip(kernel, spatial, strict=True) for size in pair)))
    order = (0, 1, *range(2, 2 + 2 * rank, 2), *range(3, 3 + 2 * rank, 2))
    return apart.permute(order).reshape((x.shape[0], x.shape[1] * prod(kernel), prod(spatial)))


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
    channels = x.shape[1] // prod(kernel)
    apart = x.reshape((x.shape[0], channels, *kernel, *spatial))
    order = (0, 1, *(axis for a in range(rank) for axis in (2 + a, 2 + rank + a)))
    sizes = tuple(k * n for k, n in zip(kernel, spatial, strict=True))
    joined = apart.permute(order).reshape((x.shape[0], channels, *sizes))
    back = [m.adjoint for m in _patches(win, kernel, size, spatial)]
    return mapped(joined, [None, None, *back])


def _patches(win: Window, kernel: Shape, sizes: Shape, spatial: Shape) -> list[AxisMap]:
    """One map per spatial axis: to the kernel's elements at all positions, tap by tap."""
    axes = zip(sizes, kernel, spatial, win.stride, win.padding, win.dilation, strict=True)
    return [AxisMap("patches", n, k * out, (k, s, lo, d)) for n, k, out, s, (lo, _), d in axes]
