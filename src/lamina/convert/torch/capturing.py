"""A PyTorch module as one of Dynamo's graphs, for those of which torch.export makes none.

Dynamo, which `torch.compile` stands on, knows derivatives within a network (`torch.func`, `torch.autograd.grad`),
which the exporter cannot trace; the graph holds for inputs of these sizes alone.
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
    """A graph that gives the tensors among the results, in the order of leaves.

    inputs: what each placeholder stood for. structure, others: how the results are nested, and the leaves that are no
    tensors, by their number among all leaves.
    """

    module: GraphModule
    inputs: tuple[torch.Tensor, ...]
    structure: Structure
    others: dict[int, Any]


def capture(module: torch.nn.Module, *args: Any) -> DynamoGraph:
    """The graph of a call of a module, which is not run and keeps its attributes.

    Raises TorchConversionError for more than one graph and for what a graph takes beside tensors, and what Dynamo
    raises where it makes none.
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
    """A function that calls the module, whose code Dynamo has never seen."""

    def call(*args: Any) -> Any:
        return module(*args)

    return FunctionType(call.__code__.replace(), {"__builtins__": builtins}, "call", None, call.__closure__)


def _standing(output: Any) -> Any:
    """A tensor that stands for an output of a graph while nothing is computed."""
    seen = example(output) if isinstance(output, Node) else output
    return (
        torch.empty(tuple(map(int, seen.shape)), dtype=seen.dtype) if isinstance(seen, torch.Tensor) else seen
    )


def _give(graph: GraphModule, leaves: Sequence[Any], inputs: Sequence[Any], made: Sequence[Any]) -> None:
    """Let the graph give these tensors, each of which is one of its outputs or of its inputs."""
    nodes = list(graph.graph.nodes)
    output = nodes[-1]
    known = [*zip(made, output.args[0], strict=True)]
    known += zip(inputs, (n for n in nodes if n.op == "placeholder"), strict=True)
    output.args = (tuple(next(n for own, n in known if own is x) for x in leaves),)
    graph.recompile()


@contextmanager
def _as_it_was(module: torch.nn.Module) -> Iterator[None]:
    """Behind the block the module's parts have the attributes and buffers that they had."""
    tables = [t for part in module.modules() for t in (vars(part), part._buffers, part._parameters)]
    before = [(table, dict(table)) for table in tables]
    try:
        yield
    finally:
        for table, own in before:
            table.clear()
            table.update(own)
