"""Hooks on gradients within a converted network: of tensors, of modules (full backward hooks) and of parameters.

The exporter drops them. While a network's graph is made each is represented by a call of a function that returns its
arguments and whose gradient is the result of the hooks for the incoming gradients; PyTorch runs the hooks.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch.autograd.function import _SingleLevelFunction
from torch.fx import Node
from torch.utils.hooks import BackwardHook, RemovableHandle

from lamina.convert.torch.node import TorchConversionError
from lamina.convert.torch.stand_ins import StandIn, is_valueless, running_code
from lamina.convert.torch.targets import name_of

#: From the gradients of results to those of arguments; None where there are none.
Rule: TypeAlias = Callable[[tuple[Any, ...]], Sequence[Any]]
#: Passes tensors through a named identity function with a gradient rule.
Stand: TypeAlias = Callable[[str, Rule, Sequence[torch.Tensor]], Sequence[torch.Tensor]]

#: The name of the call that represents a tensor's hook.
TENSOR = "a tensor's hook"


class _Passing(torch.autograd.Function):
    """(rule, *tensors) -> the tensors, whose gradients are transformed by the rule."""

    @staticmethod
    def forward(ctx: Any, rule: Rule, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.rule = rule
        ctx.set_materialize_grads(False)
        return tuple(x.view_as(x) for x in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return None, *ctx.rule(grads)


def passing(rule: Rule, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The tensors, whose gradients are transformed by the rule; also while graphs are made."""
    made: tuple[torch.Tensor, ...] = super(_SingleLevelFunction, _Passing).apply(rule, *tensors)
    return made


def through(hooks: Sequence[Callable[..., Any]]) -> Rule:
    """The rule of a tensor's hooks: each may replace the gradient."""

    def rule(grads: tuple[Any, ...]) -> tuple[Any, ...]:
        (grad,) = grads
        for hook in hooks if grad is not None else ():
            found = hook(grad)
            grad = grad if found is None else found
        return (grad,)

    return rule


class _ModuleHooks:
    """The hooks of one call of a module: the gradients of its results are kept for the hooks at its inputs."""

    def __init__(self, held: BackwardHook) -> None:
        self.module, self.hooks, self.before = held.module, held.user_hooks, held.user_pre_hooks
        self.inputs = 0
        self.leaves = False
        self.arrived: tuple[Any, ...] | None = None

    def at_results(self, count: int, places: Sequence[int]) -> Rule:
        """The rule after the results, of which there are count, with tensors at these indices."""

        def rule(grads: tuple[Any, ...]) -> list[Any]:
            arrived = _spread(count, places, grads)
            for hook in self.before:
                found = hook(self.module, arrived)
                arrived = arrived if found is None else found
            if self.leaves:
                self.arrived = arrived
            else:
                for hook in self.hooks:
                    hook(self.module, (None,) * self.inputs, arrived)
            return [arrived[i] for i in places]

        return rule

    def at_inputs(self, places: Sequence[int]) -> Rule:
        """The rule before the inputs, with tensors at these indices."""

        def rule(grads: tuple[Any, ...]) -> list[Any]:
            leaving = _spread(self.inputs, places, grads)
            for hook in self.hooks if self.arrived is not None else ():
                found = hook(self.module, leaving, self.arrived)
                leaving = leaving if found is None else found
            self.arrived = None
            return [leaving[i] for i in places]

        return rule


def _spread(count: int, places: Sequence[int], values: Sequence[Any]) -> tuple[Any, ...]:
    found = dict(zip(places, values, strict=True))
    return tuple(found.get(i) for i in range(count))


@contextmanager
def gradient_hooks(stand: Stand) -> Iterator[None]:
    """Within the block hooks that a network's forward pass registers on fake tensors, and those of its
    modules, are put into the graph by `stand`.

    Raises TorchConversionError for hooks that read other tensors of the forward pass, or that only see a part of
    the gradients (`register_backward_hook`).
    """
    module, tensor = torch.nn.Module, torch.Tensor
    before = (
        BackwardHook.setup_input_hook, BackwardHook.setup_output_hook, tensor.register_hook,
        module._maybe_warn_non_full_backward_hook,
    )  # fmt: skip
    BackwardHook.setup_input_hook = functools.partialmethod(_at_inputs, stand, before[0])
    BackwardHook.setup_output_hook = functools.partialmethod(_at_results, stand, before[1])
    tensor.register_hook = functools.partialmethod(_registered, stand, before[2])
    module._maybe_warn_non_full_backward_hook = _refused
    try:
        yield
    finally:
        BackwardHook.setup_input_hook, BackwardHook.setup_output_hook = before[:2]
        tensor.register_hook, module._maybe_warn_non_full_backward_hook = before[2:]


