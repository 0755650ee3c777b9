"""A thread's current device stays as it was, whatever is called.

Another context is made current, as another library would, then each call is made and the current context asked
for. On a driver in software it is a made-up one (see test_fake_driver.py).
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from lamina.runtime import Buffer, Device, Event, copy, from_host, to_host

pytestmark = pytest.mark.gpu
DRIVER = "libcuda.so.1"


def current() -> int:
    """The context that driver calls of this thread go to; 0 if none."""
    found = ctypes.c_void_p()
    assert ctypes.CDLL(DRIVER).cuCtxGetCurrent(ctypes.byref(found)) == 0
    return found.value or 0


def make_current(context: int) -> None:
    assert ctypes.CDLL(DRIVER).cuCtxSetCurrent(ctypes.c_void_p(context)) == 0


@pytest.fixture
def device() -> Device:
    found = Device("cuda:0")
    found.synchronize()
    return found


@pytest.fixture
def other(device: Device) -> Iterator[int]:
    """A context that is not the device's own."""
    if os.environ.get("LAMINA_TEST_SOFTWARE_DRIVER"):
        yield 0x1234
        return
    driver, context, before = ctypes.CDLL(DRIVER), ctypes.c_void_p(), current()
    assert driver.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
    assert context.value
    yield context.value
    assert driver.cuCtxDestroy_v2(context) == 0
    make_current(before)


def calls(device: Device, buffer: Buffer) -> dict[str, Callable[[], object]]:
    """Public calls that reach the driver."""
    stream, half = device.stream(), buffer.view(buffer.nbytes // 2, buffer.nbytes // 2)
    event = stream.record(Event(timing=True))

    def captured() -> None:
        with stream.capture() as graph:
            copy(half, buffer.view(0, half.nbytes), stream=stream)
        graph.launch()
        stream.synchronize()
        graph.close()

    def allocated() -> None:
        device.allocate(3 << 20).close()
        device.empty_cache()

    return {
        "allocate and free": allocated,
        "new stream": lambda: device.stream(priority=-1).close(),
        "event": lambda: stream.record(Event(timing=True)),
        "wait for an event": lambda: device.default_stream.wait(event),
        "elapsed": lambda: event.elapsed(stream.record(Event(timing=True))),
        "from host": lambda: from_host(np.ones(4), device),
        "to host": lambda: to_host(buffer),
        "copy": lambda: copy(half, buffer.view(0, half.nbytes)),
        "capture and launch": captured,
        "memory": lambda: (device.memory_info(), device.properties),
        "synchronize": device.synchronize,
    }


def changed(device: Device, context: int) -> dict[str, int]:
    """Calls after which another context is current than `context`, and which."""
    found = {}
    make_current(context)
    for name, run in calls(device, device.allocate(1 << 16)).items():
        make_current(context)
        run()
        if current() != context:
            found[name] = current()
    return found


@pytest.mark.feature("F114", "F016")
def test_no_call_changes_the_current_device(device: Device, other: int) -> None:
    assert changed(device, other) == {}
    make_current(other)
    with device.current():
        assert current() not in (0, other)
    assert current() == other


def test_no_call_changes_it_on_any_thread(device: Device, other: int) -> None:
    wrong: list[dict[str, int]] = []
    threads = [threading.Thread(target=lambda: wrong.append(changed(device, other))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [{}] * 4


def test_a_thread_without_a_device_keeps_the_one_that_it_used(device: Device) -> None:
    found: list[int] = []

    def work() -> None:
        found.append(current())
        device.synchronize()
        found.append(current())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found[0] == 0
    assert found[1] != 0
