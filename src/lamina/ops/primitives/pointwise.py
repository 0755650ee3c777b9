"""Elementwise arithmetic, comparisons and activations, with NumPy broadcasting.

All operands of an op class have the same dtype; the functions promote as torch does. Half types are computed in
float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from lamina.ops.arguments import Number, checked, within
from lamina.ops.core import (
    INTEGERS,
    NUMBERS,
    Arg,
    Array,
    Op,
    Operand,
    Sample,
    call,
    floating,
    is_number,
    listing,
    made,
    operand,
    together,
)
from lamina.ops.in_place import with_inplace
from lamina.spec import DTYPES, DTypeError, Shape, ShapeError, Spec, bool_, broadcast_shapes, float32, int64

_SHAPES: tuple[Shape, ...] = ((3, 5), (1, 7, 1), (2, 3, 4, 5), (), (0, 3), (17,))
_PAIRS: tuple[tuple[Shape, Shape], ...] = (
    ((3, 5), (3, 5)),
    ((4, 1, 6), (1, 5, 1)),
    ((2, 3, 4), (4,)),
    ((), (3,)),
    ((2, 3, 1, 1), (1, 3, 5, 7)),
    ((0, 3), (3,)),
    ((19,), ()),
)


class _Unary(Op):
    """y[i] = f(x[i]). A subclass defines `apply` and, if it is differentiable, `derivative`."""

    elementwise = True
    inplace = {0: 0}
    #: Where samples are drawn; None means distinct values on both sides of 0.
    domain: ClassVar[tuple[float, float] | None] = None

    def apply(self, x: Array) -> Any:
        """f in NumPy."""
        raise NotImplementedError

    def derivative(self, x: Any, y: Any) -> Any:
        """f'(x), from x or y = f(x), in ops; None where it is zero everywhere."""
        raise NotImplementedError

    def infer(self, x: Spec) -> tuple[Spec]:
        self.check_float(x)
        return (x.open,)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        slope = self.derivative(inputs[0], outputs[0])
        return (None if slope is None else grads[0] * slope,)

    def reference(self, x: Array) -> tuple[Array]:
        return (self.apply(x),)

    @classmethod
    def examples(cls) -> Iterator[_Unary]:
        """Attribute values worth testing."""
        yield cls()

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for op in cls.examples():
            for shape in _SHAPES:
                arg = Arg(shape, distinct=True)
                if cls.domain is not None:
                    arg = Arg(shape, low=cls.domain[0], high=cls.domain[1])
                yield Sample.of(op, arg, dtypes=None if bool_ not in cls.dtypes else (bool_,))


@dataclass(frozen=True)
class Identity(_Unary):
    """x itself."""

    dtypes = DTYPES

    def apply(self, x: Array) -> Any:
        return x

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return (grads[0],)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape in _SHAPES:
            yield Sample.of(cls(), shape, dtypes=NUMBERS)


@dataclass(frozen=True)
class Neg(_Unary):
    """-x."""

    dtypes = NUMBERS
    odd = True

    def apply(self, x: Array) -> Any:
        return np.negative(x)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return (-grads[0],)


@dataclass(frozen=True)
class Abs(_Unary):
    """|x|; its gradient is 0 at 0."""

    dtypes = NUMBERS

    def apply(self, x: Array) -> Any:
        return np.abs(x)

    def derivative(self, x: Any, y: Any) -> Any:
        return x.sign()


@dataclass(frozen=True)
class Sign(_Unary):
    """-1, 0 or 1; 0 for NaN."""

    dtypes = NUMBERS

    def apply(self, x: Array) -> Any:
        return np.where(x == x, np.sign(x), x.dtype.type(0))

    def derivative(self, x: Any, y: Any) -> Any:
        return None


@dataclass(frozen=True)
class Floor(_Unary):
    """The largest integer not above x."""

    def apply(self, x: Array) -> Any:
        return np.floor(x)

    def derivative(self, x: Any, y: Any) -> Any:
        return None


@dataclass(frozen=True)
class Ceil(_Unary):
    """The smallest integer not below x."""

    def apply(self, x: Array) -> Any:
        return np.ceil(x)

    def derivative(self, x: Any, y: Any) -> Any:
        return None


@dataclass(frozen=True)
class Exp(_Unary):
    """e to the power of x."""

    domain = (-3.0, 3.0)

    def apply(self, x: Array) -> Any:
        return np.exp(x)

    def derivative(self, x: Any, y: Any) -> Any:
        return y


@dataclass(frozen=True)
class Log(_Unary):
    """The natural logarithm."""

    domain = (0.5, 3.0)

    def apply(self, x: Array) -> Any:
        return np.log(x)

    def derivative(self, x: Any, y: Any) -> Any:
        return x.reciprocal()


@dataclass(frozen=True)
class Sqrt(_Unary):
    """The square root."""

    domain = (0.5, 3.0)

    def apply(self, x: Array) -> Any:
        return np.sqrt(x)

    def derivative(self, x: Any, y: Any) -> Any:
        return 0.5 / y


