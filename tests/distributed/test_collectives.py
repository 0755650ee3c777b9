"""Collective operations on tensors, in graphs and compiled, with their gradients, on several ranks."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import distributed, nn, ops, optim
from lamina.distributed import Group
from lamina.spec import ShapeError
from tests.helpers.collective_programs import check
from tests.helpers.ranks import run_ranks


@pytest.mark.feature("B032", "B055")
@pytest.mark.parametrize(("launcher", "ranks"), [("variables", 3), ("mpirun", 2)])
def test_values_and_gradients(launcher: Any, ranks: int) -> None:
    assert run_ranks(check, ranks, launcher=launcher) == [[]] * ranks


def test_one_rank_gets_what_it_gives() -> None:
    assert check_alone() == []


def test_gradients_stay_those_of_their_module() -> None:
    net = nn.Linear(2, 1)
    gradients = lm.grad(lambda net: ops.sum(net(np.ones((1, 2), np.float32))))(net)
    before = net.weight.numpy().copy()
    optim.SGD(net.parameters(), lr=0.5).step(distributed.all_reduce_each(gradients))
    np.testing.assert_array_equal(net.weight.numpy(), before - 0.5)
    assert distributed.all_reduce_each({}) == {}


def check_alone() -> list[str]:
    x = lm.tensor(np.arange(6, dtype=np.float32).reshape(1, 6))
    given = {
        "all_reduce": distributed.all_reduce(x, "mean"),
        "all_gather": distributed.all_gather(x)[0],
        "reduce_scatter": distributed.reduce_scatter(x).reshape(1, 6),
        "broadcast": distributed.broadcast(x),
        "all_to_all": distributed.all_to_all(x),
        "send_receive": distributed.send_receive(x, 0, 0),
        "each": distributed.all_reduce_each([x])[0],
    }
    return [name for name, y in given.items() if not np.array_equal(y.numpy(), x.numpy())]


def test_errors() -> None:
    x = lm.zeros(3)
    with pytest.raises(
        ShapeError, match=r"reduce_scatter: axis 0 must have one part for each of the 1 ranks, got f32\[3\]"
    ):
        distributed.reduce_scatter(x)
    with pytest.raises(ValueError, match="broadcast: src=1 is not among ranks 0"):
        distributed.broadcast(x, 1)
    for one_sided in (distributed.send, distributed.receive):
        with pytest.raises(ValueError, match=r"send_receive: .* on rank 0: .* in the same call, as both"):
            one_sided(x, 0)
    with pytest.raises(ValueError, match=r"ranks \(0, 1\) needs a world of more than 1"):
        distributed.all_reduce(x, group=Group(0, 1))
    with pytest.raises(lm.DTypeError, match="all_reduce: the mean of .* is no integer; cast it"):
        distributed.all_reduce(lm.tensor([1, 2]), "mean")
    with pytest.raises(ValueError, match="bucket_bytes must be at least 1"):
        distributed.all_reduce_each([x], bucket_bytes=0)
    with pytest.raises(TypeError, match="vmap: all_reduce takes all ranks"):
        lm.vmap(lambda x: distributed.all_reduce(x))(lm.zeros(2, 3))
