"""Special functions against PyTorch in float64, incomplete gamma functions against their series in decimals."""

from __future__ import annotations

import math
from decimal import Decimal, getcontext
from functools import partial
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.ops import special

POINTS = np.concatenate([np.linspace(-12, 12, 97), [1e-3, -1e-3, 30.0, -30.0, np.inf, -np.inf, np.nan]])


@pytest.mark.torch
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", ["entr", "erfcx", "log_ndtr", "i0", "i0e", "i1", "i1e"])
def test_values_are_torchs(name: str, dtype: Any) -> None:
    torch = pytest.importorskip("torch")
    points = POINTS if name == "entr" or "ndtr" in name else POINTS[np.isfinite(POINTS)]
    x = points[(points > -5) | (name != "erfcx")].astype(dtype)
    wanted = getattr(torch.special, name)(torch.tensor(x).double()).numpy()
    found = getattr(special, name)(x).numpy()
    assert found.dtype == dtype
    error = 1e-12 if dtype == np.float64 else 2e-5
    np.testing.assert_allclose(found, wanted, rtol=error, atol=error * 1e-1)


@pytest.mark.torch
def test_probabilities_and_their_inverse_are_torchs() -> None:
    torch = pytest.importorskip("torch")
    x = POINTS[np.isfinite(POINTS)]
    np.testing.assert_allclose(
        special.ndtr(x).numpy(), torch.special.ndtr(torch.tensor(x)).numpy(), atol=1e-15
    )
    p = np.concatenate([np.linspace(0, 1, 41), [1e-5, 1e-300, -0.1, 1.1, np.nan]])
    wanted = torch.special.ndtri(torch.tensor(p)).numpy()
    np.testing.assert_allclose(special.ndtri(p).numpy(), wanted, rtol=1e-12, atol=1e-12)
    y = np.linspace(-0.9, 4, 9)
    for a in (0.0, 1.5):
        wanted = torch.special.xlog1py(torch.tensor(np.full(9, a)), torch.tensor(y)).numpy()
        np.testing.assert_allclose(special.xlog1py(np.full(9, a), y).numpy(), wanted, rtol=1e-12)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "x"),
    [("i0", 1.3), ("i0e", -9.5), ("i1", 0.0), ("i1e", 20.0), ("log_ndtr", -3.3), ("ndtri", 0.03), ("erfcx", 1.1),
     ("entr", 0.3), ("ndtr", 0.7)],
)  # fmt: skip
def test_derivatives_are_torchs(name: str, x: float) -> None:
    torch = pytest.importorskip("torch")
    point = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    getattr(torch.special, name)(point).backward()
    found = float(lm.grad(getattr(special, name))(np.float64(x)))
    assert found == pytest.approx(float(point.grad), rel=1e-10)


def test_derivatives_of_bessel_functions_have_all_digits_of_their_type() -> None:
    """And do not overflow before they must: I1(88) is about 6e36."""
    x = np.array([1e-3, 0.1, 3.0, 12.0, 88.0, 100.0], np.float32)
    orders = {
        "i0": lm.grad(lambda v: special.i0(v).sum())(x).numpy(),
        "i0e": lm.grad(lambda v: special.i0e(v).sum())(x).numpy(),
    }
    wide = x.astype(np.float64)
    wanted = {"i0": special.i1(wide).numpy(), "i0e": (special.i1e(wide) - special.i0e(wide)).numpy()}
    assert orders["i0"][-1] == np.inf  # of float32
    np.testing.assert_allclose(orders["i0"][:-1], wanted["i0"][:-1], rtol=3e-7)
    np.testing.assert_allclose(orders["i0e"], wanted["i0e"], rtol=3e-7)


def _part(a: Decimal, x: Decimal) -> Decimal:
    """P(a, x) by its series, with the gamma function by Stirling's series from 60 on."""
    term = series = 1 / a
    n = 1
    while abs(term) > Decimal(10) ** -50:
        term = term * x / (a + n)
        series, n = series + term, n + 1
    z, below = a, Decimal(1)
    while z < 60:
        below, z = below * z, z + 1
    pi = Decimal("3.14159265358979323846264338327950288419716939937510582097494")
    terms = (
        Decimal(n) / d for n, d in ((1, 12), (-1, 360), (1, 1260), (-1, 1680), (1, 1188), (-691, 360360))
    )
    tail = sum((t / z ** (2 * k + 1) for k, t in enumerate(terms)), Decimal(0))
    gamma = (z - Decimal("0.5")) * z.ln() - z + (2 * pi).ln() / 2 + tail - below.ln()
    return series * (a * x.ln() - x - gamma).exp()


