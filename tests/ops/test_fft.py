"""Fourier transforms against NumPy in float64: every way that points are taken apart, axes, norms, ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina.graph import compile, trace
from lamina.ops import fft
from lamina.spec import DTypeError, ShapeError, Spec, float32

RNG = np.random.default_rng(11)
#: One product; products of several stages; a prime in one product; a chirp, alone and within stages; one point.
POINTS = (1, 2, 3, 16, 63, 64, 65, 96, 97, 210, 521, 1042, 1024)
NORMS = (None, "backward", "ortho", "forward")


def drawn(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)


def pairs(z: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.stack([z.real, z.imag], -1)


def agree(found: Any, wanted: np.ndarray[Any, Any], error: float = 1e-12) -> None:
    wanted = pairs(wanted) if np.iscomplexobj(wanted) else wanted
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found.numpy(), wanted, rtol=0, atol=error * max(abs(wanted).max(), 1e-300))


@pytest.mark.parametrize("n", POINTS)
@pytest.mark.parametrize("norm", NORMS)
def test_one_axis(n: int, norm: Any) -> None:
    z, x = drawn(2, n), RNG.standard_normal((2, n))
    agree(fft.fft(pairs(z), norm=norm), np.fft.fft(z, norm=norm))
    agree(fft.ifft(pairs(z), norm=norm), np.fft.ifft(z, norm=norm))
    agree(fft.rfft(x, norm=norm), np.fft.rfft(x, norm=norm))
    half = drawn(2, n // 2 + 1)
    agree(fft.irfft(pairs(half), n, norm=norm), np.fft.irfft(half, n, norm=norm))
    agree(fft.hfft(pairs(half), n, norm=norm), np.fft.hfft(half, n, norm=norm))
    agree(fft.ihfft(x, norm=norm), np.fft.ihfft(x, norm=norm))


@pytest.mark.parametrize("n", [5, 12, 20])
@pytest.mark.parametrize("dim", [0, 1, -2, -1])
def test_points_that_are_added_or_left_out(n: int, dim: int) -> None:
    z, x = drawn(12, 7), RNG.standard_normal((12, 7))
    agree(fft.fft(pairs(z), n, dim), np.fft.fft(z, n, dim))
    agree(fft.ifft(pairs(z), n, dim), np.fft.ifft(z, n, dim))
    agree(fft.rfft(x, n, dim), np.fft.rfft(x, n, dim))
    agree(fft.irfft(pairs(z), n, dim), np.fft.irfft(z, n, dim))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    ("s", "dim"), [(None, None), (None, (0, 2)), ((4, 7), None), ((3, 9), (2, 0)), ((8, -1), (0, 1))]
)
def test_several_axes(s: Any, dim: Any, norm: Any) -> None:
    z, x = drawn(5, 6, 4), RNG.standard_normal((5, 6, 4))
    axes = dim if dim is not None or s is None else tuple(range(-len(s), 0))
    sizes = s and [z.shape[a] if n == -1 else n for a, n in zip(axes, s, strict=True)]
    for name, given in (("fftn", pairs(z)), ("ifftn", pairs(z)), ("rfftn", x), ("irfftn", pairs(z))):
        plain = z if given.ndim > 3 else x
        want = s and [*sizes[:-1], 2 * (z.shape[axes[-1]] - 1) if s[-1] == -1 else s[-1]]
        wanted = getattr(np.fft, name)(plain, want if name == "irfftn" else sizes, axes, norm)
        agree(getattr(fft, name)(given, s, dim, norm), wanted)


def test_two_axes_and_frequencies() -> None:
    z, x = drawn(3, 4, 5), RNG.standard_normal((3, 4, 5))
    agree(fft.fft2(pairs(z)), np.fft.fft2(z))
    agree(fft.ifft2(pairs(z), (6, 2)), np.fft.ifft2(z, (6, 2)))
    agree(fft.rfft2(x, dim=(0, 1)), np.fft.rfft2(x, axes=(0, 1)))
    agree(fft.irfft2(pairs(z), (4, 9)), np.fft.irfft2(z, (4, 9)))
    for n in (1, 6, 7):
        agree(fft.fftfreq(n, 0.5, dtype=lm.float64), np.fft.fftfreq(n, 0.5))
        agree(fft.rfftfreq(n, dtype=lm.float64), np.fft.rfftfreq(n))
    agree(fft.fftshift(x, (0, -1)), np.fft.fftshift(x, (0, -1)))
    agree(fft.ifftshift(x), np.fft.ifftshift(x))


@pytest.mark.parametrize(("dtype", "error"), [("float32", 1e-6), ("float16", 2e-3), ("bfloat16", 1e-2)])
def test_float_types(dtype: str, error: float) -> None:
    x = RNG.standard_normal((2, 96))
    found = fft.rfft(lm.tensor(x).cast(dtype))
    assert str(found.dtype) == dtype
    agree(found.cast("float64"), np.fft.rfft(x), error)


@pytest.mark.parametrize("n", [6, 65, 521])
def test_gradients(n: int) -> None:
    """The transform is linear: its gradient is its adjoint."""
    z, g, x = drawn(2, n), drawn(2, n), RNG.standard_normal((2, n))
    given = lm.tensor(pairs(g))
    agree(lm.grad(lambda z: (fft.fft(z) * given).sum())(lm.tensor(pairs(z))), n * np.fft.ifft(g))
    half = given[:, : n // 2 + 1]
    found = lm.grad(lambda x: (fft.rfft(x) * half).sum())(lm.tensor(x))
    filled = np.concatenate([g[:, : n // 2 + 1], np.zeros((2, n - n // 2 - 1))], 1)
    agree(found, (n * np.fft.ifft(filled)).real)
    weights = RNG.standard_normal((2, n))
    found = lm.grad(lambda z: (fft.irfft(z, n) * lm.tensor(weights)).sum())(
        lm.tensor(pairs(z[:, : n // 2 + 1]))
    )
    count = np.where((np.arange(n // 2 + 1) == 0) | (2 * np.arange(n // 2 + 1) == n), 1, 2)
    wanted = np.fft.rfft(weights) * count / n
    wanted.imag[:, count == 1] = 0
    agree(found, wanted, 1e-11)


def test_compiled() -> None:
    run = compile(trace(lambda x: fft.irfft2(fft.rfft2(x) * 2.0, (6, 130)), Spec((2, 6, 130), float32)))
    x = RNG.standard_normal((2, 6, 130)).astype(np.float32)
    np.testing.assert_allclose(run(lm.tensor(x))[0].numpy(), 2 * x, atol=1e-5)


def test_refusals() -> None:
    with pytest.raises(
        ShapeError, match=r"fft: needs complex numbers as \[\.\.\., 2\].*of real ones take rfft"
    ):
        fft.fft(lm.ones(3, 4))
    with pytest.raises(DTypeError, match="fftfreq: dtype must be a float, got int32"):
        fft.fftfreq(4, dtype="int32")
    with pytest.raises(ValueError, match="rfft: the number of points must be >= 1, got 0"):
        fft.rfft(lm.ones(4), 0)
    with pytest.raises(ValueError, match="rfft: dim must be"):
        fft.rfft(lm.ones(4), dim=2)
    with pytest.raises(ValueError, match="fftn: s and dim must be of the same length"):
        fft.fftn(lm.ones(4, 2), (2,), (0, 0))
    with pytest.raises(ValueError, match="fftn: dim must name each axis once"):
        fft.fftn(lm.ones(4, 2), dim=(0, 0))


@pytest.mark.parametrize("n", [8, 12, 128, 250])
def test_a_real_signal_has_no_imaginary_part_where_the_phase_is_a_half_turn(n: int) -> None:
    """As in every library: else the phase at the first and the last frequency is pi or -pi, as the rounding goes."""
    x = RNG.standard_normal((5, n)).astype(np.float32) + np.linspace(-2, 2, 5, dtype=np.float32)[:, None]
    found = lm.fft.rfft(lm.tensor(x)).numpy()
    assert not found[:, [0, -1], 1].any()
