"""Dependencies of compiled programs besides a module's tensors: its numbers, its submodules, its hooks.

A program contains `dropout.p`, `norm.momentum` or a network's own `self.temperature` as they were when it was traced.
`Module.__setattr__` observes writes to attributes, but nothing observes reads: so a module's settings are the plain
values among the attributes that its class's functions name. Attributes that a forward pass itself assigns (a counter,
a cached result) are not settings.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Hashable, Iterator
from inspect import unwrap
from types import FunctionType
from typing import Any, ClassVar, Protocol

import numpy as np

from lamina.graph.ir.counting import codes_in
from lamina.graph.ir.surroundings import (
    PLAIN,
    Itself,
    ReadWalk,
    SameSurroundings,
    SettledGuard,
    comparable,
    is_container,
    is_small_array,
)
from lamina.nn.parameter import settings_version
from lamina.ops.core import Operand

#: Functions of a class that a forward pass never calls.
_ASIDE = ("__init__", "__repr__", "extra_repr")


class HasSettings(Protocol):
    """The interface of `nn.Module` used here."""

    #: When its parameters, modules or hooks last changed: a `settings_version`.
    _exchanged: int
    #: Attributes that were assigned while it was traced.
    _unsettled: set[str]
    #: Attributes in which its class caches values: not settings.
    _no_settings: ClassVar[Collection[str]]

    def modules(self) -> Iterator[Any]:
        """Itself and all submodules."""

    def _same_elsewhere(self) -> Callable[[], bool] | None:
        """A guard of the module's dependencies that are not its own."""


def settings_of(
    module: HasSettings, names: Collection[str] = ()
) -> tuple[int, tuple[tuple[str, Hashable], ...]]:
    """The dependencies of programs that use a module, except its mode, the contents of containers, and submodules.

    names: of attributes that functions of other classes read.
    """
    own, named = vars(module), _named(type(module))
    aside = {*_TABLES, *module._no_settings, *module._unsettled}
    held = [(n, x) for n, x in own.items() if (n in named or n in names or n in _CALLED) and n not in aside]
    told = [(n, comparable(x) if _is_told(x) else Itself(x)) for n, x in held]
    return module._exchanged, tuple(told)


#: Attributes of every module: covered by `_exchanged` and `training`.
_TABLES = (
    *("_training", "_parameters", "_buffers", "_modules", "_transient", "_exchanged", "_unsettled"),
    *("_lamina_hooks",),
)


#: Read by `Module.__call__`: a function that an object has in place of its class's.
_CALLED = ("forward",)


def _is_told(value: Any) -> bool:
    """Whether `Module.__setattr__` observes every change of it: it cannot change otherwise."""
    return isinstance(value, (*PLAIN, tuple, np.generic, Operand, FunctionType))


def _may_change(value: Any) -> bool:
    """Whether its contents may change unobserved."""
    return is_container(value) or isinstance(value, tuple) or is_small_array(value)


class SameModules(SettledGuard):
    """A guard: whether a module and its submodules have unchanged settings, read the same attributes, and unchanged
    external dependencies (`_same_elsewhere`).

    `settle` takes the settings after the function has been traced: by then, what it assigned, counted or cached is
    known.
    """

    __slots__ = ("_around", "_elsewhere", "_held", "_names", "_seen", "_settings")

    def __init__(self, module: HasSettings) -> None:
        modules = list(module.modules())
        walk = _walk_of(modules)
        self._held, self._names = [weakref.ref(m) for m in modules], frozenset(walk.names)
        own = {id(vars(m)) for m in modules}
        reads = [r for r in walk.reads if id(r.holder) not in own or _may_change(r.now())]
        self._around = SameSurroundings(reads)
        self.look()

    def look(self) -> None:
        """Take the current settings."""
        self._seen, self._settings = settings_version(), self._settings_now()
        guards = [m._same_elsewhere() for held in self._held if (m := held()) is not None]
        self._elsewhere = [guard for guard in guards if guard is not None]

    def _settings_now(self) -> tuple[tuple[int, tuple[tuple[str, Hashable], ...]] | None, ...]:
        modules = [held() for held in self._held]
        return tuple([None if m is None else settings_of(m, self._names) for m in modules])

    def settle(self) -> None:
        """Make these the settings; changes around them were made by the function itself."""
        self.look()
        self._around.settle()

    def __call__(self) -> bool:
        """Whether they are unchanged."""
        now = settings_version()
        if now != self._seen:
            if self._settings_now() != self._settings:
                return False
            self._seen = now
        return self._around() and all(same() for same in self._elsewhere)

    @property
    def changed(self) -> list[str]:
        """The names of the settings, and of variables around them, that have other values now."""
        now = [x and dict(x[1]) for x in self._settings_now()]
        before = [x and dict(x[1]) for x in self._settings]
        modules = zip((held() for held in self._held), now, before, strict=True)
        named = [
            f"{type(m).__name__}.{n}"
            for m, new, old in modules
            for n in new or ()
            if new and new[n] != (old or {}).get(n)
        ]
        return list(dict.fromkeys([*named, *self._around.changed]))


def _walk_of(modules: Collection[HasSettings]) -> ReadWalk:
    """The attributes that a forward pass reads in functions of the user's classes among the modules, and hooks."""
    walk, kinds = ReadWalk(), dict[type, list[HasSettings]]()
    for module in modules:
        if type(module).__module__.partition(".")[0] != _LIBRARY:
            kinds.setdefault(type(module), []).append(module)
        for name in _CALLED:
            walk.call(vars(module).get(name))
        if (hooks := vars(module).get("_lamina_hooks")) is not None:
            for entry in (*hooks.before.values(), *hooks.after.values()):
                walk.call(entry.hook)
    seen, ahead = set[str](), ["forward"]
    while ahead:
        seen.update(ahead)
        for kind, of_kind in kinds.items():
            for function in filter(None, (_function_of(kind, name) for name in ahead)):
                for module in of_kind:
                    walk.call(function, (), module)
        ahead = [name for name in walk.names if name not in seen]
    return walk


def _function_of(kind: type, name: str) -> FunctionType | None:
    """A method, a property's getter or a class's function of this name."""
    made = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
    made = made.fget if isinstance(made, property) else getattr(made, "__func__", made)
    made = None if made is None or not callable(made) else unwrap(made)
    return made if isinstance(made, FunctionType) else None


#: Numbers in classes of this package do not change.
_LIBRARY = __name__.partition(".")[0]
#: The module that defines the base class of all modules.
_EVERY = f"{__name__.rpartition('.')[0]}.module"
_names: weakref.WeakKeyDictionary[type, frozenset[str]] = weakref.WeakKeyDictionary()


def _named(kind: type) -> frozenset[str]:
    """The names used by the functions of a class and its bases, except those of every module."""
    if kind not in _names:
        bases = [base for base in kind.__mro__ if base.__module__ != _EVERY]
        functions = (unwrap(f) for base in bases for n, f in _functions(base) if n not in _ASIDE)
        codes = (f.__code__ for f in functions if isinstance(f, FunctionType))
        _names[kind] = frozenset(n for code in codes for part in codes_in(code) for n in part.co_names)
    return _names[kind]


def _functions(kind: type) -> Iterator[tuple[str, Any]]:
    for name, x in vars(kind).items():
        yield name, x.fget if isinstance(x, property) else getattr(x, "__func__", x)
