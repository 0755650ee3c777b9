"""Convolutions and pooling with fused epilogues, or with channels last."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lamina import ops
from lamina.convert.onnx.contrib.domain import contributes
from lamina.convert.onnx.contrib.pointwise import activated
from lamina.convert.onnx.conv import conv, conv_transpose, convolved
from lamina.convert.onnx.image import grid_sample
from lamina.convert.onnx.node import OnnxNode
from lamina.convert.onnx.pool import max_pool

contributes("GridSample")(grid_sample)


@contributes("FusedConv")
def fused_conv(node: OnnxNode) -> Any:
    """A convolution, plus a tensor of its result's shape, then the named activation."""
    return _then(node, conv(node))


@contributes("NhwcConv", "NhwcFusedConv")
def nhwc_fused_conv(node: OnnxNode) -> Any:
    """`fused_conv` of channels-last images; the filters' layout is unchanged."""
    x, w, bias = node.input(0), node.input(1), node.optional(2)
    return _then(node, to_last(convolved(node, to_first(x), w, bias)))


def _then(node: OnnxNode, x: Any) -> Any:
    added = node.optional(3)
    return activated(node, x if added is None else ops.add(x, added))


@contributes("NhwcMaxPool")
def nhwc_max_pool(node: OnnxNode) -> Any:
    """Max pooling of channels-last images."""
    return to_last(max_pool(replace(node, inputs=(to_first(node.input(0)),))))


def to_first(x: Any) -> Any:
    """[N, *, C] -> [N, C, *]."""
    return ops.permute(x, (0, x.ndim - 1, *range(1, x.ndim - 1)))


def to_last(x: Any) -> Any:
    """[N, C, *] -> [N, *, C]."""
    return ops.permute(x, (0, *range(2, x.ndim), 1))


@contributes("ConvTransposeWithDynamicPads", known=(2,))
def conv_transpose_with_dynamic_pads(node: OnnxNode) -> Any:
    """A transposed convolution whose pads are an input."""
    x, w, bias = node.input(0), node.input(1), node.optional(3)
    pads = node.integers(2)
    attributes = dict(node.attributes) if pads is None else {**node.attributes, "pads": pads}
    return conv_transpose(replace(node, attributes=attributes, inputs=(x, w, bias)))
