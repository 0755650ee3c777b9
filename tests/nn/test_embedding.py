"""Embeddings whose rows are scaled to a norm when they are looked up, compared with PyTorch's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim

pytestmark = [pytest.mark.torch, pytest.mark.feature("B044")]

TOKENS = np.array([[0, 1, 1], [1, 4, 0]])
TARGETS = np.ones((2, 3, 2), np.float32)


def both(**options: Any) -> tuple[Any, nn.Module]:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    theirs = torch.nn.Sequential(torch.nn.Embedding(6, 3, **options), torch.nn.Linear(3, 2))
    net = nn.Sequential(nn.Embedding(6, 3, **options), nn.Linear(3, 2))
    net.load_state_dict({name: p.detach().numpy() for name, p in theirs.state_dict().items()})
    return theirs, net


def trained(theirs: Any, steps: int) -> list[float]:
    import torch

    optimizer, losses = torch.optim.SGD(theirs.parameters(), lr=0.5), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(theirs(torch.tensor(TOKENS)), torch.tensor(TARGETS))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def compiled(net: nn.Module) -> Callable[[], Any]:
    step = lm.train_step(net, ops.mse_loss, optim.SGD(net.parameters(), lr=0.5), device="cpu")
    return lambda: step(TOKENS, TARGETS)


def by_hand(net: nn.Module, jit: bool) -> Callable[[], Any]:
    optimizer = optim.SGD(net.parameters(), lr=0.5)

    def step(net: nn.Module) -> Any:
        loss, grads = lm.value_and_grad(lambda net: ops.mse_loss(net(TOKENS), TARGETS))(net)
        optimizer.step(grads)
        return loss

    run = lm.jit(step) if jit else step
    return lambda: run(net)


WAYS = {
    "train_step": compiled, "op by op": lambda net: by_hand(net, False), "jit": lambda net: by_hand(net, True),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "options", [{"max_norm": 0.7}, {"max_norm": 1.0, "norm_type": 1.0, "padding_idx": 4}]
)
def test_rows_that_are_looked_up_keep_to_a_norm(way: str, options: dict[str, Any]) -> None:
    """The parameter itself is scaled, and the optimizer goes on from there."""
    theirs, net = both(**options)
    run = WAYS[way](net)
    np.testing.assert_allclose([float(run()) for _ in range(5)], trained(theirs, 5), rtol=1e-5)
    np.testing.assert_allclose(net[0].weight.numpy(), theirs[0].weight.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_rows_that_are_looked_up_in_half_precision_and_frozen_ones() -> None:
    theirs, net = both(max_norm=0.7)
    step = lm.train_step(
        net, ops.mse_loss, optim.SGD(net.parameters(), lr=0.5), precision="bf16", device="cpu"
    )
    unused = net[0].weight.numpy()[2].copy()
    losses = [float(step(TOKENS, TARGETS)) for _ in range(5)]
    np.testing.assert_allclose(losses, trained(theirs, 5), rtol=0.05, atol=0.02)
    np.testing.assert_array_equal(net[0].weight.numpy()[2], unused)
    theirs, net = both(max_norm=0.7)
    theirs[0].weight.requires_grad_(False)
    net[0].weight.requires_grad_(False)
    run = compiled(net)
    np.testing.assert_allclose([float(run()) for _ in range(3)], trained(theirs, 3), rtol=1e-5)
    np.testing.assert_allclose(net[0].weight.numpy(), theirs[0].weight.numpy(), rtol=1e-6)


def test_functions_scale_the_table_that_they_are_given() -> None:
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32) * 3
    for name in ("embedding", "embedding_bag"):
        table, other = lm.tensor(values), torch.tensor(values)
        found = getattr(ops, name)(TOKENS, table, max_norm=1.0)
        wanted = getattr(torch.nn.functional, name)(torch.tensor(TOKENS), other, max_norm=1.0)
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-5)
        np.testing.assert_allclose(table.numpy(), other.numpy(), rtol=1e-5)
    assert repr(nn.Embedding(6, 3, max_norm=1.0)) == "Embedding(6, 3, max_norm=1.0)"
    assert repr(nn.EmbeddingBag(6, 3, max_norm=1.0, norm_type=1.0)) == (
        "EmbeddingBag(6, 3, max_norm=1.0, norm_type=1.0, mode='mean')"
    )
    bag = nn.EmbeddingBag(6, 3, max_norm=1.0, _weight=values)
    bag(TOKENS)
    np.testing.assert_allclose(bag.weight.numpy(), table.numpy(), rtol=1e-6)
