"""Initial values: the distributions, and that a seed says everything."""

import math

import numpy as np
import pytest

import lamina as lm
from lamina import nn
from lamina.nn import init


@pytest.fixture
def weight() -> nn.Parameter:
    nn.manual_seed(0)
    return nn.Parameter(np.zeros((200, 50, 3, 3), np.float32))


def test_fans() -> None:
    assert init.fans((200, 50, 3, 3)) == (450, 1800)
    with pytest.raises(lm.ShapeError, match=r"rank 2 or more, got shape \(3,\)"):
        init.fans((3,))


@pytest.mark.parametrize(
    ("fill", "deviation"),
    [
        (init.kaiming_normal_, math.sqrt(2 / 450)),
        (lambda w: init.kaiming_normal_(w, mode="fan_out", nonlinearity="relu"), math.sqrt(2 / 1800)),
        (init.xavier_normal_, math.sqrt(2 / 2250)),
        (lambda w: init.normal_(w, 0.0, 0.3), 0.3),
    ],
)
def test_normal_distributions(weight: nn.Parameter, fill: object, deviation: float) -> None:
    assert fill(weight) is weight  # type: ignore[operator]
    values = weight.numpy()
    assert abs(values.mean()) < 5 * deviation / math.sqrt(values.size)
    assert values.std() == pytest.approx(deviation, rel=0.01)
    assert np.abs(values).max() > 3.5 * deviation  # no uniform distribution


@pytest.mark.parametrize(
    ("fill", "bound"),
    [
        (lambda w: init.kaiming_uniform_(w, a=math.sqrt(5)), 1 / math.sqrt(450)),
        (init.xavier_uniform_, math.sqrt(6 / 2250)),
        (lambda w: init.uniform_(w, -0.2, 0.2), 0.2),
    ],
)
def test_uniform_distributions(weight: nn.Parameter, fill: object, bound: float) -> None:
    fill(weight)  # type: ignore[operator]
    values = weight.numpy()
    assert np.abs(values).max() <= bound * (1 + 1e-6)
    assert np.abs(values).max() > 0.999 * bound
    assert values.std() == pytest.approx(bound / math.sqrt(3), rel=0.01)


def test_constants(weight: nn.Parameter) -> None:
    assert init.ones_(weight).numpy().min() == 1.0
    assert np.ptp(init.constant_(weight, 2.5).numpy()) == 0.0
    assert not init.zeros_(weight).numpy().any()


def test_unknown_names_are_refused(weight: nn.Parameter) -> None:
    with pytest.raises(ValueError, match="mode must be 'fan_in' or 'fan_out', got 'fan'"):
        init.kaiming_normal_(weight, mode="fan")
    with pytest.raises(ValueError, match="unknown nonlinearity 'step'; known: linear"):
        init.gain("step")


def test_layers_start_like_torchs() -> None:
    nn.manual_seed(0)
    layer = nn.Linear(400, 300)
    assert np.abs(layer.weight.numpy()).max() == pytest.approx(1 / 20, rel=1e-3)
    assert np.abs(layer.bias.numpy()).max() == pytest.approx(1 / 20, rel=0.05)


@pytest.mark.parametrize(
    ("scheme", "deviation"), [(init.lecun_, 1 / math.sqrt(72)), (init.he_, math.sqrt(2 / 72))]
)
def test_schemes(scheme: object, deviation: float) -> None:
    with init.scheme(scheme):  # type: ignore[arg-type]
        layer = nn.Conv2d(8, 64, 3)
    assert layer.weight.numpy().std() == pytest.approx(deviation, rel=0.05)
    assert not layer.bias.numpy().any()


def test_a_scheme_holds_within_its_block() -> None:
    with init.scheme(init.he_):
        layer = nn.Conv2d(8, 16, 3)
    assert layer.weight.numpy().std() == pytest.approx(math.sqrt(2 / 72), rel=0.1)
    assert not layer.bias.numpy().any()
    assert nn.Conv2d(8, 16, 3).bias.numpy().any()


def test_a_seed_says_everything() -> None:
    def weights(seed: int) -> list[np.ndarray]:  # type: ignore[type-arg]
        nn.manual_seed(seed)
        return [p.numpy().copy() for p in nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)).parameters()]

    first, again, other = weights(5), weights(5), weights(6)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
    assert not np.array_equal(first[0], first[2])  # every parameter has a stream of its own


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_seeds_are_checked(seed: int) -> None:
    with pytest.raises(ValueError, match="seed must be at least 0"):
        nn.manual_seed(seed)
