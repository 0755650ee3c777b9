"""Arrays and streams of other libraries, as far as no GPU is needed."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lamina as lm
from lamina.runtime import Buffer, Device, as_buffer, as_stream, copy, dlpack, is_array, share, stream_address

CPU = Device("cpu")


class OldProducer:
    """An array whose library knows DLPack as it was before 1.0: `stream` is its only argument."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, stream: Any = None) -> Any:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (dlpack.CPU, 0)


class OnDevice:
    """What shows the CUDA array interface with the given facts."""

    def __init__(self, **facts: Any) -> None:
        self.__cuda_array_interface__ = {
            "shape": (4,),
            "typestr": "<f4",
            "data": (4096, False),
            "version": 3,
            "stream": None,
        } | facts


@pytest.mark.feature("F011")
def test_an_array_is_shared_without_a_copy() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    shared = share(array)
    assert shared.pointer == array.ctypes.data
    assert (shared.shape, shared.dtype, shared.read_only) == ((2, 3), "float32", False)
    assert share(OldProducer(array)).pointer == array.ctypes.data
    buffer = as_buffer(array)
    assert (buffer.pointer, buffer.nbytes, buffer.device) == (array.ctypes.data, 24, CPU)
    assert as_buffer(buffer) is buffer


def test_either_interface_makes_an_array() -> None:
    class Dlpack:
        def __dlpack__(self) -> None:
            """Never asked."""

    class Cuda:
        __cuda_array_interface__: Any = None

    assert is_array(Dlpack())
    assert is_array(Cuda())
    assert not is_array(object())


@pytest.mark.parametrize(
    ("shape", "strides", "dense"),
    [
        ((2, 3), None, True),
        ((2, 3), (3, 1), True),
        ((2, 3), (1, 2), False),
        ((2, 3), (4, 1), False),
        ((1, 3), (99, 1), True),
        ((2, 0, 3), (7, 7, 7), True),
        ((2, 3), (0, 1), False),
    ],
)
def test_what_is_dense(shape: tuple[int, ...], strides: tuple[int, ...] | None, dense: bool) -> None:
    shared: Any = SimpleNamespace(shape=shape, strides=strides)
    assert lm.runtime.arrays.is_dense(shared) == dense


@pytest.mark.feature("F011")
def test_what_cannot_be_written_is_refused() -> None:
    array = np.arange(6)
    array.flags.writeable = False
    assert share(array).read_only
    with pytest.raises(BufferError, match="read-only"):
        share(array, write=True)
    with pytest.raises(ValueError, match="C-contiguous"):
        as_buffer(np.zeros((4, 4)).T[:2])
    with pytest.raises(TypeError, match="neither __dlpack__ nor __cuda_array_interface__"):
        share([1, 2])
    assert not is_array([1, 2])


@pytest.mark.feature("F011")
@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"typestr": ">f4"}, "type '>f4' is not known"),
        ({"typestr": "|V3"}, "type '|V3' is not known"),
        ({"mask": OldProducer(None)}, "masked"),
        ({"strides": (6,)}, "no multiples of 4"),
    ],
)
def test_interfaces_that_are_not_understood(facts: dict[str, Any], reason: str) -> None:
    with pytest.raises(TypeError, match=reason.replace("|", r"\|")):
        share(OnDevice(**facts))


@pytest.mark.torch
@pytest.mark.feature("F011", "F031")
def test_copies_take_arrays_of_other_libraries() -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.arange(8, dtype=torch.bfloat16)
    buffer = CPU.allocate(16)
    copy(buffer, theirs)
    assert buffer.array((8,), ml_dtypes.bfloat16).tolist() == list(range(8))
    back = torch.zeros(8, dtype=torch.bfloat16)
    copy(back, buffer)
    assert torch.equal(back, theirs)
    with pytest.raises(ValueError, match="copy: source: the array must be C-contiguous"):
        copy(buffer, torch.zeros(4, 4).T[:2])


