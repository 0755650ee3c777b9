"""Which nodes of a graph run here, and which go back to PyTorch: the graph in parts, each all one or the other."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from typing import Any, TypeAlias

import torch
from torch.fx import GraphModule, Node
from torch.fx.passes.split_module import split_module

from lamina.convert.torch.targets import name_of

#: The kind of device -> the type that autocast computes in there; None where it is off.
State: TypeAlias = Mapping[str, torch.dtype | None]
#: Under this key a node's `meta` says in which state of autocast it was, where that is not the whole graph's.
REGION = "lamina_autocast"


def left_with(graph: GraphModule, left: Collection[str]) -> set[str]:
    """The names of the nodes that go back to PyTorch when those in `left` do.

    What is written in place, and every view of it, is computed on one side: PyTorch keeps it where any of these nodes
    is PyTorch's, where parts in between would tear them apart, and where it is an argument that needs a gradient.
    What gives several results stays with those who read its entries: between parts go tensors and numbers.
    """
    nodes = list(graph.graph.nodes)
    found = set(left)
    members = _by_memory(nodes)
    written = {_memory(n) for n in nodes if writes(n)} - {None}
    several = [_with_entries(n) for n in nodes if n.op.startswith("call")]
    while True:
        parts = parts_of(nodes, found)
        more = set(found)
        for memory in written:
            own = [n for n in members[memory] if n.op not in ("placeholder", "get_attr")]
            torn = len({parts[n.name] for n in own}) > 1
            if torn or any(n.name in found for n in own) or _needs_gradient(members[memory]):
                more |= {n.name for n in own}
        for own in several:
            if len({parts[n.name] for n in own}) > 1 or any(n.name in found for n in own):
                more |= {n.name for n in own}
        if more == found:
            return found
        found = more


def _with_entries(node: Node) -> list[Node]:
    """A node with those that take one of several results out of it; itself where it gives one tensor or number."""
    return [node, *(n for n in node.users if n.op == "call_function" and n.target is operator.getitem
                    and not isinstance(example(node), torch.Tensor))]  # fmt: skip


def parts_of(nodes: list[Node], left: Collection[str]) -> dict[str, int]:
    """The number of each node's part: odd ones go back to PyTorch, each in one state of autocast. Nodes stay in
    their order.
    """
    parts, part = {}, 0
    state: State | None = None
    for node in nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        if (node.name in left) != part % 2:
            part += 1
        elif node.name in left and node.meta.get(REGION) != state:
            part += 2
        parts[node.name], state = part, node.meta.get(REGION)
    return parts


def split(graph: GraphModule, left: Collection[str], compile: Callable[[GraphModule], Any]) -> GraphModule:
    """The graph with its parts as modules: those without a node of `left` as `compile` makes them."""
    parts = parts_of(list(graph.graph.nodes), left)
    whole = split_module(graph, graph, lambda n: parts.get(n.name, 0), keep_original_order=True)
    for name, part in list(whole.named_children()):
        if isinstance(part, GraphModule) and not int(name.rpartition("_")[2]) % 2:
            setattr(whole, name, _Part(compile(part)))
        elif isinstance(part, GraphModule) and (state := _region(part)) is not None:
            setattr(whole, name, _InRegion(part, state))
    return whole


def _region(part: GraphModule) -> State | None:
    """In which state of autocast PyTorch runs a part; None where it is the caller's."""
    return next((n.meta[REGION] for n in part.graph.nodes if REGION in n.meta), None)


class _InRegion(torch.nn.Module):
    """A part that PyTorch runs in a region of autocast."""

    def __init__(self, part: torch.nn.Module, state: State) -> None:
        super().__init__()
        self.part, self.state = part, state

    def forward(self, *args: Any) -> Any:
        """As the part."""
        with ExitStack() as stack:
            for kind, half in self.state.items():
                if half is not None or torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, half, half is not None))
            return self.part(*args)


class _Part(torch.nn.Module):
    """A compiled part in the place of its graph."""

    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self.run = run

    def forward(self, *args: Any) -> Any:
        """As the graph."""
        found = self.run(*args)
        return found


def writes(node: Node) -> bool:
    """Whether a node writes to its first argument."""
    if not node.op.startswith("call") or node.op == "call_module":
        return False
    name = name_of(node)
    plain = name.endswith("_") and not name.endswith("__")
    return plain or node.kwargs.get("inplace") is True or name == "setitem" or _is_assignment(node.target)


def _is_assignment(target: Any) -> bool:
    """Whether it is operator.iadd or one of its kind."""
    name = getattr(target, "__name__", "")
    return (
        getattr(target, "__module__", "") == "_operator" and name.startswith("i") and name not in _NO_WRITES
    )


_NO_WRITES = ("inv", "invert", "index", "indexOf", "is_", "is_not", "itemgetter", "is_none", "is_not_none")


def example(node: Node) -> Any:
    """What Dynamo saw in place of a node's result: a fake tensor with its shape, dtype and memory."""
    found = node.meta.get("example_value")
    return node.meta.get("val") if found is None else found


def _memory(node: Node) -> int | None:
    """Which memory a node's tensor lies in (what `setitem` gives is nothing: its first argument's)."""
    seen = example(node)
    if not isinstance(seen, torch.Tensor) and writes(node) and node.args and isinstance(node.args[0], Node):
        seen = example(node.args[0])
    return memory_of(seen)


def memory_of(seen: Any) -> int | None:
    """Which memory a tensor lies in; None for what is no tensor, or one of a kind that has none of its own."""
    try:
        return int(seen.untyped_storage()._cdata) if isinstance(seen, torch.Tensor) else None
    except (NotImplementedError, RuntimeError):
        return None


def _by_memory(nodes: list[Node]) -> dict[int | None, list[Node]]:
    found: dict[int | None, list[Node]] = {}
    for node in nodes:
        found.setdefault(_memory(node), []).append(node)
    return found


def _needs_gradient(nodes: list[Node]) -> bool:
    """Whether one of them is an argument that needs a gradient."""
    return any(
        isinstance(seen := example(n), torch.Tensor) and seen.requires_grad
        for n in nodes
        if n.op in ("placeholder", "get_attr")
    )
