"""Find a shared library, open it once, bind its functions at their first call.

Nothing is opened at import. `Library` is shared by the generated modules: the search, the version check, the
lazily bound symbols, the retry with converted arguments, and the error texts.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import ArgumentError, c_int
from pathlib import Path
from typing import Any, TypeAlias

from lamina.c._arguments import CTYPES, converted, short
from lamina.c._enum import CEnum

__all__ = [
    "Library",
    "LibraryConflict",
    "LibraryError",
    "LibraryNotFound",
    "MissingSymbol",
    "UnsupportedVersion",
    "Version",
    "loaded_libraries",
]

Version: TypeAlias = tuple[int, int, int]


# ---------------------------------------------------------------------------------------------------------
# Errors of this module (the statuses of a library are in lamina.c.errors)


class LibraryError(RuntimeError):
    """A shared library cannot be used."""


class LibraryNotFound(LibraryError):
    """No candidate could be opened; the text lists all attempts."""


class LibraryConflict(LibraryError):
    """Two different copies of one library are requested in one process; the text names both paths."""


class UnsupportedVersion(LibraryError):
    """The version of the library found is unsupported."""


class MissingSymbol(LibraryError, NotImplementedError):
    """The installed library is older than a function needs, or a build without it.

    Attributes: `symbol`, `needs` (version or None), `version` (of the library), `path`.
    """

    def __init__(self, symbol: str, title: str, needs: Version | None, version: Version, path: str) -> None:
        self.symbol, self.needs, self.version, self.path = symbol, needs, version, path
        if needs is not None and needs > version:
            text = f"{_needs(symbol, title, needs, version)} ({path})"
        else:
            text = f"{symbol} is not exported by this {title} {version_text(version)} ({path})"
        super().__init__(text)


def _needs(name: str, title: str, needs: Version, version: Version) -> str:
    """The third number is shown only if the first two do not distinguish the versions."""
    count = 3 if needs[:2] == version[:2] else 2
    return f"{name} needs {title} {version_text(needs[:count])}, this is {version_text(version[:count])}"


def version_text(version: tuple[int, ...]) -> str:
    """(9, 19, 0) -> '9.19.0'."""
    return ".".join(map(str, version))


# ---------------------------------------------------------------------------------------------------------
# The search


def loaded_libraries(pattern: str) -> list[str]:
    """Paths of the shared objects in this process whose file name matches `pattern` (regular expression)."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    found: dict[str, None] = {}
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
    """One shared library: its location, version and functions.

    Args:
        title: the display name ("cuDNN").
        environment: the variable with an explicit path ("LAMINA_CUDNN").
        pattern: regular expression of the file name ("libcudnn\\.so(\\.9)?").
        names: platform names to try with the loader, last of all.
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
    def is_open(self) -> bool:
        """Whether the library has been opened."""
        return self._opened is not None

    @property
    def path(self) -> str:
        """The path of the open file."""
        return self._open()[1]

    @property
    def version(self) -> Version:
        """(major, minor, patch) of the open library."""
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
                        f"{self.environment} asks for {wanted}, but {path} is loaded in this process "
                        f"already, and one process can hold one {self.title}: unset the variable, or start "
                        f"without what loads the other"
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
            except Exception as error:  # a third-party finder: its error is part of the report
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
                f"{self.title} {version_text(version)} ({path}) is not supported: "
                f"it must be {version_text(low)} or newer, and older than {version_text(high)}"
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
        function.restype = CTYPES.get(result, c_int)
        function.argtypes = [CTYPES.get(code, c_int) for _, code in parameters]
        return function

    def _signature(self, name: str) -> tuple[str, list[tuple[str, str]]]:
        result, _, listing = self.signatures[name].partition(":")
        pairs = [entry.partition("=") for entry in listing.split()]
        return result, [(parameter, code) for parameter, _, code in pairs]

    def slow(self, name: str, *values: Any) -> Any:
        """Repeat the call with every argument converted by its C type: the slow path, for less common argument types.

        Raises TypeError or OverflowError that name the function, the parameter and the value.
        """
        function = getattr(self.symbols, name)
        done = []
        for (parameter, code), value in zip(self._signature(name)[1], values, strict=True):
            try:
                done.append(converted(value, code))
            except (TypeError, OverflowError, ValueError) as error:
                kind = OverflowError if isinstance(error, OverflowError) else TypeError
                raise kind(f"{name}: `{parameter}`={short(value)}: {error}") from None
        try:
            return function(*done)
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
            shown.append(f"{parameter}={short(value) if member is None else member}")
            needs = self.since.get(member or "")
            if needs is not None and needs > self.version:
                hints.append(_needs(member or "", self.title, needs, self.version))
        return self.exception(status, name, ", ".join(shown), hints)

    def _member(self, code: str, value: Any) -> str | None:
        """The name of an enum constant, if `code` is an enum and `value` one of its values."""
        kind = self._enums.get(code) if code not in CTYPES else None
        if not (isinstance(kind, type) and issubclass(kind, CEnum) and isinstance(value, int)):
            return None
        return kind.label(value)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def shared_object(stem: str, major: int) -> tuple[str, ...]:
    """Platform names of a library, the most specific first."""
    if sys.platform == "win32":
        return (f"{stem}64_{major}.dll", f"{stem}.dll")
    if sys.platform == "darwin":
        return (f"lib{stem}.{major}.dylib", f"lib{stem}.dylib")
    return (f"lib{stem}.so.{major}", f"lib{stem}.so")
