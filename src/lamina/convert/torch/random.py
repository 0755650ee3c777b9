"""Random functions: they draw from Lamina's generator, so that a seed gives the same numbers on every device."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from lamina import ops
from lamina.convert.torch.node import TorchCall, aliases, converts, is_operand
from lamina.convert.torch.targets import name_of
from lamina.ops.primitives.generator import drawn

#: The functions that draw uniform numbers, and the comparisons of their results.
_DRAWING = ("rand", "rand_like")
_ORDERS = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}
KINDS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


class BoundedDraws(TorchFunctionMode):
    """Within the block comparisons of torch.rand's numbers with a bound that decides them in advance are
    constants: a layer that is skipped with probability 0 (`if torch.rand([]) < 0.0`) is in the graph.
    """

    def __init__(self) -> None:
        super().__init__()
        # Drawn tensors and their versions then: unwritten as long as these agree.
        self._drawn: list[tuple[torch.Tensor, int]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The function, or a constant."""
        name = getattr(func, "__name__", "").strip("_")
        if (
            name in _ORDERS
            and len(args) == 2
            and any(args[0] is x and x._version == drawn for x, drawn in self._drawn)
        ):
            always = _in_order(_ORDERS[name], args[1])
            if always is not None:
                return torch.tensor(always).expand(args[0].shape)
        found = func(*args, **(kwargs or {}))
        if name in _DRAWING:
            self._drawn.append((found, found._version))
        return found


def _in_order(order: Any, bound: Any) -> bool | None:
    """The result of comparing any number of [0, 1) with a bound; None if it depends on the number."""
    if not isinstance(bound, int | float):
        return None
    least, most = order(0.0, bound), order(float(np.nextafter(1.0, 0.0)), bound)
    return bool(least) if least == most else None


@converts(*KINDS, "feature_dropout")
@aliases
def dropout(call: TorchCall) -> Any:
    """Elements, or channels, dropped in training; in inference the tensor itself."""
    p = call.get("p", 0.5)
    drops = "alpha" not in call.name  # PyTorch's defaults
    training = call.get("training", call.get("train", drops))
    if not training or p == 0:
        return call.cells["input"]
    x = call["input"]
    name = {"feature_dropout": f"dropout{max(1, x.ndim - 2)}d"}.get(call.name, call.name)
    return drawn(lambda state: getattr(ops, name)(x, float(p), True, state=state), None, x)


for _name in KINDS:
    converts(f"{_name}_")(dropout)


@converts("native_dropout")
def native_dropout(call: TorchCall) -> Any:
    """The remaining elements, and their mask."""
    x, p, training = call["input"], float(call["p"]), call.get("train", True)
    if not training:
        return x, ops.ones_like(x, dtype="bool")
    stays = ops.rand_like(x, dtype="float32") >= p
    return ops.where(stays, x, 0.0) * (0.0 if p == 1 else 1 / (1 - p)), stays


@converts("bernoulli", "bernoulli_")
def bernoulli(call: TorchCall) -> Any:
    """1 with the probabilities of a tensor, or with one probability."""
    x, p = call["input"], call.get("p")
    if name_of(call.node) == "bernoulli":
        return ops.bernoulli(x) if p is None else ops.bernoulli(x, float(p))
    chance = p if is_operand(p) else ops.full_like(x, 0.5 if p is None else float(p), dtype="float32")
    return ops.cast(ops.bernoulli(chance), x.dtype)


@converts("uniform_")
def uniform(call: TorchCall) -> Any:
    """Uniform between two numbers."""
    low, high = call.get("from", 0.0), call.get("to", 1.0)
    return ops.rand_like(call["input"]) * (high - low) + low


@converts("exponential_")
def exponential(call: TorchCall) -> Any:
    """Exponentially distributed: never 0, because gumbel_softmax takes the logarithm."""
    u = ops.rand_like(call["input"], dtype="float32")
    drawn = ops.maximum(-ops.log1p(-u), np.finfo(np.float32).tiny) / call.get("lambd", 1.0)
    return ops.cast(drawn, call["input"].dtype)


@converts("normal_")
def normal(call: TorchCall) -> Any:
    """Normally distributed."""
    return ops.randn_like(call["input"]) * call.get("std", 1.0) + call.get("mean", 0.0)


@converts("rrelu", "rrelu_")
def rrelu(call: TorchCall) -> Any:
    """Below zero a slope between two bounds: drawn for each element in training, the middle in inference."""
    x, low, high = call["input"], call.get("lower", 1 / 8), call.get("upper", 1 / 3)
    if not call.get("training", False):
        return ops.leaky_relu(x, (low + high) / 2)
    return ops.where(ops.ge(x, 0), x, x * (ops.rand_like(x) * (high - low) + low))


@converts("rand_like", "randn_like")
def like(call: TorchCall) -> Any:
    """Of the shape of another tensor."""
    x = call["input"]
    return getattr(ops, call.name)(x, dtype=call.dtype(x.dtype))


@converts("rand", "randn")
def of_shape(call: TorchCall) -> Any:
    """Of a shape, which may be a number."""
    size = call["size"]
    shape = size if isinstance(size, (tuple, list)) else (size,)
    return getattr(ops, call.name)(*shape, dtype=call.dtype("float32"), device=call.device)
