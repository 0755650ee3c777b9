"""Elementwise ops whose names differ from PyTorch's, and those with attributes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from lamina.convert.torch.functions.step import TorchStep, torch_dtype, writes
from lamina.ops.primitives import elementary
from lamina.ops.primitives import pointwise as p
from lamina.ops.primitives.cast import Cast
from lamina.ops.primitives.check_index import CheckIndex
from lamina.ops.primitives.full_like import FullLike
from lamina.ops.primitives.marker import Alias, Clone, StopGradient
from lamina.ops.primitives.shape import After

#: Python's operators, which take numbers on either side.
OPERATORS: dict[Any, Callable[[Any, Any], Any]] = {
    p.Add: operator.add, p.Sub: operator.sub, p.Mul: operator.mul, p.Div: operator.truediv, p.Pow: operator.pow,
    p.Eq: operator.eq, p.Ne: operator.ne, p.Lt: operator.lt, p.Le: operator.le, p.Gt: operator.gt, p.Ge: operator.ge,
}  # fmt: skip


@writes(*OPERATORS)
def by_operator(step: TorchStep, a: Any, b: Any) -> Any:
    """a + b and its variants."""
    return OPERATORS[type(step.nodes[0].op)](a, b)


@writes(After, Alias, CheckIndex, Clone, p.Identity)
def passed_on(step: TorchStep, x: Any, *others: Any) -> Any:
    """The first operand unchanged."""
    return x


@writes(StopGradient)
def stop_gradient(step: TorchStep, x: Any) -> Any:
    """x detached."""
    return x.detach()


@writes(p.Maximum, p.Minimum)
def extremum(step: TorchStep, a: Any, b: Any) -> Any:
    """torch.maximum splits the gradient of equal elements; a share of all or nothing is a selection."""
    largest = isinstance(step.op, p.Maximum)
    if step.op.share == 0.5:
        return (torch.maximum if largest else torch.minimum)(a, b)
    if step.op.share not in (0, 1):
        raise step.error("PyTorch gives equal elements half of the gradient each, or one of them all")
    first = (a >= b if step.op.share else a > b) if largest else (a <= b if step.op.share else a < b)
    return torch.where(first | torch.isnan(a), a, b) if step.dtype.is_float else torch.where(first, a, b)


@writes(p.ClippedRelu)
def clipped_relu(step: TorchStep, x: Any) -> Any:
    """x between 0 and hi."""
    return functional.hardtanh(x, 0.0, step.op.hi)


@writes(p.Elu)
def elu(step: TorchStep, x: Any) -> Any:
    """Elu with its alpha."""
    return functional.elu(x, step.op.alpha)


@writes(p.LeakyRelu)
def leaky_relu(step: TorchStep, x: Any) -> Any:
    """Leaky relu with its slope."""
    return functional.leaky_relu(x, step.op.slope)


@writes(p.HardSwish)
def hard_swish(step: TorchStep, x: Any) -> Any:
    """Hard swish, under PyTorch's spelling."""
    return functional.hardswish(x)


@writes(p.GeluTanh)
def gelu_tanh(step: TorchStep, x: Any) -> Any:
    """The tanh form of gelu."""
    return functional.gelu(x, approximate="tanh")


@writes(Cast)
def cast(step: TorchStep, x: Any) -> Any:
    """x in another type."""
    return x.to(torch_dtype(step.op.dtype))


@writes(FullLike)
def full_like(step: TorchStep, x: Any) -> Any:
    """The number in x's shape."""
    return torch.full_like(x, step.op.value)


@writes(elementary.UnaryFunction)
def unary(step: TorchStep, x: Any) -> Any:
    """The function of this name of torch."""
    return getattr(torch, step.op.function)(x)


@writes(elementary.Polygamma)
def polygamma(step: TorchStep, x: Any) -> Any:
    """The n-th derivative of digamma."""
    return torch.polygamma(step.op.n, x)


#: Binary functions that torch has under another name or with more arguments.
_OF_TWO: dict[str, Callable[[Any, Any], Any]] = {
    "trunc_divide": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "floor_divide": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "whole_power": torch.pow,
}
#: Divisions: an integer divided by 0 is 0, which PyTorch refuses.
_DIVIDE = ("fmod", "remainder", "floor_divide", "trunc_divide")


@writes(elementary.BinaryFunction)
def binary(step: TorchStep, a: Any, b: Any) -> Any:
    """The function of this name of torch."""
    name = step.op.function
    function = _OF_TWO.get(name) or getattr(torch, name)
    if name not in _DIVIDE or step.dtype.is_float:
        return function(a, b)
    return torch.where(b == 0, 0, function(a, torch.where(b == 0, 1, b))).to(torch_dtype(step.dtype))
