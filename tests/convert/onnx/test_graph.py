"""Whole models: initializers, functions, subgraphs, what is unknown, tracing and gradients."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import lamina as lm
from lamina.convert.onnx import OnnxError, OnnxGraph, UnknownValueError
from lamina.convert.onnx import graph as onnx_graph
from lamina.spec import ShapeError, Spec, float32
from tests.helpers.onnx_models import model

X = np.linspace(-1, 1, 2 * 3 * 6 * 5, dtype=np.float32).reshape(2, 3, 6, 5)


def network() -> onnx.ModelProto:
    """conv 3x3 > relu > a flattening whose shape is computed from the input's > product."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Shape", ["r"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Concat", ["n", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["r", "shape"], ["f"]),
        helper.make_node("Gemm", ["f", "v"], ["y"], transB=1),
    ]
    weights = {
        "w": rng.normal(size=(4, 3, 3, 3)).astype(np.float32),
        "b": rng.normal(size=4).astype(np.float32),
        "v": rng.normal(size=(7, 120)).astype(np.float32),
        "zero": np.array([0]),
        "rest": np.array([-1]),
    }
    return model(nodes, {"x": (2, 3, 6, 5)}, {"y": (2, 7)}, **weights)


def expected(proto: onnx.ModelProto) -> np.ndarray:
    w = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    c = lm.ops.relu(lm.ops.conv2d(lm.tensor(X), lm.tensor(w["w"]), lm.tensor(w["b"]), padding=1)).numpy()
    return c.reshape(2, -1) @ w["v"].T


def test_tensors_compute_and_traced_values_record_the_same() -> None:
    proto = network()
    graph = OnnxGraph(proto)
    (eager,) = graph({"x": X}).values()
    np.testing.assert_allclose(eager.numpy(), expected(proto), rtol=1e-5, atol=1e-4)
    recorded = graph.trace({"x": Spec(X.shape, float32)})
    assert [n.op.name for n in recorded.nodes if n.op.name in ("conv", "relu", "matmul")]
    assert "gather" not in {n.op.name for n in recorded.nodes}  # what is known of shapes is not recorded
    (compiled,) = lm.compile(recorded, "cpu")(lm.tensor(X))
    np.testing.assert_allclose(compiled.numpy(), eager.numpy(), rtol=1e-5, atol=1e-5)


def test_gradients_reach_the_initializers() -> None:
    proto = network()
    graph = OnnxGraph(proto)
    weights = {n: t for n, t in graph.initializers.items() if t.dtype == float32}

    def loss(given: dict) -> object:
        graph.initializers.update(given)
        return lm.ops.sum(lm.ops.square(graph({"x": X})["y"]))

    grads = lm.grad(loss)(weights)
    graph.initializers.update(weights)
    y = expected(proto)
    w = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    c = lm.ops.relu(lm.ops.conv2d(lm.tensor(X), lm.tensor(w["w"]), lm.tensor(w["b"]), padding=1)).numpy()
    np.testing.assert_allclose(grads["v"].numpy(), 2 * y.T @ c.reshape(2, -1), rtol=1e-4, atol=1e-3)
    assert grads["w"].shape == (4, 3, 3, 3)


def test_an_input_may_replace_an_initializer() -> None:
    proto = model(
        [helper.make_node("Add", ["x", "w"], ["y"])], {"x": (2,), "w": (2,)}, {"y": (2,)}, w=np.ones(2, "f")
    )
    graph = OnnxGraph(proto)
    assert graph.inputs == ("x",)
    np.testing.assert_array_equal(graph({"x": np.zeros(2, "f")})["y"].numpy(), [1, 1])
    np.testing.assert_array_equal(
        graph({"x": np.zeros(2, "f"), "w": np.full(2, 5, "f")})["y"].numpy(), [5, 5]
    )


