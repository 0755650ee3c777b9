"""Many threads, each with its own handle and stream; two workers on two GPUs."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import lamina as lm
from lamina import cudnn
from lamina.cudnn import legacy
from lamina.runtime import Buffer, Device, Worker, copy, devices, from_host, to_host

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


two_gpus = pytest.mark.skipif(len(devices()) < 3, reason="needs two GPUs")  # the CPU is one of them


@pytest.fixture
def places() -> tuple[Device, Device]:
    return Device("cuda:0"), Device("cuda:1")


@two_gpus
@pytest.mark.feature("F016", "F114")
def test_two_workers_on_two_gpus_run_at_once(places: tuple[Device, Device]) -> None:
    """Each waits for the other between its calls, which two that take turns could not do."""
    meeting = threading.Barrier(2, timeout=60)

    def program(handle: legacy.Handle, number: int) -> Buffer:
        place, desc = handle.device, legacy.TensorDescriptor(SHAPE)
        x = from_host(np.full(SHAPE, 1.0 + number, np.float32), place)
        for _ in range(10):
            legacy.scale_tensor(handle, y_desc=desc, y=x, alpha=2.0)
            meeting.wait()
            assert current_device() == place.index
        handle.synchronize()
        return x

    places[0].make_current()
    workers = [Worker(place) for place in places]
    handles = [legacy.Handle(worker=worker) for worker in workers]
    pending = [
        worker.submit(program, handle, number)
        for number, (worker, handle) in enumerate(zip(workers, handles, strict=True))
    ]
    results = [one.result(timeout=120) for one in pending]
    assert current_device() == 0
    for number, (x, place) in enumerate(zip(results, places, strict=True)):
        assert x.device == place
        assert (to_host(x).view(np.float32) == 1024.0 * (1 + number)).all()
    for one in (*handles, *workers):
        one.close()


@two_gpus
@pytest.mark.feature("F031")
def test_a_copy_from_gpu_to_gpu_is_equal(places: tuple[Device, Device]) -> None:
    values = np.random.default_rng(0).integers(0, 256, 5_000_011, dtype=np.uint8)
    first, second = places
    for peers in (False, True):
        if peers and first.can_access_peer(second):
            first.enable_peer_access(second)
            second.enable_peer_access(first)
        here, there, back = (
            from_host(values, first),
            second.allocate(values.size),
            first.allocate(values.size),
        )
        copy(there, here)
        copy(back, there)
        np.testing.assert_array_equal(to_host(there), values)
        np.testing.assert_array_equal(to_host(back), values)


def current_device() -> int:
    """The number of the device that driver calls of this thread go to."""
    found = ctypes.c_int(-1)
    assert ctypes.CDLL("libcuda.so.1").cuCtxGetDevice(ctypes.byref(found)) == 0
    return found.value


def calls(place: Device) -> dict[str, Callable[[], object]]:
    """Public calls for one device: handles, descriptors' operations, graphs and plans, eager operations."""
    handle, desc = legacy.Handle(place), legacy.TensorDescriptor(SHAPE)
    x = from_host(np.ones(SHAPE, np.float32), place)
    graph = cudnn.Graph()
    a, b = (graph.packed(SHAPE, "float32", channels_last=True) for _ in range(2))
    graph.pointwise("relu_fwd", a, out=b)
    target = cudnn.handle_of(place)
    plan = graph.plan(target)
    y, workspace = place.allocate(x.nbytes), place.allocate(plan.workspace)
    pack = cudnn.VariantPack({a.uid: x.pointer, b.uid: y.pointer}, workspace.pointer)
    tensor = lm.tensor(np.ones((4, 4), np.float32), device=str(place))
    return {
        "handle": lambda: legacy.Handle(place).close(),
        "handle's stream": lambda: handle.use(place.stream()),
        "operation": lambda: legacy.scale_tensor(handle, y_desc=desc, y=x, alpha=2.0),
        "workspace": lambda: handle.workspace(1 << 20),
        "dropout": lambda: legacy.Dropout(handle, rate=0.5),
        "plan": lambda: graph.plan(target),
        "bound plan": plan.bind(target, pack, 0),
        "recorded plan": lambda: plan.record(target, pack).launch(),
        "eager": lambda: (tensor + tensor).numpy(),
        "synchronize": handle.synchronize,
    }


@two_gpus
@pytest.mark.feature("F016", "F114", "F115")
@pytest.mark.parametrize("home", [0, 1])
def test_no_call_changes_the_current_device(places: tuple[Device, Device], home: int) -> None:
    """From the main thread and from four others, each with calls for both devices."""

    def changed() -> list[str]:
        places[home].make_current()
        found = []
        for place in (places[1 - home], places[home]):
            for name, run in calls(place).items():
                places[home].make_current()
                run()
                found += [f"{name} for {place}"] if current_device() != home else []
        return found

    assert changed() == []
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda _: changed(), range(4))) == [[]] * 4
