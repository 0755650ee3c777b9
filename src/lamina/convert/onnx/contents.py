"""The contents of a model, for inspection: nothing is computed, and operators need no handlers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from lamina.convert.onnx.body import domain
from lamina.convert.onnx.node import HANDLERS
from lamina.convert.onnx.proto import type_name
from lamina.convert.onnx.reading import read_model


@dataclass(frozen=True)
class OnnxContents:
    """The parts of a model.

    inputs, outputs: their types and sizes by name, such as "float [batch, 3, 224, 224]". tensors: (element type,
    sizes) of each by name. operators: the count of each, subgraphs and functions included. unknown: those
    without a handler. opsets: the version of each domain.
    """

    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    tensors: Mapping[str, tuple[str, tuple[int, ...]]]
    operators: Mapping[str, int]
    unknown: frozenset[str]
    opsets: Mapping[str, int]


def contents_of_onnx(file: str | Path) -> OnnxContents:
    """The parts of a file's model. Raises OnnxError if it is not a model, OSError for a file that cannot be read."""
    model, _ = read_model(file)
    graph, held = model.graph, {t.name for t in model.graph.initializer}
    functions = {(domain(f.domain), f.name) for f in model.functions}
    nodes = [*_nodes(graph.node), *(n for f in model.functions for n in _nodes(f.node))]
    unknown = {n.op_type for n in nodes if (domain(n.domain), n.op_type) not in HANDLERS.keys() | functions}
    return OnnxContents(
        {v.name: _kind(v.type) for v in graph.input if v.name not in held},
        {v.name: _kind(v.type) for v in graph.output},
        {t.name: (type_name(t.data_type), tuple(t.dims)) for t in graph.initializer},
        dict(Counter(n.op_type for n in nodes).most_common()),
        frozenset(unknown),
        {domain(o.domain) or "ai.onnx": o.version for o in model.opset_import},
    )


def _nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes, each followed by those of its subgraphs."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _nodes(attribute.g.node)


def _kind(kind: onnx.TypeProto) -> str:
    """A type as text; a symbolic size by its name."""
    if not kind.HasField("tensor_type"):
        return str(kind.WhichOneof("value") or "a value").removesuffix("_type")
    tensor = kind.tensor_type
    if not tensor.HasField("shape"):
        return type_name(tensor.elem_type)
    sizes = [d.dim_param or (str(d.dim_value) if d.HasField("dim_value") else "?") for d in tensor.shape.dim]
    return f"{type_name(tensor.elem_type)} [{', '.join(sizes)}]"
