"""Functions with a gradient of their own (`torch.autograd.Function`) whose Python code is run, forward and backward.

They may be given functions (an integrand, a module): what these compute is run by the same ops as the network around.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.function import _SingleLevelFunction

from lamina import ops
from lamina.convert.torch.cells import Cell
from lamina.convert.torch.node import TorchConversionError
from lamina.convert.torch.stand_ins import StandIn, stand_in
from lamina.ops.core import bind
from lamina.ops.primitives.marker import CustomGradient

#: Runs a function's backward on its context and the gradients of its results: one or None for each argument.
RunBackward = Callable[[Callable[..., Any], Sequence[Any]], list[Any]]


class FunctionContext:
    """What `forward` keeps for `backward`: PyTorch's `ctx`, with any further attributes."""

    def __init__(self, function: Any, needs_input_grad: tuple[bool, ...]) -> None:
        self._function, self.needs_input_grad = function, needs_input_grad
        self.saved_tensors: tuple[Any, ...] = ()
        self.constant: tuple[Any, ...] = ()
        self.materialize = True

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors."""
        self.saved_tensors = tensors

    save_for_forward = save_for_backward

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """These results have no gradient."""
        self.constant = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Whether missing gradients are zeros (True), or None."""
        self.materialize = value

    def mark_dirty(self, *tensors: Any) -> None:
        """Raises TorchConversionError."""
        raise TorchConversionError(
            f"the autograd function {self._function.__name__} writes into its arguments"
        )


def applied(function: Any, args: Sequence[Any], stand_ins: Callable[[Any], StandIn], run: RunBackward) -> Any:
    """The results of a function's forward for arguments among which tensors are stood for, with its gradient.

    stand_ins: what stands for a tensor.
    """
    places = [i for i, x in enumerate(args) if isinstance(x, torch.Tensor) and x.is_floating_point()]
    ctx = FunctionContext(function, tuple(isinstance(x, torch.Tensor) and x.requires_grad for x in args))
    with torch.no_grad():
        if function.setup_context is _SingleLevelFunction.setup_context:
            found = function.forward(ctx, *args)
        else:
            found = function.forward(*args)
            function.setup_context(ctx, tuple(args), found)
    several = found if isinstance(found, tuple) else (found,)
    at = [i for i, y in enumerate(several) if isinstance(y, torch.Tensor)]
    outputs = [stand_ins(several[i]).cell.read() for i in at]
    saved = list(ctx.saved_tensors)
    # Parameters stay themselves, of which backward may ask for gradients.
    floats = [i for i, x in enumerate(saved) if isinstance(x, StandIn) and x.is_floating_point()]

    def backward(kept: Sequence[Any], grads: Sequence[Any]) -> Sequence[Any]:
        again = list(saved)
        for i, value in zip(floats, kept, strict=True):
            again[i] = stand_in(Cell(ops.stop_gradient(value)), saved[i].meta)
        ctx.saved_tensors = tuple(again)
        arriving = [ops.zeros_like(y) if g is None and ctx.materialize else g
                    for y, g in zip(outputs, grads, strict=True)]  # fmt: skip
        # Constants: what backward itself differentiates is not to reach what they were computed of.
        made = iter([None if g is None else ops.stop_gradient(g) for g in arriving])
        every = [next(made) if i in at else None for i in range(len(several))]
        gradients = run(function.backward, [ctx, *every])
        return _once(function, [gradients[i] for i in places])

    given = [stand_ins(args[i]).cell.read() for i in places]
    kept = [saved[i].cell.read() for i in floats]
    marked = bind(CustomGradient(backward, len(places), len(outputs)), *given, *outputs, *kept)
    made = list(several)
    for i, y in zip(at, marked, strict=True):
        is_constant = any(several[i] is x for x in ctx.constant)
        made[i] = stand_in(Cell(ops.stop_gradient(y) if is_constant else y), stand_ins(several[i]).meta)
    return tuple(made) if isinstance(found, tuple) else made[0]


def _once(function: Any, gradients: Sequence[Any]) -> list[Any]:
    """Gradients that cannot be differentiated again."""

    def refuse(kept: Sequence[Any], grads: Sequence[Any]) -> Sequence[Any]:
        raise TypeError(
            f"the gradient of the autograd function {function.__name__}, whose code is run, is differentiated only "
            "once"
        )

    there = [g for g in gradients if g is not None]
    made = iter(bind(CustomGradient(refuse, 0, len(there)), *there) if there else ())
    return [None if g is None else next(made) for g in gradients]
