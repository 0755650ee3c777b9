"""The transforms behind `fft` and `stft`: halves of real ones by every decomposition, and what is kept of them."""

import numpy as np
import pytest

import lamina as lm
from lamina.ops.primitives import dft


@pytest.mark.parametrize("n", [1, 2, 7, 64, 65, 96, 100, 130, 210, 400, 401, 521, 1024, 1042])
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_half_of_a_real_transform(n: int, scale: float) -> None:
    """One product, products of several stages with odd and even factors, a chirp: as NumPy's."""
    x = np.random.default_rng(n).standard_normal((2, 3, n))
    re, im = dft.half(lm.tensor(x), scale)
    wanted = np.fft.rfft(x) * scale
    assert re.shape == im.shape == wanted.shape
    largest = abs(wanted).max()
    np.testing.assert_allclose(re.numpy(), wanted.real, rtol=0, atol=1e-12 * largest)
    np.testing.assert_allclose(im.numpy(), wanted.imag, rtol=0, atol=1e-12 * largest)


@pytest.mark.parametrize("n", [100, 65, 96])
def test_the_gradient_is_the_transposed_transform(n: int) -> None:
    """<g, half(x)> differs along d by <g, half(d)>."""
    rng = np.random.default_rng(0)
    x, d = rng.standard_normal((2, 4, n))
    g = rng.standard_normal((2, 4, n // 2 + 1))

    def weighed(x):  # type: ignore[no-untyped-def]
        re, im = dft.half(x, 1.0)
        return (re * g[0]).sum() + (im * g[1]).sum()

    slope = lm.grad(weighed)(lm.tensor(x)).numpy()
    np.testing.assert_allclose((slope * d).sum(), weighed(lm.tensor(d)).item(), rtol=1e-11)


def test_what_is_kept_is_not_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        dft._waves(6, 6, 6, -1)[0, 0] = 2


@pytest.mark.parametrize(("n", "points"), [(128, {8, 16}), (192, {12, 16}), (4096, {64}), (134, {2, 67})])
def test_products_are_for_divisors_that_are_alike(
    n: int, points: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their sum is the number of operations of a point."""
    seen, matmul = set[int](), dft.matmul

    def noted(x: object, matrix: object) -> object:
        seen.add(matrix.shape[0])  # type: ignore[attr-defined]
        return matmul(x, matrix)

    monkeypatch.setattr(dft, "matmul", noted)
    x = lm.tensor(np.random.default_rng(0).standard_normal((2, n)).astype(np.float32))
    re, im = dft.dft((x, None), -1, 1.0)
    wanted = np.fft.fft(x.numpy())
    np.testing.assert_allclose(re.numpy() + 1j * im.numpy(), wanted, atol=1e-3)
    assert seen == points
