"""Parameters that are computed from others: registering, stacking, training, removing."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops
from lamina.nn.utils.parametrize import (
    cached,
    is_parametrized,
    register_parametrization,
    remove_parametrizations,
)


class Symmetric(nn.Module):
    def forward(self, x: Any) -> Any:
        return ops.tril(x) + ops.transpose(ops.tril(x, -1), 0, 1)


class Scaled(nn.Module):
    def forward(self, x: Any) -> Any:
        return 2 * x

    def right_inverse(self, x: Any) -> Any:
        return x / 2


class Wider(nn.Module):
    def forward(self, x: Any) -> Any:
        return ops.cat([x, x], 0)


def test_a_symmetric_weight_is_trained_as_one() -> None:
    lm.manual_seed(0)
    layer = nn.Linear(3, 3)
    before = layer.weight.numpy().copy()
    register_parametrization(layer, "weight", Symmetric())
    assert sorted(k for k, _ in layer.named_parameters()) == ["bias", "parametrizations.weight.original"]
    np.testing.assert_array_equal(layer.weight.numpy(), np.tril(before) + np.tril(before, -1).T)
    step = lm.train_step(layer, ops.mse_loss, lm.optim.SGD(0.1), device="cpu")
    x, y = np.random.default_rng(0).standard_normal((2, 8, 3)).astype(np.float32)
    losses = [float(step(x, y)) for _ in range(20)]
    assert losses[-1] < losses[0]
    weight = layer.weight.numpy()
    np.testing.assert_array_equal(weight, weight.T)
    assert (weight != np.tril(before) + np.tril(before, -1).T).any()


@pytest.mark.torch
def test_names_and_values_are_torchs() -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.nn.Linear(3, 3)
    layer = nn.Linear(3, 3)
    layer.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})

    class TheirScaled(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return 2 * x

        def right_inverse(self, x: Any) -> Any:
            return x / 2

    for _ in range(2):
        torch.nn.utils.parametrize.register_parametrization(theirs, "weight", TheirScaled())
        register_parametrization(layer, "weight", Scaled())
    assert sorted(layer.state_dict()) == sorted(theirs.state_dict())
    layer.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    np.testing.assert_array_equal(layer.weight.numpy(), theirs.weight.detach().numpy())


@pytest.mark.parametrize("leave", [True, False])
def test_removed_again(leave: bool) -> None:
    layer = nn.Linear(2, 2)
    before = layer.weight.numpy().copy()
    register_parametrization(layer, "weight", Scaled())
    assert is_parametrized(layer)
    assert is_parametrized(layer, "weight")
    assert not is_parametrized(layer, "bias")
    np.testing.assert_array_equal(layer.weight.numpy(), before)
    remove_parametrizations(layer, "weight", leave)
    assert not is_parametrized(layer)
    np.testing.assert_array_equal(layer.weight.numpy(), before if leave else before / 2)
    assert sorted(layer.state_dict()) == ["bias", "weight"]


def test_what_is_refused() -> None:
    layer = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="register_parametrization: Linear has no parameter 'w'"):
        register_parametrization(layer, "w", Scaled())
    with pytest.raises(
        lm.ShapeError, match=r"Wider makes of weight, of shape \(2, 2\), one of shape \(4, 2\)"
    ):
        register_parametrization(layer, "weight", Wider())
    assert sorted(layer.state_dict()) == ["bias", "weight"]
    with pytest.raises(ValueError, match=r"remove_parametrizations: Linear.weight is not parametrized"):
        remove_parametrizations(layer, "weight")


class Mirrored(nn.Module):
    def forward(self, x: Any) -> Any:
        return ops.triu(x) + ops.triu(x, 1).mT

    def right_inverse(self, x: Any) -> Any:
        return ops.triu(x)


def test_what_is_assigned_becomes_the_originals() -> None:
    layer = nn.Linear(3, 3)
    register_parametrization(layer, "weight", Mirrored())
    value = np.arange(9, dtype=np.float32).reshape(3, 3)
    value = value + value.T
    layer.weight = lm.tensor(value)
    np.testing.assert_array_equal(layer.weight.numpy(), value)
    np.testing.assert_array_equal(layer.parametrizations.weight.original.numpy(), np.triu(value))
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
    normed.weight = nn.Parameter(value)
    np.testing.assert_allclose(normed.weight.numpy(), value, rtol=1e-6)
    assert len([*normed.parameters()]) == 3


def test_what_has_no_inverse_is_not_assigned() -> None:
    class Twice(nn.Module):
        def forward(self, x: Any) -> Any:
            return 2 * x

    layer = nn.Linear(3, 3)
    register_parametrization(layer, "weight", Twice())
    with pytest.raises(TypeError, match="Twice has no right_inverse, so that a parameter which it computes"):
        layer.weight = lm.ones(3, 3)


def test_within_cached_a_parameter_is_computed_once() -> None:
    layer = nn.Linear(3, 3)
    register_parametrization(layer, "weight", Symmetric())
    square = lm.grad(lambda net: ops.sum(net.weight * net.weight))
    expected = square(layer)["parametrizations.weight.original"].numpy()
    with cached():
        assert layer.weight is layer.weight
        for _ in range(2):
            found = square(layer)["parametrizations.weight.original"].numpy()
            np.testing.assert_array_equal(found, expected)
        compiled = lm.jit(lambda x: layer(x))(lm.ones(3))
        np.testing.assert_allclose(compiled.numpy(), layer(lm.ones(3)).numpy(), rtol=1e-6)
    assert layer.weight is not layer.weight
