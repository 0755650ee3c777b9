"""Functions that NumPy lacks: erfc, erfinv, lgamma, digamma, polygamma of float arrays; integer arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from lamina.ops.core import Array
from lamina.ops.primitives.pointwise import erf_numpy, lookup
from lamina.spec import DType

_STEP, _END = 1 / 64, 27.0  # beyond 27 erfc is below the smallest float64


def _scaled_table() -> Array:
    """Taylor coefficients of f(x) = exp(x^2) * erfc(x) around each multiple of _STEP: row n holds f^(n) / n!.

    f' = 2 x f - 2 / sqrt(pi), so that f^(n + 1) = 2 x f^(n) + 2 n f^(n - 1) (Abramowitz and Stegun 7.1.20).
    """
    x = np.arange(0, _END, _STEP)
    rows = [np.array([math.exp(v * v) * math.erfc(v) for v in np.minimum(x, 26)])]
    far = x > 26  # the asymptotic series 7.1.23
    square = x[far] ** 2
    rows[0][far] = (1 - 1 / (2 * square) + 3 / (4 * square**2)) / (x[far] * math.sqrt(math.pi))
    rows.append(2 * x * rows[0] - 2 / math.sqrt(math.pi))
    for n in range(1, 5):
        rows.append(2 * x * rows[n] + 2 * n * rows[n - 1])
    return np.stack([row / math.factorial(n) for n, row in enumerate(rows)])


_SCALED = _scaled_table()


def _tail(y: Any) -> Any:
    """erfc of nonnegative float64 numbers; negative ones count as 0."""
    size = np.maximum(np.minimum(y, _END - _STEP), 0.0)
    steps = np.rint(size * (1 / _STEP))
    apart = size - steps * _STEP
    near = np.minimum(np.nan_to_num(steps).astype(np.intp), _SCALED.shape[1] - 1)
    value = lookup(_SCALED[-1], near)
    for row in _SCALED[-2::-1]:
        value = value * apart + lookup(row, near)
    return np.where(y > _END - _STEP, 0.0, value * np.exp(-size * size))


def erfc(x: Array) -> Array:
    """1 - erf(x), with small relative error where it is small."""
    wide = x.astype(np.float64)
    tail = _tail(np.abs(wide))
    found = np.where(np.abs(wide) < 0.5, 1 - erf_numpy(wide), np.where(wide > 0, tail, 2 - tail))
    return np.where(np.isnan(wide), wide, found).astype(x.dtype)


#: M. Giles, "Approximating the erfinv function" (2010): erfinv(x) / x in w = -log(1 - x^2), below 5 and above.
_NEAR = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
    -0.00417768164, 0.246640727, 1.50140941,
)  # fmt: skip
_NEAR_ONE = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
    0.00943887047, 1.00167406, 2.83297682,
)  # fmt: skip


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """Horner's rule, highest power first."""
    found: Any = coefficients[0]
    for c in coefficients[1:]:
        found = found * x + c
    return found


def erfinv(x: Array) -> Array:
    """The y with erf(y) = x: Giles' approximation, then Halley steps on erf, or on erfc near the ends."""
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        size = np.abs(wide)
        w = -np.log((1 - size) * (1 + size))
        estimate = np.where(w < 5, _polynomial(w - 2.5, _NEAR), _polynomial(np.sqrt(w) - 3, _NEAR_ONE))
        y = estimate * size
        for _ in range(1 if x.dtype.itemsize <= 4 else 2):
            error = np.where(size < 0.5, erf_numpy(y) - size, (1 - size) - _tail(y))
            ratio = error * np.exp(y * y) * (math.sqrt(math.pi) / 2)
            y = y - ratio / (1 + y * ratio)
        y = np.where(size == 1, np.inf, np.where(size > 1, np.nan, y))
    return np.copysign(y, wide).astype(x.dtype)


#: The Bernoulli numbers B_2, B_4, …
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
#: From here on the asymptotic series are accurate to the last digits.
_FAR = 10
#: The Taylor series of sin(pi t) / t in t^2, highest power first; accurate to the last digits for |t| <= 1 / 2.
_SINE = tuple((-1) ** k * math.pi ** (2 * k + 1) / math.factorial(2 * k + 1) for k in range(13, -1, -1))


def _sine(t: Any) -> Any:
    """sin(pi t) for |t| <= 1 / 2."""
    return t * _polynomial(t * t, _SINE)


def lgamma(x: Array) -> Array:
    """Stirling's series (Abramowitz and Stegun 6.1.40) above 10, reached by gamma(x + 1) = x gamma(x); reflected
    below 0.5."""
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        low = wide < 0.5
        at = np.where(low, 1 - wide, wide)
        product = np.ones_like(at)
        for _ in range(_FAR):
            below = at < _FAR
            product = np.where(below, product * at, product)
            at = np.where(below, at + 1, at)
        terms = [b / (2 * n * (2 * n - 1)) for n, b in enumerate(_BERNOULLI, 1)]
        series = _polynomial(1 / (at * at), terms[::-1]) / at
        found = (at - 0.5) * np.log(at) - at + 0.5 * math.log(2 * math.pi) + series - np.log(product)
        apart = np.abs(wide - np.rint(wide))  # the sine of the distance to the nearest integer is accurate
        found = np.where(low, math.log(math.pi) - np.log(_sine(apart)) - found, found)
        found = np.where((np.abs(wide) == np.inf) | (low & (apart == 0)), np.inf, found)
        found = np.where((wide == 1) | (wide == 2), 0.0, found)
    return found.astype(x.dtype)


