"""Handlers of quantized numbers agree with ONNX's own tests."""

import numpy as np
import pytest

from lamina.convert.onnx import quantize
from tests.helpers.onnx_models import agrees, node_tests, single


@pytest.mark.parametrize("name", node_tests(quantize))
def test_onnx_own_tests_agree(name: str) -> None:
    agrees(name)


def test_a_scale_for_each_block_along_an_axis() -> None:
    x, scale = np.arange(10, dtype=np.int8).reshape(2, 5), np.array([[1, 2], [3, 4]], np.float32)
    graph = single("DequantizeLinear", {"x": x.shape, "s": scale.shape}, axis=1, block_size=3)
    np.testing.assert_array_equal(graph({"x": x, "s": scale})["y0"].numpy(), x * scale.repeat([3, 2], 1))
