"""The update of a training step: loss scale, accumulation, clipping, groups of parameters."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from lamina.train.scaling import START
from tests.helpers.steps import (
    BACKENDS,
    IMAGES,
    LABELS,
    POINTS,
    WANTED,
    make,
    regression,
    small_net,
    weights,
)


@pytest.mark.feature("B017")
def test_an_overflow_skips_the_step_and_halves_the_scale() -> None:
    net = small_net()
    step = make(net, optim.SGD(0.1, 0.9), precision="fp16")
    step(IMAGES, LABELS)
    before, states = weights(net), {k: v.numpy().copy() for k, v in step.state.optimizer.items()}
    scale, good = step.state.scale["scale"].numpy()
    assert (scale, good) == (START, 1.0)
    step(IMAGES * 1e7, LABELS)  # overflows float16
    assert step.state.scale["scale"].tolist() == [START / 2, 0.0]
    for name, value in before.items():
        np.testing.assert_array_equal(weights(net)[name], value)
    for name, value in states.items():
        np.testing.assert_array_equal(step.state.optimizer[name].numpy(), value)
    assert np.isfinite(step(IMAGES, LABELS).item())
    assert not np.array_equal(weights(net)["0.weight"], before["0.weight"])


def test_the_scale_grows_after_many_good_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamina.train.scaling.INTERVAL", 3)
    step = make(small_net(), optim.SGD(0.01), precision="fp16")
    for _ in range(4):
        step(IMAGES, LABELS)
    assert step.state.scale["scale"].tolist() == [2 * START, 1.0]


@pytest.mark.parametrize("limit", [0.01, 1e6])
def test_clipping_bounds_the_common_norm(limit: float) -> None:
    net, plain = small_net(), small_net()
    before = weights(net)
    make(net, optim.SGD(1.0), clip_norm=limit)(IMAGES, LABELS)
    make(plain, optim.SGD(1.0))(IMAGES, LABELS)
    moved = {k: before[k] - v for k, v in weights(net).items()}
    free = {k: before[k] - v for k, v in weights(plain).items()}
    norm = np.sqrt(sum(float((v**2).sum()) for v in moved.values()))
    whole = np.sqrt(sum(float((v**2).sum()) for v in free.values()))
    assert norm == pytest.approx(min(limit, whole), rel=1e-3)
    for name in moved:  # the direction stays
        np.testing.assert_allclose(moved[name] * whole, free[name] * norm, rtol=1e-2, atol=1e-4 * norm)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.feature("B028")
def test_accumulation_updates_by_the_mean_of_the_group(backend: str, precision: str) -> None:
    net, whole = regression(), regression()
    options: dict[str, Any] = {"device": "cpu", "backend": backend, "precision": precision}
    rate = lambda step: 0.2 / (step + 1)  # noqa: E731
    step = lm.train_step(net, ops.mse_loss, optim.SGD(rate, 0.9), accumulate=2, clip_norm=0.5, **options)
    other = lm.train_step(whole, ops.mse_loss, optim.SGD(rate, 0.9), clip_norm=0.5, **options)
    for _ in range(2):
        before = weights(net)
        step(POINTS[:4], WANTED[:4])
        assert step.waiting == 1
        for name, value in before.items():
            np.testing.assert_array_equal(weights(net)[name], value)
        step(POINTS[4:], WANTED[4:])
        other(POINTS, WANTED)
        assert (step.waiting, step.number) == (0, other.number)
    step(POINTS[:4], WANTED[:4], update=True)  # a short group
    other(POINTS[:4], WANTED[:4])
    assert (step.waiting, step.number) == (0, 3)
    tolerance = 1e-5 if precision == "fp32" else 5e-3
    for name, value in weights(net).items():
        np.testing.assert_allclose(value, weights(whole)[name], rtol=tolerance, atol=tolerance)
    assert len(step._programs) == 2


def test_an_overflow_is_left_out_of_the_group() -> None:
    net, alone = regression(), regression()
    options: dict[str, Any] = {"device": "cpu", "precision": "fp16"}
    step = lm.train_step(net, ops.mse_loss, optim.SGD(0.1), accumulate=2, **options)
    other = lm.train_step(alone, ops.mse_loss, optim.SGD(0.1), **options)
    step(POINTS[:4] * 1e8, WANTED[:4])
    step(POINTS[4:], WANTED[4:])
    other(POINTS[4:], WANTED[4:])
    for name, value in weights(net).items():
        np.testing.assert_allclose(value, weights(alone)[name], rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.feature("B028")
def test_groups_in_a_step(backend: str) -> None:
    net, twin = regression(), regression()
    groups: list[dict[str, Any]] = [
        {"params": "0.weight", "frozen": True},
        {"params": lambda name, p: p.ndim < 2, "lr": lambda step: 0.5 / (step + 1), "momentum": 0.0},
    ]
    optimizer = optim.SGD(lr=0.1, momentum=0.9).over(net, groups)
    eager = optim.SGD(lr=0.1, momentum=0.9).over(twin, groups)
    step = lm.train_step(net, ops.mse_loss, optimizer, device="cpu", backend=backend, keep_grads=True)
    for _ in range(3):
        step(POINTS, WANTED)
        grads = lm.grad(lambda net: ops.mse_loss(net(POINTS), WANTED))(twin)
        eager.step(grads)
        assert step.grads is not None
        assert list(step.grads) == ["0.bias", "2.weight", "2.bias"]
        for name, g in step.grads.items():
            np.testing.assert_allclose(g.numpy(), grads[name].numpy(), rtol=1e-4, atol=1e-6)
    for name, value in weights(net).items():
        np.testing.assert_allclose(value, weights(twin)[name], rtol=1e-5, atol=1e-6)
    assert "0.weight.momentum" not in step.state.optimizer
    assert optimizer.bound.number == step.number == 3
    net.requires_grad_(True)
    step(POINTS, WANTED)
    assert "0.weight.momentum" in step.state.optimizer
    assert not np.array_equal(weights(net)["0.weight"], weights(twin)["0.weight"])


@pytest.mark.feature("B028")
def test_clipping_by_value() -> None:
    net = regression()
    step = lm.train_step(
        net, ops.mse_loss, optim.SGD(1.0), clip_value=0.01, keep_grads=True, device="cpu", backend="cpu"
    )
    before = weights(net)
    step(POINTS, WANTED)
    assert step.grads is not None
    for name, g in step.grads.items():
        assert np.abs(g.numpy()).max() <= np.float32(0.01)
        np.testing.assert_allclose(weights(net)[name], before[name] - g.numpy(), rtol=1e-5, atol=1e-7)
    assert max(np.abs(g.numpy()).max() for g in step.grads.values()) == np.float32(0.01)


class _Branches(nn.Module):
    """One of two layers, as the call has one input or two."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Any, other: Any = None) -> Any:
        return self.first(x) if other is None else self.second(other)


def test_what_a_groups_losses_do_not_depend_on_is_left_alone() -> None:
    """Gathered gradients of other calls count, those of groups before do not: as PyTorch's None."""
    net = _Branches()
    optimizer = optim.SGD(net.parameters(), lr=0.1, weight_decay=0.5)
    step = lm.train_step(net, ops.mse_loss, optimizer, accumulate=2, device="cpu")
    x, y = np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32)
    one, other = x, {"x": x, "other": x}
    for calls, wanted in (
        ((one, one), (True, False)),
        ((other, other), (False, True)),
        ((other, one), (True, True)),
        ((one, other), (True, True)),
        ((one, one), (True, False)),
    ):
        before = [layer.weight.numpy().copy() for layer in (net.first, net.second)]
        for inputs in calls:
            step(inputs, y)
        after = [layer.weight.numpy() for layer in (net.first, net.second)]
        assert tuple(bool(np.any(a != b)) for a, b in zip(after, before, strict=True)) == wanted
    assert len(step._programs) == 6  # each way to gather, and to update with and without the other layer
