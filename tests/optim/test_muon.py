"""Muon against PyTorch within bfloat16's rounding, how orthogonal it is, training, what it refuses."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, optim
from tests.helpers.optimizers import RATES, Array, gradients, mine, rate_at, start, torchs

SHAPES = [(5, 3), (3, 5), (8, 8), (1, 7), (33, 65)]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"nesterov": False, "momentum": 0.5, "weight_decay": 0.0},
    {"adjust_lr_fn": "match_rms_adamw", "ns_steps": 3},
    {"ns_coefficients": (2.0, -1.5, 0.5), "adjust_lr_fn": "original", "weight_decay": 0.5},
]


@pytest.mark.torch
@pytest.mark.feature("F111")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_ten_steps_are_torchs(options: dict[str, Any], shape: tuple[int, int]) -> None:
    pytest.importorskip("torch")
    for dtype in ("float32", "float64"):
        found, state = mine(optim.Muon(rate_at, **options), shape, dtype)
        wanted, their_state = torchs("Muon", options, shape, RATES, dtype)
        np.testing.assert_allclose(
            state["momentum_buffer"], their_state["momentum_buffer"], rtol=1e-5, atol=1e-6
        )
        assert distance(found, wanted, shape) < 0.05


def distance(found: Array, wanted: Array, shape: tuple[int, int]) -> float:
    """By how much two ways from the start differ, as a part of the way."""
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted - start(shape)))


@pytest.mark.feature("F111")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("nesterov", [True, False])
def test_ten_steps_are_the_formulas(nesterov: bool, shape: tuple[int, int]) -> None:
    """In float64; the products are rounded to bfloat16, whose last bit is 1/256."""
    p, m = start(shape), np.zeros(shape)
    for g, rate in zip(gradients(shape), RATES, strict=True):
        m = 0.95 * m + 0.05 * g
        x = g + 0.95 * (m - g) if nesterov else m
        x = x.T if shape[0] > shape[1] else x
        x = x / np.linalg.norm(x)
        for _ in range(5):
            square = x @ x.T
            x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
        x = x.T if shape[0] > shape[1] else x
        p = (1 - 0.1 * rate) * p - rate * max(1.0, shape[0] / shape[1]) ** 0.5 * x
    assert distance(mine(optim.Muon(rate_at, nesterov=nesterov), shape)[0], p, shape) < 0.03


@pytest.mark.parametrize("shape", [(6, 6), (10, 4), (4, 10)], ids=str)
def test_a_step_is_nearly_orthogonal(shape: tuple[int, int]) -> None:
    """The singular values are within the range of the paper, and the vectors those of the momentum."""
    p, g = lm.zeros(shape), gradients(shape)[0]
    optimizer = optim.Muon(1.0, weight_decay=0.0, momentum=0.0, nesterov=False)
    new: Any = optimizer.update(p, lm.tensor(g, "float32"), optimizer.init(p), np.float32(1.0))[0]
    step = -new.numpy().astype(np.float64) / max(1.0, shape[0] / shape[1]) ** 0.5
    values = np.linalg.svd(step, compute_uv=False)
    assert values.min() > 0.4
    assert values.max() < 1.3
    u, _, v = np.linalg.svd(g, full_matrices=False)
    np.testing.assert_allclose(np.diag(u.T @ step @ v.T), values.mean(), atol=0.5)


def test_a_gradient_of_zeros_changes_nothing_but_by_decay() -> None:
    p = lm.ones((3, 4))
    optimizer = optim.Muon(0.5, weight_decay=0.5)
    new: Any = optimizer.update(p, lm.zeros((3, 4)), optimizer.init(p), np.float32(0.5))[0]
    np.testing.assert_allclose(new.numpy(), 0.75, rtol=1e-6)


@pytest.mark.feature("F111")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_lowers_the_loss(precision: str) -> None:
    lm.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16, bias=False), nn.Tanh(), nn.Linear(16, 3, bias=False))
    step = lm.train_step(net, lm.ops.cross_entropy, optim.Muon(0.1), device="cpu", precision=precision)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((32, 6)).astype(np.float32), rng.integers(0, 3, 32)
    losses = [float(step(x, y)) for _ in range(40)]
    assert losses[-1] < 0.5 * losses[0]


def test_what_is_refused() -> None:
    with pytest.raises(lm.ShapeError, match=r"Muon: a parameter must be a matrix, got shape \(3,\)"):
        optim.Muon().init(lm.zeros((3,)))
    with pytest.raises(ValueError, match="Muon: ns_steps must be from 1 to 99, got 100"):
        optim.Muon(ns_steps=100)
    with pytest.raises(ValueError, match="ns_coefficients must be three numbers, got"):
        optim.Muon(ns_coefficients=(1.0, 2.0))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="adjust_lr_fn must be 'original' or 'match_rms_adamw', got 'x'"):
        optim.Muon(adjust_lr_fn="x")
    assert repr(optim.Muon()) == "Muon(lr=0.001, weight_decay=0.1, momentum=0.95)"
