"""Arrays and streams of CuPy, PyTorch, JAX and Numba on a GPU; random fills, printing, modules, peers there."""

import importlib
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lamina as lm
from lamina.runtime import (
    Device,
    DeviceError,
    DeviceFile,
    DeviceGenerator,
    Event,
    Workspaces,
    as_stream,
    compile_kernel,
    compile_module,
    copy,
    copy_2d,
    copy_3d,
    devices,
    fetch,
    from_host,
    launch_shape,
    memset,
    memset_2d,
    move,
    share,
    show,
    to_host,
)
from lamina.runtime.random import _FLOATS, _INTEGERS

pytestmark = pytest.mark.gpu
SCALE = """
extern "C" __global__ void scale(float *x, int n, float by)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) x[i] *= by;
}
extern "C" __global__ void wait(long long cycles)
{
    const long long from = clock64();
    while (clock64() - from < cycles);
}
"""
COUNT = 1 << 20


@pytest.fixture
def gpu() -> Device:
    return Device("cuda:0")


def library(name: str) -> Any:
    """Arange of COUNT floats on the GPU, a stream, its context, and back to NumPy, by the library's own names."""
    if name == "torch":
        torch = pytest.importorskip("torch")
        return SimpleNamespace(
            arange=lambda: torch.arange(COUNT, dtype=torch.float32, device="cuda"),
            stream=torch.cuda.Stream,
            using=torch.cuda.stream,
            numpy=lambda x: x.cpu().numpy(),
            taken=torch.from_dlpack,
        )
    if name == "cupy":
        cupy = pytest.importorskip("cupy")
        return SimpleNamespace(
            arange=lambda: cupy.arange(COUNT, dtype=cupy.float32),
            stream=lambda: cupy.cuda.Stream(non_blocking=True),
            using=lambda stream: stream,
            numpy=cupy.asnumpy,
            taken=cupy.asarray,
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cuda = pytest.importorskip("numba.cuda")
    return SimpleNamespace(
        arange=lambda: cuda.to_device(np.arange(COUNT, dtype=np.float32)),
        stream=cuda.stream,
        using=None,
        numpy=lambda x: x.copy_to_host(),
        taken=cuda.as_cuda_array,
    )


EACH = pytest.mark.parametrize("name", ["torch", "cupy", "numba"])
EXPECTED = np.arange(COUNT, dtype=np.float32)


@EACH
@pytest.mark.feature("F011", "F040")
def test_kernels_run_on_their_arrays_and_streams(name: str, gpu: Device) -> None:
    theirs = library(name)
    kernel = compile_kernel(SCALE, "scale")
    stream = theirs.stream()
    array = theirs.arange()
    for by in (2.0, 3.0):
        kernel.launch(*kernel.suggest(COUNT), array, COUNT, by, stream=stream)
    as_stream(stream, gpu).synchronize()
    assert np.array_equal(theirs.numpy(array), EXPECTED * 6)
    assert as_stream(stream, gpu) is as_stream(stream, gpu)
    assert as_stream(stream, gpu).owner is stream


@EACH
@pytest.mark.feature("F011", "F031")
def test_copies_fills_and_prints_take_their_arrays(name: str, gpu: Device) -> None:
    theirs = library(name)
    array, stream = theirs.arange(), theirs.stream()
    buffer = gpu.allocate(4 * COUNT, stream=stream)
    copy(buffer, array, stream=stream)
    assert np.array_equal(to_host(buffer, stream=stream).view(np.float32), EXPECTED)
    memset(array, 0)
    assert not theirs.numpy(array).any()
    copy(array, EXPECTED)
    assert np.array_equal(theirs.numpy(array), EXPECTED)
    assert show(array) == show(EXPECTED).replace("cpu", "cuda:0")
    DeviceGenerator(3).uniform(array, stream=stream)
    as_stream(stream, gpu).synchronize()
    host = np.empty(COUNT, np.float32)
    DeviceGenerator(3).uniform(host)
    assert np.array_equal(theirs.numpy(array), host)
    assert DeviceFile(buffer, stream).read(8) == bytes(8)[:4] + np.float32(1).tobytes()
    assert Workspaces(gpu).get(100, stream).nbytes >= 100


@EACH
@pytest.mark.feature("F011")
def test_our_memory_is_their_array(name: str) -> None:
    theirs = library(name)
    ours = lm.tensor(EXPECTED, device="cuda") * 2.0
    taken = theirs.taken(ours)
    assert np.array_equal(theirs.numpy(taken), EXPECTED * 2)
    buffer = from_host(np.arange(16, dtype=np.uint8), Device("cuda:0"))
    assert theirs.numpy(theirs.taken(buffer)).tolist() == list(range(16))
    again = lm.tensor(taken, device="cuda")
    assert np.array_equal(again.numpy(), EXPECTED * 2)


@pytest.mark.parametrize("name", ["torch", "cupy"])
@pytest.mark.feature("F011", "F036")
def test_a_slow_producer_is_waited_for(name: str, gpu: Device) -> None:
    theirs = library(name)
    wait, stream = compile_kernel(SCALE, "wait"), theirs.stream()
    array = theirs.arange()
    gpu.synchronize()
    with theirs.using(stream):
        wait.launch(1, 1, 200_000_000, stream=stream)  # about 0.1 s
        array += 1
        begin = time.perf_counter()
        ours = lm.from_dlpack(array)
        doubled = ours * 2.0
        assert time.perf_counter() - begin < 5  # queued behind the producer
    assert np.array_equal(doubled.numpy(), (EXPECTED + 1) * 2)


@pytest.mark.parametrize("name", ["torch", "cupy"])
@pytest.mark.feature("F011", "F036")
def test_a_slow_lender_is_waited_for(name: str, gpu: Device) -> None:
    theirs = library(name)
    wait = compile_kernel(SCALE, "wait")
    ours = lm.tensor(EXPECTED, device="cuda")
    gpu.synchronize()
    wait.launch(1, 1, 200_000_000)
    doubled = ours * 2.0
    stream = theirs.stream()
    with theirs.using(stream):
        if name == "torch":
            torch = pytest.importorskip("torch")
            taken = torch.from_dlpack(doubled) + 1
        else:
            taken = pytest.importorskip("cupy").from_dlpack(doubled) + 1
    as_stream(stream, gpu).synchronize()
    assert np.array_equal(theirs.numpy(taken), EXPECTED * 2 + 1)


@pytest.mark.feature("F011")
def test_jax_both_ways(gpu: Device) -> None:
    jax = pytest.importorskip("jax")
    array = jax.numpy.arange(COUNT, dtype=jax.numpy.float32) * 2
    buffer = gpu.allocate(4 * COUNT)
    copy(buffer, array)
    assert np.array_equal(to_host(buffer).view(np.float32), EXPECTED * 2)
    assert show(array).splitlines()[-1] == f"float32[{COUNT}], cuda:0"
    back = jax.dlpack.from_dlpack(lm.from_dlpack(array) + 1.0)
    assert np.array_equal(np.asarray(back), EXPECTED * 2 + 1)


@pytest.mark.feature("F011")
def test_the_protocol_alone_is_enough(gpu: Device) -> None:
    """What has the interface, of whatever library: version 3 with a stream, and before, without."""
    values, side = from_host(np.arange(6, dtype=np.int32), gpu), gpu.stream()
    facts = {
        "shape": (2, 3),
        "typestr": "<i4",
        "data": (values.pointer, False),
        "strides": (12, 4),
        "version": 3,
    }
    for more in ({"stream": side.handle}, {"stream": 1}, {"stream": 2}, {"stream": None}, {"version": 2}):
        kind = type("Array", (SimpleNamespace,), {"__cuda_array_interface__": facts | more})
        array = kind(keep=values)
        shared = share(array)
        assert (shared.pointer, shared.device_id, shared.strides) == (values.pointer, 0, (3, 1))
        assert lm.tensor(array, device="cuda").tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(BufferError, match="read-only"):
        memset(type("Array", (), {"__cuda_array_interface__": facts | {"data": (values.pointer, True)}})(), 0)
    with pytest.raises(ValueError, match="stream=0 is ambiguous"):
        values.__dlpack__(stream=0)
    side.close()


@pytest.mark.feature("F011")
def test_variant_packs_and_kernels_name_what_they_cannot_take(gpu: Device) -> None:
    kernel = compile_kernel(SCALE, "scale")
    with pytest.raises(TypeError, match="argument 0 is a ndarray"):
        kernel.launch(1, 1, np.zeros(3, np.float32), 3, 1.0)
    with pytest.raises(TypeError, match="a CUDA stream is wanted"):
        kernel.launch(1, 1, None, 0, 1.0, stream="fast")
    with pytest.raises(ValueError, match="argument 0 is on cpu"):
        kernel.launch(1, 1, lm.zeros(3), 3, 1.0)


# ----------------------------------------------------------------------------------------------------- memory
@pytest.mark.feature("F030")
@pytest.mark.parametrize(("bits", "value"), [(8, 0xAB), (16, 0xABCD), (32, 0xABCDEF01)])
def test_memset_of_words_and_rows(bits: int, value: int, gpu: Device) -> None:
    buffer = gpu.allocate(3 * 512)
    memset(buffer, value, bits=bits)
    assert set(to_host(buffer).view(f"u{bits // 8}").tolist()) == {value}
    memset(buffer, 0)
    memset_2d(buffer, value, width=5, height=3, pitch=512, bits=bits)
    words = to_host(buffer).view(f"u{bits // 8}").reshape(3, -1)
    assert set(words[:, :5].ravel().tolist()) == {value}
    assert not words[:, 5:].any()


@pytest.mark.feature("F039")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool"])
def test_tensors_move_there_and_back(gpu: Device, dtype: str) -> None:
    """Copies in other memory: the device says where, the values stay, and what was moved stays where it was."""
    here = lm.tensor(np.arange(24).reshape(2, 3, 4) % 5, dtype)
    values = here.numpy().copy()
    there = here.to(gpu)
    assert (there.device, there.buffer.device, here.device) == (gpu, gpu, Device("cpu"))
    assert (there.shape, there.dtype) == (here.shape, here.dtype)
    assert there.buffer.pointer != here.buffer.pointer
    assert there.to("cuda:0") is there
    back = there.to("cpu")
    assert back.device == Device("cpu")
    assert back.buffer.pointer != here.buffer.pointer
    np.testing.assert_array_equal(back.numpy(), values)
    np.testing.assert_array_equal(there.numpy(), values)


@pytest.mark.feature("F039", "F043")
def test_there_and_back_and_a_product(gpu: Device) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(65, 33)).astype(np.float32), rng.normal(size=(33, 47)).astype(np.float32)
    there = lm.tensor(a).to(gpu)
    assert (there.device, there.to(gpu) is there) == (gpu, True)
    assert np.array_equal(there.to("cpu").numpy(), a)
    assert np.array_equal(to_host(move(from_host(a, gpu), Device("cpu"))).view(np.float32), a.ravel())
    np.testing.assert_allclose((there @ lm.tensor(b).to(gpu)).numpy(), a @ b, rtol=1e-4, atol=1e-4)


