"""Variables that a function reads besides its arguments: of its closure, its module, attributes of its objects.

A program holds their values as traced, and nothing announces a change, so each call checks them. Which variables
these are is read from the bytecode of the function and of the user functions that it calls.
"""

from __future__ import annotations

import dis
import pickle
import random
import sys
import sysconfig
import warnings
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import is_dataclass
from enum import Enum
from functools import partial
from operator import is_
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from lamina.graph.ir.counting import CountPlace, codes_in, is_counted_by
from lamina.ops.core import Operand

PLAIN = (bool, int, float, complex, str, bytes, type(None), Enum)
#: Larger containers are not checked in each call; nor are values nested deeper.
LARGEST, DEEPEST = 256, 8
#: Bytes of larger NumPy arrays are not compared in each call (these take some 25 µs), only which array it is.
_LARGEST_ARRAY = 2**18


class Itself:
    """A value compared by identity, not by equality."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Itself) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


#: Mutable containers.
_OPEN = (list, dict, set, deque)


def is_container(value: Any) -> bool:
    """Whether it is a list, a dict, a set or an object with fields: a mutable container of limited size."""
    return (isinstance(value, _OPEN) and size_of(value) <= LARGEST) or has_fields(value)


def has_fields(value: Any) -> bool:
    """Whether it is an object that holds values by name, such as a configuration."""
    kind = type(value)
    return issubclass(kind, SimpleNamespace) or (is_dataclass(kind) and hasattr(value, "__dict__"))


def is_small_array(value: Any) -> bool:
    """Whether it is a NumPy array of numbers whose contents are compared: it may be written at any time."""
    return isinstance(value, np.ndarray) and value.nbytes <= _LARGEST_ARRAY and not value.dtype.hasobject


def size_of(value: Any) -> int:
    """How many elements a container has. A class of tuples may refuse to tell."""
    return tuple.__len__(value) if isinstance(value, tuple) else len(value)


def comparable(value: Any, depth: int = 0) -> Hashable:
    """A key to compare a value with its later state: numbers, strings, arrays and containers by contents, others by
    `Itself`."""
    if isinstance(value, PLAIN):
        return type(value), repr(value) if isinstance(value, float) else value  # NaN is not equal to itself
    if isinstance(value, np.generic):
        return comparable(value.item(), depth)
    if is_small_array(value):
        return type(value), (value.dtype, value.shape, value.tobytes())
    if isinstance(value, _OPEN) and size_of(value) > LARGEST:
        return Itself(value), size_of(value)
    if depth < DEEPEST:
        if isinstance(value, tuple | list | deque) and size_of(value) <= LARGEST:
            return type(value), tuple([comparable(x, depth + 1) for x in value])
        if isinstance(value, set):
            return set, frozenset([comparable(x, depth + 1) for x in value])
        if isinstance(value, dict):
            return dict, tuple(
                [(comparable(k, depth + 1), comparable(x, depth + 1)) for k, x in value.items()]
            )
        if has_fields(value):
            return type(value), comparable(vars(value), depth + 1)
    return Itself(value)


#: Generators of random numbers besides `lamina.ops`.
GENERATORS = (random.Random, np.random.RandomState, np.random.Generator)


class Read(NamedTuple):
    """A variable: of an enclosing function (a cell), of a module or an object (its dictionary, and the name there),
    of a class or an object with slots; or the state of a random number generator.

    variable: the name of a cell. owner: the class of the object that has the attribute. codes: of the functions that
    read it.
    """

    holder: Any
    name: Any
    variable: str = ""
    owner: type | None = None
    codes: tuple[CodeType, ...] = ()

    @property
    def places(self) -> list[CountPlace]:
        """The places where bytecode accesses it."""
        if isinstance(self.holder, CellType):
            return [CountPlace("DEREF", self.variable)]
        return [CountPlace(kind, self.name) for kind in ("ATTR", "GLOBAL")]

    def __str__(self) -> str:
        return f"{self.owner.__name__}.{self.name}" if self.owner else str(self.variable or self.name)

    def now(self) -> Any:
        """Its current value; `_ABSENT` if it has none."""
        if isinstance(self.holder, dict):
            return self.holder.get(self.name, _ABSENT)
        if isinstance(self.holder, GENERATORS):
            return pickle.dumps(self.holder)
        if not isinstance(self.holder, CellType):
            return getattr(self.holder, self.name, _ABSENT)
        try:
            return self.holder.cell_contents
        except ValueError:
            return _ABSENT


_ABSENT = object()


class SettledGuard(ABC):
    """A guard: whether the record of a function is still valid. `settle` is called when the function has been
    traced."""

    __slots__ = ()

    @abstractmethod
    def settle(self) -> None:
        """After the traced call: its own changes are no reason to trace again."""

    @abstractmethod
    def __call__(self) -> bool:
        """Whether nothing changed."""

    @property
    @abstractmethod
    def changed(self) -> list[str]:
        """The names of the variables that have other values now."""


class SameSurroundings(SettledGuard):
    """A guard: whether variables that functions read still have the values of when this was made.

    `settle` drops variables that have changed since, which a traced call itself counts or caches; of dictionaries and
    objects with fields only the changed entries. If a flag that is read has changed, the record serves one
    call: the next one sees the flag's new state.
    """

    __slots__ = ("_is_spent", "_kept")

    def __init__(self, reads: Iterable[Read]) -> None:
        self._kept = [_KeptRead.of(read) for read in reads]
        self._is_spent = False

    def __bool__(self) -> bool:
        return bool(self._kept)

    def settle(self, draw_by: str = "lamina.ops") -> None:
        """After the traced call. Warns of random numbers drawn from generators of Python or NumPy, and of
        numbers that it incremented and depended on.

        draw_by: the recommended replacement.
        """
        same: list[Any] = []
        for kept in self._kept:
            holder, unchanged = kept.read.holder, kept.holds()
            if unchanged and not isinstance(holder, GENERATORS):
                same.append(kept)
            elif not unchanged and not isinstance(holder, GENERATORS):
                same += kept.unchanged_entries()
                self._is_spent = self._is_spent or kept.has_switched()
                kept.warn_of_counts()
            elif isinstance(holder, GENERATORS) and not unchanged:
                kind = type(holder)
                warnings.warn(
                    f"a traced function drew from a {kind.__name__} of {kind.__module__.partition('.')[0]}: these "
                    f"numbers are constants of the compiled program, the same in each call; draw by {draw_by} (rand, "
                    "randn, bernoulli, …), or give them as arguments",
                    stacklevel=users_frame(),
                )
        self._kept = same

    def __call__(self) -> bool:
        """Whether they are unchanged."""
        return not self._is_spent and all(kept.holds() for kept in self._kept)

    @property
    def changed(self) -> list[str]:
        """The names of the variables that have other values now."""
        return [str(kept.read) for kept in self._kept if not kept.holds()]


def changed_variables(guards: Iterable[Callable[[], bool]]) -> list[str]:
    """The names of the variables because of which guards no longer hold, each once."""
    named = [name for guard in guards if isinstance(guard, SettledGuard) for name in guard.changed]
    return list(dict.fromkeys(named))


class _KeptRead(NamedTuple):
    """A variable with its previous value: the object, the contents of its containers and arrays, and its key for
    comparison."""

    read: Read
    value: Any
    snapshot: Snapshot
    found: Hashable

    @classmethod
    def of(cls, read: Read) -> _KeptRead:
        """With its current value."""
        value = read.now()
        return cls(read, value, _snapshot(value, {}), comparable(value))

    def holds(self) -> bool:
        """Whether it is the same object with identical contents (a fast check), or equal to its previous value."""
        now = self.read.now()
        is_same = now is self.value and all(_holds(x, entries) for x, entries in self.snapshot)
        return is_same or comparable(now) == self.found

    def has_switched(self) -> bool:
        """Whether it is a flag that changed, or has an entry that is."""
        now = self.read.now()
        if is_flag(self.value) or is_flag(now):
            return is_flag(self.value) and is_flag(now)
        before, after = _entries_in(self.found), _entries_in(comparable(now))
        return any(
            _tells_flag(found) and _tells_flag(after.get(key)) and found != after[key]
            for key, found in before.items()
        )

    def warn_of_counts(self) -> None:
        """Warn of numbers that changed because the functions that read them count: later calls do not change them.
        Counts in attributes of modules are reported by the trace itself (`Capture.attributes_apart`).
        """
        read, moved = self.read, list(self._moved())
        if not moved or (
            _is_table_of_module(read.holder) and read.owner and is_advanced(read.owner, read.name)
        ):
            return
        codes = [part for code in read.codes for part in codes_in(code)]
        for key, now in moved:
            if is_counted_by(codes, read.places if key is None else [CountPlace("ITEM", key)]):
                shown = read if key is None else f"{read}[{key!r}]"
                warnings.warn(
                    f"{shown} is carried from call to call, which compiled calls do not do: it stays {now}; make it "
                    "a tensor that is written (add_, copy_), or an argument and a result",
                    stacklevel=users_frame(),
                )

    def _moved(self) -> Iterator[tuple[Hashable, Any]]:
        """The numbers that changed, with their keys in a dictionary or a list; key None: the variable itself."""
        now = self.read.now()
        if is_number(self.value) and is_number(now) and now != self.value:
            yield None, now
        if now is self.value and isinstance(now, dict | list) and self.snapshot:
            held = self.snapshot[0][1]  # of a dictionary the keys, then the values
            half = len(held) // 2
            before = zip(held[:half], held[half:], strict=True) if isinstance(now, dict) else enumerate(held)
            after = now if isinstance(now, dict) else dict(enumerate(now))
            for key, old in before:
                if is_number(old) and is_number(after.get(key)) and after[key] != old:
                    yield key, after[key]

    def unchanged_entries(self) -> Iterator[_KeptRead]:
        """For an identical dictionary, or object with fields: its unchanged entries."""
        held = vars(self.value) if has_fields(self.value) else self.value
        if self.read.now() is not self.value or not isinstance(held, dict) or len(held) > LARGEST:
            return
        before = _entries_in(self.found)
        for key in held:
            entry = _KeptRead.of(Read(held, key))
            if entry.found == (was := before.get(comparable(key))):
                yield entry
            elif was is not None:
                yield from entry._replace(found=was).unchanged_entries()


def is_number(value: Any) -> bool:
    """Whether it is a number that may be a count."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_table_of_module(holder: Any) -> bool:
    """Whether it is the attribute dictionary of a module."""
    return isinstance(holder, dict) and isinstance(holder.get("_modules"), dict)


