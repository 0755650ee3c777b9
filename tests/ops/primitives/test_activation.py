"""Activations and similarities: the formulas in float64, kinks, NaN, shapes, errors."""

import math
from typing import Any

import numpy as np
import pytest

from lamina import ops
from lamina.spec import ShapeError
from tests.helpers.functions import grad, run

X = np.array([-30.0, -2.0, -0.5, -0.25, 0.0, 0.25, 0.5, 3.0, 40.0])
SIGMOID = 1 / (1 + np.exp(-X))
PLUS = np.logaddexp(X, 0)
#: Function, arguments, values, derivative at X (at a kink, as torch has it).
CASES: list[tuple[str, tuple[Any, ...], Any, Any]] = [
    ("mish", (), X * np.tanh(PLUS), np.tanh(PLUS) + X * (1 - np.tanh(PLUS) ** 2) * SIGMOID),
    (
        "selu",
        (),
        1.0507009873554805 * np.where(X > 0, X, 1.6732632423543772 * np.expm1(X)),
        1.0507009873554805 * np.where(X > 0, 1, 1.6732632423543772 * np.exp(X)),
    ),
    ("celu", (), np.where(X > 0, X, np.expm1(X)), np.where(X > 0, 1, np.exp(X))),
    ("celu", (2.0,), np.where(X > 0, X, 2 * np.expm1(X / 2)), np.where(X > 0, 1, np.exp(X / 2))),
    ("softsign", (), X / (1 + abs(X)), 1 / (1 + abs(X)) ** 2),
    ("softshrink", (), np.sign(X) * np.maximum(abs(X) - 0.5, 0), abs(X) > 0.5),
    ("softshrink", (0.0,), X, X != 0),
    ("hardshrink", (), np.where(abs(X) > 0.5, X, 0), abs(X) > 0.5),
    ("hardshrink", (0.3,), np.where(abs(X) > 0.3, X, 0), abs(X) > 0.3),
    ("tanhshrink", (), X - np.tanh(X), np.tanh(X) ** 2),
    ("logsigmoid", (), -np.logaddexp(-X, 0), 1 - SIGMOID),
]


@pytest.mark.parametrize(("name", "args", "values", "slopes"), CASES, ids=lambda c: str(c)[:14])
def test_values_and_slopes(name: str, args: Any, values: Any, slopes: Any) -> None:
    function = getattr(ops, name)
    np.testing.assert_allclose(run(function, X, *args), values, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(grad(lambda x: function(x, *args), X)[0], slopes, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", sorted({c[0] for c in CASES}))
def test_nan_stays(name: str) -> None:
    assert np.isnan(run(getattr(ops, name), np.array([np.nan, 1.0]))).tolist() == [True, False]


def test_the_gradient_of_what_is_shrunk_to_0_is_0_whatever_arrives() -> None:
    (found,) = grad(lambda x: ops.softshrink(ops.sqrt(ops.softshrink(x))) * math.inf, np.array([0.25, 9.0]))
    assert found.tolist() == [0.0, math.inf]


def test_glu() -> None:
    x = np.random.default_rng(0).standard_normal((2, 6))
    np.testing.assert_allclose(run(ops.glu, x), x[:, :3] / (1 + np.exp(-x[:, 3:])))
    with pytest.raises(ShapeError, match=r"glu: axis 0 of .* has an odd size"):
        run(ops.glu, np.zeros((3, 2)), 0)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, 0.5, 0.0, -1.0, math.inf, -math.inf])
def test_norms(p: float) -> None:
    a, b = np.random.default_rng(0).standard_normal((2, 3, 4))
    found = run(ops.pairwise_distance, a, b, p)
    np.testing.assert_allclose(found, np.linalg.norm(a - b + 1e-6, p, axis=-1))
    np.testing.assert_allclose(run(ops.normalize, a, p), a / np.linalg.norm(a, p, axis=1, keepdims=True))


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, 0.0, math.inf])
def test_vectors_may_take_several_axes(p: float) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4))
    sizes = np.array([np.linalg.norm(x[:, i].ravel(), p) for i in range(3)]).reshape(1, 3, 1)
    np.testing.assert_allclose(run(ops.normalize, x, p, (0, -1)), x / sizes)


def test_similarities_of_numbers_zeros_and_what_broadcasts() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 3, 4)), rng.standard_normal((3, 1))
    wide = np.broadcast_to(b, a.shape)
    wanted = (a * wide).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(wide, axis=1))
    np.testing.assert_allclose(run(ops.cosine_similarity, a, b), wanted)
    assert run(ops.cosine_similarity, np.zeros((1, 2)), np.ones((1, 2))).tolist() == [0]
    assert run(ops.cosine_similarity, np.array(2.0), np.array(-3.0), 0).tolist() == -1
    assert run(ops.normalize, np.array(-4.0), 2.0, 0).tolist() == -1
    assert run(ops.normalize, np.zeros((2, 2))).tolist() == [[0, 0], [0, 0]]
    assert run(ops.pairwise_distance, a[0], a[1], keepdim=True).shape == (3, 1)


def test_bilinear() -> None:
    rng = np.random.default_rng(0)
    a, b, w, bias = (rng.standard_normal(s) for s in ((2, 5, 3), (2, 5, 4), (6, 3, 4), (6,)))
    wanted = np.einsum("...i,oij,...j->...o", a, w, b)
    np.testing.assert_allclose(run(ops.bilinear, a, b, w), wanted)
    np.testing.assert_allclose(run(ops.bilinear, a[0, 0], b[0, 0], w, bias), wanted[0, 0] + bias)
    assert run(ops.bilinear, np.zeros((0, 3)), np.zeros((0, 4)), w).shape == (0, 6)
    for wrong in ((a, b[:1], w), (b, a, w), (a, b, w[0]), (np.array(1.0), b, w)):
        with pytest.raises(ShapeError, match="bilinear: inputs"):
            run(ops.bilinear, *wrong)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="softshrink: lambd must be >= 0, got -1"):
        run(ops.softshrink, X, -1)
    with pytest.raises(ValueError, match="celu: alpha must not be 0"):
        run(ops.celu, X, 0)
    with pytest.raises(TypeError, match="hardshrink: lambd must be a number, got 'a'"):
        run(ops.hardshrink, X, "a")
    with pytest.raises(ShapeError, match="normalize: axis 2"):
        run(ops.normalize, np.zeros((2, 2)), 2.0, 2)


def test_a_threshold_keeps_nan() -> None:
    """As PyTorch does: a loss that has diverged does not look healthy."""
    x = np.array([np.nan, -1.0, 0.5, 1.0, 2.0, np.inf])
    np.testing.assert_array_equal(ops.threshold(x, 1.0, -3.0).numpy(), [np.nan, -3, -3, -3, 2, np.inf])
