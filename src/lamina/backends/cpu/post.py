"""Fused steps as oneDNN bias and post-ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lamina.backends import NoKernel
from lamina.backends.cpu.library import Location, at_input, data_type, open_desc, ranked
from lamina.onednn import (
    ARG,
    Attributes,
    Binary,
    Eltwise,
    MemoryDesc,
    PostOp,
    PrimitiveDesc,
    post_op_argument,
)
from lamina.ops.core import Op
from lamina.ops.primitives.activation import Mish
from lamina.ops.primitives.conv import Conv
from lamina.ops.primitives.matmul import Matmul
from lamina.ops.primitives.pointwise import (
    Abs,
    Add,
    ClippedRelu,
    Div,
    Elu,
    Gelu,
    GeluTanh,
    HardSwish,
    LeakyRelu,
    Mul,
    Neg,
    Relu,
    Sigmoid,
    Silu,
    Sqrt,
    Sub,
    Tanh,
)
from lamina.ops.primitives.quantize import QuantizedConv, QuantizedMatmul
from lamina.spec import DType, Spec

#: The most post-ops that oneDNN takes: more give its out_of_memory.
MOST = 32
_LARGEST = float(np.finfo(np.float32).max)
#: max(x, 0) as x * min(max(x * largest, 0), 1): as fast as oneDNN's own relu, which gives 0 for NaN, as clip does.
#: -inf becomes NaN: visible, not silent (elu with alpha 0 gives 0, but its exponentials take a fifth of MobileNetV2's
#: time). Exact except below 1e-38 and for the sign of zeros.
_POSITIVE = Eltwise("hardswish", _LARGEST, 0.0)
#: -0.0 becomes 0.0.
_ADD_0 = Eltwise("linear", 1.0, 0.0)


def relu(hi: float | None = None) -> tuple[Eltwise, ...]:
    """max(x, 0), or the smaller of that and `hi` > 0; x is kept exactly, NaN stays (-inf: see `_POSITIVE`).

    oneDNN's functions with an upper bound map NaN to the lower bound. Here that is -2, which no other value has at
    that point: times the largest number it is -inf, and then NaN again.
    """
    if hi is None:
        return _POSITIVE, _ADD_0
    return _POSITIVE, Eltwise("clip", -2.0, hi), Eltwise("relu", _LARGEST), _POSITIVE, _ADD_0


#: Elementwise ops as post-ops that keep NaN. oneDNN's exp does not: `pointwise.exp` is guarded.
ELTWISE: dict[type[Op], Callable[..., tuple[Eltwise, ...]]] = {
    Abs: lambda op: (Eltwise("abs"),),
    Neg: lambda op: (Eltwise("linear", -1.0, -0.0),),  # with -0.0 the sign of zeros changes, too
    Sqrt: lambda op: (Eltwise("sqrt"),),
    Sigmoid: lambda op: (Eltwise("logistic"),),
    Tanh: lambda op: (Eltwise("tanh"),),
    Relu: lambda op: relu(),
    ClippedRelu: lambda op: relu(op.hi),
    LeakyRelu: lambda op: (Eltwise("relu", op.slope),) if op.slope else relu(),
    Elu: lambda op: (Eltwise("elu", op.alpha),),
    Gelu: lambda op: (Eltwise("gelu_erf"),),
    GeluTanh: lambda op: (Eltwise("gelu_tanh"),),
    Silu: lambda op: (Eltwise("swish", 1.0),),
    HardSwish: lambda op: (Eltwise("hardswish", 1 / 6, 0.5),),
    Mish: lambda op: (Eltwise("mish"),),
}
#: Functions with f(0) = 0.
_ZERO_AT_ZERO = frozenset(
    {"abs", "sqrt", "tanh", "relu", "elu", "gelu_erf", "gelu_tanh", "swish", "hardswish", "mish"}
)


def loses_infinity(steps: Sequence[Eltwise | tuple[str, int]]) -> bool:
    """Whether one of the steps turns -inf into NaN unnecessarily."""
    return _POSITIVE in steps


def keeps_zero(steps: Sequence[Eltwise]) -> bool:
    """Whether the steps together map 0 to 0, so that they may run over the padding of a blocked layout."""
    value = 0.0
    for step in steps:
        if step.function == "linear":
            value = step.alpha * value + step.beta
        elif step == _POSITIVE:
            value = max(value, 0.0)
        elif step.function == "hardswish":
            value *= min(max(step.alpha * value + step.beta, 0.0), 1.0)
        elif step.function == "relu":
            value = value if value > 0 else step.alpha * value
        elif step.function == "clip":
            value = min(max(value, step.alpha), step.beta)
        elif value or step.function not in _ZERO_AT_ZERO:
            return False
    return value == 0


BINARY: dict[type[Op], str] = {Add: "add", Sub: "sub", Mul: "mul", Div: "div"}


@dataclass(frozen=True)
class Post:
    """The steps after a head: an optional bias, then post-ops.

    bias: the shape (C,) of a bias that the primitive adds itself, () for none.
    steps: an Eltwise, or (function, index among the extra operands).
    """

    bias: tuple[int, ...] = ()
    steps: tuple[Eltwise | tuple[str, int], ...] = ()

    @classmethod
    def of(cls, ops: Sequence[Op], extra: Sequence[Spec], y: Spec, head: Op) -> Post:
        """The steps `ops` on the result y of `head`, with their other operands. Raises NoKernel."""
        products = isinstance(head, Matmul | QuantizedMatmul)  # whose bias runs along its last axis
        takes_bias = isinstance(head, Conv | QuantizedConv) or (products and y.ndim == 2)
        bias: tuple[int, ...] = ()
        steps: list[Eltwise | tuple[str, int]] = []
        taken = 0
        for i, op in enumerate(ops):
            if type(op) in ELTWISE:
                steps += ELTWISE[type(op)](op)
            elif type(op) in BINARY:
                other, taken = extra[taken], taken + 1
                first = i == 0 and isinstance(op, Add) and takes_bias
                if first and is_per_channel(other, y) and other.numel == y.shape[1]:
                    bias = (y.shape[1],)
                elif other.dtype == y.dtype and fits(other, y):
                    steps.append((BINARY[type(op)], taken - 1))
                else:
                    raise NoKernel(f"cpu: cannot fuse {op} with {other} into {y}")
            else:
                raise NoKernel(f"cpu: cannot fuse {op}")
        if len(steps) > MOST:
            raise NoKernel(f"cpu: oneDNN takes {MOST} post-ops, these are {len(steps)}")
        return cls(bias, tuple(steps))

    def bias_desc(self, dtype: DType) -> MemoryDesc | None:
        """The bias for convolutions, None when there is none."""
        return MemoryDesc(self.bias, data_type(dtype)) if self.bias else None

    def attributes(
        self, y: Spec, tag: str, extra: Sequence[Spec], scales: Mapping[int, int] | None = None
    ) -> Attributes | None:
        """The post-ops for an output y in a layout by tag; scales: argument -> mask of its axes with many."""
        if not self.steps and not scales:
            return None
        ops: list[PostOp] = []
        for step in self.steps:
            if isinstance(step, Eltwise):
                ops.append(step)
            else:
                ops.append(Binary(step[0], _operand_desc(extra[step[1]], y, tag)))
        return Attributes(ops, scales=scales)

    def specs(self, y: Spec, extra: Sequence[Spec]) -> list[Spec]:
        """The specs of the extra operands, for an output y in its layout."""
        return [y if spec.shape == y.shape else spec.open.fixed for spec in extra]

    def operands(self, made: PrimitiveDesc, first: int) -> dict[int, tuple[MemoryDesc, Location]]:
        """The execution arguments of bias and post-ops; the extra operands are inputs from `first` on."""
        found: dict[int, tuple[MemoryDesc, Location]] = {}
        if self.bias:
            found[ARG.BIAS] = (made.argument(ARG.BIAS), at_input(first))
        for i, step in enumerate(self.steps):
            if not isinstance(step, Eltwise):
                argument = post_op_argument(i)
                found[argument] = (made.argument(argument), at_input(first + step[1]))
        return found


def aligned(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """The shape with leading 1s."""
    return (1,) * (rank - len(shape)) + shape


def is_per_channel(other: Spec, y: Spec) -> bool:
    """Whether other varies along axis 1 of y at most."""
    shape = aligned(other.shape, y.ndim)
    return len(shape) == y.ndim and all(n == 1 or axis == 1 for axis, n in enumerate(shape))


def fits(other: Spec, y: Spec) -> bool:
    """Whether other has y's shape, or varies along axis 1 only: the cases in which post-ops run at full speed."""
    return other.shape == y.shape or (other.ndim <= y.ndim and is_per_channel(other, y))


def _operand_desc(other: Spec, y: Spec, tag: str) -> MemoryDesc:
    kind = data_type(y.dtype)
    if other.shape == y.shape:
        if tag == "any":
            raise NoKernel("cpu: an operand as large as the output needs a named layout")
        return open_desc(y, tag)
    return MemoryDesc(ranked(aligned(other.shape, y.ndim)), kind)