@dataclass(frozen=True)
class Rsqrt(_Unary):
    """1 / sqrt(x)."""

    domain = (0.5, 3.0)

    def apply(self, x: Array) -> Any:
        return 1 / np.sqrt(x)

    def derivative(self, x: Any, y: Any) -> Any:
        return -0.5 * (y / x)


@dataclass(frozen=True)
class Reciprocal(_Unary):
    """1 / x."""

    domain = (0.5, 3.0)

    def apply(self, x: Array) -> Any:
        return 1 / x

    def derivative(self, x: Any, y: Any) -> Any:
        return -(y * y)


@dataclass(frozen=True)
class Sin(_Unary):
    """The sine of an angle in radians."""

    def apply(self, x: Array) -> Any:
        return np.sin(x)

    def derivative(self, x: Any, y: Any) -> Any:
        return x.cos()


@dataclass(frozen=True)
class Cos(_Unary):
    """The cosine of an angle in radians."""

    def apply(self, x: Array) -> Any:
        return np.cos(x)

    def derivative(self, x: Any, y: Any) -> Any:
        return -x.sin()


@dataclass(frozen=True)
class Tan(_Unary):
    """The tangent of an angle in radians."""

    domain = (-1.2, 1.2)

    def apply(self, x: Array) -> Any:
        return np.tan(x)

    def derivative(self, x: Any, y: Any) -> Any:
        return y * y + 1


@dataclass(frozen=True)
class Erf(_Unary):
    """The error function 2 / sqrt(pi) * integral of exp(-t^2) from 0 to x."""

    domain = (-3.0, 3.0)

    def apply(self, x: Array) -> Any:
        return erf_numpy(x)

    def derivative(self, x: Any, y: Any) -> Any:
        return (2 / math.sqrt(math.pi)) * (-(x * x)).exp()


@dataclass(frozen=True)
class Sigmoid(_Unary):
    """1 / (1 + exp(-x)); the gradient is computed from y."""

    def apply(self, x: Array) -> Any:
        return _sigmoid(x)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return (call(made(SigmoidGrad), outputs[0], grads[0]),)


@dataclass(frozen=True)
class Tanh(_Unary):
    """The hyperbolic tangent; the gradient is computed from y."""

    def apply(self, x: Array) -> Any:
        return np.tanh(x)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return (call(made(TanhGrad), outputs[0], grads[0]),)


@dataclass(frozen=True)
class Relu(_Unary):
    """max(x, 0), NaN is kept; the gradient is computed from y, so that y may reuse x's memory."""

    def apply(self, x: Array) -> Any:
        return np.maximum(x, 0)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return (call(made(ReluGrad), outputs[0], grads[0]),)


@dataclass(frozen=True)
class ClippedRelu(_Unary):
    """min(max(x, 0), hi), with hi > 0; the gradient is 0 at both kinks."""

    hi: float

    def apply(self, x: Array) -> Any:
        return np.minimum(np.maximum(x, 0), self.hi)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        y = outputs[0]
        return (call(ClippedReluGrad(float(y.dtype.numpy.type(self.hi))), y, grads[0]),)

    @classmethod
    def examples(cls) -> Iterator[_Unary]:
        yield cls(6.0)
        yield cls(0.7)


@dataclass(frozen=True)
class LeakyRelu(_Unary):
    """x where x > 0, else slope * x."""

    slope: float = 0.01

    def apply(self, x: Array) -> Any:
        return np.where(x > 0, x, x * self.slope)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        g = grads[0]
        return (where(inputs[0] > 0, g, g * self.slope),)

    @classmethod
    def examples(cls) -> Iterator[_Unary]:
        yield cls()
        yield cls(0.3)


@dataclass(frozen=True)
class Elu(_Unary):
    """x where x > 0, else alpha * (exp(x) - 1)."""

    alpha: float = 1.0

    def apply(self, x: Array) -> Any:
        return np.where(x > 0, x, self.alpha * np.expm1(np.minimum(x, 0)))

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        x, g = inputs[0], grads[0]
        return (where(x > 0, g, g * (self.alpha * minimum(x, 0.0).exp())),)

    @classmethod
    def examples(cls) -> Iterator[_Unary]:
        yield cls()
        yield cls(0.5)


@dataclass(frozen=True)
class Softplus(_Unary):
    """log(1 + exp(x)), without overflow."""

    def apply(self, x: Array) -> Any:
        return np.logaddexp(x, x.dtype.type(0))

    def derivative(self, x: Any, y: Any) -> Any:
        return x.sigmoid()


@dataclass(frozen=True)
class Gelu(_Unary):
    """x * Phi(x) with the normal CDF Phi, by erf."""

    def apply(self, x: Array) -> Any:
        return 0.5 * x * (1 + erf_numpy(x * math.sqrt(0.5)))

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return (call(made(GeluGrad), inputs[0], grads[0]),)


_ROOT_2_PI = math.sqrt(2 / math.pi)


