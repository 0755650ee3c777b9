"""Graphs and functions of a model, read once: nodes whose attributes are Python values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import Any

import onnx

from lamina.convert.onnx.proto import External, attribute, dense, tensor
from lamina.convert.onnx.wider import WIDER, check_readers, widened
from lamina.tensors import Tensor

#: The names of the standard operators' domain.
OWN_DOMAIN = ("", "ai.onnx")


@dataclass(frozen=True, eq=False)
class OnnxStep:
    """A node: its operator, the names of its inputs and outputs, its attributes.

    references: attributes that a function's node takes from the caller: own name -> the caller's.
    declared: ONNX's element types of inputs that are held in a wider type (`wider`), by input index.
    """

    operator: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    references: Mapping[str, str]
    declared: Mapping[int, int] = field(default_factory=dict)

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
    """A graph, a subgraph or a function: its inputs and outputs, its tensors, its nodes in order.

    attributes: of a function, its attributes' default values.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    initializers: Mapping[str, Tensor]
    steps: tuple[OnnxStep, ...]
    attributes: Mapping[str, Any]

    @cached_property
    def makers(self) -> Mapping[str, OnnxStep]:
        """The node that produces each name."""
        return {name: step for step in self.steps for name in step.outputs if name}


def domain(name: str) -> str:
    """A domain's name, "" for the standard one."""
    return "" if name in OWN_DOMAIN else name


def body_of_graph(proto: onnx.GraphProto, external: External | None = None) -> Body:
    """A graph with its tensors. Raises OnnxError for unreadable parts."""
    sparse = {t.values.name: tensor(dense(t, external)) for t in proto.sparse_initializer}
    codes = {t.name: t.data_type for t in proto.initializer if t.data_type in WIDER}
    steps = _steps(proto.node, external)
    if codes:
        check_readers(codes, _readers(steps))
        steps = tuple(
            replace(s, declared={i: codes[n] for i, n in enumerate(s.inputs) if n in codes}) for s in steps
        )
    outputs = tuple(v.name for v in proto.output)
    return Body(
        tuple(v.name for v in proto.input),
        outputs,
        {t.name: (widened if t.name in codes else tensor)(t, external) for t in proto.initializer} | sparse,
        _without_unread(steps, outputs),
        {},
    )


def _readers(steps: Sequence[OnnxStep]) -> dict[str, list[OnnxStep]]:
    """The nodes that read each name, in the graph and in its subgraphs."""
    found: dict[str, list[OnnxStep]] = {}
    for step in steps:
        for name in step.inputs:
            found.setdefault(name, []).append(step)
        for inner in step.bodies:
            for name, own in _readers(inner.steps).items():
                found.setdefault(name, []).extend(own)
    return found


def body_of_function(proto: onnx.FunctionProto, external: External | None = None) -> Body:
    """A function of the model."""
    defaults = {a.name: _value(a, external) for a in proto.attribute_proto}
    outputs = tuple(proto.output)
    steps = _without_unread(_steps(proto.node, external), outputs)
    return Body(tuple(proto.input), outputs, {}, steps, defaults)


def _without_unread(steps: Sequence[OnnxStep], outputs: Sequence[str]) -> tuple[OnnxStep, ...]:
    """The steps, as if the file omitted the outputs that nothing reads (except a node's first, by which it is known):
    exporters name statistics, masks and indices that nobody needs, and some take longer or cannot be compiled."""
    read = {*outputs}.union(*map(read_by, steps))
    found = []
    for step in steps:
        kept = (*step.outputs[:1], *(n if n in read else "" for n in step.outputs[1:]))
        found.append(step if kept == step.outputs else replace(step, outputs=kept))
    return tuple(found)


def _steps(nodes: Sequence[onnx.NodeProto], external: External | None) -> tuple[OnnxStep, ...]:
    return _ordered([_step(n, external) for n in nodes])


def _ordered(steps: Sequence[OnnxStep]) -> tuple[OnnxStep, ...]:
    """The steps in topological order, otherwise in the file's order.

    The specification requires that order, but programs that rewrite models append their nodes. Steps of a cycle
    come last: the first of them that runs raises an error.
    """
    maker = {name: i for i, step in enumerate(steps) for name in step.outputs if name}
    needs = [{maker[n] for n in read_by(step) if n in maker} - {i} for i, step in enumerate(steps)]
    if all(j < i for i, before in enumerate(needs) for j in before):
        return tuple(steps)
    readers: list[list[int]] = [[] for _ in steps]
    for i, before in enumerate(needs):
        for j in before:
            readers[j].append(i)
    left = [len(before) for before in needs]
    ready, found = [i for i, n in enumerate(left) if not n], []
    heapify(ready)
    while ready:
        i = heappop(ready)
        found.append(i)
        for reader in readers[i]:
            left[reader] -= 1
            if not left[reader]:
                heappush(ready, reader)
    circle = sorted(set(range(len(steps))) - set(found))
    return tuple(steps[i] for i in (*found, *circle))


def read_by(step: OnnxStep) -> set[str]:
    """The names that a node reads, and those that its subgraphs capture from the enclosing scope."""
    found = {name for name in step.inputs if name}
    for inner in step.bodies:
        own = {*inner.inputs, *inner.initializers, *(n for s in inner.steps for n in s.outputs)}
        found |= {*inner.outputs, *(n for s in inner.steps for n in read_by(s))} - own
    return found


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
    if proto.type == onnx.AttributeProto.SPARSE_TENSOR:
        return tensor(dense(proto.sparse_tensor, external))
    return attribute(proto)
