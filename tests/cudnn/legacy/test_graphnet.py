"""Graph neural network calls: refused by name on an older library; argument checks on the newest."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from lamina.c import cudnn as c
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


# ------------------------------------------------------------------------------------------- what the calls are told


class Told:
    """A library that has all graph neural network calls and keeps the arguments of each, by C's names.

    asked: the functions that were looked for. calls: (function, arguments without graph and None).
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.calls: list[tuple[str, dict[str, Any]]] = []
        patch.setattr(graphnet, "require", lambda *names: self.asked.extend(names))
        for name in (n for n in dir(c) if n.startswith("cudnnGnn") and inspect.isfunction(getattr(c, n))):
            patch.setattr(c, name, self._keeper(name, inspect.signature(getattr(c, name))))

    def _keeper(self, name: str, signature: inspect.Signature) -> Any:
        def keep(*arguments: Any) -> None:
            given = signature.bind(*arguments).arguments
            self.calls.append((name, {k: v for k, v in given.items() if v is not None and k != "graph"}))

        return keep


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


def small_graph() -> graphnet.CSCGraph:
    return graphnet.CSCGraph(
        1, 2, sources=3, destinations=4, edges=5, edge_positions=6, reverse_positions=7, reverse_offsets=8
    )


@pytest.mark.feature("B001")
def test_a_graph_is_what_it_was_made_of(told: Told) -> None:
    native = small_graph().native
    assert [getattr(native, name) for name, *_ in native._fields_] == [
        1, 2, 6, 7, 3, 4, 5, int(c.CUDNN_DATA_INT32), 8,
    ]  # fmt: skip
    whole = small_graph()
    half = graphnet.CSCGraph(1, 2, sources=3, destinations=4, edges=5, reverse_positions=7)
    assert (whole.reversible, half.reversible) == (True, False)
    assert repr(whole) == "CSCGraph(sources=3, destinations=4, edges=5, index_type='int32')"


@pytest.mark.feature("B001")
@pytest.mark.parametrize("op", ["sum", "mean", "max", "min"])
def test_what_aggregation_is_told(told: Told, op: str) -> None:
    made = graphnet.Aggregation(small_graph(), node=2, edge=3, concat=4, op=op, data_type="float16")
    places = {"positions": 15} if op in ("max", "min") else {}
    made.forward(9, 11, nodes=12, edges=13, concat=14, **places)
    made.backward(9, 21, dnodes=22, dedges=23, dconcat=24, **places)
    common = {
        "stream": 9,
        "nodeFeatDim": 2,
        "edgeFeatDim": 3,
        "concatFeatDim": 4,
        "dataType": c.CUDNN_DATA_HALF,
    }
    common |= {"aggOp": c.cudnnGnnAggOp_t[f"CUDNN_GNN_AGG_{op.upper()}"]}
    common |= {"outPositions": 15} if places else {}
    features = ("nodeFeatures", "edgeFeatures", "concatFeatures")
    gradients = ("gradNodeFeatures", "gradEdgeFeatures", "gradConcatFeatures")
    assert told.calls == [
        (
            "cudnnGnnAggSimpleForward",
            {"output": 11, **dict(zip(features, (12, 13, 14), strict=True))} | common,
        ),
        (
            "cudnnGnnAggSimpleBackward",
            {"gradOutput": 21, **dict(zip(gradients, (22, 23, 24), strict=True))} | common,
        ),
    ]


@pytest.mark.feature("B001")
@pytest.mark.parametrize("version", [1, 2])
def test_what_attention_is_told(told: Told, version: int) -> None:
    """Each version calls the functions of its own, which it looks for when it is made."""
    stem = {1: "cudnnGnnMhaGat", 2: "cudnnGnnMhaGatV2"}[version]
    graph = small_graph()
    told.asked.clear()
    types: dict[str, Any] = {
        "data_type": "bfloat16",
        "gradient_type": "float32",
        "weight_gradient_type": "float32",
    }
    made = graphnet.GraphAttention(graph, node=8, edge=8, heads=2, version=version, activation="elu", **types)
    assert told.asked == [f"{stem}Forward", f"{stem}Backward"]
    kept = {"source": 11, "destination": 12, "edges": 13, "weights": 14, "scores": 15, "dropout": 16}
    kept |= {"activations": 17} if version == 2 else {}
    width = {"activations": 17} if version == 2 else {}
    made.forward(9, 11, 12, 14, 18, 15, edges=13, dropout=16, **width)
    gradients = {"source": 21, "destination": 22, "edges": 23, "weights": 24, "scores": 25}
    made.backward(9, 28, kept, gradients, dattention=29, workspaces=(31, 32))
    inputs = {
        "stream": 9, "srcFeatures": 11, "dstFeatures": 12, "edgeFeatures": 13, "attnWeights": 14, "smScores": 15,
        "dropoutMask": 16, "dimNode": 8, "params": made._parameters, "dataType": c.CUDNN_DATA_BFLOAT16,
    }  # fmt: skip
    inputs |= {"actScores": 17} if version == 2 else {"dimEdge": 8}
    outputs = {
        "gradOut": 28, "gradAttention": 29, "gradSrcFeatures": 21, "gradDstFeatures": 22, "gradEdgeFeatures": 23,
        "gradWeights": 24, "gradSmScores": 25, "gradWspaceFeat": 31, "gradWspaceWeights": 32,
    }  # fmt: skip
    kinds = ("gradType",) if version == 2 else ("gradDataType", "gradWeightType")
    outputs |= dict.fromkeys(kinds, c.CUDNN_DATA_FLOAT)
    assert told.calls == [(f"{stem}Forward", inputs | {"output": 18}), (f"{stem}Backward", inputs | outputs)]
    assert bytes(made._parameters) == bytes(c.cudnnGnnMhaParams_t(int(made.activation), 0.2, 2, 1))


@pytest.mark.feature("B001")
def test_gradients_have_the_datas_type_unless_another_is_named(told: Told) -> None:
    graph = small_graph()
    plain = graphnet.GraphAttention(graph, node=8, data_type="float16")
    assert (plain.gradient_type, plain.weight_gradient_type) == (c.CUDNN_DATA_HALF,) * 2
    mixed = graphnet.GraphAttention(graph, node=8, data_type="float16", weight_gradient_type="float32")
    assert (mixed.gradient_type, mixed.weight_gradient_type) == (c.CUDNN_DATA_HALF, c.CUDNN_DATA_FLOAT)
    with pytest.raises(ValueError, match="version 2 takes one type for all gradients"):
        graphnet.GraphAttention(graph, node=8, version=2, data_type="float16", weight_gradient_type="float32")
