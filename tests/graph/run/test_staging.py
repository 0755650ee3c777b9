"""Host arrays pass through buffers in turn; threads that fill at once each have one."""

import numpy as np
import pytest

from lamina.graph.run.staging import Staging
from lamina.runtime import Device
from tests.helpers.many_threads import in_threads


@pytest.mark.parametrize("count", [16, 20_000])  # small ones go straight to their place
def test_each_array_arrives_as_it_was_when_it_was_filled_in(count: int) -> None:
    device = Device("cpu")
    staging, target = Staging(device, 4 * count), device.allocate(4 * count)
    array = np.empty(count, np.float32)
    for i in range(5):
        array[:] = i
        staged = staging.fill(array)
        array[:] = -1
        staged.send(target, device.default_stream)
        assert target.array((count,), np.float32).tolist() == [i] * count


@pytest.mark.parametrize("count", [1024, 20_000])
def test_many_threads_fill_before_any_sends(count: int) -> None:
    device = Device("cpu")
    staging, target = Staging(device, 4 * count), device.allocate(4 * count)
    filled = in_threads(lambda k: staging.fill(np.full(count, k, np.float32)), 6)
    assert len({s.buffer.pointer for s in filled}) == 6
    for k, staged in enumerate(filled):
        staged.send(target, device.default_stream)
        assert set(target.array((count,), np.float32)) == {k}
    Staging(device, 0).fill(np.empty(0, np.float32)).send(device.allocate(0), device.default_stream)
