"""Rprop against PyTorch, Lion against its paper's algorithm."""

from typing import Any

import numpy as np
import pytest

from lamina import optim
from tests.helpers.optimizers import (
    SHAPES,
    Array,
    assert_as_formula,
    assert_as_torch,
    gradients,
    mine,
    rate_at,
    start,
)


@pytest.mark.torch
@pytest.mark.feature("F111")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "options",
    [{}, {"etas": (0.3, 1.5), "step_sizes": (0.01, 0.08)}, {"etas": (0.9, 4.0), "maximize": True}],
    ids=str,
)
def test_rprop_is_torchs(options: dict[str, Any], shape: Any) -> None:
    pytest.importorskip("torch")
    assert_as_torch(optim.Rprop, options, shape)


def test_rprop_step_by_step() -> None:
    """Signs of the gradient's products: the first step has none before it; a change of sign stands still once."""
    p, before, sizes = start((6,)), np.zeros(6), np.full(6, 0.125)
    for g in gradients((6,)):
        product = g * before
        sizes = np.clip(sizes * np.select([product > 0, product < 0], [1.2, 0.5], 1.0), 0.05, 0.2)
        before = np.where(product < 0, 0.0, g)
        p = p - np.sign(before) * sizes
    found, state = mine(optim.Rprop(0.125, step_sizes=(0.05, 0.2)), (6,))
    np.testing.assert_allclose(found, p, rtol=1e-14)
    np.testing.assert_allclose(state["step_size"], sizes, rtol=1e-14)
    np.testing.assert_array_equal(state["prev"], before)


@pytest.mark.feature("F111")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("betas", "weight_decay", "maximize"), [((0.9, 0.99), 0.0, False), ((0.5, 0.8), 0.1, True)]
)
def test_lion_is_its_papers(
    betas: tuple[float, float], weight_decay: float, maximize: bool, shape: Any
) -> None:
    def lion(p: Array, g: Array, moments: list[Array], t: int, rate: float) -> Array:
        g = -g if maximize else g
        update = np.sign(betas[0] * moments[0] + (1 - betas[0]) * g)
        moments[0] = betas[1] * moments[0] + (1 - betas[1]) * g
        return p - rate * (update + weight_decay * p)

    assert_as_formula(optim.Lion(rate_at, betas, weight_decay, maximize=maximize), lion, shape)


def test_repr() -> None:
    assert repr(optim.Rprop()) == "Rprop(lr=0.01, etas=(0.5, 1.2), step_sizes=(1e-06, 50.0))"
    assert repr(optim.Lion()) == "Lion(lr=0.0001, betas=(0.9, 0.99), weight_decay=0.0)"
