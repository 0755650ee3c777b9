"""Collective operations in a graph: their order is fixed, and many small reductions become buckets that travel
early."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from lamina.graph.ir.graph import Graph, Node, Value
from lamina.graph.passes.pattern import Report, replace
from lamina.ops.core import Op
from lamina.ops.primitives.collective import (
    AllGatherEach,
    AllReduceEach,
    Arrived,
    Collective,
    ReduceScatterEach,
    StartAllReduce,
    StartReduceScatter,
)
from lamina.ops.primitives.shape import After

#: Old results with new ones.
_Pairs: TypeAlias = "list[tuple[Value, Value]]"


def bucket_reductions(graph: Graph, report: Report | None = None) -> Graph:
    """Make buckets of tensors that are reduced or gathered together, in the order in which they are finished.

    A bucket of a reduction is started right behind its last tensor, and waited for when the next one is on its way:
    what lies between runs beside it. The order is that of the program as it was recorded, so that all ranks make the
    same buckets.
    """
    results: dict[Value, Value] = {}
    for node in graph.nodes:
        travelling = _TRAVELLING.get(type(node.op))
        if travelling is not None:
            made = list(travelling(node))
            results.update(pair for pairs in made for pair in pairs)
            if report is not None:
                report.merged[f"{len(node.inputs)} tensors in {len(made)} {_ONES[type(node.op)]}"] += 1
    return replace(graph, results)


def keep_order(graph: Graph, report: Report | None = None) -> Graph:
    """Let each collective operation wait for the one before: no later pass can exchange two of them."""
    results: dict[Value, Value] = {}
    before: Node | None = None
    for node in graph.nodes:
        if isinstance(node.op, Collective) and not isinstance(node.op, Arrived):
            if before is not None:
                (first,) = _placed(After(), [node.inputs[0], before.outputs[0]], node).outputs
                made = Node(node.op, (first, *node.inputs[1:]), node.policy, node.serial, origin=node.origin)
                results.update(zip(node.outputs, made.outputs, strict=True))
            before = node
    return replace(graph, results)


@dataclass(frozen=True)
class _Bucket:
    """Tensors of one element type, with their places among the inputs of what reduces them."""

    places: Sequence[int]
    values: Sequence[Value]


def _reduced(node: Node) -> Iterator[_Pairs]:
    """For each bucket of an `AllReduceEach` the old results with the new ones."""
    op = node.op
    assert isinstance(op, AllReduceEach)
    if op.group.size == 1:
        yield list(zip(node.outputs, node.inputs, strict=True))
        return
    buckets = list(_buckets(node, op.bucket_bytes))
    start = StartAllReduce(op.group, op.reduction)
    started = [_placed(start, bucket.values, node).outputs for bucket in buckets]
    for i, bucket in enumerate(buckets):
        yield _matched(node, bucket, [_arrived(x, started[i + 1 :], [], node) for x in started[i]])


def _scattered(node: Node) -> Iterator[_Pairs]:
    """For each bucket of a `ReduceScatterEach` the old results with the new ones."""
    op = node.op
    assert isinstance(op, ReduceScatterEach)
    buckets = list(_buckets(node, op.bucket_bytes))
    start = StartReduceScatter(op.group, op.reduction)
    started = [_placed(start, bucket.values, node).outputs for bucket in buckets]
    for i, bucket in enumerate(buckets):
        # What is sent stays where it is until it has arrived.
        pairs = zip(started[i], bucket.values, strict=True)
        yield _matched(node, bucket, [_arrived(x, started[i + 1 :], [sent], node) for x, sent in pairs])


def _gathered(node: Node) -> Iterator[_Pairs]:
    """For each bucket of an `AllGatherEach` the old results with the new ones."""
    assert isinstance(node.op, AllGatherEach)
    for bucket in _buckets(node, node.op.bucket_bytes):
        yield _matched(node, bucket, _placed(node.op, bucket.values, node).outputs)


def _arrived(x: Value, later: Sequence[Sequence[Value]], held: Sequence[Value], at: Node) -> Value:
    """What was started, waited for when the next of the later buckets is on its way; others are held until then."""
    op = at.op
    assert isinstance(op, Collective)
    following = [started[0] for started in later[:1]]
    return _placed(Arrived(op.group), [x, *following, *held], at).outputs[0]


def _matched(node: Node, bucket: _Bucket, made: Sequence[Value]) -> _Pairs:
    return [(node.outputs[place], x) for place, x in zip(bucket.places, made, strict=True)]


#: By what becomes buckets: how, and what reports call one.
_TRAVELLING: Mapping[type[Op], Callable[[Node], Iterator[_Pairs]]] = {
    AllReduceEach: _reduced,
    ReduceScatterEach: _scattered,
    AllGatherEach: _gathered,
}
_ONES = {AllReduceEach: "all-reduces", ReduceScatterEach: "reduce-scatters", AllGatherEach: "all-gathers"}


def _buckets(node: Node, limit: int) -> Iterator[_Bucket]:
    """In the order in which they are full; a tensor that fills one is one."""
    order = sorted(range(len(node.inputs)), key=lambda i: _finished(node.inputs[i]))
    full: list[list[int]] = []
    for dtype in dict.fromkeys(node.inputs[i].dtype for i in order):
        held, size = list[int](), 0
        for i in (i for i in order if node.inputs[i].dtype == dtype):
            nbytes = node.inputs[i].spec.nbytes
            if nbytes >= limit:
                full.append([i])
                continue
            held, size = [*held, i], size + nbytes
            if size >= limit:
                full.append(held)
                held, size = [], 0
        full += [held] if held else []
    for places in sorted(full, key=lambda places: _finished(node.inputs[places[-1]])):
        yield _Bucket(places, [node.inputs[i] for i in places])


def _finished(value: Value) -> float:
    """When a value is there."""
    return -1.0 if value.node is None else value.node.serial


def _placed(op: Op, inputs: Sequence[Value], at: Node) -> Node:
    """A node right behind what it reads."""
    return Node(op, inputs, at.policy, 0.0, origin=at.origin)
