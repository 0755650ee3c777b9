"""torch.autocast made explicit: casts in the graph, where the region has affected the dtypes that Dynamo saw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from lamina.convert.torch.autocast import FULL, HALF, MIXED, RECURRENT, WIDEST, plain_name
from lamina.convert.torch.partition import REGION, State, example, writes

_KINDS = ("cpu", "cuda")
_REGIONS = ("_enter_autocast", "_exit_autocast")


def with_casts(graph_module: GraphModule) -> GraphModule:
    """The graph and its subgraphs without regions of autocast: calls get their arguments in the dtype in which
    autocast computes.

    The affected functions differ by device and version. For the functions of PyTorch's lists the dtype of the result,
    on the fake tensors that Dynamo ran, tells which list holds; for others, a result of another dtype than the
    arguments alone would give. (Fake tensors accept arguments that no kernel accepts: a convolution of bfloat16 by
    float32 gives bfloat16.) The graph is changed in place; one without regions is unchanged.
    """
    ambient = {
        kind: torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None for kind in _KINDS
    }
    if any(ambient.values()) or any(_is_region(n) for n in _every(graph_module)):
        _make_explicit(graph_module, ambient)
    return graph_module


def _every(module: GraphModule) -> Iterator[Node]:
    """The nodes of a graph and of its subgraphs."""
    for part in module.modules():
        if isinstance(part, GraphModule):
            yield from part.graph.nodes


def _is_region(node: Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") in _REGIONS


def _make_explicit(module: GraphModule, state: State) -> None:
    states = [state]
    renewed: set[Node] = set()
    for node in list(module.graph.nodes):
        if _is_region(node):
            _follow(node, states)
        elif inner := _subgraphs(module, node):
            for part in inner:
                _make_explicit(part, states[-1])
        elif node.op in ("call_function", "call_method"):
            if states[-1] != state:
                node.meta[REGION] = states[-1]
            if any(n in renewed for n in node.all_input_nodes):
                _renew(node, states[-1], renewed)
            _cast_arguments(module, node, states[-1], renewed)
    for node in reversed([n for n in module.graph.nodes if _is_region(n)]):
        module.graph.erase_node(node)
    module.recompile()


def _follow(node: Node, states: list[State]) -> None:
    """Enter or leave a region."""
    if getattr(node.target, "__name__", "") == "_exit_autocast":
        states.pop()
        return
    kind, dtype, enabled, *_ = node.args
    half = (dtype or torch.get_autocast_dtype(str(kind))) if enabled else None
    states.append({**states[-1], str(kind): half})


def _subgraphs(module: GraphModule, node: Node) -> list[GraphModule]:
    """The subgraphs among a call's arguments (of checkpoints)."""
    held = [getattr(module, str(n.target), None) for n in node.all_input_nodes if n.op == "get_attr"]
    return [x for x in held if isinstance(x, GraphModule)]


def _cast_arguments(module: GraphModule, node: Node, state: State, renewed: set[Node]) -> None:
    inputs = [n for n in node.all_input_nodes if _is_float(example(n)) and example(n).dtype.itemsize <= 4]
    half = next((h for n in inputs if (h := state.get(example(n).device.type))), None)
    if half is None or _result_kind(example(node)) is None or writes(node):
        return
    kind = _computes_in(node, inputs, half)
    if kind is None or all(example(n).dtype == kind for n in inputs):
        return
    casts: dict[Node, Node] = {}
    with module.graph.inserting_before(node), _autocast({}):
        for n in inputs:
            if example(n).dtype != kind:
                casts[n] = module.graph.call_method("to", (n, kind))
                casts[n].meta = {**node.meta, "example_value": example(n).to(kind)}
    node.args = torch.fx.node.map_arg(node.args, lambda n: casts.get(n, n))
    node.kwargs = torch.fx.node.map_arg(node.kwargs, lambda n: casts.get(n, n))
    if _result_kind(example(node)) != kind:
        with _autocast({}):
            _see(node, pytree.tree_map_only(torch.Tensor, lambda x: x.to(kind), example(node)), renewed)


def _computes_in(node: Node, inputs: Iterable[Node], half: torch.dtype) -> torch.dtype | None:
    """The dtype of a call's arguments under autocast to `half`; None if they stay unchanged."""
    seen, name = _result_kind(example(node)), plain_name(node)
    if name in RECURRENT and any(example(n).is_cuda for n in inputs):
        return half  # cuDNN's; Dynamo decomposes it, which gives other dtypes
    listed = (name in HALF and seen == half) or (name in FULL and seen == torch.float32) or name in WIDEST
    if listed or _is_complex(example(node)):  # no complex type has bfloat16 parts
        return seen
    unchanged = name in MIXED or all(example(n).dtype == seen for n in inputs)
    return None if unchanged or _plain_kind(node) == seen else seen


def _renew(node: Node, state: State, renewed: set[Node]) -> None:
    """Recompute the example value of a result whose arguments have other dtypes than Dynamo saw."""
    with _autocast(state):
        found = _called(node)
    if found is not None:
        _see(node, found, renewed)


def _see(node: Node, found: Any, renewed: set[Node]) -> None:
    """Record a node's new example value."""
    node.meta["val" if node.meta.get("example_value") is None else "example_value"] = found
    renewed.add(node)


def _result_kind(seen: Any) -> torch.dtype | None:
    """The dtype of the first floating-point tensor of a result, or of the parts of complex ones."""
    parts = seen if isinstance(seen, (tuple, list)) else (seen,)
    return next((x.dtype.to_real() for x in parts if _is_float(x) or _is_complex(x)), None)


def _plain_kind(node: Node) -> torch.dtype | None:
    """The result dtype of a call without autocast; None if the call does not accept its arguments."""
    with _autocast({}):
        return _result_kind(_called(node))


def _called(node: Node) -> Any:
    """A call's result for the example values; None if the call does not accept them."""
    args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), example)
    target: Any = node.target
    try:
        with torch.no_grad():
            return (
                getattr(args[0], target)(*args[1:], **kwargs)
                if isinstance(target, str)
                else target(*args, **kwargs)
            )
    except (RuntimeError, TypeError, ValueError):
        return None


@contextmanager
def _autocast(state: State) -> Iterator[None]:
    """Autocast as in this state; disabled on devices that it does not list. torch.autocast needs the actual device
    type.
    """
    before = {kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _KINDS}
    try:
        for kind in _KINDS:
            half = state.get(kind)
            torch.set_autocast_enabled(kind, half is not None)
            if half is not None:
                torch.set_autocast_dtype(kind, half)
        yield
    finally:
        for kind, (enabled, dtype) in before.items():
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)


def _is_complex(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.dtype.is_complex


def _is_float(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.dtype.is_floating_point
