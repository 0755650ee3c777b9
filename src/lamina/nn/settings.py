"""What compiled programs depend on beside the tensors of a module: its numbers, its parts, its hooks.

A program holds `dropout.p`, `norm.momentum` or a network's own `self.temperature` as they were when it was traced.
Setting an attribute is seen by `Module.__setattr__`, reading one is not: so a module's settings are the plain values
among those of its attributes that the functions of its class name. What a forward pass itself assigns (a count, a
result that is kept) is no setting.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterator
from inspect import unwrap
from types import CodeType, FunctionType
from typing import Any, Protocol

import numpy as np

from lamina.graph.ir.surroundings import DEEPEST, PLAIN, Itself, Read, has_fields, is_container, reads_of
from lamina.nn.parameter import settings_version
from lamina.tensors import Tensor

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

    __slots__ = ("_containers", "_held", "_seen", "_settings")

    def __init__(self, module: HasSettings) -> None:
        self._held, self._seen = weakref.ref(module), -1
        self._settings: Hashable = None
        self._containers = SameContainers(module)

    def settle(self) -> None:
        """These are the settings."""
        if (module := self._held()) is not None:
            self._seen, self._settings = settings_version(), settings_of(module)
            self._containers.settle()

    def __call__(self) -> bool:
        """Whether they are the same."""
        now = settings_version()
        if now != self._seen:
            module = self._held()
            if module is None or settings_of(module) != self._settings:
                return False
            self._seen = now
        return not self._containers or self._containers()


class SameContainers:
    """Whether the lists, dicts and objects with fields that a module reads hold what they held.

    Nobody is told when something is put into one: they are looked at each time. True where there are any.
    """

    __slots__ = ("_held", "_values")

    def __init__(self, module: HasSettings) -> None:
        self._held, self._values = weakref.ref(module), _containers_of(module)

    def __bool__(self) -> bool:
        return bool(self._values)

    def settle(self) -> None:
        """A call is over: what it changed is no setting."""
        if (module := self._held()) is not None:
            now = _containers_of(module)
            self._values = {n: x for n, x in self._values.items() if now.get(n) == x}

    def __call__(self) -> bool:
        """Whether they are the same."""
        own = None if (module := self._held()) is None else vars(module)
        return own is not None and all(_plain(own.get(n)) == x for n, x in self._values.items())


_OTHER = object()
#: Containers of every module: `_exchanged` tells of them.
_TABLES = ("_parameters", "_buffers", "_modules")


def _containers_of(module: HasSettings) -> dict[str, Hashable]:
    """The containers of plain values that a module's forward function, and the methods that it calls, name."""
    own = vars(module)
    read = [n for n in _read(type(module)) if n in own and n not in _TABLES and n not in module._unsettled]
    found = {n: _plain(own[n]) for n in read if is_container(own[n])}
    return {n: x for n, x in found.items() if x is not _OTHER}


def _plain(value: Any, depth: int = 0) -> Any:
    """A value that can be compared; `_OTHER` for what has modules or a state of its own."""
    if isinstance(value, PLAIN):
        return type(value), value
    if depth < DEEPEST and isinstance(value, tuple | list):
        parts = tuple([_plain(x, depth + 1) for x in value])
        return _OTHER if _OTHER in parts else parts
    if isinstance(value, dict):
        return _plain([list(x) for x in value.items()], depth)
    if isinstance(value, np.generic):
        return type(value), value.item()
    if has_fields(value):
        return _plain(vars(value), depth)
    return Itself(value) if isinstance(value, FunctionType | np.ndarray | Tensor) else _OTHER


def surroundings_of(kind: type) -> tuple[Read, ...]:
    """What the functions of a class read beside a module's own: variables around them, numbers of the class.

    Kept by the class itself, which they may hold.
    """
    found: tuple[Read, ...] | None = vars(kind).get("_lamina_surroundings")
    if found is None:
        functions = [unwrap(f) for base in kind.__mro__ for n, f in _functions(base) if n not in _ASIDE]
        numbers = [n for n in _named(kind) if isinstance(getattr(kind, n, _OTHER), PLAIN)]
        own = [Read(kind, n) for n in numbers if kind.__module__.partition(".")[0] != _LIBRARY]
        found = (*reads_of(*[f for f in functions if isinstance(f, FunctionType)]), *own)
        type.__setattr__(kind, "_lamina_surroundings", found)
    return found


#: Classes of this package have numbers that nobody changes.
_LIBRARY = __name__.partition(".")[0]
_names: weakref.WeakKeyDictionary[type, tuple[str, ...]] = weakref.WeakKeyDictionary()


def _named(kind: type) -> tuple[str, ...]:
    """The names that the functions of a class and of those it inherits from use, up to what Module itself uses."""
    if kind not in _names:
        functions = (unwrap(f) for base in kind.__mro__ for n, f in _functions(base) if n not in _ASIDE)
        codes = (f.__code__ for f in functions if isinstance(f, FunctionType))
        _names[kind] = tuple(dict.fromkeys(name for code in codes for name in _inner(code)))
    return _names[kind]


_names_read: weakref.WeakKeyDictionary[type, tuple[str, ...]] = weakref.WeakKeyDictionary()


def _read(kind: type) -> tuple[str, ...]:
    """The names that the forward function of a class uses, and the functions of the class among these."""
    if kind not in _names_read:
        found: dict[str, None] = {}
        ahead = ["forward"]
        while ahead:
            if (name := ahead.pop()) not in found:
                found[name] = None
                made = getattr(kind, name, None)
                function = unwrap(made.fget if isinstance(made, property) and made.fget else made)  # type: ignore[arg-type]
                ahead += _inner(function.__code__) if isinstance(function, FunctionType) else ()
        _names_read[kind] = tuple(found)
    return _names_read[kind]


def _functions(kind: type) -> Iterator[tuple[str, Any]]:
    for name, x in vars(kind).items():
        yield name, x.fget if isinstance(x, property) else getattr(x, "__func__", x)


def _inner(code: CodeType) -> Iterator[str]:
    """The names in a function and in those that are written in it."""
    yield from code.co_names
    for x in code.co_consts:
        if isinstance(x, CodeType):
            yield from _inner(x)