@dataclass(frozen=True)
class GeluTanh(_Unary):
    """The tanh approximation of gelu: 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))."""

    def apply(self, x: Array) -> Any:
        return 0.5 * x * (1 + np.tanh(_ROOT_2_PI * (x + 0.044715 * x * x * x)))

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return (call(GeluGrad("tanh"), inputs[0], grads[0]),)


@dataclass(frozen=True)
class Silu(_Unary):
    """x * sigmoid(x), also called swish."""

    def apply(self, x: Array) -> Any:
        return x * _sigmoid(x)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return (call(made(SiluGrad), inputs[0], grads[0]),)


@dataclass(frozen=True)
class HardSwish(_Unary):
    """x * min(max(x + 3, 0), 6) / 6. A. Howard et al.: "Searching for MobileNetV3" (ICCV 2019)."""

    def apply(self, x: Array) -> Any:
        return x * np.clip(x * (1 / 6) + 0.5, 0, 1)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        (x,), (g,) = inputs, grads
        return (where(x <= -3, 0.0, where(x >= 3, g, g * (x * (1 / 3) + 0.5))),)


@dataclass(frozen=True)
class LogicalNot(_Unary):
    """not x, on booleans."""

    dtypes = (bool_,)
    differentiable = False

    def apply(self, x: Array) -> Any:
        return np.logical_not(x)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape in _SHAPES:
            yield Sample.of(cls(), Arg(shape, bool_, low=0, high=2, integers=True), dtypes=(bool_,))


