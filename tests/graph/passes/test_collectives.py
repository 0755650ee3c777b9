"""Collective operations keep their order, and small reductions become buckets that travel early."""

from typing import Any

import numpy as np

from lamina import backends, device, ops
from lamina.distributed import all_reduce_each
from lamina.graph import Graph, trace
from lamina.graph.ir.graph import constant
from lamina.graph.passes.canonicalize import common_subexpressions, fold_constants
from lamina.graph.passes.collectives import _filled, _Sent, bucket_reductions, keep_order
from lamina.graph.passes.manager import optimize
from lamina.graph.passes.pattern import Report
from lamina.ops.core import bind
from lamina.ops.primitives.collective import AllGatherEach, AllReduce, ReduceScatterEach
from lamina.spec import Group, Spec, float16, float32, int64

PAIR = Group(0, 1)
X = Spec((4, 4), float32)


def names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


def layers(x: Any) -> list[Any]:
    """Three results, one after the other, the last asked for first."""
    a = ops.softmax(x, 1)
    b = ops.softmax(a, 0)
    c = ops.softmax(b, 1)
    return all_reduce_each([c, b, a], group=PAIR, bucket_bytes=100)


def test_each_bucket_starts_behind_its_last_tensor_and_is_waited_for_behind_the_next_start() -> None:
    graph = bucket_reductions(trace(layers, X))
    order = names(graph)
    starts = [i for i, n in enumerate(order) if n == "start_all_reduce"]
    arrived = [i for i, n in enumerate(order) if n == "arrived"]
    assert [len(graph.nodes[i].inputs) for i in starts] == [2, 1]
    assert len(arrived) == 3
    last = max(i for i, node in enumerate(graph.nodes) if node.op.name == "softmax")
    assert (
        starts[0] < last < starts[1] < arrived[0]
    )  # the last result is computed while the first bucket travels
    assert [v.shape for v in graph.outputs] == [(4, 4)] * 3


def in_turn(*sizes: int) -> list[_Sent]:
    """Tensors of so many bytes, finished one after the other."""
    return [_Sent(i, nbytes, i) for i, nbytes in enumerate(sizes)]


