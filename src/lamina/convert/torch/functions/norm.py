"""Normalization."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from lamina.convert.torch.functions.step import TorchStep, torch_dtype, writes
from lamina.ops.primitives.lrn import LocalResponseNorm
from lamina.ops.primitives.norm import BatchNorm, BatchNormInfer, GroupNorm, LayerNorm, RmsNorm


def _behind(step: TorchStep, y: Any, residual: tuple[Any, ...]) -> Any:
    """The op's epilogue after the norm: the residual, relu with its bound."""
    y = y + residual[0] if step.op.residual else y
    if step.op.hi is not None:
        return functional.hardtanh(y, 0.0, step.op.hi)
    return functional.relu(y) if step.op.relu else y


@writes(BatchNormInfer)
def batch_norm_infer(step: TorchStep, x: Any, scale: Any, bias: Any, mean: Any, var: Any, *more: Any) -> Any:
    """F.batch_norm with fixed statistics; with computed ones, which have a gradient, the formula."""
    if any(v.node is not None for v in step.nodes[0].inputs[3:5]):
        shape = (-1, *(1,) * (step.specs[0].ndim - 2))
        mean, factor, shift = (
            v.reshape(shape) for v in (mean, scale * torch.rsqrt(var + step.op.epsilon), bias)
        )
        return _behind(step, ((x - mean) * factor + shift).to(torch_dtype(step.dtype)), more)
    y = functional.batch_norm(x, mean, var, scale, bias, False, 0.0, step.op.epsilon)
    return _behind(step, y, more)


@writes(BatchNorm)
def batch_norm(step: TorchStep, x: Any, scale: Any, bias: Any, mean: Any, var: Any, *more: Any) -> Any:
    """F.batch_norm with the batch's statistics, which updates copies of the running ones."""
    op, moved = step.op, (None, None)
    own = rstd = None
    if any(step.wanted[1:]):
        axes = [0, *range(2, step.specs[0].ndim)]
        own, rstd = _moments(_wide(step, x), axes, op.epsilon)
    if any(step.wanted[3:]):
        moved = mean.detach().clone(), var.detach().clone()
    y = functional.batch_norm(x, *moved, scale, bias, True, op.momentum, op.epsilon)
    return _behind(step, y, more), own, rstd, *moved


def _wide(step: TorchStep, x: Any) -> Any:
    """x in the type of the parameters, in which it is computed."""
    return x.to(torch_dtype(step.specs[1].dtype)) if step.specs[1].dtype != step.dtype else x


def _narrow(step: TorchStep, y: Any) -> Any:
    return y.to(torch_dtype(step.dtype)) if step.specs[1].dtype != step.dtype else y


def _statistics(step: TorchStep, x: Any, axes: list[int]) -> tuple[Any, Any]:
    """Mean and 1 / sqrt(variance + epsilon), in the shapes of the results."""
    shape = step.sizes(lambda n: tuple(n.outputs[1].shape))
    mean, rstd = _moments(x, axes, step.op.epsilon)
    return mean.reshape(shape), rstd.reshape(shape)


def _moments(x: Any, axes: list[int], epsilon: float) -> tuple[Any, Any]:
    """Mean and 1 / sqrt(variance + epsilon) over axes."""
    spread = x - torch.mean(x, axes, keepdim=True)
    return torch.mean(x, axes), torch.rsqrt(torch.mean(spread * spread, axes) + epsilon)


@writes(LayerNorm)
def layer_norm(step: TorchStep, x: Any, scale: Any, bias: Any) -> Any:
    """F.layer_norm."""
    rank, x = step.op.rank, _wide(step, x)
    kept = step.specs[0].shape[-rank:]
    y = _narrow(
        step, functional.layer_norm(x, kept, scale.reshape(kept), bias.reshape(kept), step.op.epsilon)
    )
    if not any(step.wanted[1:]):
        return y
    return y, *_statistics(step, x, list(range(-rank, 0)))


@writes(RmsNorm)
def rms_norm(step: TorchStep, x: Any, scale: Any) -> Any:
    """F.rms_norm."""
    rank, x = step.op.rank, _wide(step, x)
    kept = step.specs[0].shape[-rank:]
    y = _narrow(step, functional.rms_norm(x, kept, scale.reshape(kept), step.op.epsilon))
    if not any(step.wanted[1:]):
        return y
    square = torch.mean(x * x, list(range(-rank, 0)))
    shape = step.sizes(lambda n: tuple(n.outputs[1].shape))
    return y, torch.rsqrt(square + step.op.epsilon).reshape(shape)


@writes(GroupNorm)
def group_norm(step: TorchStep, x: Any, scale: Any, bias: Any) -> Any:
    """F.group_norm."""
    x = _wide(step, x)
    y = _narrow(step, functional.group_norm(x, step.op.groups, scale, bias, step.op.epsilon))
    if not any(step.wanted[1:]):
        return y
    return y, *_statistics(step, x.reshape((x.size(0), step.op.groups, -1)), [2])


@writes(LocalResponseNorm)
def local_response_norm(step: TorchStep, x: Any) -> Any:
    """F.local_response_norm."""
    op, flat = step.op, step.specs[0].ndim == 2
    y = functional.local_response_norm(x.unsqueeze(2) if flat else x, op.size, op.alpha, op.beta, op.k)
    return y.squeeze(2) if flat else y
