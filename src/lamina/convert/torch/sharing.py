"""Outputs of a graph that are views of each other: their base tensors, and how PyTorch derives them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from torch.fx import Node

from lamina.convert.torch.partition import example, memory_of, written


def shared_roots(
    outputs: Sequence[Node], nodes: Iterable[Node], arguments: Collection[int | None]
) -> dict[Node, Node]:
    """Output -> its base tensor, for outputs that share their memory with other outputs.

    arguments: the memory of the graph's inputs. An output may be the base of the others. Left out are those that
    cannot be derived from the base by views alone: it is not row-major, or intermediate nodes need computed values;
    and all if the graph switches gradients on and off, which a view does not show.
    """
    if any(getattr(n.target, "__name__", "") == "_set_grad_enabled" for n in nodes):
        return {}
    groups: dict[Node, list[Node]] = {}
    for node in dict.fromkeys(outputs):
        groups.setdefault(_root(node), []).append(node)
    found: dict[Node, Node] = {}
    for root, members in groups.items():
        known = {*arguments, memory_of(example(root))}
        if len(members) > 1 and example(root).is_contiguous() and _are_views(members, root, known):
            found |= dict.fromkeys(members, root)
    return found


def _root(node: Node) -> Node:
    """The base tensor of a chain of views."""
    memory, root = memory_of(example(node)), node
    while node.args and isinstance(node.args[0], Node) and node.args[0].op.startswith("call"):
        node = node.args[0]
        seen = example(node)
        if memory_of(seen[0] if isinstance(seen, (tuple, list)) and seen else seen) != memory:
            break
        root = node if isinstance(seen, torch.Tensor) else root
    return root


def _are_views(members: Sequence[Node], root: Node, known: Collection[int | None]) -> bool:
    """Whether the members are derived from the root without computation: by numbers and views alone."""
    for node in ancestors(members, [root]):
        seen = example(node)
        parts = seen if isinstance(seen, (tuple, list)) else (seen,)
        if any(isinstance(x, torch.Tensor) and memory_of(x) not in known for x in parts):
            return False
    return True


def ancestors(outputs: Iterable[Any], roots: Collection[Node] = ()) -> set[Node]:
    """The nodes from which outputs are made, including themselves, but not the ancestors of roots.

    In-place writes have been done by then: of a write only the tensor counts.
    """
    found: set[Node] = set()
    stack = [x for x in outputs if isinstance(x, Node)]
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            if node in roots:
                continue
            target = written(node)
            stack += node.all_input_nodes if target is None else [target]
    return found
