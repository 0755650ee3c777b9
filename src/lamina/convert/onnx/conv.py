"""Convolutions."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from lamina import ops
from lamina.convert.onnx.integer import (
    Dequantized,
    centred_numbers,
    convolved_integers,
    eight_bits,
    exact,
    exact_parts,
    held,
    one_number,
    per_output,
    quantized_to,
    weights,
)
from lamina.convert.onnx.node import OnnxNode, as_tensor, converts
from lamina.convert.onnx.quantize import centred, requantized, rounded
from lamina.convert.onnx.window import window
from lamina.spec import float32, float64, int32

CONV: dict[int, Callable[..., Any]] = {1: ops.conv1d, 2: ops.conv2d, 3: ops.conv3d}
TRANSPOSED: dict[int, Callable[..., Any]] = {
    1: ops.conv_transpose1d, 2: ops.conv_transpose2d, 3: ops.conv_transpose3d
}  # fmt: skip


def spatial_rank(node: OnnxNode, x: Any) -> int:
    """The number of spatial axes, 1 to 3. Raises OnnxError."""
    if not 3 <= x.ndim <= 5:
        raise node.error(f"needs one to three spatial axes, got {x.spec}")
    return int(x.ndim - 2)


def convolved(node: OnnxNode, x: Any, w: Any, bias: Any = None) -> Any:
    """The convolution with the node's window and groups."""
    win = window(node, w.shape[2:], x.shape[2:])
    return CONV[spatial_rank(node, x)](x, w, bias, win.stride, win.pairs, win.dilation, node.get("group", 1))


@converts("Conv")
def conv(node: OnnxNode) -> Any:
    """Cross-correlation with groups, strides, dilations and padding."""
    x, w, bias = node.input(0), node.input(1), node.optional(2)
    found = _of_integers(node)
    if found is None:
        return convolved(node, x, w, bias)
    return found if bias is None else ops.add(found, bias.reshape((-1,) + (1,) * (x.ndim - 2)))


def _of_integers(node: OnnxNode) -> Any:
    """The convolution of inputs produced by DequantizeLinear, by kernels for 8-bit integers; None for others."""
    left, right = Dequantized.of(node, 0), Dequantized.of(node, 1)
    if node.mode.training or left is None or right is None or not right.varies_along(0):
        return None
    return _real(node, left.values, left.scale, left.zero, right.values, right.scale, right.zero)


def _real(node: OnnxNode, x: Any, scale: Any, zero: Any, w: Any, w_scale: Any, w_zero: Any) -> Any:
    """The convolution of dequantized tensors, float32; None if 8-bit kernels do not support it."""
    if not eight_bits(x) or not one_number(scale, zero) or 0 in x.shape:
        return None
    spatial_rank(node, x)
    known, each = weights(w, _per_filter(w_zero, w)), per_output(w_scale, w.shape[0])
    if known is None or each is None:
        return None
    each = ops.mul(each, ops.cast(scale, float32).reshape(()))
    return convolved_integers(node, x, zero, known, each)


@converts("ConvTranspose")
def conv_transpose(node: OnnxNode) -> Any:
    """The gradient of a convolution with respect to its input. Pads crop each side of the full result."""
    x, w = node.input(0), node.input(1)
    rank = spatial_rank(node, x)
    more = tuple(node.get("output_padding", (0,) * rank))
    stride, dilation = node.get("strides", (1,) * rank), node.get("dilations", (1,) * rank)
    whole = tuple(
        s * (n - 1) + d * (k - 1) + 1
        for n, k, s, d in zip(x.shape[2:], w.shape[2:], stride, dilation, strict=True)
    )
    lo, sizes = _cut(node, x.shape[2:], whole, stride, more)
    found = TRANSPOSED[rank](x, w, None, stride, 0, 0, node.get("group", 1), dilation)
    pads = [(-a, a + n - t) for a, n, t in zip(lo, sizes, whole, strict=True)]
    found = ops.pad(found, [side for pair in pads[::-1] for side in pair])
    bias = node.optional(2)
    return found if bias is None else ops.add(found, bias.reshape((-1,) + (1,) * rank))


