"""ONNX Runtime's operators on quantized tensors: its numbers."""

from typing import Any

import numpy as np
import pytest

from lamina.convert.onnx import from_onnx
from tests.helpers.onnx_models import beside_onnxruntime, contributed

RNG = np.random.default_rng(0)


def _normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def _u8(*shape: int) -> Any:
    return RNG.integers(0, 256, size=shape).astype(np.uint8)


def _i8(*shape: int) -> Any:
    return RNG.integers(-128, 128, size=shape).astype(np.int8)


def _i7(*shape: int) -> Any:
    """Weights of at most 64: pairs of products stay below 2^15, where onnxruntime saturates without VNNI."""
    return RNG.integers(-64, 65, size=shape).astype(np.int8)


def _scale(value: Any) -> Any:
    return np.array(value, np.float32)


def _zero(value: int, kind: Any = np.uint8) -> Any:
    return np.array(value, kind)


PAIR = (_scale(0.1), _zero(120))


@pytest.mark.parametrize(
    ("operator", "shape", "y_scale", "options"),
    [
        ("QLinearSigmoid", (3, 4), 1 / 256, {}),
        ("QLinearLeakyRelu", (3, 4), 0.1, {"alpha": 0.1}),
        ("QLinearSoftmax", (3, 4), 1 / 256, {"opset": 13}),
        ("QLinearSoftmax", (3, 4, 2), 1 / 256, {"opset": 11, "axis": 1}),
        ("QLinearGlobalAveragePool", (2, 3, 5, 5), 0.13, {"channels_last": 0}),
        ("QLinearGlobalAveragePool", (2, 5, 5, 3), 0.13, {"channels_last": 1}),
        ("QLinearAveragePool", (2, 3, 6, 6), 0.13, {"kernel_shape": [3, 3], "strides": [2, 2]}),
        ("QLinearAveragePool", (2, 6, 6, 3), 0.13, {"kernel_shape": [3, 3], "channels_last": 1}),
    ],
)
def test_one_input(operator: str, shape: Any, y_scale: float, options: Any) -> None:
    beside_onnxruntime(operator, (_u8(*shape), *PAIR, _scale(y_scale), _zero(7)), **options)


def test_a_mean_over_axes() -> None:
    x = _u8(2, 3, 4)
    proto, given = contributed("QLinearReduceMean", (x, *PAIR, _scale(0.2), _zero(9)), axes=[1], keepdims=1)
    wanted = np.clip((x.astype(float) - 120).mean(1, keepdims=True) * 0.1 / 0.2 + 9, 0, 255)
    np.testing.assert_allclose(from_onnx(proto)(*given.values()).numpy(), wanted, atol=0.501)


@pytest.mark.parametrize(("operator", "scale"), [("QLinearAdd", 0.3), ("QLinearMul", 3.0)])
def test_two_inputs(operator: str, scale: float) -> None:
    inputs = (_u8(3, 4), *PAIR, _u8(4), _scale(0.2), _zero(100), _scale(scale), _zero(128))
    beside_onnxruntime(operator, inputs)


def test_choices_and_joins() -> None:
    inputs = (_scale(0.2), _zero(128), _u8(2, 3), *PAIR, _u8(2, 4), _scale(0.3), _zero(10))
    beside_onnxruntime("QLinearConcat", inputs, held=(0, 1, 3, 4, 6, 7), axis=1)
    truth = np.array([[True], [False]])
    inputs = (truth, _u8(2, 3), *PAIR, _u8(2, 3), _scale(0.2), _zero(3), _scale(0.2), _zero(100))
    beside_onnxruntime("QLinearWhere", inputs, held=(2, 3, 5, 6, 7, 8))


@pytest.mark.parametrize("result", ["real", "quantized"])
def test_a_product_with_bias(result: str) -> None:
    whole = RNG.integers(-99, 99, size=3).astype(np.int32)
    more = (_scale(30.0), _zero(100)) if result == "quantized" else ()
    inputs = (_u8(4, 6), *PAIR, _i8(3, 6), np.abs(_normal(3)), np.zeros(3, np.int8), whole, *more)
    beside_onnxruntime("QGemm", inputs, held=tuple(range(1, len(inputs))), transB=1)


