"""Kernels on a CUDA device: launched, captured, measured, refused."""

from unittest.mock import Mock

import numpy as np
import pytest

from lamina.runtime import (
    Device,
    DeviceError,
    Event,
    Kernel,
    Stream,
    _cuda,
    compile_kernel,
    device,
    from_host,
    memset,
    to_host,
)

pytestmark = pytest.mark.gpu

SAXPY = r"""
extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
extern "C" __global__ void spin(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles) {}
}
extern "C" __global__ void add_one(int* x) { atomicAdd(x, 1); }
extern "C" __global__ void reverse(int* x, int n) {
    extern __shared__ int cache[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) cache[i] = x[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = cache[n - 1 - i];
}
"""


@pytest.fixture
def gpu() -> Device:
    return device("cuda:0")


def kernel(name: str) -> Kernel:
    return compile_kernel(SAXPY, name, device="cuda:0")


@pytest.mark.feature("F040")
def test_saxpy(gpu: Device) -> None:
    n = 100_003
    x, y = (np.random.default_rng(s).standard_normal(n, np.float32) for s in (1, 2))
    there_x, there_y = from_host(x, gpu), from_host(y, gpu)
    saxpy = kernel("saxpy")
    assert saxpy.parameter_sizes == (4, 8, 8, 4)
    saxpy.launch(-(-n // 256), 256, 2.0, there_x, there_y, n)
    gpu.synchronize()
    assert np.allclose(to_host(there_y).view(np.float32), 2 * x + y, atol=1e-6)
    typed = (np.float32(-2), np.uint64(there_x.pointer), there_y.pointer, np.int32(n))
    saxpy.launch((-(-n // 128), 1), (128, 1, 1), *typed, stream=gpu.default_stream)
    gpu.synchronize()
    assert np.allclose(to_host(there_y).view(np.float32), y, atol=1e-5)


@pytest.mark.feature("F040")
def test_a_kernel_is_loaded_once(gpu: Device) -> None:
    assert kernel("saxpy") is kernel("saxpy")
    assert "saxpy" in repr(kernel("saxpy"))


@pytest.mark.feature("F040")
def test_much_shared_memory(gpu: Device) -> None:
    n = 16384  # 64 KiB: more than a launch gets without asking
    buffer = from_host(np.arange(n, dtype=np.int32), gpu)
    kernel("reverse").launch(1, 1024, buffer, n, shared=4 * n)
    gpu.synchronize()
    assert np.array_equal(to_host(buffer).view(np.int32), np.arange(n)[::-1])


@pytest.mark.feature("F037", "F040")
def test_kernels_are_captured_and_replayed(gpu: Device) -> None:
    stream = gpu.stream()
    counter = gpu.allocate(4, stream=stream)
    memset(counter, 0, stream)
    step = kernel("add_one").prepare(1, 32, counter, stream=stream)
    with stream.capture() as graph:
        for _ in range(10):
            step()
        graph.keep(step)
    assert graph.node_count == 10
    for _ in range(100):
        graph.launch()
    assert to_host(counter, stream=stream).view(np.int32)[0] == 100 * 10 * 32


@pytest.mark.feature("F036")
def test_events_order_streams(gpu: Device) -> None:
    one, two = gpu.stream(), gpu.stream()
    counter = gpu.allocate(4, stream=one)
    memset(counter, 0, one)
    kernel("spin").launch(1, 1, 100_000_000, stream=one)  # some 50 ms
    kernel("add_one").launch(1, 1, counter, stream=one)
    assert not one.query()
    event = one.record()
    assert not event.query()
    two.wait(event)
    assert to_host(counter, stream=two).view(np.int32)[0] == 1


@pytest.mark.feature("F036")
def test_elapsed_time_is_true(gpu: Device) -> None:
    start, end = Event(timing=True), Event(timing=True)
    stream = gpu.stream()
    kernel("spin").launch(1, 1, 1000, stream=stream)
    stream.record(start)
    kernel("spin").launch(1, 1, 20_000_000, stream=stream)
    stream.record(end)
    assert 5 < start.elapsed(end) < 200  # 20 million cycles at 0.1 to 4 GHz


@pytest.mark.feature("F034")
def test_memory_used_elsewhere_rests(gpu: Device) -> None:
    own, other = gpu.stream(), gpu.stream()
    buffer = gpu.allocate(4096, stream=own)
    pointer = buffer.pointer
    kernel("spin").launch(1, 1, 100_000_000, stream=other)
    buffer.used_on(other)
    buffer.close()
    assert gpu.allocate(4096, stream=own).pointer != pointer
    other.synchronize()
    assert gpu.statistics().cached >= 4096
    assert pointer in {gpu.allocate(4096, stream=own).pointer for _ in range(2)}


@pytest.mark.feature("F040")
def test_bad_launches_are_refused_and_the_device_goes_on(gpu: Device) -> None:
    counter = from_host(np.zeros(1, np.int32), gpu)
    add_one = kernel("add_one")
    with pytest.raises(DeviceError, match="CUDA_ERROR_INVALID_VALUE") as caught:
        add_one.launch(1, 4096, counter)
    assert (caught.value.code, caught.value.call) == (1, "cuLaunchKernel")
    with pytest.raises(TypeError, match="kernel add_one: takes 1 arguments, got 2"):
        add_one.launch(1, 1, counter, 3)
    with pytest.raises(ValueError, match="block must be"):
        add_one.launch(1, 0, counter)
    with pytest.raises(ValueError, match="the stream is"):
        add_one.launch(1, 1, counter, stream=Stream(Device("cpu")))
    add_one.launch(1, 7, counter)
    gpu.synchronize()
    assert to_host(counter).view(np.int32)[0] == 7


@pytest.mark.feature("F040")
def test_a_prepared_launch_calls_the_driver_alone(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = from_host(np.zeros(1, np.int32), gpu)
    driver = _cuda.open_cuda().driver
    launch = Mock(wraps=driver.cuLaunchKernel)
    monkeypatch.setattr(driver, "cuLaunchKernel", launch)
    step = kernel("add_one").prepare(1, 3, counter)
    with monkeypatch.context() as during:
        during.setattr(_cuda, "call", lambda name, *_: pytest.fail(f"a prepared launch calls {name}"))
        for _ in range(500):
            step()
    gpu.synchronize()
    assert to_host(counter).view(np.int32)[0] == 1500
    assert launch.call_args_list == [launch.call_args] * 500
