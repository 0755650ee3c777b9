"""Formulas written out in steps that one op computes: activations, norms and attention.

Exporters decompose gelu, hard swish and layer norms; a backend computes each in one pass, or in the epilogue of the
product before it. The rules recognize the formulas by their constants, in every order of the factors. Formulas whose
intermediate values are read elsewhere (by a gradient) stay as they are: what is going to be differentiated is
rewritten before that (`with_idioms`), so that the gradient is the op's, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isclose, pi, sqrt
from typing import Any

from lamina.backends.pattern import AnyValue, MadeBy, Pattern, PatternNode, Results, either, made_by, operand
from lamina.graph.ir.graph import Graph, Value, reachable
from lamina.graph.passes.algebraic import STEP_BEFORE_SPREADING
from lamina.graph.passes.composed_attention import ATTENTION, ATTENTION_WITHOUT_GRADIENT
from lamina.graph.passes.known_masks import KNOWN_MASKS
from lamina.graph.passes.pattern import Match, Report, RewriteRule, number_of, rewrite
from lamina.ops.core import Op
from lamina.ops.primitives.activation import Mish
from lamina.ops.primitives.cast import Cast
from lamina.ops.primitives.norm import LayerNorm, RmsNorm
from lamina.ops.primitives.pointwise import (
    Add,
    ClippedRelu,
    Div,
    Erf,
    Gelu,
    GeluTanh,
    HardSwish,
    Maximum,
    Minimum,
    Mul,
    Pow,
    Relu,
    Rsqrt,
    Sigmoid,
    Silu,
    Softplus,
    Sqrt,
    Sub,
    Tanh,
)
from lamina.ops.primitives.reduce import Reduce


def recognize_idioms(graph: Graph, report: Report | None = None) -> Graph:
    """Replace formulas by the ops that compute them."""
    return rewrite(graph, [*_KINKED, *_SMOOTH], report)


def with_idioms(values: Sequence[Value]) -> list[Value]:
    """The values of a trace, computed by the ops that their formulas are; nothing else reads the intermediate values.

    Only ops with the formula's gradient everywhere are used. Repeated values are rounded before they are repeated, so
    that gradients are summed where they are small.
    """
    nodes = reachable(values)
    read = dict.fromkeys(v for node in nodes for v in node.inputs if v.is_input)
    read.update(dict.fromkeys(v for v in values if v.is_input))
    return rewrite(Graph(list(read), values), [*_SMOOTH, STEP_BEFORE_SPREADING]).outputs


# ------------------------------------------------------------------------------------------------------ numbers


def _number(wanted: float) -> AnyValue:
    """A constant that is this number, to the precision of its type."""

    def equals(value: Any) -> bool:
        found = number_of(value)
        exact = 1e-6 if value.dtype.itemsize >= 4 else 1e-2
        return found is not None and isclose(found, wanted, rel_tol=exact)

    return operand(where=equals)


def _times(x: Pattern, factor: float) -> Pattern:
    """x * factor, or x / (1 / factor), with no other reader."""
    return either(made_by(Mul, x, _number(factor)).read_once, made_by(Div, x, _number(1 / factor)).read_once)


def _product(*factors: Pattern, number: float) -> Pattern:
    """The product of two factors and a number, multiplied in any order."""
    a, b = factors
    return either(
        made_by(Mul, a, _times(b, number)),
        made_by(Mul, _times(a, number), b),
        made_by(Mul, made_by(Mul, a, b).read_once, _number(number)),
        made_by(Div, made_by(Mul, a, b).read_once, _number(1 / number)),
    )


#: Powers of x with their coefficients.
Polynomial = dict[int, float]
#: The most steps that a polynomial is followed through.
_REACH = 8


def _polynomial(value: Value, x: Value, match: Match, reach: int = _REACH) -> Polynomial | None:
    """A value as a polynomial in x, through sums, products and whole powers; None where it is something else."""
    number = number_of(value)
    if value is x or number is not None:
        return {1: 1.0} if number is None else {0: number}
    node = value.node
    if node is None or reach == 0 or not isinstance(node.op, Add | Sub | Mul | Div | Pow):
        return None
    a, b = (_polynomial(v, x, match, reach - 1) for v in match.inputs(node))
    return None if a is None or b is None else _combined(node.op, a, b)


def _combined(op: Op, a: Polynomial, b: Polynomial) -> Polynomial | None:
    """The polynomial of a step on two others."""
    found: Polynomial = {}
    if isinstance(op, Add | Sub):
        sign = 1 if isinstance(op, Add) else -1
        for power in {*a, *b}:
            found[power] = a.get(power, 0.0) + sign * b.get(power, 0.0)
    elif isinstance(op, Mul):
        for p, c in a.items():
            for q, d in b.items():
                found[p + q] = found.get(p + q, 0.0) + c * d
    elif set(b) != {0} or b[0] == 0:  # division by a number only
        return None
    elif isinstance(op, Div):
        found = {p: c / b[0] for p, c in a.items()}
    elif len(a) == 1 and b[0] in (2.0, 3.0):
        ((p, c),) = a.items()
        found = {p * int(b[0]): c ** b[0]}
    else:
        return None
    return found


def _is(value: Value, wanted: Polynomial, match: Match) -> bool:
    """Whether a value is the polynomial of the match's x, to the precision of its type."""
    found = _polynomial(value, match["x"], match)
    exact = 1e-6 if value.dtype.itemsize >= 4 else 2e-2
    return found is not None and all(
        isclose(found.get(p, 0.0), wanted.get(p, 0.0), rel_tol=exact, abs_tol=1e-9) for p in {*found, *wanted}
    )


