"""ONNX Runtime's matrix products: its numbers."""

from typing import Any

import numpy as np
import pytest

from lamina import ops
from lamina.convert.onnx import OnnxError, from_onnx
from lamina.convert.onnx.contrib.matmul import unpacked
from tests.helpers.onnx_models import beside_onnxruntime, contributed

RNG = np.random.default_rng(0)


def _normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def _bytes(*shape: int) -> Any:
    return RNG.integers(0, 256, size=shape).astype(np.uint8)


@pytest.mark.parametrize(
    ("a", "b", "options"),
    [
        ((2, 6, 4), (2, 6, 3), {"transA": 1, "alpha": 0.5}),
        ((2, 4, 6), (2, 3, 6), {"transB": 1}),
        ((4, 2, 3, 6), (2, 3, 6, 5), {"transBatchA": 1}),
        ((2, 3, 4, 6), (4, 2, 3, 6), {"transBatchB": 1, "transB": 1}),
    ],
)
def test_products_of_turned_operands(a: Any, b: Any, options: Any) -> None:
    if options.get("transBatchB"):
        b = (3, 2, 5, 6)
        a = (2, 5, 4, 6)
    beside_onnxruntime("FusedMatMul", (_normal(*a), _normal(*b)), **options)


def test_the_old_name_and_the_activation_behind_a_product() -> None:
    a, b = _normal(2, 4, 6), _normal(2, 3, 6)
    beside_onnxruntime("TransposeMatMul", (a, b), transB=1)
    proto, given = contributed("FusedMatMulActivation", (a, b), transB=1, activation="Relu")
    wanted = np.maximum(a @ b.swapaxes(1, 2), 0)
    np.testing.assert_allclose(from_onnx(proto)(*given.values()).numpy(), wanted, rtol=1e-5, atol=1e-6)
    beside_onnxruntime(
        "FusedGemm", (_normal(4, 6), _normal(3, 6), _normal(3)), held=(1, 2), transB=1, alpha=0.5, beta=2.0,
        activation="LeakyRelu", activation_alpha=0.3,
    )  # fmt: skip
    x, w, bias = _normal(4, 6), _normal(6, 3), _normal(3)
    proto, given = contributed("GemmFastGelu", (x, w, bias))
    y = x @ w + bias
    wanted = 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
    np.testing.assert_allclose(from_onnx(proto)(*given.values()).numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_numbers_in_a_byte_begin_with_the_low_bits() -> None:
    packed = ops.operand(np.array([[0b11_10_01_00, 0x5A]], np.uint8))
    assert unpacked(packed, 2).numpy().tolist() == [[0, 1, 2, 3, 2, 2, 1, 1]]
    assert unpacked(packed, 4).numpy().tolist() == [[4, 14, 10, 5]]
    assert unpacked(packed, 8).numpy().tolist() == [[228, 90]]
    with pytest.raises(ValueError, match="numbers of 3 bits are not read: 1, 2, 4 or 8"):
        unpacked(packed, 3)


@pytest.mark.parametrize(
    ("bits", "points"),
    [(2, "none"), (4, "none"), (8, "none"), (2, "packed"), (4, "packed"), (8, "packed"), (4, "real")],
)
def test_weights_of_few_bits(bits: int, points: str) -> None:
    n, k, size = 6, 70, 16
    blocks = -(-k // size)
    zero = {
        "none": None, "packed": _bytes(n, -(-blocks * bits // 8)), "real": _normal(n, blocks)
    }[points]  # fmt: skip
    inputs = (_normal(3, k), _bytes(n, blocks, size * bits // 8), _normal(n, blocks), zero, None, _normal(n))
    beside_onnxruntime(
        "MatMulNBits", inputs, held=(1, 2, 3, 5), K=k, N=n, bits=bits, block_size=size, tol=1e-4
    )


def test_what_weights_of_few_bits_may_not_be() -> None:
    inputs = (_normal(3, 32), _bytes(6, 2, 8), _normal(6, 2), None, np.zeros(32, np.int32))
    sizes = {"K": 32, "N": 6, "block_size": 16}
    proto, given = contributed("MatMulNBits", inputs, held=(1, 2), **sizes)
    with pytest.raises(OnnxError, match="g_idx"):
        from_onnx(proto)(*given.values())
    proto, given = contributed("MatMulNBits", inputs[:3], held=(1, 2), weight_prepacked=1, **sizes)
    with pytest.raises(OnnxError, match="weight_prepacked=0"):
        from_onnx(proto)(*given.values())


@pytest.mark.parametrize("kind", [0, 1])
def test_four_bit_floats_and_quantiles(kind: int) -> None:
    inputs = (_normal(3, 32), _bytes(6 * 16), np.abs(_normal(12)))
    beside_onnxruntime("MatMulBnb4", inputs, held=(1, 2), K=32, N=6, block_size=16, quant_type=kind)


def test_rows_of_a_table_of_few_bits() -> None:
    index = np.array([[1, -3], [5, 0]])
    given = {"held": (0, 2, 3), "block_size": 16, "gather_axis": 0, "quantize_axis": 1}
    inputs = (_bytes(10, 16), index, _normal(10, 2), _bytes(10, 1))
    beside_onnxruntime("GatherBlockQuantized", inputs, bits=4, **given)
    beside_onnxruntime("GatherBlockQuantized", (_bytes(10, 32), index, _normal(10, 2)), bits=8, **given)


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
def test_distances(metric: str) -> None:
    beside_onnxruntime("CDist", (_normal(4, 6), _normal(3, 6)), metric=metric)
    proto, given = contributed("CDist", (_normal(4, 6), _normal(3, 6)), metric="cosine")
    with pytest.raises(OnnxError, match="CDist: metric must be euclidean or sqeuclidean, got 'cosine'"):
        from_onnx(proto)(*given.values())


def test_inverses() -> None:
    beside_onnxruntime("Inverse", (_normal(2, 4, 4),))
