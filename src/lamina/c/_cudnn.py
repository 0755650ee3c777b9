"""Support code for cuDNN's generated module: library search, error texts, alpha and beta, padding fills."""

from __future__ import annotations

import ctypes
import importlib
import struct
from collections.abc import Iterable
from ctypes import byref, c_char, c_double, c_float, c_int
from typing import Any, Final

from lamina.c._arguments import pointer
from lamina.c._library import Library, Version, shared_object, wheel_file
from lamina.c.errors import CudnnError, cudnn_class

__all__ = ["Cudnn"]

_PATTERN = r"libcudnn\.(so|\d*\.?dylib)(\.\d+)*|cudnn64_\d+\.dll"
_DOUBLE: Final = 1  # CUDNN_DATA_DOUBLE
# cudnnDataType_t -> struct format of one element; 16-bit and 8-bit floats are packed by hand below
_ELEMENT: Final = {0: "f", 1: "d", 2: "e", 3: "b", 4: "i", 6: "B", 10: "q", 11: "?", 23: "?"}
_FLOAT: Final = 0
_HALF: Final = 2
_INT8: Final = 3
_BFLOAT16: Final = 9


def _pathfinder() -> str | None:
    """NVIDIA's cuda-pathfinder (wheels, conda, CUDA_HOME, the loader); it opens the library too."""
    try:
        pathfinder = importlib.import_module("cuda.pathfinder")
    except ImportError:
        return None
    return str(pathfinder.load_nvidia_dynamic_lib("cudnn").abs_path)


def _wheel() -> str | None:
    """The nvidia-cudnn wheels, for environments without cuda-pathfinder."""
    pattern = r"libcudnn\.so\.\d+|cudnn64_\d+\.dll"
    return wheel_file("nvidia-cudnn-cu13", pattern) or wheel_file("nvidia-cudnn-cu12", pattern)


