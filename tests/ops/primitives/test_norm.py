"""Normalization as functions: against the formulas written out, fused forms against their parts, errors."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops
from lamina.ops import primitives
from lamina.ops.core import bind, call
from lamina.spec import DTypeError, ShapeError
from tests.helpers.functions import grad, numerical, run
from tests.helpers.legacy.reference import divisive, divisive_gradient

RNG = np.random.default_rng(11)
X, Z = RNG.standard_normal((2, 4, 3, 5, 6))
SCALE, BIAS, MEAN = RNG.standard_normal((3, 4 - 1))
VAR = RNG.uniform(0.5, 2, 3)


def across(v: np.ndarray[Any, Any]) -> Any:
    return v.reshape(1, -1, 1, 1)


@pytest.mark.feature("F060")
def test_batch_norm_in_training() -> None:
    """Biased variance normalizes, the unbiased one is kept."""
    y, mean, var = run(ops.batch_norm_with_statistics, X, MEAN, VAR, SCALE, BIAS, True, 0.2, 1e-3)
    axes = (0, 2, 3)
    wanted = (X - X.mean(axes, keepdims=True)) / np.sqrt(X.var(axes, keepdims=True) + 1e-3)
    np.testing.assert_allclose(y, wanted * across(SCALE) + across(BIAS), rtol=1e-12)
    np.testing.assert_allclose(mean, 0.8 * MEAN + 0.2 * X.mean(axes), rtol=1e-12)
    np.testing.assert_allclose(var, 0.8 * VAR + 0.2 * X.var(axes, ddof=1), rtol=1e-12)


@pytest.mark.feature("F060")
def test_per_activation_is_one_channel_per_element() -> None:
    small = [v.reshape(3, 5, 6) for v in RNG.uniform(0.5, 2, (4, 90))]
    y, mean, var = run(ops.batch_norm_with_statistics, X, *small, True, mode="per_activation")
    normal = (X - X.mean(0)) / np.sqrt(X.var(0) + 1e-5)
    np.testing.assert_allclose(y, normal * small[2] + small[3], rtol=1e-12)
    np.testing.assert_allclose(mean, 0.9 * small[0] + 0.1 * X.mean(0), rtol=1e-12)
    np.testing.assert_allclose(var, 0.9 * small[1] + 0.1 * X.var(0, ddof=1), rtol=1e-12)
    persistent = run(ops.batch_norm_with_statistics, X, MEAN, VAR, training=True, mode="spatial_persistent")
    spatial = run(ops.batch_norm_with_statistics, X, MEAN, VAR, training=True)
    assert all(np.array_equal(a, b) for a, b in zip(persistent, spatial, strict=True))


@pytest.mark.feature("F062")
def test_the_gradient_of_inference() -> None:
    """dx = g s r; the running statistics have gradients, too."""
    r = 1 / np.sqrt(VAR + 1e-5)
    dx, dmean, dvar, dscale, dbias = grad(
        lambda *a: ops.batch_norm_with_statistics(*a)[0], X, MEAN, VAR, SCALE, BIAS
    )
    axes = (0, 2, 3)
    np.testing.assert_allclose(dx, np.broadcast_to(across(SCALE * r), X.shape), rtol=1e-12)
    np.testing.assert_allclose(dbias, np.full(3, X.size / 3), rtol=1e-12)
    apart = (X - across(MEAN)).sum(axes)
    np.testing.assert_allclose(dscale, apart * r, rtol=1e-10)
    np.testing.assert_allclose(dmean, -SCALE * r * X.size / 3, rtol=1e-12)
    np.testing.assert_allclose(dvar, -0.5 * SCALE * r**3 * apart, rtol=1e-10)


@pytest.mark.feature("F061")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("added", [True, False])
def test_fused_activation_and_sum_are_their_parts(training: bool, added: bool) -> None:
    """Values and gradients of the one op against batch norm, add and relu apart."""
    arrays = [X, MEAN, VAR, SCALE, BIAS, *([Z] if added else [])]

    def fused(x: Any, *a: Any) -> Any:
        residual = a[4] if added else None
        return ops.batch_norm_with_statistics(x, *a[:4], training, relu=True, residual=residual)[0] * Z

    def apart(x: Any, *a: Any) -> Any:
        y = ops.batch_norm_with_statistics(x, *a[:4], training)[0]
        return ops.relu(y + a[4] if added else y) * Z

    np.testing.assert_allclose(run(fused, *arrays), run(apart, *arrays), rtol=1e-12)
    for found, wanted in zip(grad(fused, *arrays), grad(apart, *arrays), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.feature("F059")
@pytest.mark.parametrize("size", [3, 4])
def test_divisive_normalization(size: int) -> None:
    """Against cuDNN's definition, with its gradients in x and in the means."""
    settings = (size, 0.3, 0.6, 1.5)
    np.testing.assert_allclose(run(ops.divisive_norm, X, *settings, Z), divisive(X, Z, *settings), rtol=1e-10)
    plain = divisive(X, np.zeros_like(X), *settings)
    np.testing.assert_allclose(run(ops.divisive_norm, X, *settings), plain, rtol=1e-10)
    found = grad(lambda x, m: ops.divisive_norm(x, *settings, m), X, Z)
    for g, wanted in zip(found, divisive_gradient(X, Z, np.ones_like(X), *settings), strict=True):
        np.testing.assert_allclose(g, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.feature("F059")
def test_local_response_norm() -> None:
    """alpha is divided by the size of the window; the borders count as zeros."""
    y = run(ops.local_response_norm, X, 2, 0.5, 0.75, 2.0)
    squares = X**2
    squares[:, 1:] += X[:, :-1] ** 2
    np.testing.assert_allclose(y, X / (2 + 0.25 * squares) ** 0.75, rtol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("spatial", [(), (3,), (2, 3)])
def test_local_response_norm_by_its_definition(spatial: tuple[int, ...], size: int) -> None:
    """Channel by channel, and its gradient by finite differences."""
    x, (alpha, beta, k) = np.random.default_rng(size).standard_normal((2, 5, *spatial)), (0.7, 0.6, 1.5)

    def norm(x: Any) -> Any:
        return ops.local_response_norm(x, size, alpha, beta, k)

    wanted = np.empty_like(x)
    for c in range(5):
        around = x[:, max(c - size // 2, 0) : c + (size - 1) // 2 + 1]
        wanted[:, c] = x[:, c] / (k + alpha / size * (around**2).sum(1)) ** beta
    np.testing.assert_allclose(run(norm, x), wanted, rtol=1e-12)
    scale = np.cos(np.arange(x.size)).reshape(x.shape)
    (found,) = grad(lambda x: norm(x) * scale, x)
    (slope,) = numerical(lambda x: (norm(x) * scale).sum(), [x])
    np.testing.assert_allclose(found, slope, rtol=1e-6, atol=1e-8)


def test_local_response_norm_needs_channels() -> None:
    with pytest.raises(
        ShapeError, match=r"local_response_norm: operands must be \[N, C, \*spatial\] and alike"
    ):
        run(ops.local_response_norm, X[0, 0, 0], 3)
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        run(ops.local_response_norm, X, 0)


@pytest.mark.feature("F118")
def test_errors() -> None:
    with pytest.raises(ShapeError, match=r"batch_norm: scale f64\[4\] must have shape \(3,\) for x"):
        run(ops.batch_norm_with_statistics, X, MEAN, VAR, np.ones(4), BIAS, True)
    with pytest.raises(ShapeError, match="more than one value per channel in training"):
        run(ops.batch_norm_with_statistics, X[:1, :, :1, :1], MEAN, VAR, training=True)
    with pytest.raises(ShapeError, match=r"running_mean .* must have shape \(3, 5, 6\) per activation"):
        run(ops.batch_norm_with_statistics, X, MEAN, VAR, training=True, mode="per_activation")
    small = [v.astype(np.float32) for v in (SCALE, BIAS, MEAN, VAR)]
    with pytest.raises(DTypeError, match="scale must be float64 for x of float64, got float32; cast"):
        run(lambda *a: call(primitives.BatchNormInfer(1e-5), *a), X, *small)
    with pytest.raises(TypeError, match="batch_norm: takes 6 operands .*residual"):
        run(lambda *a: call(primitives.BatchNorm(1e-5, residual=True), *a), X, SCALE, BIAS, MEAN, VAR)
    with pytest.raises(ValueError, match="residual=True without relu"):
        run(lambda *a: bind(primitives.BatchNormGrad(residual=True), *a), X, X, SCALE, MEAN, VAR)
    with pytest.raises(ShapeError, match=r"rms_norm: normalized_shape \(5,\) must be the last sizes"):
        run(ops.rms_norm, X, 5)


@pytest.mark.parametrize("training", [False, True])
def test_derivatives_of_a_batch_norm_without_samples(training: bool) -> None:
    norm = nn.BatchNorm1d(3).train(training)
    x = lm.zeros((0, 3))
    assert lm.jvp(norm, (x,), (x,))[1].shape == (0, 3)
    value, (along,) = lm.hvp(lambda x: norm(x).square().sum(), (x,), (x,))
    assert value.item() == 0
    assert along.shape == (0, 3)
