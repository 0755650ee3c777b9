"""Elementwise operators: arithmetic, comparisons, logic, activations and casts."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from lamina import ops
from lamina.convert.onnx.node import OnnxNode, OnnxTexts, as_tensor, converts
from lamina.convert.onnx.proto import dtype_of
from lamina.convert.onnx.text import equal, read, texts, written
from lamina.graph import Value
from lamina.spec import DType, bool_, float8_e4m3fn, float32, float64, int64, promote_types
from lamina.tensors import Tensor

UNARY: dict[str, Callable[[Any], Any]] = {
    "Abs": ops.abs, "Acos": ops.acos, "Acosh": ops.acosh, "Asin": ops.asin, "Asinh": ops.asinh, "Atan": ops.atan,
    "Atanh": ops.atanh, "BitwiseNot": ops.bitwise_not, "Ceil": ops.ceil, "Cos": ops.cos, "Cosh": ops.cosh,
    "Erf": ops.erf, "Exp": ops.exp, "Floor": ops.floor, "HardSwish": ops.hardswish,
    "IsNaN": ops.isnan, "Log": ops.log, "Mish": ops.mish, "Neg": ops.neg, "Not": ops.logical_not,
    "Reciprocal": ops.reciprocal, "Relu": ops.relu, "Round": ops.round, "Sigmoid": ops.sigmoid, "Sign": ops.sign,
    "Sin": ops.sin, "Sinh": ops.sinh, "Softplus": ops.softplus, "Softsign": ops.softsign, "Sqrt": ops.sqrt,
    "Tan": ops.tan, "Tanh": ops.tanh,
}  # fmt: skip

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": ops.add, "And": ops.logical_and, "BitwiseAnd": ops.bitwise_and, "BitwiseOr": ops.bitwise_or,
    "BitwiseXor": ops.bitwise_xor, "Equal": ops.eq, "Greater": ops.gt, "GreaterOrEqual": ops.ge, "Less": ops.lt,
    "LessOrEqual": ops.le, "Mul": ops.mul, "Or": ops.logical_or, "Sub": ops.sub, "Xor": ops.ne,
}  # fmt: skip

#: ONNX's code of the string type.
_STRING = 8
#: The largest number of float8_e4m3fn.
_LARGEST = 448.0

VARIADIC: dict[str, Callable[[Any, Any], Any]] = {
    "Max": ops.maximum, "Min": ops.minimum, "Sum": ops.add, "Mean": ops.add,
}  # fmt: skip


@converts(*UNARY)
def unary(node: OnnxNode) -> Any:
    """f(x)."""
    return UNARY[node.operator](node.input(0))


@converts("Identity")
def identity(node: OnnxNode) -> Any:
    """The input unchanged: a tensor, a sequence, an optional value."""
    x = node.input(0)
    return (ops.identity(x) if isinstance(x, (Tensor, Value)) else x,)


@converts(*BINARY)
def binary(node: OnnxNode) -> Any:
    """f(x, y) over broadcast shapes; of strings whether they are equal."""
    if node.operator == "Equal" and isinstance(node.input(0), OnnxTexts):
        return equal(texts(node, 0), texts(node, 1))
    return BINARY[node.operator](*aligned(node))


@converts(*VARIADIC)
def variadic(node: OnnxNode) -> Any:
    """The operator over any number of inputs."""
    found = reduce(VARIADIC[node.operator], [x for x in node.inputs if x is not None])
    return ops.div(found, len(node.inputs)) if node.operator == "Mean" else found


def aligned(node: OnnxNode) -> tuple[Any, Any]:
    """The two inputs; before opset 7 the second one's axes started at the attribute `axis` of the first."""
    x, y = node.input(0), node.input(1)
    axis = node.get("axis")
    if node.opset < 7 and node.get("broadcast") and axis is not None and y.ndim:
        y = y.reshape((*y.shape, *(1,) * (x.ndim - axis % x.ndim - y.ndim)))
    return x, y


def is_integer(dtype: DType) -> bool:
    """Whether it is an integer type."""
    return dtype.kind in "iu"


@converts("Div")
def div(node: OnnxNode) -> Any:
    """The quotient; of integers truncated towards zero."""
    x, y = aligned(node)
    return ops.div(x, y, rounding_mode="trunc" if is_integer(x.dtype) else None)


