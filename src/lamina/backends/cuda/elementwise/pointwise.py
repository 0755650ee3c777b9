"""Elementwise ops, one or a chain of them, as one generated kernel.

Any dtypes, any broadcasting, any strides. Arithmetic on half types is done in float32 and rounded at the end and at
casts, so a chain rounds less often than its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isnan, prod
from typing import Any

from lamina.backends import NoKernel, Plan
from lamina.backends.cuda.elementwise import elementary
from lamina.backends.cuda.elementwise.loop import KernelOperand, Loop, Statement, access_width
from lamina.backends.cuda.launch.indexing import broadcast_strides, collapse, dense_layout, memory_order
from lamina.backends.cuda.launch.program import VECTOR, c_type, source, wide_type
from lamina.backends.cuda.registry import kernels
from lamina.ops.core import Op
from lamina.ops.custom import CustomOp
from lamina.ops.primitives import activation, criterion, pointwise
from lamina.ops.primitives.cast import Cast
from lamina.ops.primitives.dropout import DropoutGrad, scale
from lamina.ops.primitives.full_like import FullLike
from lamina.ops.primitives.quantize import Dequantize, Quantize
from lamina.runtime import Device
from lamina.spec import (
    DType,
    Layout,
    Policy,
    Shape,
    Spec,
    bfloat16,
    bool_,
    channels_last,
    contiguous,
    float16,
    int8,
)

#: Elements of a result from which a separate launch that makes an operand readable in vector accesses pays: reading
#: so many one by one costs about as much extra time as a launch.
_MUCH = 1 << 18

# ------------------------------------------------------------------------------------------------ expressions

#: (op, names of the arguments, C type of the arithmetic) -> C expression.
Expression = Callable[[Any, Sequence[str], str], str]


def literal(value: float, type: str) -> str:
    """A number as C source."""
    if type in ("f32", "f64"):
        if isnan(value):
            return f"({type})__int_as_float(0x7fffffff)"
        if value in (float("inf"), float("-inf")):
            return f"({type})({'-' if value < 0 else ''}INFINITY_F)"
        return f"{float(value)!r}{'f' if type == 'f32' else ''}"
    if type == "bool":
        return "true" if value else "false"
    return f"({type}){int(value)}LL"


def _function(name: str) -> Expression:
    """A function of CUDA's math library; the float version has the suffix f."""
    return lambda op, a, t: f"{name}{'f' if t == 'f32' else ''}({', '.join(a)})"


def _text(template: str) -> Expression:
    """{0}, {1}, … are the arguments, {t} the type."""
    return lambda op, a, t: template.format(*a, t=t)


def _sigmoid(x: str, t: str) -> str:
    exp = "expf" if t == "f32" else "exp"
    return f"(({t})1 / (({t})1 + {exp}(-{x})))"


def _clipped(op: Any, a: Sequence[str], t: str) -> str:
    return f"smaller(larger({a[0]}, ({t})0), {literal(op.hi, t)})"


def _clipped_grad(op: Any, a: Sequence[str], t: str) -> str:
    return f"({a[0]} > ({t})0 && {a[0]} < {literal(op.hi, t)} ? {a[1]} : ({t})0)"


def _leaky(op: Any, a: Sequence[str], t: str) -> str:
    return f"({a[0]} > ({t})0 ? {a[0]} : {a[0]} * {literal(op.slope, t)})"


def _elu(op: Any, a: Sequence[str], t: str) -> str:
    expm1 = "expm1f" if t == "f32" else "expm1"
    return f"({a[0]} > ({t})0 ? {a[0]} : {literal(op.alpha, t)} * {expm1}({a[0]}))"


def _softplus(op: Any, a: Sequence[str], t: str) -> str:
    f = "f" if t == "f32" else ""
    return f"(larger({a[0]}, ({t})0) + log1p{f}(exp{f}(-fabs{f}({a[0]}))))"


def _gelu(op: Any, a: Sequence[str], t: str) -> str:
    f = "f" if t == "f32" else ""
    return f"(({t})0.5 * {a[0]} * (({t})1 + erf{f}({a[0]} * ({t})0.70710678118654752440)))"