def normal_bound(values: Any, kind: np.dtype[Any], mean: float, std: float) -> Any:
    """How far apart two machines' mean + std * r * cos(2 pi v) may be, with r = sqrt(-2 log u), in float64.

    In units of 2^-53 the error of r cos is at most 20 r, however small the cosine is: the CPU rounds the angle 2 pi v
    (< 2 pi) once and pi before that, 2 pi (1 + 0.35) = 8.5, the GPU does not (sincospi); each cosine adds 2; each
    logarithm 2 of its size, which the root halves; each root and each product with r 1; the product with std 1; and
    there are two machines. The sum with the mean is rounded once on each. r is that of the pair: cosine and sine.
    Other types are computed in float64 and may be one step apart where a value lies next to the middle of two.
    """
    if kind == np.float64:
        pairs = np.append((values - mean) / std, [0.0] * (len(values) % 2)).reshape(-1, 2)
        radius = np.repeat(np.maximum(np.hypot(*pairs.T), 1.0), 2)[: len(values)]
        radius[-1] = 9.0  # without its partner: the largest, sqrt(2 * 53 log 2) = 8.6
        return 2.0**-53 * (20 * std * radius + 2 * np.abs(values))
    step = float(ml_dtypes.finfo(kind).eps)
    return step * (np.abs(values) + 4)


