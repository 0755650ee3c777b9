"""Handlers of windows and Fourier transforms agree with ONNX's own tests."""

import numpy as np
import pytest

from lamina.convert.onnx import signal
from tests.helpers.onnx_models import agrees, node_tests, single


@pytest.mark.parametrize("name", node_tests(signal))
def test_onnx_own_tests_agree(name: str) -> None:
    agrees(name)


@pytest.mark.parametrize("size", [3, 8, 12])
def test_transforms_of_other_lengths_cut_or_fill(size: int) -> None:
    x = np.random.default_rng(0).normal(size=(2, 8, 1)).astype(np.float32)
    graph = single("DFT", {"x": x.shape, "n": (), "a": ()}, opset=20)
    found = graph({"x": x, "n": np.array(size), "a": np.array(1)})["y0"].numpy()
    wanted = np.fft.fft(x[..., 0], size, axis=1)
    np.testing.assert_allclose(found, np.stack([wanted.real, wanted.imag], -1), rtol=1e-4, atol=1e-4)
