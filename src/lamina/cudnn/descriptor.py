"""Common base of the backend API's descriptors: attributes by name, ownership, a readable repr.

A descriptor is made with all its attributes, is finalized at once, and cannot change afterwards:

    x = Tensor(dimensions=(8, 64, 56, 56), strides=(200704, 1, 3584, 64), data_type="bfloat16", uid=1)
    x.get("dimensions")

It owns its C counterpart. Descriptors that refer to it keep that counterpart alive, so they may be closed, or
collected, in any order; a descriptor that was closed raises ValueError when it is used.
"""

from __future__ import annotations

import ctypes
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from functools import wraps
from inspect import signature
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np

from lamina.c import cudnn as c
from lamina.c._arguments import short
from lamina.c._library import MissingSymbol
from lamina.c.errors import CudnnError
from lamina.runtime.uncopied import Uncopied

_NAMES = c.cudnnBackendAttributeName_t
_TYPES = c.cudnnBackendAttributeType_t

#: Names of element types as other libraries write them.
DATA_TYPES = {
    "float64": c.cudnnDataType_t.CUDNN_DATA_DOUBLE,
    "float32": c.cudnnDataType_t.CUDNN_DATA_FLOAT,
    "float16": c.cudnnDataType_t.CUDNN_DATA_HALF,
    "bfloat16": c.cudnnDataType_t.CUDNN_DATA_BFLOAT16,
    "int64": c.cudnnDataType_t.CUDNN_DATA_INT64,
    "int32": c.cudnnDataType_t.CUDNN_DATA_INT32,
    "int8": c.cudnnDataType_t.CUDNN_DATA_INT8,
    "uint8": c.cudnnDataType_t.CUDNN_DATA_UINT8,
    "bool": c.cudnnDataType_t.CUDNN_DATA_BOOLEAN,
    "float8_e4m3fn": c.cudnnDataType_t.CUDNN_DATA_FP8_E4M3,
    "float8_e5m2": c.cudnnDataType_t.CUDNN_DATA_FP8_E5M2,
    "float8_e8m0fnu": c.cudnnDataType_t.CUDNN_DATA_FP8_E8M0,
    "float4_e2m1fn": c.cudnnDataType_t.CUDNN_DATA_FP4_E2M1,
}


def data_type(value: Any) -> c.cudnnDataType_t:
    """The cudnnDataType_t for a name ("bfloat16", "CUDNN_DATA_BFLOAT16"), a value, or a dtype of NumPy, PyTorch or
    Lamina. Raises ValueError, TypeError."""
    name = dtype_name(value)
    if name in DATA_TYPES:
        return DATA_TYPES[name]
    found: c.cudnnDataType_t = named(c.cudnnDataType_t, "CUDNN_DATA_", name or value, "data type")
    return found


def dtype_name(value: Any) -> str:
    """The name of an element type: the text itself, or that of a dtype of NumPy, PyTorch or Lamina; "" for others."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) or value is None:
        return ""
    if isinstance(value, type):  # np.float16, and what ml_dtypes has
        return np.dtype(value).name if issubclass(value, np.generic) else ""
    module = type(value).__module__.partition(".")[0]
    if module == "torch":
        return str(value).removeprefix("torch.")
    return str(getattr(value, "name", "")) if module in ("numpy", "lamina") else ""


def integers(what: str, values: Any) -> tuple[int, ...]:
    """Whole numbers, one per axis. Raises TypeError that begins with `what`: the call and the argument."""
    if not isinstance(values, str | bytes):
        try:
            return tuple([operator.index(value) for value in values])
        except TypeError:
            pass
    raise TypeError(f"{what} must be a sequence of whole numbers, got {short(values)}")


def named(enum: type[Any], prefix: str, value: str | int, what: str) -> Any:
    """The member of `enum` for a value, or for its C name with or without `prefix`, in any case.

    Raises ValueError that lists the names, TypeError.
    """
    if isinstance(value, enum) or (isinstance(value, int) and not isinstance(value, bool | IntEnum)):
        return enum(value)
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a name or a {enum.__name__}, got {short(value)}")
    text = value.upper()
    wanted = text if text.startswith("CUDNN_") else (prefix + text).upper()
    found = next((member for name, member in enum.__members__.items() if name.upper() == wanted), None)
    if found is None:
        names = [name for name in enum.__members__ if not name.endswith("_COUNT")]
        known = ", ".join(name.removeprefix(prefix).lower() for name in names)
        raise ValueError(f"unknown {what} {value!r}; known: {known}")
    return found


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute: its number, the C type of its elements, and whether it has many of them.

    enum: what its values are converted to when they are read. takes: what kind of descriptors it refers to, if any:
    the middle of CUDNN_BACKEND_…_DESCRIPTOR, or its beginning, "OPERATION_".
    """

    name: int
    code: int
    many: bool = False
    enum: type[IntEnum] | None = None
    takes: str = "TENSOR"

    def fits(self, value: object) -> bool:
        """Whether a value is a descriptor of the kind that it takes: the library does not check, and crashes."""
        if not isinstance(value, Descriptor):
            return False
        kind = value.kind.name.removeprefix("CUDNN_BACKEND_")
        return kind.startswith(self.takes if self.takes.endswith("_") else f"{self.takes}_DESCRIPTOR")

    @property
    def wanted(self) -> str:
        """What it takes, in words."""
        names = {"TENSOR": "Tensor", "OPERATION_": "operation", "DEVICEPROP": "DeviceProperties"}
        return names.get(self.takes, f"{self.takes.lower().replace('_', ' ')} descriptor")


