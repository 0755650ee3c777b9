"""Convolutions, transposed convolutions, and windows: maxima and averages."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch.nn import functional

from lamina.convert.torch.functions.step import TorchStep, torch_dtype, writes
from lamina.ops.primitives.conv import Conv, ConvDataGrad
from lamina.ops.primitives.pool import AvgPool, MaxPool, index_dtype
from lamina.ops.primitives.quantize import QuantizedConv, QuantizedMatmul
from lamina.ops.primitives.region_pool import RegionMax, adaptive_bounds
from lamina.ops.primitives.spectral import ShortTimeSpectra
from lamina.ops.primitives.window import Window
from lamina.spec import Shape


def _of_rank(name: str, rank: int) -> Any:
    return getattr(functional, f"{name}{rank}d")


def _padded(x: Any, win: Window, value: float = 0.0) -> Any:
    """x with the window's padding."""
    sides = [side for pair in reversed(win.padding) for side in pair]
    return functional.pad(x, sides, value=value) if any(sides) else x


def _filters(win: Window, w: Any) -> Any:
    """The filters, flipped if the window says so."""
    return torch.flip(w, list(range(2, 2 + win.rank))) if win.flip else w


def _convolved(win: Window, x: Any, w: Any) -> Any:
    even = all(lo == hi for lo, hi in win.padding)
    x, pads = (x, [lo for lo, _ in win.padding]) if even else (_padded(x, win), 0)
    return _of_rank("conv", win.rank)(
        x, _filters(win, w), None, win.stride, pads, win.dilation, groups=win.groups
    )


@writes(Conv)
def conv(step: TorchStep, x: Any, w: Any) -> Any:
    """F.conv2d and its variants; uneven padding is applied before."""
    return _convolved(step.op.window, x, w)


@writes(ConvDataGrad)
def conv_transpose(step: TorchStep, g: Any, w: Any) -> Any:
    """F.conv_transpose2d and its variants over the full extent, cropped to the requested size."""
    win, kernel = step.op.window, step.specs[1].shape[2:]

    def extra(node: Any) -> tuple[int, ...]:
        sizes = zip(
            node.op.shape, node.inputs[0].shape[2:], win.stride, win.padding, win.span(kernel), strict=True
        )
        return tuple(n + lo + hi - ((o - 1) * s + reach) for n, o, s, (lo, hi), reach in sizes)

    if step.varies(extra):
        raise step.error("its size is no function of a free axis alone: give the axis a fixed size")
    function, more = _of_rank("conv_transpose", win.rank), extra(step.nodes[0])
    even = all(lo == hi for lo, hi in win.padding)
    pads = [lo for lo, _ in win.padding] if even else 0
    fits = even and all(0 <= m < max(s, d) for m, s, d in zip(more, win.stride, win.dilation, strict=True))
    if fits:
        return function(g, _filters(win, w), None, win.stride, pads, more, win.groups, win.dilation)
    whole = function(g, _filters(win, w), None, win.stride, 0, 0, win.groups, win.dilation)
    sides = [(-lo, m - hi) for (lo, hi), m in zip(win.padding, more, strict=True)]
    return functional.pad(whole, [side for pair in reversed(sides) for side in pair])


@writes(QuantizedConv)
def quantized_conv(step: TorchStep, x: Any, w: Any, scale: Any) -> Any:
    """Sums of 8-bit numbers, exact in float64, times the scale of each channel."""
    win = step.op.window
    total = _convolved(win, x.to(torch.float64), w.to(torch.float64)).to(torch.float32)
    return total * scale.reshape((-1, *(1,) * win.rank))


@writes(QuantizedMatmul)
def quantized_matmul(step: TorchStep, a: Any, b: Any, scale: Any) -> Any:
    """Sums of 8-bit numbers, exact in float64, times the scale of each column."""
    return torch.matmul(a.to(torch.float64), b.to(torch.float64).mT).to(torch.float32) * scale


# ---- windows


