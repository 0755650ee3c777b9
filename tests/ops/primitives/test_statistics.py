"""What numbers are like together, against NumPy: NaN, ties, no elements, gradients, errors."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.spec import ShapeError
from tests.helpers.functions import grad, run

X = np.random.default_rng(0).integers(-3, 4, (4, 7, 3)).astype(np.float64)
HOLES = np.where(X == 2, np.nan, X)


def test_truth() -> None:
    for dim in (None, 1, (0, 2)):
        np.testing.assert_array_equal(run(ops.any, X, dim), (X != 0).any(dim))
        np.testing.assert_array_equal(run(ops.all, X, dim, True), (X != 0).all(dim, keepdims=True))
        np.testing.assert_array_equal(run(ops.count_nonzero, X, dim), np.count_nonzero(X, dim))
    assert [run(f, np.zeros((0,))).item() for f in (ops.any, ops.all)] == [False, True]
    assert run(ops.any, np.array([2], np.uint8)).dtype == np.uint8


def test_sums_without_nan() -> None:
    np.testing.assert_allclose(run(ops.nansum, HOLES, 1), np.nansum(HOLES, 1))
    np.testing.assert_allclose(
        run(ops.nanmean, HOLES, (0, 1), True), np.nanmean(HOLES, (0, 1), keepdims=True)
    )
    (found,) = grad(lambda x: ops.nansum(x), np.array([1.0, np.nan]))
    assert found.tolist() == [1, 0]
    low, high = run(ops.aminmax, X, dim=1)
    np.testing.assert_array_equal([low, high], [X.min(1), X.max(1)])


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_ranks(dim: int) -> None:
    n = X.shape[dim]
    values, indices = run(ops.kthvalue, X, 2, dim)
    np.testing.assert_array_equal(values, np.sort(X, dim).take(1, dim))
    np.testing.assert_array_equal(
        np.take_along_axis(X, np.expand_dims(indices, dim), dim).squeeze(dim), values
    )
    middle = run(ops.median, X, dim)[0]
    np.testing.assert_array_equal(middle, np.sort(X, dim).take((n - 1) // 2, dim))


def test_medians_and_nan() -> None:
    x = np.array([[1.0, np.nan, 3.0, 2.0], [np.nan] * 4, [4.0, 1.0, 3.0, 2.0]])
    np.testing.assert_array_equal(run(ops.median, x, 1)[0], [np.nan, np.nan, 2])
    np.testing.assert_array_equal(run(ops.nanmedian, x, 1)[0], [2, np.nan, 2])
    assert run(ops.median, np.array([3, 1, 2, 4])) == 2
    assert np.isnan(run(ops.median, np.zeros(0)))


def test_mode() -> None:
    values, indices = run(ops.mode, np.array([[3, 1, 3, 1], [5, 5, 2, 0]]))
    assert (values.tolist(), indices.tolist()) == ([1, 5], [3, 1])


@pytest.mark.parametrize("method", ["linear", "lower", "higher", "midpoint", "nearest"])
def test_quantiles(method: Any) -> None:
    q = np.array([0.0, 0.3, 0.77, 1.0])
    np.testing.assert_allclose(
        run(ops.quantile, X, q, 1, interpolation=method), np.quantile(X, q, 1, method=method)
    )
    np.testing.assert_allclose(
        run(ops.quantile, X, 0.4, interpolation=method), np.quantile(X, 0.4, method=method)
    )
    found = run(ops.nanquantile, HOLES, q, 0, True, interpolation=method)
    np.testing.assert_allclose(found, np.nanquantile(HOLES, q, 0, keepdims=True, method=method))
    assert np.isnan(run(ops.quantile, HOLES, 0.5))


def test_the_gradient_of_a_median() -> None:
    (found,) = grad(lambda x: ops.median(x), np.array([5.0, 1.0, 3.0]))
    assert found.tolist() == [0, 0, 1]
    for median in (ops.median, ops.nanmedian):
        (found,) = grad(lambda x, f=median: f(x), np.array([[5.0, 3.0], [3.0, 1.0]]))
        assert found.tolist() == [[0, 0.5], [0.5, 0]]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda x: ops.kthvalue(x, 4), "kthvalue: k must be in 1 … 3"),
        (lambda x: ops.median(x[:0], 0), "median: axis 0 .* has no elements"),
        (lambda x: ops.quantile(x.long(), 0.5), "quantile: takes floats"),
    ],
)
def test_errors(call: Any, match: str) -> None:
    with pytest.raises(ShapeError, match=match):
        call(lm.ones((2, 3)))


def test_ranks_of_quantiles_have_all_digits() -> None:
    """Of a number in float64, and of rows that are longer than halves count."""
    x = np.array([1.0, 2.0, 4.0])
    assert run(ops.quantile, x, 0.3) == np.quantile(x, 0.3)
    half = (np.arange(10001) / 10001).astype(np.float16)
    assert run(ops.quantile, half, 0.77) == np.float16(0.77)
    counted = run(ops.quantile, np.arange(11, dtype=np.float32), [0.1, 0.7], interpolation="higher")
    assert counted.tolist() == [1, 7]


@pytest.mark.parametrize("q", [1.5, -0.1, [0.1, float("nan")], np.array([0.5, 2.0])])
def test_a_quantile_of_no_share(q: Any) -> None:
    with pytest.raises(ValueError, match="quantile: q must be in 0 … 1, got "):
        ops.quantile(lm.ones(3), q)