@converts("Mod")
def mod(node: OnnxNode) -> Any:
    """The remainder, with the divisor's sign; with fmod the dividend's."""
    return (ops.fmod if node.get("fmod", 0) else ops.remainder)(node.input(0), node.input(1))


@converts("Pow")
def power(node: OnnxNode) -> Any:
    """x ** y in x's dtype; of integers by float64, which is exact below 2^53."""
    x, y = aligned(node)
    if x.dtype == y.dtype and x.dtype.kind == "f":
        return ops.pow(x, y)
    wide = (
        float64
        if is_integer(x.dtype)
        else promote_types(x.dtype, y.dtype)
        if y.dtype.kind == "f"
        else x.dtype
    )
    return ops.cast(ops.pow(ops.cast(x, wide), ops.cast(y, wide)), x.dtype)


@converts("BitShift")
def bit_shift(node: OnnxNode) -> Any:
    """x << y, or x >> y."""
    shift = {"LEFT": ops.bitwise_left_shift, "RIGHT": ops.bitwise_right_shift}
    direction = node.needed("direction")
    if direction not in shift:
        raise node.error(f"direction must be one of {sorted(shift)}, got {direction!r}")
    return shift[direction](node.input(0), node.input(1))


@converts("PRelu")
def prelu(node: OnnxNode) -> Any:
    """x where x >= 0, slope x elsewhere; the slope is broadcast to x, before opset 7 it is per channel."""
    x, slope = node.input(0), node.input(1)
    if node.opset < 7 and slope.ndim == 1:
        slope = slope.reshape((-1,) + (1,) * (x.ndim - 2))
    return ops.where(ops.ge(x, 0), x, ops.mul(x, slope))


@converts("Clip")
def clip(node: OnnxNode) -> Any:
    """Clamped between two numbers, attributes before opset 11; with min > max everything is max."""
    x = node.input(0)
    low, high = (node.optional(i) if node.opset >= 11 else node.get(n) for i, n in ((1, "min"), (2, "max")))
    x = x if low is None else ops.maximum(x, _like(low, x.dtype))
    return ops.identity(x) if high is None else ops.minimum(x, _like(high, x.dtype))


def _like(bound: Any, dtype: DType) -> Any:
    """A number or a scalar operand as an operand."""
    return as_tensor(bound, dtype) if isinstance(bound, (int, float)) else bound


@converts("LeakyRelu")
def leaky_relu(node: OnnxNode) -> Any:
    """x where x >= 0, alpha x elsewhere."""
    return ops.leaky_relu(node.input(0), node.get("alpha", 0.01))


@converts("ThresholdedRelu")
def thresholded_relu(node: OnnxNode) -> Any:
    """x where x > alpha, 0 elsewhere."""
    return ops.threshold(node.input(0), node.get("alpha", 1.0), 0.0)


@converts("Elu")
def elu(node: OnnxNode) -> Any:
    """x where x >= 0, alpha (exp(x) - 1) elsewhere."""
    return ops.elu(node.input(0), node.get("alpha", 1.0))


@converts("Celu")
def celu(node: OnnxNode) -> Any:
    """max(x, 0) + min(0, alpha (exp(x / alpha) - 1))."""
    return ops.celu(node.input(0), node.get("alpha", 1.0))


@converts("Selu")
def selu(node: OnnxNode) -> Any:
    """gamma x where x > 0, gamma alpha (exp(x) - 1) elsewhere."""
    gamma = node.get("gamma", 1.05070102214813232421875)
    return ops.mul(ops.elu(node.input(0), node.get("alpha", 1.67326319217681884765625)), gamma)


@converts("HardSigmoid")
def hard_sigmoid(node: OnnxNode) -> Any:
    """alpha x + beta between 0 and 1."""
    return ops.clamp(ops.add(ops.mul(node.input(0), node.get("alpha", 0.2)), node.get("beta", 0.5)), 0.0, 1.0)


@converts("Shrink")
def shrink(node: OnnxNode) -> Any:
    """x shrunk towards zero by bias where |x| > lambd, 0 elsewhere."""
    x, bias, bound = node.input(0), node.get("bias", 0.0), node.get("lambd", 0.5)
    wide = x if x.dtype.kind == "f" else ops.cast(x, float32)
    above = ops.where(ops.gt(wide, bound), ops.sub(wide, bias), 0.0)
    return ops.cast(ops.where(ops.lt(wide, -bound), ops.add(wide, bias), above), x.dtype)


