"""The runtime on a CUDA device, but for kernels (test_gpu_kernels.py).

These tests also run on the software driver of tests/helpers/stubs (see test_fake_driver.py), so that the way through
NVIDIA's bindings is walked on every machine.
"""

import gc
import io
import os
import threading
import weakref
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest

from lamina.runtime import (
    CapturedGraph,
    CudaStream,
    Device,
    DeviceError,
    DeviceFile,
    Event,
    NoGpuError,
    OutOfMemoryError,
    Worker,
    Workspaces,
    _cuda,
    compile_kernel,
    copy,
    copy_2d,
    copy_3d,
    device,
    devices,
    early_starts,
    from_host,
    libraries,
    managed,
    memset,
    move,
    pinned,
    to_host,
)

pytestmark = pytest.mark.gpu
MIB = 1 << 20


@pytest.fixture
def gpu() -> Device:
    return device("cuda:0")


def sample(nbytes: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


# ---------------------------------------------------------------------------------------------------- devices
@pytest.mark.feature("F038")
def test_devices_are_found(gpu: Device) -> None:
    found = devices()
    assert found[:2] == [Device("cpu"), gpu]
    assert device("auto") == gpu
    assert gpu.name
    with pytest.raises(NoGpuError, match="shows"):
        device(f"cuda:{len(found)}")
    with pytest.raises(NoGpuError, match="does not exist"):
        Device("cuda:99").allocate(1)


@pytest.mark.feature("F038")
def test_properties(gpu: Device) -> None:
    properties = gpu.properties
    major, minor = properties["compute_capability"]
    assert properties["arch"] == f"sm_{major}{minor}"
    assert properties["name"] == gpu.name
    assert properties["multiprocessor_count"] > 0
    assert properties["max_threads_per_block"] >= 512
    assert "max" not in properties  # the end of the list of attributes
    assert [len(part) for part in properties["uuid"].split("-")] == [8, 4, 4, 4, 12]
    assert not gpu.can_access_peer(gpu)
    free, total = gpu.memory_info()
    assert 0 < free <= total == properties["total_memory"]


@pytest.mark.feature("F038")
def test_driver_library_is_listed(gpu: Device) -> None:
    gpu.synchronize()
    driver = next(library for library in libraries() if library.name == "driver")
    assert driver.found == "loaded"


@pytest.mark.feature("F038")
def test_a_device_is_no_peer_of_itself(gpu: Device) -> None:
    assert not gpu.can_access_peer(gpu)
    assert not gpu.can_access_peer(Device("cpu"))
    with pytest.raises(DeviceError, match="cannot access"):
        gpu.enable_peer_access(gpu)


@pytest.mark.feature("F031", "F038")
@pytest.mark.skipif(len(devices()) < 3, reason="needs two GPUs")
def test_peers() -> None:
    one, two = Device("cuda:0"), Device("cuda:1")
    data = sample(MIB)
    there = move(from_host(data, one), two)
    assert there.device == two
    assert np.array_equal(to_host(there), data)
    if one.can_access_peer(two):
        one.enable_peer_access(two)
        one.enable_peer_access(two)


# ----------------------------------------------------------------------------------------------------- memory
@pytest.mark.feature("F030")
def test_allocation_and_reuse(gpu: Device) -> None:
    before = gpu.statistics()
    buffer = gpu.allocate(1000)
    pointer = buffer.pointer
    assert pointer % 256 == 0
    assert not buffer.host
    with pytest.raises(ValueError, match="not accessible to the CPU"):
        buffer.array((1000,), np.uint8)
    buffer.close()
    assert gpu.allocate(1000).pointer == pointer
    after = gpu.statistics()
    assert after.allocations - before.allocations == 2
    assert after.in_use <= before.in_use
    assert gpu.allocate(0).pointer == 0


@pytest.mark.feature("F034")
def test_streams_do_not_share_freed_memory(gpu: Device) -> None:
    one, two = gpu.stream(), gpu.stream()
    buffer = gpu.allocate(12345, stream=one)
    pointer = buffer.pointer
    buffer.close()
    assert gpu.allocate(12345, stream=two).pointer != pointer
    assert gpu.allocate(12345, stream=one).pointer == pointer


@pytest.mark.feature("F034")
def test_memory_of_a_closed_stream_is_used_again(gpu: Device) -> None:
    stream = gpu.stream()
    buffer = gpu.allocate(54321, stream=stream)
    pointer = buffer.pointer
    stream.close()
    stream.close()
    buffer.close()
    assert gpu.allocate(54321).pointer == pointer
    with pytest.raises(DeviceError, match="is closed"):
        stream.synchronize()


@pytest.mark.feature("F034")
@pytest.mark.parametrize("close", [True, False])
def test_streams_that_are_over_leave_nothing_behind(gpu: Device, close: bool) -> None:
    before, nbytes = gpu.statistics().held, 777777 + MIB * close
    gone = []
    for _ in range(50):
        stream = gpu.stream()
        gpu.allocate(nbytes, stream=stream).close()
        stream.synchronize()
        if close:
            stream.close()
        gone.append(weakref.ref(stream.queue))
        del stream
    assert gpu.allocate(nbytes).nbytes == nbytes
    assert not any(queue() for queue in gone)
    assert gpu.statistics().held <= before + 2 * MIB


@pytest.mark.feature("F034")
def test_a_closed_stream_is_refused(gpu: Device) -> None:
    stream = gpu.stream()
    buffer = gpu.allocate(64, stream=stream)
    stream.close()
    for use in (
        lambda: copy(buffer, bytes(64), stream=stream),
        lambda: memset(buffer, 1, stream),
        lambda: gpu.allocate(8, stream=stream),
        lambda: DeviceFile(buffer, stream),
        lambda: stream.record(),
        lambda: gpu.default_stream.wait(stream),
        lambda: stream.__cuda_stream__(),
    ):
        with pytest.raises(DeviceError, match=r"Stream\(cuda:0, .*\) is closed"):
            use()


def test_a_stream_is_not_closed_within_its_capture(gpu: Device) -> None:
    stream, buffer = gpu.stream(), gpu.allocate(64)
    with stream.capture() as graph:
        memset(buffer, 3, stream)
        with pytest.raises(DeviceError, match="close: .* is being captured; end the capture first"):
            stream.close()
        with pytest.raises(DeviceError, match="capture: .* is being captured already"), stream.capture():
            pass
    graph.keep(buffer)
    graph.launch()
    stream.synchronize()
    assert set(to_host(buffer)) == {3}
    stream.close()
    with pytest.raises(DeviceError, match="is closed"):
        graph.launch()


@pytest.mark.feature("F034")
def test_empty_cache_gives_memory_back(gpu: Device) -> None:
    gpu.empty_cache()
    held, free = gpu.statistics().held, gpu.memory_info().free
    gpu.allocate(256 * MIB).close()
    assert gpu.statistics().held == held + 256 * MIB
    taken = gpu.memory_info().free
    gpu.empty_cache()
    assert gpu.statistics().held <= held
    # The driver sees it too. Other processes may take or give some memory of the same GPU meanwhile: half tells.
    assert taken <= free - 128 * MIB
    assert gpu.memory_info().free >= taken + 128 * MIB


@pytest.mark.feature("F034")
def test_reserve(gpu: Device) -> None:
    gpu.reserve(64 * MIB)
    held = gpu.statistics().held
    buffers = [gpu.allocate(3 * MIB) for _ in range(10)]
    assert gpu.statistics().held == held
    for buffer in buffers:
        buffer.close()
    gpu.empty_cache()
    assert gpu.statistics().reserved == 0


@pytest.mark.feature("B040")
def test_out_of_memory_is_survived(gpu: Device) -> None:
    total = gpu.memory_info().total
    kept = from_host(b"kept", gpu)
    for _ in range(50):
        with pytest.raises(OutOfMemoryError, match="cuda:0: out of memory") as caught:
            gpu.allocate(total + (1 << 30))
        assert caught.value.requested == total + (1 << 30)
        assert caught.value.in_use >= 4
    assert to_host(kept).tobytes() == b"kept"
    assert gpu.allocate(MIB).nbytes == MIB


@pytest.mark.feature("B040", "F034")
def test_cap(gpu: Device) -> None:
    gpu.empty_cache()
    gpu.set_cap(gpu.statistics().held + 4 * MIB)
    try:
        first = gpu.allocate(3 * MIB)
        with pytest.raises(OutOfMemoryError, match="cap"):
            gpu.allocate(3 * MIB)
        first.close()
        assert gpu.allocate(4 * MIB).nbytes == 4 * MIB
    finally:
        gpu.set_cap(None)


def test_no_growth(gpu: Device) -> None:
    """By the arena's own figures: the free memory of the whole GPU is other processes' too."""
    for nbytes in range(1, 60000, 7):
        gpu.allocate(nbytes)
    gc.collect()
    before = gpu.statistics()
    for _ in range(5):
        for nbytes in range(1, 60000, 7):
            gpu.allocate(nbytes)
    gc.collect()
    after = gpu.statistics()
    assert after.held <= before.held
    assert (after.live, after.in_use) <= (before.live, before.in_use)
    asked = after.allocations - before.allocations
    assert after.hits - before.hits == asked == 5 * len(range(1, 60000, 7))


@pytest.mark.feature("F030")
def test_managed_memory(gpu: Device) -> None:
    buffer = managed(1000, gpu)
    memset(buffer, 5)
    array = buffer.array((1000,), np.uint8)
    assert (array == 5).all()
    with pytest.raises(OutOfMemoryError, match="managed"):
        managed(gpu.memory_info().total * 2, gpu)


@pytest.mark.feature("F035")
def test_workspaces(gpu: Device) -> None:
    spaces, stream = Workspaces(gpu), gpu.stream()
    first = spaces.get(MIB)
    assert spaces.get(100) is first
    assert spaces.get(100, stream) is not first
    assert spaces.get(5 * MIB).nbytes >= 5 * MIB


# ----------------------------------------------------------------------------------------------------- copies
@pytest.mark.feature("F031")
@pytest.mark.parametrize("nbytes", [0, 1, 1000, 5 * MIB + 3])
def test_round_trip(gpu: Device, nbytes: int) -> None:
    data = sample(nbytes)
    buffer = from_host(data, gpu)
    again = gpu.allocate(nbytes)
    copy(again, buffer)
    assert np.array_equal(to_host(again), data)
    assert np.array_equal(to_host(move(again, Device("cpu"))), data)


@pytest.mark.feature("F031")
def test_asynchronous_copies_with_pinned_memory(gpu: Device) -> None:
    stream = gpu.stream()
    data = sample(3 * MIB)
    source, target = pinned(data.nbytes), pinned(data.nbytes)
    assert source.pinned
    copy(source, data)
    buffer = gpu.allocate(data.nbytes, stream=stream)
    copy(buffer, source, stream=stream)
    copy(target, buffer, stream=stream)
    stream.synchronize()
    assert np.array_equal(target.array((data.nbytes,), np.uint8), data)


@pytest.mark.feature("F031")
def test_pinned_memory_is_not_reused_under_a_copy(gpu: Device) -> None:
    """Each of 40 pinned sources is dropped right after its copy was queued."""
    stream, data = gpu.stream(), [sample(MIB, seed) for seed in range(40)]
    buffers = []
    for chunk in data:
        source = pinned(MIB)
        copy(source, chunk)
        buffers.append(gpu.allocate(MIB, stream=stream))
        copy(buffers[-1], source, stream=stream)
        source.close()
    stream.synchronize()
    for buffer, chunk in zip(buffers, data, strict=True):
        assert np.array_equal(to_host(buffer, stream=stream), chunk)


@pytest.mark.feature("F031")
def test_pitched_copies(gpu: Device) -> None:
    source = sample(5 * 40).reshape(5, 40)
    there, back = gpu.allocate(5 * 32), np.zeros((5, 40), np.uint8)
    copy_2d(there, source, width=30, height=5, destination_pitch=32, source_pitch=40)
    copy_2d(back, there, width=30, height=5, destination_pitch=40, source_pitch=32)
    assert np.array_equal(back[:, :30], source[:, :30])
    assert not back[:, 30:].any()


@pytest.mark.feature("F031")
def test_blocks(gpu: Device) -> None:
    source = sample(4 * 6 * 16).reshape(4, 6, 16)
    there, back = gpu.allocate(4 * 5 * 12), np.zeros((4, 6, 16), np.uint8)
    shape = (4, 5, 11)
    stream = gpu.stream()
    copy_3d(there, source, shape=shape, destination_strides=(60, 12), source_strides=(96, 16), stream=stream)
    copy_3d(back, there, shape=shape, destination_strides=(96, 16), source_strides=(60, 12), stream=stream)
    stream.synchronize()
    expected = np.zeros_like(back)
    expected[:, :5, :11] = source[:, :5, :11]
    assert np.array_equal(back, expected)


@pytest.mark.feature("F030")
def test_memset(gpu: Device) -> None:
    buffer = gpu.allocate(1000)
    memset(buffer, 255)
    memset(buffer.view(10, 20), 7, gpu.default_stream)
    gpu.synchronize()
    expected = np.full(1000, 255, np.uint8)
    expected[10:30] = 7
    assert np.array_equal(to_host(buffer), expected)


def test_a_host_stream_is_refused_for_gpu_memory(gpu: Device) -> None:
    with pytest.raises(ValueError, match="cannot be reached from"):
        memset(gpu.allocate(8), 0, Device("cpu").default_stream)
    with pytest.raises(ValueError, match="is not a stream of cuda:0"):
        gpu.allocate(8, stream=Device("cpu").default_stream)


# ---------------------------------------------------------------------------------------------------- streams
@pytest.mark.feature("F036")
def test_streams(gpu: Device) -> None:
    low, high = gpu.stream_priorities
    for priority in (low + 1, high - 1):
        with pytest.raises(ValueError, match=rf"priority must be from {high} to {low}, got {priority}"):
            gpu.stream(priority=priority)
    stream = gpu.stream(priority=-1)
    assert isinstance(stream, CudaStream)
    assert (stream.device, stream.priority) == (gpu, -1)
    assert stream.handle != gpu.default_stream.handle != 0
    assert stream.__cuda_stream__() == (0, stream.handle)
    stream.synchronize()
    assert stream.query()
    assert gpu.default_stream is gpu.default_stream
    gpu.default_stream.close()
    assert not gpu.default_stream.closed
    with stream:
        pass
    assert stream.closed


@pytest.mark.feature("F036")
def test_events(gpu: Device) -> None:
    stream, other = gpu.stream(), gpu.stream()
    start, end = Event(timing=True), Event(timing=True)
    start.record(stream)
    memset(gpu.allocate(64 * MIB, stream=stream), 0, stream)
    stream.record(end)
    other.wait(end)
    other.wait(stream)
    assert start.elapsed(end) > 0
    assert end.query()
    assert end.handle != 0
    with pytest.raises(DeviceError, match="without timing"):
        start.elapsed(stream.record())
    host = Event(timing=True).record(Device("cpu").default_stream)
    with pytest.raises(DeviceError, match="one event is on a CPU stream"):
        start.elapsed(host)


@pytest.mark.feature("F037")
def test_a_captured_graph_is_replayed(gpu: Device) -> None:
    stream = gpu.stream()
    source, target = gpu.allocate(MIB, stream=stream), gpu.allocate(MIB, stream=stream)
    memset(target, 9, stream)
    with stream.capture() as graph:
        assert stream.capturing
        copy(target, source, stream=stream)
        memset(target.view(0, 10), 1, stream)
        graph.keep(source, target)
    assert not stream.capturing
    assert graph.node_count == 2
    for value in (3, 4):
        memset(source, value, stream)
        graph.launch()
        found = to_host(target, stream=stream)
        assert (found[:10] == 1).all()
        assert (found[10:] == value).all()
    graph.launch(gpu.stream())
    gpu.synchronize()
    graph.close()
    graph.close()
    assert graph.closed
    with pytest.raises(DeviceError, match="closed"):
        graph.launch()


@pytest.mark.feature("F037")
def test_copies_of_a_captured_graph_move(gpu: Device) -> None:
    """To and from other memory of the same kinds at each launch; what was launched keeps its addresses."""
    stream = gpu.stream()
    sources = [from_host(np.full(MIB, k, np.uint8), gpu, stream=stream) for k in range(3)]
    place, ends = gpu.allocate(MIB, stream=stream), [pinned(MIB) for _ in range(3)]
    with stream.capture() as graph:
        copy(place, sources[0], stream=stream)
        memset(place.view(0, 1), 9, stream)
        copy(ends[0], place, stream=stream)
    there, back = graph.copy_to(place.pointer), graph.copy_to(ends[0].pointer)
    assert (there.source, there.destination) == (sources[0].pointer, place.pointer)
    for source, end in zip(sources, ends, strict=True):
        there.read_from(source.pointer)
        back.write_to(end.pointer)
        graph.launch()
    stream.synchronize()
    assert [end.array((MIB,), np.uint8)[[0, 1, -1]].tolist() for end in ends] == [[9, k, k] for k in range(3)]
    with pytest.raises(DeviceError, match="cuGraphExecMemcpyNodeSetParams failed"):
        there.read_from(0)
    assert there.source == sources[2].pointer
    graph.launch()
    with pytest.raises(DeviceError, match="the graph has no copy to"):
        graph.copy_to(sources[0].pointer)
    graph.close()
    with pytest.raises(DeviceError, match="closed"):
        there.read_from(sources[1].pointer)
    with pytest.raises(DeviceError, match="closed"):
        graph.copy_to(place.pointer)


@pytest.mark.feature("F037")
def test_memory_may_be_allocated_while_capturing(gpu: Device) -> None:
    gpu.empty_cache()
    stream = gpu.stream()
    with stream.capture() as graph:
        fresh = gpu.allocate(7 * MIB, stream=stream)
        memset(fresh, 6, stream)
        graph.keep(fresh)
        gpu.allocate(100, stream=gpu.stream()).used_on(stream)
    graph.launch()
    assert (to_host(fresh, stream=stream) == 6).all()
    assert gpu.statistics().live >= 1


@pytest.mark.feature("B035")
def test_libraries_wait_for_what_is_queued_before(gpu: Device) -> None:
    """A memset stands in between; not in a graph that is captured here, whose edges are made whole, but in another
    library's."""
    stream = gpu.stream()
    wait = partial(gpu.platform.wait_for_ends, stream.handle)
    early = gpu.machine.capability >= 90
    wait()
    with stream.capture() as graph:
        memset(gpu.allocate(8, stream=stream), 1, stream)
        wait()
    assert graph.node_count == 1
    for within in (early_starts, nullcontext):
        with gpu.current(), within():
            _cuda.call("cuStreamBeginCapture", stream.handle, _cuda.open_cuda().driver.CUstreamCaptureMode(2))
            wait()
            foreign = _cuda.call("cuStreamEndCapture", stream.handle)
            assert _cuda.call("cuGraphGetNodes", foreign, 0)[1] == (early and within is nullcontext)
            _cuda.call("cuGraphDestroy", foreign)
    Device("cpu").platform.wait_for_ends(0)


@pytest.mark.feature("F037")
def test_an_exception_ends_the_capture(gpu: Device) -> None:
    stream = gpu.stream()
    graphs: list[CapturedGraph] = []

    def fail() -> None:
        with stream.capture() as graph:
            graphs.append(graph)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not stream.capturing
    with pytest.raises(DeviceError, match="has not ended"):
        graphs[0].launch()
    with pytest.raises(ValueError, match="mode must be one of"), stream.capture("never"):
        pass
    memset(gpu.allocate(8, stream=stream), 0, stream)
    stream.synchronize()


# --------------------------------------------------------------------------------------------------- a kernel
STORE = 'extern "C" __global__ void store(int* place, int value) { *place = value + OFFSET; }'


@pytest.mark.feature("F037", "F040")
def test_a_kernel_is_compiled_launched_and_captured(gpu: Device) -> None:
    store = compile_kernel(STORE, "store", device=gpu, defines={"OFFSET": 0})
    assert store is compile_kernel(STORE, "store", device="cuda", defines={"OFFSET": 0})
    assert store.parameter_sizes == (8, 4)
    stream = gpu.stream()
    place = from_host(np.zeros(1, np.int32), gpu, stream=stream)
    store.launch(1, 1, place, 7, stream=stream)
    assert to_host(place, stream=stream).view(np.int32)[0] == 7
    again = store.prepare((1, 1, 1), (1,), place, np.int32(-8), stream=stream)
    with stream.capture() as graph:
        again()
        graph.keep(again)
    assert to_host(place, stream=stream).view(np.int32)[0] == 7
    graph.launch()
    assert to_host(place, stream=stream).view(np.int32)[0] == -8
    grid, block = store.suggest(1_000_000, limit=128)
    assert 1 <= grid[0] <= gpu.properties["multiprocessor_count"] * store.resident_blocks(block[0])
    assert block[0] <= 128
    with pytest.raises(TypeError, match="kernel store: takes 2 arguments, got 1"):
        store.launch(1, 1, place)
    with pytest.raises(TypeError, match="argument 1 has 8 bytes, the parameter has 4"):
        store.launch(1, 1, place, np.int64(1))
    with pytest.raises(DeviceError, match="no kernel 'other' for cuda:0 in its source"):
        compile_kernel(STORE, "other", device=gpu, defines={"OFFSET": 0})


# ------------------------------------------------------------------------------------------ threads and files
@pytest.mark.feature("F032")
def test_device_memory_as_a_file(gpu: Device) -> None:
    for stream in (None, gpu.stream()):
        f = DeviceFile(gpu.allocate(1000, stream=stream), stream)
        np.save(f, np.arange(100))
        f.seek(0)
        assert np.load(f).tolist() == list(range(100))
        f.seek(-4, io.SEEK_END)
        f.write(b"tail")
        assert f.read(1) == b""
        f.seek(996)
        buffered = io.BufferedReader(f)
        assert buffered.read() == b"tail"
        buffered.detach()
        with pytest.raises(OSError, match="exceeds a buffer of 1000 bytes"):
            f.write(b"x")


@pytest.mark.feature("F016")
def test_a_worker_has_its_device(gpu: Device) -> None:
    data = sample(1000)

    def work() -> Any:
        return to_host(from_host(data, gpu))

    with Worker("cuda:0") as worker:
        assert worker.device == gpu
        assert np.array_equal(worker.run(work), data)


def test_any_thread_may_use_the_device(gpu: Device) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        stream, data = gpu.stream(), sample(70000, seed)
        for _ in range(20):
            buffer = from_host(data, gpu, stream=stream)
            if not np.array_equal(to_host(buffer, stream=stream), data):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings(
    "ignore:os.fork.* was called:RuntimeWarning"
)  # by JAX, where another test imported it
def test_a_forked_child_says_that_it_must_be_spawned(gpu: Device) -> None:
    buffer = from_host(bytes(64), gpu)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        text = b""
        for use in (lambda: to_host(buffer), gpu.synchronize, lambda: Device("cuda:0").stream()):
            try:
                use()
            except DeviceError as error:
                text += str(error).encode() + b"\n"
        os.write(write, text)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answers:
        lines = answers.read().splitlines()
    os.waitpid(child, 0)
    assert len(lines) == 3
    assert all("multiprocessing.get_context('spawn')" in line for line in lines)
    assert to_host(buffer).tobytes() == bytes(64)