# -------------------------------------------------------------------------------------------------- activations

_x, _inner = operand("x"), operand("inner")
_ONE, _ROOT = _number(1.0), sqrt(2 / pi)


def _activation(match: Match, op: Op) -> Results | None:
    """The op on x in place of the root, where both have the same shape and type."""
    y, x = match.root.outputs[0], match["x"]
    return {y: match.apply(op, x, at=match.root)[0]} if x.spec == y.spec else None


def _of_x(op: Op, inner: Polynomial | None = None) -> Callable[[Match], Results | None]:
    """Makes the root the op on x, where the value named inner is that polynomial of x."""

    def make(match: Match) -> Results | None:
        fits = inner is None or _is(match["inner"], inner, match)
        return _activation(match, op) if fits else None

    return make


def _behind(function: type[Op]) -> Pattern:
    """1 + function(inner)."""
    return made_by(Add, made_by(function, _inner).read_once, _ONE).read_once


def _clipped(match: Match) -> Results | None:
    """min(max(x, 0), hi) for a number hi > 0."""
    hi = number_of(match["hi"])
    return _activation(match, ClippedRelu(hi)) if hi is not None and hi > 0 else None


def _is_relu6(node: PatternNode) -> bool:
    return bool(node.op.hi == 6.0)


def _is_relu1(node: PatternNode) -> bool:
    return bool(node.op.hi == 1.0)


_lifted = made_by(ClippedRelu, _inner, where=_is_relu6).read_once
_hard_sigmoid = made_by(ClippedRelu, _inner, where=_is_relu1).read_once


# ------------------------------------------------------------------------------------------------ norms of rows


def _is_mean_of_rows(node: PatternNode) -> bool:
    op, x = node.op, node.inputs[0]
    return bool(op.kind == "mean" and op.keepdims and op.axes == (x.ndim - 1,))


def _mean(x: Pattern) -> MadeBy:
    return made_by(Reduce, x, where=_is_mean_of_rows)


_square = either(made_by(Mul, _x, _x).read_once, made_by(Pow, _x, _number(2.0)).read_once)
_mean_square = made_by(Add, _mean(_square).read_once, operand("epsilon")).read_once
_unit = either(
    made_by(Mul, _x, made_by(Rsqrt, _mean_square).read_once).read_once,
    made_by(Div, _x, made_by(Sqrt, _mean_square).read_once).read_once,
)
_RMS_NORM = made_by(Mul, either(made_by(Cast, _unit).read_once, _unit), operand("scale"))


