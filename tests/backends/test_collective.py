"""Plans of collective operations on the host."""

import numpy as np

from lamina.backends import Call
from lamina.backends.collective import host_plan
from lamina.ops.primitives.collective import AllGather, Arrived, StartAllReduce
from lamina.spec import Group, Spec, channels_last, float32


def test_memory_is_row_major_on_all_ranks() -> None:
    plan = host_plan(AllGather(Group(0)), [Spec((2, 3, 4, 4), float32, channels_last((2, 3, 4, 4)))])
    assert all(s.is_contiguous for s in (*plan.inputs, *plan.outputs))


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