def is_flag(value: Any) -> bool:
    """Whether it is a plain value that is no count: True, None, a string, an enum member."""
    return isinstance(value, PLAIN) and (
        isinstance(value, bool) or not isinstance(value, int | float | complex)
    )


def _tells_flag(found: Any) -> bool:
    """As `is_flag`, for the result of `comparable`."""
    return (
        isinstance(found, tuple) and len(found) == 2 and is_flag(found[1]) and isinstance(found[1], found[0])
    )


def _entries_in(found: Hashable) -> dict[Hashable, Hashable]:
    """By key, the comparison keys of a dictionary's entries or an object's fields; empty for others."""
    kind, inner = found if isinstance(found, tuple) else (None, None)
    if kind is not dict and isinstance(inner, tuple) and inner and inner[0] is dict:
        kind, inner = inner  # an object: its fields
    return dict(inner) if kind is dict and isinstance(inner, tuple) else {}


#: The containers and arrays in a value, with their contents.
Snapshot: TypeAlias = list[tuple[Any, tuple[Any, ...] | bytes]]


def _snapshot(value: Any, seen: dict[int, Any]) -> Snapshot:
    if id(value) in seen or not (is_container(value) or isinstance(value, tuple) or is_small_array(value)):
        return []
    seen[id(value)] = value
    if isinstance(value, np.ndarray):
        return [(value, value.tobytes())]
    entries = _entries_of(value)
    return [(value, entries), *(part for x in entries for part in _snapshot(x, seen))]


