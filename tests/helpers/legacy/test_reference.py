"""The references of the GPU tests: gradients against finite differences, sums against enumeration."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.helpers.legacy import reference as ref
from tests.helpers.legacy.gpu import TOLERANCE, close

Array = Any
RNG = np.random.default_rng(0)


def numeric(function: Callable[[Array], Array], x: Array, dy: Array, step: float = 1e-6) -> Array:
    """Gradient of sum(function(x) * dy) by central differences."""
    gradient = np.zeros_like(x)
    for place in np.ndindex(*x.shape):
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved[place] += sign * step
            ends.append((function(moved) * dy).sum())
        gradient[place] = (ends[0] - ends[1]) / (2 * step)
    return gradient


def agree(gradient: Array, function: Callable[[Array], Array], x: Array, dy: Array) -> None:
    np.testing.assert_allclose(gradient, numeric(function, x, dy), rtol=1e-5, atol=1e-7)


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape)


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    ("size", "window"), [((6, 7), ((1, 0), (2, 1), (1, 2))), ((4, 5, 4), ((1, 1, 0), (1, 2, 1), (1, 1, 2)))]
)
def test_convolution(size: Any, window: Any, groups: int, flip: bool) -> None:
    x, w = normal(2, 2 * groups, *size), normal(2 * groups, 2, *(2,) * len(size))
    y = ref.conv(x, w, *window, groups, flip)
    dy = normal(*y.shape)
    dx = ref.conv_data(dy, w, x.shape, *window, groups, flip)
    dw = ref.conv_filter(x, dy, w.shape, *window, groups, flip)
    # linear in both: gradients by inner products
    v, u = normal(*x.shape), normal(*w.shape)
    assert np.isclose((ref.conv(v, w, *window, groups, flip) * dy).sum(), (v * dx).sum())
    assert np.isclose((ref.conv(x, u, *window, groups, flip) * dy).sum(), (u * dw).sum())


def test_convolution_and_columns_by_definition() -> None:
    x, w = normal(1, 2, 4, 5), normal(3, 2, 2, 2)
    y = ref.conv(x, w, (1, 0), (2, 1), (1, 1))
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 0)))
    for k, i, j in np.ndindex(*y.shape[1:]):
        assert np.isclose(y[0, k, i, j], (padded[0, :, 2 * i : 2 * i + 2, j : j + 2] * w[k]).sum())
    matrix = ref.columns(x, w.shape, (1, 0), (2, 1), (1, 1))
    np.testing.assert_allclose(matrix @ w.reshape(3, -1).T, y.transpose(0, 2, 3, 1).reshape(-1, 3))


@pytest.mark.parametrize("mode", ref.ACTIVATIONS)
def test_activations(mode: str) -> None:
    function, slope = ref.ACTIVATIONS[mode]
    x, dy = normal(2, 3, 4), normal(2, 3, 4)
    agree(slope(x, 0.7) * dy, lambda v: function(v, 0.7), x, dy)


@pytest.mark.parametrize("mode", ["max", "average_count_include_padding", "average_count_exclude_padding"])
def test_pooling(mode: str) -> None:
    x, setting = normal(1, 2, 5, 6), ((3, 2), (1, 1), (2, 2))
    dy = normal(*ref.pool(mode, x, *setting).shape)
    agree(ref.pool_gradient(mode, x, dy, *setting), lambda v: ref.pool(mode, v, *setting), x, dy)


@pytest.mark.parametrize("algorithm", ["accurate", "log"])
@pytest.mark.parametrize("mode", ["channel", "instance"])
def test_softmax(algorithm: str, mode: str) -> None:
    x, dy = normal(2, 3, 2, 2), normal(2, 3, 2, 2)
    y = ref.softmax(algorithm, mode, x)
    gradient = ref.softmax_gradient(algorithm, mode, y, dy)
    agree(gradient, lambda v: ref.softmax(algorithm, mode, v), x, dy)


@pytest.mark.parametrize("mode", ["spatial", "per_activation"])
def test_batch_norm(mode: str) -> None:
    x, dy = normal(3, 2, 2, 2), normal(3, 2, 2, 2)
    shape = (1, 2, 1, 1) if mode == "spatial" else (1, 2, 2, 2)
    scale, bias = normal(*shape), normal(*shape)
    dx, dscale, dbias = ref.batch_norm_gradient(mode, x, dy, scale, 1e-3)
    agree(dx, lambda v: ref.batch_norm(mode, v, scale, bias, 1e-3), x, dy)
    agree(dscale, lambda v: ref.batch_norm(mode, x, v, bias, 1e-3), scale, dy)
    agree(dbias, lambda v: ref.batch_norm(mode, x, scale, v, 1e-3), bias, dy)


@pytest.mark.parametrize("n", [3, 4])
def test_response_normalization(n: int) -> None:
    setting = (n, 0.8, 0.6, 1.5)
    x, dy = normal(2, 6, 2, 2), normal(2, 6, 2, 2)
    agree(ref.lrn_gradient(x, dy, *setting), lambda v: ref.lrn(v, *setting), x, dy)
    x, means, dy = normal(1, 2, 5, 6), normal(1, 2, 5, 6), normal(1, 2, 5, 6)
    dx, dmeans = ref.divisive_gradient(x, means, dy, *setting)
    agree(dx, lambda v: ref.divisive(v, means, *setting), x, dy)
    agree(dmeans, lambda v: ref.divisive(x, v, *setting), means, dy)


def test_spatial_transformer() -> None:
    theta = np.array([[[0.9, 0.2, 0.1], [-0.3, 0.8, 0.2]], [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
    x = normal(2, 2, 5, 6)
    points = ref.grid(theta, 4, 3)
    np.testing.assert_allclose(ref.sample(x, ref.grid(theta[1:].repeat(2, 0), 5, 6)), x)  # the identity
    dpoints = normal(*points.shape)
    agree(ref.grid_gradient(dpoints), lambda v: ref.grid(v, 4, 3), theta, dpoints)
    points = points * 0.97 + 0.011  # away from the kinks of bilinear interpolation
    dy = normal(2, 2, 4, 3)
    dx, dpoints = ref.sample_gradient(x, points, dy)
    agree(dx, lambda v: ref.sample(v, points), x, dy)
    agree(dpoints, lambda v: ref.sample(x, v), points, dy)


def test_ctc() -> None:
    activations, labels, lengths = normal(4, 2, 3), [[1, 1], [2]], [4, 3]
    costs, gradients = ref.ctc(activations, labels, lengths)
    probabilities = np.exp(activations) / np.exp(activations).sum(-1, keepdims=True)
    for i, (label, steps) in enumerate(zip(labels, lengths, strict=True)):
        total = 0.0
        for path in itertools.product(range(3), repeat=steps):
            merged = [symbol for symbol, _ in itertools.groupby(path) if symbol]
            if merged == label:
                total += np.prod([probabilities[t, i, symbol] for t, symbol in enumerate(path)])
        assert np.isclose(costs[i], -np.log(total))
    agree(gradients, lambda v: ref.ctc(v, labels, lengths)[0], activations, np.ones(2))


def test_close_sees_what_is_wrong() -> None:
    """The comparison of the GPU tests itself."""
    right: Any = np.ones(3)
    close(right, right, TOLERANCE["float64"])
    with pytest.raises(AssertionError, match="largest error"):
        close(right, right * 1.1, TOLERANCE["float16"])
    with pytest.raises(AssertionError, match="not finite"):
        close(right * np.nan, right, 1.0)
