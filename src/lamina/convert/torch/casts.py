"""torch.autocast made explicit: casts in the graph, where the region has had an effect on what Dynamo saw."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.convert.torch.partition import example, writes

_KINDS = ("cpu", "cuda")
_REGIONS = ("_enter_autocast", "_exit_autocast")


def with_casts(graph_module: GraphModule) -> GraphModule:
    """The graph without regions of autocast: a call whose result has another dtype than its arguments alone would
    give (or that does not take them as they are) gets them in the result's dtype.

    Which functions those are is PyTorch's to say, and differs by device and version; it is read off the fake tensors
    that Dynamo ran. The graph is changed in place; one that saw no region stays as it is.
    """
    nodes = list(graph_module.graph.nodes)
    regions = [n for n in nodes if n.op == "call_function" and getattr(n.target, "__name__", "") in _REGIONS]
    if not regions and not any(torch.is_autocast_enabled(kind) for kind in _KINDS):
        return graph_module
    for node in nodes:
        if node.op in ("call_function", "call_method") and node not in regions:
            _cast_arguments(graph_module, node)
    for node in reversed(regions):
        graph_module.graph.erase_node(node)
    graph_module.recompile()
    return graph_module


def _cast_arguments(module: GraphModule, node: Node) -> None:
    kind = _result_kind(example(node))
    inputs = [n for n in node.all_input_nodes if _is_float(example(n))]
    if kind is None or writes(node) or all(example(n).dtype == kind for n in inputs):
        return
    if _plain_kind(node) == kind:
        return
    casts: dict[Node, Node] = {}
    with module.graph.inserting_before(node):
        for n in inputs:
            if example(n).dtype != kind and example(n).dtype.itemsize <= 4:
                casts[n] = module.graph.call_method("to", (n, kind))
                with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
                    casts[n].meta = {**node.meta, "example_value": example(n).to(kind)}
    node.args = torch.fx.node.map_arg(node.args, lambda n: casts.get(n, n))
    node.kwargs = torch.fx.node.map_arg(node.kwargs, lambda n: casts.get(n, n))


def _result_kind(seen: Any) -> torch.dtype | None:
    """The dtype of the first floating-point tensor of a result."""
    parts = seen if isinstance(seen, (tuple, list)) else (seen,)
    return next((x.dtype for x in parts if _is_float(x)), None)


def _plain_kind(node: Node) -> torch.dtype | None:
    """The dtype that a call gives without autocast; None where it does not take its arguments."""
    args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), example)
    target: Any = node.target
    try:
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False), torch.no_grad():
            if isinstance(target, str):
                return _result_kind(getattr(args[0], target)(*args[1:], **kwargs))
            return _result_kind(target(*args, **kwargs))
    except (RuntimeError, TypeError, ValueError):
        return None


def _is_float(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.dtype.is_floating_point