def _entries_of(container: Any) -> tuple[Any, ...]:
    if isinstance(container, list | tuple | set | deque):
        return tuple(iter(container))  # a class of tuples may not tell its length
    held = container if isinstance(container, dict) else vars(container)
    return (*held, *held.values())


def _holds(container: Any, entries: tuple[Any, ...] | bytes) -> bool:
    if isinstance(entries, bytes):
        return bool(container.tobytes() == entries)
    now = _entries_of(container)
    return len(now) == len(entries) and all(map(is_, now, entries))


def reads_of(*functions: Callable[..., Any], objects: Iterable[Any] = ()) -> tuple[Read, ...]:
    """The variables that functions read. objects: arguments whose attributes are included."""
    walk = ReadWalk()
    for function in functions:
        walk.call(function, tuple(objects))
    return walk.reads


class ReadWalk:
    """Collects the variables that functions and their callees read. names: of attributes that they read."""

    def __init__(self) -> None:
        self.found: dict[tuple[int, str], Read] = {}
        self.names: dict[str, None] = {}
        self._seen: set[tuple[int, ...]] = set()
        self._held: list[Any] = []  # kept alive, so that no id is reused

    @property
    def reads(self) -> tuple[Read, ...]:
        """The variables found."""
        return tuple(self.found.values())

    def call(self, function: Any, objects: tuple[Any, ...] = (), itself: Any = None) -> None:
        """Visit a callable. objects: its arguments. itself: the object, if it is a method."""
        if isinstance(function, partial):
            self.call(function.func, (*function.args, *function.keywords.values(), *objects))
        elif isinstance(function, MethodType):
            self.call(function.__func__, objects, function.__self__)
        elif isinstance(function, FunctionType):
            if self._is_new(function, itself, *objects):
                self._function(function, objects, itself)
        elif isinstance(inner := _got(function, "__wrapped__"), FunctionType | MethodType):
            self.call(inner, objects)
        elif callable(function) and isinstance(called := type(function).__call__, FunctionType):
            self.call(called, objects, function)

    def _function(self, function: FunctionType, objects: tuple[Any, ...], itself: Any) -> None:
        """The library's own functions read no mutable state, but call the functions in their closures."""
        names = _names_in(function.__code__) if _is_users(function) else _NO_NAMES
        for cell, name in zip(function.__closure__ or (), function.__code__.co_freevars, strict=True):
            self._variable(Read(cell, "", name), names)
        if names is _NO_NAMES:
            return
        self.names |= dict.fromkeys(names.attributes)
        for name in names.variables:
            if name in function.__globals__:
                self._variable(Read(function.__globals__, name), names)
        self._attributes(itself, names)
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(function, name):
                self._variable(Read(function, name), names)
        for x in (*objects, *defaults):
            if isinstance(x, (tuple, *_OPEN)) or is_small_array(x):
                self._variable(Read({"": x}, ""), names)
            else:
                self._through(x, names)

    def _variable(self, read: Read, names: _CodeNames) -> None:
        value = read.now()
        stays = isinstance(value, ModuleType | type | BuiltinFunctionType)
        stays = stays or (isinstance(value, FunctionType) and not _is_users(value))
        if names is not _NO_NAMES and not stays:
            key, code = (id(read.holder), read.name), names.code()
            known = self.found.get(key, read)
            if code is not None and code not in known.codes:
                known = known._replace(codes=(*known.codes, code))
            self.found[key] = known
        self._through(value, names)

    def _through(self, value: Any, names: _CodeNames) -> None:
        """Visit a value: its attributes, and the variables that it reads when it is called."""
        if (source := _generator_of(value)) is not None:
            self.found.setdefault((id(source), ""), Read(source, ""))
            return
        if isinstance(value, (*PLAIN, Operand, np.ndarray, np.generic, BuiltinFunctionType)):
            return
        if isinstance(value, FunctionType | MethodType | partial):
            self.call(value)
            return
        if not self._is_new(value, names):
            return
        if isinstance(value, type):
            self._attributes(value, names)
            return
        if isinstance(value, (tuple, *_OPEN)):
            if size_of(value) <= LARGEST:
                for x in value.values() if isinstance(value, dict) else value:
                    self._through(x, names)
            return
        self._attributes(value, names)
        if not isinstance(value, ModuleType):
            self.call(value)

    def _attributes(self, value: Any, names: _CodeNames) -> None:
        if isinstance(value, type):
            for name in names.attributes if _is_users_module(sys.modules.get(value.__module__)) else ():
                self._of_class(value, name, names)
            return
        if isinstance(own := _got(value, "__dict__"), dict):
            for name in names.attributes:
                self._attribute(value, own, name, names)
        slots = _slots_of(type(value))
        for name in names.attributes if slots else ():
            if name in slots:
                self._variable(Read(value, name, owner=type(value)), names)

    def _of_class(self, kind: type, name: str, names: _CodeNames) -> None:
        """An attribute accessed on a class: a number, a container, a method."""
        made = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), _ABSENT)
        if isinstance(made, classmethod | staticmethod | FunctionType):
            self.call(getattr(made, "__func__", made), (), kind if isinstance(made, classmethod) else None)
        elif isinstance(made, PLAIN) or is_container(made):
            self._variable(Read(kind, name, owner=kind), names)

    def _attribute(self, value: Any, own: dict[str, Any], name: str, names: _CodeNames) -> None:
        """own: the object's own attributes; others are its class's, which an own attribute may later shadow."""
        if isinstance(value, ModuleType):
            made = own.get(name, _ABSENT)
            counts = _is_users_module(value) if name in own else False
            if counts or isinstance(made, (*PLAIN, FunctionType)) or _generator_of(made) is not None:
                self._variable(Read(own, name), names)
            return
        parts = own.get("_modules")  # of a module
        if name not in own and isinstance(parts, dict) and name in parts:
            self._through(parts[name], names)
            return
        made = own[name] if name in own else getattr(type(value), name, _ABSENT)
        made = made.fget if isinstance(made, property) else made
        is_value = isinstance(made, PLAIN) or is_container(made)
        if name in own or is_value:
            self._variable(Read(own, name, owner=type(value)), names)
        if name not in own and is_value:
            self._variable(Read(type(value), name, owner=type(value)), names)
        elif isinstance(made, FunctionType) and _is_users(made):
            self.found.setdefault((id(type(value)), name), Read(type(value), name, owner=type(value)))
            self.call(made, (), value)
        elif isinstance(made, MethodType):
            self.call(made)

    def _is_new(self, *values: Any) -> bool:
        key = tuple([id(x) for x in values])
        if key in self._seen:
            return False
        self._seen.add(key)
        self._held.append(values)
        return True


