"""Activations with fused preceding operations."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

from lamina import ops
from lamina.convert.onnx.contrib.domain import contributes
from lamina.convert.onnx.node import HANDLERS, OnnxNode
from lamina.convert.onnx.pointwise import dropout

#: The activations that other operators name, and the attributes that hold their parameters, in order.
ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "Relu": (), "Sigmoid": (), "Tanh": (), "Softplus": (), "Softsign": (), "HardSwish": (), "Mish": (),
    "LeakyRelu": ("alpha",), "Elu": ("alpha",), "ThresholdedRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"),
    "Clip": ("min", "max"),
}  # fmt: skip


def activated(node: OnnxNode, x: Any) -> Any:
    """The activation that the node names, of x. Raises OnnxError for an unknown one."""
    name = node.get("activation", "")
    if not name:
        return x
    if name not in ACTIVATIONS:
        raise node.error(f"activation must be one of {', '.join(ACTIVATIONS)}, got {name!r}")
    given = node.get("activation_params")
    if given is None:
        given = [node.get(f"activation_{part}") for part in ("alpha", "beta")]
    attributes = {n: v for n, v in zip(ACTIVATIONS[name], given, strict=False) if v is not None}
    return HANDLERS["", name](replace(node, operator=name, attributes=attributes, inputs=(x,)))


@contributes("Gelu", "BiasGelu")
def gelu(node: OnnxNode) -> Any:
    """x Phi(x), of x plus a bias."""
    return ops.gelu(_biased(node))


@contributes("FastGelu")
def fast_gelu(node: OnnxNode) -> Any:
    """Its approximation by tanh, of x plus a bias."""
    return ops.gelu(_biased(node), approximate="tanh")


def _biased(node: OnnxNode) -> Any:
    x, bias = node.input(0), node.optional(1)
    return x if bias is None else ops.add(x, bias)


@contributes("QuickGelu")
def quick_gelu(node: OnnxNode) -> Any:
    """x sigmoid(alpha x)."""
    return ops.swish(node.input(0), node.get("alpha", 1.702))


@contributes("ScaledSiLU")
def scaled_silu(node: OnnxNode) -> Any:
    """silu(scale x); the scale is an input or the attribute alpha."""
    scale = node.optional(1)
    return ops.silu(ops.mul(node.input(0), node.get("alpha", 1.0) if scale is None else scale))


@contributes("BiasSplitGelu")
def bias_split_gelu(node: OnnxNode) -> Any:
    """Of x plus a bias the first half of the last axis times the gelu of the second."""
    x = _biased(node)
    half = x.shape[-1] // 2
    return ops.mul(x[..., :half], ops.gelu(x[..., half:]))


@contributes("BiasAdd")
def bias_add(node: OnnxNode) -> Any:
    """The sum of all inputs."""
    return reduce(ops.add, node.inputs)


@contributes("BiasSoftmax")
def bias_softmax(node: OnnxNode) -> Any:
    """softmax(x + bias) over the axes from `axis` on."""
    x = ops.add(node.input(0), node.input(1))
    axis = node.get("axis", 1) % x.ndim
    return ops.softmax(x.reshape((*x.shape[:axis], -1)), -1).reshape(x.shape)


@contributes("BiasDropout", known=(3, 4))
def bias_dropout(node: OnnxNode) -> Any:
    """dropout(x + bias) + residual, and the mask."""
    x, residual = ops.add(node.input(0), node.input(1)), node.optional(2)
    own = replace(node, operator="Dropout", opset=13, inputs=(x, *node.inputs[3:5]))
    found = dropout(own)
    y, *mask = found if isinstance(found, tuple) else (found,)
    return (y if residual is None else ops.add(y, residual), *mask)


@contributes("IsAllFinite")
def is_all_finite(node: OnnxNode) -> Any:
    """Whether no element of any input is NaN or infinite; only one of these is checked with isnan_only
    or isinf_only."""
    nan, inf = node.get("isnan_only", 0), node.get("isinf_only", 0)
    wrong = ops.isnan if nan else ops.isinf if inf else lambda x: ops.logical_not(ops.isfinite(x))
    return ops.logical_not(reduce(ops.logical_or, [ops.any(wrong(x)) for x in node.inputs]))