@pytest.mark.parametrize(
    ("a", "x"),
    [(0.1, 0.001), (0.5, 4.0), (3.0, 9.0), (26.0, 25.9), (50.0, 55.0), (59.0, 61.0), (61.0, 60.0), (100.0, 150.0),
     (250.0, 200.0), (2000.0, 2010.0)],
)  # fmt: skip
def test_incomplete_gamma_functions(a: float, x: float) -> None:
    getcontext().prec = 60
    wanted = _part(Decimal(a), Decimal(x))
    assert float(ops.igamma(np.float64(a), np.float64(x))) == pytest.approx(float(wanted), rel=1e-11)
    assert float(ops.igammac(np.float64(a), np.float64(x))) == pytest.approx(float(1 - wanted), rel=1e-9)
    assert float(special.gammainc(np.float32(a), np.float32(x))) == pytest.approx(float(wanted), rel=2e-5)


def test_incomplete_gamma_functions_beside_where_their_formulas_change() -> None:
    """The series ends at x = a + 1, and from a = 60 on nodes are used."""
    getcontext().prec = 60
    points = np.array(
        [
            (a, x)
            for a in (0.25, 0.5, 1.0, 1.75, 3.0, 12.5, 30.0, 59.5, 60.0, 60.5, 61.0)
            for x in (0.05 * a, a - 0.125, a, a + 0.5, a + 1.0, a + 1.5, a + 2.0, 2 * a + 3)
        ]
    )
    wanted = [_part(Decimal(a), Decimal(x)) for a, x in points]
    a, x = points.T
    np.testing.assert_allclose(special.gammainc(a, x).numpy(), [float(p) for p in wanted], rtol=3e-11)
    np.testing.assert_allclose(special.gammaincc(a, x).numpy(), [float(1 - p) for p in wanted], rtol=3e-11)


@pytest.mark.parametrize("a", [1, 2, 30, 59, 61, 100, 250, 2000])
def test_small_parts_of_incomplete_gamma_functions_keep_their_digits(a: int) -> None:
    """For a whole a they are the chances that a Poisson number of mean x is at least a, or less: sums of one sign."""
    getcontext().prec = 40
    points = [a * r for r in (0.02, 0.1, 0.4, 0.7, 0.9, 1.1, 1.4, 2.0, 3.0, 5.0)]
    points += [a + s * math.sqrt(a) for s in (-25, -12, -5, -1, 1, 5, 12, 25) if a + s * math.sqrt(a) > 0]
    lower, upper = list[float](), list[float]()
    for x in map(Decimal, points):
        term, sums, k = (-x).exp(), [Decimal(0), Decimal(0)], 0
        while k <= a or k <= x or term > sums[1] * Decimal(10) ** -20:
            sums[k >= a] += term
            k += 1
            term = term * x / k
        upper.append(float(sums[0]))
        lower.append(float(sums[1]))
    for function, wanted in ((special.gammainc, lower), (special.gammaincc, upper)):
        np.testing.assert_allclose(
            function(np.float64(a), np.array(points)).numpy(), wanted, rtol=1e-11, atol=1e-300
        )


@pytest.mark.torch
def test_edges_of_incomplete_gamma_functions_are_torchs() -> None:
    torch = pytest.importorskip("torch")
    a = np.array([0.0, 1, 1, -1, 2, 0, 1, np.inf, np.nan])
    x = np.array([1.0, 0, np.inf, 1, -1, 0, np.nan, 1, 1])
    for name in ("gammainc", "gammaincc"):
        wanted = getattr(torch.special, name)(torch.tensor(a), torch.tensor(x)).numpy()
        np.testing.assert_array_equal(getattr(special, name)(a, x).numpy(), wanted)


def test_derivatives_of_incomplete_gamma_functions_of_every_order() -> None:
    for function in (special.gammainc, special.gammaincc):
        for a in (2.5, 80.0):
            before: Any = partial(function, np.float64(a))
            for _ in range(2):
                after = lm.grad(before)
                high, low = (float(before(np.float64(a + h))) for h in (1e-4, -1e-4))
                assert float(after(np.float64(a))) == pytest.approx((high - low) / 2e-4, rel=1e-5, abs=1e-9)
                before = after


