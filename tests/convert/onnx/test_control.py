"""Handlers of branches and loops agree with ONNX's own tests."""

import numpy as np
import onnx
import pytest

import lamina as lm
from lamina import ops
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


def test_a_condition_that_numbers_decide_chooses_between_both_branches() -> None:
    make, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    bodies = {
        name: onnx.helper.make_graph(
            [make(operator, ["x", "w"], ["a"])], name, [], [info("a", onnx.TensorProto.FLOAT, None)]
        )
        for name, operator in (("then_branch", "Mul"), ("else_branch", "Add"))
    }
    nodes = [
        make("ReduceSum", ["x"], ["s"], keepdims=0), make("Greater", ["s", "zero"], ["c"]),
        make("If", ["c"], ["y"], **bodies),
    ]  # fmt: skip
    weights = {"w": np.full(3, 5, np.float32), "zero": np.float32(0)}
    net = lm.convert.from_onnx(model(nodes, {"x": (3,)}, {"y": (3,)}, **weights))
    x, compiled = np.array([1, 2, 3], np.float32), lm.jit(net)
    for run in (net, compiled):
        np.testing.assert_array_equal(run(x).numpy(), x * 5)
        np.testing.assert_array_equal(run(-x).numpy(), -x + 5)
    step = lm.train_step(net, lambda y, _: ops.mean(y), lm.optim.SGD(lr=3.0))
    step(-x, np.zeros(1, np.float32))  # the sum's gradient by w is 1/3
    np.testing.assert_allclose(step.net.state_dict()["w"].numpy(), 4)


def test_branches_of_two_shapes_need_a_condition_that_is_known() -> None:
    bodies = {
        name: _body(onnx.helper.make_node("ReduceSum", ["x"], ["a"], keepdims=keep), inputs=[], outputs=["a"])
        for name, keep in (("then_branch", 0), ("else_branch", 1))
    }
    nodes = [
        onnx.helper.make_node("Greater", ["k", "x"], ["c"]),
        onnx.helper.make_node("If", ["c"], ["y"], **bodies),
    ]
    net = lm.convert.from_onnx(model(nodes, {"x": (1,)}, {"y": ()}, k=np.zeros(1, np.float32)))
    x = np.ones(1, np.float32)
    assert net(x).numpy().tolist() == [1]
    with pytest.raises(OnnxError, match="must be known while the graph is recorded"):
        lm.jit(net)(x)
