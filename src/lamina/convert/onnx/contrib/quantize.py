"""Operators on quantized tensors: integers x that represent (x - zero point) scale."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lamina import ops
from lamina.convert.onnx.contrib.attention import self_attended
from lamina.convert.onnx.contrib.conv import to_first, to_last
from lamina.convert.onnx.contrib.domain import contributes
from lamina.convert.onnx.contrib.norm import embed_layer_normalization
from lamina.convert.onnx.conv import qlinear_conv
from lamina.convert.onnx.matmul import integer_product, matmul_integer, real_product
from lamina.convert.onnx.node import OnnxNode
from lamina.convert.onnx.pool import average_pool
from lamina.convert.onnx.quantize import (
    centred,
    dequantize_linear,
    dynamic_quantize_linear,
    quantize_linear,
    rounded,
)
from lamina.convert.onnx.rnn import recurrent
from lamina.spec import float32, int32

contributes("QuantizeLinear", statistics=(1, 2))(quantize_linear)
contributes("DequantizeLinear", statistics=(1, 2))(dequantize_linear)
contributes("MatMulInteger16")(matmul_integer)


def real(x: Any, scale: Any, zero: Any) -> Any:
    """float32: the dequantized tensor; scale and zero point are numbers, or broadcast with x."""
    return ops.mul(ops.cast(centred(x, _number(zero), -1), float32), _number(scale))


def quantized(x: Any, scale: Any, zero: Any, like: Any) -> Any:
    """Real numbers quantized to the zero point's type (without one, the type of `like`)."""
    zero = _number(zero)
    return rounded(ops.div(x, _number(scale)), zero, (like if zero is None else zero).dtype)


def _number(x: Any) -> Any:
    """A vector of one element as a scalar, so that broadcasting adds no axes."""
    return x.reshape(()) if x is not None and x.shape == (1,) else x


#: Operators of one input.
UNARY: dict[str, Callable[[OnnxNode, Any], Any]] = {
    "QLinearSigmoid": lambda node, x: ops.sigmoid(x),
    "QLinearLeakyRelu": lambda node, x: ops.leaky_relu(x, node.get("alpha", 0.01)),
    "QLinearSoftmax": lambda node, x: _softmax(node, x),
    "QLinearReduceMean": lambda node, x: ops.mean(
        x, tuple(node.needed("axes")), bool(node.needed("keepdims"))
    ),
    "QLinearGlobalAveragePool": lambda node, x: _global_mean(node, x),
    "QLinearAveragePool": lambda node, x: _pooled(node, x),
}


@contributes(*UNARY, statistics=(1, 3))
def qlinear_unary(node: OnnxNode) -> Any:
    """f of the dequantized x, quantized again."""
    x, scale, zero, y_scale, y_zero = (
        node.input(0),
        node.input(1),
        node.optional(2),
        node.input(3),
        node.optional(4),
    )
    return quantized(UNARY[node.operator](node, real(x, scale, zero)), y_scale, y_zero, x)


def _softmax(node: OnnxNode, x: Any) -> Any:
    axis = node.get("axis", -1)
    if node.needed("opset") >= 13:
        return ops.softmax(x, axis)
    flat = x.reshape((*x.shape[: axis % x.ndim], -1))
    return ops.softmax(flat, -1).reshape(x.shape)


def _global_mean(node: OnnxNode, x: Any) -> Any:
    last = node.get("channels_last", 0)
    return ops.mean(x, tuple(range(1, x.ndim - 1) if last else range(2, x.ndim)), True)


def _pooled(node: OnnxNode, x: Any) -> Any:
    last = node.get("channels_last", 0)
    found = average_pool(replace(node, inputs=(to_first(x) if last else x,)))
    return to_last(found) if last else found


BINARY: dict[str, Callable[[Any, Any], Any]] = {"QLinearAdd": ops.add, "QLinearMul": ops.mul}


@contributes(*BINARY, statistics=(1, 4, 6))
def qlinear_binary(node: OnnxNode) -> Any:
    """The sum or the product of two dequantized tensors, quantized again."""
    a, b = (real(node.input(i), node.input(i + 1), node.optional(i + 2)) for i in (0, 3))
    return quantized(BINARY[node.operator](a, b), node.input(6), node.optional(7), node.input(0))


@contributes("QLinearWhere", statistics=(2, 5, 7))
def qlinear_where(node: OnnxNode) -> Any:
    """x where the condition holds, y elsewhere, quantized again."""
    x, y = (real(*(node.input(i + j) for j in range(3))) for i in (1, 4))
    return quantized(ops.where(node.input(0), x, y), node.input(7), node.input(8), node.input(1))


@contributes("QLinearConcat", statistics=(0, *range(3, 3000, 3)))
def qlinear_concat(node: OnnxNode) -> Any:
    """Quantized tensors concatenated along an axis, quantized again; each with its scale and zero point."""
    parts = [real(*node.inputs[i : i + 3]) for i in range(2, len(node.inputs), 3)]
    return quantized(ops.cat(parts, node.needed("axis")), node.input(0), node.input(1), node.input(2))


