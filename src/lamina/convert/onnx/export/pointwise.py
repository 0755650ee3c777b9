"""Elementwise ops: one operator if ONNX has it, else a formula."""

from __future__ import annotations

from collections.abc import Callable
from math import log as ln
from math import pi
from typing import Any

from lamina import ops
from lamina.convert.onnx.export.writer import OpExport, Written, exports, refuses
from lamina.ops.primitives import activation, elementary
from lamina.ops.primitives import pointwise as p
from lamina.ops.primitives.cast import Cast
from lamina.ops.primitives.check_index import CheckIndex
from lamina.ops.primitives.full_like import FullLike
from lamina.ops.primitives.shape import After
from lamina.spec import bool_, int64

#: Ops that are one operator on the same operands, without attributes.
SAME = {
    p.Abs: "Abs", p.Add: "Add", p.Ceil: "Ceil", p.Cos: "Cos", p.Div: "Div", p.Eq: "Equal", p.Erf: "Erf", p.Exp: "Exp",
    p.Floor: "Floor", p.Ge: "GreaterOrEqual", p.Gt: "Greater", p.Identity: "Identity", p.Le: "LessOrEqual",
    p.Log: "Log", p.LogicalAnd: "And", p.LogicalNot: "Not", p.LogicalOr: "Or", p.Lt: "Less", p.Maximum: "Max",
    p.Minimum: "Min", p.Mul: "Mul", p.Pow: "Pow", p.Reciprocal: "Reciprocal", p.Relu: "Relu",
    p.Sigmoid: "Sigmoid", p.Sign: "Sign", p.Sin: "Sin", p.Softplus: "Softplus", p.Sqrt: "Sqrt", p.Sub: "Sub",
    p.Tan: "Tan", p.Tanh: "Tanh", p.Where: "Where",
}  # fmt: skip
#: Unary functions that are operators.
UNARY = {
    "asin": "Asin", "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "asinh": "Asinh",
    "acosh": "Acosh", "atanh": "Atanh", "round": "Round",
}  # fmt: skip
#: Binary functions that are operators, on numbers and on booleans.
BITS = {
    "bitwise_and": ("BitwiseAnd", "And"), "bitwise_or": ("BitwiseOr", "Or"), "bitwise_xor": ("BitwiseXor", "Xor"),
}  # fmt: skip
_LACKING = "ONNX has no operator for it, and no formula of a few operators gives it"


@exports(*SAME)
def same(step: OpExport) -> Written:
    """The operator on the same operands."""
    return step.add(SAME[type(step.op)], *step.inputs)


@exports(After, CheckIndex)
def passed_on(step: OpExport) -> Written:
    """The first operand unchanged."""
    step.sized = True
    return step.inputs[0]


@exports(p.Ne)
def not_equal(step: OpExport) -> Written:
    """Not (a == b)."""
    return step.add("Not", step.add("Equal", *step.inputs))


@exports(p.Neg)
def negative(step: OpExport) -> Written:
    """Neg; of unsigned numbers 0 - x."""
    if step.dtype.kind == "u":
        return step.add("Sub", step.constant(0), *step.inputs)
    return step.add("Neg", *step.inputs)


@exports(p.Rsqrt)
def rsqrt(step: OpExport) -> Written:
    """1 / sqrt(x)."""
    return step.add("Reciprocal", step.add("Sqrt", *step.inputs))


@exports(p.ClippedRelu)
def clipped_relu(step: OpExport) -> Written:
    """x between 0 and hi."""
    return step.add("Clip", *step.inputs, step.constant(0.0), step.constant(step.op.hi))


@exports(p.Elu)
def elu(step: OpExport) -> Written:
    """Elu with its alpha."""
    return step.add("Elu", *step.inputs, alpha=step.op.alpha)


@exports(p.LeakyRelu)
def leaky_relu(step: OpExport) -> Written:
    """LeakyRelu with its slope."""
    return step.add("LeakyRelu", *step.inputs, alpha=step.op.slope)


@exports(p.Silu)
def silu(step: OpExport) -> Written:
    """x * sigmoid(x)."""
    return step.add("Mul", step.inputs[0], step.add("Sigmoid", *step.inputs))


