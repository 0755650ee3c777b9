"""Many threads, each with its own handle and stream; two workers on two GPUs."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from lamina.cudnn import legacy
from lamina.runtime import Device, Worker, copy, devices, from_host, to_host

pytestmark = pytest.mark.gpu
SHAPE, CALLS, THREADS = (4, 16, 16, 16), 1000, 16


@pytest.mark.feature("F013", "F014", "F029")
def test_sixteen_threads_with_handles_of_their_own() -> None:
    """Each thread scales and adds in place; every value is exact, so that one lost call shows."""
    device = Device("cuda:0")
    wrong: list[str] = []

    def work(number: int) -> None:
        stream = device.stream()
        values = np.full(SHAPE, float(number), np.float32)
        with legacy.Handle(device, stream=stream) as handle:
            x, one = from_host(values, device), from_host(np.ones(SHAPE, np.float32), device)
            for _ in range(CALLS):
                desc = legacy.TensorDescriptor(SHAPE)
                legacy.add_tensor(handle, a_desc=desc, a=one, c_desc=desc, c=x)
                desc.close()
            handle.synchronize()
            found = to_host(x).view(np.float32)
            if not (found == number + CALLS).all():
                wrong.append(f"thread {number}: {np.unique(found)[:5]}")
        stream.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.feature("F016", "F114", "F031")
@pytest.mark.skipif(len(devices()) < 3, reason="needs two GPUs")
def test_two_workers_on_two_gpus() -> None:
    places = [Device("cuda:0"), Device("cuda:1")]
    places[0].make_current()
    results = []
    for number, place in enumerate(places):
        with Worker(place) as worker, legacy.Handle(worker=worker) as handle:
            x = from_host(np.full(SHAPE, 1.0 + number, np.float32), place)
            desc = legacy.TensorDescriptor(SHAPE)
            for _ in range(10):
                legacy.scale_tensor(handle, y_desc=desc, y=x, alpha=2.0)
            handle.synchronize()
            results.append(x)
    assert all((to_host(x).view(np.float32) == 1024.0 * (1 + i)).all() for i, x in enumerate(results))
    there = places[1].allocate(results[0].nbytes)
    copy(there, results[0])
    assert np.array_equal(to_host(there), to_host(results[0]))
