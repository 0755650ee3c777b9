"""Each pass does what it says and changes no result."""

import numpy as np
import pytest

import lamina as lm
from lamina import backends, ops
from lamina.graph import trace
from lamina.graph.passes import manager
from lamina.spec import Spec, float32

X = Spec((2, 16, 8, 8), float32)
CPU = backends.get(lm.device("cpu"))


def names(graph: lm.graph.Graph) -> list[str]:
    return [n.op.name for n in graph.nodes]


def test_constants_are_folded() -> None:
    graph = manager.fold_constants(
        trace(lambda x: x * (ops.sqrt(lm.tensor([4.0])) + 1.0), Spec((3,), float32))
    )
    assert names(graph) == ["mul"]
    assert graph.constants[0].constant.tolist() == [3.0]


def test_equal_nodes_and_equal_constants_are_merged() -> None:
    graph = manager.common_subexpressions(trace(lambda x: ops.exp(x * 2.0) + ops.exp(x * 2.0), X))
    assert names(graph) == ["mul", "exp", "add"]


def test_nodes_under_another_policy_are_not_merged() -> None:
    def f(a):  # type: ignore[no-untyped-def]
        with lm.policy(tf32=True):
            b = ops.matmul(a, a)
        return b + ops.matmul(a, a)

    assert names(manager.common_subexpressions(trace(f, Spec((4, 4), float32)))).count("matmul") == 2


def test_no_ops_are_dropped() -> None:
    def f(x):  # type: ignore[no-untyped-def]
        return ops.neg(ops.reshape(ops.cast(ops.transpose(x, (0, 1, 2, 3)), "float32"), x.shape))

    assert names(manager.drop_identities(trace(f, X))) == ["neg"]


def test_unused_pool_indices_are_pruned() -> None:
    graph = manager.prune_outputs(trace(lambda x: ops.max_pool2d(x, 2), X))
    assert len(graph.nodes[0].outputs) == 1


@pytest.mark.feature("F052", "B013")
def test_conv_bias_relu_become_one_node_on_the_cpu() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(X.shape).astype(np.float32)
    w, b = rng.standard_normal((32, 16, 3, 3)).astype(np.float32), rng.standard_normal(32).astype(np.float32)
    graph = trace(lambda x, w, b: ops.relu(ops.conv2d(x, w, b, padding=1)), x, w, b)
    fused = manager.optimize(graph, CPU)
    assert [n for n in names(fused) if n != "reshape"] == ["fused"]
    np.testing.assert_allclose(fused(x, w, b)[0].numpy(), graph(x, w, b)[0].numpy(), rtol=1e-4, atol=1e-4)


def test_a_value_with_two_readers_is_not_fused_away() -> None:
    def f(x, w):  # type: ignore[no-untyped-def]
        y = ops.conv2d(x, w)
        return ops.relu(y), ops.neg(y)

    graph = manager.fuse(trace(f, X, Spec((8, 16, 3, 3), float32)), CPU)
    assert "fused" not in names(graph)


def test_an_operand_made_after_the_head_is_not_pulled_before_it() -> None:
    def f(x, w):  # type: ignore[no-untyped-def]
        y = ops.conv2d(x, w, padding=1)
        return y + ops.exp(x)

    graph = trace(f, X, Spec((16, 16, 3, 3), float32))
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs)
    fused = manager.optimize(graph, CPU)
    np.testing.assert_allclose(fused(x, w)[0].numpy(), graph(x, w)[0].numpy(), rtol=1e-4, atol=1e-4)