@exports(p.HardSwish)
def hard_swish(step: OpExport) -> Written:
    """HardSwish."""
    return step.add("HardSwish", *step.inputs)


@exports(p.Gelu, p.GeluTanh)
def gelu(step: OpExport) -> Written:
    """Gelu since opset 20, before that its formula."""
    smooth = isinstance(step.op, p.GeluTanh)
    if step.opset >= 20:
        return step.add("Gelu", *step.inputs, approximate="tanh" if smooth else "none")
    (x,) = step.inputs
    if smooth:
        cube = step.add("Mul", step.add("Mul", x, x), step.add("Mul", x, step.constant(0.044715)))
        inner = step.add("Mul", step.add("Add", x, cube), step.constant((2 / pi) ** 0.5))
        share = step.add("Tanh", inner)
    else:
        share = step.add("Erf", step.add("Mul", x, step.constant(0.5**0.5)))
    return step.add("Mul", step.add("Mul", x, step.constant(0.5)), step.add("Add", share, step.constant(1.0)))


@exports(activation.Mish)
def mish(step: OpExport) -> Written:
    """Mish since opset 18, before that x * tanh(softplus(x))."""
    if step.opset >= 18:
        return step.add("Mish", *step.inputs)
    return step.add("Mul", step.inputs[0], step.add("Tanh", step.add("Softplus", *step.inputs)))


@exports(Cast)
def cast(step: OpExport) -> Written:
    """Cast; nonzero numbers become True."""
    return step.cast(step.inputs[0], step.op.dtype)


@exports(FullLike)
def full_like(step: OpExport) -> Written:
    """The number, expanded to the operand's shape."""
    number = step.constant(step.op.value)
    if not step.specs[0].ndim:
        return step.add("Identity", number)
    if step.varies(lambda n: n.inputs[0].shape):
        return step.add("Expand", number, step.add("Shape", *step.inputs))
    return step.add("Expand", number, step.ints(*step.specs[0].shape))


# ---- unary and binary functions


@exports(elementary.UnaryFunction)
def unary(step: OpExport) -> Written:
    """The operator, else the formula."""
    name = step.op.function
    if name in UNARY:
        return step.add(UNARY[name], *step.inputs)
    if name not in _FORMULAS:
        raise step.error(_LACKING)
    return step.composed(lambda op, x: _FORMULAS[op.function](x))


def _expm1(x: Any) -> Any:
    """Accurate near 0: 2 t / (1 - t) with t = tanh(x / 2); elsewhere exp(x) - 1."""
    t = ops.tanh(ops.clamp(x, -1.0, 1.0) * 0.5)
    return ops.where(ops.abs(x) < 1.0, 2.0 * t / (1.0 - t), ops.exp(x) - 1.0)


def _log1p(x: Any) -> Any:
    """Accurate near 0: 2 atanh(x / (x + 2))."""
    near = ops.clamp(x, -0.5, 1.0)
    return ops.where(ops.abs(x) < 0.5, 2.0 * ops.atanh(near / (near + 2.0)), ops.log(1.0 + x))


def _sinc(x: Any) -> Any:
    away = ops.where(x == 0, 1.0, x) * pi
    return ops.where(x == 0, 1.0, ops.sin(away) / away)


_FORMULAS: dict[str, Callable[[Any], Any]] = {
    "exp2": lambda x: ops.exp(x * ln(2)),
    "expm1": _expm1,
    "log1p": _log1p,
    "log2": lambda x: ops.log(x) * (1 / ln(2)),
    "log10": lambda x: ops.log(x) * (1 / ln(10)),
    "erfc": lambda x: 1.0 - ops.erf(x),
    "sinc": _sinc,
}

refuses({elementary.Polygamma: _LACKING})


@exports(elementary.BinaryFunction)
def binary(step: OpExport) -> Written:
    """The operator, else the formula."""
    name = step.op.function
    if name in BITS:
        return _bits(step, *BITS[name])
    if name == "fmod" and step.dtype.is_float:
        return step.add("Mod", *step.inputs, fmod=1)
    if name == "whole_power":
        return _power(step, step.cast(step.inputs[0], int64), step.inputs[1])
    if name == "bitwise_left_shift":
        return step.add("Mul", step.inputs[0], _power(step, step.constant(2, int64), step.inputs[1]))
    if name in ("trunc_divide", "floor_divide", "remainder", "fmod", "bitwise_right_shift"):
        return _divided(step, name)
    if name not in _OF_TWO:
        raise step.error(_LACKING)
    return step.composed(lambda op, a, b: _OF_TWO[op.function](a, b))