def _slots_of(kind: type) -> set[str]:
    """The slots of a class."""
    own = (vars(base).get("__slots__", ()) for base in kind.__mro__)
    return {name for slots in own for name in ((slots,) if isinstance(slots, str) else slots)}


def _got(value: Any, name: str) -> Any:
    """An attribute of any object; None if it is missing or fails."""
    try:
        return getattr(value, name)
    except Exception:
        return None


def _generator_of(value: Any) -> Any:
    """The generator behind a module or a bound function, or the value itself if it is one; else None."""
    if isinstance(value, ModuleType):
        value = {random: random.random, np.random: np.random.random_sample}.get(value)
    source = value if isinstance(value, GENERATORS) else _got(value, "__self__")
    return source if isinstance(source, GENERATORS) else None


class _CodeNames(NamedTuple):
    """The names of module variables and attributes that a function's code reads. code: a weak reference to it."""

    variables: tuple[str, ...]
    attributes: tuple[str, ...]
    code: Callable[[], CodeType | None]


_NO_NAMES = _CodeNames((), (), lambda: None)
#: Instructions that read an attribute: also of methods that are called (Python 3.11), by `super()` (from 3.12 on).
READING = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")
#: Ways to access an attribute by a string.
_BY_NAME = {"getattr", "hasattr", "vars", "__dict__"}
_names: weakref.WeakKeyDictionary[CodeType, _CodeNames] = weakref.WeakKeyDictionary()


