"""Collective operations in a graph: their order is fixed, and many small reductions become buckets that travel
early."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lamina.graph.ir.graph import Graph, Node, Value
from lamina.graph.passes.pattern import Report, replace
from lamina.ops.core import Op
from lamina.ops.primitives.collective import AllReduceEach, Arrived, Collective, StartAllReduce
from lamina.ops.primitives.shape import After, Concat, Reshape, Slice


def bucket_reductions(graph: Graph, report: Report | None = None) -> Graph:
    """Make buckets of tensors that are reduced together, in the order in which they are finished.

    A bucket is started right behind its last tensor, and waited for when the next one is on its way: what lies
    between
    runs beside it. The order is that of the program as it was recorded, so that all ranks make the same buckets.
    """
    results: dict[Value, Value] = {}
    for node in graph.nodes:
        if isinstance(node.op, AllReduceEach):
            made = list(_travelling(node, node.op))
            results.update(pair for pairs in made for pair in pairs)
            if report is not None:
                report.merged[f"{len(node.inputs)} tensors in {len(made)} all-reduces"] += 1
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


def _travelling(node: Node, op: AllReduceEach) -> Iterator[list[tuple[Value, Value]]]:
    """For each bucket the old results with the new ones."""
    if op.group.size == 1:
        yield list(zip(node.outputs, node.inputs, strict=True))
        return
    buckets = list(_buckets(node, op.bucket_bytes))
    start = StartAllReduce(op.group, op.reduction)
    started = [_placed(start, [_packed(bucket, node)], node).outputs[0] for bucket in buckets]
    for i, bucket in enumerate(buckets):
        (arrived,) = _placed(Arrived(op.group), started[i : i + 2], node).outputs
        yield [
            (node.outputs[place], x)
            for place, x in zip(bucket.places, _unpacked(arrived, bucket, node), strict=True)
        ]


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


def _unpacked(arrived: Value, bucket: _Bucket, at: Node) -> Iterator[Value]:
    if len(bucket.values) == 1:
        yield arrived
        return
    begin = 0
    for value in bucket.values:
        end = begin + value.spec.numel
        part = _placed(Slice((begin,), (end,), (1,)), [arrived], at).outputs[0]
        yield _placed(Reshape(value.shape), [part], at).outputs[0]
        begin = end
