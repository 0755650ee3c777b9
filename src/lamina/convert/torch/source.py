"""Dependencies of a graph beside state, modes and inputs: plain attributes and hooks of a PyTorch module's parts.

A graph contains the values of `dropout.p` or a network's own `self.temperature`, and what hooks do, as they were at
trace time, and changes of them are not notified: each call checks them.
"""

from __future__ import annotations

import dis
import weakref
from collections.abc import Hashable, Iterable, Iterator, Sequence
from inspect import unwrap
from operator import is_
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from lamina.graph.ir.counting import codes_in
from lamina.graph.ir.surroundings import DEEPEST, LARGEST, PLAIN, READING, Itself, comparable, size_of

#: Attributes that every module has: its state, its mode and its hooks.
OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))
#: Tables of hooks that take part in a call.
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
#: The types of settings: a number, a string, None, a function (an activation), a dtype.
_SETTINGS = (*PLAIN, FunctionType, BuiltinFunctionType, torch.dtype)


class SourceSettings:
    """The settings that the functions of a module and its parts read and do not assign, their values, and hooks.

    Two are equal if a graph made with one holds for the other. `same`: whether they are unchanged.
    """

    def __init__(self, source: torch.nn.Module) -> None:
        self._source = weakref.ref(source)
        names = _names_of(source)
        parts = [(vars(part), *_settings(part, names)) for part in source.modules()]
        self._entries = _TableEntries([own for own, _, _ in parts], [held for _, held, _ in parts])
        held = [own[n] for own, own_names, _ in parts for n in own_names]
        self._containers = [(x, comparable(x)) for x in held if _may_change(x)]
        self._hooks = _HookEntries([vars(part)[name] for part in source.modules() for name in HOOKS])
        self._found = (*[found for *_, found in parts], self._hooks.found)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SourceSettings) and other._found == self._found

    def __hash__(self) -> int:
        return hash(self._found)

    def same(self) -> bool:
        """Whether they are unchanged."""
        contents = (comparable(value) == found for value, found in self._containers)
        if self._entries.same() and all(contents) and self._hooks.same():
            return True
        source = self._source()
        now = None if source is None else SourceSettings(source)
        if now is None or now != self:
            return False
        self._entries, self._containers, self._hooks = now._entries, now._containers, now._hooks
        # and so the next check is fast
        return True


class _TableEntries:
    """Entries of dictionaries: a fast check that they are the same objects, and that none were added."""

    def __init__(self, tables: Sequence[dict[Any, Any]], names: Sequence[Iterable[Any]]) -> None:
        self._tables, self._sizes = tables, [len(table) for table in tables]
        pairs = [(table, n) for table, own in zip(tables, names, strict=True) for n in own]
        self._owners, self._names = [table for table, _ in pairs], [n for _, n in pairs]
        self._values = [table[n] for table, n in pairs]

    def same(self) -> bool:
        """Uses C functions alone: compiled programs call it in each call."""
        return list(map(len, self._tables)) == self._sizes and all(
            map(is_, map(dict.get, self._owners, self._names), self._values)
        )


class _HookEntries:
    """The hooks in tables of them: a fast check that they are the same."""

    def __init__(self, tables: Sequence[dict[int, Any]]) -> None:
        self._next = RemovableHandle.next_id  # of hooks of any module: it grows with each that is registered
        self._all = _TableEntries(tables, tables)
        held = [table for table in tables if table]
        self._held = _TableEntries(held, held)
        self.found = tuple([(i, Itself(x)) for i, own in enumerate(tables) for x in own.values()])

    def same(self) -> bool:
        """Whether none was registered or removed."""
        registered = RemovableHandle.next_id
        if registered == self._next:
            return self._held.same()
        if not self._all.same():
            return False
        self._next = registered
        return True