def _gelu_tanh(op: Any, a: Sequence[str], t: str) -> str:
    x, tanh = a[0], "tanhf" if t == "f32" else "tanh"
    inner = f"({t})0.79788456080286535588 * ({x} + ({t})0.044715 * {x} * {x} * {x})"
    return f"(({t})0.5 * {x} * (({t})1 + {tanh}({inner})))"


def _gelu_grad(op: Any, a: Sequence[str], t: str) -> str:
    (x, g), f = a, "f" if t == "f32" else ""
    if op.approximate == "none":
        cumulative = f"({t})0.5 * (({t})1 + erf{f}({x} * ({t})0.70710678118654752440))"
        density = f"({t})0.39894228040143267794 * exp{f}(({t})-0.5 * {x} * {x})"
        return f"({g} * ({cumulative} + {x} * ({density})))"
    tangent = f"tanh{f}(({t})0.79788456080286535588 * ({x} + ({t})0.044715 * {x} * {x} * {x}))"
    slope = f"(({t})0.79788456080286535588 * (({t})1 + ({t})0.134145 * {x} * {x}))"
    return (
        f"({g} * (({t})0.5 * (({t})1 + {tangent}) + "
        f"({t})0.5 * {x} * (({t})1 - {tangent} * {tangent}) * {slope}))"
    )


def _silu_grad(op: Any, a: Sequence[str], t: str) -> str:
    (x, g), s = a, _sigmoid(a[0], t)
    return f"({g} * ({s} * (({t})1 + {x} * (({t})1 - {s}))))"


def _mish(op: Any, a: Sequence[str], t: str) -> str:
    return f"({a[0]} * tanh{'f' if t == 'f32' else ''}({_softplus(op, a, t)}))"


def _mish_grad(op: Any, a: Sequence[str], t: str) -> str:
    x, g = a
    tangent = f"tanh{'f' if t == 'f32' else ''}({_softplus(op, a, t)})"
    return f"({g} * ({tangent} + {x} * (({t})1 - {tangent} * {tangent}) * {_sigmoid(x, t)}))"


def _binary_cross_entropy(op: Any, a: Sequence[str], t: str) -> str:
    (p, wanted), f = a, "f" if t == "f32" else ""
    yes, no = (f"larger({log}, ({t})-100)" for log in (f"log{f}({p})", f"log1p{f}(-{p})"))
    return f"(-({wanted} * {yes} + (({t})1 - {wanted}) * {no}))"


def _binary_cross_entropy_grad(op: Any, a: Sequence[str], t: str) -> str:
    p, wanted, g = a
    return f"({g} * ({p} - {wanted}) / larger({p} * (({t})1 - {p}), ({t})1e-12))"


def _abs(op: Any, a: Sequence[str], t: str) -> str:
    return f"magnitude({a[0]})"


def _pow(op: Any, a: Sequence[str], t: str) -> str:
    return f"pow{'f' if t == 'f32' else ''}({a[0]}, {a[1]})"


def _quantize(op: Any, a: Sequence[str], t: str) -> str:
    """x / scale, for int8 rounded and clamped; float8 rounds and saturates when it is stored."""
    ratio = f"({a[0]} / {a[1]})"
    return f"smaller(larger(rintf({ratio}), -128.0f), 127.0f)" if op.dtype == int8 else ratio


def _dropout_grad(op: Any, a: Sequence[str], t: str) -> str:
    return f"({a[1]} ? {a[0]} * {literal(scale(op.p), t)} : ({t})0)"


