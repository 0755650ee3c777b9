"""Normalization."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from lamina import ops
from lamina.convert.onnx.export.writer import OpExport, Written, composes, exports
from lamina.ops.primitives.lrn import LocalResponseNorm, _traced_window
from lamina.ops.primitives.norm import BatchNorm, BatchNormInfer, GroupNorm, LayerNorm, RmsNorm
from lamina.spec import float32, float64


@exports(BatchNormInfer)
def batch_norm_infer(step: OpExport) -> Written:
    """BatchNormalization, then the op's epilogue: the residual, relu with its bound."""
    y = step.add("BatchNormalization", *step.inputs[:5], epsilon=step.op.epsilon)
    if step.op.residual:
        y = step.add("Add", y, step.inputs[5])
    if step.op.hi is not None:
        return step.add("Clip", y, step.constant(0.0), step.constant(step.op.hi))
    return step.add("Relu", y) if step.op.relu else y


@composes(BatchNorm)
def batch_norm(
    op: BatchNorm, x: Any, scale: Any, bias: Any, mean: Any, var: Any, residual: Any = None
) -> Any:
    """The formula: ONNX's operator stores the biased variance in training."""
    axes = (0, *range(2, x.ndim))
    kept = (-1, *(1,) * (x.ndim - 2))
    wide = x.cast(scale.dtype)
    own = wide.mean(axes, keepdim=True)
    apart = wide - own
    spread = (apart * apart).mean(axes, keepdim=True)
    rstd = ops.rsqrt(spread + op.epsilon)
    y = (
        apart * rstd * scale.reshape((scale.shape[0], *kept[1:])) + bias.reshape((bias.shape[0], *kept[1:]))
    ).cast(x.dtype)
    y = y if residual is None else y + residual
    y = y if not op.relu else ops.clamp(y, 0.0, op.hi) if op.hi is not None else ops.relu(y)
    size = x.spec.numel // x.shape[1]
    small = [v.reshape(scale.shape) for v in (own, rstd, spread)]
    running = ((mean, small[0]), (var, small[2] * (size / (size - 1))))
    moved = [old * (1 - op.momentum) + new * op.momentum for old, new in running]
    return y, small[0], small[1], *moved


def _plain(step: OpExport) -> bool:
    """Whether only the result is read, and it is computed in float32."""
    return not any(step.wanted[1:]) and step.dtype != float64


def _in_float32(step: OpExport, operator: str, x: str, *others: str, **attributes: Any) -> str:
    """The operator in float32, with scale and bias of half types converted."""
    if step.dtype == float32:
        return step.add(operator, x, *others, **attributes)
    return step.cast(step.add(operator, step.cast(x, float32), *others, **attributes), step.dtype)


@exports(LayerNorm)
def layer_norm(step: OpExport) -> Written:
    """LayerNormalization if it provides all results that are read, else the formula."""
    if not _plain(step):
        return step.composed(_layer_norm)
    return _in_float32(step, "LayerNormalization", *step.inputs, axis=-step.op.rank, epsilon=step.op.epsilon)


def _layer_norm(op: LayerNorm, x: Any, scale: Any, bias: Any) -> Any:
    axes = tuple(range(x.ndim - op.rank, x.ndim))
    y, mean, rstd = _normal(x.cast(scale.dtype), axes, op.epsilon)
    stats = op.infer(x.spec, scale.spec, bias.spec)[1].shape
    return (y * scale + bias).cast(x.dtype), mean.reshape(stats), rstd.reshape(stats)


def _normal(x: Any, axes: tuple[int, ...], epsilon: float) -> tuple[Any, Any, Any]:
    mean = x.mean(axes, keepdim=True)
    apart = x - mean
    rstd = ops.rsqrt((apart * apart).mean(axes, keepdim=True) + epsilon)
    return apart * rstd, mean, rstd


@composes(RmsNorm)
def rms_norm(op: RmsNorm, x: Any, scale: Any) -> Any:
    """x / sqrt(mean of x² + epsilon) * scale."""
    axes = tuple(range(x.ndim - op.rank, x.ndim))
    wide = x.cast(scale.dtype)
    rstd = ops.rsqrt((wide * wide).mean(axes, keepdim=True) + op.epsilon)
    stats = op.infer(x.spec, scale.spec)[1].shape
    return (wide * rstd * scale).cast(x.dtype), rstd.reshape(stats)


@exports(GroupNorm)
def group_norm(step: OpExport) -> Written:
    """InstanceNormalization of the groups as channels, then scale and bias of each channel."""
    x = step.specs[0]
    if not _plain(step) or x.ndim < 3 or 0 in x.shape:
        return step.composed(_group_norm)
    if step.op.groups == x.shape[1]:
        return _in_float32(step, "InstanceNormalization", *step.inputs, epsilon=step.op.epsilon)
    ones, zeros = (step.constant(np.full(step.op.groups, v), float32) for v in (1, 0))
    grouped = step.reshaped(step.inputs[0], 0, step.op.groups, -1)
    normal = _in_float32(step, "InstanceNormalization", grouped, ones, zeros, epsilon=step.op.epsilon)
    y = step.add("Reshape", normal, step.add("Shape", step.inputs[0]))
    kept = (-1, *(1,) * (x.ndim - 2))
    scale, bias = (step.reshaped(n, *kept) for n in step.inputs[1:])
    if step.dtype != float32:
        scale, bias = (step.cast(n, step.dtype) for n in (scale, bias))
    return step.add("Add", step.add("Mul", y, scale), bias)


def _group_norm(op: GroupNorm, x: Any, scale: Any, bias: Any) -> Any:
    n, c, *spatial = x.shape
    wide = x.cast(scale.dtype).reshape((n, op.groups, c // op.groups * prod(spatial)))
    y, mean, rstd = _normal(wide, (2,), op.epsilon)
    kept = (c, *(1,) * len(spatial))
    y = y.reshape(x.shape) * scale.reshape(kept) + bias.reshape(kept)
    return y.cast(x.dtype), mean.reshape((n, op.groups)), rstd.reshape((n, op.groups))


@exports(LocalResponseNorm)
def local_response_norm(step: OpExport) -> Written:
    """LRN for symmetric windows, else the formula."""
    op = step.op
    if op.size % 2 == 0 or step.specs[0].ndim != 4:
        return step.composed(_local_response)
    return step.add("LRN", *step.inputs, size=op.size, alpha=op.alpha, beta=op.beta, bias=op.k)


def _local_response(op: LocalResponseNorm, x: Any) -> Any:
    total = _traced_window(x * x, *op.reach)
    return x * (total * (op.alpha / op.size) + op.k) ** -op.beta