@converts("Gelu")
def gelu(node: OnnxNode) -> Any:
    """x Phi(x), or its approximation by tanh."""
    return ops.gelu(node.input(0), approximate=node.get("approximate", "none"))


@converts("Swish")
def swish(node: OnnxNode) -> Any:
    """x sigmoid(alpha x)."""
    return ops.swish(node.input(0), node.get("alpha", 1.0))


@converts("SwiGLU")
def swiglu(node: OnnxNode) -> Any:
    """swish(gate) value."""
    return ops.mul(ops.swish(node.input(0), node.get("alpha", 1.0)), node.input(1))


@converts("Where")
def where(node: OnnxNode) -> Any:
    """x where the condition holds, y elsewhere."""
    return ops.where(node.input(0), node.input(1), node.input(2))


@converts("IsInf")
def is_inf(node: OnnxNode) -> Any:
    """Which elements are infinite, with the requested signs."""
    x, infinite = node.input(0), ops.isinf(node.input(0))
    infinite = infinite if node.get("detect_negative", 1) else ops.logical_and(infinite, ops.gt(x, 0))
    return infinite if node.get("detect_positive", 1) else ops.logical_and(infinite, ops.lt(x, 0))


@converts("Cast")
def cast(node: OnnxNode) -> Any:
    """The same values in another dtype; floats are truncated towards zero in integers. Known ones may
    become strings."""
    if node.needed("to") == _STRING:
        return _as_texts(node)
    return _cast(node, dtype_of(node.needed("to")))


@converts("CastLike")
def cast_like(node: OnnxNode) -> Any:
    """The first input in the second one's dtype."""
    like = node.input(1)
    return _as_texts(node) if isinstance(like, OnnxTexts) else _cast(node, like.dtype)


def _as_texts(node: OnnxNode) -> Any:
    return node.input(0) if isinstance(node.input(0), OnnxTexts) else written(node.known(0))


def _cast(node: OnnxNode, dtype: DType) -> Any:
    x = node.input(0)
    if isinstance(x, OnnxTexts):
        return read(node, x, int64).cast(bool_) if dtype == bool_ else read(node, x, dtype)
    if x.dtype == float8_e4m3fn != dtype:
        x = ops.dequantize(x, 1.0)
    elif dtype == float8_e4m3fn != x.dtype and node.get("saturate", 1):
        x = ops.clamp(x, -_LARGEST, _LARGEST)
    elif x.dtype == dtype:
        return ops.identity(x)
    return ops.ne(x, 0) if dtype == bool_ and x.dtype != bool_ else ops.cast(x, dtype)


@converts("BitCast", known=(0,))
def bit_cast(node: OnnxNode) -> Any:
    """The same bits as another dtype of the same size; only for known values."""
    dtype = dtype_of(node.needed("to"))
    x = node.known(0)
    if x is None or x.dtype.itemsize != dtype.itemsize:
        raise node.error(f"input {node.input(0).spec} and {dtype} have elements of different sizes")
    return as_tensor(x.reshape(-1).view(dtype.numpy).reshape(x.shape))


@converts("Dropout", known=(1, 2))
def dropout(node: OnnxNode) -> Any:
    """Drops elements if the call's mode is training; else the input unchanged, and a mask of ones.

    A node that declares training itself is refused if no mode is given: its values are random.
    """
    x, ratio = node.input(0), float(node.number(1, node.get("ratio", 0.5)))
    if node.mode.training and node.mode.drop is not None and ratio:
        return node.mode.drop(x, ratio)
    if node.mode.training is None and node.opset >= 12 and node.number(2, False) and ratio:
        raise node.error("training_mode with a ratio draws random numbers; use nn.Dropout where you train")
    if not node.asks(1):
        return ops.identity(x)
    return ops.identity(x), as_tensor(np.ones(x.shape, bool)) if node.opset >= 10 else ops.add(
        ops.mul(x, 0), 1
    )


@converts("Binarizer", domain="ai.onnx.ml")
def binarizer(node: OnnxNode) -> Any:
    """1 where x > threshold, 0 elsewhere."""
    x = node.input(0)
    return ops.cast(ops.gt(x, node.get("threshold", 0.0)), x.dtype)
