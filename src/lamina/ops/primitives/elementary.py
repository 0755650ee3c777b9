"""Mathematical functions of one and two numbers: a table of formulas and derivatives, an op per number of arguments.

A function is a row of UNARY or BINARY; its GPU expression is in `backends/cuda/elementwise/elementary.py`.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np

from lamina.ops.arguments import Number, checked
from lamina.ops.core import (
    INTEGERS,
    NUMBERS,
    Arg,
    Array,
    Op,
    Sample,
    call,
    floating,
    is_number,
    made,
    operand,
    spec_of,
    together,
    together_floats,
)
from lamina.ops.primitives import special
from lamina.ops.primitives.cast import cast
from lamina.ops.primitives.full_like import full_like
from lamina.ops.primitives.pointwise import (
    Div,
    LogicalAnd,
    LogicalOr,
    Ne,
    Pow,
    Reciprocal,
    Rsqrt,
    Sqrt,
    abs,
    add,
    clamp,
    cos,
    eq,
    exp,
    floor,
    log,
    logical_not,
    mul,
    rsqrt,
    sign,
    sub,
    trunc,
    where,
)
from lamina.spec import (
    DTYPES,
    FLOATS,
    DType,
    DTypeError,
    Shape,
    ShapeError,
    Spec,
    bool_,
    broadcast_shapes,
    float32,
    float64,
    int32,
    int64,
)

_LN2, _LN10 = math.log(2), math.log(10)


@dataclass(frozen=True)
class UnaryFormula:
    """A function of one number: f in NumPy; f'(x) in ops from x and y = f(x), None where it is 0 everywhere.

    domain: where samples are drawn. whole: how integers are treated, "float" (float32) or "same".
    """

    apply: Callable[[Array], Any]
    derivative: Callable[[Any, Any], Any] | None
    domain: tuple[float, float] = (-3.0, 3.0)


UNARY: dict[str, UnaryFormula] = {
    "asin": UnaryFormula(np.arcsin, lambda x, y: rsqrt(1 - x * x), (-0.9, 0.9)),
    "acos": UnaryFormula(np.arccos, lambda x, y: -rsqrt(1 - x * x), (-0.9, 0.9)),
    "atan": UnaryFormula(np.arctan, lambda x, y: (x * x + 1).reciprocal()),
    "sinh": UnaryFormula(np.sinh, lambda x, y: cosh(x)),
    "cosh": UnaryFormula(np.cosh, lambda x, y: sinh(x)),
    "asinh": UnaryFormula(np.arcsinh, lambda x, y: rsqrt(x * x + 1)),
    "acosh": UnaryFormula(np.arccosh, lambda x, y: rsqrt(x * x - 1), (1.2, 4.0)),
    "atanh": UnaryFormula(np.arctanh, lambda x, y: (1 - x * x).reciprocal(), (-0.9, 0.9)),
    "exp2": UnaryFormula(np.exp2, lambda x, y: y * _LN2),
    "expm1": UnaryFormula(np.expm1, lambda x, y: y + 1),
    "log1p": UnaryFormula(np.log1p, lambda x, y: (x + 1).reciprocal(), (-0.7, 3.0)),
    "log2": UnaryFormula(np.log2, lambda x, y: (x * _LN2).reciprocal(), (0.5, 3.0)),
    "log10": UnaryFormula(np.log10, lambda x, y: (x * _LN10).reciprocal(), (0.5, 3.0)),
    "erfc": UnaryFormula(special.erfc, lambda x, y: -2 / math.sqrt(math.pi) * exp(-(x * x))),
    "erfinv": UnaryFormula(special.erfinv, lambda x, y: math.sqrt(math.pi) / 2 * exp(y * y), (-0.9, 0.9)),
    "lgamma": UnaryFormula(special.lgamma, lambda x, y: digamma(x), (0.4, 6.0)),
    "digamma": UnaryFormula(special.digamma, lambda x, y: polygamma(1, x), (0.4, 6.0)),
    "sinc": UnaryFormula(
        np.sinc, lambda x, y: where(x == 0, 0.0, (cos(x * math.pi) - y) / where(x == 0, 1.0, x))
    ),
    "round": UnaryFormula(np.rint, None),
}


@dataclass(frozen=True)
class UnaryFunction(Op):
    """y = f(x) for a function of UNARY, of floats."""

    function: str
    elementwise = True
    inplace = {0: 0}

    def infer(self, x: Spec) -> tuple[Spec]:
        self.check_float(x)
        return (x.open,)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        slope = UNARY[self.function].derivative
        return (None if slope is None else grads[0] * slope(inputs[0], outputs[0]),)

    def reference(self, x: Array) -> tuple[Array]:
        return (UNARY[self.function].apply(x),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        shapes: list[Shape] = [(3, 5), (17,), ()]
        for name, function in UNARY.items():
            for shape in shapes[: 3 if name == "asin" else 1]:
                low, high = function.domain
                yield Sample.of(cls(name), Arg(shape, low=low, high=high, differentiable=name != "round"))


@dataclass(frozen=True)
class Polygamma(Op):
    """The n-th derivative of digamma, n >= 1: (-1)^(n + 1) n! times the Hurwitz zeta function of n + 1 and x."""

    n: int
    elementwise = True
    inplace = {0: 0}

    def infer(self, x: Spec) -> tuple[Spec]:
        self.check_float(x)
        return (x.open,)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return (grads[0] * call(Polygamma(self.n + 1), inputs[0]),)

    def reference(self, x: Array) -> tuple[Array]:
        return (special.polygamma(self.n, x),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for n in (1, 2, 3):
            yield Sample.of(cls(n), Arg((3, 5), low=0.5, high=12.0))
            yield Sample.of(cls(n), Arg((7,), low=-0.8, high=-0.2))


Kind = Literal["float", "wide", "number", "whole", "bits"]
_KINDS: dict[Kind, tuple[DType, ...]] = {
    "float": FLOATS, "wide": (float64, float32), "number": NUMBERS, "whole": INTEGERS, "bits": (*INTEGERS, bool_),
}  # fmt: skip


@dataclass(frozen=True)
class BinaryFormula:
    """A function of two numbers: f in NumPy; the gradients (g, a, b, y) -> (of a, of b) in ops, None for 0.

    kind: the dtypes it supports. domain: where samples of b are drawn.
    """

    apply: Callable[[Array, Array], Any]
    partials: Callable[[Any, Any, Any, Any], tuple[Any, Any]] | None
    kind: Kind = "float"
    domain: tuple[float, float] = (0.5, 3.0)


def _circle(g: Any, a: Any, b: Any, y: Any) -> tuple[Any, Any]:
    square = a * a + b * b
    share = where(square == 0, 0.0, g / where(square == 0, 1.0, square))  # at the origin 0, as in torch
    return share * b, -(share * a)


def _root(g: Any, a: Any, b: Any, y: Any) -> tuple[Any, Any]:
    share = g / where(y == 0, 1.0, y)
    return share * a, share * b


def _to_one(g: Any, first: Any) -> tuple[Any, Any]:
    """g to the selected operand; to the first where they are equal, as in torch."""
    return where(first, g, 0.0), where(first, 0.0, g)


def _signed(a: Array, b: Array) -> Any:
    return np.copysign(a, b)


BINARY: dict[str, BinaryFormula] = {
    "atan2": BinaryFormula(np.arctan2, _circle),
    "hypot": BinaryFormula(np.hypot, _root),
    "fmod": BinaryFormula(np.fmod, lambda g, a, b, y: (g, -(g * trunc(a / b))), "number"),
    "remainder": BinaryFormula(np.remainder, lambda g, a, b, y: (g, -(g * floor_divide(a, b))), "number"),
    "floor_divide": BinaryFormula(np.floor_divide, None, "number"),
    "trunc_divide": BinaryFormula(special.trunc_divide, None, "number"),
    "logaddexp": BinaryFormula(
        np.logaddexp, lambda g, a, b, y: (g * exp(_apart(a, y)), g * exp(_apart(b, y)))
    ),
    "copysign": BinaryFormula(_signed, lambda g, a, b, y: (g * sign(a) * sign(y), None)),
    "nextafter": BinaryFormula(np.nextafter, lambda g, a, b, y: (g, None), "wide"),
    "fmin": BinaryFormula(np.fmin, lambda g, a, b, y: _to_one(g, (a <= b) | isnan(b)), "number"),
    "fmax": BinaryFormula(np.fmax, lambda g, a, b, y: _to_one(g, (a >= b) | isnan(b)), "number"),
    "bitwise_and": BinaryFormula(np.bitwise_and, None, "bits"),
    "bitwise_or": BinaryFormula(np.bitwise_or, None, "bits"),
    "bitwise_xor": BinaryFormula(np.bitwise_xor, None, "bits"),
    "bitwise_left_shift": BinaryFormula(special.left_shift, None, "whole"),
    "bitwise_right_shift": BinaryFormula(special.right_shift, None, "whole"),
    "gcd": BinaryFormula(np.gcd, None, "whole"),
    "whole_power": BinaryFormula(special.whole_power, None, "whole"),
}


def _apart(a: Any, y: Any) -> Any:
    """a - y, 0 where both are the same infinity."""
    return where(a == y, 0.0, a - y)


@dataclass(frozen=True)
class BinaryFunction(Op):
    """y = f(a, b) for a function of BINARY, after broadcasting. An integer divided by 0 is 0."""

    function: str
    arity = 2
    elementwise = True
    inplace = {0: 0}
    dtypes = DTYPES

    def infer(self, a: Spec, b: Spec) -> tuple[Spec]:
        self.check_float(a, b)
        known = _KINDS[BINARY[self.function].kind]
        if a.dtype not in known:
            raise DTypeError(
                f"{self.function}: takes {', '.join(map(str, known))}, got {a.dtype}; cast with ops.cast"
            )
        return (self.result(broadcast_shapes(a.shape, b.shape, self.function), a.dtype),)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        partials, (a, b) = BINARY[self.function].partials, inputs
        if partials is None:
            return None, None
        found = partials(grads[0], a, b, outputs[0])
        return tuple(None if d is None else d.sum_to(x.shape) for d, x in zip(found, inputs, strict=True))

    def reference(self, a: Array, b: Array) -> tuple[Array]:
        return (BINARY[self.function].apply(a, b),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        pairs: list[tuple[Shape, Shape]] = [((3, 5), (3, 5)), ((4, 1, 6), (5, 1)), ((7,), ())]
        for name, function in BINARY.items():
            known = _KINDS[function.kind]
            if known[0] in FLOATS:
                smooth = function.partials is not None
                for a, b in pairs[: 3 if name == "atan2" else 1]:
                    low, high = function.domain
                    first = Arg(a, low=-4.0, high=4.0, differentiable=smooth)
                    yield Sample.of(
                        cls(name), first, Arg(b, low=low, high=high, differentiable=smooth), dtypes=known
                    )
            whole = tuple(d for d in known if d not in FLOATS and d != bool_)
            if whole:
                numbers = [
                    Arg(s, low=low, high=7, integers=True) for s, low in ((pairs[0][0], 0), (pairs[0][1], 0))
                ]
                yield Sample.of(cls(name), *numbers, dtypes=whole)
                numbers[0] = Arg(pairs[0][0], low=-9, high=9, integers=True)
                yield Sample.of(cls(name), *numbers, dtypes=(int64, int32))


T = TypeVar("T")


class Frexp(NamedTuple, Generic[T]):
    """A number as a mantissa times a power of two."""

    mantissa: T
    exponent: T


# ---- functions of one number


def _unary(function: str, input: Any) -> Any:
    return call(made(UnaryFunction, function), floating(input, function))


def asin(input: Any) -> Any:
    """The angle whose sine is input."""
    return _unary("asin", input)


def acos(input: Any) -> Any:
    """The angle whose cosine is input."""
    return _unary("acos", input)


def atan(input: Any) -> Any:
    """The angle whose tangent is input."""
    return _unary("atan", input)


def sinh(input: Any) -> Any:
    """The hyperbolic sine."""
    return _unary("sinh", input)


def cosh(input: Any) -> Any:
    """The hyperbolic cosine."""
    return _unary("cosh", input)


def asinh(input: Any) -> Any:
    """The inverse of the hyperbolic sine."""
    return _unary("asinh", input)


def acosh(input: Any) -> Any:
    """The inverse of the hyperbolic cosine; NaN below 1."""
    return _unary("acosh", input)


def atanh(input: Any) -> Any:
    """The inverse of the hyperbolic tangent."""
    return _unary("atanh", input)


def exp2(input: Any) -> Any:
    """2 to the power of input."""
    return _unary("exp2", input)


def expm1(input: Any) -> Any:
    """e to the power of input, minus 1, accurate near 0."""
    return _unary("expm1", input)


def log1p(input: Any) -> Any:
    """The natural logarithm of 1 + input, accurate near 0."""
    return _unary("log1p", input)


def log2(input: Any) -> Any:
    """The logarithm to base 2."""
    return _unary("log2", input)


def log10(input: Any) -> Any:
    """The logarithm to base 10."""
    return _unary("log10", input)


def erfc(input: Any) -> Any:
    """1 - erf(input), accurate where it is small."""
    return _unary("erfc", input)


def erfinv(input: Any) -> Any:
    """The inverse of the error function; NaN outside -1 … 1."""
    return _unary("erfinv", input)


def lgamma(input: Any) -> Any:
    """The logarithm of the magnitude of the gamma function."""
    return _unary("lgamma", input)


def digamma(input: Any) -> Any:
    """The derivative of `lgamma`; -inf at 0, NaN at negative integers."""
    return _unary("digamma", input)


@checked
def polygamma(n: int, input: Any) -> Any:
    """The n-th derivative of `digamma`. Raises ValueError for n < 0."""
    if n < 0:
        raise ValueError(f"polygamma: n must be >= 0, got {n}")
    return digamma(input) if n == 0 else call(Polygamma(n), floating(input, "polygamma"))


@checked
def mvlgamma(input: Any, p: int) -> Any:
    """The logarithm of the multivariate gamma function of dimension p (Wikipedia; torch.mvlgamma)."""
    if p < 1:
        raise ValueError(f"mvlgamma: p must be >= 1, got {p}")
    x = floating(input, "mvlgamma")
    parts = lgamma(x.unsqueeze(-1) - np.arange(p).astype(x.dtype.compute.numpy).astype(x.dtype.numpy) / 2)
    return parts.sum(-1) + p * (p - 1) / 4 * math.log(math.pi)


def sinc(input: Any) -> Any:
    """sin(pi * x) / (pi * x); 1 at 0."""
    return _unary("sinc", input)


@checked
def round(input: Any, *, decimals: int = 0) -> Any:
    """The nearest integer, ties to even; with decimals the nearest multiple of 10 ** -decimals.

    Integers are unchanged.
    """
    x = operand(input, "round")
    if not x.dtype.is_float:
        return x
    if decimals == 0:
        return call(UnaryFunction("round"), x)
    factor = 10.0 ** builtins.abs(decimals)
    if decimals > 0:
        return call(UnaryFunction("round"), x * factor) / factor
    return call(UnaryFunction("round"), x / factor) * factor


def frac(input: Any) -> Any:
    """The fractional part, with input's sign."""
    x = operand(input, "frac")
    return x - trunc(x)


