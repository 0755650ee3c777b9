"""Values that `forward` assigns to buffers, `self.state = x`: a graph only sees writes into the original tensors.

A buffer may get another shape in each call, by the batch (hidden states that forward starts anew). Where neither its
values nor its shape have a part in the results, it keeps its value, and the graph is made without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.export import ExportedProgram
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from lamina.convert.torch.node import TorchConversionError
from lamina.convert.torch.targets import name_of

#: The buffers of each part of a network: the table that it holds, and what was in it before a run.
Buffers = list[tuple[dict[str, Any], dict[str, Any]]]


class Replaced:
    """Buffers that a run replaces by ones of other shapes. An object: the exporter undoes changes of containers.

    shapes: of what takes their places, by the part's number and the buffer's name.
    """

    def __init__(self, shapes: Mapping[tuple[int, str], tuple[int, ...]] | None = None) -> None:
        self.shapes = dict(shapes or {})


def write_assigned(before: Buffers, replaced: Replaced | None = None) -> None:
    """Write values that were assigned to buffers into the original tensors.

    Buffers may have been swapped: each value is copied before any is written.
    replaced: gets those of another shape; buffers in it are not written. Without it they raise TorchConversionError.
    """
    assigned = []
    for part, (held, own) in enumerate(before):
        for name, buffer in own.items():  # in constructs that Dynamo can trace
            found = held.get(name)
            if found is not buffer and found is not None and buffer is not None:
                assigned.append((part, name, buffer, found.detach().clone()))
    for part, name, buffer, found in assigned:
        if replaced is not None and (found.shape != buffer.shape or (part, name) in replaced.shapes):
            replaced.shapes[part, name] = tuple(n if isinstance(n, int) else n.node.hint for n in found.shape)
        elif found.shape != buffer.shape:
            raise other_shape(name, tuple(buffer.shape), tuple(found.shape))
        else:
            buffer.copy_(found)
    for held, own in before:
        held.update(own)


def other_shape(name: str, own: tuple[Any, ...], found: tuple[Any, ...]) -> TorchConversionError:
    """The error of a buffer whose state or shape the next call reads."""
    return TorchConversionError(
        f"the buffer {name} {own} becomes {found}: a graph's state keeps its shapes; register it in the shape that "
        "it will have, or call the module once in PyTorch, and convert it then"
    )


@contextmanager
def in_new_shapes(network: torch.nn.Module, replaced: Replaced) -> Iterator[None]:
    """Within the block the buffers are as the next call finds them."""
    parts = list(network.modules())
    own = {(part, name): parts[part]._buffers[name] for part, name in replaced.shapes}
    try:
        for (part, name), shape in replaced.shapes.items():
            buffer = own[part, name]
            parts[part]._buffers[name] = None if buffer is None else buffer.new_zeros(shape)
        yield
    finally:
        for (part, name), buffer in own.items():
            parts[part]._buffers[name] = buffer


def same_calls(one: ExportedProgram, other: ExportedProgram) -> bool:
    """Whether two programs surely compute and write the same, of the same placeholders and constants."""
    names = one.graph_signature.lifted_tensor_constants
    same = names == other.graph_signature.lifted_tensor_constants
    same = same and all(torch.equal(one.constants[n], other.constants[n]) for n in names)
    numbers: dict[str, int] = {}
    found = [_effects(made.graph, numbers) for made in (one, other)]
    return same and found[0] is not None and found[0] == found[1]


def _effects(graph: Graph, numbers: dict[str, int]) -> list[int] | None:
    """What is written and what is returned, in order: calls of one function with equal arguments have one number.

    None where that does not tell: a call of a subgraph, or a write to a tensor that a call made.
    """
    known: dict[Node, int] = {}
    effects: list[int] = []
    draws = 0
    for node in graph.nodes:
        if isinstance(node.target, HigherOrderOperator):
            return None
        writes = _writes(node)
        if writes and node.args[0].op != "placeholder":
            return None
        draws += torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        # A call reads what was written before, and draws what was not drawn before; one that only takes over a shape
        # is the same everywhere.
        moment = None if _takes_shape(node) else (len(effects), draws)
        given = map_arg((node.args, node.kwargs), partial(_described, known, _takes_shape(node)))
        text = repr((node.op, node.name if node.op == "placeholder" else str(node.target), given, moment))
        known[node] = numbers.setdefault(text, len(numbers))
        if writes or node.op == "output":
            effects.append(known[node])
    return effects


def _writes(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _takes_shape(node: Node) -> bool:
    """Whether a call makes a tensor of the shape and dtype of another, of whose values it reads none."""
    name = name_of(node)
    drawn = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    return (name.endswith("_like") or name.startswith("new_")) and not drawn


def _described(known: Mapping[Node, int], by_shape: bool, node: Node) -> Any:
    """An argument: the number of its call, or what a call takes over of it."""
    seen = node.meta.get("val")
    is_tensor = by_shape and isinstance(seen, torch.Tensor)
    return f"{seen.shape} {seen.dtype} {seen.device}" if is_tensor else f"%{known[node]}"
