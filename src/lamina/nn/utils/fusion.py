"""Folding of inference batch norms into the preceding layer.

Compiled networks do not need this: the pass `fold_batch_norm` does the same to the graph. It is for saving weights.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, TypeVar

import numpy as np

from lamina.nn.linear import Linear
from lamina.nn.module import Module
from lamina.nn.parameter import Parameter
from lamina.ops.arguments import checked
from lamina.tensors import tensor

M = TypeVar("M", bound=Module)


@checked
def fuse_conv_bn_eval(conv: M, bn: Module, transpose: bool = False) -> M:
    """A convolution (with transpose a transposed one) that computes bn(conv(x)); both must be in inference mode.

    Returns a new layer with a bias; the given ones are unchanged. Raises ValueError for a layer in training mode, or
    a norm without running statistics.
    """
    return _fused("fuse_conv_bn_eval", conv, bn, 1 if transpose else 0)


@checked
def fuse_linear_bn_eval(linear: Linear, bn: Module) -> Linear:
    """A linear layer that computes bn(linear(x)); see `fuse_conv_bn_eval`."""
    return _fused("fuse_linear_bn_eval", linear, bn, 0)


def _fused(what: str, layer: M, bn: Any, axis: int) -> M:
    """The layer with weight · s along an axis and (bias - mean) · s + shift, where s = scale / √(var + eps)."""
    if layer.training or bn.training:
        raise ValueError(f"{what}: both layers must be in inference mode; call eval() on them")
    if not getattr(bn, "track_running_stats", False):
        raise ValueError(f"{what}: the norm has no running statistics")
    fused: Any = deepcopy(layer)
    mean, var = (_wide(x) for x in (bn.running_mean, bn.running_var))
    factor = (1.0 if bn.weight is None else _wide(bn.weight)) / np.sqrt(var + bn.eps)
    shift = 0.0 if bn.bias is None else _wide(bn.bias)
    weight, bias = _wide(fused.weight), 0.0 if fused.bias is None else _wide(fused.bias)
    groups = getattr(fused, "groups", 1)
    if axis and groups > 1:  # (in, out / groups, …): each group of inputs has its own factors
        scales = np.repeat(factor.reshape(groups, -1), weight.shape[0] // groups, axis=0)
        scales = scales.reshape(*scales.shape, *(1,) * (weight.ndim - 2))
    else:
        scales = factor.reshape(*(1,) * axis, -1, *(1,) * (weight.ndim - 1 - axis))
    dtype, where = fused.weight.dtype, fused.weight.device
    fused.weight = Parameter(tensor(weight * scales, dtype).to(where))
    fused.bias = Parameter(tensor((bias - mean) * factor + shift, dtype).to(where))
    out: M = fused
    return out


def _wide(x: Any) -> Any:
    return x.numpy().astype(np.float64)
