"""Collective operations as values: specs, errors, and their meaning where all ranks give the same."""

import numpy as np
import pytest

from lamina.backends.reference import run_reference
from lamina.graph import gradients, trace
from lamina.graph.ir import serialize
from lamina.ops.core import bind
from lamina.ops.primitives import collective as c
from lamina.spec import Group, ShapeError, Spec, float32

TWO, X = Group(0, 1), np.arange(4, dtype=np.float32).reshape(2, 2)


@pytest.mark.parametrize(
    ("op", "result"),
    [
        (c.AllReduce(TWO, "sum"), 2 * X),
        (c.AllReduce(TWO, "mean"), X),
        (c.AllGather(TWO), np.stack([X, X])),
        (c.ReduceScatter(TWO, "sum"), 2 * X[0]),
        (c.Broadcast(TWO, 1), X),
        (c.AllToAll(TWO), np.stack([X[0], X[0]])),
        (c.Exchange(TWO, 1, None), np.zeros_like(X)),
    ],
)
def test_meaning_where_all_ranks_give_the_same(op: c.Collective, result: np.ndarray) -> None:
    np.testing.assert_array_equal(run_reference(op, [X])[0], result)


def test_text_names_the_ranks() -> None:
    assert str(c.AllReduce(Group(0, 1, 2), "mean")) == "all_reduce(ranks 0-2, reduction=mean)"


@pytest.mark.parametrize(
    ("op", "error", "message"),
    [
        (
            c.AllToAll(TWO),
            ShapeError,
            r"all_to_all: axis 0 must have one part for each of the 2 ranks, got f32\[3\]",
        ),
        (c.Broadcast(TWO, 2), ValueError, "broadcast: root=2 is no place in a group of 2 ranks"),
        (c.Exchange(TWO, -1, 0), ValueError, "exchange: to=-1 is no place in a group of 2 ranks"),
    ],
)
def test_errors(op: c.Collective, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        op.infer(Spec((3,), float32))


def test_a_graph_with_them_is_kept_in_a_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    graph = trace(lambda x: bind(c.AllReduce(TWO, "mean"), x)[0], Spec((3,), float32))
    serialize.save(graph, tmp_path / "graph")
    assert serialize.load(tmp_path / "graph").nodes[0].op == c.AllReduce(TWO, "mean")


def test_what_has_no_gradient_says_so() -> None:
    def f(x):  # type: ignore[no-untyped-def]
        return gradients(bind(c.ReduceScatter(TWO, "max"), x)[0].sum(), [x])

    with pytest.raises(NotImplementedError, match="reduce_scatter: max has no gradient"):
        trace(f, Spec((2, 2), float32))
