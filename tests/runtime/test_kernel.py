"""Kernels: compiled here without a GPU or driver; launched in test_gpu.py."""

import ctypes
import pickle
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lamina.runtime import (
    CompileError,
    Device,
    NoGpuError,
    compile_cubin,
    compile_kernel,
    compile_module,
    devices,
    kernel,
    launch_shape,
)
from lamina.runtime.kernel import Arguments

pytest.importorskip("cuda.core")

SCALE = 'extern "C" __global__ void scale(float* x) { x[threadIdx.x] *= FACTOR; }'


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh cache, in memory and on disk."""
    monkeypatch.setenv("LAMINA_CACHE", str(tmp_path))
    monkeypatch.setattr(kernel, "_cubins", {})
    return tmp_path / "kernels"


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by one with each true compilation."""
    seen: list[str] = []
    compile_now = kernel._compile

    def counted(source: str, *rest: Any) -> bytes:
        seen.append(source)
        return compile_now(source, *rest)

    monkeypatch.setattr(kernel, "_compile", counted)
    return seen


@pytest.mark.feature("F040")
def test_compiles_without_a_gpu() -> None:
    cubin = compile_cubin(SCALE, arch="sm_90", defines={"FACTOR": "2.0f"})
    assert cubin[:4] == b"\x7fELF"
    assert b"scale" in cubin


