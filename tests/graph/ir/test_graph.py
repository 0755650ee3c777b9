"""Tracing: operands decide, graphs print, compose, and hold only what their outputs need."""

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.graph import Graph, Value, gradients, trace
from lamina.graph.ir.graph import constant, numbers_of, tensor_of
from lamina.spec import ShapeError, Spec, float32, float64, int64

X = Spec((2, 3), float32)


@pytest.mark.feature("F102", "F105")
def test_values_record_producers_and_consumers() -> None:
    graph = trace(lambda x, y: ops.relu(x * y), X, X)
    assert [n.op.name for n in graph.nodes] == ["mul", "relu"]
    assert graph.nodes[1].inputs[0].node is graph.nodes[0]
    uses = graph.uses()
    assert uses[graph.nodes[0].outputs[0]][0].node is graph.nodes[1]
    assert uses[graph.outputs[0]] == [(None, 0)]


@pytest.mark.feature("F103")
def test_an_op_is_wired_infers_shapes_and_runs_forward_and_backward() -> None:
    """One op of two operands: the graph around it, its result's spec, its values and both gradients; and a misfit."""
    w_spec = Spec((3, 4), float32)
    graph = trace(lambda x, w: ops.matmul(x, w), X, w_spec)
    (node,) = graph.nodes
    assert tuple(node.inputs) == tuple(graph.inputs)
    assert tuple(graph.outputs) == tuple(node.outputs)
    assert (graph.outputs[0].shape, graph.outputs[0].dtype) == ((2, 4), float32)
    with pytest.raises(ShapeError, match="matmul"):
        trace(lambda x, w: ops.matmul(x, w), X, X)
    rng = np.random.default_rng(0)
    x, w, g = (rng.standard_normal(s).astype(np.float32) for s in ((2, 3), (3, 4), (2, 4)))
    (y,) = graph(x, w)
    np.testing.assert_allclose(y.numpy(), x @ w, rtol=1e-6)
    loss = trace(lambda x, w: tuple(gradients(ops.sum(ops.matmul(x, w) * g), [x, w])), X, w_spec)
    assert [v.shape for v in loss.outputs] == [(2, 3), (3, 4)]
    dx, dw = loss(x, w)
    np.testing.assert_allclose(dx.numpy(), g @ w.T, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dw.numpy(), x.T @ g, rtol=1e-5, atol=1e-6)


def test_the_same_function_computes_on_tensors_and_records_on_values() -> None:
    def f(x):  # type: ignore[no-untyped-def]
        return ops.tanh(x + 1.0) * 2.0

    x = lm.tensor([[0.5, -1.0, 2.0]])
    (y,) = trace(f, x)(x)
    np.testing.assert_array_equal(y.numpy(), f(x).numpy())
    np.testing.assert_allclose(y.numpy(), np.tanh(x.numpy() + 1) * 2, rtol=1e-6)


@pytest.mark.feature("F104")
def test_dead_nodes_are_not_in_the_graph_and_order_is_topological() -> None:
    def f(x):  # type: ignore[no-untyped-def]
        ops.exp(x)  # nobody reads it
        a = ops.neg(x)
        return a + ops.abs(a)

    graph = trace(f, X)
    assert [n.op.name for n in graph.nodes] == ["neg", "abs", "add"]


@pytest.mark.feature("F109")
def test_branches_several_inputs_and_outputs_and_composition() -> None:
    inner = trace(lambda a, b: (a + b, a - b), X, X)

    def outer(x, y):  # type: ignore[no-untyped-def]
        total, difference = inner(x, y)
        return {"product": total * difference, "sum": [total]}

    graph = trace(outer, X, X)
    x, y = np.float32([[1, 2, 3], [4, 5, 6]]), np.ones((2, 3), np.float32)
    product, total = graph(x, y)
    np.testing.assert_array_equal(product.numpy(), x * x - y * y)
    np.testing.assert_array_equal(total.numpy(), x + y)


def test_text_names_inputs_constants_attributes_and_outputs() -> None:
    text = str(trace(lambda x: ops.sum(x * 2.0, dim=1), X, names=["image"]))
    assert "%image: f32[2,3]" in text
    assert "constant 2.0" in text
    assert "reduce" in text
    assert "axes=(1,)" in text
    assert text.splitlines()[-1].strip().startswith("return %")


def test_tensors_in_a_trace_become_constants() -> None:
    w = lm.tensor(np.ones((3, 4), np.float32))
    graph = trace(lambda x: ops.matmul(x, w), X)
    assert [c.shape for c in graph.constants] == [(3, 4)]
    np.testing.assert_array_equal(graph(np.ones((2, 3), np.float32))[0].numpy(), np.full((2, 4), 3.0))


def test_a_value_of_another_trace_is_refused() -> None:
    leaked: list[Value] = []
    trace(lambda x: leaked.append(x) or ops.neg(x), X)
    with pytest.raises(ValueError, match="input of another trace; pass it as an argument"):
        trace(lambda x: x + leaked[0], X)


def test_a_branch_on_data_is_refused() -> None:
    with pytest.raises(TypeError, match="no truth value"):
        trace(lambda x: x if ops.sum(x) else -x, X)
    with pytest.raises(TypeError, match="no numbers yet"):
        trace(lambda x: ops.neg(np.asarray(x)), X)


def test_numbers_of_constants_are_known_while_a_function_is_compiled() -> None:
    """A shape may depend on them; of what is computed from constants alone, too."""
    others = ~np.eye(3, dtype=np.bool_)
    x = np.arange(9, dtype=np.float32).reshape(3, 3)
    row = x[0]
    f = lm.jit(lambda x: x[ops.logical_not(constant(~others))] * float(ops.sum(constant(row)) + 1))
    np.testing.assert_array_equal(f(x).numpy(), x[others] * 4)


def test_a_graph_checks_its_operands() -> None:
    graph = trace(lambda x: ops.neg(x), X, names=["x"])
    with pytest.raises(TypeError, match="takes 1 operands, got 2"):
        graph(1, 2)
    with pytest.raises(ValueError, match=r"input x has shape \(2, 3\), got \(3,\)"):
        graph(np.zeros(3, np.float32))
    with pytest.raises(TypeError, match="input x is float32, got float64"):
        graph(lm.zeros((2, 3), dtype="float64"))


def test_policies_are_recorded_with_nodes() -> None:
    def f(x):  # type: ignore[no-untyped-def]
        with lm.policy(tf32=True):
            y = ops.matmul(x, ops.transpose(x, 0, 1))
        return ops.matmul(y, y)

    policies = [n.policy.tf32 for n in trace(f, X).nodes if n.op.name == "matmul"]
    assert policies == [True, False]


def test_a_function_without_operands_gives_constants() -> None:
    graph = trace(lambda: np.float64(3.0))
    assert isinstance(graph, Graph)
    assert graph.outputs[0].spec == Spec((), float64)
    assert trace(lambda x: x, Spec((4,), int64)).nodes == []


def test_numbers_of_values_follow_from_shapes_alone() -> None:
    x = Value(Spec((2, 3), float32))
    first = ops.add(ops.ones_like(ops.mul(x, 2.0)), 1.0)
    found = numbers_of(first)
    assert found is not None
    assert found.tolist() == [[2.0] * 3] * 2
    assert tensor_of(first) is None  # it is computed in each run, as others
    assert numbers_of(ops.mul(first, x)) is None