def attribute(
    name: str,
    elements: str = "INT64",
    *,
    many: bool = False,
    enum: type[IntEnum] | None = None,
    takes: str = "TENSOR",
) -> Attribute:
    """The attribute CUDNN_ATTR_`name` with elements of CUDNN_TYPE_`elements`; see `Attribute`."""
    code = _TYPES.__members__["CUDNN_TYPE_" + elements]
    return Attribute(_NAMES.__members__["CUDNN_ATTR_" + name], code, many, enum, takes)


def tensors(prefix: str, **names: str) -> dict[str, Attribute]:
    """A table of attributes that are descriptors: x="XDESC" stands for CUDNN_ATTR_`prefix`XDESC."""
    return {key: attribute(prefix + name, "BACKEND_DESCRIPTOR") for key, name in names.items()}


def require(constant: str) -> None:
    """Raise MissingSymbol ("… needs cuDNN 9.20, this is 9.19") where a constant is newer than the library."""
    since = c.SINCE.get(constant)
    if since is not None and c.library.version < since:
        raise MissingSymbol(constant, "cuDNN", since, c.library.version, c.library.path)


# C type of an attribute's elements; any other is an enum.
_ELEMENTS: dict[int, Any] = {
    _TYPES.CUDNN_TYPE_HANDLE: ctypes.c_void_p,
    _TYPES.CUDNN_TYPE_BOOLEAN: ctypes.c_bool,
    _TYPES.CUDNN_TYPE_INT64: ctypes.c_int64,
    _TYPES.CUDNN_TYPE_INT32: ctypes.c_int32,
    _TYPES.CUDNN_TYPE_FLOAT: ctypes.c_float,
    _TYPES.CUDNN_TYPE_DOUBLE: ctypes.c_double,
    _TYPES.CUDNN_TYPE_VOID_PTR: ctypes.c_void_p,
    _TYPES.CUDNN_TYPE_BACKEND_DESCRIPTOR: ctypes.c_void_p,
    _TYPES.CUDNN_TYPE_FRACTION: ctypes.c_int64 * 2,
    _TYPES.CUDNN_TYPE_CHAR: ctypes.c_char,
}
#: The bits of whole numbers, and of addresses; ctypes would cut what does not fit.
_BITS: dict[int, tuple[int, int]] = {
    _TYPES.CUDNN_TYPE_INT64: (-(1 << 63), 1 << 63),
    _TYPES.CUDNN_TYPE_INT32: (-(1 << 31), 1 << 31),
    _TYPES.CUDNN_TYPE_VOID_PTR: (0, 1 << 64),
}
_REALS = {int(_TYPES.CUDNN_TYPE_FLOAT), int(_TYPES.CUDNN_TYPE_DOUBLE)}
_TEXT = int(_TYPES.CUDNN_TYPE_CHAR)
_DESCRIPTOR = int(_TYPES.CUDNN_TYPE_BACKEND_DESCRIPTOR)
_FRACTION = int(_TYPES.CUDNN_TYPE_FRACTION)


class Native(Uncopied):
    """The C descriptor, destroyed with its last owner; it keeps those alive that it refers to."""

    __slots__ = ("_destroy", "address", "kept")

    def __init__(self, kind: int) -> None:
        self.address: int = c.cudnnBackendCreateDescriptor(kind)
        self.kept: list[object] = []
        self._destroy: Callable[[int], Any] = c.cudnnBackendDestroyDescriptor

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        address = getattr(self, "address", 0)
        if address and not finalizing():  # at interpreter shutdown modules may be gone already
            self.address = 0
            self._destroy(address)