@pytest.mark.torch
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_mantissas_exponents_and_neighbours_are_torchs(dtype: Any) -> None:
    torch = pytest.importorskip("torch")
    numbers = [
        0,
        1,
        -3.7,
        1e-40,
        1e30,
        np.inf,
        -np.inf,
        np.nan,
        0.5,
        0.99999994,
        2.0**-126,
        7e-39,
        5e-324,
        1e300,
    ]
    with np.errstate(over="ignore"):
        x = np.array(numbers).astype(dtype)
    mantissa, exponent = ops.frexp(x)
    wanted = torch.frexp(torch.tensor(x))
    np.testing.assert_array_equal(mantissa.numpy(), wanted.mantissa.numpy())
    np.testing.assert_array_equal(exponent.numpy(), wanted.exponent.numpy())
    steps = torch.nextafter(torch.tensor(x), torch.tensor(x[::-1].copy())).numpy()
    np.testing.assert_array_equal(ops.nextafter(x, x[::-1].copy()).numpy(), steps)
    half = ops.frexp(np.array([6.0, -0.375], np.float16))
    assert (half.mantissa.numpy().tolist(), half.exponent.numpy().tolist()) == ([0.75, -0.75], [3, -1])


def test_names_that_are_the_same_function() -> None:
    for name, other in (
        ("expit", "sigmoid"),
        ("psi", "digamma"),
        ("gammaln", "lgamma"),
        ("multigammaln", "mvlgamma"),
    ):
        assert getattr(special, name) is getattr(ops, other)
    assert ops.igamma is special.gammainc
    assert float(special.logit(0.25)) == pytest.approx(-math.log(3.0), rel=1e-5)


@pytest.mark.torch
@pytest.mark.parametrize("name", [name for name in special.__all__ if "polynomial" in name])
def test_polynomials_are_torchs(name: str) -> None:
    torch = pytest.importorskip("torch")
    x = np.linspace(-1, 2, 13)
    for n in (-1, 0, 1, 2, 5):
        wanted = getattr(torch.special, name)(torch.tensor(x), n).numpy()
        np.testing.assert_allclose(getattr(special, name)(x, n).numpy(), wanted, rtol=1e-12, atol=1e-12)


def test_polynomials_differentiate() -> None:
    x = np.linspace(-1, 1, 7)
    slope = lm.grad(lambda x: special.legendre_polynomial_p(x, 3).sum())(x)
    np.testing.assert_allclose(slope.numpy(), (15 * x**2 - 3) / 2, atol=1e-12)


@pytest.mark.torch
def test_zeta_is_torchs() -> None:
    torch = pytest.importorskip("torch")
    x = np.array([1.0, 1.1, 2.0, 3.5, 20.0, 0.5, 2.0, 2.0, 3.0, 2.0])
    q = np.array([2.0, 0.3, 1.0, 5.0, 2.5, 1.0, 0.0, -2.0, 100.0, 1e-3])
    wanted = torch.special.zeta(torch.tensor(x), torch.tensor(q)).numpy()
    np.testing.assert_allclose(special.zeta(x, q).numpy(), wanted, rtol=1e-13)
    for a, b in ((2.0, 1.5), (3.5, 0.2)):
        slope = lm.grad(lambda q, a=a: special.zeta(a, q))(np.float64(b))
        np.testing.assert_allclose(slope.item(), -a * special.zeta(a + 1, np.float64(b)).item(), rtol=1e-6)
    assert special.zeta(np.float32(2), np.float32(1)).item() == pytest.approx(math.pi**2 / 6, rel=1e-6)
    np.testing.assert_allclose(
        special.spherical_bessel_j0([0.0, 2.0]).numpy(), [1, math.sin(2) / 2], rtol=1e-6
    )


def test_the_gradient_of_xlog1py_where_x_is_0() -> None:
    """It is log1p(y), as that of `xlogy` is log(y)."""
    x, y = np.array([0.0, 0.0, 2.0]), np.array([2.0, -0.5, 3.0])
    found = lm.grad(lambda x: ops.sum(special.xlog1py(x, lm.tensor(y))))(lm.tensor(x)).numpy()
    np.testing.assert_allclose(found, np.log1p(y))
    edges = special.xlog1py(lm.tensor([0.0, 0, 0, 0, 1]), lm.tensor([-1.0, -2, np.inf, np.nan, -1]))
    np.testing.assert_array_equal(edges.numpy(), [0, 0, 0, np.nan, -np.inf])
