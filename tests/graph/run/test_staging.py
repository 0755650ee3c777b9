"""Host arrays pass through buffers in turn; threads that fill at once each have one."""

import numpy as np

from lamina.graph.run.staging import Staging
from lamina.runtime import Device
from tests.helpers.many_threads import in_threads


def test_each_array_arrives_as_it_was_when_it_was_filled_in() -> None:
    device = Device("cpu")
    staging, target = Staging(device, 64), device.allocate(64)
    array = np.empty(16, np.float32)
    for i in range(5):
        array[:] = i
        staged = staging.fill(array)
        array[:] = -1
        staged.send(target, device.default_stream)
        assert target.array((16,), np.float32).tolist() == [i] * 16


def test_many_threads_fill_before_any_sends() -> None:
    device = Device("cpu")
    staging, target = Staging(device, 4096), device.allocate(4096)
    filled = in_threads(lambda k: staging.fill(np.full(1024, k, np.float32)), 6)
    assert len({s.buffer.pointer for s in filled}) == 6
    for k, staged in enumerate(filled):
        staged.send(target, device.default_stream)
        assert set(target.array((1024,), np.float32)) == {k}