class Descriptor(Uncopied):
    """Base of the descriptors: subclasses name their kind and their attributes.

    Raises CudnnError (with the library's reason) when the library refuses an attribute or the whole, and
    MissingSymbol when it is older than the descriptor or the attribute.
    """

    kind: ClassVar[c.cudnnBackendDescriptorType_t]
    attributes: ClassVar[Mapping[str, Attribute]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = _with_operands(cls.__init__)  # type: ignore[method-assign]

    def __init__(self, **values: Any) -> None:
        require(self.kind.name)
        self._native: Native | None = Native(self.kind)
        self._values: dict[str, Any] = {}
        for name, value in values.items():
            if value is not None:
                self._set(name, value)
        self._finalize()

    @classmethod
    def empty(cls) -> Self:
        """An unfinalized descriptor: for the library to fill in when an attribute is read."""
        made = cls.__new__(cls)
        made._native, made._values = Native(cls.kind), {}
        return made

    def remade(self, change: Callable[[str, Any], Any]) -> Self:
        """Another descriptor of the same class: `change(name, value)` gives the new value of each set attribute."""
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        made._native, made._values = Native(self.kind), {}
        for name, value in self._values.items():
            made._set(name, change(name, value))
        made._finalize()
        return made

    @property
    def values(self) -> Mapping[str, Any]:
        """The attributes that were set, in the order in which they were set."""
        return dict(self._values)

    @property
    def native(self) -> Native:
        """The C descriptor. Raises ValueError after `close`."""
        if self._native is None:
            raise ValueError(f"this {type(self).__name__} was closed")
        return self._native

    @property
    def address(self) -> int:
        """The cudnnBackendDescriptor_t as an int. Raises ValueError after `close`."""
        return self.native.address

    # -- attributes -----------------------------------------------------------------------------------------

    def _set(self, name: str, value: Any, type: int | None = None) -> None:
        entry = self._attribute(name)
        kind = entry.code if type is None else type
        self._check(name, entry, kind, value)
        elements = self._elements(entry, kind, value)
        try:
            c.cudnnBackendSetAttribute(self.address, entry.name, kind, len(elements), elements)
        except CudnnError:
            require(_NAMES(entry.name).name)
            raise
        self._values[name] = value

    def _check(self, name: str, entry: Attribute, kind: int, value: Any) -> None:
        """Raise TypeError or OverflowError for a value that C would take for another one, or crash on."""
        where = f"{type(self).__name__}: {name}"
        if kind == _TEXT:
            if not isinstance(value, str | bytes | bytearray):
                raise TypeError(f"{where} must be text, got {short(value)}")
            return
        if entry.many and (isinstance(value, str | Descriptor) or not hasattr(value, "__iter__")):
            raise TypeError(f"{where} must be a sequence, got {short(value)}")
        for one in value if entry.many else (value,):
            if kind == _DESCRIPTOR and not entry.fits(one):
                raise TypeError(f"{where} must be a {entry.wanted}, got {short(one)}")
            if kind in _REALS and not isinstance(one, Real):
                raise TypeError(f"{where} must be a number, got {short(one)}")
            if (limits := _BITS.get(kind)) is None or isinstance(one, tuple):
                continue
            if not hasattr(type(one), "__index__"):
                raise TypeError(f"{where} must be a whole number, got {short(one)}")
            if not limits[0] <= operator.index(one) < limits[1]:
                raise OverflowError(f"{where} does not fit into {kind_bits(kind)} bits, got {one}")

    def _attribute(self, name: str) -> Attribute:
        if name not in self.attributes:
            known = ", ".join(self.attributes)
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}; it has {known}")
        return self.attributes[name]

    def _elements(self, entry: Attribute, kind: int, value: Any) -> Any:
        """The C array for a value."""
        if kind == _TEXT:
            data = value.encode() if isinstance(value, str) else bytes(value)
            return (ctypes.c_char * len(data)).from_buffer_copy(data)
        values: Sequence[Any] = tuple(value) if entry.many else (value,)
        if kind == _DESCRIPTOR:
            self.native.kept.extend(v.native for v in values)
            values = [v.address for v in values]
        if kind == _FRACTION:
            pair = ctypes.c_int64 * 2
            fractions = [Fraction(v).limit_denominator(1 << 20) for v in values]
            return (pair * len(values))(*(pair(f.numerator, f.denominator) for f in fractions))
        element = _ELEMENTS.get(kind, ctypes.c_int32)
        return (element * len(values))(*values)

    def _finalize(self) -> None:
        try:
            c.cudnnBackendFinalize(self.address)
        except CudnnError as error:
            error.add_note(f"of {Descriptor.__repr__(self)}")  # C knows an address only
            raise

    def get(self, name: str) -> Any:
        """The attribute's value: a tuple where it has many elements, str for text. Raises AttributeError.

        Where the library does not return an attribute, the value that was set is returned.
        """
        entry = self._attribute(name)
        if entry.code == _DESCRIPTOR:
            return self._values.get(name)
        try:
            return self._read(entry)
        except (
            CudnnError
        ):  # not supported, or (the convolution's mode) under another type than it is set with
            if name not in self._values:
                raise
            return self._values[name]

    def _read(self, entry: Attribute) -> Any:
        """The attribute's value as the library has it."""
        element = _ELEMENTS.get(entry.code, ctypes.c_int32)
        count = self._count(entry) if entry.many or entry.code == _TEXT else 1
        if count == 0:
            return "" if entry.code == _TEXT else ()
        array = (element * count)()
        written = c.cudnnBackendGetAttribute(self.address, entry.name, entry.code, count, array)
        if entry.code == _TEXT:
            return bytes(array.raw[:written]).rstrip(b"\0").decode()
        values = [_python(v, entry) for v in array[:written]]
        return tuple(values) if entry.many else values[0] if values else None

    def _count(self, entry: Attribute) -> int:
        return int(c.cudnnBackendGetAttribute(self.address, entry.name, entry.code, 0, None))

    def _get_descriptors(self, name: str, cls: type[Any], count: int) -> list[Any]:
        """Up to `count` descriptors of class `cls` that the library fills in."""
        entry = self._attribute(name)
        made = [cls.empty() for _ in range(count)]
        array = (ctypes.c_void_p * max(count, 1))(*(m.address for m in made))
        written = c.cudnnBackendGetAttribute(self.address, entry.name, _DESCRIPTOR, count, array)
        for one in made[:written]:
            one.native.kept.append(self.native)
        return made[:written]

    # -- lifetime -------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._native is None

    def close(self) -> None:
        """Release the C descriptor; it is destroyed when nothing refers to it any more. Idempotent."""
        self._native = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={_show(value)}" for name, value in self._values.items())
        return f"{type(self).__name__}({values}{', closed' if self.closed else ''})"


