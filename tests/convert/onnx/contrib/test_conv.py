"""ONNX Runtime's convolutions: its numbers, and those of other layouts beside the layout that it has."""

from typing import Any

import numpy as np
import pytest

from lamina.convert.onnx import from_onnx
from tests.helpers.onnx_models import beside_onnxruntime, contributed

RNG = np.random.default_rng(0)
WINDOW = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}


def _normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(
    ("activation", "given"),
    [
        ("Relu", None), ("LeakyRelu", [0.2]), ("Clip", [0.1, 0.7]), ("HardSigmoid", [0.3, 0.4]), ("Sigmoid", None),
        ("Tanh", None),
    ],
)  # fmt: skip
def test_an_activation_behind_a_convolution(activation: str, given: Any) -> None:
    more = {} if given is None else {"activation_params": given}
    inputs = (_normal(2, 3, 8, 8), _normal(4, 3, 3, 3), _normal(4))
    beside_onnxruntime("FusedConv", inputs, held=(1, 2), activation=activation, **WINDOW, **more)


def test_a_sum_before_the_activation() -> None:
    inputs = (_normal(2, 3, 8, 8), _normal(4, 3, 3, 3), _normal(4), _normal(2, 4, 8, 8))
    beside_onnxruntime("FusedConv", inputs, held=(1, 2), activation="Relu", **WINDOW)


@pytest.mark.parametrize("operator", ["NhwcConv", "NhwcFusedConv"])
def test_channels_as_the_last_axis(operator: str) -> None:
    x, w, bias, added = _normal(2, 3, 8, 8), _normal(4, 3, 3, 3), _normal(4), _normal(2, 4, 8, 8)
    last = (0, 2, 3, 1)
    more = {"activation": "Relu"} if operator == "NhwcFusedConv" else {}
    first, given = contributed("FusedConv", (x, w, bias, added), **more, **WINDOW)
    wanted = from_onnx(first)(*given.values()).numpy()
    proto, given = contributed(
        operator, (x.transpose(last), w, bias, added.transpose(last)), **more, **WINDOW
    )
    np.testing.assert_allclose(from_onnx(proto)(*given.values()).numpy(), wanted.transpose(last), atol=1e-5)


def test_other_operators_of_images() -> None:
    x = RNG.integers(0, 256, size=(1, 8, 8, 3)).astype(np.uint8)
    beside_onnxruntime("NhwcMaxPool", (x,), kernel_shape=[2, 2], strides=[2, 2])
    grid = np.clip(_normal(1, 3, 3, 2) / 2, -1, 1)
    beside_onnxruntime("GridSample", (_normal(1, 2, 5, 5), grid), mode="bilinear")
    inputs = (_normal(1, 3, 5, 5), _normal(3, 2, 3, 3), np.array([1, 1, 0, 1]), _normal(2))
    beside_onnxruntime(
        "ConvTransposeWithDynamicPads", inputs, held=(1, 2, 3), strides=[2, 2], kernel_shape=[3, 3]
    )
