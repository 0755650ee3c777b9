"""RMSprop in training: many parameters, the gradient's dtype, and PyTorch's numbers in float64."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, optim
from tests.optim.test_optimizer import GRADS, RATES, RMSPROP, START, rmsprop, run


@pytest.mark.feature("F111")
@pytest.mark.parametrize("options", RMSPROP, ids=str)
def test_twenty_steps_in_float64_are_the_formulas(options: dict[str, Any]) -> None:
    found = run(optim.RMSprop(lambda step: RATES[step], **options), "float64")
    np.testing.assert_allclose(found, rmsprop(**options), rtol=1e-6)  # the rate is a float32


@pytest.mark.torch
@pytest.mark.parametrize("options", RMSPROP, ids=str)
def test_a_step_in_float64_is_torchs(options: dict[str, Any]) -> None:
    """With a rate that float32 holds exactly: to the last bits."""
    torch = pytest.importorskip("torch")
    p = torch.nn.Parameter(torch.tensor(START))
    theirs = torch.optim.RMSprop([p], lr=0.125, **options)
    for g in GRADS:
        p.grad = torch.tensor(g)
        theirs.step()
    found = run(optim.RMSprop(0.125, **options), "float64")
    np.testing.assert_allclose(found, p.detach().numpy(), rtol=1e-13, atol=1e-14)


@pytest.mark.feature("F111")
@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp64"])
def test_training_lowers_the_loss(backend: str, precision: str) -> None:
    lm.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    step = lm.train_step(
        net, lm.ops.cross_entropy, optim.RMSprop(0.01, momentum=0.5, centered=True),
        device="cpu", precision=precision, backend=backend,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((32, 6)).astype(np.float32), rng.integers(0, 3, 32)
    losses = [float(step(x, y)) for _ in range(60)]
    assert losses[-1] < 0.5 * losses[0]
    assert {name.rsplit(".", 1)[1] for name in step.state.optimizer} == set(optim.RMSprop().parts)