def _cut(
    node: OnnxNode,
    spatial: tuple[int, ...],
    whole: tuple[int, ...],
    stride: tuple[int, ...],
    more: tuple[int, ...],
) -> tuple[list[int], list[int]]:
    """(the front crop, the remaining size) of each spatial axis."""
    rank, mode = len(spatial), node.get("auto_pad", "NOTSET")
    sizes = node.get("output_shape")
    if sizes is None and mode.startswith("SAME"):
        sizes = [n * s for n, s in zip(spatial, stride, strict=True)]
    if sizes is not None:
        total = [t + m - n for t, m, n in zip(whole, more, sizes[-rank:], strict=True)]
        odd = (
            mode != "SAME_UPPER"
        )  # the side of the odd element that is cropped: the front except for this mode
        lo = [(max(0, t) + odd) // 2 for t in total]
        return lo, list(sizes[-rank:])
    pads = node.get("pads", (0,) * 2 * rank) if mode == "NOTSET" else (0,) * 2 * rank
    kept = [t + m - a - b for t, m, a, b in zip(whole, more, pads[:rank], pads[rank:], strict=True)]
    return list(pads[:rank]), kept


def _exact(node: OnnxNode, x: Any, zero: Any, w: Any, w_zero: Any) -> Any:
    """The convolution of integers minus their zero points, int32.

    In float32 if w is known and 8-bit, split into parts of the channels that are each exact; else in float64, which
    is exact below 2^53.
    """
    x, values = centred(x, zero, -1), centred_numbers(w, w_zero)
    parts = [] if values is None else exact_parts(values)
    if values is None or not parts or (len(parts) > 1 and node.get("group", 1) > 1):
        found = convolved(node, ops.cast(x, float64), ops.cast(centred(w, w_zero, -1), float64))
        return ops.cast(found, int32)
    wide, filters = ops.cast(x, float32), values.astype(np.float32)
    found = None
    for lo, hi in parts:
        part = convolved(node, wide[:, lo:hi] if len(parts) > 1 else wide, held(filters[:, lo:hi]))
        part = ops.cast(part, int32)
        found = part if found is None else ops.add(found, part)
    return found


@converts("ConvInteger")
def conv_integer(node: OnnxNode) -> Any:
    """The convolution of integers minus their zero points, int32."""
    x, w, zero, w_zero = (
        node.input(0),
        node.input(1),
        node.optional(2),
        _per_filter(node.optional(3), node.input(1)),
    )
    known = weights(w, w_zero) if eight_bits(x) and one_number(zero) and 0 not in x.shape else None
    if known is None or not exact(known):
        return _exact(node, x, zero, w, w_zero)
    spatial_rank(node, x)
    ones = held(np.ones(len(known), np.float32))
    return ops.cast(convolved_integers(node, x, zero, known, ones), int32)


@converts("QLinearConv", statistics=(1, 4, 6))
def qlinear_conv(node: OnnxNode) -> Any:
    """The convolution of quantized tensors, quantized again."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (node.input(i) for i in range(8))
    bias, along = node.optional(8), (-1,) + (1,) * (x.ndim - 2)
    real = _real(node, x, x_scale, x_zero, w, w_scale, w_zero)
    if real is not None and one_number(y_scale, y_zero):
        if bias is not None:
            each = ops.mul(per_output(w_scale, w.shape[0]), x_scale)
            real = ops.add(real, ops.mul(ops.cast(bias, float32), each).reshape(along))
        found = quantized_to(real, y_scale, y_zero, y_zero.dtype)
        return rounded(ops.div(real, y_scale), y_zero, y_zero.dtype) if found is None else found
    total = _exact(node, x, x_zero, w, _per_filter(w_zero, w))
    total = total if bias is None else ops.add(total, bias.reshape(along))
    scale = ops.mul(x_scale, w_scale.reshape(along) if w_scale.ndim else w_scale)
    return requantized(total, scale, y_scale, y_zero)


def _per_filter(zero: Any, w: Any) -> Any:
    """A zero point for each filter, reshaped to broadcast with the filters."""
    return zero.reshape((-1,) + (1,) * (w.ndim - 1)) if zero is not None and zero.ndim else zero


@converts("CausalConvWithState")
def causal_conv(node: OnnxNode) -> Any:
    """(a causal depthwise convolution, the last k - 1 steps as the state of the next call)."""
    x, w, bias, past = node.input(0), node.input(1), node.optional(2), node.optional(3)
    keep = w.shape[2] - 1
    if past is None:
        past = as_tensor(np.zeros((*x.shape[:2], keep)), x.dtype)
    seen = ops.cat([past, x], 2)
    found = ops.conv1d(seen, w, bias, groups=x.shape[1])
    activation = node.get("activation", "none")
    if activation not in ("none", "silu", "swish"):
        raise node.error(f"activation must be none, silu or swish, got {activation!r}")
    return found if activation == "none" else ops.silu(found), seen[:, :, seen.shape[2] - keep :]


@converts("Col2Im", known=(1, 2))
def col2im(node: OnnxNode) -> Any:
    """Blocks [N, C prod(block), L] summed where they overlap, as an image of one to three spatial axes (col2im).

    The gradient of a convolution with respect to its input, with one-hot filters.
    """
    x, image, block = node.input(0), node.integers(1) or (), node.integers(2) or ()
    rank = len(image)
    win = window(node, tuple(block), tuple(image))
    channels = x.shape[1] // prod(block)
    places = tuple(
        (n + a + b - reach) // s + 1
        for n, (a, b), reach, s in zip(image, win.pairs, win.span, win.stride, strict=True)
    )
    filters = as_tensor(np.eye(prod(block)).reshape(prod(block), 1, *block), x.dtype)
    columns = x.reshape((x.shape[0] * channels, prod(block), *places))
    whole = TRANSPOSED[rank](columns, filters, None, win.stride, 0, 0, 1, win.dilation)
    pads = [(-a, a + n - t) for (a, _), n, t in zip(win.pairs, image, whole.shape[2:], strict=True)]
    found = ops.pad(whole, [side for pair in pads[::-1] for side in pair])
    return found.reshape((x.shape[0], channels, *image))


@converts("DeformConv")
def deform_conv(node: OnnxNode) -> Any:
    """A deformable convolution (2-d), whose taps are at individual positions, read by bilinear interpolation.

    offset: [N, 2 G kh kw, H', W'], the displacement of each tap (y, x); mask: [N, G kh kw, H', W'], its factor.
    """
    x, w, offset, bias, mask = (node.optional(i) for i in range(5))
    if x.ndim != 4:
        raise node.error(f"needs two spatial axes, got {x.spec}")
    groups, (n, c, height, width) = node.get("offset_group", 1), x.shape
    win, taps = window(node, w.shape[2:], x.shape[2:]), prod(w.shape[2:])
    out_h, out_w = offset.shape[2:]
    base = _taps(win, (out_h, out_w))  # [taps, 2, H', W']
    moved = ops.add(offset.reshape((n * groups, taps, 2, out_h, out_w)), as_tensor(base, x.dtype))
    scale = np.array([height, width]).reshape(1, 1, 2, 1, 1)
    grid = ops.sub(ops.div(ops.add(ops.mul(moved, 2.0), 1.0), as_tensor(scale, x.dtype)), 1.0)
    grid = ops.flip(ops.permute(grid, (0, 1, 3, 4, 2)), -1).reshape((n * groups, taps * out_h, out_w, 2))
    parts = x.reshape((n * groups, c // groups, height, width))
    read = ops.grid_sample(parts, grid, "bilinear", "zeros", False)
    read = read.reshape((n, groups, c // groups, taps, out_h, out_w))
    if mask is not None:
        read = ops.mul(read, mask.reshape((n, groups, 1, taps, out_h, out_w)))
    split = node.get("group", 1)
    read = read.reshape((n, split, c // split * taps, out_h * out_w))
    filters = w.reshape((1, split, w.shape[0] // split, -1))
    found = ops.matmul(filters, read).reshape((n, w.shape[0], out_h, out_w))
    return found if bias is None else ops.add(found, bias.reshape((-1, 1, 1)))


def _taps(win: Any, output: tuple[int, int]) -> np.ndarray[Any, Any]:
    """The position of each tap without an offset: [kh kw, 2, H', W']."""
    axes = [
        np.arange(k)[:, None] * d - lo + np.arange(n)[None] * s
        for k, d, lo, n, s in zip(win.kernel, win.dilation, win.lo, output, win.stride, strict=True)
    ]
    rows = np.broadcast_to(axes[0][:, None, :, None], (*win.kernel, *output))
    columns = np.broadcast_to(axes[1][None, :, None, :], (*win.kernel, *output))
    return np.stack([rows, columns], 2).reshape(-1, 2, *output)
