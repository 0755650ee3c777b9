"""Devices as values, and streams and events of the CPU."""

import os
import pickle
import time
from typing import Any

import pytest

from lamina.runtime import (
    Device,
    DeviceError,
    Event,
    Workspaces,
    _cuda,
    compute_device,
    device,
    devices,
    managed,
)

CPU = Device("cpu")


@pytest.mark.feature("F038", "F039")
def test_a_device_is_a_value() -> None:
    assert Device("cuda") == Device("cuda:0") != Device("cuda:1")
    assert {Device("cpu"), Device("cpu:0"), Device(CPU)} == {CPU}
    assert (Device("cuda:3").kind, Device("cuda:3").index, str(Device("cuda:3"))) == ("cuda", 3, "cuda:3")
    assert repr(CPU) == "Device('cpu')"
    assert pickle.loads(pickle.dumps(Device("cuda:2"))) == Device("cuda:2")
    assert CPU != "cpu"
    with pytest.raises(AttributeError, match="value"):
        CPU.index = 1


@pytest.mark.parametrize("bad", ["gpu", "cpu:1", "cuda:", "cuda:-1", "cuda:x", "", "CUDA", 0])
def test_bad_specs_are_named(bad: Any) -> None:
    with pytest.raises(ValueError, match="expected 'cpu', 'cuda' or 'cuda:N', got"):
        Device(bad)


@pytest.mark.feature("F038")
def test_the_cpu_is_the_first_device() -> None:
    found = devices()
    assert found[0] == CPU
    assert all(place.kind == "cuda" for place in found[1:])
    assert device("auto") == device(None) == found[min(1, len(found) - 1)]
    assert device(CPU) == device("cpu") == CPU


@pytest.mark.feature("F038")
def test_the_cpu_tells_about_itself() -> None:
    properties = CPU.properties
    assert CPU.name == properties["name"] != ""
    assert properties["arch"] == os.uname().machine
    assert 1 <= properties["cores"] <= (os.cpu_count() or 1)
    free, total = CPU.memory_info()
    assert 0 < free <= total == properties["total_memory"]
    CPU.make_current()
    CPU.synchronize()
    assert not CPU.can_access_peer(Device("cuda:1"))
    with pytest.raises(DeviceError, match="no peer access"):
        CPU.enable_peer_access(Device("cuda:0"))


def test_the_arena_is_reached_through_the_device() -> None:
    CPU.reserve(1 << 16)
    assert CPU.statistics().held >= 1 << 16
    CPU.reset_peak()
    CPU.empty_cache()
    CPU.set_cap(1 << 40)
    assert CPU.statistics().cap == 1 << 40
    CPU.set_cap(None)


def test_managed_memory_is_host_memory_on_the_cpu() -> None:
    buffer = managed(10, CPU)
    assert (buffer.nbytes, buffer.device, buffer.host) == (10, CPU, True)


@pytest.mark.feature("F036")
def test_host_streams_are_done_at_once() -> None:
    with CPU.stream(priority=-1) as stream:
        event = stream.record()
        stream.wait(event)
        stream.wait(CPU.default_stream)
        assert event.query()
        assert stream.query()
        stream.synchronize()
        assert (stream.handle, stream.device, stream.capturing, stream.closed) == (0, CPU, False, False)
        assert stream.__cuda_stream__() == (0, 0)
    stream.close()
    assert CPU.default_stream is CPU.default_stream


@pytest.mark.feature("F036")
def test_events_measure_host_time() -> None:
    start, end = Event(timing=True), Event(timing=True)
    assert not start.recorded
    start.record(CPU.default_stream)
    time.sleep(0.02)
    CPU.default_stream.record(end)
    assert 20 <= start.elapsed(end) < 2000
    assert end.elapsed(start) <= -20


@pytest.mark.feature("F036")
def test_events_that_cannot_measure_say_why() -> None:
    timed, plain = Event(timing=True), Event()
    with pytest.raises(DeviceError, match="start event was never recorded"):
        timed.elapsed(timed)
    plain.record(CPU.default_stream)
    timed.record(CPU.default_stream)
    with pytest.raises(DeviceError, match="end event was made without timing"):
        timed.elapsed(plain)


def test_a_host_stream_cannot_be_captured() -> None:
    with pytest.raises(DeviceError, match="cpu runs each call at once"), CPU.default_stream.capture():
        pass


@pytest.mark.feature("F035")
def test_workspaces_grow_and_are_shared_per_stream() -> None:
    spaces = Workspaces(CPU, reserve=100)
    other = CPU.stream()
    first = spaces.get(10)
    assert first.nbytes >= 100
    assert spaces.get(50) is first
    grown = spaces.get(first.nbytes + 1)
    assert grown.nbytes > first.nbytes
    assert spaces.get(1) is grown
    assert spaces.get(1, other) is not grown
    assert set(spaces.sizes()) == {CPU.default_stream, other}
    spaces.clear()
    assert spaces.sizes() == {}


@pytest.mark.feature("F035")
def test_workspaces_keep_their_cap() -> None:
    spaces = Workspaces(CPU, cap=1000)
    assert spaces.get(1000).nbytes == 1000
    with pytest.raises(ValueError, match="1001 bytes asked for on cpu, the cap is 1000"):
        spaces.get(1001)


@pytest.mark.parametrize(("gpus", "place", "own"), [(4, 0, 0), (4, 3, 3), (2, 3, 1), (1, 3, 0), (0, 3, 0)])
def test_each_process_of_a_machine_has_a_gpu(
    monkeypatch: pytest.MonkeyPatch, gpus: int, place: int, own: int
) -> None:
    monkeypatch.setattr(_cuda, "probe", lambda: _cuda.Driver(gpus, 13000, "libcuda.so.1", ""))
    monkeypatch.setattr(compute_device, "_place", 0)
    compute_device.take_gpu(place)
    assert str(Device("cuda")) == f"cuda:{own}"
    assert str(Device("cuda:0")) == "cuda:0"
    assert str(device()) == (f"cuda:{own}" if gpus else "cpu")