@pytest.mark.feature("F011")
@pytest.mark.parametrize("name", sorted(dlpack.TYPES))
def test_capsules_of_either_version(name: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, name, name))
    array = np.zeros((2, 3), kind)
    for version in (None, (0, 8), (1, 0), (1, 1)):
        capsule = dlpack.export(array.ctypes.data, (2, 3), (3, 1), name, (1, 0), array, max_version=version)
        assert ("versioned" in repr(capsule)) == (version is not None and version >= (1, 0))
        shared = dlpack.adopt(capsule)
        assert (shared.pointer, shared.shape, shared.strides, shared.dtype) == (
            array.ctypes.data,
            (2, 3),
            (3, 1),
            name,
        )
        del shared
    before = len(dlpack._exported)
    dlpack.export(array.ctypes.data, (2, 3), (3, 1), name, (1, 0), array, max_version=(1, 0))
    assert len(dlpack._exported) == before  # nobody consumed it


@pytest.mark.feature("F011")
def test_tensors_and_buffers_are_lent() -> None:
    x = lm.tensor([[1.0, 2.0], [3.0, 4.0]])
    capsule = x.__dlpack__(max_version=(1, 0))
    assert "dltensor_versioned" in repr(capsule)
    assert dlpack.adopt(capsule).pointer == x.buffer.pointer
    copied = dlpack.adopt(x.__dlpack__(max_version=(1, 0), copy=True))
    assert copied.pointer != x.buffer.pointer
    buffer = CPU.allocate(5)
    copy(buffer, b"Hello")
    assert bytes(np.from_dlpack(buffer)) == b"Hello"
    with pytest.raises(BufferError, match="can be shared without a copy only"):
        buffer.__dlpack__(copy=True)
    with pytest.raises(AttributeError, match="the buffer is on cpu"):
        buffer.__cuda_array_interface__  # noqa: B018


class ForeignStream(SimpleNamespace):
    """A stream as other libraries have it."""


@pytest.mark.feature("F011", "F036")
def test_streams_of_every_library_have_an_address() -> None:
    assert stream_address(None) == stream_address(0) == 0
    assert stream_address(77) == 77
    assert stream_address(SimpleNamespace(__cuda_stream__=lambda: (0, 77))) == 77  # cuda-core, Numba
    assert stream_address(SimpleNamespace(cuda_stream=77)) == 77  # PyTorch
    assert stream_address(ForeignStream(ptr=77)) == 77  # CuPy
    assert stream_address(ForeignStream(handle=SimpleNamespace(value=77))) == 77  # Numba, formerly
    assert stream_address(ForeignStream(handle=SimpleNamespace(value=None))) == 0
    for wrong in ("fast", 1.5, True, -1, SimpleNamespace(ptr=77), lm.runtime.Event(), CPU.allocate(4)):
        with pytest.raises(TypeError, match="a CUDA stream is wanted"):
            stream_address(wrong)


@pytest.mark.feature("F036")
def test_the_cpu_takes_its_own_streams_only() -> None:
    assert as_stream(None, CPU) is CPU.default_stream
    other = CPU.stream()
    assert as_stream(other, CPU) is other
    with pytest.raises(ValueError, match="the work is on cpu"):
        as_stream(ForeignStream(ptr=77), CPU)
    with pytest.raises(ValueError, match="the work is on cpu"):
        CPU.allocate(4, stream=ForeignStream(ptr=77))
    with pytest.raises(TypeError, match="a CUDA stream is wanted"):
        CPU.allocate(4, stream="fast")


def test_a_borrowed_buffer_spans_strided_memory() -> None:
    array = np.arange(12, dtype=np.int16).reshape(3, 4)[:, :2]
    buffer = lm.runtime.arrays.borrow(share(array))
    assert isinstance(buffer, Buffer)
    assert buffer.nbytes == (2 * 4 + 1 + 1) * 2
    repeated = lm.runtime.arrays.borrow(share(np.broadcast_to(np.arange(3.0), (5, 3))))
    assert repeated.nbytes == 24
    nothing = lm.runtime.arrays.borrow(share(np.zeros((3, 0, 2))))
    assert nothing.nbytes == 0
    with pytest.raises(ValueError, match="negative strides"):
        lm.runtime.arrays.borrow(share(np.arange(4)[::-1]))


def test_capsules_may_outlive_everything() -> None:
    """At the end of the interpreter modules go in no useful order; what is lent then must not crash it."""
    script = (
        "import lamina\n"
        "from lamina.runtime import dlpack\n"
        "x = lamina.zeros(3)\n"
        "dlpack.kept = [x.__dlpack__(), x.__dlpack__(max_version=(1, 0))]\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