class _Binary(Op):
    """y[i] = f(a[i], b[i]) after broadcasting. A subclass defines `apply` and `partials`."""

    arity = 2
    elementwise = True
    inplace = {0: 0}
    domains: ClassVar[tuple[tuple[float, float] | None, tuple[float, float] | None]] = (None, None)

    def apply(self, a: Array, b: Array) -> Any:
        """f in NumPy."""
        raise NotImplementedError

    def partials(self, g: Any, a: Any, b: Any, y: Any) -> tuple[Any, Any]:
        """The gradients before reduction to the operands' shapes."""
        raise NotImplementedError

    def infer(self, a: Spec, b: Spec) -> tuple[Spec]:
        self.check_float(a, b)
        return (self.result(broadcast_shapes(a.shape, b.shape, self.name), a.dtype),)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        a, b = inputs
        da, db = self.partials(grads[0], a, b, outputs[0])
        return da.sum_to(a.shape), db.sum_to(b.shape)

    def reference(self, a: Array, b: Array) -> tuple[Array]:
        return (self.apply(a, b),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shapes in _PAIRS:
            args = (
                Arg(s) if d is None else Arg(s, low=d[0], high=d[1])
                for s, d in zip(shapes, cls.domains, strict=True)
            )
            yield Sample.of(cls(), *args)


@dataclass(frozen=True)
class Add(_Binary):
    """a + b."""

    dtypes = NUMBERS
    commutative = True

    def apply(self, a: Array, b: Array) -> Any:
        return np.add(a, b)

    def partials(self, g: Any, a: Any, b: Any, y: Any) -> tuple[Any, Any]:
        return g, g


@dataclass(frozen=True)
class Sub(_Binary):
    """a - b."""

    dtypes = NUMBERS

    def apply(self, a: Array, b: Array) -> Any:
        return np.subtract(a, b)

    def partials(self, g: Any, a: Any, b: Any, y: Any) -> tuple[Any, Any]:
        return g, -g


@dataclass(frozen=True)
class Mul(_Binary):
    """a * b."""

    dtypes = NUMBERS
    odd = True
    commutative = True

    def apply(self, a: Array, b: Array) -> Any:
        return np.multiply(a, b)

    def partials(self, g: Any, a: Any, b: Any, y: Any) -> tuple[Any, Any]:
        return g * b, g * a


@dataclass(frozen=True)
class Div(_Binary):
    """a / b, for floats."""

    odd = True
    domains = (None, (0.5, 3.0))

    def apply(self, a: Array, b: Array) -> Any:
        return np.divide(a, b)

    def partials(self, g: Any, a: Any, b: Any, y: Any) -> tuple[Any, Any]:
        da = g / b
        return da, -(da * y)


@dataclass(frozen=True)
class Pow(_Binary):
    """a to the power of b, for floats; NaN for a negative a and a non-integer b.

    The gradient in b is 0 where a is 0 and b is not negative, as torch's; NaN where a is negative.
    """

    domains = ((0.5, 2.0), (-2.0, 3.0))

    def apply(self, a: Array, b: Array) -> Any:
        return np.power(a, b)

    def partials(self, g: Any, a: Any, b: Any, y: Any) -> tuple[Any, Any]:
        # b = 0: the power is constant, also at 0, infinity and NaN, where 0 * a ** 0 is 0.
        less = where(b == 0, 0.0, b - 1)
        flat = (a == 0) & (b >= 0)
        return g * b * call(made(Pow), a, less), where(flat, 0.0, g * y * where(flat, 1.0, a).log())


@dataclass(frozen=True)
class Minimum(_Binary):
    """The smaller of a and b, propagating NaN. For equal ones a gets `share` of the gradient."""

    dtypes = NUMBERS
    commutative = True
    share: float = 0.5

    def apply(self, a: Array, b: Array) -> Any:
        return np.minimum(a, b)

    def partials(self, g: Any, a: Any, b: Any, y: Any) -> tuple[Any, Any]:
        return _shared(g, b, a, a == b, self.share)


@dataclass(frozen=True)
class Maximum(_Binary):
    """The larger of a and b, propagating NaN. For equal ones a gets `share` of the gradient."""

    dtypes = NUMBERS
    commutative = True
    share: float = 0.5

    def apply(self, a: Array, b: Array) -> Any:
        return np.maximum(a, b)

    def partials(self, g: Any, a: Any, b: Any, y: Any) -> tuple[Any, Any]:
        return _shared(g, a, b, a == b, self.share)


def _shared(g: Any, high: Any, low: Any, equal: Any, share: float) -> tuple[Any, Any]:
    """The gradients of a and b, of which a is selected where high > low, and b where high < low.

    Where they are equal, a gets `share` of g and b the rest. At NaN as in torch: both get g; with share 1 (clamp)
    neither, with share 0 (hardtanh) a does.
    """
    if share == 1:
        return where(high >= low, g, 0.0), where(high < low, g, 0.0)
    if share == 0:
        return where(high <= low, 0.0, g), where(high <= low, g, 0.0)
    return (
        where(high < low, 0.0, where(equal, g * share, g)),
        where(high > low, 0.0, where(equal, g * (1 - share), g)),
    )


class _Comparison(_Binary):
    """A boolean per pair of elements."""

    dtypes = NUMBERS
    differentiable = False
    inplace = {}

    def infer(self, a: Spec, b: Spec) -> tuple[Spec]:
        self.check_float(a, b)
        return (self.result(broadcast_shapes(a.shape, b.shape, self.name), bool_),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for a, b in _PAIRS:
            yield Sample.of(cls(), *(Arg(s, low=0, high=3, integers=True) for s in (a, b)))
        yield Sample.of(cls(), (3, 5), (3, 5), dtypes=NUMBERS[:4])


@dataclass(frozen=True)
class Eq(_Comparison):
    """a == b; False for NaN."""

    dtypes = DTYPES
    commutative = True

    def apply(self, a: Array, b: Array) -> Any:
        return np.equal(a, b)


@dataclass(frozen=True)
class Ne(_Comparison):
    """a != b; True for NaN."""

    dtypes = DTYPES
    commutative = True

    def apply(self, a: Array, b: Array) -> Any:
        return np.not_equal(a, b)


@dataclass(frozen=True)
class Lt(_Comparison):
    """a < b."""

    def apply(self, a: Array, b: Array) -> Any:
        return np.less(a, b)


@dataclass(frozen=True)
class Le(_Comparison):
    """a <= b."""

    def apply(self, a: Array, b: Array) -> Any:
        return np.less_equal(a, b)


@dataclass(frozen=True)
class Gt(_Comparison):
    """a > b."""

    def apply(self, a: Array, b: Array) -> Any:
        return np.greater(a, b)


@dataclass(frozen=True)
class Ge(_Comparison):
    """a >= b."""

    def apply(self, a: Array, b: Array) -> Any:
        return np.greater_equal(a, b)


class _Logical(_Binary):
    """A boolean from two booleans."""

    dtypes = (bool_,)
    differentiable = False

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for a, b in _PAIRS:
            args = (Arg(s, bool_, low=0, high=2, integers=True) for s in (a, b))
            yield Sample.of(cls(), *args, dtypes=(bool_,))


@dataclass(frozen=True)
class LogicalAnd(_Logical):
    """a and b, on booleans."""

    commutative = True

    def apply(self, a: Array, b: Array) -> Any:
        return np.logical_and(a, b)


@dataclass(frozen=True)
class LogicalOr(_Logical):
    """a or b, on booleans."""

    commutative = True

    def apply(self, a: Array, b: Array) -> Any:
        return np.logical_or(a, b)


@dataclass(frozen=True)
class Where(Op):
    """a where cond, else b: cond bool, a and b of one dtype, all three broadcast."""

    arity = 3
    elementwise = True
    dtypes = DTYPES

    def infer(self, cond: Spec, a: Spec, b: Spec) -> tuple[Spec]:
        if cond.dtype != bool_ or a.dtype != b.dtype:
            raise DTypeError(
                f"{self.name}: needs a boolean condition and two tensors of one dtype, got "
                f"{listing((cond, a, b))}"
            )
        shape = broadcast_shapes(cond.shape, broadcast_shapes(a.shape, b.shape, self.name), self.name)
        return (self.result(shape, a.dtype),)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        (g,), (cond, a, b) = grads, inputs
        return None, where(cond, g, 0.0).sum_to(a.shape), where(cond, 0.0, g).sum_to(b.shape)

    def reference(self, cond: Array, a: Array, b: Array) -> tuple[Array]:
        return (np.where(cond, a, b),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        cases: list[tuple[Shape, Shape, Shape]] = [
            ((3, 5), (3, 5), (3, 5)), ((4, 1), (1, 6), ()), ((2, 3, 4, 5), (), (1, 3, 1, 1)),
            ((), (7,), (7,)), ((0, 3), (3,), (1, 3)), ((17,), (17,), (1,)),
        ]  # fmt: skip
        for cond, a, b in cases:
            flags = Arg(cond, bool_, low=0, high=2, integers=True, differentiable=False)
            yield Sample.of(cls(), flags, a, b, dtypes=NUMBERS)


class _ActivationGrad(Op):
    """The gradient of an activation: (y, g) -> g * f'(x), with f'(x) in terms of y = f(x), or of x in its place."""

    arity = 2
    elementwise = True
    inplace = {0: 1}
    chained = 1  # in a fused chain the gradient is the running value

    def infer(self, y: Spec, g: Spec) -> tuple[Spec]:
        self.check_float(y, g)
        return (self.result(broadcast_shapes(y.shape, g.shape, self.name), y.dtype),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape in _SHAPES:
            yield Sample.of(cls(), Arg(shape, distinct=True), shape)


@dataclass(frozen=True)
class ReluGrad(_ActivationGrad):
    """g where y > 0, else 0."""

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return None, call(made(ReluGrad), inputs[0], grads[0])

    def reference(self, y: Array, g: Array) -> tuple[Array]:
        return (np.where(y > 0, g, g.dtype.type(0)),)


@dataclass(frozen=True)
class ClippedReluGrad(_ActivationGrad):
    """g where 0 < y < hi, else 0; hi is exact in y's dtype."""

    hi: float = 6.0

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return None, call(self, inputs[0], grads[0])

    def reference(self, y: Array, g: Array) -> tuple[Array]:
        return (np.where((y > 0) & (y < self.hi), g, g.dtype.type(0)),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape in _SHAPES:
            yield Sample.of(cls(0.75), Arg(shape, distinct=True), shape)


@dataclass(frozen=True)
class SigmoidGrad(_ActivationGrad):
    """g * y * (1 - y)."""

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        (t,), (y, g) = grads, inputs
        return t * g * (1 - 2 * y), call(made(SigmoidGrad), y, t)

    def reference(self, y: Array, g: Array) -> tuple[Array]:
        return (g * y * (1 - y),)


@dataclass(frozen=True)
class TanhGrad(_ActivationGrad):
    """g * (1 - y^2)."""

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        (t,), (y, g) = grads, inputs
        return t * g * (-2 * y), call(made(TanhGrad), y, t)

    def reference(self, y: Array, g: Array) -> tuple[Array]:
        return (g * (1 - y * y),)


@dataclass(frozen=True)
class GeluGrad(_ActivationGrad):
    """(x, g) -> g * gelu'(x), from gelu's input; approximate: "none" or "tanh", as in `gelu`.

    gelu'(x) is Phi(x) + x * phi(x), or, with t = tanh(u) and u = sqrt(2 / pi) * (x + 0.044715 * x^3),
    (1 + t) / 2 + x / 2 * (1 - t^2) * u'.
    """

    approximate: Literal["none", "tanh"] = "none"

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        (s,), (x, g) = grads, inputs
        return s * g * self._curvature(x), call(self, x, s)

    def _curvature(self, x: Any) -> Any:
        """gelu''(x) in ops: phi(x) * (2 - x^2), or (1 - t^2) * (u' + x / 2 * (u'' - 2 * t * u'^2))."""
        square = x * x
        if self.approximate == "none":
            return (square * -0.5).exp() * (2 - square) * (1 / math.sqrt(2 * math.pi))
        t = (x * (square * 0.044715 + 1) * _ROOT_2_PI).tanh()
        slope = (square * (3 * 0.044715) + 1) * _ROOT_2_PI
        bend = x * (6 * 0.044715 * _ROOT_2_PI)
        return (1 - t * t) * (slope + x * 0.5 * (bend - 2 * t * slope * slope))

    def reference(self, x: Array, g: Array) -> tuple[Array]:
        if self.approximate == "none":
            density = np.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
            return (g * (0.5 * (1 + erf_numpy(x * math.sqrt(0.5))) + x * density),)
        t = np.tanh(_ROOT_2_PI * (x + 0.044715 * x * x * x))
        slope = _ROOT_2_PI * (1 + 3 * 0.044715 * x * x)
        return (g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for approximate in ("none", "tanh"):
            for shape in _SHAPES:
                yield Sample.of(cls(approximate), Arg(shape, distinct=True), shape)


@dataclass(frozen=True)
class SiluGrad(_ActivationGrad):
    """(x, g) -> g * silu'(x), from silu's input: silu'(x) = s * (1 + x * (1 - s)) with s = sigmoid(x)."""

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        (arriving,), (x, g) = grads, inputs
        s = x.sigmoid()
        bend = s * (1 - s) * (x * (1 - 2 * s) + 2)  # silu''(x)
        return arriving * g * bend, call(self, x, arriving)

    def reference(self, x: Array, g: Array) -> tuple[Array]:
        s = _sigmoid(x)
        return (g * (s * (1 + x * (1 - s))),)


def _sigmoid(x: Array) -> Any:
    """Overflow-free: exp is only taken of non-positive numbers."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, e) / (1 + e)


_ERF_STEP, _ERF_END = 1 / 64, 6.0  # beyond 6 the function is 1 in float64


def _erf_table() -> Array:
    """Taylor coefficients of erf around each multiple of _ERF_STEP: row n holds the n-th derivative / n!.

    The (n + 1)-th derivative of erf is 2 / sqrt(pi) * (-1)^n * H_n(x) * exp(-x^2), with H_n the Hermite polynomials
    (Abramowitz and Stegun 7.1.19). Six terms have an error below 1e-17 within half a step.
    """
    x = np.arange(0, _ERF_END + _ERF_STEP, _ERF_STEP)
    hermite = [np.ones_like(x), 2 * x]
    for n in range(1, 6):
        hermite.append(2 * x * hermite[n] - 2 * n * hermite[n - 1])
    scale = 2 / math.sqrt(math.pi) * np.exp(-x * x)
    rows = [np.array([math.erf(v) for v in x])]
    rows += [(-1) ** n * h * scale / math.factorial(n + 1) for n, h in enumerate(hermite)]
    return np.stack(rows)


_ERF = _erf_table()
_ERF_32 = _ERF[:4].astype(np.float32)  # four terms have an error below 1e-9


def lookup(table: Array, index: Any) -> Any:
    """table[index]. As in NumPy's own functions, an index that is not a NumPy array dispatches the call (NEP 18)."""
    if not isinstance(index, np.ndarray | np.generic):
        return index.__array_function__(lookup, (type(index),), (table, index), {})
    places: Any = index
    return np.take(table, places)


def erf_numpy(x: Array) -> Array:
    """The error function of a float32 or float64 array, accurate to the last digits.

    As in NumPy's own functions, what is not a NumPy array dispatches the call (NEP 18).
    """
    if not isinstance(x, np.ndarray | np.generic):
        return x.__array_function__(erf_numpy, (type(x),), (x,), {})
    return erf_by_table(x)


def erf_by_table(x: Array) -> Array:
    """`erf_numpy` by Taylor's series around the nearest entry of a table."""
    table = _ERF_32 if x.dtype == np.float32 else _ERF
    size = np.minimum(np.abs(x), x.dtype.type(_ERF_END))
    steps = np.rint(size * (1 / _ERF_STEP))
    apart = size - steps * _ERF_STEP  # exact: the step is a power of two
    near = np.nan_to_num(steps).astype(np.intp)
    value = lookup(table[-1], near)
    for row in table[-2::-1]:
        value *= apart
        value += lookup(row, near)
    found: Array = np.copysign(value, x)
    return found


# Functions, named and called as in torch and torch.nn.functional.


def _binary(op: Op, input: Any, other: Any, of_booleans: Op | None = None) -> Any:
    """The op on two operands in their common dtype; for bool by another op, if there is one."""
    a, b = together(op.name, input, other)
    return call(op if of_booleans is None or a.dtype.kind != "b" else of_booleans, a, b)


@checked
def add(input: Any, other: Any, *, alpha: Number = 1) -> Any:
    """input + alpha * other; logical or for booleans, as in torch."""
    return _binary(made(Add), input, _scaled("add", input, other, alpha), made(LogicalOr))


@checked
def sub(input: Any, other: Any, *, alpha: Number = 1) -> Any:
    """input - alpha * other."""
    return _binary(made(Sub), input, _scaled("sub", input, other, alpha))


def _scaled(what: str, input: Any, other: Any, alpha: Number) -> Any:
    """alpha * other. Raises DTypeError for a fractional alpha with integers, which the result could not hold."""
    if isinstance(alpha, int) and alpha == 1:
        return other
    whole = not any(_is_floating(x) for x in (input, other))
    if whole and isinstance(alpha, float):
        raise DTypeError(f"{what}: alpha must be an int for integer tensors, got {alpha}")
    return mul(other, alpha)


def _is_floating(x: Any) -> bool:
    return isinstance(x, float) if is_number(x) else bool(operand(x).dtype.is_float)


def mul(input: Any, other: Any) -> Any:
    """input * other; logical and for booleans, as in torch."""
    return _binary(made(Mul), input, other, made(LogicalAnd))


def minimum(input: Any, other: Any) -> Any:
    """The smaller of input and other, propagating NaN."""
    return _binary(made(Minimum), input, other, made(LogicalAnd))


def maximum(input: Any, other: Any) -> Any:
    """The larger of input and other, propagating NaN."""
    return _binary(made(Maximum), input, other, made(LogicalOr))


def eq(input: Any, other: Any) -> Any:
    """input == other, as booleans."""
    return _binary(made(Eq), input, other)


def ne(input: Any, other: Any) -> Any:
    """input != other, as booleans."""
    return _binary(made(Ne), input, other)


def _ordered(op: Op, input: Any, other: Any) -> Any:
    """A comparison of numbers; booleans compare as 0 and 1, as in torch."""
    a, b = together(op.name, input, other)
    a, b = (operand(x).cast("uint8") if x.dtype.kind == "b" else x for x in (a, b))
    return call(op, a, b)


def lt(input: Any, other: Any) -> Any:
    """input < other, as booleans."""
    return _ordered(made(Lt), input, other)


def le(input: Any, other: Any) -> Any:
    """input <= other, as booleans."""
    return _ordered(made(Le), input, other)


def gt(input: Any, other: Any) -> Any:
    """input > other, as booleans."""
    return _ordered(made(Gt), input, other)


def ge(input: Any, other: Any) -> Any:
    """input >= other, as booleans."""
    return _ordered(made(Ge), input, other)


def logical_and(input: Any, other: Any) -> Any:
    """input and other, as booleans: nonzero is true."""
    return call(made(LogicalAnd), *_truths("logical_and", input, other))


def logical_or(input: Any, other: Any) -> Any:
    """input or other, as booleans: nonzero is true."""
    return call(made(LogicalOr), *_truths("logical_or", input, other))


def logical_not(input: Any) -> Any:
    """not input, as booleans: nonzero is true."""
    return call(made(LogicalNot), _truth(input, "logical_not"))


def _truths(what: str, a: Any, b: Any) -> tuple[Any, Any]:
    """Both as booleans; an array next to an operand stays an array, to be adopted on the operand's device."""
    if isinstance(a, Operand) != isinstance(b, Operand):
        a, b = (_truth(x, what) if isinstance(x, Operand) else np.not_equal(x, 0) for x in (a, b))
        return a, b
    return _truth(a, what), _truth(b, what)


def _truth(x: Any, what: str) -> Any:
    x = operand(x, what)
    return x if x.dtype == bool_ else ne(x, 0)


def where(condition: Any, input: Any, other: Any) -> Any:
    """input where condition (bool) is true, else other, in their common dtype; numbers take the tensor's."""
    if is_number(input) and is_number(other):
        kind = float32 if isinstance(input, float) or isinstance(other, float) else None
        input = np.asarray(input, None if kind is None else kind.numpy)
    return call(made(Where), condition, *together("where", input, other))


def clamp(input: Any, min: Any = None, max: Any = None) -> Any:
    """input clamped to [min, max], which are numbers, tensors or None; max where they cross.

    At a bound the gradient goes to input, as in torch. Raises ValueError if both are None.
    """
    if min is None and max is None:
        raise ValueError("clamp: min and max are both None; give at least one of them")
    return _between(operand(input, "clamp"), min, max, 1.0)


def _between(x: Any, low: Any, high: Any, share: float) -> Any:
    """x between two bounds; at a bound x gets `share` of the gradient."""
    x = x if low is None else _binary(Maximum(share), x, low)
    return x if high is None else _binary(Minimum(share), x, high)


def neg(input: Any) -> Any:
    """-input."""
    return call(made(Neg), input)


def abs(input: Any) -> Any:
    """|input|."""
    return call(made(Abs), input)


def sign(input: Any) -> Any:
    """-1, 0 or 1; 0 for NaN, as torch.sign; booleans are unchanged."""
    x = operand(input, "sign")
    return x if x.dtype == bool_ else call(made(Sign), x)


def floor(input: Any) -> Any:
    """The largest integer not above input; integers are unchanged."""
    return _rounded(Floor(), input)


def ceil(input: Any) -> Any:
    """The smallest integer not below input; integers are unchanged."""
    return _rounded(Ceil(), input)


def trunc(input: Any) -> Any:
    """input rounded towards zero; integers are unchanged."""
    x = operand(input, "trunc")
    return x if not x.dtype.is_float else where(x < 0, ceil(x), floor(x))


def _rounded(op: Op, input: Any) -> Any:
    x = operand(input, op.name)
    return call(op, x) if x.dtype.is_float or x.dtype == bool_ else x


def _float(op: Op, input: Any) -> Any:
    return call(op, floating(input, op.name))


def exp(input: Any) -> Any:
    """e to the power of input."""
    return _float(Exp(), input)


def log(input: Any) -> Any:
    """The natural logarithm."""
    return _float(Log(), input)


def sqrt(input: Any) -> Any:
    """The square root."""
    return _float(Sqrt(), input)


def rsqrt(input: Any) -> Any:
    """1 / sqrt(input)."""
    return _float(Rsqrt(), input)


def reciprocal(input: Any) -> Any:
    """1 / input."""
    return _float(Reciprocal(), input)


def square(input: Any) -> Any:
    """input * input; int64 for booleans, as torch.square."""
    x = operand(input, "square")
    x = x.cast(int64) if x.dtype == bool_ else x
    return mul(x, x)


def sin(input: Any) -> Any:
    """The sine of an angle in radians."""
    return _float(Sin(), input)


def cos(input: Any) -> Any:
    """The cosine of an angle in radians."""
    return _float(Cos(), input)


def tan(input: Any) -> Any:
    """The tangent of an angle in radians."""
    return _float(Tan(), input)


def erf(input: Any) -> Any:
    """The error function."""
    return _float(Erf(), input)


def identity(input: Any) -> Any:
    """input itself."""
    return call(made(Identity), input)


@with_inplace
def relu(input: Any, inplace: bool = False) -> Any:
    """max(x, 0); also for integers. inplace, here and in the others: write the result over input, too."""
    x = operand(input, "relu")
    return maximum(x, 0) if x.dtype in INTEGERS else call(made(Relu), x)


@with_inplace
def relu6(input: Any, inplace: bool = False) -> Any:
    """min(max(x, 0), 6); also for integers."""
    return hardtanh(input, 0, 6)


@checked
def clipped_relu(input: Any, hi: float) -> Any:
    """min(max(x, 0), hi). Raises ValueError unless hi > 0."""
    within("clipped_relu", "hi", hi, 0, open=True)
    return call(ClippedRelu(float(hi)), input)


@checked
@with_inplace
def leaky_relu(input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    """x where x > 0, else negative_slope * x."""
    return call(LeakyRelu(float(negative_slope)), input)


@checked
@with_inplace
def elu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    """x where x > 0, else alpha * (exp(x) - 1)."""
    return call(Elu(float(alpha)), input)


def sigmoid(input: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return _float(Sigmoid(), input)


def tanh(input: Any) -> Any:
    """The hyperbolic tangent."""
    return _float(Tanh(), input)


@checked
def softplus(input: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """log(1 + exp(beta * x)) / beta, without overflow; x itself where beta * x > threshold.

    At the default threshold the two differ by less than 3e-9, and only the formula is used.
    """
    if beta == 0:
        raise ValueError("softplus: beta must not be 0")
    x = operand(input, "softplus")
    scaled = x if beta == 1 else mul(x, beta)
    y = call(made(Softplus), scaled)
    y = y if beta == 1 else y * (1 / beta)
    return y if threshold == 20 else where(scaled > threshold, x, y)


@checked
def gelu(input: Any, approximate: Literal["none", "tanh"] = "none") -> Any:
    """x * Phi(x), exact (by erf) or, with approximate="tanh", by the tanh approximation."""
    return call(Gelu() if approximate == "none" else GeluTanh(), input)


@with_inplace
def silu(input: Any, inplace: bool = False) -> Any:
    """x * sigmoid(x)."""
    return call(made(Silu), input)


@checked
def swish(input: Any, beta: float = 1.0) -> Any:
    """x * sigmoid(beta * x)."""
    x = operand(input, "swish")
    return silu(x) if beta == 1 else x * sigmoid(x * beta)


@checked
@with_inplace
def threshold(input: Any, threshold: Number, value: Number, inplace: bool = False) -> Any:
    """value where x <= threshold, else x; NaN is kept."""
    x = operand(input, "threshold")
    return where(le(x, threshold), value, x)


def prelu(input: Any, weight: Any) -> Any:
    """x where x > 0, else weight * x; weight has one element or one per channel (axis 1)."""
    x, weight = operand(input, "prelu"), operand(weight, "prelu", "weight")
    channels = x.shape[1] if x.ndim > 1 else 1
    if weight.ndim > 1 or weight.spec.numel not in (1, channels):
        raise ShapeError(
            f"prelu: weight must have 1 element or {channels}, one per channel of {x.spec}, got {weight.spec}"
        )
    if weight.spec.numel != 1 or x.ndim == 0:
        weight = weight.reshape((weight.spec.numel, *(1,) * (x.ndim - 2)) if x.ndim > 1 else ())
    return where(x > 0, x, x * weight)


@checked
@with_inplace
def hardtanh(input: Any, min_val: Number = -1.0, max_val: Number = 1.0, inplace: bool = False) -> Any:
    """x clamped to [min_val, max_val], with gradient 0 at both bounds, as in torch. Integers stay integers, with the
    bounds truncated to integers."""
    if min_val > max_val:
        raise ValueError(f"hardtanh: min_val must be <= max_val, got {min_val} and {max_val}")
    x = operand(input, "hardtanh")
    if min_val == 0 < max_val < math.inf and x.dtype.is_float:
        return clipped_relu(x, max_val)  # one op, which norms can fuse
    if x.dtype in INTEGERS and math.isfinite(min_val) and math.isfinite(max_val):
        min_val, max_val = int(min_val), int(max_val)
    return _between(x, min_val, max_val, 0.0)


@with_inplace
def hardsigmoid(input: Any, inplace: bool = False) -> Any:
    """min(max(x + 3, 0), 6) / 6."""
    return relu6(operand(input, "hardsigmoid") + 3.0) * (1 / 6)


@with_inplace
def hardswish(input: Any, inplace: bool = False) -> Any:
    """x * min(max(x + 3, 0), 6) / 6."""
    x = operand(input, "hardswish")
    return call(made(HardSwish), x if x.dtype.is_float else x * 1.0)