def test_the_models_own_functions_take_their_callers_attributes() -> None:
    body = [helper.make_node("LeakyRelu", ["a"], ["t"]), helper.make_node("Add", ["t", "t"], ["b"])]
    reference = onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    body[0].attribute.append(reference)
    function = helper.make_function(
        "own", "Doubled", ["a"], ["b"], body, [helper.make_opsetid("", 22)], ["slope"]
    )
    node = helper.make_node("Doubled", ["x"], ["y"], domain="own", slope=0.5)
    proto = model([node], {"x": (2,)}, {"y": (2,)})
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    found = OnnxGraph(proto)({"x": np.array([-2, 3], "f")})["y"].numpy()
    np.testing.assert_array_equal(found, [-2, 6])


def test_a_function_may_be_called_without_its_first_input() -> None:
    body = [helper.make_node("Clip", ["b", "a", "c"], ["y"])]
    function = helper.make_function(
        "own", "Bound", ["a", "b", "c"], ["y"], body, [helper.make_opsetid("", 22)]
    )
    proto = model([helper.make_node("Bound", ["", "x"], ["y"], domain="own")], {"x": (2,)}, {"y": (2,)})
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    np.testing.assert_array_equal(OnnxGraph(proto)({"x": np.array([-2, 3], "f")})["y"].numpy(), [-2, 3])


def test_operators_are_of_the_versions_that_model_and_function_name() -> None:
    """Softmax of opset 12 and before takes all axes from the second on as one; a model without a version is of 1."""
    softmax = helper.make_node("Softmax", ["a"], ["b"])
    x = X[:, :, :2, :4]
    flat = np.exp(x) / np.exp(x).sum((1, 2, 3), keepdims=True)
    last = np.exp(x) / np.exp(x).sum(-1, keepdims=True)

    def of_function(opset: int, inner: int) -> onnx.ModelProto:
        proto = model(
            [helper.make_node("Own", ["x"], ["y"], domain="own")], {"x": x.shape}, {"y": x.shape}, opset
        )
        versions = [helper.make_opsetid("", inner)]
        proto.functions.append(helper.make_function("own", "Own", ["a"], ["b"], [softmax], versions))
        proto.opset_import.append(helper.make_opsetid("own", 1))
        return proto

    unversioned = model([softmax], {"a": x.shape}, {"b": x.shape})
    del unversioned.opset_import[:]
    named = model([softmax], {"a": x.shape}, {"b": x.shape}, 13)
    named.opset_import[0].domain = "ai.onnx"
    for proto, wanted in (
        (model([softmax], {"a": x.shape}, {"b": x.shape}, 12), flat),
        (model([softmax], {"a": x.shape}, {"b": x.shape}, 13), last),
        (unversioned, flat),
        (named, last),
        (of_function(22, 11), flat),
        (of_function(11, 22), last),
    ):
        graph = OnnxGraph(proto)
        (found,) = graph({graph.inputs[0]: x}).values()
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5)


def test_what_is_missing_or_unknown_is_named() -> None:
    graph = OnnxGraph(network())
    with pytest.raises(OnnxError, match=r"the graph's inputs \['x'\] are not given; given are \['image'\]"):
        graph({"image": X})
    with pytest.raises(OnnxError, match=r"\['z'\] are no inputs of the graph, which has \['x'\]"):
        graph({"x": X, "z": X})
    proto = model([helper.make_node("Frobnicate", ["x"], ["y"], name="f1")], {"x": (2,)}, {"y": (2,)})
    assert OnnxGraph(proto).unknown_operators() == ["Frobnicate"]
    with pytest.raises(OnnxError, match=r"Frobnicate 'f1': the operator has no handler"):
        OnnxGraph(proto)({"x": np.zeros(2, "f")})
    proto = model([helper.make_node("Relu", ["q"], ["y"], name="r1")], {"x": (2,)}, {"y": (2,)})
    with pytest.raises(OnnxError, match=r"Relu 'r1': no node before it makes its inputs \['q'\]"):
        OnnxGraph(proto)({"x": np.zeros(2, "f")})
    proto = model([helper.make_node("Relu", ["x"], ["z"])], {"x": (2,)}, {"y": (2,)})
    with pytest.raises(OnnxError, match=r"no node makes the outputs \['y'\]"):
        OnnxGraph(proto)({"x": np.zeros(2, "f")})


