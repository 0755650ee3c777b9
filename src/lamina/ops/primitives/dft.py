"""Discrete Fourier transforms along the last axis, of (real, imaginary) pairs.

A transform is a series of matrix products: for up to 64 points with the matrix of all sines and cosines; for a length
a b as b transforms of a points, twiddle factors, and a transforms of b points (Cooley & Tukey 1965); for many points
without a suitable divisor as a chirp convolution of a power of two (Bluestein 1970).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from lamina.ops.core import Array
from lamina.ops.primitives.matmul import matmul
from lamina.ops.primitives.shape import cat, flip, pad, transpose
from lamina.spec import float32

#: Real and imaginary part; None for zero.
Pair = tuple[Any, Any]
#: The largest transform computed as one product, and the largest for lengths without a divisor.
DENSE, PRIME = 64, 512


def widened(x: Any) -> Any:
    """x in float32 if it is of a half type."""
    return x.cast(float32) if x.dtype.itemsize < 4 else x


def dft(z: Pair, sign: int, scale: float) -> Pair:
    """The sums over j of z[j] exp(sign 2 pi i j k / n), times scale; the imaginary part may be None."""
    n = z[0].shape[-1]
    first = _divisor(n)
    if first == n:
        return _product(z, _waves(n, n, n, sign) * scale)
    if not first:
        return _chirped(z, sign, scale)
    rest, lead = n // first, z[0].shape[:-1]
    # Points j = rest j1 + j2 and frequencies k = k1 + first k2: sums over j1 [..., j2, k1], twiddle factors, sums
    # over j2.
    z = _each(z, lambda part: transpose(part.reshape((*lead, first, rest)), -1, -2))
    z = _product(z, _waves(first, first, first, sign) * scale)
    z = _times(z, _waves(n, rest, first, sign))
    z = dft(_each(z, lambda part: transpose(part, -1, -2)), sign, 1.0)
    return _each(z, lambda part: transpose(part, -1, -2).reshape((*lead, n)))


def _divisor(n: int) -> int:
    """The number of points transformed by one product: all if few, or a divisor; 0 if there is none.

    The product for a divisor d and that for n / d take d + n / d operations a point: the least where both are alike.
    """
    if n <= DENSE:
        return n
    divisors = (d for d in range(2, DENSE + 1) if n % d == 0)
    found = min(divisors, key=lambda d: (max(d, n // d), -d), default=0)
    return found or (n if n <= PRIME else 0)


@lru_cache(maxsize=64)
def _waves(n: int, points: int, frequencies: int, sign: int) -> Array:
    """[points, frequencies]: exp(sign 2 pi i j k / n), exact at quarter turns, so that real signals have real last
    frequencies. Cached, read-only: sines cost more than products.
    """
    turns = np.outer(np.arange(points), np.arange(frequencies)) % n
    found: Array = np.exp(sign * 2j * np.pi * turns / n)
    quarters = 4 * turns
    exact = quarters % n == 0
    found[exact] = np.array([1, sign * 1j, -1, -sign * 1j])[quarters[exact] // n]
    found.flags.writeable = False
    return found


def _each(z: Pair, fn: Callable[[Any], Any]) -> Pair:
    return fn(z[0]), None if z[1] is None else fn(z[1])


def _product(z: Pair, matrix: Array) -> Pair:
    """z [..., n] times a complex matrix [n, K]."""
    re, im = z
    kind, width = re.dtype.numpy, matrix.shape[1]
    y = matmul(re, np.concatenate([matrix.real, matrix.imag], 1).astype(kind))
    if im is not None:
        y = y + matmul(im, np.concatenate([-matrix.imag, matrix.real], 1).astype(kind))
    return y[..., :width], y[..., width:]


def _times(z: Pair, factors: Array) -> Pair:
    """z times complex constants."""
    (re, im), kind = z, z[0].dtype.numpy
    c, s = factors.real.astype(kind), factors.imag.astype(kind)
    if im is None:
        return re * c, re * s
    return re * c - im * s, re * s + im * c


def _chirped(z: Pair, sign: int, scale: float) -> Pair:
    """Bluestein's algorithm: j k = (j² + k² - (k - j)²) / 2 makes the sum a convolution, padded to a power of two."""
    n = z[0].shape[-1]
    size = 1 << math.ceil(math.log2(2 * n - 1))
    chirp = np.exp(sign * 1j * np.pi * (np.arange(n) ** 2 % (2 * n)) / n)
    around = np.zeros(size, np.complex128)
    around[:n] = chirp.conj()
    around[size - n + 1 :] = chirp.conj()[:0:-1]
    z = _each(_times(z, chirp), lambda part: pad(part, (0, size - n)))
    z = dft(_times(dft(z, -1, 1.0), np.fft.fft(around)), 1, 1 / size)
    return _times(_each(z, lambda part: part[..., :n]), chirp * scale)


def half(x: Any, scale: float) -> Pair:
    """The frequencies 0 … n // 2 of real x."""
    n = x.shape[-1]
    first = _divisor(n)
    if first == n:
        return _product((x, None), _waves(n, n, n // 2 + 1, -1) * scale)
    if not first:
        re, im = _each(dft((x, None), -1, scale), lambda part: part[..., : n // 2 + 1])
        return re, _without_ends(im, n)
    # As in `dft`, but only for k1 = 0 … first // 2: frequency n - k is the conjugate of k.
    rest, lead, kept = n // first, x.shape[:-1], first // 2 + 1
    z = transpose(x.reshape((*lead, first, rest)), -1, -2), None
    z = _product(z, _waves(first, first, kept, -1) * scale)
    z = _times(z, _waves(n, rest, kept, -1))
    z = dft(_each(z, lambda part: transpose(part, -1, -2)), -1, 1.0)
    re, im = _each(z, lambda part: transpose(part, -1, -2))
    return _whole(re, n, first, 1), _without_ends(_whole(im, n, first, -1), n)


def _without_ends(im: Any, n: int) -> Any:
    """Zero at the frequencies 0 and n / 2, where a rounding residue's sign would determine the phase."""
    k = np.arange(n // 2 + 1)
    return im * ((k > 0) & (2 * k != n)).astype(im.dtype.numpy)


def _whole(part: Any, n: int, first: int, turn: int) -> Any:
    """The frequencies 0 … n // 2 of [..., k2, k1] with k1 = 0 … first // 2; turn: the twiddle of a conjugate."""
    rows = n // 2 // first + 1
    last = part.shape[-2] - rows
    mirrored = flip(part[..., last:, 1 : first - first // 2], (-2, -1))
    found = cat((part[..., :rows, :], mirrored if turn > 0 else -mirrored), -1)
    return found.reshape((*part.shape[:-2], rows * first))[..., : n // 2 + 1]


def from_half(z: Pair, n: int, scale: float) -> Any:
    """The real signal whose half spectrum is z; the imaginary part of frequency 0 is ignored."""
    k = np.arange(n // 2 + 1)
    if _divisor(n) == n:
        times = (
            np.where((k == 0) | (2 * k == n), 1, 2)[:, None] * scale
        )  # most also stand for their conjugates
        waves = _waves(n, n, len(k), 1).T * times
        re, im = z
        return matmul(re, waves.real.astype(re.dtype.numpy)) - matmul(im, waves.imag.astype(re.dtype.numpy))
    more = n - len(k)
    re, im = (
        cat((part, flip(part[..., 1 : 1 + more], (-1,)) * turn), -1)
        for part, turn in zip(z, (1, -1), strict=True)
    )
    # The imaginary part at 0 and n / 2 contributes an imaginary result, which is dropped.
    return dft((re, im), 1, scale)[0]
