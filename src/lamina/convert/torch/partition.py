"""Graph partitioning: which nodes run here, and which fall back to PyTorch; each part is all one or the other."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from typing import Any, TypeAlias

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.fx.passes.split_module import split_module

from lamina.convert.torch.targets import name_of

#: The device type -> the type in which autocast computes there; None if it is disabled.
State: TypeAlias = Mapping[str, torch.dtype | None]
#: The `meta` key of a node's autocast state, if it differs from the whole graph's.
REGION = "lamina_autocast"
#: The `meta` key that tells whether gradients are recorded there, if the graph switches that.
GRADIENT = "lamina_gradient"
#: The kinds of nodes whose tensors the graph does not compute.
_GIVEN = ("placeholder", "get_attr")


def note_gradient_modes(graph: GraphModule) -> None:
    """Remove gradient switches (no_grad) from a graph: each node after one records the mode in its `meta`."""
    mode: bool | None = None
    switches = []
    for node in graph.graph.nodes:
        if getattr(node.target, "__name__", "") == "_set_grad_enabled":
            mode = bool(node.args[0])
            switches.append(node)
        elif mode is not None:
            node.meta[GRADIENT] = mode
    for node in switches:
        graph.graph.erase_node(node)
    if switches:
        graph.recompile()


def is_without_gradient(graph: GraphModule) -> bool:
    """Whether each call of a graph runs within `no_grad`, whatever the caller's mode."""
    mode: bool | None = None
    for node in graph.graph.nodes:
        if getattr(node.target, "__name__", "") == "_set_grad_enabled":
            mode = bool(node.args[0])
        elif node.op.startswith("call") and node.meta.get(GRADIENT, mode) is not False:
            return False
    return True


def is_region(node: Node) -> bool:
    """Whether a node has a state of autocast, or a gradient mode, that may not be the caller's."""
    return REGION in node.meta or GRADIENT in node.meta


def left_with(graph: GraphModule, left: Collection[str]) -> set[str]:
    """The names of the nodes that fall back to PyTorch if those in `left` do.

    A tensor written in place and all its views are computed on one side: by PyTorch if any of these nodes
    is PyTorch's, if parts in between would separate them, or if it is an argument that needs a gradient
    (unless nothing in the graph has one, as in an optimizer's step).
    A node with several results stays with the readers of its entries: only tensors and numbers pass between parts.
    """
    nodes = list(graph.graph.nodes)
    found = set(left)
    members = _by_memory(nodes)
    written = {_memory(n) for n in nodes if writes(n)} - {None}
    several = [_with_entries(n) for n in nodes if n.op.startswith("call")]
    differentiated = not is_without_gradient(graph)
    while True:
        parts = parts_of(nodes, found)
        more = set(found)
        for memory in written:
            own = [n for n in members[memory] if n.op not in _GIVEN]
            torn = len({parts[n.name] for n in own}) > 1
            needed = differentiated and _needs_gradient(members[memory])
            if torn or needed or any(n.name in found for n in own):
                more |= {n.name for n in own}
        for own in several:
            if len({parts[n.name] for n in own}) > 1 or any(n.name in found for n in own):
                more |= {n.name for n in own}
        if more == found:
            return found
        found = more


def _with_entries(node: Node) -> list[Node]:
    """A node with those that extract one of its several results; itself if it returns one tensor or number."""
    return [node, *(n for n in node.users if n.op == "call_function" and n.target is operator.getitem
                    and not isinstance(example(node), torch.Tensor))]  # fmt: skip


def is_sized_within(graph: GraphModule) -> bool:
    """Whether sizes in a graph depend on values of its tensors: then it runs as a whole, because parts get sizes from
    their arguments alone.
    """
    given: set[Any] = set()
    for node in graph.graph.nodes:
        symbols = free_symbols(example(node)) if _has_sizes(example(node)) else set()
        if node.op == "placeholder":
            given |= symbols
        elif symbols - given:
            return True
    return False


def _has_sizes(seen: Any) -> bool:
    parts = seen if isinstance(seen, (tuple, list)) else (seen,)
    return all(isinstance(x, (torch.Tensor, torch.SymInt, torch.SymFloat, int, float)) for x in parts)


def parts_of(nodes: list[Node], left: Collection[str]) -> dict[str, int]:
    """The number of each node's part: odd ones fall back to PyTorch, each in one state of autocast. Each part
    has one gradient mode. The order of nodes is kept.
    """
    parts, part = {}, 0
    before: tuple[State | None, bool | None] = (None, None)
    for node in nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        now = node.meta.get(REGION) if node.name in left else None, node.meta.get(GRADIENT)
        if (node.name in left) != part % 2:
            part += 1
        elif now != before:
            part += 2
        parts[node.name], before = part, now
    return parts