def _rms_norm(match: Match) -> Results | None:
    """The RMS norm of rows with a scale per element of a row. Rows that were widened only for it, and are rounded
    before they are scaled, are read in their original type."""
    y, x, scale, epsilon = match.root.outputs[0], match["x"], match["scale"], number_of(match["epsilon"])
    if x.dtype != y.dtype:
        wide = x.node
        if wide is None or not isinstance(wide.op, Cast) or x.dtype is not y.dtype.compute:
            return None
        (x,) = match.inputs(wide)
    if epsilon is None or x.spec != y.spec or scale.shape != x.shape[-1:] or scale.dtype != y.dtype:
        return None
    return {y: match.apply(RmsNorm(1, epsilon), x, _wide(scale, match), at=match.root)[0]}


def _wide(value: Value, match: Match) -> Value:
    """A value in the type of the computation, which is that of a norm's scale."""
    kind = value.dtype.compute
    return value if value.dtype is kind else match.apply(Cast(kind), value, at=match.root)[0]


def _is_of_rows(node: PatternNode) -> bool:
    return bool(node.op.rank == 1)


_centred = made_by(Sub, _x, _mean(_x).read_once).read_once
_LAYER_NORM = made_by(
    Add,
    made_by(RmsNorm, _centred, operand("scale"), name="norm", where=_is_of_rows).read_once,
    operand("bias"),
)


def _layer_norm(match: Match) -> Results | None:
    """The layer norm of rows: the RMS norm of rows minus their mean, with a bias per element of a row."""
    y, x, bias = match.root.outputs[0], match["x"], match["bias"]
    norm: Any = match.node("norm").op
    if x.spec != y.spec or bias.shape != x.shape[-1:] or bias.dtype != x.dtype:
        return None
    op = LayerNorm(1, norm.epsilon)
    return {y: match.apply(op, x, match["scale"], _wide(bias, match), at=match.root)[0]}


# -------------------------------------------------------------------------------------------------------- rules


def _whole_power(match: Match) -> Results | None:
    """x² as a product: powers are computed by logarithms."""
    (y,), x = match.root.outputs, match["x"]
    return {y: match.apply(Mul(), x, x, at=match.root)[0]} if x.spec == y.spec else None


#: Formulas that are differentiable everywhere.
_SMOOTH = [
    RewriteRule("square", made_by(Pow, _x, _number(2.0)), _whole_power),
    RewriteRule("gelu", _product(_x, _behind(Erf), number=0.5), _of_x(Gelu(), {1: sqrt(0.5)})),
    RewriteRule("gelu, tanh", _product(_x, _behind(Tanh), number=0.5),
                _of_x(GeluTanh(), {1: _ROOT, 3: _ROOT * 0.044715})),
    RewriteRule("silu", made_by(Mul, _x, made_by(Sigmoid, _x).read_once), _of_x(Silu())),
    RewriteRule("mish", made_by(Mul, _x, made_by(Tanh, made_by(Softplus, _x).read_once).read_once), _of_x(Mish())),
    RewriteRule("RMS norm", _RMS_NORM, _rms_norm),
    RewriteRule("layer norm", _LAYER_NORM, _layer_norm),
    *ATTENTION,
    *KNOWN_MASKS,
]  # fmt: skip
#: Formulas with kinks: there the gradient is the formula's (half at a maximum, all at a bound), not the op's.
_KINKED = [
    *ATTENTION_WITHOUT_GRADIENT,
    RewriteRule("relu", made_by(Maximum, _x, _number(0.0)), _of_x(Relu())),
    RewriteRule("clipped relu", made_by(Minimum, made_by(Relu, _x).read_once, operand("hi")), _clipped),
    RewriteRule("hard swish", _product(_x, _lifted, number=1 / 6), _of_x(HardSwish(), {0: 3.0, 1: 1.0})),
    RewriteRule("hard swish", made_by(Mul, _x, _hard_sigmoid), _of_x(HardSwish(), {0: 0.5, 1: 1 / 6})),
]