def digamma(x: Array) -> Array:
    """The asymptotic series (Abramowitz and Stegun 6.3.18) above 10, reached by recurrence; reflected below 0."""
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        low = wide < 0
        at = np.where(low, 1 - wide, wide)
        sums = np.zeros_like(at)
        for _ in range(_FAR):
            below = at < _FAR
            sums = np.where(below, sums - 1 / at, sums)
            at = np.where(below, at + 1, at)
        square = 1 / (at * at)
        terms = [b / (2 * n) for n, b in enumerate(_BERNOULLI, 1)]
        found = np.log(at) - 0.5 / at - square * _polynomial(square, terms[::-1]) + sums
        apart = wide - np.rint(wide)
        cotangent = _sine(0.5 - np.abs(apart)) / _sine(apart)
        found = np.where(low, found - math.pi * cotangent, found)
        found = np.where(low & (apart == 0), np.nan, found)
        found = np.where(wide == 0, -np.copysign(np.inf, wide), found)
        found = np.where(wide == np.inf, np.inf, np.where(wide == -np.inf, np.nan, found))
    return found.astype(x.dtype)


def _zeta_far(s: int, a: Array) -> Array:
    """The Hurwitz zeta function for a >= 10 by the Euler-Maclaurin formula (Abramowitz and Stegun 23.1.30)."""
    found = a ** (1 - s) / (s - 1) + 0.5 * a**-s
    factor = float(s)
    for n, b in enumerate(_BERNOULLI, 1):
        found = found + b / math.factorial(2 * n) * factor * a ** -(s + 2 * n - 1)
        factor *= (s + 2 * n - 1) * (s + 2 * n)
    return found


def polygamma(n: int, x: Array) -> Array:
    """(-1)^(n + 1) n! zeta(n + 1, x): terms near 0 one by one, those above 10 and below -10 by `_zeta_far`."""
    wide, s = x.astype(np.float64), n + 1
    with np.errstate(all="ignore"):
        steps = np.where(wide < -_FAR, np.floor(-_FAR - wide) + 1, 0.0)
        at = wide + steps  # the first term above -10
        far = np.maximum(-(at - 1), _FAR)  # magnitudes of the terms before it: far … -x
        before = np.where(steps > 0, (-1.0) ** s * (_zeta_far(s, far) - _zeta_far(s, far + steps)), 0.0)
        sums = np.zeros_like(at)
        for _ in range(2 * _FAR + 1):
            below = at < _FAR
            sums = np.where(below, sums + at**-s, sums)
            at = np.where(below, at + 1, at)
        found = (-1.0) ** (n + 1) * math.factorial(n) * (before + sums + _zeta_far(s, at))
        pole = (wide <= 0) & (wide == np.rint(wide))
        found = np.where(pole, np.inf if s % 2 == 0 else np.nan, found)
        found = np.where(wide == np.inf, 0.0, found)
    return found.astype(x.dtype)


# ---- integers


def trunc_divide(a: Array, b: Array) -> Any:
    """a / b rounded towards zero; 0 for integers divided by 0."""
    if a.dtype.kind == "f":
        return np.trunc(a / b)
    found = np.floor_divide(a, b)
    return np.where((np.fmod(a, b) != 0) & ((a < 0) != (b < 0)), found + 1, found).astype(a.dtype)


def left_shift(a: Array, b: Array) -> Any:
    """a * 2^b, 0 for a b outside the bit width."""
    bits = 8 * a.dtype.itemsize
    inside = (b >= 0) & (b < bits)
    return np.where(inside, np.left_shift(a, np.where(inside, b, 0)), 0).astype(a.dtype)


def right_shift(a: Array, b: Array) -> Any:
    """a / 2^b rounded down; a b outside the bit width counts as the full width."""
    bits = 8 * a.dtype.itemsize
    inside = (b >= 0) & (b < bits)
    found = np.right_shift(a, np.where(inside, b, bits - 1).astype(a.dtype))
    return found if a.dtype.kind == "i" else np.where(inside, found, 0).astype(a.dtype)


def whole_power(a: Array, b: Array) -> Any:
    """a to the power of b in integers; for a negative b 1 for 1, 1 or -1 for -1, and otherwise 0."""
    found = np.power(a, np.maximum(b, 0))
    negative = (
        np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 0, 1, -1), 0))
        if a.dtype.kind == "i"
        else a == 1
    )
    return np.where(b < 0, negative, found).astype(a.dtype)


def largest(dtype: DType) -> float:
    """The largest finite number of a float dtype."""
    finfo: Any = ml_dtypes.finfo
    return float(finfo(dtype.numpy).max)
