"""What compiled programs depend on beside the tensors of a module: its numbers, its parts, its hooks.

A program holds `dropout.p`, `norm.momentum` or a network's own `self.temperature` as they were when it was traced.
Setting an attribute is seen by `Module.__setattr__`, reading one is not: so a module's settings are the plain values
among those of its attributes that the functions of its class name. What a forward pass itself assigns (a count, a
result that is kept) is no setting.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator
from enum import Enum
from inspect import unwrap
from types import CodeType, FunctionType
from typing import Any, Protocol

from lamina.nn.parameter import settings_version

_PLAIN = (bool, int, float, complex, str, bytes, type(None), Enum)
#: Functions of a class that no forward pass calls.
_ASIDE = ("__init__", "__repr__", "extra_repr")


class HasSettings(Protocol):
    """What this module sees of `nn.Module`."""

    #: When its parameters, modules or hooks were exchanged: a `settings_version`.
    _exchanged: int
    #: Attributes that were assigned while it was traced.
    _unsettled: set[str]


def settings_of(module: HasSettings) -> Hashable:
    """What programs that call the module depend on, but for its mode and for modules below it."""
    own, unsettled = vars(module), module._unsettled
    held = [(n, own[n]) for n in _named(type(module)) if n in own and n not in unsettled]
    return module._exchanged, tuple([(n, plain) for n, x in held if (plain := _plain(x)) is not _OTHER])


class SameSettings:
    """A guard: whether a module has the settings that it had when it was called.

    `settle` looks at them, when the call is over: what the call assigned is known then.
    """

    __slots__ = ("_held", "_seen", "_settings")

    def __init__(self, module: HasSettings) -> None:
        self._held, self._seen = weakref.ref(module), -1
        self._settings: Hashable = None

    def settle(self) -> None:
        """These are the settings."""
        if (module := self._held()) is not None:
            self._seen, self._settings = settings_version(), settings_of(module)

    def __call__(self) -> bool:
        """Whether they are the same."""
        now = settings_version()
        if now == self._seen:
            return True
        module = self._held()
        if module is None or settings_of(module) != self._settings:
            return False
        self._seen = now
        return True


_OTHER = object()


class _Is:
    """A function as a setting: itself, not what it is equal to."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Is) and other.function is self.function

    def __hash__(self) -> int:
        return id(self.function)


def _plain(value: Any) -> Any:
    """A value that can be compared; `_OTHER` for what has tensors, modules or a state of its own."""
    if isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, tuple | list):
        parts = tuple([_plain(x) for x in value])
        return _OTHER if _OTHER in parts else parts
    if isinstance(value, dict):
        return _plain([list(x) for x in value.items()])
    return _Is(value) if isinstance(value, FunctionType) else _OTHER


_names: weakref.WeakKeyDictionary[type, tuple[str, ...]] = weakref.WeakKeyDictionary()


def _named(kind: type) -> tuple[str, ...]:
    """The names that the functions of a class and of those it inherits from use, up to what Module itself uses."""
    if kind not in _names:
        functions = (unwrap(f) for base in kind.__mro__ for n, f in _functions(base) if n not in _ASIDE)
        codes = (f.__code__ for f in functions if isinstance(f, FunctionType))
        _names[kind] = tuple(dict.fromkeys(name for code in codes for name in _inner(code)))
    return _names[kind]


def _functions(kind: type) -> Iterator[tuple[str, Any]]:
    for name, x in vars(kind).items():
        yield name, x.fget if isinstance(x, property) else getattr(x, "__func__", x)


def _inner(code: CodeType) -> Iterator[str]:
    """The names in a function and in those that are written in it."""
    yield from code.co_names
    for x in code.co_consts:
        if isinstance(x, CodeType):
            yield from _inner(x)
