"""What can be passed for a pointer, a float array, an array of handles or structures."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from lamina.c import _arguments as a
from lamina.c import dnnl

pytestmark = pytest.mark.feature("F007", "F011")


class CudaArray:
    """Speaks the CUDA array interface, as PyCUDA, CuPy and Numba arrays do."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"data": (0x7F00_0000_1000, False), "shape": (4,), "typestr": "<f4", "version": 3}


class Exporter:
    """Speaks DLPack alone."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **arguments: Any) -> Any:
        return self.array.__dlpack__(**arguments)


class TorchLike:
    def data_ptr(self) -> int:
        return 4096


class Stream:
    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, 77)


class Allocation:
    """An object that is its address, as PyCUDA's allocations are."""

    def __index__(self) -> int:
        return 8192


def test_addresses_and_ctypes_objects_pass_as_they_are() -> None:
    array = (ctypes.c_int * 3)(1, 2, 3)
    for value in (None, 0, 12, b"text", ctypes.c_void_p(5), array, ctypes.byref(array)):
        assert a.pointer(value) is value


def test_numpy_arrays_give_their_address() -> None:
    array = np.arange(6, dtype=np.float32)
    assert a.pointer(array) == array.ctypes.data
    assert a.pointer(array[2:]) == array.ctypes.data + 8


def test_array_protocols() -> None:
    array = np.arange(6, dtype=np.float64)
    assert a.pointer(CudaArray()) == 0x7F00_0000_1000
    assert a.pointer(Exporter(array)) == array.ctypes.data
    assert a.pointer(Exporter(array[3:])) == array.ctypes.data + 24
    assert a.pointer(TorchLike()) == 4096
    assert a.pointer(Stream()) == 77
    assert a.pointer(Allocation()) == 8192


@pytest.mark.torch
def test_torch_tensors(request: pytest.FixtureRequest) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed here; the protocol is tested above")
    tensor = torch.arange(4, dtype=torch.bfloat16, requires_grad=True)
    assert a.pointer(tensor) == tensor.data_ptr()
    assert a.pointer(Exporter(tensor.detach())) == tensor.data_ptr()


@pytest.mark.parametrize("value", [1.5, "text", [1, 2], {}, object()])
def test_anything_else_is_refused_by_name(value: Any) -> None:
    with pytest.raises(TypeError, match=f"a pointer is wanted, not builtins.{type(value).__name__}"):
        a.pointer(value)


def test_structures_pass_by_reference() -> None:
    tensor = dnnl.dnnl_graph_logical_tensor_t(id=5)
    reference = a.pointer(tensor)
    assert ctypes.cast(reference, ctypes.c_void_p).value == ctypes.addressof(tensor)


def test_dims_are_padded_and_bounded() -> None:
    assert list(a.dims((2, 3), 2, "dims")) == [2, 3] + [0] * 10
    assert a.dims(np.array([4]), 0, "dims")[0] == 4
    assert a.dims(None, 4, "dims") is None
    with pytest.raises(ValueError, match=r"`dims`=\[1, 2\] has 2 entries, 3 to 12 are allowed"):
        a.dims((1, 2), 3, "dims")
    with pytest.raises(ValueError, match="13 entries"):
        a.dims(range(13), 0, "dims")


def test_float_arrays_must_be_float32() -> None:
    assert list(a.floats([1.0, 0.5], "scales")) == [1.0, 0.5]
    array = np.ones(2, np.float32)
    assert a.floats(array, "scales") == array.ctypes.data
    with pytest.raises(TypeError, match="`scales` is an array of float64, float32 is wanted"):
        a.floats(np.ones(2), "scales")


def test_handles_structures_and_addresses() -> None:
    assert list(a.handles([1, None, 3])) == [1, None, 3]
    pairs = a.structures(dnnl.dnnl_exec_arg_t, {1: 100, 17: 200})
    assert [(p.arg, p.memory) for p in pairs] == [(1, 100), (17, 200)]
    tensors = [dnnl.dnnl_graph_logical_tensor_t(id=i) for i in range(2)]
    assert list(a.addresses(tensors)) == [ctypes.addressof(t) for t in tensors]


def test_dims_are_whole_and_fit() -> None:
    with pytest.raises(OverflowError, match="does not fit into 64-bit integers"):
        a.dims((1 << 64, 1), 2, "dims")
    for wrong in (5, "ab", (1.5, 2), True):
        with pytest.raises(TypeError, match=r"^`dims`=.*: a sequence of integers is wanted$"):
            a.dims(wrong, 1, "dims")


def test_short_shows_values_compactly() -> None:
    assert a.short(0x7F0000001000) == "0x7f0000001000"
    assert a.short(np.zeros((2, 3))) == "<ndarray (2, 3) float64>"
    assert a.short((ctypes.c_int * 2)(1, 2)) == "[1, 2]"
    assert len(a.short("x" * 500)) == 60


@pytest.mark.parametrize(
    ("code", "low", "high"),
    [
        ("i", -(2**31), 2**31 - 1), ("I", 0, 2**32 - 1), ("q", -(2**63), 2**63 - 1), ("Q", 0, 2**64 - 1),
        ("N", 0, 2**64 - 1), ("b", -128, 127), ("B", 0, 255), ("an enumeration", -(2**31), 2**31 - 1),
    ],
)  # fmt: skip
def test_integers_are_taken_up_to_what_their_type_holds(code: str, low: int, high: int) -> None:
    assert [a.converted(n, code) for n in (low, high)] == [low, high]
    for n in (low - 1, high + 1):
        with pytest.raises(OverflowError, match=rf"^{n} does not fit \({low} to {high}\)$"):
            a.converted(n, code)
    with pytest.raises(TypeError, match="an integer is wanted, not float"):
        a.converted(1.0, code)


def test_floats_and_texts_are_converted() -> None:
    assert [a.converted(2, code) for code in ("f", "d")] == [2.0, 2.0]
    assert [a.converted(given, "s") for given in ("text", b"text", None)] == [b"text", b"text", None]
    assert a.converted("+", "c") == b"+"
