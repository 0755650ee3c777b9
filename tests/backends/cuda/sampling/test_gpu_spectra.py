"""Short-time spectra on a GPU: values, and gradients by signal and window."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("size", "hop"), [(400, 160), (1024, 256), (375, 100), (34, 17)])
def test_values_and_gradients(size: int, hop: int) -> None:
    """As on a CPU, also as one compiled function."""
    rng = np.random.default_rng(0)
    x, window = rng.standard_normal((64, 8000)), np.hanning(size) + 0.1

    def energy(x: Any, window: Any) -> Any:
        found = ops.stft(x, size, hop, window=window)
        return ops.sum(ops.square(found) * np.arange(found.shape[2])[:, None]) / size

    def results(device: str) -> list[np.ndarray]:
        given = [lm.tensor(a, device=device) for a in (x, window)]
        step = lm.value_and_grad(energy, (0, 1))
        value, slopes = step(*given)
        again, compiled = lm.jit(step)(*given)
        spectra = ops.stft(given[0], size, hop, window=given[1])
        return [a.numpy() for a in (spectra, value, *slopes, again, *compiled)]

    for found, wanted in zip(results("cuda:0"), results("cpu"), strict=True):
        np.testing.assert_allclose(found, wanted, 1e-8, 1e-8 * np.abs(wanted).max())
