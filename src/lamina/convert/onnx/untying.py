"""Weights of a file get a tensor each, among the graph's initializers.

Some exporters (PaddlePaddle's) write weights as Constant nodes. And tensors that a file stores once because they were
equal are copied, one for each of their names.

Exporters write equal tensors once: in a network that was never trained the running means of all layers and all biases
are one tensor of zeros. PyTorch's exporter writes its other names as Identity nodes (of parameters that are shared it
writes only one name). Each is trained separately, and statistics, which are updated, must not be shared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from math import prod

import onnx

from lamina.convert.onnx.body import domain
from lamina.convert.onnx.node import STATISTICS

_FLOATS = (
    onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE
)  # fmt: skip
#: The version of the format since which initializers need not be inputs.
_FREE_INITIALIZERS = 4
#: The operators whose statistics are updated.
_MOVING = ("BatchNormalization",)


def untie(model: onnx.ModelProto) -> None:
    """Gives each name of a float initializer, and each use as a statistic, its own tensor; Constant nodes of several
    floats become initializers."""
    if model.ir_version >= _FREE_INITIALIZERS:
        _store_constants(model.graph)
    _name_again(model.graph)
    _untie_statistics(model.graph)


def _store_constants(graph: onnx.GraphProto) -> None:
    """Replaces Constant nodes of several floats by initializers; single numbers are part of a formula."""
    fixed, kept = {v.name for v in graph.output}, []
    for node in graph.node:
        is_constant = node.op_type == "Constant" and not domain(node.domain) and node.output[0] not in fixed
        held = next((a.t for a in node.attribute if a.name == "value"), None) if is_constant else None
        if held is None or held.data_type not in _FLOATS or prod(held.dims) < 2:
            kept.append(node)
        else:
            _copied(graph, held, node.output[0])
    _keep(graph, kept)


def _keep(graph: onnx.GraphProto, kept: list[onnx.NodeProto]) -> None:
    """Removes the other nodes."""
    if len(kept) < len(graph.node):
        rest = onnx.GraphProto(node=kept)  # the list below is emptied
        del graph.node[:]
        graph.node.extend(rest.node)


def _name_again(graph: onnx.GraphProto) -> None:
    """Replaces Identity nodes that rename an initializer by initializers."""
    fixed = {v.name for v in (*graph.input, *graph.output)}
    held = {t.name: t for t in graph.initializer if t.name not in fixed and t.dims and t.data_type in _FLOATS}
    kept = []
    for node in graph.node:
        names = (*node.input, *node.output)
        if node.op_type != "Identity" or domain(node.domain) or names[0] not in held or names[1] in fixed:
            kept.append(node)
            continue
        held[names[1]] = _copied(graph, held[names[0]], names[1])
    _keep(graph, kept)


def _copied(graph: onnx.GraphProto, source: onnx.TensorProto, name: str) -> onnx.TensorProto:
    copy: onnx.TensorProto = graph.initializer.add()
    copy.CopyFrom(source)
    copy.name = name
    return copy


def _untie_statistics(graph: onnx.GraphProto) -> None:
    """Copies initializers that a batch norm of the graph reads as statistics, if there are other readers."""
    held = {t.name: t for t in graph.initializer}
    readers, taken = Counter(_read(graph)), {*held, *_made(graph)}
    for node in graph.node:
        if node.op_type not in _MOVING or domain(node.domain):
            continue
        for place in STATISTICS["", node.op_type]:
            name = node.input[place] if place < len(node.input) else ""
            if name in held and readers[name] > 1:
                readers[name] -= 1
                node.input[place] = _free(name, taken)
                _copied(graph, held[name], node.input[place])


def _free(name: str, taken: set[str]) -> str:
    """An unused name."""
    number = 1
    while f"{name}_{number}" in taken:
        number += 1
    taken.add(f"{name}_{number}")
    return f"{name}_{number}"


def _read(graph: onnx.GraphProto) -> Iterator[str]:
    """The names that nodes and outputs of a graph read, once for each reader, including subgraphs."""
    yield from (v.name for v in graph.output)
    for node in graph.node:
        yield from node.input
        for inner in _subgraphs(node):
            yield from _read(inner)


def _made(graph: onnx.GraphProto) -> Iterator[str]:
    """The names of inputs and of nodes' outputs, including subgraphs."""
    yield from (v.name for v in graph.input)
    for node in graph.node:
        yield from node.output
        for inner in _subgraphs(node):
            yield from (t.name for t in inner.initializer)
            yield from _made(inner)


def _subgraphs(node: onnx.NodeProto) -> Iterable[onnx.GraphProto]:
    return (a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH)
