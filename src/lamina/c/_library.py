"""Find a shared library, open it once, bind its functions at their first call.

Nothing is opened at import. `Library` is the part that every generated module shares: the search, the version
gate, the lazily bound symbols, the second try with converted arguments, and the texts of errors.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import ArgumentError, Array, Structure, Union, byref, c_int, c_int64, c_void_p
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol, TypeAlias, runtime_checkable

from lamina.c._enum import CEnum

__all__ = [
    "Handle",
    "Integers",
    "Library",
    "LibraryConflict",
    "LibraryError",
    "LibraryNotFound",
    "MissingSymbol",
    "Pointer",
    "Scaling",
    "UnsupportedVersion",
    "Version",
    "loaded_libraries",
    "pointer",
]

Version: TypeAlias = tuple[int, int, int]


# ---------------------------------------------------------------------------------------------------------
# What a caller may pass


@runtime_checkable
class HasDLPack(Protocol):
    """An array of any library that can be exported by DLPack."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...


class HasCudaArray(Protocol):
    """An array on a CUDA device that describes itself by the CUDA array interface."""

    @property
    def __cuda_array_interface__(self) -> Any: ...


Handle: TypeAlias = int | None | c_void_p
"""An opaque handle or descriptor: a plain int; None and 0 are null."""
Pointer: TypeAlias = int | None | bytes | c_void_p | Array[Any] | Structure | HasDLPack | HasCudaArray
"""Memory: an address, a ctypes object, a NumPy array, or any array with DLPack or the CUDA array interface."""
Scaling: TypeAlias = float | Array[Any] | c_void_p
"""alpha or beta: a float; a ctypes array or pointer is passed as it is."""
Integers: TypeAlias = Sequence[int] | Array[Any] | int | None
"""A host array of integers: a sequence, a ctypes array, an address, or None."""

_BYREF = type(byref(c_int()))  # what ctypes.byref returns
_CDATA = (Structure, Union, ctypes._SimpleCData)
_AS_THEY_ARE = (int, c_void_p, Array, ctypes._Pointer, _BYREF, bytes, type(None))


# ---------------------------------------------------------------------------------------------------------
# Errors of this module (the statuses of a library are in lamina.c.errors)


class LibraryError(RuntimeError):
    """A shared library cannot be used."""


class LibraryNotFound(LibraryError):
    """No candidate could be opened; the text lists every one that was tried."""


class LibraryConflict(LibraryError):
    """Two different copies of one library are wanted in one process; the text names both paths."""


class UnsupportedVersion(LibraryError):
    """The library that was found is outside the supported range of versions."""


class MissingSymbol(LibraryError, NotImplementedError):
    """The installed library is older (or otherwise built) than a function needs.

    Attributes: `symbol`, `needs` (version or None), `version` (of the library), `path`.
    """

    def __init__(self, symbol: str, title: str, needs: Version | None, version: Version, path: str) -> None:
        self.symbol, self.needs, self.version, self.path = symbol, needs, version, path
        if needs is not None and needs > version:
            text = f"{symbol} needs {title} {needs[0]}.{needs[1]}, this is {version[0]}.{version[1]} ({path})"
        else:
            text = f"{symbol} is not exported by this {title} {version_text(version)} ({path})"
        super().__init__(text)