@pytest.mark.feature("F040")
def test_several_are_compiled_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Different ones meet at the barrier; a second request for one of them waits for the first."""
    both, seen = threading.Barrier(2, timeout=30), []

    def compiled(source: str, *_: Any) -> bytes:
        both.wait()
        seen.append(source)
        return source.encode()

    monkeypatch.setattr(kernel, "_compile", compiled)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(compile_cubin, ["one", "two", "one", "two"])) == [b"one", b"two"] * 2
    assert sorted(seen) == ["one", "two"]


@pytest.mark.feature("F040")
def test_cuda_headers_are_found() -> None:
    source = (
        "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n"
        'extern "C" __global__ void set(__half* x, __nv_bfloat16* y)'
        "{ x[0] = __float2half(1.f); y[0] = y[1]; }"
    )
    assert compile_cubin(source)[:4] == b"\x7fELF"


def test_defines_are_macros() -> None:
    source = "\n".join(
        [
            "#if !ONE || ZERO || defined(OFF) || defined(NONE) || TEXT != 7",
            "#error",
            "#endif",
            "__device__ int ZERO_IS_KNOWN;",
        ]
    )
    defines = {
        "ONE": True,
        "ZERO": 0,
        "OFF": False,
        "NONE": None,
        "TEXT": "(3 + 4)",
        "ZERO_IS_KNOWN": "known",
    }
    assert kernel._macros({**defines})[-1] == ("ZERO_IS_KNOWN", "known")
    assert ("ZERO", "0") in kernel._macros(defines)
    assert compile_cubin(source, defines=defines)


def test_compiled_once_in_memory_and_on_disk(
    cache: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = compile_cubin(SCALE, defines={"FACTOR": 2})
    assert compile_cubin(SCALE, defines={"FACTOR": 2}) is first
    monkeypatch.setattr(kernel, "_cubins", {})  # another process
    assert compile_cubin(SCALE, defines={"FACTOR": 2}) == first
    assert len(compilations) == 1
    assert len(list(cache.iterdir())) == 1


def test_a_torn_file_is_compiled_again(
    cache: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = compile_cubin(SCALE, defines={"FACTOR": 2})
    (file,) = cache.iterdir()
    file.write_bytes(file.read_bytes()[:100])
    monkeypatch.setattr(kernel, "_cubins", {})
    assert compile_cubin(SCALE, defines={"FACTOR": 2}) == first
    assert len(compilations) == 2
    assert len(file.read_bytes()) > 100


def test_everything_that_matters_is_in_the_key(compilations: list[str], tmp_path: Path) -> None:
    headers = tmp_path / "headers"
    headers.mkdir()
    header = headers / "factor.cuh"
    calls: list[dict[str, Any]] = [
        {"defines": {"FACTOR": 2}},
        {"defines": {"FACTOR": 3}},
        {"defines": {"FACTOR": 2, "OTHER": True}},
        {"defines": {"FACTOR": 2}, "arch": "sm_80"},
        {"defines": {"FACTOR": 2}, "options": {"use_fast_math": True}},
    ]
    for call in calls:
        compile_cubin(SCALE, **call)
    for value in ("2", "3"):
        header.write_text(f"#define FACTOR {value}\n")
        compile_cubin('#include "factor.cuh"\n' + SCALE, includes=[headers])
    assert len(compilations) == 7
    for call in calls:
        compile_cubin(SCALE, **call)
    assert len(compilations) == 7


@pytest.mark.feature("F040")
def test_a_source_that_does_not_compile_shows_the_log() -> None:
    with pytest.raises(CompileError, match='identifier "nothing" is undefined') as caught:
        compile_cubin('extern "C" __global__ void f() { nothing(); }', name="f")
    assert caught.value.name == "f"
    assert "f.cu(1)" in caught.value.log
    assert compile_cubin(SCALE, defines={"FACTOR": 1})  # and the compiler goes on


def test_a_virtual_architecture_is_refused() -> None:
    with pytest.raises(ValueError, match="real architecture such as 'sm_90', got 'compute_90'"):
        compile_cubin(SCALE, arch="compute_90")


def test_a_kernel_needs_a_gpu() -> None:
    with pytest.raises(NoGpuError, match="'scale' needs a CUDA device, got 'cpu'"):
        compile_kernel(SCALE, "scale", device="cpu")
    if len(devices()) == 1:
        with pytest.raises(NoGpuError, match="needs a CUDA device"):
            compile_kernel(SCALE, "scale")


# -------------------------------------------------------------------------------------------------- arguments
def packed(values: list[Any], sizes: list[int] | None) -> list[bytes]:
    return Arguments("k", values, sizes).contents()


def test_bare_numbers_take_the_size_of_their_parameter() -> None:
    assert packed([1, -1, 3, 2.5, 2.5, True], [4, 8, 1, 4, 8, 1]) == [
        struct.pack("<i", 1),
        struct.pack("<q", -1),
        b"\x03",
        struct.pack("<f", 2.5),
        struct.pack("<d", 2.5),
        b"\x01",
    ]
    assert packed([2**32 - 1, 2**64 - 1], [4, 8]) == [b"\xff" * 4, b"\xff" * 8]


def test_typed_values_stay_as_they_are() -> None:
    buffer = Device("cpu").allocate(8)
    values = [np.float16(1), np.int64(5), ctypes.c_float(1.5), buffer, None, np.uint64(buffer.pointer)]
    pointer = struct.pack("<Q", buffer.pointer)
    for sizes in (None, [2, 8, 4, 8, 8, 8]):
        assert packed(values, sizes) == [
            b"\x00\x3c", struct.pack("<q", 5), struct.pack("<f", 1.5), pointer, bytes(8), pointer,
        ]  # fmt: skip


def test_bfloat16_scalars_and_structures_pass_by_value() -> None:
    class Pair(ctypes.Structure):
        _fields_ = (("a", ctypes.c_int), ("b", ctypes.c_float))

    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    assert packed([bfloat16(1), Pair(1, 2.0)], [2, 8]) == [b"\x80\x3f", struct.pack("<if", 1, 2.0)]


def test_without_known_sizes_a_bare_int_is_an_address() -> None:
    assert packed([0x7F00_0000_0000], None) == [struct.pack("<Q", 0x7F00_0000_0000)]


def test_the_pointer_table_leads_to_the_values() -> None:
    arguments = Arguments("k", [7, 8], [4, 4])
    table = (ctypes.c_void_p * 2).from_address(arguments.address)
    assert [ctypes.c_int.from_address(pointer).value for pointer in table if pointer] == [7, 8]
    assert Arguments("k", [], []).contents() == []


@pytest.mark.parametrize(
    ("values", "sizes", "error", "match"),
    [
        ([1], [4, 4], TypeError, "kernel k: takes 2 arguments, got 1"),
        ([np.float64(1)], [4], TypeError, "argument 0 has 8 bytes, the parameter has 4"),
        ([1, "x"], [4, 4], TypeError, "argument 1 is a str"),
        ([1.0], None, TypeError, "argument 0 is a float"),
        ([1.0], [2], TypeError, "argument 0 is a float; give .* of 2 bytes"),
        ([1], [16], TypeError, "argument 0 is a int"),
        ([2**32], [4], OverflowError, "4294967296 does not fit the kernel's parameter of 32 bits"),
        ([-(2**31) - 1], [4], OverflowError, "does not fit"),
        ([np.zeros(3)], [8], TypeError, "argument 0 is a ndarray"),
    ],
)
def test_wrong_arguments_are_named(
    values: list[Any], sizes: list[int] | None, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        packed(values, sizes)


@pytest.mark.parametrize("bad", [0, (), (1, 2, 3, 4), (4, -1)])
def test_grids_are_one_to_three_positive_numbers(bad: Any) -> None:
    with pytest.raises(ValueError, match="grid must be one to three numbers >= 1"):
        kernel._extents("grid", bad)
    assert kernel._extents("grid", 5) == (5, 1, 1)
    assert kernel._extents("grid", (np.int64(5), 2)) == (5, 2, 1)


@pytest.mark.feature("F040")
def test_launch_shapes() -> None:
    assert launch_shape(1000) == ((4, 1, 1), (256, 1, 1))
    assert launch_shape((100, 30), (32, 8)) == ((4, 4, 1), (32, 8, 1))
    assert launch_shape((1, 2, 3), (4, 4, 4)) == ((1, 1, 1), (4, 4, 4))
    for extents, block, reason in (
        (0, 256, "extents must be one to three numbers >= 1"),
        (10, 0, "block must be one to three numbers >= 1"),
        (10, 2048, "block .* has 2048 threads, the limit is 1024"),
        ((1, 1 << 20), (1, 8), "the limits are"),
    ):
        with pytest.raises(ValueError, match=reason):
            launch_shape(extents, block)


@pytest.mark.skipif(len(devices()) > 1, reason="says what happens without a GPU")
@pytest.mark.feature("F040")
def test_modules_need_a_gpu(tmp_path: Path) -> None:
    file = tmp_path / "work.cu"
    file.write_text('extern "C" __global__ void f() {}')
    for source in (file, file.read_text()):
        with pytest.raises(NoGpuError, match="needs a CUDA device"):
            compile_module(source)


def test_a_compile_error_travels_between_processes() -> None:
    error = CompileError("k", "sm_90", "expected a ;", "text")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert (again.name, again.arch, again.log, again.source) == ("k", "sm_90", "expected a ;", "text")
