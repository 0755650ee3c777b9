"""Graphs and functions as they are read: attributes, references, subgraphs."""

import numpy as np
import pytest
from onnx import helper

from lamina.convert.onnx import OnnxError, OnnxGraph
from lamina.convert.onnx.body import body_of_function, body_of_graph, domain, read_by
from tests.helpers.onnx_models import model


def test_nodes_hold_attributes_as_values_and_subgraphs_as_bodies() -> None:
    info = helper.make_tensor_value_info("z", 1, None)
    branch = helper.make_graph([helper.make_node("Relu", ["x"], ["z"])], "b", [], [info])
    node = helper.make_node("If", ["c"], ["y"], "pick", then_branch=branch, else_branch=branch)
    body = body_of_graph(model([node], {"x": (1,)}, {"y": (1,)}, c=np.array(True)).graph)
    (step,) = body.steps
    assert (body.inputs, body.outputs, list(body.initializers)) == (("x",), ("y",), ["c"])
    assert (step.key, str(step), step.inputs, step.outputs) == (("", "If"), "If 'pick'", ("c",), ("y",))
    assert [b.steps[0].operator for b in step.bodies] == ["Relu", "Relu"]


def test_functions_hold_defaults_and_references() -> None:
    node = helper.make_node("LeakyRelu", ["x"], ["y"])
    reference = node.attribute.add(name="alpha", type=1)
    reference.ref_attr_name = "slope"
    made = helper.make_function(
        "mine", "Leak", ["x"], ["y"], [node], [helper.make_opsetid("", 20)],
        attribute_protos=[helper.make_attribute("slope", 0.5)],
    )  # fmt: skip
    body = body_of_function(made)
    assert dict(body.attributes) == {"slope": 0.5}
    assert dict(body.steps[0].references) == {"alpha": "slope"}
    assert body.steps[0].attributes == {}


def test_the_own_domain_has_two_names() -> None:
    assert (domain("ai.onnx"), domain(""), domain("mine")) == ("", "", "mine")


def test_nodes_stand_behind_those_that_make_what_they_read() -> None:
    """Programs that rewrite models append what they add; subgraphs read from around them."""
    info = helper.make_tensor_value_info("z", 1, None)
    branch = helper.make_graph([helper.make_node("Relu", ["late"], ["z"])], "b", [], [info])
    nodes = [
        helper.make_node("Identity", ["x"], ["a"]), helper.make_node("If", ["c"], ["y"], then_branch=branch,
        else_branch=branch), helper.make_node("Neg", ["later"], ["late"]), helper.make_node("Abs", ["a"], ["b"]),
        helper.make_node("Exp", ["b"], ["later"]),
    ]  # fmt: skip
    proto = model(nodes, {"x": (1,)}, {"y": (1,)}, c=np.array(True)).graph
    order = [step.operator for step in body_of_graph(proto).steps]
    assert order == ["Identity", "Abs", "Exp", "Neg", "If"]
    assert read_by(body_of_graph(proto).steps[-1]) == {"c", "late"}


def test_outputs_that_nothing_reads_are_omitted() -> None:
    make, info = helper.make_node, helper.make_tensor_value_info
    then = helper.make_graph([make("Neg", ["mask"], ["a"])], "then", [], [info("a", 1, None)])
    nodes = [
        make("MaxPool", ["x"], ["y", "places"]),
        make("Dropout", ["y"], ["z", "mask"]),
        make("LayerNormalization", ["z", "s"], ["unread", "mean", "deviation"]),
        make("If", ["c"], ["b"], then_branch=then, else_branch=then),
    ]
    inputs = [info(n, 1, None) for n in ("x", "s", "c")]
    body = body_of_graph(helper.make_graph(nodes, "g", inputs, [info(n, 1, None) for n in ("b", "mean")]))
    assert [step.outputs for step in body.steps] == [("y", ""), ("z", "mask"), ("unread", "mean", ""), ("b",)]
    function = helper.make_function("own", "F", ["x"], ["z"], nodes[:2], [helper.make_opsetid("", 17)])
    assert [step.outputs for step in body_of_function(function).steps] == [("y", ""), ("z", "")]


def test_nodes_in_a_circle_stay() -> None:
    nodes = [helper.make_node("Neg", ["b"], ["a"]), helper.make_node("Neg", ["a"], ["b"])]
    graph = model(nodes, {"x": (1,)}, {"b": (1,)})
    assert [step.inputs for step in body_of_graph(graph.graph).steps] == [("b",), ("a",)]
    with pytest.raises(OnnxError, match="no node before it makes its inputs"):
        OnnxGraph(graph)({"x": np.ones(1, np.float32)})
