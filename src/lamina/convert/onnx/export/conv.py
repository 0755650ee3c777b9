"""Convolutions, transposed convolutions, and 8-bit ones."""

from __future__ import annotations

from typing import Any

from lamina.convert.onnx.export.shape import reversed_axes
from lamina.convert.onnx.export.writer import OpExport, Written, exports
from lamina.ops.primitives.conv import Conv, ConvDataGrad
from lamina.ops.primitives.quantize import QuantizedConv, QuantizedMatmul
from lamina.ops.primitives.window import Window
from lamina.spec import Shape, float32, int8


def attributes(win: Window, kernel: Shape) -> dict[str, Any]:
    """The window attributes that all of ONNX's convolutions share."""
    return {
        "kernel_shape": list(kernel),
        "strides": list(win.stride),
        "pads": [pair[i] for i in (0, 1) for pair in win.padding],
        "dilations": list(win.dilation),
        "group": win.groups,
    }


def _filters(step: OpExport, win: Window, name: str) -> str:
    """The filters, flipped if the window says so."""
    return reversed_axes(step, name, tuple(range(2, 2 + win.rank))) if win.flip else name


@exports(Conv)
def conv(step: OpExport) -> Written:
    """Conv."""
    win, kernel = step.op.window, step.specs[1].shape[2:]
    return step.add("Conv", step.inputs[0], _filters(step, win, step.inputs[1]), **attributes(win, kernel))


@exports(ConvDataGrad)
def conv_transpose(step: OpExport) -> Written:
    """ConvTranspose; the part of the result's size that the stride leaves undetermined is its output_padding."""
    win, kernel = step.op.window, step.specs[1].shape[2:]

    def extra(node: Any) -> list[int]:
        places = zip(
            node.op.shape, node.inputs[0].shape[2:], win.stride, win.padding, win.span(kernel), strict=True
        )
        return [n - ((o - 1) * s + reach - lo - hi) for n, o, s, (lo, hi), reach in places]

    if step.varies(extra):
        raise step.error("its size is no function of a free axis alone: give the axis a fixed size")
    step.sized = True
    more = extra(step.nodes[0])
    filters = _filters(step, win, step.inputs[1])
    return step.add("ConvTranspose", step.inputs[0], filters, output_padding=more, **attributes(win, kernel))


@exports(QuantizedConv)
def quantized_conv(step: OpExport) -> Written:
    """Sums of 8-bit integers by ConvInteger (of float8 by Conv in float32), times the scale of each channel."""
    win, kernel = step.op.window, step.specs[1].shape[2:]
    x, w = step.inputs[0], _filters(step, win, step.inputs[1])
    if step.dtype == int8:
        total = step.cast(step.add("ConvInteger", x, w, **attributes(win, kernel)), float32)
    else:
        total = step.add("Conv", step.cast(x, float32), step.cast(w, float32), **attributes(win, kernel))
    return step.add("Mul", total, step.reshaped(step.inputs[2], -1, *(1,) * win.rank))


@exports(QuantizedMatmul)
def quantized_matmul(step: OpExport) -> Written:
    """Sums of 8-bit integers by MatMulInteger (of float8 by MatMul in float32), times the scale of each column."""
    a, b = step.inputs[0], step.add("Transpose", step.inputs[1], perm=[1, 0])
    if step.dtype == int8:
        total = step.cast(step.add("MatMulInteger", a, b), float32)
    else:
        total = step.add("MatMul", step.cast(a, float32), step.cast(b, float32))
    return step.add("Mul", total, step.inputs[2])