EXPRESSIONS: dict[type[Op], Expression] = {
    pointwise.Identity: _text("{0}"),
    pointwise.Neg: _text("({t})(-{0})"),
    pointwise.Abs: _abs,
    pointwise.Sign: _text("({t})(({0} > ({t})0) - ({0} < ({t})0))"),
    pointwise.Floor: _function("floor"),
    pointwise.Ceil: _function("ceil"),
    pointwise.Exp: _function("exp"),
    pointwise.Log: _function("log"),
    pointwise.Sqrt: _function("sqrt"),
    pointwise.Rsqrt: lambda op, a, t: f"(({t})1 / sqrt{'f' if t == 'f32' else ''}({a[0]}))",
    pointwise.Reciprocal: _text("(({t})1 / {0})"),
    pointwise.Sin: _function("sin"),
    pointwise.Cos: _function("cos"),
    pointwise.Tan: _function("tan"),
    pointwise.Erf: _function("erf"),
    pointwise.Sigmoid: lambda op, a, t: _sigmoid(a[0], t),
    pointwise.Tanh: _function("tanh"),
    pointwise.Relu: _text("larger({0}, ({t})0)"),
    pointwise.ClippedRelu: _clipped,
    pointwise.LeakyRelu: _leaky,
    pointwise.Elu: _elu,
    pointwise.Softplus: _softplus,
    pointwise.Gelu: _gelu,
    pointwise.GeluTanh: _gelu_tanh,
    pointwise.Silu: lambda op, a, t: f"({a[0]} * {_sigmoid(a[0], t)})",
    pointwise.HardSwish: _text("({0} * smaller(larger({0} * ({t})(1. / 6) + ({t}).5, ({t})0), ({t})1))"),
    pointwise.LogicalNot: _text("!{0}"),
    pointwise.Add: _text("({t})({0} + {1})"),
    pointwise.Sub: _text("({t})({0} - {1})"),
    pointwise.Mul: _text("({t})({0} * {1})"),
    pointwise.Div: _text("({0} / {1})"),
    pointwise.Pow: _pow,
    pointwise.Minimum: _text("smaller({0}, {1})"),
    pointwise.Maximum: _text("larger({0}, {1})"),
    pointwise.Eq: _text("({0} == {1})"),
    pointwise.Ne: _text("({0} != {1})"),
    pointwise.Lt: _text("({0} < {1})"),
    pointwise.Le: _text("({0} <= {1})"),
    pointwise.Gt: _text("({0} > {1})"),
    pointwise.Ge: _text("({0} >= {1})"),
    pointwise.LogicalAnd: _text("({0} && {1})"),
    pointwise.LogicalOr: _text("({0} || {1})"),
    pointwise.Where: _text("({0} ? {1} : {2})"),
    pointwise.ReluGrad: _text("({0} > ({t})0 ? {1} : ({t})0)"),
    pointwise.ClippedReluGrad: _clipped_grad,
    pointwise.SigmoidGrad: _text("({1} * {0} * (({t})1 - {0}))"),
    pointwise.TanhGrad: _text("({1} * (({t})1 - {0} * {0}))"),
    pointwise.GeluGrad: _gelu_grad,
    pointwise.SiluGrad: _silu_grad,
    activation.Mish: _mish,
    activation.MishGrad: _mish_grad,
    criterion.BinaryCrossEntropy: _binary_cross_entropy,
    criterion.BinaryCrossEntropyGrad: _binary_cross_entropy_grad,
    Cast: _text("{0}"),
    **elementary.EXPRESSIONS,
    FullLike: lambda op, a, t: literal(op.value, t),
    DropoutGrad: _dropout_grad,
    Quantize: _quantize,
    Dequantize: _text("((f32){0} * {1})"),
}


# For half-type results, float32's last bits are rounded away: exponentials and quotients by the special function
# units, with relative errors up to 1e-5, take a third of the instructions.


def _short_sigmoid(x: str) -> str:
    return f"__fdividef(1.0f, 1.0f + __expf(-{x}))"


def _short_silu_grad(op: Any, a: Sequence[str], t: str) -> str:
    (x, g), s = a, _short_sigmoid(a[0])
    return f"({g} * ({s} * (1.0f + {x} * (1.0f - {s}))))"


def _short_gelu_tanh(op: Any, a: Sequence[str], t: str) -> str:
    """(1 + tanh u) / 2 is the sigmoid of 2u."""
    return f"({a[0]} * {_short_sigmoid(_twice_inner(a[0]))})"


