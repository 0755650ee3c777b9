"""Where an op comes from: the module that called it, by its path in the network, and the line of the program."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextvars import ContextVar, Token
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

#: Files of the package itself are no user's.
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
#: The package's own files, and what runs modules (`python -m lamina`).
_NOT_THE_USERS = (_PACKAGE, "<frozen ")


class Origin(NamedTuple):
    """Where an op comes from.

    module: the path in the network ("layer3.0.conv2"), several joined by " + " for what was fused; "" for the
    outermost module itself, or outside of any. file, number: the line of the user's program. gradient: whether it is
    part of the gradient of what stands there. parts: where each step of what was fused comes from.
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
        """Of the gradient of what stands there."""
        return Origin(self.module, self.file, self.number, True, self.parts)

    def joined(self, other: Origin) -> Origin:
        """Of what is computed at once, this and then the other: this one's line."""
        parts = (*(self.parts or (self,)), *(other.parts or (other,)))
        names = dict.fromkeys(part.module for part in parts if part.module)
        return self._replace(module=" + ".join(names), parts=parts)


class HasModules(Protocol):
    """A module of a network."""

    def named_modules(self) -> Iterator[tuple[str, Any]]:
        """The module itself and those below it, by their paths."""


class ModuleCall:
    """A module while its forward function runs, within the calls around it."""

    __slots__ = ("_inside", "_path", "module", "outer")

    def __init__(self, module: HasModules, outer: ModuleCall | None) -> None:
        self.module, self.outer = module, outer
        self._path: str | None = None
        self._inside: dict[int, tuple[Any, str]] = {}

    @property
    def path(self) -> str:
        """The module's path in the outermost module; its class's name where that does not hold it."""
        if self._path is None:
            self._path = self._found()
        return self._path

    def name_of(self, module: HasModules) -> str | None:
        """The name of a module within this one, None where it is not there. All are asked for once: each of many
        layers would go through those before it.
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
    """The module's forward function begins: what is computed until `leave` comes from it."""
    return _call.set(ModuleCall(module, _call.get()))


def leave(token: Token[ModuleCall | None]) -> None:
    """The module's forward function has ended."""
    _call.reset(token)


class origin_is:  # noqa: N801 - a statement's word
    """Within the block ops come from there."""

    __slots__ = ("_origin", "_token")

    def __init__(self, origin: Origin) -> None:
        self._origin = origin

    def __enter__(self) -> None:
        self._token = _given.set(self._origin)

    def __exit__(self, *raised: object) -> None:
        _given.reset(self._token)


def current_origin() -> Origin:
    """Where an op comes from that is applied now."""
    given = _given.get()
    if given is not None:
        return given
    call = _call.get()
    return Origin("" if call is None else call.path, *_user_line())


def _user_line() -> tuple[str, int]:
    """The innermost line that is not the package's own."""
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
    """Note at an error in which module, and at which line of the user's program, it was raised; once."""
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
