"""The element types of files, by each format's name for them, and the types that hold them in Lamina."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from lamina.spec import DTypeError, as_dtype
from lamina.tensors import Tensor, as_tensor

Array = np.ndarray[Any, Any]


class ElementType(NamedTuple):
    """One type: NumPy's, safetensors' code, torch's name, that of torch's typed storage; "" if there is none."""

    numpy: np.dtype[Any]
    code: str
    torch: str
    storage: str = ""


_ROWS: tuple[tuple[Any, str, str, str], ...] = (
    (np.float64, "F64", "float64", "DoubleStorage"),
    (np.float32, "F32", "float32", "FloatStorage"),
    (np.float16, "F16", "float16", "HalfStorage"),
    (ml_dtypes.bfloat16, "BF16", "bfloat16", "BFloat16Storage"),
    (ml_dtypes.float8_e4m3fn, "F8_E4M3", "float8_e4m3fn", ""),
    (ml_dtypes.float8_e5m2, "F8_E5M2", "float8_e5m2", ""),
    (ml_dtypes.float8_e4m3fnuz, "F8_E4M3FNUZ", "float8_e4m3fnuz", ""),
    (ml_dtypes.float8_e5m2fnuz, "F8_E5M2FNUZ", "float8_e5m2fnuz", ""),
    (ml_dtypes.float8_e8m0fnu, "F8_E8M0", "float8_e8m0fnu", ""),
    (np.int64, "I64", "int64", "LongStorage"),
    (np.int32, "I32", "int32", "IntStorage"),
    (np.int16, "I16", "int16", "ShortStorage"),
    (np.int8, "I8", "int8", "CharStorage"),
    (np.uint64, "U64", "uint64", ""),
    (np.uint32, "U32", "uint32", ""),
    (np.uint16, "U16", "uint16", ""),
    (np.uint8, "U8", "uint8", "ByteStorage"),
    (np.bool_, "BOOL", "bool", "BoolStorage"),
    (np.complex64, "C64", "complex64", "ComplexFloatStorage"),
    (np.complex128, "", "complex128", "ComplexDoubleStorage"),
)
ELEMENT_TYPES = tuple(ElementType(np.dtype(kind), *names) for kind, *names in _ROWS)
BY_NUMPY = {t.numpy: t for t in ELEMENT_TYPES}
BY_CODE = {t.code: t for t in ELEMENT_TYPES if t.code}
BY_TORCH = {t.torch: t for t in ELEMENT_TYPES}
BY_STORAGE = {t.storage: t for t in ELEMENT_TYPES if t.storage}

#: The narrowest Lamina type that holds every value of another one.
_WIDER: dict[str, type] = {
    "float8_e5m2": np.float16,
    "float8_e4m3fnuz": np.float16,
    "float8_e5m2fnuz": np.float16,
    "float8_e8m0fnu": np.float32,
    "uint16": np.int32,
    "uint32": np.int64,
    "uint64": np.int64,
}


def as_held(name: str, array: Array) -> Tensor:
    """A tensor of these values, sharing their memory if Lamina has the type.

    Other types become the narrowest type that holds all of their values; complex numbers become pairs of real and
    imaginary part in a new last axis, as in `torch.view_as_real`. Raises DTypeError for integers that int64
    cannot hold.
    """
    return as_tensor(held(name, array))


def held(name: str, array: Array) -> Array:
    """As `as_held`, as an array."""
    try:
        as_dtype(array.dtype)
    except DTypeError:
        return _widened(name, array)
    return array


def _widened(name: str, array: Array) -> Array:
    if array.dtype.kind == "c":
        part = np.float32 if array.itemsize == 8 else np.float64
        return np.ascontiguousarray(array).view(part).reshape(*array.shape, 2)
    if array.dtype == np.uint64 and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise DTypeError(f"tensor {name!r} has whole numbers beyond int64: {array.max()}")
    return array.astype(_WIDER[array.dtype.name])
