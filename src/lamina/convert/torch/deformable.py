"""Deformable convolutions of torchvision: filters whose taps read an image at positions of their own."""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina import ops
from lamina.convert.torch.node import TorchCall, converts
from lamina.spec import ShapeError


@converts("deform_conv2d")
def deform_conv2d(call: TorchCall) -> Any:
    """torchvision's: images [N, C, H, W] -> [N, M, H', W']; https://arxiv.org/abs/1811.11168 with a mask."""
    strides, pads, dilations = (
        (call[f"{name}_h"], call[f"{name}_w"]) for name in ("stride", "pad", "dilation")
    )
    x, weight, offset = call["input"], call["weight"], call["offset"]
    taps, places = weight.shape[2:], offset.shape[2:]
    parts, count = call["offset_groups"], taps[0] * taps[1]
    if offset.shape[1] != 2 * parts * count:
        raise ShapeError(
            f"deform_conv2d: offset {offset.spec} must have 2 channels for each of {parts} groups and {count} taps"
        )
    # [N, groups, taps, H', W', (y, x)]: the element that each tap reads, by default its place in the filter.
    moved = offset.reshape((x.shape[0], parts, count, 2, *places)).permute((0, 1, 2, 4, 5, 3))
    at = moved + ops.cast(ops.operand(_usual(taps, places, strides, pads, dilations)), offset.dtype)
    mask = call["mask"].reshape((x.shape[0], parts, 1, count, *places)) if call["use_mask"] else None
    columns = _columns(x, at, mask)
    groups = call["groups"]
    filters = weight.reshape((groups, weight.shape[0] // groups, -1))
    made = filters @ columns.reshape((x.shape[0], groups, -1, places[0] * places[1]))
    return made.reshape((x.shape[0], weight.shape[0], *places)) + call["bias"].reshape((-1, 1, 1))


def _usual(taps: Any, places: Any, strides: Any, pads: Any, dilations: Any) -> np.ndarray[Any, Any]:
    """(row, column) [taps, H', W', 2] of the elements that a convolution reads."""
    along = [
        np.arange(n)[:, None] * dilation + np.arange(size) * stride - pad
        for n, size, stride, pad, dilation in zip(taps, places, strides, pads, dilations, strict=True)
    ]
    shape = (*taps, *places)
    rows = np.broadcast_to(along[0][:, None, :, None], shape)
    columns = np.broadcast_to(along[1][None, :, None, :], shape)
    return np.stack([rows, columns], -1).reshape(-1, *places, 2).astype(np.float32)


def _columns(x: Any, at: Any, mask: Any) -> Any:
    """What all taps read, interpolated, zero outside the image, times the mask: [N, C, taps, H', W']."""
    (n, channels, height, width), (parts, count, rows, columns) = x.shape, at.shape[1:5]
    scale = ops.cast(ops.operand(np.array([2 / width, 2 / height])), at.dtype)
    shift = ops.cast(ops.operand(np.array([1 / width - 1, 1 / height - 1])), at.dtype)
    grid = at[..., [1, 0]] * scale + shift  # from -1 to 1 over the outer edges of the image, x before y
    images = x.reshape((n * parts, channels // parts, height, width))
    found = ops.grid_sample(images, grid.reshape((n * parts, count * rows, columns, 2)), align_corners=False)
    found = found.reshape((n, parts, channels // parts, count, rows, columns))
    found = found if mask is None else found * mask
    return found.reshape((n, channels, count, rows, columns))
