"""Inference as a compiled graph, and accuracy on held-out data."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import data, nn, ops, optim
from lamina.infer import Predictor
from lamina.train import Scores

RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((10, 1, 8, 8)).astype(np.float32)


def net_of(seed: int = 1) -> nn.Module:
    nn.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(144, 3))


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize(
    ("precision", "tolerance"), [("fp32", 1e-5), ("fp64", 1e-5), ("bf16", 3e-2), ("fp16", 3e-3)]
)
def test_a_predictor_gives_what_the_network_gives(backend: str, precision: str, tolerance: float) -> None:
    net = net_of()
    expected = net.eval()(IMAGES).numpy()
    found = Predictor(net.train(), device="cpu", backend=backend, precision=precision)(IMAGES)
    assert found.dtype.name == ("float64" if precision == "fp64" else "float32")
    np.testing.assert_allclose(found.numpy(), expected, rtol=tolerance, atol=tolerance)
    assert net.training


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_smaller_batch_is_filled_up(backend: str) -> None:
    predictor = Predictor(net_of(), device="cpu", backend=backend)
    whole = predictor(IMAGES).numpy()
    np.testing.assert_allclose(predictor(IMAGES[:3]).numpy(), whole[:3], rtol=1e-5, atol=1e-6)
    assert sum(map(len, predictor._programs.values())) == 1
    assert predictor(np.concatenate([IMAGES, IMAGES])).shape == (20, 3)
    assert sum(map(len, predictor._programs.values())) == 2


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_refresh_takes_over_trained_weights(backend: str) -> None:
    net = net_of()
    labels = np.arange(10) % 3
    predictor = Predictor(net, device="cpu", backend=backend)
    predictor(IMAGES)
    step = lm.train_step(net, ops.cross_entropy, optim.SGD(0.1), device="cpu", backend=backend)
    for _ in range(3):
        step(IMAGES, labels)
    predictor.refresh()
    np.testing.assert_allclose(predictor(IMAGES).numpy(), net.eval()(IMAGES).numpy(), rtol=1e-4, atol=1e-5)


def test_tensors_are_taken_too() -> None:
    predictor = Predictor(net_of(), device="cpu", backend="reference")
    np.testing.assert_array_equal(predictor(lm.tensor(IMAGES)).numpy(), predictor(IMAGES).numpy())


def test_evaluate_counts() -> None:
    net = net_of()
    answers = net.eval()(IMAGES).numpy().argmax(1)
    labels = answers.copy()
    labels[:4] = (labels[:4] + 1) % 3  # four are wrong
    batches: Any = data.arrays(IMAGES, labels, batch_size=4, shuffle=False)
    found = lm.evaluate(net, batches, device="cpu", backend="reference")
    assert found == Scores(6, 10)
    assert found.accuracy == 0.6
    assert str(found) == "60.00 % (6 of 10)"
    with pytest.raises(ValueError, match="the data has no samples"):
        lm.evaluate(net, [], device="cpu", backend="reference")
