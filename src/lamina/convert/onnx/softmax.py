"""Softmax and its logarithm."""

from __future__ import annotations

from math import prod
from typing import Any

from lamina import ops
from lamina.convert.onnx.node import OnnxNode, converts


@converts("Softmax", "LogSoftmax")
def softmax(node: OnnxNode) -> Any:
    """Along an axis; before opset 13 over all axes from it on."""
    x = node.input(0)
    apply = ops.softmax if node.operator == "Softmax" else ops.log_softmax
    if node.opset >= 13:
        return apply(x, node.get("axis", -1))
    axis = node.get("axis", 1) % x.ndim
    return apply(x.reshape((prod(x.shape[:axis]), -1)), -1).reshape(x.shape)