def test_the_last_buckets_are_small_and_large_tensors_send_before_them_what_waits() -> None:
    kib, mib = 1 << 10, 1 << 20
    sizes = [3 * mib, 200 * kib, 40 * mib, 30 * mib, *[4 * mib] * 7, 2 * mib, mib, 500 * kib, 100 * kib]
    buckets = list(_filled(in_turn(*sizes), 12 * mib))
    assert [i for bucket in buckets for i in bucket] == list(range(len(sizes)))
    assert buckets[:3] == [[0, 1], [2], [3]]
    sums = [sum(sizes[i] for i in bucket) // mib for bucket in buckets[3:]]
    assert sums == [12, 12, 4, 2, 1, 0]
    assert list(_filled(in_turn(600 * kib, 600 * kib, 100), 25 * mib)) == [[0, 1], [2]]
    # Too little to go alone:
    assert list(_filled(in_turn(100, 30 * mib, 100), 25 * mib)) == [[0, 1], [2]]


def test_what_is_finished_at_once_is_parted_where_a_message_is_full_alone() -> None:
    """As the gradients of all layers of a recurrent network are."""
    kib, mib = 1 << 10, 1 << 20
    sizes = [8 * mib, 8 * mib, 16 * kib, 16 * kib] * 2
    before = _Sent(0, 2 * mib, 0)
    at_once = [before, *(_Sent(1 + i, nbytes, 1) for i, nbytes in enumerate(sizes))]
    assert list(_filled(at_once, 25 * mib)) == [[0, 1, 2, 3, 4, 5], [6, 7, 8]]
    assert list(_filled(at_once, 100 * mib)) == [[*range(9)]]
    assert list(_filled(at_once, 16 * mib)) == [
        [0, 1, 2],
        [3, 4, 5, 6, 7, 8],
    ]  # crumbs go with what is before them


def test_each_bucket_is_waited_for_behind_the_start_of_the_next() -> None:
    def f(x: Any) -> list[Any]:
        found = [x]
        for _ in range(4):
            found.append(ops.softmax(found[-1], 1))
        return all_reduce_each(found[1:], group=PAIR, bucket_bytes=64)

    report = Report()
    graph = bucket_reductions(trace(f, X), report)
    assert report.merged == {"4 tensors in 4 all-reduces": 1}
    starts = [n for n in graph.nodes if n.op.name == "start_all_reduce"]
    arrived = {n.inputs[0]: n for n in graph.nodes if n.op.name == "arrived"}
    assert len(starts) == 4
    for start, following in zip(starts, [*starts[1:], None], strict=True):
        others = arrived[start.outputs[0]].inputs[1:]
        assert others == (() if following is None else following.outputs[:1])


def test_limits_of_buckets_are_exact() -> None:
    mib = 1 << 20
    assert list(_filled(in_turn(mib, 2 * mib, 1), 2 * mib)) == [[0], [1], [2]]
    assert list(_filled(in_turn(mib - 1, 2 * mib, 1), 2 * mib)) == [[0, 1], [2]]
    assert list(_filled(in_turn(*[60, 39] * 3), 100)) == [[0, 1, 2], [3, 4, 5]]
    assert list(_filled(in_turn(*[60, 40] * 2), 100)) == [[0, 1], [2, 3]]
    # Half of what is left, with what is held: 8 of 16 MiB, 4 of 8, 2 of 4, and 1 twice.
    halves = list(_filled(in_turn(*[mib] * 16), 100 * mib))
    assert [len(bucket) for bucket in halves] == [8, 4, 2, 1, 1]
    # What went alone is not left any more.
    alone = list(_filled(in_turn(100 * mib, *[mib] * 8), 50 * mib))
    assert [len(bucket) for bucket in alone] == [1, 4, 2, 1, 1]
    assert not list(_filled([], 100))


def test_types_do_not_share_a_bucket_and_no_tensor_is_copied() -> None:
    def f(x: Any, n: Any) -> Any:
        return all_reduce_each([x, n, x + 1.0], "sum", group=PAIR, bucket_bytes=64)

    graph = bucket_reductions(trace(f, X, Spec((3,), int64)))
    assert set(names(graph)) == {"add", "start_all_reduce", "arrived"}
    assert names(graph).count("start_all_reduce") == 3


def test_what_is_cast_behind_the_last_tensor_travels_when_it_is_there() -> None:
    def f(x: Any) -> list[Any]:
        a = ops.softmax(x, 1)
        b = ops.softmax(a @ a, 1)
        c = ops.softmax(b @ b, 1)
        wide = [ops.reshape(v.cast("float32") * 2.0, (2, 8)) for v in (a, b, c)]
        means = all_reduce_each(wide, group=PAIR, bucket_bytes=64)
        return [*means, wide[0] + 1.0]

    graph = bucket_reductions(trace(f, Spec((4, 4), float16)))
    order = names(graph)
    assert order.count("cast") == 3
    starts = [i for i, n in enumerate(order) if n == "start_all_reduce"]
    softmaxes = [i for i, n in enumerate(order) if n == "softmax"]
    assert softmaxes[0] < starts[0] < softmaxes[1] < starts[1] < softmaxes[2] < starts[2]
    assert order[-1] == "add"


def pieces(x: Any) -> list[Any]:
    """What ranks with pieces do: reduce, update, gather."""
    a = ops.softmax(x[:2], 1)
    b = ops.softmax(a, 1)
    own = bind(ReduceScatterEach(PAIR, "mean", 64), ops.softmax(b, 1), b, a)
    return list(bind(AllGatherEach(PAIR, 20), *(o + 1.0 for o in own)))


def test_pieces_travel_in_buckets_and_what_is_sent_stays_until_it_has_arrived() -> None:
    graph = bucket_reductions(trace(pieces, X))
    starts = [n for n in graph.nodes if n.op.name == "start_reduce_scatter"]
    arrived = [n for n in graph.nodes if n.op.name == "arrived"]
    gathers = [n for n in graph.nodes if n.op.name == "all_gather_each"]
    assert [len(n.inputs) for n in (*starts, *gathers)] == [2, 1, 2, 1]
    first = graph.nodes.index(starts[0])
    assert any(n.op.name == "softmax" for n in graph.nodes[first:])  # computed while the first bucket travels
    pairs = [pair for start in starts for pair in zip(start.inputs, start.outputs, strict=True)]
    for (sent, started), end in zip(pairs, arrived, strict=True):
        assert started is end.inputs[0]
        assert any(sent is x for x in end.inputs)
    assert [v.shape for v in graph.outputs] == [(2, 4)] * 3
    order = names(keep_order(graph))
    travelling = ("start_reduce_scatter", "all_gather_each")
    assert [n for n in order if n in travelling] == ["start_reduce_scatter"] * 2 + ["all_gather_each"] * 2


def test_for_one_rank_nothing_is_left() -> None:
    graph = trace(lambda x: all_reduce_each([ops.relu(x)], group=Group(0)), X)
    assert names(bucket_reductions(graph)) == ["relu"]


def twice(x: Any) -> Any:
    op = AllReduce(PAIR, "sum")
    return bind(op, x)[0], bind(op, x)[0]


def test_equal_ones_stay_apart_in_their_order() -> None:
    graph = trace(twice, X)
    assert names(common_subexpressions(graph)) == ["all_reduce"] * 2
    ordered = keep_order(graph)
    assert names(ordered) == ["all_reduce", "after", "all_reduce"]
    first, after, second = ordered.nodes
    assert after.inputs[1] is first.outputs[0]
    assert second.inputs[0] is after.outputs[0]
    assert names(optimize(graph, backends.get(device("cpu")))) == ["all_reduce", "after", "all_reduce"]


def test_a_constant_is_reduced_by_all() -> None:
    two = constant(np.full((4, 4), 2.0, np.float32))
    graph = trace(lambda x: x + bind(AllReduce(PAIR, "sum"), two)[0], X)
    assert "all_reduce" in names(fold_constants(graph))
