"""Handlers of branches and loops agree with ONNX's own tests."""

from typing import Any

import numpy as np
import onnx
import pytest

import lamina as lm
from lamina import ops
from lamina.convert.onnx import OnnxError, OnnxGraph, control
from lamina.spec import ShapeError
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


def test_a_loop_that_never_runs_gives_no_rows_of_what_a_run_would_give() -> None:
    make = onnx.helper.make_node
    body = _body(
        make("Identity", ["go"], ["on"]), make("Mul", ["a", "a"], ["b"]),
        make("Concat", ["b", "b"], ["each"], axis=0), inputs=["i", "go", "a"], outputs=["on", "b", "each"],
    )  # fmt: skip
    node = make("Loop", ["count", "", "x"], ["last", "all"], body=body)
    proto = model([node], {"x": (3,)}, {"last": (3,), "all": (0, 6)}, count=np.array(0))
    found = OnnxGraph(proto)({"x": np.array([1, 2, 3], np.float32)})
    assert found["last"].numpy().tolist() == [1, 2, 3]
    assert found["all"].shape == (0, 6)


def _rows(operator: str) -> onnx.ModelProto:
    """The rows of x [n, 2] doubled, and one more than their sum, by a Loop that gathers them or by a Scan."""
    make = onnx.helper.make_node
    body_nodes = [make("Add", ["row", "row"], ["each"]), make("Add", ["s", "row"], ["t"])]
    if operator == "Scan":
        body = _body(*body_nodes, inputs=["s", "row"], outputs=["t", "each"])
        made = [make("Scan", ["start", "x"], ["last", "all"], body=body, num_scan_inputs=1)]
    else:
        gather = make("Gather", ["x", "i"], ["row"])
        keep = make("Identity", ["go"], ["on"])
        body = _body(gather, keep, *body_nodes, inputs=["i", "go", "s"], outputs=["on", "t", "each"])
        made = [
            make("Shape", ["x"], ["n"], start=0, end=1),
            make("Loop", ["n", "", "start"], ["last", "all"], body=body),
        ]
    start = np.ones(2, np.float32)
    return model(made, {"x": ("n", 2)}, {"last": (2,), "all": ("n", 2)}, start=start)


@pytest.mark.parametrize("operator", ["Loop", "Scan"])
def test_of_no_rows_nothing_is_computed_but_the_shapes(operator: str) -> None:
    """A body that gathers the row of its turn cannot run on nothing; how many columns it gives is known."""
    net = lm.convert.from_onnx(_rows(operator))
    for run in (net, lm.jit(net)):
        for n in (2, 0):
            x = np.arange(2 * n, dtype=np.float32).reshape(n, 2)
            last, each = run(x)
            np.testing.assert_array_equal(last.numpy(), 1 + x.sum(0))
            np.testing.assert_array_equal(each.numpy(), 2 * x)


def test_a_loop_whose_turns_have_their_own_sizes_gives_no_rows_of_the_first() -> None:
    make = onnx.helper.make_node
    body = _body(
        make("Identity", ["go"], ["on"]), make("Unsqueeze", ["i", "zero"], ["size"]),
        make("ConstantOfShape", ["size"], ["each"]), inputs=["i", "go"], outputs=["on", "each"],
    )  # fmt: skip
    node = make("Loop", ["count", ""], ["all"], body=body)
    proto = model([node], {}, {"all": (0, 0)}, count=np.array(0), zero=np.array([0]))
    assert OnnxGraph(proto)({})["all"].shape == (0, 0)


def _halving(bound: int | None, **more: onnx.NodeProto) -> onnx.ModelProto:
    """x halved until its sum is less than 1, `bound` times at most."""
    make = onnx.helper.make_node
    body = _body(
        make("Mul", ["a", "half"], ["b"]), make("ReduceSum", ["b"], ["s"], keepdims=0),
        make("GreaterOrEqual", ["s", "one"], ["on"]), *more.values(),
        inputs=["i", "go", "a"], outputs=["on", "b", *more],
    )  # fmt: skip
    outputs = ["y", *(f"all_{name}" for name in more)]
    node = make("Loop", ["count" if bound else "", "", "x"], outputs, body=body)
    held = {"half": np.float32(0.5), "one": np.float32(1)} | ({"count": np.array(bound)} if bound else {})
    return model([node], {"x": (2,)}, dict.fromkeys(outputs, (2,)), **held)


