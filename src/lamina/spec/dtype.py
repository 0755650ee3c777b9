"""Element types. Storage types only: TF32 is a compute mode of float32 (see `Policy.tf32`)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from lamina.spec.errors import DTypeError


class DType:
    """One element type: name as in NumPy, short form as printed in specs, bytes per element.

    There is one object per type, so that comparing them, and specs with them, is cheap. It is no dataclass, whose
    fields a tree of results would be made again of.
    """

    __slots__ = ("__weakref__", "itemsize", "kind", "name", "numpy", "short")
    name: str
    short: str
    itemsize: int
    kind: str  # 'f' float, 'i' signed, 'u' unsigned, 'b' bool
    numpy: np.dtype[Any]

    def __init__(self, name: str, short: str, itemsize: int, kind: str, numpy: np.dtype[Any]) -> None:
        given = {"name": name, "short": short, "itemsize": itemsize, "kind": kind, "numpy": numpy}
        for field, value in given.items():
            object.__setattr__(self, field, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name} of {self} cannot be changed: there is one object per dtype")

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return as_dtype, (self.name,)

    @property
    def is_float(self) -> bool:
        """Whether it is a floating point type."""
        return self.kind == "f"

    @property
    def is_floating_point(self) -> bool:
        """Whether it is a floating point type, as torch calls it."""
        return self.is_float

    @property
    def category(self) -> int:
        """0 for bool, 1 for integers, 2 for floats: the higher category of two determines their common type."""
        return {"b": 0, "i": 1, "u": 1, "f": 2}[self.kind]

    @property
    def compute(self) -> DType:
        """The accumulation type of sums and statistics: float32 for the half and quarter types, else itself."""
        return float32 if self in (float16, bfloat16, float8_e4m3fn) else self

    def holds(self, other: DType) -> bool:
        """Whether every value of another type of the same kind (float, integer or bool) is a value of this one."""
        return self.category == other.category and np.can_cast(other.numpy, self.numpy, "safe")

    def __repr__(self) -> str:
        return f"lamina.{self.name}"

    def __str__(self) -> str:
        return self.name


float64 = DType("float64", "f64", 8, "f", np.dtype(np.float64))
float32 = DType("float32", "f32", 4, "f", np.dtype(np.float32))
float16 = DType("float16", "f16", 2, "f", np.dtype(np.float16))
bfloat16 = DType("bfloat16", "bf16", 2, "f", np.dtype(ml_dtypes.bfloat16))
int64 = DType("int64", "i64", 8, "i", np.dtype(np.int64))
int32 = DType("int32", "i32", 4, "i", np.dtype(np.int32))
int16 = DType("int16", "i16", 2, "i", np.dtype(np.int16))
int8 = DType("int8", "i8", 1, "i", np.dtype(np.int8))
uint8 = DType("uint8", "u8", 1, "u", np.dtype(np.uint8))
bool_ = DType("bool", "b8", 1, "b", np.dtype(np.bool_))
#: 4 bits of exponent, 3 of mantissa, no infinities, up to 448. Only quantization produces and consumes it.
float8_e4m3fn = DType("float8_e4m3fn", "f8", 1, "f", np.dtype(ml_dtypes.float8_e4m3fn))

DTYPES = (float64, float32, float16, bfloat16, int64, int32, int16, int8, uint8, bool_)
FLOATS = (float64, float32, float16, bfloat16)
_ALIASES = {"double": float64, "float": float32, "half": float16}
_ALIASES |= {"fp64": float64, "fp32": float32, "fp16": float16}
_BY_NAME = {name: d for d in (*DTYPES, float8_e4m3fn) for name in (d.name, d.short)} | _ALIASES


def as_dtype(value: DType | str | np.dtype[Any] | type) -> DType:
    """The DType for a DType, a name ("float32", "bf16"), or a NumPy dtype. Raises DTypeError."""
    if isinstance(value, DType):
        return value
    name = value if isinstance(value, str) else _numpy_name(value) if isinstance(value, _NUMPY) else ""
    if name not in _BY_NAME:
        raise DTypeError(f"unknown dtype {value!r}; known: {', '.join(d.name for d in DTYPES)}")
    return _BY_NAME[name]


#: Types with a NumPy name; NumPy would take None for float64.
_NUMPY = (type, np.dtype)


@lru_cache(maxsize=256)
def _numpy_name(value: type | np.dtype[Any]) -> str:
    """NumPy's name of a dtype or type, "" if it has none. Cached, since NumPy rebuilds it each time, in 3 us."""
    try:
        return np.dtype(value).name
    except TypeError:
        return ""


class FloatLimits(NamedTuple):
    """The properties of a floating point type, as in torch.finfo."""

    bits: int
    eps: float
    min: float
    max: float
    tiny: float
    smallest_normal: float
    dtype: str


class IntLimits(NamedTuple):
    """The properties of an integer type, as in torch.iinfo."""

    bits: int
    min: int
    max: int
    dtype: str


def finfo(type: DType | str | np.dtype[Any] | type = float32) -> FloatLimits:
    """The limits of a floating point type: `finfo(x.dtype).min`. torch.finfo. Raises DTypeError for another type."""
    kind = as_dtype(type)
    if not kind.is_float:
        raise DTypeError(f"finfo: {kind} is no floating point type; iinfo tells of integers")
    known: Any = ml_dtypes.finfo(kind.numpy)  # type: ignore[no-untyped-call]
    tiny = float(known.smallest_normal)
    return FloatLimits(
        kind.itemsize * 8, float(known.eps), float(known.min), float(known.max), tiny, tiny, kind.name
    )


def iinfo(type: DType | str | np.dtype[Any] | type) -> IntLimits:
    """The limits of an integer type. torch.iinfo. Raises DTypeError for another type."""
    kind = as_dtype(type)
    if kind.category != 1:
        raise DTypeError(f"iinfo: {kind} is no integer type; finfo tells of floating point types")
    known = np.iinfo(kind.numpy)
    return IntLimits(known.bits, int(known.min), int(known.max), kind.name)


def can_cast(from_: DType, to: DType) -> bool:
    """Whether a dtype may become another, as torch.can_cast: bool < integers < floats, of any width."""
    return as_dtype(from_).category <= as_dtype(to).category


def promote_types(type1: DType, type2: DType) -> DType:
    """The common dtype of tensors of two dtypes, as torch.promote_types.

    bool < integers < floats: the higher kind decides; within one kind the wider type, int16 for uint8 with int8 and
    float32 for float16 with bfloat16.
    """
    type1, type2 = as_dtype(type1), as_dtype(type2)
    if type1 == type2:
        return type1
    if type1.category != type2.category:
        return max(type1, type2, key=lambda d: d.category)
    if type1.is_float:
        halves = {type1, type2} == {float16, bfloat16}
        return float32 if halves else max(type1, type2, key=lambda d: d.itemsize)
    return as_dtype(np.promote_types(type1.numpy, type2.numpy))