def positive(input: Any) -> Any:
    """input itself. Raises DTypeError for booleans."""
    x = operand(input, "positive")
    if x.dtype == bool_:
        raise DTypeError("positive: takes numbers, got bool; cast with ops.cast")
    return x


def sgn(input: Any) -> Any:
    """`sign`."""
    return sign(input)


def deg2rad(input: Any) -> Any:
    """Degrees to radians."""
    return floating(input, "deg2rad") * (math.pi / 180)


def rad2deg(input: Any) -> Any:
    """Radians to degrees."""
    return floating(input, "rad2deg") * (180 / math.pi)


def angle(input: Any) -> Any:
    """pi for negative numbers, 0 for others, NaN for NaN."""
    x = floating(input, "angle")
    return where(isnan(x), x, where(x < 0, math.pi, 0.0).cast(x.dtype))


@checked
def logit(input: Any, eps: float | None = None) -> Any:
    """log(x / (1 - x)); eps: x is clamped to eps … 1 - eps. NaN outside 0 … 1, as is the gradient."""
    x = floating(input, "logit")
    if eps is not None:
        x = clamp(x, eps, 1 - eps)
    found = log(x) - log1p(-x)  # log(x / (1 - x)) would have a NaN gradient at 0 and 1 instead of infinity
    if eps is not None:
        return found
    return found + x * cast(where((x >= 0) & (x <= 1), 0.0, np.nan), x.dtype)


