"""Quantization: integers with a scale and a zero point."""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina import ops
from lamina.convert.onnx.integer import quantized_to
from lamina.convert.onnx.node import OnnxNode, as_tensor, converts
from lamina.convert.onnx.proto import dtype_of
from lamina.convert.onnx.wider import WIDER
from lamina.spec import DType, float8_e4m3fn, float32, int8, int16, int32, uint8

#: The types of quantized tensors.
QUANTIZED = (int8, uint8, int16, float8_e4m3fn)


def centred(x: Any, zero: Any, axis: int) -> Any:
    """x minus its zero point, int32; zero points per row lie along the given axis."""
    wide = ops.cast(x, int32)
    if zero is None:
        return wide
    zero = ops.cast(zero, int32)
    if zero.ndim == 1 and axis == -2:
        zero = zero.unsqueeze(-1)
    return ops.sub(wide, zero)


def rounded(x: Any, zero: Any, dtype: DType, bounds: tuple[int, int] | None = None) -> Any:
    """x rounded to the nearest integer (halves to even), plus the zero point, clamped to bounds, by default the
    dtype's.
    """
    info = np.iinfo(dtype.numpy)
    low, high = bounds or (int(info.min), int(info.max))
    moved = ops.round(x) if zero is None else ops.add(ops.round(x), ops.cast(zero, x.dtype))
    return ops.cast(ops.clamp(moved, float(low), float(high)), dtype)


def requantized(total: Any, scale: Any, y_scale: Any, y_zero: Any) -> Any:
    """A sum of products of integers in units of `scale`, requantized in units of y_scale."""
    real = ops.mul(ops.cast(total, float32), ops.div(ops.cast(scale, float32), ops.cast(y_scale, float32)))
    return rounded(real, y_zero, y_zero.dtype)


def spread(node: OnnxNode, scale: Any, x: Any) -> Any:
    """A scale for all, per index of an axis, or per block along it, reshaped to broadcast with x."""
    axis, block = node.get("axis", 1), node.get("block_size", 0)
    if scale.ndim == 0 or (scale.shape == (1,) and not block):
        return scale.reshape(())
    axis %= x.ndim
    if not block:
        return scale.reshape(tuple(x.shape[axis] if a == axis else 1 for a in range(x.ndim)))
    many = scale.unsqueeze(axis + 1)
    many = ops.expand(many, (*many.shape[: axis + 1], block, *many.shape[axis + 2 :]))
    joined = many.reshape((*scale.shape[:axis], -1, *scale.shape[axis + 1 :]))
    return joined[(slice(None),) * axis + (slice(0, x.shape[axis]),)]


@converts("QuantizeLinear", statistics=(1, 2))
def quantize_linear(node: OnnxNode) -> Any:
    """round(x / scale) + zero point, clamped to the type's range; types that Lamina lacks are held in a wider one."""
    x, scale, zero = node.input(0), node.input(1), node.optional(2)
    code = node.declared.get(2, 0) or (node.get("output_dtype", 0) if zero is None else 0)
    held = WIDER.get(code)
    dtype = held.dtype if held else zero.dtype if zero is not None else dtype_of(code) if code else uint8
    if held is None and dtype not in QUANTIZED:
        raise node.error(f"quantized types are {', '.join(map(str, QUANTIZED))}, got {dtype}")
    if dtype == float8_e4m3fn:
        return _in_float8(node, x, scale)
    precision = node.get("precision", 0)
    if held is None and not precision and not node.mode.training:
        found = quantized_to(x, scale, zero, dtype)
        if found is not None:
            return found
    working = dtype_of(precision) if precision else scale.dtype
    real = ops.div(ops.cast(x, working), ops.cast(spread(node, scale, x), working))
    moved = None if zero is None else spread(node, zero, x)
    return rounded(ops.cast(real, float32), moved, dtype, held.bounds if held else None)


def _in_float8(node: OnnxNode, x: Any, scale: Any) -> Any:
    """x / scale in float8_e4m3fn, saturated; its zero point is 0."""
    if not node.get("saturate", 1):
        raise node.error("saturate=0 is not built: what is too large becomes the largest number")
    by = spread(node, ops.cast(scale, float32), x)
    if by.ndim == 0:
        return ops.quantize(x, by, float8_e4m3fn)
    return ops.quantize(ops.div(ops.cast(x, float32), by), 1.0, float8_e4m3fn)


@converts("DequantizeLinear", statistics=(1, 2))
def dequantize_linear(node: OnnxNode) -> Any:
    """(x - zero point) scale, in the scale's dtype."""
    x, scale, zero = node.input(0), node.input(1), node.optional(2)
    code = node.get("output_dtype", 0)
    dtype = dtype_of(code) if code else scale.dtype
    if x.dtype == float8_e4m3fn:
        by = spread(node, ops.cast(scale, float32), x)
        real = ops.dequantize(x, by) if by.ndim == 0 else ops.mul(ops.dequantize(x, 1.0), by)
        return ops.cast(real, dtype)
    wide = ops.cast(x, int32)
    wide = wide if zero is None else ops.sub(wide, ops.cast(spread(node, zero, x), int32))
    return ops.cast(ops.mul(ops.cast(wide, float32), ops.cast(spread(node, scale, x), float32)), dtype)


@converts("DynamicQuantizeLinear")
def dynamic_quantize_linear(node: OnnxNode) -> Any:
    """(uint8 numbers, scale, zero point) whose range covers x and 0."""
    x = node.input(0)
    low, high = ops.minimum(ops.amin(x), 0.0), ops.maximum(ops.amax(x), 0.0)
    scale = ops.div(ops.sub(high, low), 255.0)
    zero = rounded(ops.div(ops.neg(low), scale), as_tensor(0, uint8), uint8)
    return rounded(ops.div(x, scale), zero, uint8), scale, zero
