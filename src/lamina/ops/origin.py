"""The origin of an op: the module that called it, by its path in the network, and the line of the program."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextvars import ContextVar, Token
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

#: The package's own files are not user code.
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
#: The package's own files, and the standard library's module runner (`python -m lamina`).
_NOT_THE_USERS = (_PACKAGE, "<frozen ")


class Origin(NamedTuple):
    """The origin of an op.

    module: the path in the network ("layer3.0.conv2"), several joined by " + " for a fused op; "" for the outermost
    module itself, or outside any module. file, number: the line of the user's program. gradient: whether the op
    belongs to the gradient of that line. parts: the origins of a fused op's steps.
    """

    module: str = ""
    file: str = ""
    number: int = 0
    gradient: bool = False
    parts: tuple[Origin, ...] = ()

    @property
    def line(self) -> str:
        """The line as "net.py:12"."""
        return f"{os.path.basename(self.file)}:{self.number}" if self.file else ""

    def __str__(self) -> str:
        text = ", ".join(part for part in (self.module, self.line) if part)
        return f"gradient of {text}" if self.gradient and text else text

    @property
    def of_gradient(self) -> Origin:
        """The origin of the gradient of this op."""
        return Origin(self.module, self.file, self.number, True, self.parts)

    def joined(self, other: Origin) -> Origin:
        """The origin of a fusion of this and then the other; it keeps this one's line."""
        parts = (*(self.parts or (self,)), *(other.parts or (other,)))
        names = dict.fromkeys(part.module for part in parts if part.module)
        return self._replace(module=" + ".join(names), parts=parts)


class HasModules(Protocol):
    """A module of a network."""

    def named_modules(self) -> Iterator[tuple[str, Any]]:
        """The module itself and its submodules, by their paths."""


class ModuleCall:
    """A module while its forward function runs, nested in its callers."""

    __slots__ = ("_inside", "_path", "module", "outer")

    def __init__(self, module: HasModules, outer: ModuleCall | None) -> None:
        self.module, self.outer = module, outer
        self._path: str | None = None
        self._inside: dict[int, tuple[Any, str]] = {}

    @property
    def path(self) -> str:
        """The module's path in the outermost module; its class name if that does not contain it."""
        if self._path is None:
            self._path = self._found()
        return self._path

    def name_of(self, module: HasModules) -> str | None:
        """The name of a module within this one, None if absent. All names are collected at once: otherwise each of
        many layers would traverse those before it.
        """
        if not self._inside:
            self._inside = {id(m): (m, name) for name, m in self.module.named_modules()}
        found, name = self._inside.get(id(module), (None, ""))
        return name if found is module else None

    def _found(self) -> str:
        outer = self.outer
        while outer is not None:
            name = outer.name_of(self.module)
            if name is not None:
                return ".".join(part for part in (outer.path, name) if part)
            outer = outer.outer
        return "" if self.outer is None else type(self.module).__name__


_call: ContextVar[ModuleCall | None] = ContextVar("lamina_module_call", default=None)
_given: ContextVar[Origin | None] = ContextVar("lamina_origin", default=None)


def enter(module: HasModules) -> Token[ModuleCall | None]:
    """Enter the module's forward function: ops up to `leave` originate from it."""
    return _call.set(ModuleCall(module, _call.get()))


def leave(token: Token[ModuleCall | None]) -> None:
    """Leave the module's forward function."""
    _call.reset(token)


class origin_is:  # noqa: N801 - a statement's word
    """Within the block, ops have the given origin."""

    __slots__ = ("_origin", "_token")

    def __init__(self, origin: Origin) -> None:
        self._origin = origin

    def __enter__(self) -> None:
        self._token = _given.set(self._origin)

    def __exit__(self, *raised: object) -> None:
        _given.reset(self._token)


def current_origin() -> Origin:
    """The origin of an op that is applied now."""
    given = _given.get()
    if given is not None:
        return given
    call = _call.get()
    return Origin("" if call is None else call.path, *_user_line())


def _user_line() -> tuple[str, int]:
    """The innermost stack frame outside the package."""
    frame = sys._getframe(1)
    while not _is_users(frame.f_code.co_filename):
        if frame.f_back is None:
            return "", 0
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


@lru_cache(maxsize=4096)
def _is_users(file: str) -> bool:
    return not file.startswith(_NOT_THE_USERS)


def explain(error: BaseException) -> None:
    """Add a note to an error with the module and the line of the user's program where it was raised; once."""
    call = _call.get()
    if call is None or any(note.startswith(_NOTE) for note in getattr(error, "__notes__", ())):
        return
    kind = type(call.module).__name__
    where = f"{call.path} ({kind})" if call.path not in ("", kind) else kind
    trace, line = error.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if _is_users(code.co_filename):
            line = f", {code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    if not line:
        file, number = _user_line()
        line = f", {file}:{number}" if file else ""
    error.add_note(f"{_NOTE}{where}{line}")


_NOTE = "in the module "
