"""A PyTorch module as one of Dynamo's graphs, for modules that torch.export cannot export.

Dynamo, on which `torch.compile` is based, supports derivatives within a network (`torch.func`,
`torch.autograd.grad`), which the exporter cannot trace; the graph only holds for inputs of these sizes.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

from lamina._tree import Structure, flatten
from lamina.convert.torch.casts import with_casts
from lamina.convert.torch.levels import flattened, levels
from lamina.convert.torch.node import TorchConversionError
from lamina.convert.torch.opening import opened
from lamina.convert.torch.partition import example


class DynamoGraph(NamedTuple):
    """A graph that returns the tensors among the results, in leaf order.

    inputs: the value of each placeholder. structure, others: the nesting of the results, and the leaves that are not
    tensors, by their leaf index.
    """

    module: GraphModule
    inputs: tuple[torch.Tensor, ...]
    structure: Structure
    others: dict[int, Any]


def capture(module: torch.nn.Module, *args: Any) -> DynamoGraph:
    """The graph of a call of a module, which is not run and keeps its attributes.

    Raises TorchConversionError for more than one graph and for graph inputs other than tensors, and the errors of
    Dynamo.
    """
    seen: list[tuple[GraphModule, Sequence[Any], list[Any]]] = []

    def backend(graph_module: GraphModule, inputs: Sequence[Any]) -> Any:
        graph = with_casts(opened(flattened(graph_module)))
        given = next(n for n in graph.graph.nodes if n.op == "output").args[0]
        made = [_standing(x) for x in given]
        seen.append((graph, inputs, made))
        return lambda *values: made

    settings = {"specialize_float": True, "automatic_dynamic_shapes": False, "trace_autograd_ops": True}
    known = {k: v for k, v in settings.items() if hasattr(torch._dynamo.config, k)}
    with _as_it_was(module), torch._dynamo.config.patch(known):
        run = torch.compile(_fresh(module), backend=backend, fullgraph=True, dynamic=False)
        found = run(*args)
    if len(seen) != 1 or not all(isinstance(x, torch.Tensor) for x in seen[0][1]):
        raise TorchConversionError("Dynamo gives no graph of tensors alone")
    graph, inputs, made = seen[0]
    if levels(graph):
        raise TorchConversionError("a transformation of torch.func that cannot be taken apart")
    leaves, structure = flatten(found, open_dataclasses=True)
    _give(graph, [x for x in leaves if isinstance(x, torch.Tensor)], inputs, made)
    others = {i: x for i, x in enumerate(leaves) if not isinstance(x, torch.Tensor)}
    return DynamoGraph(graph, tuple(inputs), structure, others)


def _fresh(module: torch.nn.Module) -> Any:
    """A function that calls the module, with code that Dynamo has not seen before."""

    def call(*args: Any) -> Any:
        return module(*args)

    return FunctionType(call.__code__.replace(), {"__builtins__": builtins}, "call", None, call.__closure__)


def _standing(output: Any) -> Any:
    """A placeholder tensor for an output of a graph, while nothing is computed."""
    seen = example(output) if isinstance(output, Node) else output
    return (
        torch.empty(tuple(map(int, seen.shape)), dtype=seen.dtype) if isinstance(seen, torch.Tensor) else seen
    )


def _give(graph: GraphModule, leaves: Sequence[Any], inputs: Sequence[Any], made: Sequence[Any]) -> None:
    """Make the graph return these tensors, each of which is one of its outputs or of its inputs."""
    nodes = list(graph.graph.nodes)
    output = nodes[-1]
    known = [*zip(made, output.args[0], strict=True)]
    known += zip(inputs, (n for n in nodes if n.op == "placeholder"), strict=True)
    output.args = (tuple(next(n for own, n in known if own is x) for x in leaves),)
    graph.recompile()


@contextmanager
def _as_it_was(module: torch.nn.Module) -> Iterator[None]:
    """After the block the module's parts have their previous attributes and buffers."""
    tables = [t for part in module.modules() for t in (vars(part), part._buffers, part._parameters)]
    before = [(table, dict(table)) for table in tables]
    try:
        yield
    finally:
        for table, own in before:
            table.clear()
            table.update(own)
