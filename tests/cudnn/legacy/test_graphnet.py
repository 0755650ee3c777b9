"""Graph neural network calls: refused by name on an older library; argument checks on the newest."""

from __future__ import annotations

from typing import Any

import pytest

from lamina.c._library import MissingSymbol
from lamina.cudnn.legacy import graphnet
from tests.c.conftest import cudnn_928, fresh  # noqa: F401
from tests.helpers.cudnn.installed import CUDNN


@pytest.mark.feature("B001")
@pytest.mark.skipif(not () < CUDNN < (9, 26, 1), reason="needs a cuDNN that lacks these calls")
def test_an_older_library_is_named() -> None:
    with pytest.raises(MissingSymbol, match=r"cudnnGnnAggSimpleForward needs cuDNN 9\.26, this is 9"):
        graphnet.CSCGraph(0, 0, sources=1, destinations=1, edges=1)
    with pytest.raises(ValueError, match="index_type must be 'int32' or 'int64', got 'int8'"):
        graphnet.CSCGraph(0, 0, sources=1, destinations=1, edges=1, index_type="int8")
    with pytest.raises(ValueError, match="edges must be a whole number from 0 on, got -1"):
        graphnet.CSCGraph(0, 0, sources=1, destinations=1, edges=-1)


CODE = """
import json
import numpy as np
from lamina.cudnn.legacy.graphnet import *

offsets, indices = np.zeros(4, np.int32), np.zeros(5, np.int32)
graph = CSCGraph(offsets, indices, sources=3, destinations=3, edges=5)
assert graph.native.cscOffsets == offsets.ctypes.data and graph.native.nIndices == 5
assert not graph.reversible
largest, mean = Aggregation(graph, node=4, concat=2, op="max"), Aggregation(graph, edge=4, op="mean")
gat = GraphAttention(graph, node=8, edge=4, heads=2)
gat2 = GraphAttention(graph, node=8, heads=2, version=2, concat=False, data_type="float16", gradient_type="float32",
                      weight_gradient_type="float32")
saved = {"source": 16, "destination": 16, "weights": 16, "scores": 16, "edges": 16}
calls = {
    "max needs positions": lambda: largest.forward(0, 16, nodes=16, concat=16),
    "mean takes no nodes": lambda: mean.forward(0, 16, nodes=16, edges=16),
    "no width": lambda: Aggregation(graph),
    "no such op": lambda: Aggregation(graph, node=1, op="median"),
    "no such type": lambda: Aggregation(graph, node=1, data_type="float64"),
    "heads": lambda: GraphAttention(graph, node=7, heads=2),
    "version": lambda: GraphAttention(graph, node=8, version=3),
    "v2 edge": lambda: GraphAttention(graph, node=8, edge=4, version=2),
    "v2 types": lambda: GraphAttention(graph, node=8, version=2, data_type="float16", gradient_type="float32"),
    "gradient": lambda: GraphAttention(graph, node=8, gradient_type="float16"),
    "edges": lambda: gat.forward(0, 16, 16, 16, 16, 16),
    "missing": lambda: gat.backward(0, 16, saved, {"source": 16, "destination": 16, "scores": 16, "edges": 16}),
    "unknown": lambda: gat.backward(0, 16, saved | {"x": 1}, saved),
    "not reversible": lambda: gat.backward(0, 16, saved, saved, workspaces=(16, 16)),
}
texts = {}
for name, call in calls.items():
    try:
        call()
    except ValueError as error:
        texts[name] = str(error)
native = []
for call in (
    lambda: largest.forward(0, 16, nodes=16, concat=16, positions=16),
    lambda: mean.backward(0, 16, dedges=16),
    lambda: gat.forward(0, 16, 16, 16, 16, 16, edges=16),
    lambda: gat.backward(0, 16, saved, saved),
    lambda: gat2.forward(0, 16, 16, 16, 16, 16, activations=16),
    lambda: gat2.backward(0, 16, {k: 16 for k in ("source", "destination", "weights", "scores", "activations")},
                          {k: 16 for k in ("source", "destination", "scores")}),
):
    try:
        call()
    except RuntimeError as error:
        native.append(error.function)
print(json.dumps([texts, native, gat.sizes, gat2.sizes, repr(largest), repr(gat2)]))
"""


@pytest.mark.feature("B001")
def test_arguments_are_checked_and_reach_the_newest_library(fresh: Any, cudnn_928: str) -> None:  # noqa: F811
    texts, native, sizes, sizes2, text, text2 = fresh(CODE, LAMINA_CUDNN=cudnn_928, CUDA_VISIBLE_DEVICES="")
    assert texts["max needs positions"] == "Aggregation.forward: positions must be given: its width is 4"
    assert texts["mean takes no nodes"] == "Aggregation.forward: nodes must be None: its width is 0"
    assert "node or edge must be more than 0" in texts["no width"]
    assert "known: sum, mean, max, min" in texts["no such op"]
    assert "data_type must be float32, float16 or bfloat16" in texts["no such type"]
    assert "node (7) and edge (0) must be multiples of heads (2)" in texts["heads"]
    assert "version must be 1 (GAT) or 2 (GATv2), got 3" in texts["version"]
    assert "version 2 takes edge 0 or node (8), got 4" in texts["v2 edge"]
    assert "one type for all gradients" in texts["v2 types"]
    assert "gradient_type must be data_type or float32" in texts["gradient"]
    assert texts["edges"] == "GraphAttention.forward: edges must be given: its width is 4"
    assert "gradients: missing ['weights']" in texts["missing"]
    assert "saved: unknown ['x']" in texts["unknown"]
    assert "reverse_positions and reverse_offsets" in texts["not reversible"]
    assert native == [
        "cudnnGnnAggSimpleForward", "cudnnGnnAggSimpleBackward", "cudnnGnnMhaGatForward", "cudnnGnnMhaGatBackward",
        "cudnnGnnMhaGatV2Forward", "cudnnGnnMhaGatV2Backward",
    ]  # fmt: skip
    assert sizes == [20, 24, 20, 0, 40, 60]
    assert sizes2 == [8, 12, 20, 40, 40, 24]
    assert "op=CUDNN_GNN_AGG_MAX" in text
    assert "version=2" in text2
