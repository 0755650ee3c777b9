"""Pooling."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from lamina import ops
from lamina.convert.onnx.conv import spatial_rank
from lamina.convert.onnx.node import OnnxNode, as_tensor, converts
from lamina.convert.onnx.window import OnnxWindow, window
from lamina.spec import int64

_MAX_POOL: dict[int, Callable[..., Any]] = {3: ops.max_pool1d, 4: ops.max_pool2d, 5: ops.max_pool3d}
_AVG_POOL: dict[int, Callable[..., Any]] = {3: ops.avg_pool1d, 4: ops.avg_pool2d, 5: ops.avg_pool3d}
#: The maximum size of a kernel that is expanded to slices, one per position.
_MOST_PLACES = 4096


def _window(node: OnnxNode, x: Any) -> OnnxWindow:
    """The node's window, padded at the end with ceil_mode."""
    win = window(node, tuple(node.needed("kernel_shape")), x.shape[2:])
    return win.rounded_up(x.shape[2:]) if node.get("ceil_mode", 0) else win


def _patches(node: OnnxNode, x: Any, win: OnnxWindow, fill: Any) -> Any:
    """[N, C, *positions, prod(kernel)]: the elements under the kernel at each position, with the padding filled."""
    if prod(win.kernel) > _MOST_PLACES:
        raise node.error(
            f"a kernel of {win.kernel} that no pooling op takes has more than {_MOST_PLACES} places"
        )
    padded = ops.pad(x, [side for pair in win.pairs[::-1] for side in pair], "constant", fill)
    positions = [
        (n - reach) // s + 1 for n, reach, s in zip(padded.shape[2:], win.span, win.stride, strict=True)
    ]
    found = []
    for tap in np.ndindex(*win.kernel):
        places = (
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, win.dilation, positions, win.stride, strict=True)
        )
        found.append(padded[(slice(None), slice(None), *places)])
    return ops.stack(found, -1)


def _is_pooling(x: Any, win: OnnxWindow) -> bool:
    """Whether the pooling ops support this window: no position lies in padding alone, which they refuse."""
    sides = zip(win.lo, win.hi, win.span, x.shape[2:], strict=True)
    fits = all(max(lo, hi) < reach <= n + lo + hi for lo, hi, reach, n in sides)
    return x.ndim in _MAX_POOL and x.dtype.is_float and fits and bool(prod(x.shape))


@converts("MaxPool")
def max_pool(node: OnnxNode) -> Any:
    """(the maximum under the kernel, its row-major index in the whole input [N, C, …], int64)."""
    x = node.input(0)
    win, rank = _window(node, x), spatial_rank(node, x)
    if not node.asks(1) and _is_pooling(x, win):
        return _MAX_POOL[x.ndim](x, win.kernel, win.stride, win.pairs, win.dilation)
    low = np.iinfo(x.dtype.numpy).min if x.dtype.kind in "iu" else -np.inf
    patches = _patches(node, x, win, low)
    if not node.asks(1):
        return ops.amax(patches, -1)
    column = bool(node.get("storage_order", 0))
    places = np.arange(prod(x.shape[2:])).reshape(x.shape[2:], order="F" if column else "C")
    start = np.arange(prod(x.shape[:2])).reshape(*x.shape[:2], *(1,) * rank) * places.size
    whole = as_tensor(np.broadcast_to(places, x.shape) + start)
    values, chosen = ops.max(patches, -1, True)
    found = ops.gather(_patches(node, whole, win, 0), patches.ndim - 1, chosen)
    return values.reshape(values.shape[:-1]), found.reshape(found.shape[:-1])


