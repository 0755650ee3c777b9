"""Elementwise ops. Tensors keep their layout: all elements are processed in memory order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from lamina import onednn
from lamina.backends import Call, NoKernel, Plan, Run
from lamina.backends.cpu.guarded import guarded
from lamina.backends.cpu.library import (
    at_input,
    at_output,
    attempt,
    computes,
    data_type,
    desc,
    flat,
    is_padded,
    kernels,
    memory_order,
    ranked,
    single,
)
from lamina.backends.cpu.post import (
    BINARY,
    ELTWISE,
    Post,
    aligned,
    is_per_channel,
    keeps_zero,
    loses_infinity,
)
from lamina.backends.reference import Numpy, array_at
from lamina.onednn import ARG, Eltwise, MemoryDesc, PrimitiveDesc
from lamina.ops.core import Op, inferred
from lamina.ops.primitives.pointwise import (
    ClippedRelu,
    ClippedReluGrad,
    Exp,
    GeluGrad,
    LeakyRelu,
    Relu,
    ReluGrad,
    SigmoidGrad,
    SiluGrad,
    TanhGrad,
)
from lamina.replay.guards import finite, no_nan
from lamina.runtime import Device
from lamina.spec import Policy, Spec, float32

#: Floats in the widest vector; the row length from which a partial last vector costs nothing; and the number of
#: elements from which loops, which are faster on shorter rows, are worth compiling.
_VECTOR, _LONG_ROW, _MANY = 16, 128, 1 << 16

#: Fewer elements NumPy takes the larger of x and 0 of while the guard of oneDNN's relu looks for NaN.
LEAST = 8192

_FROM_OUTPUT = {
    ReluGrad: "relu_use_dst_for_bwd",
    ClippedReluGrad: "clip_v2_use_dst_for_bwd",
    SigmoidGrad: "logistic_use_dst_for_bwd",
    TanhGrad: "tanh_use_dst_for_bwd",
}


@kernels(*(op for op in ELTWISE if op not in (Relu, ClippedRelu)), source="onednn")
def unary(op: Op, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """y = f(x)."""
    (x,) = specs
    if isinstance(op, LeakyRelu) and op.slope == 0:
        return relu(op, specs, device, policy)
    computes(x)
    (step,) = ELTWISE[type(op)](op)
    return _by_step(op, step, _kept(x, keeps_zero((step,))))


def _by_step(op: Op, step: Eltwise, x: Spec) -> Plan:
    """The plan of one function."""
    over = _run(x)
    made = attempt(
        lambda: onednn.eltwise_forward(
            step.function, over, over, alpha=step.alpha, beta=step.beta, prop="inference"
        )
    )
    if made is None:
        raise NoKernel(f"cpu: oneDNN has no kernel for {op} on {x}")
    operands = {ARG.SRC: (over, at_input(0)), ARG.DST: (over, at_output())}
    return single(made, [x], [x], operands, aliases={0: 0})


@kernels(Relu, ClippedRelu, source="onednn")
def relu(op: Relu | ClippedRelu | LeakyRelu, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """y = max(x, 0), perhaps clipped."""
    computes(specs[0])
    x = _kept(specs[0], zero_kept=True)
    if x.numel < LEAST and x.dtype == float32 and not x.physical.is_blocked:
        return Plan((x,), (x,), SmallRelu(op, (x,), (x,)), aliases={0: 0}, label=f"numpy {op.name}")
    step = Eltwise("clip_v2", 0.0, op.hi) if isinstance(op, ClippedRelu) else Eltwise("relu")
    return guarded(_by_step(op, step, x), op, no_nan)


@dataclass(frozen=True, eq=False)
class SmallRelu(Numpy):
    """Relu of a small array, perhaps clipped: NumPy writes the result in place, and never warns."""

    def __call__(self, call: Call) -> Run:
        """Bind to addresses."""
        x, y = array_at(call.inputs[0], self.inputs[0]), array_at(call.outputs[0], self.outputs[0])
        zero, upper = np.zeros((), x.dtype), np.asarray(getattr(self.op, "hi", np.inf), x.dtype)

        def run() -> None:
            np.maximum(x, zero, out=y)

        def clipped() -> None:
            np.minimum(np.maximum(x, zero, out=y), upper, out=y)

        return clipped if isinstance(self.op, ClippedRelu) else run


@kernels(Exp, source="onednn")
def exp(op: Exp, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """y = e to the power of x."""
    computes(specs[0])
    return guarded(_by_step(op, Eltwise("exp"), _kept(specs[0], zero_kept=False)), op, no_nan)


@kernels(*_FROM_OUTPUT, source="onednn")
def from_output(op: Op, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """The gradient of an activation from its output y and the gradient g of y."""
    upper = op.hi if isinstance(op, ClippedReluGrad) else 0.0
    plan = _gradient(op, Eltwise(_FROM_OUTPUT[type(op)], 0.0, upper), ARG.DST, specs)
    masks = isinstance(op, ReluGrad | ClippedReluGrad)
    return guarded(plan, op, finite, first=1) if masks else plan


@kernels(GeluGrad, source="onednn")
def gelu_grad(op: GeluGrad, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """The gradient of gelu from its input and the gradient of its output."""
    step = Eltwise("gelu_erf" if op.approximate == "none" else "gelu_tanh")
    return _gradient(op, step, ARG.SRC, specs)


@kernels(SiluGrad, source="onednn")
def silu_grad(op: SiluGrad, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """The gradient of silu from its input and the gradient of its output."""
    return _gradient(op, Eltwise("swish", 1.0), ARG.SRC, specs)


def _gradient(op: Op, step: Eltwise, data: int, specs: Sequence[Spec]) -> Plan:
    """The gradient of a function; data: whether the first operand is its input (SRC) or its output (DST)."""
    y, g = specs
    computes(y, g)
    if y.shape != g.shape:
        raise NoKernel(f"cpu: {op} with broadcasting ({y} and {g})")
    y = g = _kept(g if g.layout is not None else y, zero_kept=True)
    over, function, alpha, beta = _run(y), step.function, step.alpha, step.beta

    def create() -> PrimitiveDesc:
        hint = onednn.eltwise_forward(function, over, over, alpha=alpha, beta=beta)
        return onednn.eltwise_backward(function, over, over, over, alpha=alpha, beta=beta, hint=hint)

    made = attempt(create)
    if made is None:
        raise NoKernel(f"cpu: oneDNN has no kernel for {op} on {y}")
    operands = {
        data: (over, at_input(0)),
        ARG.DIFF_DST: (over, at_input(1)),
        ARG.DIFF_SRC: (over, at_output()),
    }
    return single(made, [y, g], [y], operands, aliases={0: 1})


@kernels(*BINARY, source="onednn")
def binary(op: Op, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """y = a f b, where b has a's shape, one element, or one element per channel."""
    return joined(op, specs, Post(), ())


