"""Averaged gradient descent against PyTorch, and its average."""

from typing import Any

import numpy as np
import pytest

from lamina import optim
from tests.helpers.optimizers import SHAPES, assert_as_torch, gradients, mine, start


@pytest.mark.torch
@pytest.mark.feature("F111")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "options",
    [{}, {"lambd": 0.1, "alpha": 0.5, "t0": 3.0}, {"weight_decay": 0.1, "t0": 0.0, "maximize": True}],
    ids=str,
)
def test_ten_steps_are_torchs(options: dict[str, Any], shape: Any) -> None:
    pytest.importorskip("torch")
    assert_as_torch(optim.ASGD, options, shape)


def test_the_average_of_all_parameters_from_a_step_on() -> None:
    p, seen = start((5,)), []
    for g in gradients((5,)):
        p = p - 0.125 * g
        seen.append(p)
    found, state = mine(optim.ASGD(0.125, lambd=0.0, t0=4), (5,))
    np.testing.assert_allclose(found, p, rtol=1e-13)
    np.testing.assert_allclose(state["ax"], np.mean(seen[5:], axis=0), rtol=1e-12)
    assert state["mu"] == 1 / 6
    assert state["eta"] == 0.125


def test_repr() -> None:
    assert repr(optim.ASGD()) == "ASGD(lr=0.01, lambd=0.0001, alpha=0.75, t0=1000000.0)"
