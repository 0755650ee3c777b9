"""exp, log and their relatives as instructions that LLVM can run on vectors, in float32 and float64.

Arguments are reduced as W. J. Cody and W. Waite do (Software Manual for the Elementary Functions, 1980), the rest is
a polynomial. NaN gives NaN, infinities and zeros give NumPy's results. Errors are at most `ULPS` units in the last
place of the result, including denormal ones; tests compare with wider arithmetic over the whole range.
"""

from __future__ import annotations

from functools import lru_cache
from math import erf, erfc, factorial, log, sqrt
from typing import Any

import numpy as np

from lamina.backends.cpu.loops.code import TYPES, Code, Scalar, floating, function, fused
from lamina.ops.primitives.pointwise import erf_by_table

#: The bound on errors, by function.
ULPS = {
    "exp": 1.5,
    "expm1": 3.0,
    "log": 1.5,
    "log1p": 2.5,
    "tanh": 4.0,
    "logaddexp": 4.0,
    "exp2": 2.5,
    "log2": 3.0,
}

#: By item size: bits of the fraction; bounds of the x whose exp is neither 0 nor infinite; terms of the series.
_FRACTION = {4: 23, 8: 52}
_RANGE = {4: (-104.0, 89.0), 8: (-746.0, 710.0)}
_EXP_TERMS, _LOG_TERMS = {4: 7, 8: 13}, {4: 4, 8: 9}
_LN2 = log(2)
#: ln 2 in two parts, the first of which has few enough bits that its products with exponents are exact.
_LN2_HIGH = {4: 0.693359375, 8: float.fromhex("0x1.62e42feep-1")}
_LN2_LOW = {4: -2.12194440054690583e-4, 8: float.fromhex("0x1.a39ef35793c76p-33")}


def _whole(dtype: np.dtype[Any]) -> Any:
    return np.int32 if dtype.itemsize == 4 else np.int64


def _polynomial(code: Code, x: Scalar, coefficients: list[float]) -> Scalar:
    """coefficients[0] + x * (coefficients[1] + x * …)."""
    found = code.value(coefficients[-1], x.dtype)
    for c in reversed(coefficients[:-1]):
        found = fused(code, found, x, c)
    return found


def _bounded(code: Code, x: Scalar, low: float, high: float) -> Scalar:
    """x within bounds; NaN stays."""
    x = code.call("where", (x < low, low, x))
    return code.call("where", (x > high, high, x))


def _within(code: Code, x: Scalar, low: float, high: float) -> tuple[Scalar, Scalar]:
    """Whether x is so small that the result is 0, and x for the formula, with 0 there, since denormal numbers are
    slow."""
    gone = x < low
    return gone, code.call("where", (gone, 0.0, code.call("where", (x > high, high, x))))


def _reduced(code: Code, x: Scalar) -> tuple[Scalar, Scalar]:
    """n and r with x = n * ln 2 + r, |r| <= ln 2 / 2; n as an integer. x must be within the range of exp, or NaN."""
    size = x.dtype.itemsize
    shift = 1.5 * 2.0 ** _FRACTION[size]  # when added to a number, leaves its integer part in the lowest bits
    shifted = fused(code, x, 1 / _LN2, shift)
    n = shifted - shift
    r = fused(code, n, -_LN2_LOW[size], fused(code, n, -_LN2_HIGH[size], x))
    return code.bits(shifted, _whole(x.dtype)) - code.bits(code.value(shift, x.dtype), _whole(x.dtype)), r


def _powers(code: Code, n: Scalar, dtype: np.dtype[Any]) -> tuple[Scalar, Scalar]:
    """Two powers of two with the product 2^n: one alone may be out of range."""
    half = code.made(n.dtype, f"ashr {TYPES[n.dtype]} {n.text}, 1")
    return _power(code, half, dtype), _power(code, n - half, dtype)


def _power(code: Code, n: Scalar, dtype: np.dtype[Any]) -> Scalar:
    bits = _FRACTION[dtype.itemsize]
    bias = 2 ** (8 * dtype.itemsize - bits - 2) - 1
    return code.bits(code.shifted(n + n.dtype.type(bias), -bits), dtype)


def _exp_of_rest(code: Code, r: Scalar) -> Scalar:
    """exp(r) - 1 for |r| <= ln 2 / 2, by Taylor's series."""
    terms = _EXP_TERMS[r.dtype.itemsize]
    series = _polynomial(code, r, [1 / factorial(k) for k in range(2, terms + 1)])
    return fused(code, series, r * r, r)


@function("exp")
def exp(code: Code, a: Any) -> Scalar:
    """e to the power of a."""
    x = floating(code, "exp", a)
    gone, within = _within(code, x, *_RANGE[x.dtype.itemsize])
    n, r = _reduced(code, within)
    first, second = _powers(code, n, x.dtype)
    return code.call("where", (gone, 0.0, (_exp_of_rest(code, r) + 1.0) * first * second))


@function("exp2")
def exp2(code: Code, a: Any) -> Scalar:
    """2 to the power of a."""
    x = floating(code, "exp2", a)
    low, high = (v / _LN2 for v in _RANGE[x.dtype.itemsize])
    gone, x = _within(code, x, low, high)
    whole = code.call("rint", (x,))
    n = code.convert(whole, np.dtype(_whole(x.dtype)))
    first, second = _powers(code, n, x.dtype)
    return code.call("where", (gone, 0.0, (_exp_of_rest(code, (x - whole) * _LN2) + 1.0) * first * second))


@function("expm1")
def expm1(code: Code, a: Any) -> Scalar:
    """exp(a) - 1, accurate near 0."""
    x = floating(code, "expm1", a)
    n, r = _reduced(code, _bounded(code, x, *_RANGE[x.dtype.itemsize]))
    first, second = _powers(code, n, x.dtype)
    found = second * (first * _exp_of_rest(code, r) + (first - 1.0 / second))
    return code.call("copysign", (found, x))


