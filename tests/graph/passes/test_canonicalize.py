"""Equal things get one form, and no result changes."""

import pytest

import lamina as lm
from lamina import ops
from lamina.graph import trace
from lamina.graph.passes import canonicalize
from lamina.spec import Spec, as_dtype, float32

X = Spec((2, 16, 8, 8), float32)


def names(graph: lm.graph.Graph) -> list[str]:
    return [n.op.name for n in graph.nodes]


def test_constants_are_folded() -> None:
    graph = canonicalize.fold_constants(
        trace(lambda x: x * (ops.sqrt(lm.tensor([4.0])) + 1.0), Spec((3,), float32))
    )
    assert names(graph) == ["mul"]
    assert graph.constants[0].constant.tolist() == [3.0]


def test_equal_nodes_and_equal_constants_are_merged() -> None:
    graph = canonicalize.common_subexpressions(trace(lambda x: ops.exp(x * 2.0) + ops.exp(x * 2.0), X))
    assert names(graph) == ["mul", "exp", "add"]


def test_nodes_under_another_policy_are_not_merged() -> None:
    def f(a):  # type: ignore[no-untyped-def]
        with lm.policy(tf32=True):
            b = ops.matmul(a, a)
        return b + ops.matmul(a, a)

    assert names(canonicalize.common_subexpressions(trace(f, Spec((4, 4), float32)))).count("matmul") == 2


def test_no_ops_are_dropped() -> None:
    def f(x):  # type: ignore[no-untyped-def]
        return ops.neg(ops.reshape(ops.cast(ops.permute(x, (0, 1, 2, 3)), "float32"), x.shape))

    assert names(canonicalize.drop_identities(trace(f, X))) == ["neg"]


def test_identities_are_dropped_but_for_outputs_that_are_inputs() -> None:
    """A graph's outputs are made by its nodes, since results have memory of their own."""

    def f(x, y):  # type: ignore[no-untyped-def]
        parts = [ops.identity(p) for p in (x[:1], x[1:])]
        return ops.identity(ops.cat(parts[::-1], 0)), ops.identity(ops.identity(y))

    graph = canonicalize.drop_identities(trace(f, X, X))
    assert names(graph).count("identity") == 1
    assert graph.outputs[1].node is not None
    x, y = ops.randn(X.shape), ops.randn(X.shape)
    for found, right in zip(lm.jit(f)(x, y), f(x, y), strict=True):
        assert (found == right).all()


def test_reshapes_in_a_row_are_one_or_none() -> None:
    def f(x):  # type: ignore[no-untyped-def]
        there = x.reshape((2, 16, 64))
        return there.reshape(x.shape) * 2.0, there.reshape((32, 64))

    graph = canonicalize.drop_identities(trace(f, X))
    assert sorted(names(graph)) == ["mul", "reshape"]
    assert all(node.inputs[0] is graph.inputs[0] for node in graph.nodes)


def test_transpositions_in_a_row_are_one_or_none() -> None:
    def f(x):  # type: ignore[no-untyped-def]
        there = ops.permute(x, (1, 2, 0, 3))
        return ops.neg(ops.permute(there, (2, 0, 1, 3))), ops.exp(ops.permute(there, (3, 0, 1, 2)))

    graph = canonicalize.drop_identities(trace(f, X))
    assert names(graph) == ["neg", "transpose", "exp"]
    assert graph.nodes[1].op.order == (3, 1, 2, 0)


@pytest.mark.parametrize(
    ("given", "wide", "back", "stays"),
    [
        ("bfloat16", "float32", "bfloat16", False),
        ("float16", "float64", "float16", False),
        ("int32", "int64", "int32", False),
        ("float16", "bfloat16", "float16", True),  # fewer digits
        ("bfloat16", "float16", "bfloat16", True),  # overflows
        ("int64", "float64", "int64", True),  # beyond 2 ** 53
        ("bfloat16", "float32", "float16", True),
        ("float32", "bfloat16", "float32", True),
    ],
)
def test_casts_that_take_back_wider_ones_are_dropped(given: str, wide: str, back: str, stays: bool) -> None:
    graph = canonicalize.drop_identities(
        trace(lambda x: x.cast(wide).cast(back), Spec((4,), as_dtype(given)))
    )
    assert [node.op.name for node in graph.nodes] == ["cast"] * (2 * stays)


def test_products_with_one_are_dropped() -> None:
    graph = canonicalize.drop_identities(trace(lambda x: ops.neg(1.0 * (x * lm.tensor([1.0]))), X))
    assert names(graph) == ["neg"]


def test_products_that_change_something_stay() -> None:
    """Another factor, a factor that widens the shape, one that no constant gives."""
    wide = canonicalize.drop_identities(trace(lambda x: x * lm.tensor([[1.0]]), Spec((3,), float32)))
    other = canonicalize.drop_identities(trace(lambda x: x * 2.0, X))
    given = canonicalize.drop_identities(trace(lambda x, y: x * y, X, X))
    assert names(wide) == names(other) == names(given) == ["mul"]


def test_unused_pool_indices_are_pruned() -> None:
    graph = canonicalize.prune_outputs(trace(lambda x: ops.max_pool2d(x, 2), X))
    assert len(graph.nodes[0].outputs) == 1
