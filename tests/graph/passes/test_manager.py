"""Each pass does what it says and changes no result."""

import numpy as np
import pytest

import lamina as lm
from lamina import backends, ops
from lamina.backends.cuda import backend as cuda_backend
from lamina.graph import trace
from lamina.graph.passes import manager
from lamina.spec import Spec, bfloat16, float32, int64

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


def test_updates_read_half_gradients_themselves() -> None:
    def f(p, g, m, rate):  # type: ignore[no-untyped-def]
        return ops.sgd_update(p, ops.cast(g, "float32"), m, rate, momentum=0.9)

    p, g = Spec((3,), float32), Spec((3,), bfloat16)
    graph = trace(f, p, g, p, Spec((), float32))
    slim = manager.absorb_casts(graph)
    assert names(slim) == ["sgd_update"]
    arrays = [np.ones(v.shape, v.dtype.numpy) for v in graph.inputs]
    for found, expected in zip(slim(*arrays), graph(*arrays), strict=True):
        np.testing.assert_array_equal(found.numpy(), expected.numpy())


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


def test_updates_run_as_soon_as_the_old_value_is_dead() -> None:
    def f(p, x):  # type: ignore[no-untyped-def]
        a = p * x
        b = ops.exp(a)
        for _ in range(3):
            b = ops.tanh(b)
        return p + 1.0, b

    graph = trace(f, Spec((4,), float32), Spec((4,), float32))
    order = [n.op.name for n in manager.schedule(graph, {0: 0})]
    assert order.index("add") == order.index("mul") + 1


def _cuda() -> backends.Backend:
    """A value: nothing is opened."""
    pytest.importorskip("cuda.core")
    return cuda_backend(lm.runtime.Device("cuda:0"))


def _updates(count: int, size: int) -> lm.graph.Graph:
    def f(rate, *values):  # type: ignore[no-untyped-def]
        results = []
        for i in range(count):
            p, g, m = values[3 * i : 3 * i + 3]
            half = ops.cast(p, "bfloat16")
            results += [
                *ops.sgd_update(p, half * half, m, rate, momentum=0.9),
                half + ops.cast(g, "bfloat16"),
            ]
        return results

    specs = [Spec((size, i + 1), float32) for i in range(count) for _ in range(3)]
    return trace(f, Spec((), float32), *specs)


def test_small_updates_and_roundings_are_grouped_where_a_kernel_takes_many() -> None:
    cuda = _cuda()
    graph = _updates(5, 3)
    grouped = manager.group_small(graph, cuda)
    assert names(grouped).count("group") == 2
    assert names(grouped).count("sgd_update") == names(grouped).count("cast") == 0
    rng = np.random.default_rng(0)
    arrays = [np.float32(0.1), *(rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs[1:])]
    for found, expected in zip(grouped(*arrays), graph(*arrays), strict=True):
        np.testing.assert_array_equal(found.numpy(), expected.numpy())


def test_large_updates_go_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "GROUP_LIMIT", 5)
    grouped = manager.group_small(_updates(5, 2), _cuda())
    assert names(grouped).count("sgd_update") == 3  # of 2, 4, 6, 8 and 10 elements


def test_nothing_is_grouped_where_no_kernel_takes_many() -> None:
    graph = _updates(3, 2)
    assert manager.group_small(graph, CPU).nodes == graph.nodes


def test_roundings_of_weights_are_not_mixed_with_those_of_images() -> None:
    cuda = _cuda()
    graph = trace(lambda *xs: [ops.cast(x, "bfloat16") for x in xs], *[Spec((4,), float32)] * 4)
    mixed = manager.group_small(graph, cuda)
    assert [len(n.inputs) for n in mixed.nodes] == [4]
    apart = manager.group_small(graph, cuda, set(graph.inputs[:3]))
    assert sorted(len(n.inputs) for n in apart.nodes) == [1, 3]


def test_counts_are_made_by_one_launch() -> None:
    """Sums of single numbers that are there from the start; not those that wait for others, or for more numbers."""

    def f(*counts):  # type: ignore[no-untyped-def]
        return [*(c + 1 for c in counts[:3]), counts[3] + counts[0] * counts[1], counts[4] + 1]

    specs = [Spec((), int64)] * 4 + [Spec((2,), int64)]
    grouped = manager.group_small(trace(f, *specs), _cuda())
    assert sorted(names(grouped)) == ["add", "add", "group", "mul"]
    arrays = [np.int64(3), np.int64(5), np.int64(7), np.int64(9), np.array([1, 2])]
    for found, expected in zip(grouped(*arrays), (4, 6, 8, 24, [2, 3]), strict=True):
        np.testing.assert_array_equal(found.numpy(), expected)