@pytest.mark.feature("F041")
@pytest.mark.parametrize("dtype", [*_FLOATS, *_INTEGERS])
def test_random_fills_are_those_of_the_cpu(dtype: str, gpu: Device) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    count = 100_003
    for call in ("integers",) if dtype in _INTEGERS else ("uniform", "normal"):
        arguments = (3, 100) if call == "integers" else (-1.0, 2.0)
        device, host = gpu.allocate(count * kind.itemsize), Device("cpu").allocate(count * kind.itemsize)
        generators = [DeviceGenerator(11, 2**32 - 5), DeviceGenerator(11, 2**32 - 5)]
        for generator, buffer in zip(generators, (device, host), strict=True):
            getattr(generator, call)(buffer, *arguments, dtype=dtype)
        assert generators[0].state == generators[1].state
        got, expected = to_host(device).view(kind), host.array((count,), kind)
        if call == "normal":
            apart = np.abs(got.astype(float) - expected.astype(float))
            assert (apart <= normal_bound(expected.astype(float), kind, *arguments)).all(), apart.max()
        else:
            assert np.array_equal(got, expected)


@pytest.mark.feature("F033")
def test_large_memory_is_printed_by_its_ends(gpu: Device) -> None:
    host = np.random.default_rng(0).normal(size=(20, 30, 40)).astype(np.float32)
    x = lm.tensor(host, device="cuda")
    assert show(x) == show(host).replace("cpu", "cuda:0")
    assert np.array_equal(fetch(x.buffer, x.shape, "float32", (1200, 40, 1)), host)
    assert repr(x).startswith("Tensor([[[")
    assert repr(x).endswith("f32[20,30,40], cuda:0)")
    assert "..." in repr(x)


