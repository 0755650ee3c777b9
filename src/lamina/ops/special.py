"""Special functions with torch.special's names and signatures: those of `lamina.ops`, and others.

The others are composed of ops, for every backend, and differentiate through them (`gammainc` and `gammaincc` only in
x, as in torch). Relative accuracy is about 1e-6 in float32 and 1e-12 in float64; half types are computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from lamina._lazy import listing
from lamina.ops.arguments import checked
from lamina.ops.core import Array, call, floating
from lamina.ops.primitives.arrange import broadcast_tensors
from lamina.ops.primitives.elementary import (
    digamma,
    erfc,
    erfinv,
    exp2,
    expm1,
    lgamma,
    log1p,
    logit,
    polygamma,
    round,
    sinc,
    xlogy,
)
from lamina.ops.primitives.elementary import mvlgamma as multigammaln
from lamina.ops.primitives.marker import Marker, Passed, stop_gradient
from lamina.ops.primitives.pointwise import (
    abs,
    erf,
    exp,
    floor,
    log,
    logical_and,
    logical_or,
    maximum,
    minimum,
    sign,
    sqrt,
    square,
    where,
)
from lamina.ops.primitives.pointwise import sigmoid as expit
from lamina.ops.primitives.reduce import sum
from lamina.ops.primitives.shape import stack
from lamina.ops.primitives.softmax import log_softmax, logsumexp, softmax
from lamina.spec import DType, float32, float64

gammaln = lgamma
psi = digamma

__all__ = [
    "chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w",
    "digamma", "entr", "erf", "erfc", "erfcx", "erfinv", "exp2", "expit", "expm1", "gammainc", "gammaincc",
    "gammaln", "hermite_polynomial_h", "hermite_polynomial_he", "i0", "i0e", "i1", "i1e",
    "laguerre_polynomial_l", "legendre_polynomial_p", "log1p", "log_ndtr", "log_softmax", "logit", "logsumexp",
    "multigammaln", "ndtr", "ndtri", "polygamma", "psi", "round", "shifted_chebyshev_polynomial_t",
    "shifted_chebyshev_polynomial_u", "shifted_chebyshev_polynomial_v", "shifted_chebyshev_polynomial_w",
    "sinc", "softmax", "spherical_bessel_j0", "xlog1py", "xlogy", "zeta",
]  # fmt: skip
__dir__ = listing(__all__)

_ROOT_PI, _ROOT_2, _LOG_ROOT_2_PI = math.sqrt(math.pi), math.sqrt(2.0), math.log(2 * math.pi) / 2


def _taken(input: Any, what: str, least: DType = float32) -> tuple[Any, Callable[[Any], Any]]:
    """The operand in at least this dtype, and a function that casts a result back."""
    x = floating(input, what)
    narrow = x.dtype.itemsize < least.itemsize
    return (x.cast(least), lambda y: y.cast(x.dtype)) if narrow else (x, lambda y: y)


# ------------------------------------------------------------------------------------------------ entropy and normal
@checked
def entr(input: Any) -> Any:
    """-x log x, 0 at 0 and -inf below. torch.special.entr."""
    x, back = _taken(input, "entr")
    found = -x * log(where(x > 0, x, 1.0))
    return back(where(x < 0, -math.inf, found))


@checked
def xlog1py(input: Any, other: Any) -> Any:
    """x log(1 + y), 0 where x is 0 and y is not NaN. torch.special.xlog1py."""
    x, y = broadcast_tensors(floating(input, "xlog1py"), floating(other, "xlog1py"))
    zero = (x == 0) & ((y <= -1) | (y == math.inf))  # elsewhere 0 * log1p(y), whose gradient is log1p(y)
    return where(zero, 0.0, x * log1p(where(zero, 0.0, y)))


@checked
def erfcx(input: Any) -> Any:
    """exp(x^2) erfc(x), which does not underflow where erfc does. torch.special.erfcx."""
    x, back = _taken(input, "erfcx")
    far = 8.0 if x.dtype == float32 else 25.0
    near = where(x > far, 0.0, x)
    large = where(x > far, x, far)
    # The asymptotic series, Abramowitz and Stegun 7.1.23.
    term: Any = 1.0
    series: Any = 1.0
    for k in range(1, 9):
        term = term * ((1 - 2 * k) / 2) / square(large)
        series = series + term
    return back(where(x > far, series / (large * _ROOT_PI), exp(square(near)) * erfc(near)))


@checked
def ndtr(input: Any) -> Any:
    """The normal distribution's integral from -inf to x. torch.special.ndtr."""
    x, back = _taken(input, "ndtr")
    return back(erfc(x * (-1 / _ROOT_2)) * 0.5)