def _short_gelu_grad(op: Any, a: Sequence[str], t: str) -> str:
    if op.approximate == "none":
        return _gelu_grad(op, a, t)
    (x, g), s = a, _short_sigmoid(_twice_inner(a[0]))
    slope = f"(1.59576912160573071176f * (1.0f + 0.134145f * {x} * {x}))"
    return f"({g} * ({s} + {x} * ({s} * (1.0f - {s})) * {slope}))"


def _twice_inner(x: str) -> str:
    return f"(1.59576912160573071176f * ({x} + 0.044715f * {x} * {x} * {x}))"


#: Expressions for results in half types.
SHORT_EXPRESSIONS: dict[type[Op], Expression] = {
    pointwise.Sigmoid: lambda op, a, t: _short_sigmoid(a[0]),
    pointwise.Silu: lambda op, a, t: f"({a[0]} * {_short_sigmoid(a[0])})",
    pointwise.SiluGrad: _short_silu_grad,
    pointwise.GeluTanh: _short_gelu_tanh,
    pointwise.GeluGrad: _short_gelu_grad,
}


def expression_of(op: Op) -> Expression | None:
    """The C expression of an op; None for ops that are not elementwise, or have none."""
    found = EXPRESSIONS.get(type(op))
    if found is None and isinstance(op, CustomOp) and op.elementwise:
        names = [f"a{i}" for i in range(op.arity or 1)]
        return None if op.expression(names, "f32") is None else _own_expression
    return found


def _own_expression(op: Any, a: Sequence[str], t: str) -> str:
    return f"({t})({op.expression(a, t)})"


# ------------------------------------------------------------------------------------------------------ ops


def result_layout(shape: Shape, specs: Sequence[Spec]) -> Layout:
    """The layout of an elementwise op's result: that of the first dense operand of its shape."""
    for spec in specs:
        if spec.shape == shape and spec.layout is not None and _dense(spec):
            return spec.layout
    return contiguous(shape)


def _dense(spec: Spec) -> bool:
    return spec.tag is not None and not spec.physical.is_blocked


def align_operands(specs: Sequence[Spec], shape: Shape, layout: Layout) -> tuple[Spec, ...]:
    """Operand specs for the kernel: full-size dense ones are requested in the result's layout.

    A tensor in another dense order is worth a tiled reorder by the caller, since a strided read would touch a memory
    line per element, unless its innermost axis is the result's, in whole accesses. Broadcast operands are read in
    place, unless that would be element by element: reordering a small one costs little, and an unchanging one is
    reordered once.
    """
    wanted = []
    for spec in specs:
        if spec.physical.is_blocked:
            wanted.append(Spec(spec.shape, spec.dtype, contiguous(spec.shape)))
        elif spec.shape == shape and (spec.layout is None or _dense(spec)) and not _has_runs(spec, layout):
            wanted.append(Spec(shape, spec.dtype, layout))
        else:
            wanted.append(_along(spec.fixed, shape, layout))
    return tuple(wanted)


def _along(spec: Spec, shape: Shape, layout: Layout) -> Spec:
    """A broadcast operand in the result's order of axes, if its contiguous elements are not the result's, and if a
    launch for that pays even where the operand changes between runs."""
    shift = len(shape) - spec.ndim
    order = [a - shift for a in memory_order(shape, layout.strides) if a >= shift and shape[a] > 1]
    apart = bool(order) and spec.shape[order[-1]] > 1 and spec.physical.strides[order[-1]] != 1
    if not apart or spec.tag is None or prod(shape) < max(_MUCH, 2 * spec.numel):
        return spec
    rest = [a for a in range(spec.ndim) if a not in order]
    return full(spec, dense_layout(spec.shape, [*rest, *order]))


