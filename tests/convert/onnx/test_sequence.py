"""Sequences and optional values agree with ONNX's own tests."""

import numpy as np
import pytest
from onnx import helper

from lamina.convert.onnx import OnnxError, OnnxGraph, sequence
from tests.helpers.onnx_models import agrees, model, node_tests


@pytest.mark.parametrize("name", node_tests(sequence))
def test_onnx_own_tests_agree(name: str) -> None:
    agrees(name)


def test_what_is_no_sequence_and_places_outside_are_refused() -> None:
    at = helper.make_node("SequenceAt", ["x", "n"], ["y"], "at")
    graph = OnnxGraph(model([at], {"x": (2,)}, {"y": (2,)}, n=np.array(0)))
    with pytest.raises(OnnxError, match="SequenceAt 'at': input 0 must be a sequence"):
        graph({"x": np.zeros(2, "f")})
    with pytest.raises(OnnxError, match="SequenceAt 'at': IndexError"):
        graph({"x": []})
    insert = helper.make_node("SequenceInsert", ["x", "t", "n"], ["y"])
    graph = OnnxGraph(model([insert], {"x": (2,)}, {"y": (2,)}, n=np.array(5), t=np.zeros(1)))
    with pytest.raises(OnnxError, match="place 5 is outside of a sequence of 0"):
        graph({"x": []})


def test_an_optional_value_is_asked_for_and_taken() -> None:
    has = helper.make_node("OptionalHasElement", ["o"], ["y"])
    nodes = [helper.make_node("Optional", [], ["o"]), has]
    assert not OnnxGraph(model(nodes, {}, {"y": ()}))({})["y"].item()
    get = helper.make_node("OptionalGetElement", ["o"], ["y"])
    with pytest.raises(OnnxError, match="the optional value is absent"):
        OnnxGraph(model([nodes[0], get], {}, {"y": ()}))({})