@contributes("QLinearConv", statistics=(1, 4, 6))
def qlinear_conv_of_layout(node: OnnxNode) -> Any:
    """The convolution of quantized tensors; with channels_last of channels-last images."""
    if not node.get("channels_last", 0):
        return qlinear_conv(node)
    return to_last(qlinear_conv(replace(node, inputs=(to_first(node.input(0)), *node.inputs[1:]))))


@contributes("DynamicQuantizeMatMul", statistics=(2,))
def dynamic_quantize_matmul(node: OnnxNode) -> Any:
    """x dynamically quantized to uint8, times a quantized matrix, as real numbers, plus a bias."""
    x, scale, zero = dynamic_quantize_linear(replace(node, inputs=(node.input(0),)))
    return _real_product(x, scale, zero, *(node.optional(i) for i in range(1, 5)))


@contributes("MatMulIntegerToFloat", statistics=(2, 3))
def matmul_integer_to_float(node: OnnxNode) -> Any:
    """The product of quantized matrices as real numbers, plus a bias."""
    a, b, a_scale, b_scale, a_zero, b_zero, bias = (node.optional(i) for i in range(7))
    return _real_product(a, a_scale, a_zero, b, b_scale, b_zero, bias)


def _real_product(a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any, bias: Any) -> Any:
    """The product of dequantized matrices; a's scales may be per row, b's per column."""
    found = real_product(a, a_scale, a_zero, b, b_scale, b_zero)
    if found is not None:
        return found if bias is None else ops.add(found, bias)
    total = integer_product(a, _number(a_zero), b, _number(b_zero))
    a_scale = _number(a_scale)
    scale = ops.mul(a_scale.unsqueeze(-1) if a_scale.ndim else a_scale, _number(b_scale))
    found = ops.mul(ops.cast(total, float32), scale)
    return found if bias is None else ops.add(found, bias)


@contributes("QGemm", statistics=(1, 4, 7))
def q_gemm(node: OnnxNode) -> Any:
    """alpha A B + C of quantized matrices, C int32 in units of the product; real if the result has no scale."""
    a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = (node.optional(i) for i in range(9))
    alpha, transposed = node.get("alpha", 1.0), bool(node.get("transB", 0))
    a = ops.transpose(a, 0, 1) if node.get("transA", 0) else a
    scale = ops.mul(ops.mul(_number(a_scale), _number(b_scale)), alpha)
    found = real_product(a, ops.mul(a_scale, alpha), a_zero, b, b_scale, b_zero, transposed=transposed)
    if found is None:
        b = ops.transpose(b, 0, 1) if transposed else b
        total = integer_product(a, _number(a_zero), b, _number(b_zero))
        found = ops.mul(ops.cast(total if c is None else ops.add(total, c), float32), scale)
    elif c is not None:
        found = ops.add(found, ops.mul(ops.cast(c, float32), scale))
    return found if y_scale is None else quantized(found, y_scale, y_zero, y_zero)


@contributes("QAttention", statistics=(3, 4))
def q_attention(node: OnnxNode) -> Any:
    """`Attention` whose projection is a product of quantized matrices."""
    x, w, bias, x_scale, w_scale, mask, x_zero, w_zero, past = (node.optional(i) for i in range(9))
    projected = _real_product(x, x_scale, x_zero, w, w_scale, w_zero, bias)
    return self_attended(node, projected, mask, past)


@contributes("QEmbedLayerNormalization", statistics=tuple(range(8, 13)))
def q_embed_layer_normalization(node: OnnxNode) -> Any:
    """`EmbedLayerNormalization` of quantized tables."""
    ids, segments, mask = node.input(0), node.optional(1), node.optional(7)
    words, places, kinds, scale, shift = (
        None if node.optional(2 + i) is None else real(*(node.optional(at + i) for at in (2, 8, 13)))
        for i in range(5)
    )
    inputs = (ids, segments, words, places, kinds, scale, shift, mask)
    y, words_of, _ = embed_layer_normalization(replace(node, inputs=inputs))
    return y, words_of


@contributes("DynamicQuantizeLSTM", statistics=(8, 10))
def dynamic_quantize_lstm(node: OnnxNode) -> Any:
    """An LSTM with quantized weights [D, inputs, 4 H]; inputs stay real (ONNX Runtime rounds them to 8 bits)."""
    w, r = (
        ops.transpose(real(node.input(i), _per_gate(node.input(s)), _per_gate(node.input(s + 1))), 1, 2)
        for i, s in ((1, 8), (2, 10))
    )
    return recurrent(replace(node, operator="LSTM", inputs=(node.input(0), w, r, *node.inputs[3:8])))


def _per_gate(v: Any) -> Any:
    """Numbers [D] or [D, 4 H], reshaped to broadcast with [D, inputs, 4 H]."""
    return v.reshape((v.shape[0], 1, -1))


@contributes("MulInteger")
def mul_integer(node: OnnxNode) -> Any:
    """(a - its zero point) (b - its zero point), int32."""
    return ops.mul(*(centred(node.input(i), _number(node.optional(i + 1)), -1) for i in (0, 2)))


@contributes("ReduceSumInteger")
def reduce_sum_integer(node: OnnxNode) -> Any:
    """The sum over axes, int32."""
    x = node.input(0)
    return ops.sum(ops.cast(x, int32), tuple(node.needed("axes")), bool(node.needed("keepdims")), dtype=int32)
