"""Gradients that a network asks PyTorch's autograd for within `forward`: forces as the gradient of an energy, the
steps of an inner optimizer, residuals of differential equations.

The exporter does not record `torch.autograd.grad`: `lamina::gradients` replaces it while a network's graph is made.
Lamina differentiates its own record of the network there, so that the gradients can be differentiated in turn.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.overrides import TorchFunctionMode

from lamina import ops
from lamina.convert.torch.cells import Cell, View
from lamina.convert.torch.node import TorchCall, TorchConversionError, converts, defined
from lamina.convert.torch.targets import is_view, name_of
from lamina.graph.ir.autodiff import arriving_gradients
from lamina.graph.ir.graph import Value
from lamina.graph.transforms.arguments import variable
from lamina.ops.core import recorder


class AskedGradientError(TorchConversionError):
    """A network asks PyTorch's autograd for gradients in a form that no graph holds."""


class AskedGradients(TorchFunctionMode):
    """Within the block `torch.autograd.grad` is recorded as a call of `lamina::gradients`."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The function, or its replacement. Raises AskedGradientError for `backward()`."""
        kwargs = kwargs or {}
        asks = func in (torch.autograd.grad, torch.Tensor.backward)
        if not asks or torch._C._are_functorch_transforms_active():  # torch.func.grad does so itself
            return func(*args, **kwargs)
        if func is torch.autograd.grad:
            return _grad(**inspect.signature(func).bind(*args, **kwargs).arguments)
        raise AskedGradientError(
            "forward calls backward(), which a graph does not hold: use torch.autograd.grad (or torch.func.grad), "
            "which is converted, take the gradient of the converted network (lamina.grad), or let "
            'torch.compile(module, backend="lamina") run the module in parts'
        )


def _grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[torch.Tensor, ...]:
    """torch.autograd.grad as a call in the graph; zeros in place of None."""
    ys, xs = _several(outputs), _several(inputs)
    given: list[Any] = [None] * len(ys) if grad_outputs is None else _several(grad_outputs)
    unused = bool(allow_unused or materialize_grads)
    if is_grads_batched:
        rows = zip(*(g.unbind(0) for g in given), strict=True)
        found = [torch.ops.lamina.gradients(ys, xs, list(row), create_graph, unused) for row in rows]
        return tuple(torch.stack(each) for each in zip(*found, strict=True))
    return tuple(torch.ops.lamina.gradients(ys, xs, given, create_graph, unused))


def _several(given: Any) -> list[Any]:
    return list(given) if isinstance(given, Iterable) and not isinstance(given, torch.Tensor) else [given]


def _shapes(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    grad_outputs: Sequence[torch.Tensor | None],
    create_graph: bool,
    unused: bool,
) -> list[torch.Tensor]:
    for y, g in zip(outputs, grad_outputs, strict=True):
        if g is None and y.numel() != 1:
            raise AskedGradientError(
                f"forward calls torch.autograd.grad for an output {tuple(y.shape)} without grad_outputs: only a "
                "single number has an incoming gradient of its own, 1"
            )
    return [torch.empty_like(x) for x in inputs]


defined(
    "gradients",
    "(Tensor[] outputs, Tensor[] inputs, Tensor?[] grad_outputs, bool create_graph, bool unused) -> Tensor[]",
    _shapes,
)


def variables_of(nodes: Iterable[Node]) -> frozenset[Node]:
    """The nodes with respect to which a graph asks for gradients."""
    calls = [n for n in nodes if n.op == "call_function" and name_of(n) == "gradients" and _is_own(n)]
    return frozenset(x for n in calls for x in n.args[1])


def _is_own(node: Node) -> bool:
    return str(getattr(node.target, "namespace", "")) == "lamina"


def as_variable(node: Node, found: Any, base: Any) -> Any:
    """The cell of a node with respect to which gradients are asked for: its operand under a new identity, so that
    only what is computed from this tensor counts.

    base: the cell of the node's first argument, of which a view of all elements is the cell itself.
    """
    if found is base and is_view(node):
        return View(found, _renamed)
    if isinstance(found, Cell):
        found.rename(_renamed)
    return found


def _renamed(x: Any) -> Any:
    traced = recorder() is not None or isinstance(x, Value)
    return variable(x, "torch.autograd.grad", "inputs") if traced and x.dtype.is_float else x


@converts("lamina::gradients")
def gradients(call: TorchCall) -> Any:
    """One for each input, of the sum of the outputs, each with its incoming gradient."""
    xs = call["inputs"]
    arriving = [ops.ones_like(y) if g is None else g
                for y, g in zip(call["outputs"], call["grad_outputs"], strict=True)]  # fmt: skip
    found = arriving_gradients(call["outputs"], xs, arriving)
    if None in found and not call["unused"]:
        i = found.index(None)
        raise TorchConversionError(
            f"torch.autograd.grad: no output depends on inputs[{i}], {xs[i].spec}, since it became this tensor: take "
            "the gradient of what is computed from it, or pass allow_unused=True"
        )
    made = [ops.zeros_like(x) if g is None else g for x, g in zip(xs, found, strict=True)]
    return made if call["create_graph"] else [ops.stop_gradient(g) for g in made]