class SourceParts:
    """The recorded parts and parameters of a module, by their dotted names."""

    def __init__(self, source: torch.nn.Module) -> None:
        self._source = source
        self._look(_parts_of(source))

    def exchanged(self) -> str | None:
        """The name of one that was added, removed or replaced."""
        if self._entries.same():
            return None
        now = _parts_of(self._source)
        name = next((n for n in {**now, **self._parts} if now.get(n) is not self._parts.get(n)), None)
        if name is None:
            self._look(now)  # makes the next check fast
        return name

    def _look(self, parts: dict[str, Any]) -> None:
        self._parts = parts
        modules = [part for part in parts.values() if isinstance(part, torch.nn.Module)]
        tables = [table for part in modules for table in (part._modules, part._parameters)]
        self._entries = _TableEntries(tables, tables)


def tied(source: torch.nn.Module) -> list[list[str]]:
    """The names of each parameter that a module has under several. Buffers are not among them: forward assigns to
    one name.
    """
    names: dict[int, list[str]] = {}
    for name, x in source.named_parameters(remove_duplicate=False):
        names.setdefault(id(x), []).append(name)
    return [found for found in names.values() if len(found) > 1]


def _parts_of(source: torch.nn.Module) -> dict[str, Any]:
    """Modules and parameters by name; those that are None are among them under names, too."""
    parts: dict[str, Any] = dict(source.named_modules())
    for path, part in list(parts.items()):
        parts |= {f"{path}.{n}".strip("."): p for n, p in part._parameters.items()}
    return parts


def _settings(part: torch.nn.Module, names: frozenset[str]) -> tuple[tuple[str, ...], Hashable]:
    """The names of a part's settings, and their values."""
    own = vars(part)
    held = tuple([n for n in sorted(own.keys() & names) if _is_plain(own[n])])
    return held, tuple([(n, comparable(own[n])) for n in held])


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether it is one of `_SETTINGS`, or a container of such."""
    if isinstance(value, dict):
        return _is_plain(list(value.values()), depth)
    if isinstance(value, tuple | list) and depth < DEEPEST and size_of(value) <= LARGEST:
        return all(_is_plain(x, depth + 1) for x in value)
    return isinstance(value, _SETTINGS)


def _may_change(value: Any) -> bool:
    """Whether its contents may change."""
    return isinstance(value, list | dict) or (isinstance(value, tuple) and any(map(_may_change, value)))


def _names_of(source: torch.nn.Module) -> frozenset[str]:
    """The attributes that the functions of a module's parts read, except those that they also assign: values that a
    forward pass counts or keeps are not settings.
    """
    found = [_read_and_assigned(kind) for kind in dict.fromkeys(map(type, source.modules()))]
    read, assigned = (frozenset[str]().union(*names) for names in zip(*found, strict=True))
    return read - assigned - OF_EVERY_MODULE


_known: weakref.WeakKeyDictionary[type, tuple[frozenset[str], frozenset[str]]] = weakref.WeakKeyDictionary()


def _read_and_assigned(kind: type) -> tuple[frozenset[str], frozenset[str]]:
    """The attributes that `forward` and the methods that it calls read, and those that they assign."""
    if kind not in _known:
        _known[kind] = _walked(kind)
    return _known[kind]


def _walked(kind: type) -> tuple[frozenset[str], frozenset[str]]:
    read: set[str] = set()
    assigned: set[str] = set()
    ahead, seen = ["forward"], set()
    while ahead:
        if (name := ahead.pop()) in seen:
            continue
        seen.add(name)
        for step in _steps(getattr(kind, name, None)):
            (assigned if step.opname == "STORE_ATTR" else read).add(step.argval)
            ahead.append(step.argval)
    return frozenset(read), frozenset(assigned)


def _steps(method: Any) -> Iterator[dis.Instruction]:
    """The attribute accesses of a method, or a property, and of the functions defined in it."""
    function = unwrap(method.fget if isinstance(method, property) and method.fget else method)
    for code in codes_in(function.__code__) if isinstance(function, FunctionType) else ():
        yield from (x for x in dis.get_instructions(code) if x.opname in (*READING, "STORE_ATTR"))