@checked
def log_ndtr(input: Any) -> Any:
    """log(ndtr(x)), accurate far into the lower tail. torch.special.log_ndtr."""
    x, back = _taken(input, "log_ndtr")
    low = where(x < -1, x, -1.0)
    high = where(x < -1, 0.0, x)
    below = log(erfcx(low * (-1 / _ROOT_2)) * 0.5) - square(low) * 0.5
    return back(where(x < -1, below, log1p(erfc(high * (1 / _ROOT_2)) * -0.5)))


@checked
def ndtri(input: Any) -> Any:
    """The x with ndtr(x) = p: -inf at 0, inf at 1, NaN outside. torch.special.ndtri."""
    p, back = _taken(input, "ndtri")
    lower = p <= 0.5
    tail = where(lower, p, 1.0 - p)
    inside = (tail > 0) & (tail < 1)
    q = where(inside, tail, 0.5)
    # Hastings' rational approximation (Abramowitz and Stegun 26.2.23, 4.5e-4), then Newton steps on the logarithm.
    t = sqrt(log(q) * -2.0)
    above = 2.515517 + t * (0.802853 + t * 0.010328)
    x = above / (1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308))) - t
    for _ in range(3):
        level = log_ndtr(x)
        density = exp(-square(x) * 0.5 - _LOG_ROOT_2_PI - level)
        x = x - (level - log(q)) / density
    edge = where(tail == 0, -math.inf, math.nan)
    x = where(inside, x, edge)
    return back(where(lower, x, -x))


# ---------------------------------------------------------------------------------------------------------- Bessel In
# float64, whatever the dtype: the gradient of a series has fewer digits than its values, and exp(|x|) overflows.
#: Terms of each Chebyshev series: the remaining coefficients are below float64's eps.
_DEGREE = 34


