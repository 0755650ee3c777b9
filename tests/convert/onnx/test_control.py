"""Handlers of branches and loops agree with ONNX's own tests."""

import numpy as np
import onnx
import pytest

from lamina.convert.onnx import OnnxError, OnnxGraph, control
from tests.helpers.onnx_models import agrees, model, node_tests


@pytest.mark.parametrize("name", node_tests(control))
def test_onnx_own_tests_agree(name: str) -> None:
    agrees(name)


def _body(*nodes: onnx.NodeProto, inputs: list[str], outputs: list[str]) -> onnx.GraphProto:
    info = onnx.helper.make_tensor_value_info
    kinds = {"i": onnx.TensorProto.INT64, "go": onnx.TensorProto.BOOL}
    made = [
        [info(n, kinds.get(n, onnx.TensorProto.FLOAT), None) for n in names] for names in (inputs, outputs)
    ]
    return onnx.helper.make_graph(list(nodes), "body", *made)


def test_a_loop_runs_while_its_condition_holds_and_stacks_what_each_run_gives() -> None:
    make = onnx.helper.make_node
    body = _body(
        make("Add", ["a", "a"], ["b"]), make("Identity", ["go"], ["on"]), make("Identity", ["b"], ["each"]),
        inputs=["i", "go", "a"], outputs=["on", "b", "each"],
    )  # fmt: skip
    node = make("Loop", ["count", "", "x"], ["last", "all"], body=body)
    proto = model([node], {"x": (1,)}, {"last": (1,), "all": (3, 1)}, count=np.array(3))
    found = OnnxGraph(proto)({"x": np.array([1], np.float32)})
    assert found["last"].numpy().tolist() == [8]
    assert found["all"].numpy().tolist() == [[2], [4], [8]]


def test_a_loop_that_never_runs_has_no_shape_for_what_each_run_gives() -> None:
    body = _body(
        onnx.helper.make_node("Identity", ["go"], ["on"]), onnx.helper.make_node("Identity", ["i"], ["each"]),
        inputs=["i", "go"], outputs=["on", "each"],
    )  # fmt: skip
    node = onnx.helper.make_node("Loop", ["count"], ["all"], body=body)
    proto = model([node], {}, {"all": (0,)}, count=np.array(0))
    with pytest.raises(OnnxError, match="Loop: runs no time"):
        OnnxGraph(proto)({})
