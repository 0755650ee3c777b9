"""Which tensors decide shapes, and which are statistics; handlers ask for no other numbers than they declare."""

from itertools import chain

import numpy as np
import pytest
from onnx import helper

from lamina.convert.onnx import OnnxError, OnnxGraph, OnnxNode, node
from lamina.convert.onnx.analysis import beside_statistics, decisive, nodes_of, statistics
from lamina.convert.onnx.body import body_of_graph
from tests.helpers.onnx_models import model
from tests.judges import onnx_nodes


def test_what_shapes_are_computed_from_decides_and_what_depends_on_inputs_does_not() -> None:
    make = helper.make_node
    nodes = [
        make("Mul", ["half", "two"], ["scales"]), make("Resize", ["x", "", "scales"], ["r"]),
        make("Add", ["r", "w"], ["a"]), make("Shape", ["a"], ["s"]), make("Cast", ["s"], ["t"], to=7),
        make("Reshape", ["x", "t"], ["q"]), make("NonZero", ["a"], ["z"]), make("Add", ["q", "v"], ["y"]),
    ]  # fmt: skip
    body = body_of_graph(
        model(nodes, {"x": (1,)}, {"y": (1,)}, half=np.ones(1, "f"), two=np.ones(1, "f")).graph
    )
    assert decisive(body, ["x"], {}) == {"scales", "half", "two", "t", "s"}


def test_statistics_and_what_is_beside_them_are_found_in_functions_too() -> None:
    norm = helper.make_node("BatchNormalization", ["x", "w", "b", "m", "v"], ["y"])
    outer = body_of_graph(model([norm], {"x": (1, 2, 3)}, {"y": (1, 2, 3)}).graph)
    assert statistics(outer, {}) == {"m", "v"}
    assert beside_statistics(outer) == {"w", "b", "m", "v"}
    call = helper.make_node("Norm", ["x", "w", "b", "m2", "v2"], ["y"], domain="mine")
    caller = body_of_graph(model([call], {"x": (1, 2, 3)}, {"y": (1, 2, 3)}).graph)
    function = type(outer)(("x", "w", "b", "m", "v"), ("y",), {}, outer.steps, {})
    assert statistics(caller, {("mine", "Norm"): function}) == {"m2", "v2"}


def test_nodes_of_subgraphs_are_among_the_nodes() -> None:
    info = helper.make_tensor_value_info("z", 1, None)
    branch = helper.make_graph([helper.make_node("Relu", ["x"], ["z"])], "b", [], [info])
    node_ = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    body = body_of_graph(model([node_], {"x": (1,)}, {"y": (1,)}, c=np.array(True)).graph)
    assert [s.operator for s in nodes_of(body)] == ["If", "Relu", "Relu"]
    assert decisive(body, ["x"], {}) == {"c"}


@pytest.mark.slow
def test_handlers_declare_the_inputs_whose_numbers_they_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, set[int]] = {}
    known = OnnxNode.known

    def watched(self: OnnxNode, index: int) -> object:
        asked.setdefault(self.operator, set()).add(index)
        return known(self, index)

    monkeypatch.setattr(OnnxNode, "known", watched)
    for name in chain(*onnx_nodes.agreeing().values()):
        case = onnx_nodes.cases()[name]
        for inputs, _ in onnx_nodes.data_sets(case):
            try:
                OnnxGraph(case.model)(inputs)
            except OnnxError:  # gradients are of recorded graphs
                onnx_nodes.run(OnnxGraph(case.model), inputs)
    declared = dict[str, set[int]]()
    for (_, name), found in node.KNOWN.items():  # some names have operators of several domains
        declared.setdefault(name, set()).update(found)
    assert {n: i - declared[n] for n, i in asked.items() if i - declared[n]} == {}
