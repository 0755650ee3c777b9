"""LAMB and LARS against the algorithms of their papers in float64."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, optim
from tests.helpers.optimizers import SHAPES, Array, assert_as_formula, rate_at


@pytest.mark.feature("F111")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("betas", "weight_decay", "maximize"), [((0.9, 0.999), 0.0, False), ((0.5, 0.8), 0.1, True)]
)
def test_lamb_is_its_papers(
    betas: tuple[float, float], weight_decay: float, maximize: bool, shape: Any
) -> None:
    def lamb(p: Array, g: Array, moments: list[Array], t: int, rate: float) -> Array:
        g = -g if maximize else g
        moments[0] = betas[0] * moments[0] + (1 - betas[0]) * g
        moments[1] = betas[1] * moments[1] + (1 - betas[1]) * g * g
        ratio = moments[0] / (1 - betas[0] ** t) / (np.sqrt(moments[1] / (1 - betas[1] ** t)) + 1e-6)
        update = ratio + weight_decay * p
        weights, size = np.linalg.norm(p.ravel()), np.linalg.norm(update.ravel())
        return p - rate * (weights / size if weights * size > 0 else 1.0) * update

    assert_as_formula(optim.LAMB(rate_at, betas, weight_decay=weight_decay, maximize=maximize), lamb, shape)


@pytest.mark.feature("F111")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("momentum", "weight_decay", "eps", "maximize"), [(0.9, 0.0, 0.0, False), (0.5, 0.1, 1e-2, True)]
)
def test_lars_is_its_papers(
    momentum: float, weight_decay: float, eps: float, maximize: bool, shape: Any
) -> None:
    def lars(p: Array, g: Array, moments: list[Array], t: int, rate: float) -> Array:
        g = -g if maximize else g
        weights, size = np.linalg.norm(p.ravel()), np.linalg.norm(g.ravel())
        divisor = size + weight_decay * weights + eps
        local = 0.02 * weights / divisor if weights * divisor > 0 else 1.0
        moments[0] = momentum * moments[0] + rate * local * (g + weight_decay * p)
        return p - moments[0]

    optimizer = optim.LARS(rate_at, momentum, weight_decay, 0.02, eps, maximize=maximize)
    assert_as_formula(optimizer, lars, shape)


def test_norms_of_zero_leave_the_rate_as_it_is() -> None:
    zeros, ones = lm.zeros((3,)), lm.ones((3,))
    for optimizer in (optim.LARS(0.5), optim.LAMB(0.5, (0.0, 0.0), eps=0.0)):
        new: Any = optimizer.update(zeros, ones, optimizer.init(zeros), np.float32(0.5))[0]
        np.testing.assert_allclose(new.numpy(), -0.5, rtol=1e-6)
        still: Any = optim.LARS(0.5).update(ones, zeros, optim.LARS().init(ones), np.float32(0.5))[0]
        np.testing.assert_array_equal(still.numpy(), ones.numpy())


def test_blocks_of_a_large_tensor_have_one_norm() -> None:
    """More elements than the blocks in which a CPU takes them."""
    p = np.random.default_rng(0).standard_normal(50_001).astype(np.float32)
    optimizer = optim.LARS(1.0, 0.0, trust_coefficient=0.1)
    held = lm.tensor(p)
    new: Any = optimizer.update(held, lm.tensor(2 * p), optimizer.init(held), np.float32(1.0))[0]
    np.testing.assert_allclose(new.numpy(), 0.9 * p, rtol=1e-5)


def test_repr() -> None:
    assert repr(optim.LAMB()) == "LAMB(lr=0.001, betas=(0.9, 0.999), weight_decay=0.0)"
    assert repr(optim.LARS()) == "LARS(lr=0.1, momentum=0.9, weight_decay=0.0)"


@pytest.mark.feature("F111")
@pytest.mark.parametrize("optimizer", [optim.LAMB(0.05), optim.LARS(5.0)], ids=str)
def test_training_lowers_the_loss(optimizer: optim.Optimizer) -> None:
    lm.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    step = lm.train_step(net, lm.ops.cross_entropy, optimizer, device="cpu", precision="bf16")
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((32, 6)).astype(np.float32), rng.integers(0, 3, 32)
    losses = [float(step(x, y)) for _ in range(60)]
    assert losses[-1] < 0.5 * losses[0]