class Cudnn(Library):
    """libcudnn: an already loaded one, else `LAMINA_CUDNN`, the wheels, the platform's."""

    def __init__(self, **tables: Any) -> None:
        super().__init__(
            "cuDNN",
            environment="LAMINA_CUDNN",
            pattern=_PATTERN,
            names=shared_object("cudnn", 9),
            finders={"cuda.pathfinder": _pathfinder, "nvidia-cudnn wheel": _wheel},
            supported=((9, 0, 0), (10, 0, 0)),
            **tables,
        )

    def read_version(self, library: ctypes.CDLL) -> Version:
        """From `cudnnGetVersion`: 91900 is 9.19.0 (before 9.0 it was 1000 * major)."""
        function = library["cudnnGetVersion"]
        function.restype, function.argtypes = ctypes.c_size_t, []
        number = int(function())
        unit = 10000 if number >= 90000 else 1000
        return number // unit, number % unit // 100, number % 100

    def last_error(self) -> str:
        """The text of `cudnnGetLastErrorString`, "" if there is none; never raises."""
        try:
            text = (c_char * 4096)()
            self.symbols.cudnnGetLastErrorString(text, len(text))
            return text.value.decode("utf-8", "replace").strip()
        except Exception:
            return ""

    def exception(self, status: int, function: str, arguments: str, hints: Iterable[str]) -> CudnnError:
        """The class of this status, or of its family if the status is newer than the header."""
        message = "; ".join(filter(None, (self.last_error(), *hints)))
        return cudnn_class(status)(status, function, message, arguments)

    # -- alpha and beta -----------------------------------------------------------------------------------

    def tensor_type(self, descriptor: Any) -> int:
        """The cudnnDataType_t of a tensor descriptor (queried from the library, so it is never out of date)."""
        data_type = c_int()
        call = self.symbols.cudnnGetTensorNdDescriptor
        try:
            status = call(descriptor, 0, byref(data_type), _UNUSED, _UNUSED, _UNUSED)
        except ctypes.ArgumentError:
            status = call(pointer(descriptor), 0, byref(data_type), _UNUSED, _UNUSED, _UNUSED)
        if status:
            raise self.failure(status, "cudnnGetTensorNdDescriptor", {"tensorDesc": descriptor})
        return data_type.value

    def filter_type(self, descriptor: Any) -> int:
        """The cudnnDataType_t of a filter descriptor."""
        data_type, layout, rank = c_int(), c_int(), c_int()
        dims = (c_int * 8)()
        status = self.symbols.cudnnGetFilterNdDescriptor(
            pointer(descriptor), 8, byref(data_type), byref(layout), byref(rank), dims
        )
        if status:
            raise self.failure(status, "cudnnGetFilterNdDescriptor", {"filterDesc": descriptor})
        return data_type.value

    def scale_by_tensor(self, descriptor: Any, *values: Any) -> list[Any]:
        """Scaling factors for an output tensor: double for CUDNN_DATA_DOUBLE, float for every other type."""
        return _scalars(values, self.tensor_type, descriptor)

    def scale_by_filter(self, descriptor: Any, *values: Any) -> list[Any]:
        """Scaling factors for an output filter (the filter gradient)."""
        return _scalars(values, self.filter_type, descriptor)

    # -- single elements ----------------------------------------------------------------------------------

    def element_of_tensor(self, descriptor: Any, value: Any) -> Any:
        """A value for cudnnSetTensor: of the tensor's type, but a float for half types and int8 (observed on
        9.19)."""
        if not _is_number(value):
            return pointer(value)
        kind = self.tensor_type(descriptor)
        return self.element(_FLOAT if kind in (_HALF, _INT8, _BFLOAT16) else kind, value)

    def element(self, data_type: int, value: Any) -> Any:
        """A number as one element of `data_type`; pointers and None pass as they are."""
        if not _is_number(value):
            return pointer(value)
        return (c_char * 8).from_buffer_copy(_packed(data_type, value).ljust(8, b"\0"))

    def number(self, data_type: int, raw: Any) -> float:
        """The element of `data_type` in an 8-byte buffer, as a Python number."""
        if data_type == _BFLOAT16:
            return float(struct.unpack("<f", b"\0\0" + bytes(raw[:2]))[0])
        layout = _ELEMENT.get(data_type, "f")
        return struct.unpack(f"<{layout}", bytes(raw[: struct.calcsize(layout)]))[0]  # type: ignore[no-any-return]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (hasattr(value, "__float__") and not hasattr(value, "__len__"))


def _packed(data_type: int, value: Any) -> bytes:
    if data_type == _BFLOAT16:
        (bits,) = struct.unpack("<I", struct.pack("<f", float(value)))
        return struct.pack("<H", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)  # round to nearest even
    layout = _ELEMENT.get(data_type)
    if layout is None:
        raise TypeError(f"data type {data_type} cannot be made from {value!r}: pass a pointer to it")
    return struct.pack(f"<{layout}", float(value) if layout in "fde" else int(value))


_ZERO: Final = byref(c_double(0.0))  # all bits zero: 0.0 as a float and as a double
_ONE: Final[dict[Any, Any]] = {kind: byref(kind(1.0)) for kind in (c_float, c_double)}
# Written by the library, never read; room for all dims, which vectorized tensors write regardless of the request.
_UNUSED: Final = (c_int * 16)()


def _scalars(values: tuple[Any, ...], type_of: Any, descriptor: Any) -> list[Any]:
    """Each value as a `const void *`; the descriptor is queried only if a number other than zero needs it."""
    kind: Any = None
    done: list[Any] = []
    for value in values:
        if type(value) is not float:
            if not _is_number(value):
                done.append(pointer(value))
                continue
            value = float(value)
        if value == 0.0:
            done.append(_ZERO)
            continue
        if kind is None:
            kind = c_double if type_of(descriptor) == _DOUBLE else c_float
        done.append(_ONE[kind] if value == 1.0 else byref(kind(value)))
    return done