def _bits(step: OpExport, of_numbers: str, of_bools: str) -> str:
    if step.dtype == bool_:
        return step.add(of_bools, *step.inputs)
    if step.opset < 18:
        raise step.error(f"{of_numbers} came with opset 18; write the model with opset=18 or later")
    return step.add(of_numbers, *step.inputs)


def _power(step: OpExport, base: str, exponent: str) -> str:
    """A power of an int64, in the operands' type: ONNX has none for narrower integers."""
    return step.cast(step.add("Pow", base, exponent), step.dtype)


def _divided(step: OpExport, name: str) -> str:
    """Quotients and remainders; a quotient of integers by 0 is 0, which ONNX leaves undefined."""
    if step.dtype.is_float:
        a, b = step.inputs
        whole = step.add("Floor", step.add("Div", a, b))
        if name == "floor_divide":
            return whole
        if name == "remainder":
            return step.add("Sub", a, step.add("Mul", whole, b))
        quotient = step.add("Div", a, b)
        return step.add("Mul", step.add("Sign", quotient), step.add("Floor", step.add("Abs", quotient)))
    a, b = step.inputs
    if name == "bitwise_right_shift":
        b = _power(step, step.constant(2, int64), b)
    zero, one = step.constant(0), step.constant(1)
    nothing = step.add("Equal", b, zero)
    safe = step.add("Where", nothing, one, b)
    if name in ("remainder", "fmod"):
        return step.add("Where", nothing, zero, step.add("Mod", a, safe, fmod=int(name == "fmod")))
    quotient = step.add("Div", a, safe)
    if name != "trunc_divide":  # minus one if the remainder is not 0 and has the other sign
        rest = step.add("Sub", a, step.add("Mul", quotient, safe))
        apart = step.add("Less", step.add("Mul", step.add("Sign", rest), step.add("Sign", safe)), zero)
        quotient = step.add("Where", apart, step.add("Sub", quotient, one), quotient)
    return step.add("Where", nothing, zero, quotient)


def _atan2(a: Any, b: Any) -> Any:
    """The angle of (b, a): atan of the smaller over the larger, rotated by octants."""
    steep = ops.abs(a) > ops.abs(b)
    top, bottom = ops.where(steep, b, a), ops.where(steep, a, b)
    angle = ops.atan(ops.where(bottom == 0, 0.0, top / ops.where(bottom == 0, 1.0, bottom)))
    side = ops.where(a < 0, -1.0, ops.ones_like(a))
    flat = ops.where(b < 0, angle + side * pi, angle)
    return ops.where(steep, side * (pi / 2) - angle, flat)


def _hypot(a: Any, b: Any) -> Any:
    """The larger times sqrt(1 + ratio²), without overflow."""
    a, b = ops.abs(a), ops.abs(b)
    large, small = ops.maximum(a, b), ops.minimum(a, b)
    ratio = small / ops.where(large == 0, 1.0, large)
    return large * ops.sqrt(ratio * ratio + 1.0)


def _logaddexp(a: Any, b: Any) -> Any:
    """max + log(1 + exp(-distance)); the distance is 0 where both are the same infinity."""
    away = ops.where(a == b, 0.0, -ops.abs(a - b))
    return ops.maximum(a, b) + _log1p(ops.exp(away))


_OF_TWO: dict[str, Callable[[Any, Any], Any]] = {
    "atan2": _atan2,
    "hypot": _hypot,
    "logaddexp": _logaddexp,
    "copysign": lambda a, b: ops.abs(a) * ops.where(b < 0, -1.0, ops.ones_like(b)),
    "fmin": lambda a, b: ops.where(a != a, b, ops.where(b != b, a, ops.minimum(a, b))),
    "fmax": lambda a, b: ops.where(a != a, b, ops.where(b != b, a, ops.maximum(a, b))),
}