@pytest.mark.feature("F033")
def test_printing_does_not_copy_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = []

    def counted(*arguments: Any, width: int, height: int, **pitches: int) -> None:
        copied.append(width * height)
        copy_2d(*arguments, width=width, height=height, **pitches)

    monkeypatch.setattr(importlib.import_module("lamina.runtime.printing"), "copy_2d", counted)
    assert "..." in repr(lm.full((1 << 11, 1 << 11), 1.0, device="cuda"))  # 16 MiB
    assert 0 < sum(copied) < 1024


# --------------------------------------------------------------------------------------- modules and launches
@pytest.mark.feature("F040")
def test_a_module_from_a_file(tmp_path: Path, gpu: Device) -> None:
    (tmp_path / "parts.cuh").write_text("#define BASE 100\n")
    file = tmp_path / "work.cu"
    file.write_text("""
        #include "parts.cuh"
        extern "C" { __constant__ float factors[4]; __device__ int runs = 0; }
        extern "C" __global__ void scale(float *x) { x[threadIdx.x] = BASE + x[threadIdx.x] * factors[threadIdx.x]; }
        extern "C" __global__ void count() { atomicAdd(&runs, 1); }
    """)
    module = compile_module(file)
    assert compile_module(file) is module
    factors, runs = module.variable("factors"), module.variable("runs")
    assert (factors.nbytes, runs.nbytes) == (16, 4)
    copy(factors, np.array([1, 2, 3, 4], np.float32))
    x = from_host(np.ones(4, np.float32), gpu)
    module.kernel("scale").launch(1, 4, x)
    for _ in range(3):
        module.kernel("count").launch(2, 1)
    gpu.synchronize()
    assert to_host(x).view(np.float32).tolist() == [101, 102, 103, 104]
    assert to_host(factors).view(np.float32).tolist() == [1, 2, 3, 4]
    assert to_host(runs).view(np.int32).tolist() == [6]
    with pytest.raises(DeviceError, match="no variable 'gone'"):
        module.variable("gone")
    with pytest.raises(DeviceError, match="no kernel 'gone'"):
        module.kernel("gone")