@converts("AveragePool")
def average_pool(node: OnnxNode) -> Any:
    """The mean under the kernel, with count_include_pad including the padding's zeros; never what ceil_mode adds."""
    x, rank = node.input(0), spatial_rank(node, node.input(0))
    win = _window(node, x)
    whole = window(node, win.kernel, x.shape[2:])
    padded = bool(node.get("count_include_pad", 0))
    plain = set(win.dilation) == {1} and (not padded or win == whole)
    if plain and _is_pooling(x, win):
        return _AVG_POOL[x.ndim](x, win.kernel, win.stride, win.pairs, False, padded)
    ones = np.ones((1, 1, *x.shape[2:]))
    if padded:
        ones = np.pad(ones, [(0, 0), (0, 0), *whole.pairs], constant_values=1)
        rest = [(0, b - a) for (_, a), (_, b) in zip(whole.pairs, win.pairs, strict=True)]
    else:
        rest = win.pairs
    counted = np.pad(ones, [(0, 0), (0, 0), *rest])
    count = ops.sum(_patches(node, as_tensor(counted, x.dtype), _unpadded(win), 0.0), -1)
    return ops.div(ops.sum(_patches(node, x, win, 0.0), -1), count) if rank else x


def _unpadded(win: OnnxWindow) -> OnnxWindow:
    zeros = (0,) * len(win.kernel)
    return OnnxWindow(win.kernel, win.stride, win.dilation, zeros, zeros)


@converts("LpPool")
def lp_pool(node: OnnxNode) -> Any:
    """(sum |x|^p)^(1/p) under the kernel."""
    x, p = node.input(0), node.get("p", 2)
    total = ops.sum(ops.pow(ops.abs(_patches(node, x, _window(node, x), 0.0)), float(p)), -1)
    return ops.pow(total, 1.0 / p)


@converts("GlobalAveragePool")
def global_average_pool(node: OnnxNode) -> Any:
    """The mean over all spatial axes, which are kept with size 1."""
    x = node.input(0)
    return ops.mean(x, tuple(range(2, x.ndim)), True)


@converts("GlobalMaxPool")
def global_max_pool(node: OnnxNode) -> Any:
    """The maximum over all spatial axes, which are kept with size 1."""
    x = node.input(0)
    return ops.amax(x, tuple(range(2, x.ndim)), True)


@converts("GlobalLpPool")
def global_lp_pool(node: OnnxNode) -> Any:
    """(sum |x|^p)^(1/p) over all spatial axes, which are kept with size 1."""
    x, p = node.input(0), node.get("p", 2)
    return ops.pow(ops.sum(ops.pow(ops.abs(x), float(p)), tuple(range(2, x.ndim)), True), 1.0 / p)


@converts("MaxUnpool", known=(2,))
def max_unpool(node: OnnxNode) -> Any:
    """Each element at its row-major index in an output of zeros [N, C, …]."""
    x, index, asked = node.input(0), node.input(1), node.integers(2)
    rank = x.ndim - 2
    kernel, stride = node.needed("kernel_shape"), node.get("strides", (1,) * rank)
    pads = node.get("pads", (0,) * 2 * rank)
    inferred = [
        (n - 1) * s + k - a - b
        for n, s, k, a, b in zip(x.shape[2:], stride, kernel, pads[:rank], pads[rank:], strict=True)
    ]
    # The indices are those of the tensor that was pooled, whose sizes are the inferred ones.
    whole = (*x.shape[:2], *inferred)
    zeros = as_tensor(np.zeros(prod(whole)), x.dtype)
    found = ops.scatter(zeros, 0, ops.cast(index, int64).reshape((-1,)), x.reshape((-1,))).reshape(whole)
    if asked is None or tuple(asked) == whole:
        return found
    more = [n - m for n, m in zip(asked[2:], inferred, strict=True)]
    return ops.pad(found, [side for n in more[::-1] for side in (0, n)])


@converts("RoiAlign")
def roi_align(node: OnnxNode) -> Any:
    """Regions of interest resampled to one size, by averages (or maxima) of bilinear samples."""
    x, rois, batch = node.input(0), node.input(1), node.input(2)
    half = node.get(
        "coordinate_transformation_mode", "half_pixel" if node.opset >= 16 else "output_half_pixel"
    )
    if node.get("mode", "avg") != "avg":
        raise node.error("mode must be avg: maxima of samples are not built")
    boxes = ops.cat([ops.cast(batch, rois.dtype).unsqueeze(1), rois], 1)
    size = (node.get("output_height", 1), node.get("output_width", 1))
    samples = node.get("sampling_ratio", 0)
    return ops.roi_align(x, boxes, size, node.get("spatial_scale", 1.0), samples or -1, half == "half_pixel")
