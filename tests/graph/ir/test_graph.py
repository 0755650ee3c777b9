"""Tracing: operands decide, graphs print, compose, and hold only what their outputs need."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.graph import Graph, Value, gradients, trace
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


# ------------------------------------------------------------------------------- what is written over traced values


def _element(x: Any) -> Any:
    y = ops.sin(x)
    y[0] = 1
    return y * 2


def _through_a_view(x: Any) -> Any:
    y = ops.sin(x)
    y.view(-1)[3] = 7
    return y


def _seen_in_views(x: Any) -> Any:
    y = ops.sin(x)
    rows, columns = y[1:3], y.T
    columns[2] = 0
    rows[:, 0:2].fill_(9)
    y[3] += 1
    return y * 1, rows, columns, columns[1]


def _mask(x: Any) -> Any:
    y = ops.sin(x)
    y[y > 0.5] = 0
    return y.masked_fill_(y < -0.5, 3)


def _rows_of_zeros(x: Any) -> Any:
    y = ops.zeros_like(x)
    for i in range(4):
        y[i] = x[i] * (i + 1) + (y[i - 1] if i else 0)
    return y


def _one_of_two(x: Any) -> Any:
    y = x.clone()
    z = y.clone()
    y[0].mul_(2)
    z.zero_()
    return y, z + x


def _two_names(x: Any) -> Any:
    y = ops.sin(x)
    z = y
    z.clamp_(0, 1)
    return y


def _copied_into(x: Any) -> Any:
    y, z = x * 1, x * 2
    y.copy_(z)
    z.add_(1)  # y stays
    return y, z


def _exchanged(x: Any) -> Any:
    y = x * 1
    y[[0, 2]] = y[[1, 3]]
    return y


WRITES = [
    _element, _through_a_view, _seen_in_views, _mask, _rows_of_zeros, _one_of_two, _two_names, _copied_into,
    _exchanged,
]  # fmt: skip
SQUARE = np.random.default_rng(0).standard_normal((4, 4))


def _as_tuple(made: Any) -> tuple[Any, ...]:
    return made if isinstance(made, tuple) else (made,)


def _total(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: sum(ops.sum(y * y) for y in _as_tuple(f(x)))


@pytest.mark.feature("F102")
@pytest.mark.parametrize("f", WRITES)
def test_what_is_written_over_traced_values_is_as_on_tensors(f: Callable[[Any], Any]) -> None:
    wanted = [y.numpy() for y in _as_tuple(f(lm.tensor(SQUARE)))]
    found = _as_tuple(lm.jit(f)(SQUARE))
    many = _as_tuple(lm.vmap(f)(np.stack([SQUARE, 2 * SQUARE])))
    for y, z, w in zip(found, many, wanted, strict=True):
        np.testing.assert_allclose(y.numpy(), w, rtol=1e-12)
        np.testing.assert_allclose(z[0].numpy(), w, rtol=1e-12)


def test_a_part_of_a_part_may_be_taken_as_often_as_one_likes() -> None:
    def turned(x: Any) -> Any:
        for _ in range(1101):
            x = x.T
        return x.contiguous()

    (made,) = lm.trace(turned, Spec((2, 3), float32)).outputs
    assert made.shape == (3, 2)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "float32"])
def test_an_empty_part_of_a_traced_value_may_be_written(dtype: str) -> None:
    def f(x: Any) -> Any:
        y = x.clone()
        y[4:].copy_(x[4:])
        y[4:].mul_(2)
        return y

    x = lm.tensor(np.arange(4)).cast(dtype)
    found = lm.jit(f)(x)
    assert found.dtype == x.dtype
    assert found.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("f", WRITES)
def test_gradients_are_those_of_the_values_that_were_read(f: Callable[[Any], Any]) -> None:
    """Central differences; with a checkpoint, and of a gradient, too."""
    total, step = _total(f), 1e-6
    wanted = np.zeros_like(SQUARE)
    for at in np.ndindex(*SQUARE.shape):
        moved = np.zeros_like(SQUARE)
        moved[at] = step
        wanted[at] = (total(lm.tensor(SQUARE + moved)) - total(lm.tensor(SQUARE - moved))).item() / (2 * step)
    for way in (lm.grad(total), lm.jit(lm.grad(total)), lm.jit(lm.grad(lm.checkpoint(total)))):
        np.testing.assert_allclose(way(lm.tensor(SQUARE)).numpy(), wanted, atol=1e-7)
    ones = np.ones_like(SQUARE)
    value, along = lm.jvp(total, (lm.tensor(SQUARE),), (ones,))
    np.testing.assert_allclose(along.item(), wanted.sum(), atol=1e-6)
    assert value.item() == pytest.approx(total(lm.tensor(SQUARE)).item(), rel=1e-12)


def test_what_is_written_past_a_derivative_leaves_it_as_it_was() -> None:
    def f(x: Any) -> Any:
        y = ops.relu(x)
        y.data.mul_(2)
        y.data[0] = 5
        return ops.sum(y * x), y

    x = lm.tensor([1.0, 2.0, 3.0])
    for way in (lm.grad(f, has_aux=True), lm.jit(lm.grad(f, has_aux=True))):
        slope, y = way(x)
        assert y.tolist() == [5, 4, 6]
        assert slope.tolist() == [5 + 1, 4 + 2, 6 + 3]  # of y itself 1, as if it had not been written


def test_data_that_is_assigned_is_written_past_a_derivative() -> None:
    net = lm.nn.Linear(2, 1, bias=False)

    def loss(net: Any, x: Any) -> Any:
        net.weight.data = ops.clamp(net.weight.data, -1.0, 1.0)
        return ops.sum(net(x))

    x = lm.tensor([[3.0, 4.0]])
    for way in (lm.grad(loss), lm.jit(lm.grad(loss))):
        net.weight.data = lm.tensor([[2.0, 0.5]])
        assert way(net, x)["weight"].tolist() == [[3, 4]]
        assert net.weight.tolist() == [[1, 0.5]]


def test_numbers_of_a_written_value_are_those_that_it_holds() -> None:
    def f(x: Any) -> Any:
        y = x * 1
        y[0] = 7
        assert (y[0].item(), float(y.sum())) == (7, 9)
        return y.sum()

    assert lm.grad(f)(lm.tensor([1.0, 2.0])).tolist() == [0, 1]


def test_compiled_functions_write_the_data_of_tensors_that_they_close_over() -> None:
    slow, fast = lm.zeros(2, 2), lm.tensor([[1.0, 2.0], [3.0, 4.0]])

    @lm.jit
    def follow() -> Any:
        row = slow[1]
        slow.data.mul_(0.5).add_(fast.data, alpha=0.5)
        row[0] = 9
        return slow[1] * 1

    assert follow().tolist() == [9, 2]
    assert slow.tolist() == [[0.5, 1], [9, 2]]
    assert follow().tolist() == [9, 3]
    assert slow.tolist() == [[0.75, 1.5], [9, 3]]


def test_arguments_and_what_lies_outside_are_not_written() -> None:
    def f(x: Any) -> Any:
        x[0] = 1
        return ops.sum(x)

    for way in (lm.jit(f), lm.grad(f), lm.vmap(f), lm.jit(lm.grad(f))):
        with pytest.raises(TypeError, match=r"argument is its caller's.*x = x\.clone\(\)"):
            way(np.ones((2, 2)))
    with pytest.raises(TypeError, match=r"lamina\.trace is never written.*x = x\.at\[key\]\.set"):
        lm.trace(f, X)

    def outside(x: Any) -> Any:
        y = x * 2

        def inner(row: Any) -> Any:
            y.zero_()
            return row

        return lm.vmap(inner)(x)

    with pytest.raises(TypeError, match="of a surrounding trace is not written within vmap"):
        lm.jit(outside)(np.ones((2, 2)))
    with pytest.raises(ShapeError, match=r"copy_: cannot write shape \(3,\)"):
        lm.jit(lambda x: (x * 1).copy_(np.ones(3)))(np.ones(2))
    with pytest.raises(TypeError, match=r"unsqueeze_: a shape is settled.*x = x\.unsqueeze\(…\)"):
        lm.jit(lambda x: (x * 1).unsqueeze_(0))(np.ones(2))
