"""The order in which the nodes of a graph run."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from lamina.graph.ir.graph import Graph, Node, Value


def schedule(graph: Graph, donate: Mapping[int, int]) -> list[Node]:
    """The nodes in the order to run: each update of donated state as soon as nothing reads the old value.

    Gradients then die early, and their memory is reused in the same backward pass.
    donate: input index -> output index, as for `compile`.
    """
    replaced = _replaced(graph, donate)
    readers = _readers(graph, {graph.inputs[i] for i in donate})
    index = {node: i for i, node in enumerate(graph.nodes)}
    behind = dict(
        index
    )  # the index of the node that each node follows: its own, except for updates that move up
    for node, olds in replaced.items():
        before = [v.node for v in node.inputs if v.node is not None]
        before += [reader for old in olds for reader in readers[old] if reader is not node]
        behind[node] = min(index[node], max((behind[n] for n in before), default=-1))
    return sorted(graph.nodes, key=lambda n: (behind[n], index[n]))


def _replaced(graph: Graph, donate: Mapping[int, int]) -> dict[Node, list[Value]]:
    """The nodes that compute a donated input's new value, in order, with the inputs that each replaces."""
    olds: dict[Node, list[Value]] = {}
    for i, o in donate.items():
        maker = graph.outputs[o].node
        if maker is not None:
            olds.setdefault(maker, []).append(graph.inputs[i])
    return {node: olds[node] for node in graph.nodes if node in olds}


def _readers(graph: Graph, values: Collection[Value]) -> dict[Value, list[Node]]:
    """The nodes that read each of these values."""
    found: dict[Value, list[Node]] = {v: [] for v in values}
    for node in graph.nodes:
        for value in dict.fromkeys(node.inputs):
            if value in found:
                found[value].append(node)
    return found