def joined(op: Op, specs: Sequence[Spec], post: Post, extra: Sequence[Spec]) -> Plan:
    """The same with fused steps, whose operands are the inputs after a and b; row-major where the steps need it.

    Made once per problem: operands are row-major if all layouts are open. Raises NoKernel for steps that turn -inf
    into NaN: after a sum, loops are as fast.
    """
    if loses_infinity(post.steps):
        raise NoKernel(f"cpu: oneDNN makes NaN of -inf in steps behind {op}")
    open_ = all(s.layout is None for s in specs)
    given = tuple([s.fixed for s in specs] if open_ else specs)
    others = tuple([s.open for s in extra])
    try:
        return _joined(op, given, post, others)
    except NoKernel:
        if not post.steps or open_:
            raise
        return _joined(op, tuple([s.open.fixed for s in specs]), post, others)


@lru_cache(maxsize=1024)
def _joined(op: Op, specs: tuple[Spec, ...], post: Post, extra: tuple[Spec, ...]) -> Plan:
    a, b = specs
    computes(a, b)
    (y,) = inferred(op, a.open, b.open)
    if a.shape != y.shape:
        raise NoKernel(f"cpu: {op} broadcasts its first operand ({a} and {b})")
    function = BINARY[type(op)]
    if b.shape == y.shape:
        lying = _kept(a if a.layout is not None else b, zero_kept=function != "div" and not post.steps)
        over = desc(lying) if post.steps else _run(lying)
        return _binary(op, function, (lying, lying), lying, (over, over, over), post, extra)
    a = _kept(a, zero_kept=function in ("mul", "div") and not post.steps)
    b = b.open.fixed
    if b.numel == 1 or is_per_channel(b, y):
        one, over = MemoryDesc(ranked(aligned(b.shape, max(a.ndim, 1))) or (1,), data_type(b.dtype)), desc(a)
        return _binary(op, function, (a, b), a, (over, one, over), post, extra)
    rows = None if post.steps else _by_rows(a, b)
    if rows is None:
        raise NoKernel(f"cpu: {op} broadcasts {b} to {y}")
    return _binary(op, function, (a, b), a, (rows[0], rows[1], rows[0]), post, extra)


def _by_rows(a: Spec, b: Spec) -> tuple[MemoryDesc, MemoryDesc] | None:
    """a as [before, middle, behind] and b as [1, middle, 1], where b varies along adjacent axes of a.

    None where it varies along others, a is blocked, or there are many short rows of odd length: loops are faster
    then.
    """
    shape, order = aligned(b.shape, a.ndim), memory_order(a)
    varies = [i for i, axis in enumerate(order) if shape[axis] > 1]
    first, last = varies[0], varies[-1] + 1
    axes = order[first:last]
    if a.physical.is_blocked or any(shape[x] != a.shape[x] for x in axes) or list(axes) != sorted(axes):
        return None
    before, middle, behind = (prod(a.shape[x] for x in part) for part in (order[:first], axes, order[last:]))
    if 1 < behind < _LONG_ROW and behind % _VECTOR and a.numel >= _MANY:
        return None
    kind = data_type(a.dtype)
    return MemoryDesc((before, middle, behind), kind), MemoryDesc((1, middle, 1), kind)


def _binary(
    op: Op,
    function: str,
    inputs: Sequence[Spec],
    y: Spec,
    descs: tuple[MemoryDesc, MemoryDesc, MemoryDesc],
    post: Post,
    extra: Sequence[Spec],
) -> Plan:
    attributes = post.attributes(y, y.tag or "any", extra)
    made = attempt(lambda: onednn.binary(function, *descs, attributes=attributes))
    if made is None:
        raise NoKernel(f"cpu: oneDNN has no kernel for {op} on {inputs[0]} and {inputs[1]}")
    operands = {
        ARG.SRC_0: (descs[0], at_input(0)),
        ARG.SRC_1: (descs[1], at_input(1)),
        ARG.DST: (descs[2], at_output()),
    }
    every = (*inputs, *post.specs(y, extra))
    return single(made, every, [y], operands | post.operands(made, first=2), aliases={0: 0})


def _kept(spec: Spec, zero_kept: bool) -> Spec:
    """The spec in its own layout; row-major where that is open, has gaps, or has padding that the function would make
    nonzero."""
    if spec.layout is None or spec.tag is None or (is_padded(spec) and not zero_kept):
        return spec.open.fixed
    return spec


def _run(spec: Spec) -> MemoryDesc:
    found = flat(spec)
    assert found is not None  # `_kept` gives dense layouts
    return found
