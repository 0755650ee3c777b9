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
    some = lm.grad(lambda net: ops.sum(net.weight))(net)  # another rank's loss may depend on the bias
    assert some.absent == {"bias"}
    assert distributed.all_reduce_each(some).absent == set()
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


def exchange_unread() -> list[bool]:
    """Whether compiled and line by line the same comes out where one rank alone reads what both exchange."""
    me = distributed.rank()

    def sent_alone(x: Any) -> Any:
        if me == 0:
            distributed.send(x * 2.0, 1)  # nobody reads the zeros
            return ops.sum(x)
        return ops.sum(distributed.receive(x, 0))

    def with_gradient(x: Any) -> Any:
        """The value of what rank 0 sends is needed by rank 1's gradient alone."""
        if me == 0:
            return ops.sum(x * x) + ops.sum(distributed.send(x * 2.0, 1))
        return ops.sum(distributed.receive(x, 0) * x)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Any) -> Any:
            sent_alone(x)
            return self.linear(x)

    x = np.arange(3, dtype=np.float32)
    found = []
    for function in (sent_alone, lm.grad(with_gradient), lm.value_and_grad(with_gradient)):
        pair = lm.jit(function)(x), function(x)
        compiled, plain = (y if isinstance(y, tuple) else (y,) for y in pair)
        found += [bool(np.allclose(a.numpy(), b.numpy())) for a, b in zip(compiled, plain, strict=True)]
    step = lm.train_step(Net(), ops.mse_loss, optim.SGD(0.1), device="cpu", keep_grads=True)
    step(x[None], x[None])
    assert step.grads is not None
    return [*found, sorted(step.grads) == ["linear.bias", "linear.weight"]]


def test_what_ranks_send_each_other_is_sent_whoever_reads_it() -> None:
    assert run_ranks(exchange_unread, 2) == [[True] * 5] * 2
