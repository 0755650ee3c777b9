"""Argument types accepted by C functions, and their conversion for ctypes."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping, Sequence
from ctypes import Array, Structure, Union, byref, c_int, c_int64, c_void_p
from typing import Any, ClassVar, Final, Protocol, TypeAlias, runtime_checkable

from lamina.c._enum import CEnum

__all__ = [
    "CTYPES",
    "CStruct",
    "Handle",
    "Integers",
    "Opaque",
    "Pointer",
    "Scaling",
    "address",
    "addresses",
    "check_opaque",
    "converted",
    "copied",
    "dims",
    "floats",
    "handles",
    "integers",
    "pointer",
    "short",
    "structures",
]

# ---------------------------------------------------------------------------------------------------------
# Types for annotations


@runtime_checkable
class HasDLPack(Protocol):
    """An array of any library that can be exported by DLPack."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...


class HasCudaArray(Protocol):
    """An array on a CUDA device that describes itself by the CUDA array interface."""

    @property
    def __cuda_array_interface__(self) -> Any: ...


class Opaque(int):
    """A handle or descriptor made by a library: its address, in a class per C type.

    A raw address owned by other code is wrapped by calling the class: `cudnnTensorDescriptor_t(address)`.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({int(self):#x})"


def check_opaque(kind: type[Opaque], value: Any, function: str, name: str, *, null: bool = True) -> None:
    """Raise TypeError unless `value` is of this kind, a c_void_p, or, if allowed, null (None, 0)."""
    if isinstance(value, (kind, c_void_p)) or (
        null and (value is None or (type(value) is int and value == 0))
    ):
        return
    raw = f"; `{kind.__name__}({short(value)})` for a raw address" if type(value) is int else ""
    raise TypeError(f"{function}: `{name}`={short(value)}: a {kind.__name__} is wanted{raw}")


Handle: TypeAlias = Opaque | int | c_void_p | None
"""An opaque handle or descriptor of the C type that the signature names; None and 0 are null."""
Pointer: TypeAlias = int | bytes | c_void_p | Array[Any] | Structure | HasDLPack | HasCudaArray | None
"""Memory: an address, a ctypes object, a NumPy array, any array with DLPack or the CUDA array interface."""
Scaling: TypeAlias = float | Array[Any] | c_void_p
"""alpha or beta: a float; a ctypes array or pointer is passed as it is."""
Integers: TypeAlias = Sequence[int] | Array[Any] | int | None
"""A host array of integers: a sequence, a ctypes array, an address, or None."""

_BYREF = type(byref(c_int()))  # what ctypes.byref returns
_FUNCTION: Any = type(ctypes.pythonapi.Py_IsInitialized).__mro__[1]  # the base of every C function pointer
_CDATA = (Structure, Union, ctypes._SimpleCData)
_AS_THEY_ARE = (int, c_void_p, Array, ctypes._Pointer, _BYREF, bytes, type(None))


# ---------------------------------------------------------------------------------------------------------
# Pointers


class _DLTensor(ctypes.Structure):
    """The head of DLPack's DLTensor (DLPack 0.x and 1.x agree on it)."""

    _fields_ = [
        ("data", c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", c_void_p),
        ("strides", c_void_p),
        ("byte_offset", ctypes.c_uint64),
    ]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _dlpack_address(array: Any) -> int:
    """The address in an unversioned DLPack capsule; the capsule (not the array) is released afterwards."""
    capsule = array.__dlpack__()
    address = _capsule_pointer(capsule, b"dltensor")
    tensor = ctypes.cast(address, ctypes.POINTER(_DLTensor)).contents
    return (tensor.data or 0) + int(tensor.byte_offset)


def pointer(value: Any) -> Any:
    """A value that ctypes can pass as a `void *`: an address, None, or a ctypes object.

    Accepted: int, None, c_void_p, bytes, ctypes arrays, pointers and structures, NumPy arrays, and objects with
    `__cuda_array_interface__`, `data_ptr()`, `__dlpack__`, `__cuda_stream__` or `__index__`.
    The caller keeps the owner of the memory alive, and orders streams.

    Raises TypeError for anything else (a float, a list, a str).
    """
    if isinstance(value, _AS_THEY_ARE):
        return value
    if isinstance(value, _CDATA):
        return byref(value)
    if isinstance(value, _FUNCTION):
        return ctypes.cast(value, c_void_p)
    interface = getattr(value, "__array_interface__", None)
    if interface is not None:
        return interface["data"][0]
    if callable(getattr(value, "data_ptr", None)):
        return int(value.data_ptr())
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is not None:
        return interface["data"][0]
    if hasattr(value, "__dlpack__"):
        return _dlpack_address(value)
    if hasattr(value, "__cuda_stream__"):
        return int(value.__cuda_stream__()[1])
    if hasattr(value, "__index__"):
        return value.__index__()
    kind = type(value)
    raise TypeError(f"a pointer is wanted, not {kind.__module__}.{kind.__qualname__}")


def address(value: Any) -> int:
    """A handle as a plain int (0 for None)."""
    return int((value.value if isinstance(value, c_void_p) else value) or 0)


# ---------------------------------------------------------------------------------------------------------
# Scalars and arrays

_RANGES: Final = {
    "i": (-(2**31), 2**31 - 1),
    "I": (0, 2**32 - 1),
    "q": (-(2**63), 2**63 - 1),
    "Q": (0, 2**64 - 1),
    "N": (0, 2 ** (8 * ctypes.sizeof(ctypes.c_size_t)) - 1),
    "b": (-128, 127),
    "B": (0, 255),
}
CTYPES: Final[Mapping[str, Any]] = {
    "p": c_void_p,
    "out": c_void_p,
    "i": c_int,
    "I": ctypes.c_uint,
    "q": c_int64,
    "Q": ctypes.c_uint64,
    "N": ctypes.c_size_t,
    "b": ctypes.c_int8,
    "B": ctypes.c_uint8,
    "f": ctypes.c_float,
    "d": ctypes.c_double,
    "c": ctypes.c_char,
    "s": ctypes.c_char_p,
    "void": None,
    "handle": ctypes.c_size_t,
}


def _integer(value: Any, code: str) -> int:
    number: int = value.__index__()
    low, high = _RANGES[code]
    if not low <= number <= high:
        raise OverflowError(f"{number} does not fit ({low} to {high})")
    return number


def converted(value: Any, code: str) -> Any:
    """`value` converted for ctypes by the type `code`; TypeError or OverflowError if that is impossible."""
    if code in ("p", "out"):
        return pointer(value)
    if code in ("f", "d"):
        return float(value)
    if code in ("s", "c"):
        return value.encode() if isinstance(value, str) else value
    if not hasattr(value, "__index__"):
        hint = f"; the constant {value} has this name" if _is_constant(value) else ""
        raise TypeError(f"an integer is wanted, not {type(value).__name__}{hint}")
    return _integer(value, code if code in _RANGES else "i")


def integers(element: Any, values: Any, least: int, name: str) -> Any:
    """A host array of C integers from a sequence; addresses, ctypes arrays and None pass as they are.

    `least` is the number of entries that the library reads: fewer raise ValueError, instead of a read past the end.
    """
    if type(values) is not list and type(values) is not tuple:
        if _is_address(values):
            return values
        if isinstance(values, Array) and getattr(values, "_type_", None) is element:
            _enough(len(values), least, name)
            return values
        values = _entries(values, name)
    _enough(len(values), least, name)
    return _array(element, len(values), values, name)


def _is_address(values: Any) -> bool:
    """Whether an array is given by its address, or null. A small number is none: it was meant as an entry."""
    if isinstance(values, int) and not isinstance(values, bool):
        return values == 0 or values >= _FIRST_ADDRESS
    return values is None or isinstance(values, c_void_p | ctypes._Pointer)


def _entries(values: Any, name: str) -> list[Any]:
    """The entries of a sequence of any kind. Raises TypeError."""
    found = values.tolist() if hasattr(values, "tolist") else values
    if not hasattr(found, "__iter__") or isinstance(found, str | bytes):
        raise TypeError(f"{_function()}`{name}`={short(values)}: a sequence of integers is wanted")
    return list(found)


def _array(element: Any, count: int, values: Any, name: str) -> Any:
    """A C array of `count` integers that begins with these. Raises TypeError, OverflowError."""
    try:
        array = (element * count)(*values)
    except TypeError:
        raise TypeError(f"{_function()}`{name}`={short(values)}: a sequence of integers is wanted") from None
    if array[: len(values)] != list(values):  # ctypes truncates integers that do not fit
        raise OverflowError(
            f"{_function()}`{name}`={values} does not fit into {8 * ctypes.sizeof(element)}-bit integers"
        )
    return array


def _function() -> str:
    """The C function whose argument is converted, for an error message."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals is globals():
        frame = frame.f_back
    name = frame.f_code.co_name
    return f"{name}: " if name.startswith(_PREFIXES) else ""


def _is_constant(value: Any) -> bool:
    """Whether a text is the name of a constant, given instead of it."""
    return isinstance(value, str) and value.isidentifier() and value.lower().startswith(_PREFIXES)


_PREFIXES: Final = ("cudnn", "dnnl", "cublas")
#: No memory is mapped below.
_FIRST_ADDRESS: Final = 4096


def _enough(count: int, least: int, name: str) -> None:
    if count < least:
        raise ValueError(f"{_function()}`{name}` has {count} entries, {least} are read")


def dims(values: Any, least: int, name: str) -> Any:
    """A `dnnl_dims_t` (12 int64, padded with zeros) from a sequence; None and addresses pass as they are."""
    if _is_address(values):
        return values
    values = _entries(values, name)
    if not least <= len(values) <= 12:
        raise ValueError(
            f"{_function()}`{name}`={values} has {len(values)} entries, {least} to 12 are allowed"
        )
    return _array(c_int64, 12, values, name)


def floats(values: Any, name: str) -> Any:
    """A host array of C floats from a sequence; NumPy arrays must be float32."""
    if isinstance(values, (list, tuple)):
        return (ctypes.c_float * len(values))(*values)
    if getattr(getattr(values, "dtype", None), "name", "float32") != "float32":
        raise TypeError(f"`{name}` is an array of {values.dtype}, float32 is wanted")
    return pointer(values)


def handles(values: Any) -> Any:
    """A host array of handles from a sequence."""
    if isinstance(values, (list, tuple)):
        return (c_void_p * len(values))(*values)
    return pointer(values)


def structures(kind: type[Structure], values: Any) -> Any:
    """An array of C structures from a sequence of structures or of field tuples (or from a dict's items)."""
    if isinstance(values, Mapping):
        values = tuple(values.items())
    if isinstance(values, (list, tuple)):
        return (kind * len(values))(*values)
    return pointer(values)


def addresses(values: Any) -> Any:
    """An array of pointers to the ctypes structures in a sequence (which must outlive the call)."""
    if isinstance(values, (list, tuple)):
        return (c_void_p * len(values))(*map(ctypes.addressof, values))
    return pointer(values)


def copied(element: Any, address: int | None, count: int) -> list[Any]:
    """`count` C values at `address`, owned by the library, copied into a list."""
    if not address:
        return []
    if issubclass(element, Structure):
        size = ctypes.sizeof(element)
        return [element.from_buffer_copy(ctypes.string_at(address + i * size, size)) for i in range(count)]
    return list((element * count).from_address(address))


class CStruct(Structure):
    """Base of the generated structures: a readable repr, enum fields by name."""

    _enums_: ClassVar[Mapping[str, type[CEnum]]] = {}

    def __repr__(self) -> str:
        shown = []
        for name, *_ in self._fields_:
            value = getattr(self, name)
            if name in self._enums_:
                value = self._enums_[name].label(value)
            elif isinstance(value, Array):
                value = list(value)
            if name != "reserved":
                shown.append(f"{name}={value}")
        return f"{type(self).__name__}({', '.join(shown)})"


def short(value: Any) -> str:
    """A value in an error message: addresses in hex, long values truncated."""
    if isinstance(value, int) and not isinstance(value, bool | Opaque) and abs(value) > 0xFFFFFFFF:
        return hex(value)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"<{type(value).__name__} {tuple(value.shape)} {value.dtype}>"
    if isinstance(value, Array):
        value = list(value)
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
