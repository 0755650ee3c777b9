"""The state of a training step: whose tensors it holds, in which types, what it refuses."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from lamina.infer import Predictor
from lamina.train import Step
from tests.helpers.steps import (
    IMAGES,
    LABELS,
    POINTS,
    WANTED,
    make,
    regression,
    small_net,
    weights,
)


def test_the_parameters_keep_their_identity() -> None:
    net = small_net()
    held = dict(net.named_parameters())
    step = make(net, optim.SGD(0.1), backend="cpu")
    step(IMAGES, LABELS)
    assert all(p is held[n] for n, p in net.named_parameters())
    assert net(IMAGES).shape == (8, 4)  # eager calls see the trained values, whatever their layout


def test_a_state_is_pickled_and_copied_and_a_step_says_why_not() -> None:
    step = make(small_net(0.1), optim.SGD(0.1, 0.9), backend="cpu")
    step(IMAGES, LABELS)
    expected = {name: x.numpy().copy() for name, x in step.state.named().items()}
    for state in (copy.deepcopy(step.state), pickle.loads(pickle.dumps(step.state))):
        assert state.random["0"] is not step.state.random["0"]
        for name, x in state.named().items():
            np.testing.assert_array_equal(x.numpy(), expected[name], strict=True)
    for compiled in (step, step.executable, Predictor(step.net, device="cpu")):
        with pytest.raises(TypeError, match="cannot be pickled or copied; pickle"):
            pickle.dumps(compiled)
        with pytest.raises(TypeError, match="cannot be pickled or copied; pickle"):
            copy.deepcopy(compiled)


def test_a_group_that_was_begun_is_in_the_checkpoint(tmp_path: Any) -> None:
    def make_step() -> tuple[nn.Module, Step]:
        net = regression()
        return net, lm.train_step(net, ops.mse_loss, optim.SGD(0.1), accumulate=3, device="cpu")

    first, step = make_step()
    for part in (POINTS[:2], POINTS[2:4]):
        step(part, WANTED[:2])
    lm.train.save_checkpoint(tmp_path / "c", step)
    second, again = make_step()
    lm.train.load_checkpoint(tmp_path / "c", again)
    assert again.waiting == 2
    for each in (step, again):
        each(POINTS[4:6], WANTED[:2])
        assert each.number == 1
    for name, value in weights(first).items():
        np.testing.assert_array_equal(value, weights(second)[name])


def test_a_parameter_that_became_another_type_is_named() -> None:
    net = regression()
    step = make(net, optim.SGD(0.1))
    step(POINTS, WANTED)
    net.double()
    for points, wanted in ((POINTS, WANTED), (POINTS[:2], WANTED[:2])):
        with pytest.raises(
            RuntimeError, match=r"0.weight of Sequential is float64, .* fp32, keeps it in float32"
        ):
            step(points, wanted)
    net.float()
    step(POINTS, WANTED)


def test_what_a_step_cannot_train_is_named() -> None:
    net = regression()
    with pytest.raises(
        ValueError, match="the optimizer trains weight, bias, which neither Sequential nor its loss has"
    ):
        make(net, optim.SGD(0.1).over(nn.Linear(2, 2)))
    with pytest.raises(ValueError, match="accumulate must be an int of at least 1, got 0"):
        make(net, optim.SGD(0.1), accumulate=0)
    step = lm.train_step(net.requires_grad_(False), ops.mse_loss, optim.SGD(0.1), device="cpu")
    with pytest.raises(
        ValueError, match="Sequential has no parameter to train: those of the optimizer are frozen"
    ):
        step(POINTS, WANTED)