@function("log")
def log_(code: Code, a: Any) -> Scalar:
    """The natural logarithm."""
    x = floating(code, "log", a)
    exponent, rest = _logarithm(code, x)
    size = x.dtype.itemsize
    found = fused(code, exponent, _LN2_HIGH[size], fused(code, exponent, _LN2_LOW[size], rest))
    return _at_the_ends(code, x, found)


@function("log2")
def log2(code: Code, a: Any) -> Scalar:
    """The logarithm to base 2."""
    x = floating(code, "log2", a)
    exponent, rest = _logarithm(code, x)
    return _at_the_ends(code, x, fused(code, rest, 1 / _LN2, exponent))


def _logarithm(code: Code, x: Scalar) -> tuple[Scalar, Scalar]:
    """e and log(m) with x = 2^e * m, m between the roots of 1/2 and 2, for x > 0 (K. C. Ng's form in fdlibm)."""
    dtype, whole, bits = x.dtype, np.dtype(_whole(x.dtype)), _FRACTION[x.dtype.itemsize]
    tiny = x < float(np.finfo(dtype).tiny)
    scaled = code.call("where", (tiny, x * 2.0**bits, x))
    root = code.bits(code.value(sqrt(0.5), dtype), whole)
    over = code.bits(scaled, whole) - root
    n = code.made(whole, f"ashr {TYPES[whole]} {over.text}, {bits}")
    m = code.bits(code.bits(scaled, whole) - code.shifted(n, -bits), dtype)
    exponent = code.convert(n, dtype) - code.call("where", (tiny, code.value(float(bits), dtype), 0.0))
    f = m - 1.0
    s = f / (f + 2.0)
    z = s * s
    series = z * _polynomial(code, z, [2 / (2 * k + 3) for k in range(_LOG_TERMS[dtype.itemsize] + 1)])
    half = f * f * 0.5
    return exponent, f - (half - s * (half + series))


def _at_the_ends(code: Code, x: Scalar, found: Scalar) -> Scalar:
    """NaN below 0, -inf at 0, infinity and NaN as they are."""
    found = code.call("where", (x > 0, found, np.nan))
    found = code.call("where", (x == 0, -np.inf, found))
    return code.call("where", (x < np.inf, found, code.call("where", (x == np.inf, np.inf, found))))


@function("log1p")
def log1p(code: Code, a: Any) -> Scalar:
    """log(1 + a), accurate near 0: the rounding error of 1 + a is corrected (HP-15C Advanced Functions Handbook)."""
    x = floating(code, "log1p", a)
    u = x + 1.0
    mended = code.call("log", (u,)) + (x - (u - 1.0)) / u
    usual = code.call("logical_and", (u > 0, u < np.inf))
    found = code.call("where", (usual, mended, code.call("log", (u,))))
    return code.call("where", (np.abs(x) < float(np.finfo(x.dtype).eps) / 4, x, found))


@function("tanh")
def tanh(code: Code, a: Any) -> Scalar:
    """The hyperbolic tangent."""
    x = floating(code, "tanh", a)
    t = expm1(code, _bounded(code, code.call("fabs", (x + x,)), 0.0, 40.0))
    return code.call("copysign", (t / (t + 2.0), x))


#: Up to this |x| erf(x) is x and x times a polynomial in x * x, and from here on 1 - exp(a polynomial in |x|), up to
#: the |x| whose erf is 1 in float32.
_ERF_BOUND, _ERF_END = 1.0, 4.0
_ERF_TERMS = 7
#: The bound on errors of erf in float32, as in `ULPS`.
ERF_ULPS = 2.0


@function("erf_numpy")
def erf_numpy(code: Code, a: Any) -> Scalar:
    """The error function: of float32 without a table, whose elements vectors would gather."""
    x = floating(code, "erf", a)
    if x.dtype.itemsize > 4:
        return erf_by_table(x)  # type: ignore[arg-type, return-value]
    near, far = _erf_polynomials()
    small = fused(code, _polynomial(code, x * x, near), x, x)
    size = code.call("fabs", (x,))
    power = _polynomial(code, _bounded(code, size, _ERF_BOUND, _ERF_END), far)
    large = code.call("copysign", (1.0 - exp(code, power), x))
    return code.call("where", (size < _ERF_BOUND, small, large))


@lru_cache(maxsize=1)
def _erf_polynomials() -> tuple[list[float], list[float]]:
    """Least squares of the relative errors at Chebyshev's points."""
    points = (1 + np.cos((np.arange(400) + 0.5) * np.pi / 400)) / 2
    x = points * _ERF_BOUND
    y = np.array([erf(v) for v in x])
    near = _fitted(x * x, y / x - 1, x / y)
    x = _ERF_BOUND + points * (_ERF_END - _ERF_BOUND)
    rest = np.array([erfc(v) for v in x])
    return near, _fitted(x, np.log(rest), rest / (1 - rest))


def _fitted(x: Any, y: Any, weights: Any) -> list[float]:
    """The coefficients of a polynomial."""
    powers = np.vander(x, _ERF_TERMS, increasing=True) * weights[:, None]
    return [float(v) for v in np.linalg.lstsq(powers, y * weights, rcond=None)[0]]


@function("logaddexp")
def logaddexp(code: Code, a: Any, b: Any) -> Scalar:
    """log(exp(a) + exp(b)), without overflow."""
    x, y = code.together(a, b)
    top = code.call("maximum", (x, y))
    apart = np.abs(x - y)
    found = top + log1p(code, exp(code, -apart))
    return code.call("where", (x == y, x + _LN2, found))
