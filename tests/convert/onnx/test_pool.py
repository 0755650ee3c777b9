"""Handlers of pooling agree with ONNX's own tests."""

import numpy as np
import pytest

from lamina.convert.onnx import OnnxError, pool
from tests.helpers.onnx_models import agrees, node_tests, single


@pytest.mark.parametrize("name", node_tests(pool))
def test_onnx_own_tests_agree(name: str) -> None:
    agrees(name)


def test_a_mean_does_not_count_what_rounding_up_adds() -> None:
    x = np.arange(5, dtype=np.float32).reshape(1, 1, 5)
    options = {"kernel_shape": [2], "strides": [2], "ceil_mode": 1}
    found = single("AveragePool", {"x": x.shape}, **options)({"x": x})["y0"].numpy()
    np.testing.assert_allclose(found, [[[0.5, 2.5, 4.0]]])


def test_positions_of_maxima_are_counted_through_the_whole_input() -> None:
    x = np.random.default_rng(0).permutation(2 * 3 * 4 * 4).reshape(2, 3, 4, 4).astype(np.float32)
    graph = single("MaxPool", {"x": x.shape}, 2, kernel_shape=[2, 2], strides=[2, 2])
    y, index = (v.numpy() for v in graph({"x": x}).values())
    np.testing.assert_array_equal(x.reshape(-1)[index], y)


def test_kernels_without_end_are_refused() -> None:
    """What no pooling op takes is written out place by place; a file may ask for any number of them."""
    x = np.zeros((1, 1, 4, 4), np.float32)
    with pytest.raises(OnnxError, match="has more than 4096 places"):
        single("MaxPool", {"x": x.shape}, kernel_shape=[2, 65536])({"x": x})


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
def test_large_kernels_are_those_of_the_pooling_ops(operator: str, rank: int) -> None:
    """They may have more places than what is written out."""
    shape = {1: (5000,), 2: (70, 80), 3: (9, 30, 20)}[rank]
    x = np.random.default_rng(0).normal(size=(1, 2, *shape)).astype(np.float32)
    kernel = [n - 1 for n in shape]
    found = single(operator, {"x": x.shape}, kernel_shape=kernel)({"x": x})["y0"].numpy()
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel, tuple(range(2, 2 + rank)))
    reduced = windows.max if operator == "MaxPool" else windows.mean
    np.testing.assert_allclose(found, reduced(tuple(range(-rank, 0))), rtol=1e-4, atol=1e-6)
