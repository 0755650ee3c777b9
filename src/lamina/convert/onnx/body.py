"""Graphs and functions of a model, read once: nodes whose attributes are Python values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from lamina.convert.onnx.node import OnnxError
from lamina.convert.onnx.proto import External, attribute, tensor
from lamina.tensors import Tensor

#: Names that the specification gives to its own operators' domain.
OWN_DOMAIN = ("", "ai.onnx")


@dataclass(frozen=True, eq=False)
class OnnxStep:
    """A node: its operator, the names that it reads and makes, its attributes.

    references: attributes that a function's node takes from the caller: own name -> the caller's.
    """

    operator: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    references: Mapping[str, str]

    @property
    def key(self) -> tuple[str, str]:
        """Its entry in the table of handlers."""
        return self.domain, self.operator

    @property
    def bodies(self) -> list[Body]:
        """The subgraphs among its attributes."""
        return [v for v in self.attributes.values() if isinstance(v, Body)]

    def __str__(self) -> str:
        return f"{self.operator} {self.name!r}"


@dataclass(frozen=True, eq=False)
class Body:
    """A graph, a subgraph or a function: what goes in and out, its tensors, its nodes in order.

    attributes: of a function, what its attributes are by default.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    initializers: Mapping[str, Tensor]
    steps: tuple[OnnxStep, ...]
    attributes: Mapping[str, Any]


def domain(name: str) -> str:
    """A domain's name, "" for the specification's own."""
    return "" if name in OWN_DOMAIN else name


def body_of_graph(proto: onnx.GraphProto, external: External | None = None) -> Body:
    """A graph with its tensors. Raises OnnxError for what cannot be read."""
    if proto.sparse_initializer:
        name = proto.sparse_initializer[0].values.name
        raise OnnxError(f"initializer {name!r} is sparse; store it as a dense tensor")
    return Body(
        tuple(v.name for v in proto.input),
        tuple(v.name for v in proto.output),
        {t.name: tensor(t, external) for t in proto.initializer},
        _steps(proto.node, external),
        {},
    )


def body_of_function(proto: onnx.FunctionProto, external: External | None = None) -> Body:
    """A function of the model."""
    defaults = {a.name: _value(a, external) for a in proto.attribute_proto}
    return Body(tuple(proto.input), tuple(proto.output), {}, _steps(proto.node, external), defaults)


def _steps(nodes: Sequence[onnx.NodeProto], external: External | None) -> tuple[OnnxStep, ...]:
    return tuple(_step(n, external) for n in nodes)


def _step(node: onnx.NodeProto, external: External | None) -> OnnxStep:
    own = [a for a in node.attribute if not a.ref_attr_name]
    return OnnxStep(
        node.op_type,
        domain(node.domain),
        node.name,
        tuple(node.input),
        tuple(node.output),
        {a.name: _value(a, external) for a in own},
        {a.name: a.ref_attr_name for a in node.attribute if a.ref_attr_name},
    )


def _value(proto: onnx.AttributeProto, external: External | None) -> Any:
    """An attribute; graphs as bodies."""
    if proto.type == onnx.AttributeProto.GRAPH:
        return body_of_graph(proto.g, external)
    if proto.type == onnx.AttributeProto.TENSOR:
        return tensor(proto.t, external)
    return attribute(proto)
