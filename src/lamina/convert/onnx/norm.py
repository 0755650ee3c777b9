"""Normalizations."""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina import ops
from lamina.convert.onnx.node import OnnxNode, as_tensor, converts
from lamina.convert.onnx.proto import dtype_of
from lamina.spec import float32


def along_channels(v: Any, x: Any) -> Any:
    """Numbers per channel, reshaped to broadcast with x [N, C, *]."""
    return v.reshape((-1,) + (1,) * (x.ndim - 2))


@converts("BatchNormalization", statistics=(3, 4))
def batch_normalization(node: OnnxNode) -> Any:
    """By the running statistics; in training by the batch's, updating the running ones (the momentum is kept).

    The call's mode decides whether a trainable node trains; else the attribute training_mode.
    """
    x, scale, bias, mean, var = (node.input(i) for i in range(5))
    eps, momentum = node.get("epsilon", 1e-5), node.get("momentum", 0.9)
    mode, asked = node.mode, bool(node.get("training_mode", 0))
    if mode.training is None and asked:
        return _by_the_batch(x, scale, bias, mean, var, eps, momentum)
    if mode.training and (asked or mode.batch_statistics) and mode.write is not None:
        share = 1 - momentum
        y, *after = ops.batch_norm_with_statistics(x, mean, var, scale, bias, True, share, eps)
        for name, value in zip(node.input_names[3:5], after, strict=True):
            mode.write(name, ops.stop_gradient(value))
        return (y, *after)
    if x.ndim >= 2 and mean.dtype == scale.dtype == bias.dtype == var.dtype == float32:
        y = ops.batch_norm(x, mean, var, scale, bias, False, 0.1, eps)
    else:
        y = ops.cast(_normalized(ops.cast(x, scale.dtype), mean, var, scale, bias, eps), x.dtype)
    return (y, mean, var) if asked else y


def _by_the_batch(x: Any, scale: Any, bias: Any, mean: Any, var: Any, eps: float, momentum: float) -> Any:
    """(y, next running mean, next running variance), with the biased variance, as in ONNX."""
    wide, axes = ops.cast(x, scale.dtype), (0, *range(2, x.ndim))
    own, spread = ops.mean(wide, axes), ops.var(wide, axes, correction=0)
    found = ops.cast(_normalized(wide, own, spread, scale, bias, eps), x.dtype)
    return found, _moved(mean, own, momentum), _moved(var, spread, momentum)


def _normalized(x: Any, mean: Any, var: Any, scale: Any, bias: Any, eps: float) -> Any:
    """(x - mean) / sqrt(var + eps) scale + bias, all per channel, of any dtypes."""
    factor = ops.mul(ops.rsqrt(ops.add(var, eps)), scale)
    centred = ops.sub(x, along_channels(mean, x))
    return ops.add(ops.mul(centred, along_channels(factor, x)), along_channels(bias, x))


def _moved(running: Any, own: Any, momentum: float) -> Any:
    return ops.add(ops.mul(running, momentum), ops.mul(ops.cast(own, running.dtype), 1 - momentum))


@converts("InstanceNormalization")
def instance_normalization(node: OnnxNode) -> Any:
    """Over the spatial axes of each sample and channel, even of a single element."""
    x, scale, bias = (node.input(i) for i in range(3))
    return ops.group_norm(x, x.shape[1], scale, bias, node.get("epsilon", 1e-5))


@converts("GroupNormalization")
def group_normalization(node: OnnxNode) -> Any:
    """Over groups of channels; before opset 21 with a scale and a bias for each group."""
    x, scale, bias = (node.input(i) for i in range(3))
    groups = node.needed("num_groups")
    if node.opset < 21:
        many = x.shape[1] // groups
        scale, bias = (ops.expand(v.unsqueeze(1), (groups, many)).reshape((-1,)) for v in (scale, bias))
    return ops.group_norm(x, groups, scale, bias, node.get("epsilon", 1e-5))


def _working(node: OnnxNode, x: Any) -> tuple[Any, tuple[int, ...]]:
    """(x in the dtype of the statistics, the axes that are normalized)."""
    axis = node.get("axis", -1) % x.ndim
    return ops.cast(x, dtype_of(node.get("stash_type", 1))), tuple(range(axis, x.ndim))


@converts("LayerNormalization")
def layer_normalization(node: OnnxNode) -> Any:
    """(y, mean, 1 / standard deviation) over the axes from `axis` on."""
    x, scale, bias = node.input(0), node.input(1), node.optional(2)
    eps, (wide, axes) = node.get("epsilon", 1e-5), _working(node, x)
    sizes = tuple(x.shape[a] for a in axes)
    if not node.asks(1) and not node.asks(2) and scale.dtype == x.dtype and scale.shape == sizes:
        return ops.layer_norm(x, sizes, scale, bias, eps)
    mean = ops.mean(wide, axes, True)
    centred = ops.sub(wide, mean)
    inverse = ops.rsqrt(ops.add(ops.mean(ops.square(centred), axes, True), eps))
    found = ops.mul(ops.cast(ops.mul(centred, inverse), x.dtype), scale)
    return found if bias is None else ops.add(found, bias), mean, inverse


@converts("RMSNormalization", "SimplifiedLayerNormalization")
def rms_normalization(node: OnnxNode) -> Any:
    """(x / sqrt(mean(x^2) + eps) scale over the axes from `axis` on, 1 / that root).

    The second name is ONNX Runtime's.
    """
    x, scale = node.input(0), node.input(1)
    wide, axes = _working(node, x)
    inverse = ops.rsqrt(ops.add(ops.mean(ops.square(wide), axes, True), node.get("epsilon", 1e-5)))
    return ops.mul(ops.cast(ops.mul(wide, inverse), x.dtype), scale), inverse


@converts("LRN")
def lrn(node: OnnxNode) -> Any:
    """x / (bias + alpha / size times the sum of squares of neighboring channels) ^ beta."""
    x = node.input(0)
    size, alpha = node.needed("size"), node.get("alpha", 1e-4)
    args = size, alpha, node.get("beta", 0.75), node.get("bias", 1.0)
    if size % 2:
        return ops.local_response_norm(x, *args)
    # A window of even size covers one more channel after c than before it; the op's, as torch's, one more before it.
    return ops.flip(ops.local_response_norm(ops.flip(x, 1), *args), 1)


@converts("MeanVarianceNormalization")
def mean_variance_normalization(node: OnnxNode) -> Any:
    """(x - mean) / standard deviation over axes."""
    x, axes = node.input(0), tuple(node.get("axes", (0, 2, 3)))
    centred = ops.sub(x, ops.mean(x, axes, True))
    return ops.div(centred, ops.add(ops.sqrt(ops.mean(ops.square(centred), axes, True)), 1e-9))


@converts("LpNormalization")
def lp_normalization(node: OnnxNode) -> Any:
    """x / its norm of order 1 or 2 along an axis; 0 where the norm is 0."""
    x, axis, p = node.input(0), node.get("axis", -1), node.get("p", 2)
    if p not in (1, 2):
        raise node.error(f"p must be 1 or 2, got {p}")
    norm = ops.sum(ops.abs(x), axis, True) if p == 1 else ops.sqrt(ops.sum(ops.square(x), axis, True))
    return ops.div(x, ops.where(ops.eq(norm, 0), as_tensor(np.ones(()), x.dtype), norm))
