"""Collectives in a graph: their order is fixed, and many small reductions become buckets that are sent early."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, nextafter
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
from lamina.ops.primitives.shape import After, Pad, Reshape

#: Bytes that justify a message of their own.
_LEAST = 1 << 20
#: Old results with new ones.
_Pairs: TypeAlias = "list[tuple[Value, Value]]"


def bucket_reductions(graph: Graph, report: Report | None = None) -> Graph:
    """Bucket tensors that are reduced or gathered together, in the order in which they are finished.

    A bucket's reduction is started right behind its last tensor, and waited for once the next one is in flight, so
    that it overlaps with the computation in between. The order is that of the recorded program, so that all ranks
    form the same buckets.
    """
    results: dict[Value, Value] = {}
    trailing: list[Node] = []  # light nodes since the last node that was not light
    for node in graph.nodes:
        if isinstance(node.op, AllReduceEach | ReduceScatterEach | AllGatherEach):
            buckets = list(_buckets(node, node.op.bucket_bytes, _Trailing(list(trailing), results)))
            results.update(_TRAVELLING[type(node.op)](node, buckets))
            if report is not None:
                report.merged[f"{len(node.inputs)} tensors in {len(buckets)} {_ONES[type(node.op)]}"] += 1
        if _is_light(node.op):
            trailing.append(node)
        else:
            trailing.clear()
    return replace(graph, results)


def _is_light(op: Op) -> bool:
    """Whether an op is cheap enough to run as soon as its operands are available."""
    return op.effect == "pure" and (op.elementwise or isinstance(op, Reshape | Pad))


class _Trailing:
    """Light nodes in front of a collective: gradients are cast, scaled and clipped once all of them are available.

    As recorded, all would be sent only after the last is finished: those of a bucket move up to the point where that
    bucket is complete.
    results: the values that replace others.
    """

    def __init__(self, nodes: Sequence[Node], results: dict[Value, Value]) -> None:
        self._nodes, self._results = nodes, results
        self._moved: set[Node] = set()
        self._finished: dict[Node, float] = {}
        for node in nodes:
            self._finished[node] = max(map(self.finished, node.inputs), default=-1.0)

    def finished(self, value: Value) -> float:
        """The earliest time of a value: the serial of the last node, light ones aside, that it needs."""
        if value.node is None:
            return -1.0
        return self._finished.get(value.node, value.node.serial)

    def moved_up(self, values: Sequence[Value]) -> list[Value]:
        """The values, computed as soon as the last of them can be."""
        serial, needed = nextafter(max(map(self.finished, values)), inf), {v.node for v in values}
        for node in reversed(self._nodes):
            if node in needed:
                needed.update(v.node for v in node.inputs)
        for node in self._nodes:
            if node in needed and node not in self._moved:
                self._moved.add(node)
                inputs = [self._latest(v) for v in node.inputs]
                made = Node(node.op, inputs, node.policy, serial, origin=node.origin)
                self._results.update(zip(node.outputs, made.outputs, strict=True))
        return [self._latest(v) for v in values]

    def _latest(self, value: Value) -> Value:
        while value in self._results:
            value = self._results[value]
        return value


def keep_order(graph: Graph, report: Report | None = None) -> Graph:
    """Make each collective depend on the one before, so that no later pass can swap two of them."""
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
    """Tensors of one element type, with their positions among the inputs of the collective."""

    places: Sequence[int]
    values: Sequence[Value]


def _buckets(node: Node, limit: int, trailing: _Trailing) -> Iterator[_Bucket]:
    """The buckets in the order in which they become full."""
    finished = [trailing.finished(v) for v in node.inputs]
    order = sorted(range(len(finished)), key=finished.__getitem__)
    full: list[list[int]] = []
    for dtype in dict.fromkeys(node.inputs[i].dtype for i in order):
        alike = [i for i in order if node.inputs[i].dtype == dtype]
        full += _filled([_Sent(i, node.inputs[i].spec.nbytes, finished[i]) for i in alike], limit)
    for places in sorted(full, key=lambda places: finished[places[-1]]):
        yield _Bucket(places, trailing.moved_up([node.inputs[i] for i in places]))


@dataclass(frozen=True)
class _Sent:
    """One tensor to send: which input, how many bytes, and when it is finished."""

    place: int
    nbytes: int
    finished: float


def _filled(tensors: Sequence[_Sent], limit: int) -> Iterator[list[int]]:
    """Tensors in buckets, in order. What waits in front of a tensor that fills a bucket is sent first, if it
    justifies a message.

    The last buckets are small: each is half of the remainder, so that little is in flight when all is computed.
    Tensors that are finished together are not split for that, nor is a small remainder of them sent by itself.
    """
    left = sum(x.nbytes for x in tensors)
    held, size, last = list[int](), 0, len(tensors) - 1
    for i, x in enumerate(tensors):
        if x.nbytes >= limit and size >= _LEAST:
            yield held
            held, size = [], 0
        held.append(x.place)
        size, left = size + x.nbytes, left - x.nbytes
        goes_on = i < last and tensors[i + 1].finished == x.finished
        enough = limit if goes_on else min(limit, max((size + left) // 2, _LEAST))
        crumbs = tensors[last].finished == x.finished and 0 < left < min(_LEAST, limit // 8)
        if size >= enough and not crumbs:
            yield held
            held, size = [], 0
    if held:
        yield held


def _reduced(node: Node, buckets: Sequence[_Bucket]) -> _Pairs:
    """The results of an `AllReduceEach` by buckets."""
    op = node.op
    assert isinstance(op, AllReduceEach)
    if op.group.size == 1:
        return list(zip(node.outputs, node.inputs, strict=True))
    start = StartAllReduce(op.group, op.reduction)
    started = list(_in_turn(start, buckets, node))
    return [
        (node.outputs[place], _arrived(x, started[i + 1 :], [], node))
        for i, bucket in enumerate(buckets)
        for place, x in zip(bucket.places, started[i], strict=True)
    ]


def _scattered(node: Node, buckets: Sequence[_Bucket]) -> _Pairs:
    """The results of a `ReduceScatterEach` by buckets."""
    op = node.op
    assert isinstance(op, ReduceScatterEach)
    start = StartReduceScatter(op.group, op.reduction)
    started = list(_in_turn(start, buckets, node))
    return [  # buffers being sent stay in place until the message has arrived
        (node.outputs[place], _arrived(x, started[i + 1 :], [sent], node))
        for i, bucket in enumerate(buckets)
        for place, x, sent in zip(bucket.places, started[i], bucket.values, strict=True)
    ]


def _gathered(node: Node, buckets: Sequence[_Bucket]) -> _Pairs:
    """The results of an `AllGatherEach` by buckets."""
    return [
        (node.outputs[place], x)
        for bucket, whole in zip(buckets, _in_turn(node.op, buckets, node), strict=True)
        for place, x in zip(bucket.places, whole, strict=True)
    ]


def _in_turn(op: Op, buckets: Sequence[_Bucket], at: Node) -> Iterator[tuple[Value, ...]]:
    """An op applied to each bucket, right behind its last tensor and the previous bucket's op."""
    serial = 0.0
    for bucket in buckets:
        made = Node(op, bucket.values, at.policy, serial, origin=at.origin)
        serial = nextafter(made.serial, inf)
        yield made.outputs


def _arrived(x: Value, later: Sequence[Sequence[Value]], held: Sequence[Value], at: Node) -> Value:
    """A started collective, waited for when the next of the later buckets is in flight; `held` stays alive until
    then."""
    op = at.op
    assert isinstance(op, Collective)
    following = [started[0] for started in later[:1]]
    return _placed(Arrived(op.group), [x, *following, *held], at).outputs[0]


#: By the op that is bucketed: the function that does it, and the name of a bucket in reports.
_TRAVELLING: Mapping[type[Op], Callable[[Node, Sequence[_Bucket]], _Pairs]] = {
    AllReduceEach: _reduced,
    ReduceScatterEach: _scattered,
    AllGatherEach: _gathered,
}
_ONES = {AllReduceEach: "all-reduces", ReduceScatterEach: "reduce-scatters", AllGatherEach: "all-gathers"}


def _placed(op: Op, inputs: Sequence[Value], at: Node) -> Node:
    """A node right behind its operands."""
    return Node(op, inputs, at.policy, 0.0, origin=at.origin)
