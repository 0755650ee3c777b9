"""Adafactor against PyTorch in float64, its state, training and resuming, what it refuses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, optim
from lamina.train.checkpoint import load_checkpoint, save_checkpoint
from tests.helpers.optimizers import SHAPES, assert_as_torch


@pytest.mark.torch
@pytest.mark.feature("F111")
@pytest.mark.parametrize("shape", [s for s in SHAPES if 0 not in s], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beta2_decay": -0.5, "eps": (1e-3, 0.1), "d": 1.5, "weight_decay": 0.1},
        {"maximize": True, "eps": (None, 2.0)},
    ],
    ids=str,
)
def test_ten_steps_are_torchs(options: dict[str, Any], shape: Any) -> None:
    pytest.importorskip("torch")
    assert_as_torch(optim.Adafactor, options, shape)


def test_state_is_a_row_and_a_column() -> None:
    optimizer = optim.Adafactor()
    shapes = {
        (4, 5, 6): [(4, 5, 1), (4, 1, 6), (0,), ()],
        (7,): [(0,), (0,), (7,), ()],
        (): [(0,), (0,), (), ()],
    }
    for shape, wanted in shapes.items():
        assert [s.shape for s in optimizer.init(lm.zeros(shape))] == wanted


def test_a_tensor_without_elements_stays() -> None:
    p = lm.zeros((0, 4))
    new: Any = optim.Adafactor().update(p, p, optim.Adafactor().init(p), np.float32(0.1))[0]
    assert new.shape == (0, 4)


@pytest.mark.feature("F111")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "fp64"])
def test_training_goes_on_from_a_checkpoint_to_the_bit(precision: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((32, 6)).astype(np.float32), rng.integers(0, 3, 32)

    def training(seed: int) -> Any:
        lm.manual_seed(seed)
        net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
        return lm.train_step(
            net, lm.ops.cross_entropy, optim.Adafactor(0.2), device="cpu", precision=precision
        )

    whole, second = training(0), training(1)
    losses = [float(whole(x, y)) for _ in range(30)]
    assert losses[-1] < 0.7 * losses[0]
    save_checkpoint(tmp_path / "run.safetensors", whole)
    load_checkpoint(tmp_path / "run.safetensors", second)
    assert [float(second(x, y)) for _ in range(3)] == [float(whole(x, y)) for _ in range(3)]


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="beta2_decay must be at most 0, got 0.5"):
        optim.Adafactor(beta2_decay=0.5)
    with pytest.raises(ValueError, match=r"eps must be .None or at least 0, at least 0., got \(-1, 0.1\)"):
        optim.Adafactor(eps=(-1, 0.1))
    with pytest.raises(ValueError, match="d must be at least 1, got 0.5"):
        optim.Adafactor(d=0.5)
    assert repr(optim.Adafactor()) == "Adafactor(lr=0.01, beta2_decay=-0.8, weight_decay=0.0)"
