"""Collective operations in a graph: their order is fixed, and many small reductions become buckets that travel
early."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from lamina.graph.ir.graph import Graph, Node, Value
from lamina.graph.passes.pattern import Report, replace
from lamina.ops.core import Op
from lamina.ops.primitives.collective import (
    AllGather,
    AllGatherEach,
    AllReduceEach,
    Arrived,
    Collective,
    ReduceScatterEach,
    StartAllReduce,
    StartReduceScatter,
)
from lamina.ops.primitives.shape import After, Concat, Reshape, Slice
from lamina.spec import Shape

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
    started = [_placed(start, [_packed(bucket, node)], node).outputs[0] for bucket in buckets]
    for i, bucket in enumerate(buckets):
        (arrived,) = _placed(Arrived(op.group), started[i : i + 2], node).outputs
        yield _matched(node, bucket, _unpacked(arrived, [v.shape for v in bucket.values], node))


def _scattered(node: Node) -> Iterator[_Pairs]:
    """For each bucket of a `ReduceScatterEach` the old results with the new ones."""
    op = node.op
    assert isinstance(op, ReduceScatterEach)
    buckets = list(_buckets(node, op.bucket_bytes))
    start = StartReduceScatter(op.group, op.reduction)
    packed = [_packed_apart(bucket, node) for bucket in buckets]
    started = [_placed(start, [x], node).outputs[0] for x in packed]
    for i, bucket in enumerate(buckets):
        # What is sent stays where it is until it has arrived.
        (arrived,) = _placed(Arrived(op.group), [*started[i : i + 2], packed[i]], node).outputs
        yield _matched(node, bucket, _unpacked(arrived, [v.shape[1:] for v in bucket.values], node))


def _gathered(node: Node) -> Iterator[_Pairs]:
    """For each bucket of an `AllGatherEach` the old results with the new ones."""
    op = node.op
    assert isinstance(op, AllGatherEach)
    for bucket in _buckets(node, op.bucket_bytes):
        (whole,) = _placed(AllGather(op.group), [_packed(bucket, node)], node).outputs
        yield _matched(node, bucket, _unpacked_apart(whole, [v.shape for v in bucket.values], node))


def _matched(node: Node, bucket: _Bucket, made: Iterator[Value]) -> _Pairs:
    return [(node.outputs[place], x) for place, x in zip(bucket.places, made, strict=True)]


#: By what becomes buckets: how, and what reports call one.
_TRAVELLING: Mapping[type[Op], Callable[[Node], Iterator[_Pairs]]] = {
    AllReduceEach: _reduced,
    ReduceScatterEach: _scattered,
    AllGatherEach: _gathered,
}
_ONES = {AllReduceEach: "all-reduces", ReduceScatterEach: "reduce-scatters", AllGatherEach: "all-gathers"}


def _buckets(node: Node, limit: int) -> Iterator[_Bucket]:
    """In the order in which they are full; a tensor that fills one alone is one, and needs no copy."""
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


def _packed(bucket: _Bucket, at: Node) -> Value:
    """The tensors of a bucket, one behind the other."""
    if len(bucket.values) == 1:
        return bucket.values[0]
    flat = [_placed(Reshape((v.spec.numel,)), [v], at).outputs[0] for v in bucket.values]
    return _placed(Concat(0), flat, at).outputs[0]


def _unpacked(arrived: Value, shapes: Sequence[Shape], at: Node) -> Iterator[Value]:
    """The tensors of a bucket."""
    if len(shapes) == 1:
        yield arrived
        return
    begin = 0
    for shape in shapes:
        end = begin + math.prod(shape)
        part = _placed(Slice((begin,), (end,), (1,)), [arrived], at).outputs[0]
        yield _placed(Reshape(shape), [part], at).outputs[0]
        begin = end


def _packed_apart(bucket: _Bucket, at: Node) -> Value:
    """Tensors [ranks, ...] as one [ranks, elements]."""
    if len(bucket.values) == 1:
        return bucket.values[0]
    size = bucket.values[0].shape[0]
    flat = [_placed(Reshape((size, v.spec.numel // size)), [v], at).outputs[0] for v in bucket.values]
    return _placed(Concat(1), flat, at).outputs[0]


def _unpacked_apart(whole: Value, shapes: Sequence[Shape], at: Node) -> Iterator[Value]:
    """Of [ranks, elements] the tensors [ranks, *shape]."""
    if len(shapes) == 1:
        yield whole
        return
    size, begin = whole.shape[0], 0
    for shape in shapes:
        end = begin + math.prod(shape)
        part = _placed(Slice((0, begin), (size, end), (1, 1)), [whole], at).outputs[0]
        yield _placed(Reshape((size, *shape)), [part], at).outputs[0]
        begin = end
