"""DLPack: memory shared with NumPy, PyTorch, CuPy, JAX and others without a copy, bfloat16 included.

The struct layouts are those of DLPack 0.8 ("dltensor") and 1.x ("dltensor_versioned"). An exported capsule
keeps its owner alive until the consumer calls the deleter; an imported one calls the producer's deleter when
the last array that uses it is gone.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lamina.runtime.uncopied import Uncopied

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
#: (code, bits) of an element type by name; codes: 0 int, 1 uint, 2 float, 4 bfloat, 5 complex, 6 bool,
#: 10, 12 and 14 the float8 types (DLPack 1.1).
TYPES = {
    "float64": (2, 64),
    "float32": (2, 32),
    "float16": (2, 16),
    "bfloat16": (4, 16),
    "int64": (0, 64),
    "int32": (0, 32),
    "int16": (0, 16),
    "int8": (0, 8),
    "uint8": (1, 8),
    "uint16": (1, 16),
    "uint32": (1, 32),
    "uint64": (1, 64),
    "bool": (6, 8),
    "complex64": (5, 64),
    "complex128": (5, 128),
    "float8_e4m3fn": (10, 8),
    "float8_e5m2": (12, 8),
    "float8_e8m0fnu": (14, 8),
}
_NAMES = {v: k for k, v in TYPES.items()}


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    )


_PLAIN, _VERSIONED = b"dltensor", b"dltensor_versioned"
_VERSION = (1, 0)  # of the structs above
_READ_ONLY, _COPIED = 1, 2  # flags
_api = ctypes.pythonapi
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", _api)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", _api))
# In a destructor the capsule is dying: it is passed as an address, so that its reference count is not touched.
_dying_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _api)
)
_dying_get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)

#: Owners kept alive by exported capsules, by the address of their struct.
_exported: dict[int, tuple[Any, ...]] = {}


@dataclass(frozen=True)
class Shared:
    """Memory that another library shares: address, shape, strides in elements, dtype name, DLPack device."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: str
    device_type: int
    device_id: int
    owner: object
    read_only: bool = False


def _delete(address: int, exported: dict[int, tuple[Any, ...]] = _exported) -> None:
    exported.pop(address, None)


def _destroy(
    capsule: int,
    exported: dict[int, tuple[Any, ...]] = _exported,
    is_valid: Any = _dying_is_valid,
    get: Any = _dying_get,
    names: tuple[bytes, ...] = (_PLAIN, _VERSIONED),
) -> None:
    for name in names:
        if is_valid(capsule, name):  # not consumed
            exported.pop(get(capsule, name), None)


_delete_callback = _Deleter(_delete)
_destroy_callback = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_destroy)
# Capsules and other libraries' arrays may outlive this module at interpreter exit: the callbacks and the functions
# that they call are never freed.
for _immortal in (_delete_callback, _destroy_callback, _exported, _dying_is_valid, _dying_get):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_immortal))


def export(
    pointer: int,
    shape: Sequence[int],
    strides: Sequence[int],
    dtype: str,
    device: tuple[int, int],
    owner: object,
    *,
    max_version: tuple[int, int] | None = None,
    copied: bool = False,
    read_only: bool = False,
) -> Any:
    """A DLPack capsule over memory; `owner` lives until the consumer is done.

    Args:
        pointer: address of element (0, …, 0).
        shape: its shape.
        strides: in elements.
        dtype: a name of `TYPES`.
        device: DLPack's device type and number.
        owner: the object that holds the memory.
        max_version: the newest that the consumer supports: from (1, 0) on the capsule is a "dltensor_versioned".
        copied: whether the memory is a copy made for this consumer.
        read_only: whether the consumer may not write.

    Raises:
        BufferError: a dtype without a DLPack code; read-only memory for a consumer that requests a capsule older
            than DLPack 1.0, which has no read-only flag.
    """
    if dtype not in TYPES:
        raise BufferError(f"DLPack has no type for {dtype}")
    sizes, steps = (ctypes.c_int64 * len(shape))(*shape), (ctypes.c_int64 * len(shape))(*strides)
    code, bits = TYPES[dtype]
    tensor = _DLTensor(pointer, *device, len(shape), code, bits, 1, sizes, steps, 0)
    deleter = ctypes.cast(_delete_callback, ctypes.c_void_p)
    versioned = max_version is not None and max_version[0] >= _VERSION[0]
    if read_only and not versioned:
        raise BufferError("read-only memory can be shared through DLPack 1.0 or later only; share a copy")
    flags = (_COPIED if copied else 0) | (_READ_ONLY if read_only else 0)
    managed = (
        _Versioned(*_VERSION, None, deleter, flags, tensor) if versioned else _Managed(tensor, None, deleter)
    )
    address = ctypes.addressof(managed)
    _exported[address] = (managed, sizes, steps, owner)
    return _new(address, _VERSIONED if versioned else _PLAIN, ctypes.cast(_destroy_callback, ctypes.c_void_p))


class _Imported(Uncopied):
    """Calls the producer's deleter once, after the last use; not at interpreter exit, when the producer may
    be gone too and memory goes with the process."""

    __slots__ = ("address", "deleter")

    def __init__(self, address: int, deleter: int | None) -> None:
        self.address, self.deleter = address, deleter

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if self.deleter and not _ending():
            _Deleter(self.deleter)(self.address)


def adopt(capsule: Any) -> Shared:
    """The memory in a capsule, which is consumed. Raises TypeError for anything but a fresh DLPack capsule."""
    for name, struct in ((_VERSIONED, _Versioned), (_PLAIN, _Managed)):
        if _is_valid(capsule, name):
            address = _get(capsule, name)
            managed: Any = struct.from_address(address)
            if struct is _Versioned and managed.major != _VERSION[0]:
                raise BufferError(f"DLPack {managed.major}.{managed.minor} is not understood, only 1.x")
            read_only = struct is _Versioned and bool(managed.flags & _READ_ONLY)
            shared = _read(managed.tensor, _Imported(address, managed.deleter), read_only)
            _rename(capsule, _USED[name])
            return shared
    raise TypeError(f"not a DLPack capsule that is still to be consumed: {capsule!r}")


#: Names of consumed capsules; they must outlive the capsules, which only point to them.
_USED = {_PLAIN: b"used_dltensor", _VERSIONED: b"used_dltensor_versioned"}


def _read(tensor: _DLTensor, owner: _Imported, read_only: bool) -> Shared:
    dtype = _NAMES.get((tensor.code, tensor.bits))
    if dtype is None or tensor.lanes != 1:
        raise TypeError(
            f"DLPack type (code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes) is not known"
        )
    rank = tensor.ndim
    strides = tuple(tensor.strides[:rank]) if tensor.strides else None
    pointer = (tensor.data or 0) + tensor.byte_offset
    return Shared(
        pointer,
        tuple(tensor.shape[:rank]),
        strides,
        dtype,
        tensor.device_type,
        tensor.device_id,
        owner,
        read_only,
    )
