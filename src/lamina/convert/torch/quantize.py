"""Fake quantization (quantization-aware training): rounding with a straight-through gradient."""

from __future__ import annotations

from typing import Any

from lamina import ops
from lamina.convert.torch.node import TorchCall, converts


@converts("fake_quantize_per_tensor_affine", "fake_quantize_per_channel_affine")
def fake_quantized(call: TorchCall) -> Any:
    """(clamp(round(x / scale) + zero point) - zero point) scale; the gradient is x's where nothing was clamped."""
    x, scale, zero = call["input"], call["scale"], call["zero_point"]
    if "axis" in call:
        shape = [-1 if a == call["axis"] % x.ndim else 1 for a in range(x.ndim)]
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    zero = zero if isinstance(zero, (int, float)) else ops.cast(zero, x.dtype)
    held = ops.stop_gradient(x)
    level = ops.round(held * (1.0 / scale)) + zero
    inside = (level >= call["quant_min"]) & (level <= call["quant_max"])
    found = ops.stop_gradient((ops.clamp(level, call["quant_min"], call["quant_max"]) - zero) * scale)
    return found + ops.where(inside, x - held, 0.0)