def _names_in(code: CodeType) -> _CodeNames:
    """The names in a function and in its nested functions."""
    if code not in _names:
        variables, attributes = dict[str, None](), dict[str, None]()
        for part in codes_in(code):
            steps = [(step.opname, step.argval) for step in dis.get_instructions(part)]
            read = {x: None for op, x in steps if op in ("LOAD_GLOBAL", "LOAD_NAME")}
            taken = {x: None for op, x in steps if op in READING}
            if _BY_NAME & {*read, *taken}:
                texts = [x for op, x in steps if op == "LOAD_CONST" and isinstance(x, str)]
                taken |= {x: None for x in texts if x.isidentifier()}
            variables |= read
            attributes |= taken
        _names[code] = _CodeNames(tuple(variables), tuple(attributes), weakref.ref(code))
    return _names[code]


def is_kept(kind: type, name: str) -> bool:
    """Whether a function of the class reads an attribute: else it is assigned only for others to read."""
    return any("LOAD_ATTR" in steps for steps in _steps_with(kind, name))


def is_carried(kind: type, name: str) -> bool:
    """Whether a function of the class reads an attribute before it assigns it: state carried from call to call."""
    return any(steps[0] == "LOAD_ATTR" and "STORE_ATTR" in steps for steps in _steps_with(kind, name))