# ---- classification


def isnan(input: Any) -> Any:
    """Whether an element is NaN."""
    x = operand(input, "isnan")
    return x != x


def isinf(input: Any) -> Any:
    """Whether an element is an infinity."""
    x = operand(input, "isinf")
    return abs(x) == math.inf if x.dtype.is_float else full_like(x, False, dtype=bool_)


def isposinf(input: Any) -> Any:
    """Whether an element is positive infinity."""
    x = operand(input, "isposinf")
    return x == math.inf if x.dtype.is_float else full_like(x, False, dtype=bool_)


def isneginf(input: Any) -> Any:
    """Whether an element is negative infinity."""
    x = operand(input, "isneginf")
    return x == -math.inf if x.dtype.is_float else full_like(x, False, dtype=bool_)


def isfinite(input: Any) -> Any:
    """Whether an element is neither NaN nor an infinity."""
    x = operand(input, "isfinite")
    return abs(x) < math.inf if x.dtype.is_float else full_like(x, True, dtype=bool_)


def isreal(input: Any) -> Any:
    """True: there are no complex dtypes."""
    return full_like(input, True, dtype=bool_)


def signbit(input: Any) -> Any:
    """Whether the sign bit is set, including that of -0.0."""
    x = operand(input, "signbit")
    if not x.dtype.is_float:
        return x < 0 if x.dtype != bool_ else full_like(x, False)
    return call(BinaryFunction("copysign"), full_like(x, 1.0), x) < 0


