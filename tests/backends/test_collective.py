"""Plans of collective operations on the host."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lamina.backends import Call
from lamina.backends.collective import host_plan
from lamina.ops.primitives.collective import (
    AllGather,
    AllGatherEach,
    AllReduce,
    Arrived,
    Collective,
    StartAllReduce,
    StartReduceScatter,
)
from lamina.spec import Group, Spec, channels_last, dense, float32, int64


@pytest.mark.parametrize("kind", [AllGather, AllReduce, StartAllReduce])
def test_memory_is_row_major_on_all_ranks(kind: type[Collective]) -> None:
    plan = host_plan(kind(Group(0)), [Spec((2, 3, 4, 4), float32, channels_last((2, 3, 4, 4)))])
    assert all(s.is_contiguous for s in (*plan.inputs, *plan.outputs))


def test_reductions_take_every_layout_without_gaps_where_a_backend_lets_them() -> None:
    shape = (2, 8, 4, 4)
    lying = Spec(shape, float32, channels_last(shape))
    op = AllReduce(Group(0))
    assert op.results(op.operands([lying])) == (lying,)
    blocked = Spec(shape, float32, dense(shape, (0, 1, 2, 3), ((1, 8),)))
    gaps = replace(lying, layout=channels_last((2, 9, 4, 4)))
    assert all(s.is_contiguous for s in op.operands([blocked, gaps]))


def run(op: Collective, xs: Sequence[Any], ys: Sequence[Any]) -> None:
    specs = [Spec(x.shape, int64 if x.dtype.kind == "i" else float32) for x in xs]
    addresses = [tuple(a.ctypes.data for a in arrays) for arrays in (xs, ys)]
    host_plan(op, specs).bind(Call(*addresses))()


def test_a_bucket_is_unpacked_when_the_first_of_it_is_waited_for() -> None:
    rng = np.random.default_rng(0)
    shapes = [(2, 3), (0,), (4,), ()]
    xs = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    ys = [np.empty_like(x) for x in xs]
    run(StartAllReduce(Group(0), "mean"), xs, ys)
    for x, y in zip(xs, ys, strict=True):
        z = np.empty_like(x)
        run(Arrived(Group(0)), [y], [z])
        np.testing.assert_array_equal(z, x)


def test_parts_for_ranks_and_of_ranks_travel_side_by_side() -> None:
    xs = [np.arange(6, dtype=np.float32).reshape(1, 2, 3), np.ones((1, 4), np.float32)]
    ys = [np.empty(x.shape[1:], np.float32) for x in xs]
    run(StartReduceScatter(Group(0)), xs, ys)
    run(Arrived(Group(0)), ys[1:], ys[1:])
    for x, y in zip(xs, ys, strict=True):
        np.testing.assert_array_equal(y, x[0])
    mixed = [*ys, np.arange(3)]
    whole = [np.empty((1, *y.shape), y.dtype) for y in mixed]
    run(AllGatherEach(Group(0)), mixed, whole)
    for y, z in zip(mixed, whole, strict=True):
        np.testing.assert_array_equal(z[0], y)


def test_what_was_started_is_waited_for_where_it_lies_or_elsewhere() -> None:
    x, y, z = (np.full(3, value, np.float32) for value in (5.0, 0.0, 0.0))
    start, arrived = (
        host_plan(StartAllReduce(Group(0)), [Spec((3,), float32)]),
        host_plan(Arrived(Group(0)), [Spec((3,), float32)]),
    )
    assert (start.aliases, arrived.aliases) == ({0: 0}, {0: 0})
    start.bind(Call((x.ctypes.data,), (y.ctypes.data,)))()
    arrived.bind(Call((y.ctypes.data,), (z.ctypes.data,)))()
    np.testing.assert_array_equal(z, x)