def _within(win: Window, kernel: Shape) -> bool:
    """Whether PyTorch's pools support the padding: equal on both sides, at most half of the kernel."""
    return all(lo == hi and 2 * lo <= k for (lo, hi), k in zip(win.padding, kernel, strict=True))


@writes(MaxPool)
def max_pool(step: TorchStep, x: Any) -> Any:
    """F.max_pool2d and its variants; its indices refer to the plane, ours to the window."""
    op, win = step.op, step.op.window
    own = _within(win, op.kernel)
    x = x if own else _padded(x, win, float("-inf"))
    pads = [lo for lo, _ in win.padding] if own else [0] * win.rank
    function = _of_rank("max_pool", win.rank)
    if not (op.index and step.wanted[1]):
        return function(x, op.kernel, win.stride, pads, win.dilation)
    pair = function(x, op.kernel, win.stride, pads, win.dilation, return_indices=True)
    y, flat = pair[0], pair[1]
    offset: Any = 0
    for axis in reversed(range(win.rank)):
        size, count = x.size(2 + axis), y.size(2 + axis)
        first = step.call(torch.arange, count, device=step.device) * win.stride[axis] - pads[axis]
        first = first.reshape((-1, *(1,) * (win.rank - 1 - axis)))
        place = flat % size
        flat = torch.div(flat, size, rounding_mode="floor")
        tap = torch.div(place - first, win.dilation[axis], rounding_mode="floor")
        offset = offset + tap * prod(op.kernel[axis + 1 :])
    return y, offset.to(torch_dtype(index_dtype(op.kernel)))


@writes(AvgPool)
def avg_pool(step: TorchStep, x: Any) -> Any:
    """F.avg_pool2d and its variants; unsupported windows are a convolution with ones, plane by plane."""
    op, win = step.op, step.op.window
    if op.mode != "sum" and _within(win, op.kernel) and all(d == 1 for d in win.dilation):
        pads = [lo for lo, _ in win.padding]
        return _of_rank("avg_pool", win.rank)(
            x, op.kernel, win.stride, pads, count_include_pad=op.mode == "include"
        )
    ones = step.call(torch.ones, (1, 1, *op.kernel), dtype=torch_dtype(step.dtype), device=step.device)
    planes = x.reshape((-1, 1, *(x.size(2 + a) for a in range(win.rank))))
    total = _convolved(win, planes, ones)
    if op.mode == "include":
        total = total / prod(op.kernel)
    if op.mode == "exclude":
        total = total / _convolved(win, torch.ones_like(planes[:1]), ones)
    return total.reshape((x.size(0), x.size(1), *(total.size(2 + a) for a in range(win.rank))))


@writes(RegionMax)
def region_max(step: TorchStep, x: Any, starts: Any, stops: Any) -> Any:
    """F.adaptive_max_pool2d and its variants; random regions have no function."""
    for node in step.nodes:
        op: Any = node.op
        bounds = [None if v.constant is None else v.constant.numpy() for v in node.inputs[1:]]
        wanted = adaptive_bounds(node.inputs[0].shape[2:], op.output)
        if any(
            b is None or b.shape != w.shape or (b != w).any() for b, w in zip(bounds, wanted, strict=True)
        ):
            raise step.error("PyTorch has a function for windows that cut the axes into equal parts alone")
    rank = len(step.op.output)
    pair = _of_rank("adaptive_max_pool", rank)(x, step.op.output, return_indices=True)
    return pair[0], pair[1]


@writes(ShortTimeSpectra)
def short_time_spectra(step: TorchStep, x: Any, weights: Any) -> Any:
    """torch.stft of frames that are whole, half types in float32."""
    op, wide = step.op, torch_dtype(step.dtype.compute)
    found = torch.stft(
        x.to(wide), op.size, op.hop, window=weights.to(wide), center=False, return_complex=True
    )
    return (torch.view_as_real(found) * op.scale).permute(0, 2, 1, 3).to(torch_dtype(step.dtype))