def test_products_that_give_real_numbers() -> None:
    x, per_column = _normal(2, 4, 6), np.abs(_normal(3))
    beside_onnxruntime(
        "DynamicQuantizeMatMul", (x, _i7(6, 3), _scale(0.1), _zero(3, np.int8), _normal(3)), held=(1,)
    )
    beside_onnxruntime("DynamicQuantizeMatMul", (x, _u8(6, 3), per_column, _u8(3)), held=(1, 2, 3))
    inputs = (_u8(4, 6), _i8(6, 3), _scale(0.1), per_column, _zero(120), _i8(3), _normal(3))
    beside_onnxruntime("MatMulIntegerToFloat", inputs, held=(1, 2, 3, 4, 5, 6))
    wide = RNG.integers(-300, 300, size=(3, 4)).astype(np.int16)
    beside_onnxruntime("MatMulInteger16", (wide, wide.T.copy()))


def test_steps_from_and_to_integers() -> None:
    beside_onnxruntime("QuantizeLinear", (_normal(3, 4), *PAIR))
    beside_onnxruntime("DequantizeLinear", (_u8(3, 4), *PAIR))
    beside_onnxruntime("DequantizeLinear", (_u8(3, 4), _normal(4), _u8(4)), axis=1)


@pytest.mark.parametrize("last", [0, 1])
def test_a_convolution_of_both_layouts(last: int) -> None:
    x = _u8(1, 8, 8, 3) if last else _u8(1, 3, 8, 8)
    bias = RNG.integers(-99, 99, size=4).astype(np.int32)
    inputs = (
        x,
        *PAIR,
        _i7(4, 3, 3, 3),
        _scale(0.2),
        _zero(0, np.int8),
        _scale(9.13),
        _zero(100),
        bias,
    )  # no sum is half a step
    beside_onnxruntime(
        "QLinearConv", inputs, held=tuple(range(1, 9)), channels_last=last, kernel_shape=[3, 3], pads=[1] * 4
    )


def test_attention_and_embeddings_of_quantized_weights() -> None:
    mask = np.array([[1, 1, 1, 0, 0], [1] * 5], np.int32)
    numbers = (_scale(0.01), _scale(0.01))
    inputs = (_u8(2, 5, 16), _i8(16, 48), _normal(48), *numbers, mask, _zero(120), _zero(0, np.int8))
    beside_onnxruntime("QAttention", inputs, held=(1, 2, 3, 4, 6, 7), num_heads=4)
    ids = RNG.integers(0, 9, size=(2, 5)).astype(np.int32)
    tables = [_u8(9, 16), _u8(6, 16), _u8(2, 16), _u8(16), _u8(16)]
    inputs = (ids, ids % 2, *tables, mask, *[_scale(0.02)] * 5, *[_zero(120)] * 5)
    held = (*range(2, 7), *range(8, 18))
    beside_onnxruntime("QEmbedLayerNormalization", inputs, ("y", "words"), held=held, epsilon=1e-6)


def test_an_lstm_of_quantized_weights_is_near() -> None:
    """ONNX Runtime rounds what goes in to 8 bits, too."""
    numbers = (_scale([0.01]), np.zeros(1, np.int8))
    inputs = (_normal(6, 2, 5), _i8(1, 5, 16), _i8(1, 4, 16), _normal(1, 32), *[None] * 4, *numbers, *numbers)
    held = (1, 2, 3, 8, 9, 10, 11)
    beside_onnxruntime("DynamicQuantizeLSTM", inputs, ("y", "h", "c"), held=held, hidden_size=4, tol=0.03)


def test_whole_numbers() -> None:
    a, b = _u8(3, 4), _i8(3, 4)
    proto, given = contributed("MulInteger", (a, _zero(3), b))
    np.testing.assert_array_equal(from_onnx(proto)(*given.values()).numpy(), (a.astype(int) - 3) * b)
    proto, given = contributed("ReduceSumInteger", (a,), axes=[1], keepdims=0)
    np.testing.assert_array_equal(from_onnx(proto)(*given.values()).numpy(), a.astype(int).sum(1))