def is_advanced(kind: type, name: str) -> bool:
    """Whether a function of the class assigns an attribute a value computed from it (`self.count += 1`), and also
    reads it for something else.
    """
    return is_counted_by([f.__code__ for f in _functions_of(kind)], [CountPlace("ATTR", name)])


def _steps_with(kind: type, name: str) -> Iterator[list[str]]:
    """Reads and writes of an attribute by each user-written function of a class, in bytecode order."""
    for function in _functions_of(kind):
        steps = [x.opname for x in dis.get_instructions(function) if x.argval == name]
        if used := [x for x in steps if x in ("LOAD_ATTR", "STORE_ATTR")]:
            yield used


def _functions_of(kind: type) -> Iterator[FunctionType]:
    """The user-written functions of a class."""
    for base in kind.__mro__:
        for function in vars(base).values():
            if isinstance(function, FunctionType) and _is_users(function):
                yield function


#: Locations of installed packages, Python's library and this one: their functions are taken as constant.
_LIBRARIES = (
    "<frozen",
    *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    str(Path(__file__).parents[2]),
)


def _is_users(function: FunctionType) -> bool:
    return not function.__code__.co_filename.startswith(_LIBRARIES)


def is_users_object(value: Any) -> bool:
    """Whether it is an object with attributes of a user-defined class."""
    if isinstance(value, type | ModuleType | FunctionType) or not hasattr(value, "__dict__"):
        return False
    return _is_users_module(sys.modules.get(type(value).__module__))


def users_frame() -> int:
    """The innermost frame outside of libraries, as the `stacklevel` of a warning for the caller."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame, level = frame.f_back, level + 1
    return level


def _is_users_module(module: ModuleType | None) -> bool:
    """Whether it is the main program or a user's file, whose variables may be reassigned."""
    if module is None or module.__name__ == "__main__":
        return module is not None
    return not (getattr(module, "__file__", None) or "<frozen").startswith(_LIBRARIES)