@lru_cache
def _bessel_series(order: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Chebyshev coefficients on [0, 8] in x / 4 - 1 for exp(-x) I0(x), or of exp(-x) I1(x) / x; and of sqrt(x)
    exp(-x) I(x) from 8 on in 16 / x - 1.

    Values are (1 / pi) times the integral of exp(x (cos t - 1)) cos(order t) over [0, pi], by the trapezoid rule,
    which is exact to rounding for periodic functions.
    """
    angles = (np.arange(4000) + 0.5) * (math.pi / 4000)

    def value(x: Array) -> Array:
        weights = np.exp(np.multiply.outer(x, np.cos(angles) - 1)) * np.cos(order * angles)
        found: Array = weights.mean(-1)
        return found

    def inside(x: Array) -> Array:  # the interpolation nodes exclude the end points
        return value(x) / x if order else value(x)

    interpolate: Any = np.polynomial.chebyshev.chebinterpolate
    near = interpolate(lambda y: inside(4 * (y + 1)), _DEGREE)
    far = interpolate(lambda y: _scaled(value, 16 / np.maximum(y + 1, 1e-4)), _DEGREE)
    return tuple(near.tolist()), tuple(far.tolist())


def _scaled(value: Callable[[Array], Array], x: Array) -> Array:
    found: Array = np.sqrt(x) * value(x)
    return found


def _chebyshev(coefficients: tuple[float, ...], y: Any) -> Any:
    """Clenshaw summation."""
    first: Any = 0.0
    second: Any = 0.0
    for c in coefficients[:0:-1]:
        first, second = y * 2.0 * first - second + c, first
    return y * first - second + coefficients[0]


def _scaled_bessel(x: Any, order: int) -> Any:
    near, far = _bessel_series(order)
    size = abs(x)
    small, large = where(size <= 8, size, 0.0), where(size <= 8, 8.0, size)
    low = _chebyshev(near, small * 0.25 - 1.0)
    high = _chebyshev(far, 16.0 / large - 1.0) / sqrt(large)
    return where(size <= 8, low * x, high * sign(x)) if order else where(size <= 8, low, high)


@checked
def i0e(input: Any) -> Any:
    """exp(-|x|) i0(x). torch.special.i0e."""
    x, back = _taken(input, "i0e", float64)
    return back(_scaled_bessel(x, 0))


@checked
def i0(input: Any) -> Any:
    """The modified Bessel function of order 0, of the first kind. torch.special.i0."""
    x, back = _taken(input, "i0", float64)
    return back(_scaled_bessel(x, 0) * exp(abs(x)))


@checked
def i1e(input: Any) -> Any:
    """exp(-|x|) i1(x). torch.special.i1e."""
    x, back = _taken(input, "i1e", float64)
    return back(_scaled_bessel(x, 1))


@checked
def i1(input: Any) -> Any:
    """The modified Bessel function of order 1, of the first kind. torch.special.i1."""
    x, back = _taken(input, "i1", float64)
    return back(_scaled_bessel(x, 1) * exp(abs(x)))


# ----------------------------------------------------------------------------------------------- incomplete gamma
#: From this a on the integral uses quadrature, below it a series and a continued fraction.
_LARGE = 60.0
_TERMS, _FRACTIONS, _NODES = 120, 90, 40


def _gamma_parts(a: Any, x: Any) -> tuple[Any, Any]:
    """(P, Q), the parts of the gamma function below and above x, in float64, for a > 0 and finite x > 0."""
    scale = exp(a * log(x) - x - lgamma(a))
    small = x < a + 1.0
    # P by its series (Abramowitz and Stegun 6.5.29).
    inside = where(small, x, 1.0)
    term = series = 1.0 / a
    for n in range(1, _TERMS):
        term = term * inside / (a + float(n))
        series = series + term
    # Q by Legendre's continued fraction (6.5.31), evaluated backwards.
    outside = where(small, a + 1.0, x)
    fraction = outside * 0.0
    for n in range(_FRACTIONS, 0, -1):
        fraction = (a - float(n)) * float(n) / (outside + float(2 * n + 1) - a + fraction)
    lower = where(small, series * scale, 1.0 - scale / (outside + 1.0 - a + fraction))
    upper = where(small, 1.0 - series * scale, scale / (outside + 1.0 - a + fraction))
    return lower, upper


def _gamma_by_nodes(a: Any, x: Any) -> tuple[Any, Any]:
    """(P, Q) for large a: the density is a narrow peak around a, integrated on x's side by Gauss quadrature.

    The nodes reach from x to where the density is below exp(-40) of its value at x: the width of the peak, or, in the
    tail, 45 times the length over which it falls to 1 / e at x.
    """
    left = x < a
    reach = minimum(sqrt(a) * 13.0, x * 45.0 / maximum(abs(x - a), 1.0))
    end = where(left, maximum(x - reach, 0.0), x + reach)
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    t = x.unsqueeze(-1) + (end - x).unsqueeze(-1) * ((nodes + 1) / 2)
    centre = a.unsqueeze(-1)
    logs = (centre - 1.0) * log(t) - t - lgamma(centre)
    part = abs(end - x) * 0.5 * sum(exp(logs) * weights, -1)
    return where(left, part, 1.0 - part), where(left, 1.0 - part, part)


@dataclass(frozen=True)
class _GammaPart(Marker, abstract=True):
    """(a, x, value) -> value, the lower (or upper) incomplete gamma function: defines its derivative in x."""

    upper: bool
    arity = 3

    def passed(self, inputs: Sequence[Passed]) -> tuple[Passed, ...]:
        return (inputs[2],)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        a, x, _ = inputs
        density = exp((a - 1.0) * log(x) - x - lgamma(a))
        return None, grads[0] * (-density if self.upper else density), None


def _incomplete_gamma(input: Any, other: Any, what: str, upper: bool) -> Any:
    given, point = broadcast_tensors(floating(input, what), floating(other, what))
    a, x = stop_gradient(given).cast(float64), point.cast(float64)
    regular = (a > 0) & (x > 0) & (x < math.inf) & (a < math.inf)
    safe_a, safe_x = where(regular, a, 1.0), where(regular, x, 1.0)
    large = safe_a > _LARGE
    some = _gamma_parts(where(large, 1.0, safe_a), stop_gradient(where(large, 1.0, safe_x)))
    many = _gamma_by_nodes(where(large, safe_a, _LARGE), stop_gradient(where(large, safe_x, _LARGE)))
    value = where(large, many[upper], some[upper])
    value = call(_GammaPart(upper), safe_a, safe_x, stop_gradient(value))
    nothing = (x == 0) & (a > 0) | ((a == math.inf) & (x >= 0) & (x < math.inf))
    everything = ((x == math.inf) & (a >= 0) & (a < math.inf)) | ((a == 0) & (x > 0))
    value = where(regular, value, math.nan)
    value = where(nothing, float(upper), where(everything, float(not upper), value))
    return value.cast(point.dtype)


@checked
def gammainc(input: Any, other: Any) -> Any:
    """The regularized lower incomplete gamma function of a (input, at least 0) and x (other): from 0 to 1.

    Differentiable only in x. NaN for a negative a or x. torch.special.gammainc, torch.igamma.
    """
    return _incomplete_gamma(input, other, "gammainc", False)


@checked
def gammaincc(input: Any, other: Any) -> Any:
    """1 - gammainc(a, x), accurate where it is small. torch.special.gammaincc, torch.igammac."""
    return _incomplete_gamma(input, other, "gammaincc", True)


igamma = gammainc
igammac = gammaincc


# ------------------------------------------------------------------------------------------------------------ zeta
#: B_2k / (2k)!, the coefficients of the Euler-Maclaurin formula.
_BERNOULLI = (
    1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000, 1 / 74724249600,
    -3617 / 10670622842880000, 43867 / 5109094217170944000,
)  # fmt: skip
_SUMMED = 10


@checked
def zeta(input: Any, other: Any) -> Any:
    """The Hurwitz zeta function, the sum of (other + k)^-input over k = 0, 1, …, for other > 0. torch.special.zeta.

    Infinite for input 1 and where other is 0 or a negative integer, NaN for input < 1 and other negative values of
    other. Differentiable only in other, as in torch.
    """
    x, back = _taken(input, "zeta")
    x, q = broadcast_tensors(stop_gradient(x), _taken(other, "zeta")[0].cast(x.dtype))
    known = logical_and(x > 1, q > 0)
    x, a = where(known, x, 2.0), where(known, q, 1.0)
    found = sum(stack([(a + k) ** -x for k in range(_SUMMED)], 0), 0)
    a = a + _SUMMED
    power = a**-x
    found = found + power * a / (x - 1) + power * 0.5
    factor = power * x / a
    for k, b in enumerate(_BERNOULLI):
        found = found + factor * b
        factor = factor * (x + 2 * k + 1) * (x + 2 * k + 2) / (a * a)
    pole = logical_or(_taken(input, "zeta")[0] == 1, logical_and(q <= 0, floor(q) == q))
    return back(where(known, found, where(pole, math.inf, math.nan)))


@checked
def spherical_bessel_j0(input: Any) -> Any:
    """sin(x) / x. torch.special.spherical_bessel_j0."""
    x, back = _taken(input, "spherical_bessel_j0")
    return back(sinc(x * (1 / math.pi)))


# ----------------------------------------------------------------------------------------------------- polynomials
def _polynomial(
    what: str,
    input: Any,
    n: int,
    first: Callable[[Any], Any],
    step: Callable[[int, Any, Any, Any], Any],
    change: Callable[[Any], Any] = lambda x: x,
) -> Any:
    """Polynomial number n of a family starting with 1 and first(x); number k is followed by step(k, x, this, before).

    Those of negative degree are 0.
    """
    x, back = _taken(input, what)
    x = change(x)
    before, this = x * 0.0, x * 0.0 + 1.0
    if n < 0:
        return back(before)
    for k in range(n):
        before, this = this, first(x) if k == 0 else step(k, x, this, before)
    return back(this)


def _doubled(k: int, x: Any, this: Any, before: Any) -> Any:
    return x * 2.0 * this - before


def _unit(x: Any) -> Any:
    """[0, 1] to [-1, 1]."""
    return x * 2.0 - 1.0


@checked
def chebyshev_polynomial_t(input: Any, n: int) -> Any:
    """Chebyshev polynomial of the first kind. torch.special.chebyshev_polynomial_t; n is a number."""
    return _polynomial("chebyshev_polynomial_t", input, n, lambda x: x, _doubled)


@checked
def chebyshev_polynomial_u(input: Any, n: int) -> Any:
    """Of the second kind. torch.special.chebyshev_polynomial_u; n is a number."""
    return _polynomial("chebyshev_polynomial_u", input, n, lambda x: x * 2.0, _doubled)


@checked
def chebyshev_polynomial_v(input: Any, n: int) -> Any:
    """Of the third kind. torch.special.chebyshev_polynomial_v; n is a number."""
    return _polynomial("chebyshev_polynomial_v", input, n, lambda x: x * 2.0 - 1.0, _doubled)


@checked
def chebyshev_polynomial_w(input: Any, n: int) -> Any:
    """Of the fourth kind. torch.special.chebyshev_polynomial_w; n is a number."""
    return _polynomial("chebyshev_polynomial_w", input, n, lambda x: x * 2.0 + 1.0, _doubled)


@checked
def shifted_chebyshev_polynomial_t(input: Any, n: int) -> Any:
    """chebyshev_polynomial_t of 2 x - 1. torch.special.shifted_chebyshev_polynomial_t; n is a number."""
    return _polynomial("shifted_chebyshev_polynomial_t", input, n, lambda x: x, _doubled, _unit)


@checked
def shifted_chebyshev_polynomial_u(input: Any, n: int) -> Any:
    """chebyshev_polynomial_u of 2 x - 1. torch.special.shifted_chebyshev_polynomial_u; n is a number."""
    return _polynomial("shifted_chebyshev_polynomial_u", input, n, lambda x: x * 2.0, _doubled, _unit)


@checked
def shifted_chebyshev_polynomial_v(input: Any, n: int) -> Any:
    """chebyshev_polynomial_v of 2 x - 1. torch.special.shifted_chebyshev_polynomial_v; n is a number."""
    return _polynomial("shifted_chebyshev_polynomial_v", input, n, lambda x: x * 2.0 - 1.0, _doubled, _unit)


@checked
def shifted_chebyshev_polynomial_w(input: Any, n: int) -> Any:
    """chebyshev_polynomial_w of 2 x - 1. torch.special.shifted_chebyshev_polynomial_w; n is a number."""
    return _polynomial("shifted_chebyshev_polynomial_w", input, n, lambda x: x * 2.0 + 1.0, _doubled, _unit)


@checked
def hermite_polynomial_h(input: Any, n: int) -> Any:
    """Physicists' Hermite polynomial. torch.special.hermite_polynomial_h; n is a number."""
    return _polynomial(
        "hermite_polynomial_h", input, n, lambda x: x * 2.0, lambda k, x, p, q: (x * p - q * float(k)) * 2.0
    )


@checked
def hermite_polynomial_he(input: Any, n: int) -> Any:
    """Probabilists' Hermite polynomial. torch.special.hermite_polynomial_he; n is a number."""
    return _polynomial(
        "hermite_polynomial_he", input, n, lambda x: x, lambda k, x, p, q: x * p - q * float(k)
    )


@checked
def laguerre_polynomial_l(input: Any, n: int) -> Any:
    """Laguerre polynomial. torch.special.laguerre_polynomial_l; n is a number."""
    return _polynomial(
        "laguerre_polynomial_l",
        input,
        n,
        lambda x: 1.0 - x,
        lambda k, x, p, q: ((2.0 * k + 1.0 - x) * p - q * float(k)) / (k + 1.0),
    )


@checked
def legendre_polynomial_p(input: Any, n: int) -> Any:
    """Legendre polynomial. torch.special.legendre_polynomial_p; n is a number."""
    return _polynomial(
        "legendre_polynomial_p",
        input,
        n,
        lambda x: x,
        lambda k, x, p, q: ((2.0 * k + 1.0) * x * p - q * float(k)) / (k + 1.0),
    )
