"""Values that `forward` assigns to buffers, `self.state = x`: a graph only sees writes into the original tensors.

A buffer may get another shape in each call, by the batch (hidden states that forward starts anew). Where neither its
values nor its shape have a part in the results, it keeps its value, and the graph is made without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph
from torch.fx.node import map_arg

from lamina.convert.torch.node import TorchConversionError

#: The buffers of each part of a network: the table that it holds, and what was in it before a run.
Buffers = list[tuple[dict[str, Any], dict[str, Any]]]
#: A part's number and the name of its buffer -> the shape of what takes its place.
Replaced = dict[tuple[int, str], tuple[int, ...]]


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
        if replaced is not None and (found.shape != buffer.shape or (part, name) in replaced):
            replaced[part, name] = tuple(n if isinstance(n, int) else n.node.hint for n in found.shape)
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
    own = {(part, name): parts[part]._buffers[name] for part, name in replaced}
    try:
        for (part, name), shape in replaced.items():
            buffer = own[part, name]
            parts[part]._buffers[name] = None if buffer is None else buffer.new_zeros(shape)
        yield
    finally:
        for (part, name), buffer in own.items():
            parts[part]._buffers[name] = buffer


def same_calls(one: ExportedProgram, other: ExportedProgram) -> bool:
    """Whether two programs compute the same of the same placeholders and constants, apart from calls whose results
    nothing reads."""
    held = [{n: x for n, x in made.constants.items() if isinstance(x, torch.Tensor)} for made in (one, other)]
    same = all(n in held[1] and torch.equal(x, held[1][n]) for n, x in held[0].items())
    return same and _calls(one.graph) == _calls(other.graph)


def _calls(graph: Graph) -> list[Any]:
    """The calls, with the numbers of those that they read; of placeholders the names of those that are read."""
    graph.eliminate_dead_code()
    numbers: Mapping[Any, int] = {node: i for i, node in enumerate(graph.nodes)}
    found: list[Any] = []
    for node in graph.nodes:
        if node.op == "placeholder":
            found.append((node.op, node.name if node.users else None))
        else:
            given = map_arg((node.args, node.kwargs), lambda n: ("result", numbers[n]))
            found.append((node.op, node.target, given))
    return found