def test_nodes_say_where_ops_and_their_errors_come_from() -> None:
    """By the node's name, or that of what it makes, below the module that calls the graph."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="/head/MatMul"),
        helper.make_node("Relu", ["h"], ["y"]),
    ]
    proto = model(nodes, {"x": (2, 3)}, {"y": (2, 4)}, w=np.ones((3, 4), np.float32))
    recorded = OnnxGraph(proto).trace({"x": Spec((2, 3), float32)})
    assert [n.origin.module for n in recorded.nodes] == ["/head/MatMul", "y"]
    net = lm.nn.Sequential(lm.nn.Linear(5, 3), lm.convert.from_onnx(proto))
    inner = lm.graph.trace(net, Spec((2, 5), float32)).nodes
    assert [n.origin.module for n in inner][-2:] == ["1./head/MatMul", "1.y"]
    for run in (net[1], lm.jit(net[1])):
        with pytest.raises(ShapeError) as caught:
            run(np.ones((2, 7), np.float32))
        assert caught.value.__notes__[0] == "in MatMul '/head/MatMul'"


def test_numbers_that_decide_shapes_must_be_known_while_tracing() -> None:
    node = helper.make_node("Reshape", ["x", "shape"], ["y"], name="view")
    proto = model([node], {"x": (6,), "shape": (TensorProto.INT64, (2,))}, {"y": (2, 3)})
    graph = OnnxGraph(proto)
    specs = {"x": Spec((6,), float32), "shape": Spec((2,), lm.int64)}
    with pytest.raises(
        UnknownValueError, match=r"Reshape 'view': input 1 \('shape'\) decides shapes"
    ) as caught:
        graph.trace(specs)
    assert caught.value.input == "shape"
    recorded = graph.trace(specs | {"shape": np.array([2, 3])})
    assert [v.spec.shape for v in recorded.outputs] == [(2, 3)]


def test_as_many_nodes_as_are_allowed_run_in_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round counts as one, and so does each node within."""
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Add", ["a", "x"], ["b"]), helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [info("i", 7, []), info("go", 9, []), info("a", 1, None)],
        [info("on", 9, []), info("b", 1, None)],
    )
    node = helper.make_node("Loop", ["", "", "x"], ["y"], body=body)
    node.input[0] = "count"
    proto = model([node], {"x": (1,), "count": (TensorProto.INT64, ())}, {"y": (1,)})
    monkeypatch.setattr(onnx_graph, "MOST_STEPS", 1 + 3 * 4)
    given = {"x": np.ones(1, "f"), "count": np.array(4)}
    assert OnnxGraph(proto)(given)["y"].numpy() == 5
    with pytest.raises(OnnxError, match="loops and functions take more than 13 nodes in one call"):
        OnnxGraph(proto)({**given, "count": np.array(5)})


def test_loops_and_functions_without_end_are_refused() -> None:
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [],
        "body",
        [info("i", 7, []), info("go", 9, []), info("a", 1, None)],
        [info("go", 9, []), info("a", 1, None)],
    )
    node = helper.make_node("Loop", ["", "", "x"], ["y"], body=body)
    with pytest.raises(OnnxError, match="loops and functions take more than 50000 nodes in one call"):
        OnnxGraph(model([node], {"x": (1,)}, {"y": (1,)}))({"x": np.ones(1, "f")})
    call = helper.make_node("F", ["a"], ["b"], domain="own")
    proto = model([helper.make_node("F", ["x"], ["y"], domain="own")], {"x": (1,)}, {"y": (1,)})
    proto.functions.append(
        helper.make_function("own", "F", ["a"], ["b"], [call], [helper.make_opsetid("own", 1)])
    )
    with pytest.raises(OnnxError, match="functions and subgraphs lie more than 64 deep in one another"):
        OnnxGraph(proto)({"x": np.ones(1, "f")})
