"""Rebuilding a graph by a rule that sees one node at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lamina.graph.ir.graph import Graph, Node, Value

#: (node, its inputs as rebuilt so far) -> the values that replace its outputs, or None to keep it.
Rewrite = Callable[[Node, tuple[Value, ...]], Sequence[Value] | None]


def rewrite(graph: Graph, rule: Rewrite) -> Graph:
    """Rebuild the graph; rule(node, new inputs) gives replacement outputs, or None to keep the node."""
    new: dict[Value, Value] = {}
    for node in graph.nodes:
        inputs = tuple(new.get(v, v) for v in node.inputs)
        replacement = rule(node, inputs)
        if replacement is None:
            replacement = node.with_inputs(inputs).outputs
        new.update(zip(node.outputs, replacement, strict=True))
    return Graph(graph.inputs, [new.get(v, v) for v in graph.outputs], graph.name)