@pytest.mark.feature("F040")
def test_launch_suggestions(gpu: Device) -> None:
    kernel = compile_kernel(SCALE, "scale")
    grid, block = kernel.suggest(COUNT)
    assert block[0] % 32 == 0
    assert 32 <= block[0] <= 1024
    most = gpu.properties["multiprocessor_count"] * kernel.resident_blocks(block[0])
    assert 1 <= grid[0] <= most
    assert kernel.suggest(1).grid == (1, 1, 1)
    assert kernel.suggest(COUNT, limit=128).block[0] <= 128
    assert kernel.resident_blocks(128, shared=40 << 10) <= kernel.resident_blocks(128)
    x = from_host(EXPECTED, gpu)
    kernel.launch(*launch_shape(COUNT), x, COUNT, 2.0)
    assert np.array_equal(to_host(x).view(np.float32), EXPECTED * 2)
    with pytest.raises(ValueError, match="count must be at least 1"):
        kernel.suggest(0)


@pytest.mark.feature("F036")
def test_priorities(gpu: Device) -> None:
    low, high = gpu.stream_priorities
    assert high <= low == 0
    with gpu.stream(priority=high) as stream:
        assert stream.priority == high


@pytest.mark.feature("F036")
def test_a_stream_of_high_priority_goes_first(gpu: Device) -> None:
    """Its kernel starts when the first blocks of the one before end, not when its last ones have started."""
    low, high = gpu.stream_priorities
    wait = compile_kernel(SCALE, "wait")
    start, soon, end = (Event(timing=True) for _ in range(3))
    with gpu.stream(priority=low) as slow, gpu.stream(priority=high) as fast:
        wait.launch(1, 1, 1000, stream=slow)
        wait.launch(1, 1, 1000, stream=fast)
        gpu.synchronize()
        slow.record(start)
        wait.launch(20_000, 1024, 500_000, stream=slow)  # some 76 turns of all multiprocessors, 0.3 ms each
        wait.launch(1, 32, 1000, stream=fast)
        fast.record(soon)
        slow.record(end)
        assert 0 < start.elapsed(soon) < start.elapsed(end) / 4


@pytest.mark.feature("F012")
def test_timing_with_events(gpu: Device) -> None:
    wait = compile_kernel(SCALE, "wait")
    times = []
    for cycles in (2_000_000, 20_000_000):
        start, end = Event(timing=True), Event(timing=True)
        gpu.default_stream.record(start)
        wait.launch(1, 1, cycles)
        gpu.default_stream.record(end)
        times.append(start.elapsed(end))
    assert 0 < times[0] < times[1]


# ------------------------------------------------------------------------------------------------------ peers
@pytest.mark.feature("F031", "F038")
@pytest.mark.skipif(len(devices()) < 3, reason="needs two GPUs")
def test_peer_blocks_and_access() -> None:
    one, two = Device("cuda:0"), Device("cuda:1")
    data = np.arange(4 * 6 * 16, dtype=np.uint8).reshape(4, 6, 16)
    there = two.allocate(3 * 5 * 32)
    memset(there, 0)
    copy_3d(
        there, from_host(data, one), shape=(3, 4, 8), destination_strides=(160, 32), source_strides=(96, 16)
    )
    block = to_host(there).reshape(3, 5, 32)
    assert np.array_equal(block[:, :4, :8], data[:3, :4, :8])
    assert not block[:, 4:].any()
    assert not block[:, :, 8:].any()
    x = lm.tensor(EXPECTED, device="cuda:0") * 3.0
    assert np.array_equal(x.to("cuda:1").numpy(), EXPECTED * 3)
    if one.can_access_peer(two):
        one.enable_peer_access(two)
        one.disable_peer_access(two)
        with pytest.raises(DeviceError, match="cuCtxDisablePeerAccess"):
            one.disable_peer_access(two)
    stream = two.stream()
    with pytest.raises(ValueError, match="belongs to cuda:1"):
        as_stream(stream.handle, one)
    assert move(from_host(data, one), two, stream=stream).device == two
    stream.close()