def kind_bits(kind: int) -> int:
    """The size of a whole number's C type."""
    return 8 * ctypes.sizeof(_ELEMENTS[kind])


def _with_operands(init: Callable[..., None]) -> Callable[..., None]:
    """A constructor that refuses what is no tensor where it takes one, before it reads an attribute of it."""
    places = [
        (i, n) for i, (n, p) in enumerate(signature(init).parameters.items()) if p.annotation == "Tensor"
    ]
    if not places:
        return init

    @wraps(init)
    def run(self: Descriptor, *operands: Any, **named: Any) -> None:
        for place, name in places:
            given = named.get(name, _MISSING) if place > len(operands) else operands[place - 1]
            if given is not _MISSING and not _TENSOR.fits(given):
                raise TypeError(f"{type(self).__name__}: {name} must be a Tensor, got {short(given)}")
        init(self, *operands, **named)

    return run


_MISSING = object()
_TENSOR = attribute("TENSOR_RAGGED_OFFSET_DESC", "BACKEND_DESCRIPTOR")


def _python(value: Any, entry: Attribute) -> Any:
    if entry.code == _FRACTION:
        return value[0] if value[1] == 1 else Fraction(value[0], value[1])
    return entry.enum(value) if entry.enum is not None else value


def _show(value: Any) -> str:
    if isinstance(value, IntEnum):
        return str(value.name)
    if isinstance(value, Descriptor):
        return f"<{type(value).__name__}>"
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], Descriptor):
        return f"[{', '.join(_show(v) for v in value)}]"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def text_of(descriptor: Descriptor) -> str:
    """A descriptor and all that it refers to, as text: equal for equal graphs."""
    parts = [f"{name}={_text(value)}" for name, value in sorted(descriptor.values.items())]
    return f"{type(descriptor).__name__}({', '.join(parts)})"


def _text(value: object) -> str:
    if isinstance(value, Descriptor):
        return text_of(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(_text, value))}]"
    return repr(value)