def _has_runs(spec: Spec, layout: Layout) -> bool:
    """Whether a tensor in another order than the layout has the same contiguous runs, in accesses of 16 bytes."""
    if spec.layout is None or spec.same_memory(full(spec, layout)) or spec.numel == 0:
        return False
    operands = [KernelOperand(spec.dtype, s, source()) for s in (spec.layout.strides, layout.strides)]
    order = memory_order(spec.shape, layout.strides)
    space = collapse(spec.shape, [o.strides for o in operands], order)
    is_run = all(row[-1] == 1 for row in space.strides)
    return is_run and access_width(space, operands) * spec.dtype.itemsize == VECTOR


def full(spec: Spec, layout: Layout) -> Spec:
    """`spec` in a layout."""
    return Spec(spec.shape, spec.dtype, layout)


def op_value(op: Op, names: Sequence[str], types: Sequence[str], name: str, out: DType) -> Statement:
    """The statement for one op on named arguments of C types."""
    rule = expression_of(op)
    if rule is None:
        raise NoKernel(f"cuda has no expression for {op.name}")
    if out in (float16, bfloat16):
        rule = SHORT_EXPRESSIONS.get(type(op), rule)
    arithmetic = types[-1] if isinstance(op, pointwise.Where) else types[0]
    kind = "bool" if out == bool_ else "f32" if isinstance(op, Dequantize) else arithmetic
    if isinstance(op, Cast):  # rounded or wrapped around as in memory
        exact = f"narrow<{c_type(out)}>({_whole(names[0], types[0], out)})"
        return Statement(name, wide_type(out), f"widen({exact})")
    return Statement(name, kind, rule(op, names, arithmetic))


def chain_values(
    steps: Sequence[Op], running: Spec, value: Statement, extras: Sequence[Spec], first: int
) -> list[Statement]:
    """The statements of elementwise ops one after the other on a running value.

    value, running: the value that the first step takes, and its spec. extras: the steps' further operands in order,
    called a`first`, a`first + 1`, … in the body.
    """
    made: list[Statement] = []
    taken = 0
    for number, step in enumerate(steps):
        count = (step.arity or 1) - 1
        own = list(extras[taken : taken + count])
        names = [f"a{first + taken + i}" for i in range(count)]
        types = [wide_type(s.dtype) for s in own]
        names.insert(step.chained, value.name)
        types.insert(step.chained, value.type)
        own.insert(step.chained, running)
        running = step.infer(*own)[0]
        value = op_value(step, names, types, f"s{number}", running.dtype)
        made.append(value)
        taken += count
    return made


def _whole(name: str, type: str, out: DType) -> str:
    """Float to integer truncates through 64 bits; everything else is C's conversion."""
    return f"(i64){name}" if type in ("f32", "f64") and out.kind in "iu" else name


@kernels(*EXPRESSIONS, source="kernel")
def elementwise_op(op: Op, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """One elementwise op."""
    (out,) = op.infer(*specs)
    if isinstance(op, Cast) and specs[0].layout is None and out.dtype in (float16, bfloat16):
        # Weights whose layout is still open: half-type convolutions read them channels last, and their gradient and
        # update will have that layout, too.
        specs = (full(specs[0], channels_last(out.shape)),)
    types = [wide_type(s.dtype) for s in specs]
    value = op_value(op, [f"a{i}" for i in range(len(specs))], types, "y", out.dtype)
    # Every element is read before it is written: a selection between new and old state may overwrite the old one.
    aliases = {0: 2} if isinstance(op, pointwise.Where) else dict(op.inplace)
    return chain_plan(specs, out, [value], "y", device, op.name, aliases)


def chain_plan(
    specs: Sequence[Spec],
    out: Spec,
    body: Sequence[Statement],
    result: str,
    device: Device,
    label: str,
    aliases: dict[int, int],
) -> Plan:
    """The plan of a body over broadcast inputs with one output."""
    layout = result_layout(out.shape, specs)
    inputs = align_operands(specs, out.shape, layout)
    operands = [
        KernelOperand(s.dtype, broadcast_strides(s, out.shape), source(i)) for i, s in enumerate(inputs)
    ]
    loop = Loop(inputs, operands, body, result, label)
    return loop.plan(full(out, layout), device, aliases)
