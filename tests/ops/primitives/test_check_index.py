"""Labels and indices out of range: an IndexError on a CPU, wherever they are met."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from lamina.ops.primitives import CheckIndex
from lamina.ops.primitives.check_index import check_index

X = np.ones((4, 3, 2), np.float32)


def test_value_place_and_range_are_named() -> None:
    check_index("gather", np.array([0, 2, -7]), 3, ignore=-7)
    with pytest.raises(
        IndexError, match=r"gather: index 3 at position \(1, 0\) is outside 0 … 2; 1 of 4 are"
    ):
        check_index("gather", np.array([[0, 1], [3, 2]]), 3)
    with pytest.raises(IndexError, match="outside nothing, as there are 0 to choose from"):
        check_index("gather", np.array([0]), 0)


@pytest.mark.parametrize("function", [ops.cross_entropy, ops.nll_loss])
def test_a_compiled_training_step_refuses_them(function: object) -> None:
    """The parameters stay what they were."""
    net = nn.Linear(3, 5)
    before = net.weight.numpy().copy()
    step = lm.train_step(net, function, optim.SGD(0.1), device="cpu")
    images = np.ones((4, 3), np.float32)
    step(images, np.array([0, 1, 4, -100]))
    after = net.weight.numpy().copy()
    assert (after != before).any()
    with pytest.raises(IndexError, match="index 5 at position 2 is outside 0 … 4"):
        step(images, np.array([0, 1, 5, 2]))
    np.testing.assert_array_equal(net.weight.numpy(), after)


def test_in_a_compiled_graph() -> None:
    rows = lm.compile(lm.trace(lambda i, w: ops.embedding(i, w), np.array([0, 1]), X[0]), "cpu")
    assert rows(np.array([2, 0]), X[0])[0].shape == (2, 2)
    with pytest.raises(IndexError, match="embedding: index 3 at position 1 is outside 0 … 2"):
        rows(np.array([0, 3]), X[0])
    hot = lm.compile(lm.trace(lambda i: ops.one_hot(i, 3), np.array([0, 1])), "cpu")
    with pytest.raises(IndexError, match="one_hot: index -1 at position 0 is outside 0 … 2"):
        hot(np.array([-1, 0]))


def test_the_policy_asks_for_the_check_on_a_gpu() -> None:
    """Losses and embeddings look at their labels themselves on a CPU; the policy adds the op that a GPU needs."""
    for asked in (False, True):
        with lm.policy(check_indices=asked):
            graph = lm.trace(lambda x, t: ops.cross_entropy(x, t), X, np.zeros((4, 2), np.int64))
        assert ("check_index" in str(graph)) == asked
    assert CheckIndex("one_hot", 3).differentiable is False


WATCHED: dict[str, Callable[[Any, Any], Any]] = {
    "gather": lambda x, i: ops.gather(x, 0, i),
    "scatter": lambda x, i: ops.scatter(x, 0, i, x),
    "scatter_add": lambda x, i: ops.scatter_add(x, 0, i, x),
    "index_select": lambda x, i: ops.index_select(x, 0, i),
    "index_add": lambda x, i: ops.index_add(x, 0, i, x),
    "getitem": lambda x, i: x[i],
}


@pytest.mark.parametrize("name", WATCHED)
@pytest.mark.parametrize("traced", [False, True])
def test_indices_count_from_the_front_and_from_the_back(name: str, traced: bool) -> None:
    """From -n to n - 1, also where the policy asks for a look at each."""
    x = lm.tensor(np.arange(4.0, dtype=np.float32))
    run = lm.jit(WATCHED[name]) if traced else WATCHED[name]
    for asked in (False, True):
        with lm.policy(check_indices=asked):
            for good in ([0, 1, 2, 3], [-4, -3, -2, -1], [0, -1, 0, -4]):
                run(x, lm.tensor(np.array(good)))
            for bad in ([0, 1, 2, 4], [0, 1, 2, -5]):
                with pytest.raises(IndexError):
                    run(x, lm.tensor(np.array(bad)))
