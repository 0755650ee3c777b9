"""Inlining of Python functions that Dynamo left opaque in its graph: they become their calls of PyTorch.

A library may ask Dynamo not to trace a function (`torch.compiler.allow_in_graph`; einops does for some versions
of PyTorch). Such a function is run once on its arguments' example values, above autograd, so that each of its calls
is one node as if the user had written it. Functions that cannot be run so stay opaque.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.utils import _pytree as pytree

from lamina.convert.torch.batch_first import arguments, is_plain, lies_batch_first, multi_head_attention
from lamina.convert.torch.interpreter import find
from lamina.convert.torch.partition import example
from lamina.convert.torch.targets import is_torch

#: One function is inlined at a time: meanwhile `torch.autograd.Function.apply` is replaced.
_OPENING = threading.RLock()


def opened(module: GraphModule) -> GraphModule:
    """The module, with each opaque function in its graph replaced by the calls that it makes."""
    closed = [node for node in module.graph.nodes if _is_closed(node)]
    for node in closed:
        if (body := _traced(node)) is not None:
            _replace(module, node, body)
    if closed:
        module.recompile()
    return module


def _is_closed(node: Node) -> bool:
    """Whether it calls another library's function, written in Python, that returns tensors and has no counterpart; or
    attention with sequences stored batch by batch, which is better decomposed.
    """
    if node.target is functional.multi_head_attention_forward:
        given = arguments(*node.args, **node.kwargs)
        return is_plain(given) and lies_batch_first(example(given["query"]))
    results = example(node)
    results = results if isinstance(results, (tuple, list)) else (results,)
    return (
        node.op == "call_function"
        and isinstance(node.target, FunctionType)
        and not is_torch(node.target)
        and all(isinstance(y, torch.Tensor) for y in results)
        and find(node) is None
    )


def _traced(node: Node) -> GraphModule | None:
    """The graph of a function's operations on the nodes among its arguments; None if it cannot be made."""
    function, given = _of_nodes(node)
    try:
        shown = [x.detach() if isinstance(x, torch.Tensor) else x for x in given]
        with ExitStack() as stack:
            stack.enter_context(_only_known_gradients())
            stack.enter_context(enable_python_dispatcher())
            for mode in {x.fake_mode for x in shown if isinstance(x, FakeTensor)}:
                stack.enter_context(mode)  # tensors that the function creates have no values either
            return make_fx(function, pre_dispatch=True)(*shown)
    except Exception:  # whatever a foreign function does with tensors without values
        return None


def _of_nodes(node: Node) -> tuple[Callable[..., Any], list[Any]]:
    """The node's function, of the nodes among its arguments alone; their example values."""
    target: Any = node.target
    target = multi_head_attention if target is functional.multi_head_attention_forward else target
    leaves, structure = pytree.tree_flatten((node.args, node.kwargs))
    nodes = _nodes(node)

    def function(*values: Any) -> Any:
        now = dict(zip(nodes, values, strict=True))
        whole = [now[leaf] if isinstance(leaf, Node) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(whole, structure)
        return target(*args, **kwargs)

    return function, [example(n) for n in nodes]


def _nodes(node: Node) -> list[Node]:
    """The nodes among its arguments, each once: identical tensors stay identical."""
    leaves = pytree.tree_leaves((node.args, node.kwargs))
    return list(dict.fromkeys(leaf for leaf in leaves if isinstance(leaf, Node)))


@contextmanager
def _only_known_gradients() -> Iterator[None]:
    """Refuse functions with a custom gradient in this thread, of which only the forward pass would be traced."""
    with _OPENING:
        apply, thread = vars(torch.autograd.Function)["apply"], threading.get_ident()

        def chosen(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == thread:
                raise TypeError("a function with a gradient of its own")
            return apply.__func__(cls, *args, **kwargs)

        setattr(torch.autograd.Function, "apply", classmethod(chosen))  # noqa: B010 - a method, to type checkers
        try:
            yield
        finally:
            setattr(torch.autograd.Function, "apply", apply)  # noqa: B010


def _replace(module: GraphModule, node: Node, body: GraphModule) -> None:
    """Replace a function's call by its graph's nodes, if its results are used one by one."""
    parts = [u for u in node.users if u.target is operator.getitem and isinstance(u.args[1], int)]
    whole = isinstance(example(node), torch.Tensor)
    idle = [
        u for u in parts if not isinstance(example(u), torch.Tensor)
    ]  # attention's weights, which were not requested
    if not whole and (len(parts) < len(node.users) or any(u.users for u in idle)):
        return
    values: dict[Node, Any] = {}
    given = iter(_nodes(node))
    with module.graph.inserting_before(node):
        for inner in body.graph.nodes:
            if inner.op == "placeholder":
                values[inner] = next(given)
            elif inner.op == "output":
                results = torch.fx.node.map_arg(inner.args[0], values.__getitem__)
            else:
                values[inner] = _copied(module, inner, body, values)
                values[inner].meta["stack_trace"] = node.meta.get("stack_trace")
    for used in [node] if whole else parts:
        result: Any = results if whole else results[used.args[1]]
        if used in idle:
            module.graph.erase_node(used)
            continue
        if result.op != "placeholder" and example(used) is not None:
            result.meta["example_value"] = example(used)  # later views of it share that memory
        used.replace_all_uses_with(result)
        module.graph.erase_node(used)
    if not whole:
        module.graph.erase_node(node)


def _copied(module: GraphModule, inner: Node, body: GraphModule, values: dict[Node, Any]) -> Node:
    """A node of the function's graph copied to the module's, which takes over its attributes."""
    if inner.op != "get_attr":
        return module.graph.node_copy(inner, values.__getitem__)
    name = next(n for i in range(len(vars(module)) + 1) if not hasattr(module, n := f"_opened_{i}"))
    setattr(module, name, getattr(body, str(inner.target)))
    found = module.graph.get_attr(name)
    found.meta = dict(inner.meta)
    return found