@checked
def nan_to_num(
    input: Any, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Any:
    """input with NaN replaced (by 0), and infinities (by the dtype's largest and smallest number), or as given."""
    x = operand(input, "nan_to_num")
    if not x.dtype.is_float:
        return x
    most = special.largest(x.dtype)
    x = where(x == math.inf, most if posinf is None else posinf, x)
    x = where(x == -math.inf, -most if neginf is None else neginf, x)
    return where(isnan(x), 0.0 if nan is None else nan, x)


# ---- functions of two numbers


def _binary(function: str, input: Any, other: Any) -> Any:
    a, b = together(function, input, other)
    return call(BinaryFunction(function), a, b)


def _binary_float(function: str, input: Any, other: Any) -> Any:
    """On floats: integers become float32."""
    a, b = together_floats(function, input, other)
    return call(BinaryFunction(function), a, b)


@checked
def div(input: Any, other: Any, *, rounding_mode: Literal["trunc", "floor"] | None = None) -> Any:
    """input / other, as floats: integers become float32.

    rounding_mode: "trunc" drops the fraction of the quotient, "floor" rounds it down; integers then stay integers,
    with 0 for a division by 0, and there is no gradient.
    """
    if rounding_mode is not None:
        return _binary("floor_divide" if rounding_mode == "floor" else "trunc_divide", input, other)
    a, b = together_floats("div", input, other)
    return call(made(Div), a, b)


def _wide(x: Any) -> Any:
    """x in float32 if it is of integers; numbers from `together` stay arrays."""
    if isinstance(x, np.ndarray):
        return x.astype(np.float32) if x.dtype.kind in "iub" else x
    return floating(x, "div")


@checked
def pow(input: Any, exponent: Any) -> Any:
    """input to the power of exponent; NaN for a negative float and a non-integer exponent.

    Integers to the power of integers stay integers; a negative exponent gives 0 (1 for 1, 1 or -1 for -1). Raises
    ValueError for a negative Python int.
    """
    if is_number(exponent) and not is_number(input):
        return _power_of(operand(input, "pow"), exponent)
    a, b = together("pow", input, exponent)
    if spec_of(a).dtype.kind in "iu":
        return call(BinaryFunction("whole_power"), a, b)
    return call(made(Pow), _wide(a), _wide(b))


def _power_of(x: Any, exponent: Any) -> Any:
    """A tensor to the power of a number."""
    number = exponent.item() if isinstance(exponent, np.generic) else exponent
    if not x.dtype.is_float and isinstance(number, int):
        if number < 0:
            raise ValueError(f"pow: integers to the power of {number} are not whole; cast with ops.cast")
        return _whole_power(_in_kind_of(x, number), number)
    x = floating(x, "pow")
    if number in _POWERS:
        return _POWERS[number](x)
    return call(made(Pow), *together("pow", x, exponent))


def _in_kind_of(x: Any, number: int) -> Any:
    """x, but booleans with an int, which has a higher kind, as int64."""
    return cast(x, int64) if x.dtype == bool_ and not isinstance(number, bool) else x


def _whole_power(x: Any, exponent: int) -> Any:
    """By repeated squaring, from the highest bit of the exponent on."""
    if exponent == 0:
        return add(mul(x, 0), 1)
    found = x.clone() if exponent == 1 else x
    for bit in bin(exponent)[3:]:
        found = mul(found, found)
        found = mul(found, x) if bit == "1" else found
    return found


_POWERS: dict[float, Any] = {
    1: lambda a: a.clone(),
    2: lambda a: a * a,
    0.5: lambda a: call(made(Sqrt), a),
    -0.5: lambda a: call(made(Rsqrt), a),
    -1: lambda a: call(made(Reciprocal), a),
}


def atan2(input: Any, other: Any) -> Any:
    """The angle of the point (other, input) to the first axis, in -pi … pi."""
    return _binary_float("atan2", input, other)


def hypot(input: Any, other: Any) -> Any:
    """sqrt(input^2 + other^2) without overflow."""
    return _binary_float("hypot", input, other)


def fmod(input: Any, other: Any) -> Any:
    """The remainder of division rounded towards zero, with input's sign; 0 for integers divided by 0."""
    return _binary("fmod", input, other)


def remainder(input: Any, other: Any) -> Any:
    """The remainder of division rounded down, with other's sign; 0 for integers divided by 0."""
    return _binary("remainder", input, other)


def floor_divide(input: Any, other: Any) -> Any:
    """input / other rounded down; 0 for integers divided by 0. No gradient."""
    return _binary("floor_divide", input, other)


def logaddexp(input: Any, other: Any) -> Any:
    """log(exp(input) + exp(other)) without overflow."""
    return _binary_float("logaddexp", input, other)


def logaddexp2(input: Any, other: Any) -> Any:
    """log2(2^input + 2^other) without overflow."""
    a, b = together_floats("logaddexp2", input, other)
    return _binary_float("logaddexp", operand(a) * _LN2, operand(b) * _LN2) * (1 / _LN2)


@checked
def nextafter(input: Any, other: Any) -> Any:
    """The next float after input towards other; float32 and float64. Its derivative is 1, as in torch."""
    return _binary_float("nextafter", input, other)


@checked
def frexp(input: Any) -> Frexp[Any]:
    """(mantissa, exponent) with input = mantissa * 2^exponent and 0.5 <= |mantissa| < 1; exponent int32.

    0, infinities and NaN are their own mantissa, with exponent 0.
    """
    x = floating(input, "frexp")
    wide = x.cast(float32) if x.dtype.itemsize < 4 else x
    regular = (wide != 0) & (abs(wide) < math.inf)
    size = where(regular, abs(wide), 1.0)
    # Subnormal numbers are scaled up first.
    up = 2.0 ** (30 if wide.dtype == float32 else 60)
    small = size < (1e-30 if wide.dtype == float32 else 1e-290)
    size = where(small, size * up, size)
    power = floor(log2(size)) + 1.0
    half = floor(power * 0.5)
    mantissa = size * exp2(-half) * exp2(half - power)
    for wrong, factor in ((mantissa >= 1.0, 0.5), (mantissa < 0.5, 2.0)):
        mantissa = where(wrong, mantissa * factor, mantissa)
        power = where(wrong, power - (1.0 if factor > 1 else -1.0), power)
    power = where(small, power - math.log2(up), power)
    found = where(regular, mantissa * where(wide < 0, -1.0, 1.0), wide)
    return Frexp(found.cast(x.dtype), where(regular, power, 0.0).cast(int32))


@checked
def copysign(input: Any, other: Any) -> Any:
    """|input| with other's sign, that of -0.0 included."""
    return _binary_float("copysign", input, other)


def fmin(input: Any, other: Any) -> Any:
    """The smaller of input and other; if one of them is NaN, the other."""
    return _binary("fmin", input, other)


def fmax(input: Any, other: Any) -> Any:
    """The larger of input and other; if one of them is NaN, the other."""
    return _binary("fmax", input, other)


def _bits(function: str, truth: Op, input: Any, other: Any) -> Any:
    """For integers, or for booleans by the op given for them."""
    a, b = together(function, input, other)
    return call(truth if spec_of(a).dtype == bool_ else BinaryFunction(function), a, b)


def bitwise_and(input: Any, other: Any) -> Any:
    """Bitwise and of integers (or booleans)."""
    return _bits("bitwise_and", LogicalAnd(), input, other)


def bitwise_or(input: Any, other: Any) -> Any:
    """Bitwise or of integers (or booleans)."""
    return _bits("bitwise_or", LogicalOr(), input, other)


def bitwise_xor(input: Any, other: Any) -> Any:
    """Bitwise exclusive or of integers (or booleans)."""
    return _bits("bitwise_xor", Ne(), input, other)


def bitwise_not(input: Any) -> Any:
    """Bitwise complement of an integer; not, for booleans."""
    x = operand(input, "bitwise_not")
    if x.dtype == bool_:
        return logical_not(x)
    return _binary("bitwise_xor", x, 255 if x.dtype.kind == "u" else -1)


def bitwise_left_shift(input: Any, other: Any) -> Any:
    """An integer's bits shifted left by other; 0 once all are gone."""
    return _binary("bitwise_left_shift", input, other)


def bitwise_right_shift(input: Any, other: Any) -> Any:
    """An integer's bits shifted right by other, with its sign."""
    return _binary("bitwise_right_shift", input, other)


def gcd(input: Any, other: Any) -> Any:
    """The greatest common divisor of two integers."""
    return _binary("gcd", input, other)


def lcm(input: Any, other: Any) -> Any:
    """The least common multiple of two integers; 0 where one is 0."""
    a, b = together("lcm", input, other)
    divisor = call(BinaryFunction("gcd"), a, b)
    return abs(call(BinaryFunction("floor_divide"), a, where(divisor == 0, 1, divisor)) * b)


def logical_xor(input: Any, other: Any) -> Any:
    """Whether exactly one of input and other is true."""
    a, b = operand(input, "logical_xor"), operand(other, "logical_xor", "other")
    return (a != 0) != (b != 0)


def xlogy(input: Any, other: Any) -> Any:
    """input * log(other); 0 where input is 0 and other is not NaN."""
    a, b = together_floats("xlogy", input, other)
    a, b = operand(a), operand(b)
    nothing = (a == 0) & ((b <= 0) | (b == np.inf))  # elsewhere 0 * log(b), whose gradient is log(b)
    return where(nothing, 0.0, a * log(where(nothing, 1.0, b)))


def heaviside(input: Any, values: Any) -> Any:
    """0 below 0, 1 above it, `values` at 0; 0 for NaN, as torch.heaviside."""
    a, b = together("heaviside", input, values)
    a, b = operand(a), operand(b)
    return where(a == 0, b, (a > 0).cast(a.dtype))


def ldexp(input: Any, other: Any) -> Any:
    """input * 2^other."""
    a, b = together_floats("ldexp", input, other)
    return mul(a, exp2(b))


def float_power(input: Any, exponent: Any) -> Any:
    """input to the power of exponent in float64."""
    a = cast(operand(input, "float_power"), float64)
    b = exponent if is_number(exponent) else cast(operand(exponent, "float_power", "exponent"), float64)
    return a**b


def true_divide(input: Any, other: Any) -> Any:
    """`div` without rounding."""
    return div(input, other)


@checked
def rsub(input: Any, other: Any, *, alpha: Number = 1) -> Any:
    """other - alpha * input."""
    return sub(other, input, alpha=alpha)


# ---- functions of three numbers


def lerp(input: Any, end: Any, weight: Any) -> Any:
    """input + weight * (end - input), exact at both ends."""
    a, b = operand(input, "lerp"), operand(end, "lerp", "end")
    if is_number(weight):
        return a + weight * (b - a) if builtins.abs(weight) < 0.5 else b - (b - a) * (1 - weight)
    w = operand(weight, "lerp", "weight")
    return where(abs(w) < 0.5, a + w * (b - a), b - (b - a) * (1 - w))


@checked
def addcmul(input: Any, tensor1: Any, tensor2: Any, *, value: Number = 1) -> Any:
    """input + value * tensor1 * tensor2."""
    product = mul(tensor1, tensor2)
    return add(input, product if value == 1 else product * value)


@checked
def addcdiv(input: Any, tensor1: Any, tensor2: Any, *, value: Number = 1) -> Any:
    """input + value * tensor1 / tensor2. Raises DTypeError for two integers."""
    ratio = div(tensor1, tensor2)
    return add(input, ratio if value == 1 else ratio * value)


def clamp_min(input: Any, min: Any) -> Any:
    """input, clamped from below at min."""
    return clamp(input, min=min)


def clamp_max(input: Any, max: Any) -> Any:
    """input, clamped from above at max."""
    return clamp(input, max=max)


@checked
def isclose(input: Any, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Any:
    """Whether |input - other| <= atol + rtol * |other|; equal infinities are close."""
    a, b = operand(input, "isclose"), operand(other, "isclose", "other")
    if a.dtype != b.dtype:
        raise DTypeError(f"isclose: input is {a.spec} and other {b.spec}; cast one with ops.cast")
    close = eq(a, b)
    if equal_nan and a.dtype.is_float:
        close = close | (isnan(a) & isnan(b))
    if rtol or atol:
        wide = [x if x.dtype.is_float else cast(x, float64) for x in (a, b)]
        apart = abs(wide[0] - wide[1])
        close = close | (isfinite(apart) & (apart <= abs(wide[1]) * rtol + atol))
    return close


@checked
def allclose(
    input: Any, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> bool:
    """Whether all elements are close (`isclose`), as Python's bool. torch.allclose."""
    return bool((~isclose(input, other, rtol, atol, equal_nan)).sum() == 0)


@checked
def equal(input: Any, other: Any) -> bool:
    """Whether shapes and all elements are equal, as Python's bool; `eq` compares elementwise. torch.equal."""
    a, b = operand(input, "equal"), operand(other, "equal", "other")
    return a.shape == b.shape and bool((~eq(a, b)).sum() == 0)


@checked
def clone(input: Any) -> Any:
    """A copy of the values; gradients pass through. torch.clone."""
    return operand(input, "clone").clone()


@checked
def numel(input: Any) -> int:
    """The number of elements. torch.numel."""
    count: int = operand(input, "numel").spec.numel
    return count


def is_nonzero(input: Any) -> bool:
    """Whether a tensor's single element is nonzero. torch.is_nonzero. Raises ShapeError for other sizes."""
    x = operand(input, "is_nonzero")
    if x.spec.numel != 1:
        raise ShapeError(f"is_nonzero: needs one element, got {x.spec}; ops.any(x) asks for any of them")
    return bool(x)


def is_floating_point(input: Any) -> bool:
    """Whether the elements are floating point numbers. torch.is_floating_point."""
    found: bool = operand(input, "is_floating_point").dtype.is_float
    return found
