"""Handles: streams, workers, handles on demand, scratch memory, lifetime.

These tests also run on a driver in software with cuDNN's handle calls replaced (see test_handles.py).
"""

from __future__ import annotations

import gc
import itertools
import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from lamina.c import cudnn as c
from lamina.cudnn import legacy
from lamina.cudnn.handle import Handle as BaseHandle
from lamina.cudnn.handle import destroy_returned, handle_of
from lamina.cudnn.legacy import base
from lamina.runtime import Device, Stream, Worker

pytestmark = pytest.mark.gpu
SOFTWARE = bool(os.environ.get("LAMINA_TEST_SOFTWARE_HANDLES"))


class Counter:
    """Handles that exist: those that were created and not destroyed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.live: set[int] = set()
        self.threads: list[int] = []
        self.streams: dict[int, int] = {}
        numbers = itertools.count(0x1000, 16)
        create = (lambda: next(numbers)) if SOFTWARE else c.cudnnCreate
        destroy = (lambda handle: None) if SOFTWARE else c.cudnnDestroy

        def counted() -> int:
            self.threads.append(threading.get_ident())
            made = create()
            self.live.add(made)
            return made

        def uncounted(handle: int) -> None:
            destroy(handle)
            self.live.remove(handle)

        monkeypatch.setattr(c, "cudnnCreate", counted)
        monkeypatch.setattr(c, "cudnnDestroy", uncounted)
        if SOFTWARE:
            monkeypatch.setattr(c, "cudnnSetStream", self.streams.__setitem__)
            monkeypatch.setattr(c, "cudnnGetStream", lambda handle: self.streams.get(handle, 0))
            monkeypatch.setattr(c, "cudnnQueryRuntimeError", lambda *arguments: c.CUDNN_STATUS_SUCCESS)


@pytest.fixture
def handles(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter]:
    gc.collect()
    destroy_returned()
    counter = Counter(monkeypatch)
    yield counter
    gc.collect()
    destroy_returned()
    assert counter.live == set()


@pytest.fixture
def device() -> Device:
    return Device("cuda:0")


class ForeignStream(SimpleNamespace):
    """A stream as CuPy (ptr) and Numba (handle) have it."""


@pytest.mark.feature("F013", "F015")
def test_a_handle_has_the_devices_default_stream(handles: Counter, device: Device) -> None:
    with legacy.Handle() as handle:
        assert handle.device == device
        assert handle.stream == handle.get_stream() == device.default_stream.handle
        assert handle.runtime_stream is device.default_stream
        assert repr(handle).startswith("Handle(cuda:0, 0x")
        assert len(handles.live) == 1
        assert isinstance(handle, BaseHandle)
        handle.synchronize()
        assert handle.query_runtime_error() is c.CUDNN_STATUS_SUCCESS
    assert handles.live == set()
    assert repr(handle) == "Handle(cuda:0, closed)"


@pytest.mark.feature("F015")
def test_streams_of_any_kind(handles: Counter, device: Device) -> None:
    stream = device.stream()
    with legacy.Handle(device, stream=stream) as handle:
        assert handle.get_stream() == stream.handle
        assert handle.runtime_stream is stream
        for foreign in (
            stream.handle,
            SimpleNamespace(__cuda_stream__=lambda: (0, stream.handle)),
            SimpleNamespace(cuda_stream=stream.handle),
            ForeignStream(ptr=stream.handle),
            ForeignStream(handle=SimpleNamespace(value=stream.handle)),
        ):
            handle.use(None)
            assert handle.get_stream() == 0
            handle.use(foreign)
            assert handle.get_stream() == handle.stream == stream.handle
            assert handle.runtime_stream is None
            handle.synchronize()
    with pytest.raises(TypeError, match="a CUDA stream is wanted .*got 'fast'"):
        legacy.stream_address("fast")
    stream.close()


@pytest.mark.feature("F029", "F013")
def test_close_is_idempotent_and_use_after_it_is_typed(handles: Counter) -> None:
    handle = legacy.Handle()
    handle.close()
    handle.close()
    assert handle.closed
    for use in (lambda: handle.address, lambda: handle.native, lambda: handle.use(0), handle.get_stream):
        with pytest.raises(legacy.ClosedError, match="this Handle was closed"):
            use()
    x = legacy.TensorDescriptor((1, 1, 2, 2))
    with pytest.raises(legacy.ClosedError):
        legacy.scale_tensor(handle, y_desc=x, y=4096, alpha=2.0)


@pytest.mark.feature("F029")
def test_a_forgotten_handle_is_destroyed_by_the_next(handles: Counter) -> None:
    for _ in range(5):
        legacy.Handle()
    gc.collect()
    with legacy.Handle():
        assert len(handles.live) == 1


@pytest.mark.feature("F029")
def test_a_handle_outlives_its_close_while_a_call_uses_it(handles: Counter) -> None:
    handle = legacy.Handle()
    entered, proceed, seen = threading.Event(), threading.Event(), []

    def slow(address: int) -> None:
        entered.set()
        assert proceed.wait(10)
        seen.append(address in handles.live)

    thread = threading.Thread(target=base.call, args=(slow, handle))
    thread.start()
    assert entered.wait(10)
    handle.close()
    gc.collect()
    destroy_returned()
    assert len(handles.live) == 1
    proceed.set()
    thread.join()
    assert seen == [True]


@pytest.mark.feature("F016")
def test_a_worker_makes_all_calls(handles: Counter, device: Device) -> None:
    with Worker(device) as worker:
        where = worker.run(threading.get_ident)
        with legacy.Handle(worker=worker) as handle:
            assert handle.device == device
            assert handles.threads == [where]
            assert base.call(lambda address: threading.get_ident(), handle) == where
            assert "worker=Worker(cuda:0)" in repr(handle)
            with pytest.raises(ZeroDivisionError):
                base.call(lambda address: 1 / 0, handle)
        with pytest.raises(ValueError, match="is not the worker's"):
            legacy.Handle("cuda:1", worker=worker)


def test_a_handle_is_for_cuda() -> None:
    with pytest.raises(ValueError, match="cuDNN needs a CUDA device"):
        legacy.Handle("cpu")


@pytest.mark.feature("F014")
def test_handles_on_demand(handles: Counter, device: Device) -> None:
    streams: list[Stream] = [device.stream() for _ in range(3)]
    on_demand = legacy.Handles(limit=3)
    first = on_demand.get(device)
    assert on_demand.get("cuda:0", device.default_stream) is first
    others = [on_demand.get(device, stream) for stream in streams[:2]]
    assert len({first, *others}) == 3
    assert [one.stream for one in others] == [stream.handle for stream in streams[:2]]
    with pytest.raises(RuntimeError, match="3 handles on cuda:0 in this thread, the limit is 3"):
        on_demand.get(device, streams[2])
    others[0].close()
    replacement = on_demand.get(device, streams[2])
    assert replacement.stream == streams[2].handle
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(on_demand.get(device)))
    thread.start()
    thread.join()
    assert found[0] is not first  # another thread, another handle
    found.clear()
    on_demand.clear()
    assert first.closed
    assert on_demand.get(device) is not first
    on_demand.clear()
    with pytest.raises(ValueError, match="limit=0"):
        legacy.Handles(limit=0)
    mine = legacy.handle_for(device)
    assert legacy.handle_for(device) is mine
    mine.close()
    for stream in streams:
        stream.close()


@pytest.mark.feature("F035")
def test_scratch_is_shared_per_stream_and_grows(handles: Counter, device: Device) -> None:
    one, two = legacy.Handle(device), legacy.Handle(device)
    small = one.workspace(1000)
    assert small is not None
    assert small.nbytes >= 1000
    assert two.workspace(1000) is small  # the same stream
    assert one.workspace(0) is None
    large = two.workspace(small.nbytes + 1)
    assert large is not small
    stream = device.stream()
    two.use(stream)
    assert two.workspace(1000) is not one.workspace(1000)
    two.use(stream.handle)  # now somebody else's stream
    foreign = two.workspace(1000)
    assert two.workspace(10) is foreign
    grown = two.workspace(5000)
    assert grown is not None
    assert grown.nbytes >= 5000
    one.close()
    two.close()
    stream.close()


@pytest.mark.feature("F013")
def test_many_handles_come_and_go(handles: Counter) -> None:
    for i in range(20):
        handle = legacy.Handle()
        if i % 2:
            handle.close()
    del handle
    gc.collect()
    legacy.Handle().close()
    assert handles.live == set()


@pytest.mark.feature("F013", "F014", "F029")
def test_a_threads_handle_goes_with_the_thread(handles: Counter, device: Device) -> None:
    seen: list[int] = []
    for _ in range(3):
        thread = threading.Thread(target=lambda: seen.append(handle_of(device).address))
        thread.start()
        thread.join()
    gc.collect()
    assert len(set(seen)) >= 1
    destroy_returned()
    assert handles.live == set()