def test_a_condition_that_numbers_decide_ends_a_bounded_loop() -> None:
    net = lm.convert.from_onnx(_halving(6))
    for run in (net, lm.jit(net)):
        for start, wanted in ((6.0, 0.375), (0.5, 0.25), (1000.0, 1000 / 64)):
            np.testing.assert_array_equal(run(np.full(2, start, np.float32)).numpy(), [wanted, wanted])


def test_a_loop_without_a_bound_runs_op_by_op_and_says_so_when_it_is_compiled() -> None:
    x = np.full(2, 6, np.float32)
    net = lm.convert.from_onnx(_halving(None))
    np.testing.assert_array_equal(net(x).numpy(), [0.375, 0.375])
    with pytest.raises(
        OnnxError, match=r"Loop: with more than 1000 runs the condition \('on'\) decides shapes"
    ):
        lm.jit(net)(x)
    each = lm.convert.from_onnx(_halving(6, each=onnx.helper.make_node("Identity", ["b"], ["each"])))
    assert each(x)[1].shape == (4, 2)
    with pytest.raises(OnnxError, match="Loop: with a result for each run the condition"):
        lm.jit(each)(x)
    unread = _halving(6, each=onnx.helper.make_node("Identity", ["b"], ["each"]))
    del unread.graph.output[1]
    net = lm.convert.from_onnx(unread)
    for run in (net, lm.jit(net)):
        np.testing.assert_array_equal(run(x).numpy(), [0.375, 0.375])


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


def test_a_branch_that_the_shapes_do_not_allow() -> None:
    """As in models with a branch for each sampling rate, of which one fits the length of the input: programs are of
    the branch of their call, and where there is no call of the one that can run."""
    make, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    bodies = {
        name: onnx.helper.make_graph(
            [make("MatMul", ["x", w], ["a"]), make("ArgMax", ["a"], ["i"], axis=0, keepdims=0)][: 1 + both],
            name,
            [],
            [info("a", onnx.TensorProto.FLOAT, None), info("i", onnx.TensorProto.INT64, None)][: 1 + both],
        )
        for both in (False, True)
        for name, w in ((f"then{both}", "w3"), (f"else{both}", "w2"))
    }
    weights = {"w2": np.ones((2, 4), np.float32), "w3": np.ones((3, 4), np.float32)}

    def net(both: bool) -> Any:
        names = ["y", "k"][: 1 + both]
        node = make("If", ["c"], names, then_branch=bodies[f"then{both}"], else_branch=bodies[f"else{both}"])
        proto = model([node], {"x": (5, 3)}, dict(zip(names, [(5, 4), (4,)], strict=False)), **weights)
        proto.graph.input.append(info("c", onnx.TensorProto.BOOL, []))
        return lm.convert.from_onnx(proto)

    one, two = net(False), net(True)
    compiled = lm.jit(one)
    for x, truth in ((np.ones((5, 3), np.float32), True), (np.ones((5, 2), np.float32), False)):
        found = compiled(x, np.array(truth))
        assert found.numpy().tolist() == one(x, np.array(truth)).numpy().tolist() == [[x.shape[1]] * 4] * 5
        assert lm.jit(two)(x, np.array(truth))[1].shape == (4,)
        with pytest.raises(ShapeError, match="matmul"):
            compiled(x, np.array(not truth))
        with pytest.warns(UserWarning, match="If.*cannot run on inputs of these shapes"):
            graph = lm.trace(one, x, np.array(truth))
        assert graph(x, np.array(truth))[0].numpy().tolist() == found.numpy().tolist()
        assert np.isnan(graph(x, np.array(not truth))[0].numpy()).all()
        with pytest.raises(ShapeError, match="matmul"):  # an integer has no NaN
            lm.trace(two, x, np.array(truth))


def test_branches_of_two_shapes_are_those_of_the_call() -> None:
    bodies = {
        name: _body(onnx.helper.make_node("ReduceSum", ["x"], ["a"], keepdims=keep), inputs=[], outputs=["a"])
        for name, keep in (("then_branch", 0), ("else_branch", 1))
    }
    nodes = [
        onnx.helper.make_node("Greater", ["k", "x"], ["c"]),
        onnx.helper.make_node("If", ["c"], ["y"], **bodies),
    ]
    net = lm.convert.from_onnx(model(nodes, {"x": (1,)}, {"y": ()}, k=np.zeros(1, np.float32)))
    compiled = lm.jit(net)
    for number in (1, -1, 1):
        x = np.full(1, number, np.float32)
        assert compiled(x).numpy().tolist() == net(x).numpy().tolist() == (x.tolist() if x[0] > 0 else x[0])
    assert len(compiled._programs) == 2
    with pytest.raises(OnnxError, match="must be known while the graph is recorded"):
        lm.trace(net, x)