def _at_inputs(held: Any, stand: Stand, own: Any, args: tuple[Any, ...]) -> Any:
    if not any(map(is_valueless, args)):
        return own(held, args)
    for hook in (*held.user_hooks, *held.user_pre_hooks):
        _check(hook)
    held.lamina = hooks = _ModuleHooks(held)
    hooks.inputs = len(args)
    hooks.leaves = any(isinstance(x, torch.Tensor) and x.requires_grad for x in args)
    places = _floats(args)
    if not hooks.leaves or not places:
        return args
    return _replaced(
        args, places, stand, f"{type(held.module).__name__}'s backward hooks", hooks.at_inputs(places)
    )


def _at_results(held: Any, stand: Stand, own: Any, results: Any) -> Any:
    hooks = getattr(held, "lamina", None)
    if hooks is None:
        return own(held, results)
    whole = results if isinstance(results, tuple) else (results,)
    places = _floats(whole)
    if not places:
        return results
    name = f"{type(held.module).__name__}'s backward hooks"
    found = _replaced(whole, places, stand, name, hooks.at_results(len(whole), places))
    return found if isinstance(results, tuple) else found[0]


def _replaced(whole: tuple[Any, ...], places: Sequence[int], stand: Stand, name: str, rule: Rule) -> Any:
    made = dict(zip(places, stand(name, rule, [whole[i] for i in places]), strict=True))
    values = [made.get(i, x) for i, x in enumerate(whole)]
    return type(whole)(*values) if hasattr(whole, "_fields") else tuple(values)


def _floats(values: Sequence[Any]) -> list[int]:
    return [i for i, x in enumerate(values) if isinstance(x, torch.Tensor) and x.is_floating_point()]


def _registered(x: Any, stand: Stand, own: Any, hook: Callable[..., Any]) -> Any:
    """Adds the call that represents a tensor's hook: `placed` routes all readers of the tensor through it."""
    if not (is_valueless(x) or running_code()) or not x.requires_grad:
        return own(x, hook)
    if x.is_leaf:
        raise TorchConversionError(
            f"{tuple(x.shape)} is a parameter, on which the forward pass registers one more hook with each call: "
            "register it once, outside of forward"
        )
    _check(hook)
    (made,) = stand(TENSOR, through([hook]), [x])
    if isinstance(x, StandIn):
        x.cell.rename(lambda _: made.cell.read())
    return RemovableHandle(OrderedDict())


def placed(node: Node) -> None:
    """Write the output of a tensor's hook call into the tensor, right after its producer, so that all readers read
    it.

    If the tensor was written before the hook was registered, after the last such write; of several hooks the last one
    comes first, so that gradients reach it last.
    """
    (x,), graph = node.args[0], node.graph
    between = itertools.takewhile(lambda n: n is not node, _from(x))
    last = [n for n in between if n is x or (_writes(n, x) and "hook" not in n.meta)][-1]
    last.append(node)
    with graph.inserting_after(node):
        made = graph.call_function(operator.getitem, (node, 0))
    with graph.inserting_after(made):
        graph.call_function(torch.ops.aten.copy_.default, (x, made)).meta = {**node.meta, "hook": True}
    made.meta = dict(node.meta)


def _writes(node: Node, x: Node) -> bool:
    return bool(node.args) and node.args[0] is x and name_of(node).endswith("_")


def _from(node: Node) -> Iterator[Node]:
    while node.op != "root":
        yield node
        node = node.next


def _check(hook: Callable[..., Any]) -> None:
    """Refuse a hook that holds tensors whose values exist only in the graph."""
    if any(map(is_valueless, _held(hook))):
        raise TorchConversionError(
            f"the hook {getattr(hook, '__qualname__', hook)} reads tensors of the forward pass, which have no "
            "numbers while a graph is made: write it as a torch.autograd.Function that saves them, or compile the "
            'network (torch.compile(network, backend="lamina"))'
        )


def _held(value: Any, depth: int = 4) -> Iterator[Any]:
    """The values that a function holds: in its closure, its defaults, the arguments of a partial."""
    yield value
    if isinstance(value, functools.partial):
        inner = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, (tuple, list)):
        inner = list(value)
    else:
        cells = getattr(value, "__closure__", None) or ()
        inner = [c.cell_contents for c in cells] + list(getattr(value, "__defaults__", None) or ())
    for x in inner if depth else ():
        yield from _held(x, depth - 1)


def _refused(self: Any, *_: Any) -> None:
    raise TorchConversionError(
        f"{type(self).__name__} has a hook of register_backward_hook, which sees a part of the gradients alone: "
        "register it by register_full_backward_hook"
    )