def split(graph: GraphModule, left: Collection[str], compile: Callable[[GraphModule], Any]) -> GraphModule:
    """The graph with its parts as modules: those without a node of `left` compiled by `compile`."""
    parts = parts_of(list(graph.graph.nodes), left)
    whole = split_module(graph, graph, lambda n: parts.get(n.name, 0), keep_original_order=True)
    for name, part in list(whole.named_children()):
        if not isinstance(part, GraphModule):
            continue
        ours = not int(name.rpartition("_")[2]) % 2
        state, mode = None if ours else _noted(part, REGION), _noted(part, GRADIENT)
        run = _Part(compile(part)) if ours else part
        if ours or state is not None or mode is not None:
            setattr(whole, name, run if state is None and mode is None else _InRegion(run, state or {}, mode))
    return whole


def _noted(part: GraphModule, key: str) -> Any:
    """A part's state of autocast, or gradient mode; None if it is the caller's.

    (Placeholders have the `meta` of their values, from another part.)
    """
    calls = (n for n in part.graph.nodes if n.op.startswith("call"))
    return next((n.meta[key] for n in calls if key in n.meta), None)


class _InRegion(torch.nn.Module):
    """A part that runs in a region of autocast, or with gradients enabled or disabled (None: the caller's mode)."""

    def __init__(self, part: torch.nn.Module, state: State, mode: bool | None) -> None:
        super().__init__()
        self.part, self.state, self.mode = part, state, mode

    def forward(self, *args: Any) -> Any:
        """The part's results."""
        with ExitStack() as stack:
            if self.mode is not None:
                stack.enter_context(torch.set_grad_enabled(self.mode))
            for kind, half in self.state.items():
                if half is not None or torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, half, half is not None))
            return self.part(*args)


class _Part(torch.nn.Module):
    """A compiled part in place of its graph."""

    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self.run = run

    def forward(self, *args: Any) -> Any:
        """The graph's results."""
        found = self.run(*args)
        return found


def writer(graph: GraphModule, given: str) -> str:
    """The name of a node that writes to an argument (named by its node) or to an attribute (named by its path), or
    to a view of it; "" if there is none."""
    nodes = list(graph.graph.nodes)
    names = {n.name if n.op == "placeholder" else str(n.target): n for n in nodes if n.op in _GIVEN}
    memory = _memory(names[given])
    return next((n.name for n in nodes if writes(n) and _memory(n) == memory), "")


def written(node: Node) -> Node | None:
    """The node whose tensor a node writes to, its first argument's or the one passed as `out`; None for none."""
    if not writes(node):
        return None
    found = node.kwargs.get("out") or next(iter(node.args), None)
    return found if isinstance(found, Node) else None


def writes(node: Node) -> bool:
    """Whether a node writes to an argument: the first, or the one passed as `out`."""
    if not node.op.startswith("call") or node.op == "call_module":
        return False
    name = name_of(node)
    plain = name.endswith("_") and not name.endswith("__")
    options = node.kwargs.get("inplace") is True or node.kwargs.get("out") is not None
    return plain or options or name == "setitem" or _is_assignment(node.target)


def _is_assignment(target: Any) -> bool:
    """Whether it is operator.iadd or another in-place operator."""
    name = getattr(target, "__name__", "")
    return (
        getattr(target, "__module__", "") == "_operator" and name.startswith("i") and name not in _NO_WRITES
    )


_NO_WRITES = ("inv", "invert", "index", "indexOf", "is_", "is_not", "itemgetter", "is_none", "is_not_none")


def example(node: Node) -> Any:
    """Dynamo's example value of a node's result: a fake tensor with its shape, dtype and memory."""
    found = node.meta.get("example_value")
    return node.meta.get("val") if found is None else found


def _memory(node: Node) -> int | None:
    """The memory of a node's tensor (`setitem` returns nothing: its first argument's)."""
    seen = example(node)
    if not isinstance(seen, torch.Tensor) and (target := written(node)) is not None:
        seen = example(target)
    return memory_of(seen)


def memory_of(seen: Any) -> int | None:
    """The memory of a tensor; None for non-tensors, and kinds of tensors without their own memory."""
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
        isinstance(seen := example(n), torch.Tensor) and seen.requires_grad for n in nodes if n.op in _GIVEN
    )
