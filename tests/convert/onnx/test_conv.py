"""Handlers of convolutions agree with ONNX's own tests."""

import numpy as np
import pytest

from lamina.convert.onnx import OnnxError, conv
from tests.helpers.onnx_models import agrees, beside_onnxruntime, node_tests, single


@pytest.mark.parametrize("name", node_tests(conv))
def test_onnx_own_tests_agree(name: str) -> None:
    agrees(name)


def test_a_convolution_needs_one_to_three_spatial_axes() -> None:
    graph = single("Conv", {"x": (2, 3), "w": (4, 3)})
    with pytest.raises(OnnxError, match=r"Conv: needs one to three spatial axes, got f32\[2,3\]"):
        graph({"x": np.ones((2, 3), np.float32), "w": np.ones((4, 3), np.float32)})


@pytest.mark.parametrize("mode", ["NOTSET", "SAME_UPPER"])
@pytest.mark.parametrize("size", [9, 10, 11])
def test_an_output_shape_says_how_much_is_cut(mode: str, size: int) -> None:
    """The odd element is cut at the front, with SAME_UPPER at the end."""
    rng = np.random.default_rng(0)
    inputs = (rng.normal(size=(1, 2, 5)).astype(np.float32), rng.normal(size=(2, 3, 4)).astype(np.float32))
    beside_onnxruntime(
        "ConvTranspose",
        inputs,
        domain="",
        strides=[2],
        output_shape=[size],
        auto_pad=mode,
        output_padding=[1],
    )


def test_an_activation_that_is_none_of_the_operators_is_refused() -> None:
    graph = single("CausalConvWithState", {"x": (1, 2, 5), "w": (2, 1, 3)}, 2, 27, activation="relu")
    with pytest.raises(OnnxError, match="activation must be none, silu or swish, got 'relu'"):
        graph({"x": np.ones((1, 2, 5), np.float32), "w": np.ones((2, 1, 3), np.float32)})