def version_text(version: Version) -> str:
    """(9, 19, 0) -> '9.19.0'."""
    return ".".join(map(str, version))


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
    """What ctypes can pass as a `void *` for `value`: an address, None, or a ctypes object.

    Understood: int, None, c_void_p, bytes, ctypes arrays, pointers and structures, NumPy arrays, anything with
    `__cuda_array_interface__`, `data_ptr()`, `__dlpack__`, `__cuda_stream__` or `__index__`.
    The caller keeps the owner of the memory alive, and orders streams.

    Raises TypeError for anything else (a float, a list, a str).
    """
    if isinstance(value, _AS_THEY_ARE):
        return value
    if isinstance(value, _CDATA):
        return byref(value)
    if isinstance(value, ctypes._CFuncPtr):
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
_CTYPES: Final[Mapping[str, Any]] = {
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


def _converted(value: Any, code: str) -> Any:
    """`value` as ctypes wants it for the type `code`; TypeError or OverflowError if it cannot be."""
    if code in ("p", "out"):
        return pointer(value)
    if code in ("f", "d"):
        return float(value)
    if code in ("s", "c"):
        return value.encode() if isinstance(value, str) else value
    if not hasattr(value, "__index__"):
        raise TypeError(f"an integer is wanted, not {type(value).__name__}")
    return _integer(value, code if code in _RANGES else "i")


def integers(element: Any, values: Any, least: int, name: str) -> Any:
    """A host array of C integers from a sequence; addresses, ctypes arrays and None pass as they are.

    `least` is how many entries the library reads: fewer raise ValueError, instead of a read past the end.
    """
    if values is None or isinstance(values, (int, c_void_p, ctypes._Pointer)):
        return values
    if isinstance(values, Array) and getattr(values, "_type_", None) is element:
        count = len(values)
        if count >= least:
            return values
    else:
        values = values.tolist() if hasattr(values, "tolist") else list(values)
        count = len(values)
    if count < least:
        raise ValueError(f"`{name}` has {count} entries, {least} are read")
    bits = 8 * ctypes.sizeof(element)
    if values and (min(values) < -(2 ** (bits - 1)) or max(values) >= 2**bits):
        raise OverflowError(f"`{name}`={values} does not fit into {bits}-bit integers")
    return (element * count)(*values)


def dims(values: Any, least: int, name: str) -> Any:
    """A `dnnl_dims_t` (12 int64, padded with zeros) from a sequence; None and addresses pass as they are."""
    if values is None or isinstance(values, (int, c_void_p, ctypes._Pointer)):
        return values
    values = values.tolist() if hasattr(values, "tolist") else tuple(values)
    if not least <= len(values) <= 12:
        raise ValueError(f"`{name}`={list(values)} has {len(values)} entries, {least} to 12 are allowed")
    return (c_int64 * 12)(*values)


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
    """`count` C values that the library owns at `address`, copied into a list."""
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


# ---------------------------------------------------------------------------------------------------------
# The search


def loaded_libraries(pattern: str) -> list[str]:
    """Paths of the shared objects in this process whose file name matches the regular expression `pattern`."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    found = {}
    for line in lines:
        path = line[line.find("/") :] if "/" in line else ""
        if path and re.fullmatch(pattern, os.path.basename(path.removesuffix(" (deleted)"))):
            found[path.removesuffix(" (deleted)")] = None
    return list(found)


def wheel_file(distribution: str, pattern: str) -> str | None:
    """The path of the first file of an installed wheel whose name matches, shortest name first.

    Reads the wheel's RECORD itself: importlib.metadata would cost more than everything else at import.
    """
    stem = distribution.replace("-", "_")
    for folder in map(Path, sys.path):
        for record in folder.glob(f"{stem}-*.dist-info/RECORD"):
            files = [line.split(",")[0] for line in record.read_text().splitlines()]
            fitting = [folder / file for file in files if re.fullmatch(pattern, file.rpartition("/")[2])]
            for path in sorted(fitting, key=lambda path: len(path.name)):
                if path.exists():
                    return str(path.resolve())
    return None


def _same_file(left: str, right: str) -> bool:
    try:
        return os.path.samefile(left, right)
    except OSError:
        return os.path.realpath(left) == os.path.realpath(right)


class Symbols:
    """The bound functions of one library: an attribute is looked up in the library once, at its first use."""

    def __init__(self, library: Library) -> None:
        self.__dict__["_library"] = library

    def __getattr__(self, name: str) -> Any:
        function = self.__dict__["_library"].bind(name)
        setattr(self, name, function)
        return function


class Library:
    """One shared library: where it is, which version it is, its functions.

    Args:
        title: the name for people ("cuDNN").
        environment: the variable with an explicit path ("LAMINA_CUDNN").
        pattern: regular expression of the file name ("libcudnn\\.so(\\.9)?").
        names: platform names to ask the loader for, last of all.
        finders: further finders, name -> function that returns a path (and may load the library) or None.
        supported: lowest and first unsupported version.
        header: the version that the module was generated from.
        since: symbol -> first version, for symbols that are newer than `supported[0]`.
        signatures: function -> "result: name=code ..." (codes as in this module, or an enum's name).
        enums: the namespace in which enum names are found (the generated module's globals).
    """

    def __init__(
        self,
        title: str,
        *,
        environment: str,
        pattern: str,
        names: Sequence[str],
        finders: Mapping[str, Callable[[], str | None]],
        supported: tuple[Version, Version],
        header: Version,
        since: Mapping[str, Version],
        signatures: Mapping[str, str],
        enums: Mapping[str, Any],
    ) -> None:
        self.title, self.environment, self.header, self.supported = title, environment, header, supported
        self.since, self.signatures = since, signatures
        self.symbols = Symbols(self)
        self._pattern, self._names, self._finders, self._enums = pattern, names, finders, enums
        self._lock = threading.RLock()
        self._opened: tuple[ctypes.CDLL, str, Version, str] | None = None
        self._kept: dict[str, Any] = {}

    # -- opening ------------------------------------------------------------------------------------------

    def open(self) -> ctypes.CDLL:
        """The library, opened at the first call.

        Raises LibraryNotFound, LibraryConflict or UnsupportedVersion.
        """
        opened = self._opened
        return opened[0] if opened is not None else self._open()[0]

    def _open(self) -> tuple[ctypes.CDLL, str, Version, str]:
        with self._lock:
            if self._opened is None:
                library, path, found = self._search()
                version = self._check(library, path)
                self._opened = library, path, version, found
            return self._opened

    @property
    def path(self) -> str:
        """The file that is open."""
        return self._open()[1]

    @property
    def version(self) -> Version:
        """(major, minor, patch) of the library that is open."""
        return self._open()[2]

    @property
    def found(self) -> str:
        """How the library was found: "already loaded", the environment variable, a wheel, a platform name."""
        return self._open()[3]

    def available(self) -> bool:
        """True if the library can be opened; never raises."""
        try:
            self._open()
        except LibraryError:
            return False
        return True

    def _search(self) -> tuple[ctypes.CDLL, str, str]:
        loaded = loaded_libraries(self._pattern)
        wanted = os.environ.get(self.environment)
        if wanted:
            for path in loaded:
                if not _same_file(path, wanted):
                    raise LibraryConflict(
                        f"{self.environment} asks for {wanted}, but {path} is loaded in this process already; "
                        f"one process can hold one {self.title}: unset the variable, or set it before the first "
                        f"import of the library that loaded the other"
                    )
            return self._load(wanted, f"${self.environment}")
        if len(loaded) > 1:
            raise LibraryConflict(
                f"this process has {len(loaded)} copies of {self.title} loaded: {', '.join(loaded)}; "
                f"only one can be used, remove the others"
            )
        if loaded:
            return self._load(loaded[0], "already loaded")
        return self._first_that_opens()

    def _first_that_opens(self) -> tuple[ctypes.CDLL, str, str]:
        tried = [f"already loaded in this process: none (file name {self._pattern})"]
        tried.append(f"${self.environment}: not set")
        for name, finder in self._finders.items():
            try:
                path = finder()
            except Exception as error:  # a finder of another package: its reason is part of the report
                tried.append(f"{name}: {_first_line(error)}")
                continue
            if path is None:
                tried.append(f"{name}: not installed")
                continue
            return self._load(path, name)
        for name in self._names:
            try:
                library = ctypes.CDLL(name)
            except OSError as error:
                tried.append(f"{name}: {_first_line(error)}")
                continue
            loaded = loaded_libraries(self._pattern)
            return library, loaded[0] if loaded else name, f"platform name {name}"
        listing = "".join(f"\n  - {line}" for line in tried)
        raise LibraryNotFound(f"{self.title} was not found; tried:{listing}")

    def _load(self, path: str, found: str) -> tuple[ctypes.CDLL, str, str]:
        try:
            return ctypes.CDLL(path), os.path.realpath(path), found
        except OSError as error:
            raise LibraryNotFound(f"{self.title}: {path} ({found}) does not open: {error}") from error

    def read_version(self, library: ctypes.CDLL) -> Version:
        """The version that an open library reports."""
        raise NotImplementedError

    def _check(self, library: ctypes.CDLL, path: str) -> Version:
        try:
            version = self.read_version(library)
        except AttributeError as error:
            raise LibraryNotFound(f"{path} is not a {self.title} library: {error}") from error
        low, high = self.supported
        if not low <= version < high:
            raise UnsupportedVersion(
                f"{self.title} {version_text(version)} ({path}) is not supported: {version_text(low)} or newer "
                f"and older than {version_text(high)} is"
            )
        return version

    # -- binding and calling ------------------------------------------------------------------------------

    def has(self, symbol: str) -> bool:
        """True if the open library exports `symbol`."""
        return hasattr(self.open(), symbol)

    def bind(self, name: str) -> Any:
        """The C function `name` with its argument types set.

        Raises MissingSymbol if the library lacks it.
        """
        library = self.open()
        try:
            function = library[name]
        except AttributeError:
            needs = self.since.get(name)
            raise MissingSymbol(name, self.title, needs, self.version, self.path) from None
        result, parameters = self._signature(name)
        function.restype = _CTYPES.get(result, c_int)
        function.argtypes = [_CTYPES.get(code, c_int) for _, code in parameters]
        return function

    def _signature(self, name: str) -> tuple[str, list[tuple[str, str]]]:
        result, _, listing = self.signatures[name].partition(":")
        pairs = [entry.partition("=") for entry in listing.split()]
        return result, [(parameter, code) for parameter, _, code in pairs]

    def slow(self, name: str, *values: Any) -> Any:
        """The call again, every argument converted by its C type: the way of the rarer kinds of arguments.

        Raises TypeError or OverflowError that name the function, the parameter and the value.
        """
        function = getattr(self.symbols, name)
        converted = []
        for (parameter, code), value in zip(self._signature(name)[1], values, strict=True):
            try:
                converted.append(_converted(value, code))
            except (TypeError, OverflowError, ValueError) as error:
                kind = OverflowError if isinstance(error, OverflowError) else TypeError
                raise kind(f"{name}: `{parameter}`={_short(value)}: {error}") from None
        try:
            return function(*converted)
        except ArgumentError as error:
            raise TypeError(f"{name}: {error}") from None

    def keep(self, name: str, kind: Any, function: Any) -> Any:
        """`function` as a C callback of type `kind`; kept alive until the next call for the same `name`."""
        callback = kind(function) if callable(function) and not isinstance(function, kind) else function
        self._kept[name] = callback
        return callback

    # -- errors -------------------------------------------------------------------------------------------

    def exception(self, status: int, function: str, arguments: str, hints: Iterable[str]) -> Exception:
        """The exception for a status; the libraries' subclasses define it."""
        raise NotImplementedError

    def failure(self, status: int, name: str, values: Mapping[str, Any]) -> Exception:
        """The exception for a call that returned `status`; `values` holds the call's arguments by name."""
        shown, hints = [], []
        for parameter, code in self._signature(name)[1]:
            if code == "out" or parameter not in values:
                continue
            value = values[parameter]
            member = self._member(code, value)
            shown.append(f"{parameter}={_short(value) if member is None else member}")
            needs = self.since.get(member or "")
            if needs is not None and needs > self.version:
                hints.append(f"{member} needs {self.title} {needs[0]}.{needs[1]}, this is {self._short_version()}")
        return self.exception(status, name, ", ".join(shown), hints)

    def _short_version(self) -> str:
        return f"{self.version[0]}.{self.version[1]}"

    def _member(self, code: str, value: Any) -> str | None:
        """The name of an enum constant, if `code` is an enum and `value` one of its values."""
        kind = self._enums.get(code) if code not in _CTYPES else None
        if kind is None or not issubclass(kind, CEnum) or not isinstance(value, int):
            return None
        return kind.label(value)


def _short(value: Any) -> str:
    """A value in an error message: addresses in hex, long things cut."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 0xFFFFFFFF:
        return hex(value)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"<{type(value).__name__} {tuple(value.shape)} {value.dtype}>"
    if isinstance(value, Array):
        value = list(value)
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def shared_object(stem: str, major: int) -> tuple[str, ...]:
    """Platform names of a library, the most exact first."""
    if sys.platform == "win32":
        return (f"{stem}64_{major}.dll", f"{stem}.dll")
    if sys.platform == "darwin":
        return (f"lib{stem}.{major}.dylib", f"lib{stem}.dylib")
    return (f"lib{stem}.so.{major}", f"lib{stem}.so")
