"""Small ONNX models for tests, and the samples of ONNX's own node tests by module of handlers."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from lamina.convert.onnx import HANDLERS, OnnxGraph
from tests.judges import onnx_nodes

#: How many of an operator's own tests the quick suite runs; the judge's table holds all of them.
EACH = 2


def node_tests(module: ModuleType) -> list[str]:
    """The first direct tests, among those that the table says agree, of each operator that the module handles."""
    mine = {name for (_, name), handler in HANDLERS.items() if handler.__module__ == module.__name__}
    return [name for kind, names in onnx_nodes.agreeing().items() if kind in mine for name in names[:EACH]]


def agrees(name: str) -> None:
    """One of ONNX's own tests agrees."""
    verdict, text = onnx_nodes.compare(onnx_nodes.cases()[name])
    assert (verdict, text) == ("agree", "")


def model(
    nodes: Sequence[Any], inputs: Any, outputs: Any, opset: int = 22, **weights: Any
) -> onnx.ModelProto:
    """A model of nodes; inputs and outputs by name with their shapes (or (dtype, shape)), weights as arrays."""
    graph = helper.make_graph(
        list(nodes),
        "net",
        [_info(n, s) for n, s in inputs.items()],
        [_info(n, s) for n, s in outputs.items()],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def single(operator: str, inputs: Any, count: int = 1, opset: int = 22, **attributes: Any) -> OnnxGraph:
    """The graph of one node over named inputs, with outputs y0, y1, …"""
    outputs = [f"y{i}" for i in range(count)]
    node = helper.make_node(operator, list(inputs), outputs, **attributes)
    return OnnxGraph(model([node], inputs, dict.fromkeys(outputs, ()), opset))


def _info(name: str, shape: Any) -> Any:
    kind = TensorProto.FLOAT
    if len(shape) == 2 and isinstance(shape[1], tuple):
        kind, shape = shape
    return helper.make_tensor_value_info(name, kind, list(shape))
