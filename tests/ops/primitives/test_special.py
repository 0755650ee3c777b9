"""Functions that NumPy lacks, against Python's mathematics and identities, to nearly the last digit."""

import math

import numpy as np
import pytest

from lamina.ops.primitives import special

X = np.concatenate([np.linspace(-30, 30, 2411) + 1e-3, np.geomspace(1e-12, 1e6, 200)])


def test_erfc() -> None:
    wanted = np.array([math.erfc(v) for v in X])
    np.testing.assert_allclose(special.erfc(X), wanted, rtol=4e-13, atol=1e-300)


def test_erfinv() -> None:
    y = np.linspace(-5.5, 5.5, 501)
    x = np.array([math.erf(v) for v in y])
    near = np.abs(y) < 3
    np.testing.assert_allclose(special.erfinv(x)[near], y[near], rtol=1e-11, atol=1e-15)
    found = np.array([math.erf(v) for v in special.erfinv(x)])
    np.testing.assert_allclose(found, x, rtol=4e-15)
    assert special.erfinv(np.array([1.0, -1.0])).tolist() == [math.inf, -math.inf]
    assert np.isnan(special.erfinv(np.array([1.5, -1.5, np.inf, -np.inf, np.nan]))).all()
    tiny = np.array([0.0, -0.0, 1e-300, 1e-20, -1e-9])
    np.testing.assert_allclose(special.erfinv(tiny), tiny * (math.sqrt(math.pi) / 2), rtol=1e-15)
    close = np.float32(1) - np.float32(2.0**-24) * np.arange(1, 50, dtype=np.float32)
    found = [math.erfc(v) for v in special.erfinv(close.astype(np.float64))]
    np.testing.assert_allclose(found, 1 - close.astype(np.float64), rtol=1e-12)
    np.testing.assert_allclose(special.erfinv(close), special.erfinv(close.astype(np.float64)), rtol=1e-7)


def test_lgamma() -> None:
    wanted = np.array([math.lgamma(v) for v in X])
    np.testing.assert_allclose(special.lgamma(X), wanted, rtol=2e-13, atol=2e-13)
    assert np.isinf(special.lgamma(np.array([0.0, -1.0, -7.0, math.inf]))).all()


def test_digamma() -> None:
    """psi(x + 1) = psi(x) + 1 / x, psi(1) is minus Euler's constant, and it is the slope of lgamma."""
    found = special.digamma(X)
    np.testing.assert_allclose(special.digamma(X + 1) - found, 1 / X, rtol=1e-9, atol=2e-11)
    np.testing.assert_allclose(special.digamma(np.array([1.0])), -0.5772156649015329, rtol=1e-14)
    assert np.isnan(special.digamma(np.array([-1.0]))).all()


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_polygamma(n: int) -> None:
    """psi_n(x + 1) = psi_n(x) + (-1)^n n! / x^(n + 1), on both sides of 0 and far away; psi_1(1) = pi^2 / 6."""
    x = np.concatenate([np.linspace(-40, 40, 801) + 0.037, [1000.25, -1000.25]])
    step = (-1) ** n * math.factorial(n) / x ** (n + 1)
    before, after = special.polygamma(n, x), special.polygamma(n, x + 1)
    assert (np.abs(after - before - step) <= 1e-9 * (np.abs(before) + np.abs(step))).all()
    np.testing.assert_allclose(special.polygamma(1, np.array([1.0])), math.pi**2 / 6, rtol=1e-14)


def test_integers() -> None:
    with np.errstate(divide="ignore"):
        found = special.trunc_divide(np.array([7, -7, 7, -7]), np.array([2, 2, -2, 0]))
    assert found.tolist() == [3, -3, -3, 0]
    assert special.left_shift(np.array([1, 1]), np.array([3, 64])).tolist() == [8, 0]
    assert special.right_shift(np.array([-8, -8]), np.array([1, 99])).tolist() == [-4, -1]
    power = special.whole_power(np.array([2, -1, 1, 3]), np.array([-1, -3, -5, 4]))
    assert power.tolist() == [0, -1, 1, 81]
