"""Trees: nested tuples, lists and dicts of leaves, flattened and unflattened (pytrees).

The inputs and outputs of a network may be any of these. None is part of a tree's structure, and optionally True and
False are too; everything else is a leaf.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property, lru_cache
from typing import Any


@dataclass(frozen=True)
class Structure:
    """A tree without its leaves; structures are comparable and hashable.

    kind: tuple, list, dict, a named tuple's class, a dataclass or the class of an opened object; NoneType for None,
        bool for True and False; None for a leaf.
    keys: of a dict, or the names of fields and attributes, in order. branches: the structures of the children, in
        order.
    like: for dicts of a subclass: makes one of a plain dict.
    types: of a dict's keys, unless all are strings: 1, 1.0 and True are equal keys.
    """

    kind: type | None = None
    keys: tuple[Any, ...] = ()
    branches: tuple[Structure, ...] = ()
    like: Callable[[dict[Any, Any]], dict[Any, Any]] | None = None
    types: tuple[type, ...] = ()

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:  # programs are looked up by structures at every call
        return hash((self.kind, self.keys, self.branches))

    def __reduce__(self) -> tuple[type[Structure], tuple[Any, ...]]:
        given = (self.kind, self.keys, self.branches, self.like, self.types)
        return Structure, given  # hashes hold in one process only

    @property
    def value(self) -> bool | None:
        """The value in this place: None, True or False."""
        return self.keys[0] if self.kind is bool else None

    @property
    def is_leaf(self) -> bool:
        """Whether it is a single leaf."""
        return self.kind is None

    def __str__(self) -> str:
        inside = [str(b) for b in self.branches]
        if self.kind is dict:
            return "{" + ", ".join(f"{k!r}: {b}" for k, b in zip(self.keys, inside, strict=True)) + "}"
        if self.kind is list:
            return f"[{', '.join(inside)}]"
        if self.kind is None or self.kind in _FIXED:
            return str(self.value) if self.kind else "*"
        return f"({', '.join(inside)}{',' if len(inside) == 1 else ''})"


#: Kinds that are no containers and have a value.
_FIXED = (type(None), bool)
LEAF, _NOTHING = Structure(), Structure(type(None))
_FLAGS = {flag: Structure(bool, (flag,)) for flag in (False, True)}


@lru_cache(maxsize=1024)
def _same(kind: type, branches: tuple[Structure, ...], names: tuple[str, ...] = ()) -> Structure:
    """The structure of a tuple, a list, a named tuple or a dict with names; interned, as every call of a program
    asks for it."""
    return Structure(kind, names, branches)


def flatten(
    tree: Any,
    is_leaf: Callable[[Any], bool] | None = None,
    *,
    open_dataclasses: bool = False,
    flags: bool = False,
    opens: Callable[[Any], bool] | None = None,
) -> tuple[list[Any], Structure]:
    """The leaves of a tree in order, and its structure.

    is_leaf: called with each container; True makes the container a leaf. open_dataclasses: whether
    objects of a dataclass are containers of their fields; else they are leaves. flags: whether True and False are
    part of the structure. opens: called with each leaf; True makes it a container of its attributes (`vars`).
    """
    found: list[Any] = []
    return found, _flatten(tree, found, is_leaf, open_dataclasses, flags, opens)


def _flatten(
    tree: Any,
    found: list[Any],
    is_leaf: Callable[[Any], bool] | None,
    opened: bool,
    flags: bool,
    opens: Callable[[Any], bool] | None = None,
) -> Structure:
    if tree is None:
        return _NOTHING
    if flags and type(tree) is bool:
        return _FLAGS[tree]
    if (
        opened
        and not isinstance(tree, (type, dict))
        and is_dataclass(tree)
        and not (is_leaf and is_leaf(tree))
    ):
        names = tuple(f.name for f in fields(tree))
        within = tuple([_flatten(getattr(tree, n), found, is_leaf, opened, flags, opens) for n in names])
        return Structure(type(tree), names, within)
    if not isinstance(tree, (tuple, list, dict)) or (is_leaf is not None and is_leaf(tree)):
        if opens is not None and opens(tree):
            own = vars(tree)
            within = tuple([_flatten(x, found, is_leaf, opened, flags, opens) for x in own.values()])
            return Structure(type(tree), tuple(own), within)
        found.append(tree)
        return LEAF
    if isinstance(tree, dict):
        branches = tuple([_flatten(b, found, is_leaf, opened, flags, opens) for b in tree.values()])
        if type(tree) is not dict:
            return Structure(dict, tuple(tree), branches, _maker(tree), key_types(tree))
        if not (types := key_types(tree)):
            return _same(dict, branches, tuple(tree))
        return Structure(dict, tuple(tree), branches, None, types)
    kind = type(tree) if hasattr(tree, "_fields") else tuple if isinstance(tree, tuple) else list
    return _same(kind, tuple([_flatten(b, found, is_leaf, opened, flags, opens) for b in tree]))


def key_types(keys: Iterable[Any]) -> tuple[type, ...]:
    """The types of a dict's keys as a structure holds them: none if all are strings."""
    found = tuple(map(type, keys))
    return () if all(kind is str for kind in found) else found


def _maker(tree: dict[Any, Any]) -> Callable[[dict[Any, Any]], dict[Any, Any]]:
    """How to make a dict of a subclass of a plain one: its `like`, if it has one (an attribute, not an entry that the
    class exposes as an attribute), else `_Remade`."""
    try:
        found = object.__getattribute__(tree, "like")
    except AttributeError:
        return _Remade(tree)
    return found if callable(found) else _Remade(tree)


class _Remade:
    """Makes dicts of a subclass of plain ones, with the attributes of the one that it is made of.

    Its constructor is not called: it may take other arguments than entries. Attributes that are entries too
    (`out.logits` of `out["logits"]`) become the new entries.
    """

    def __init__(self, tree: dict[Any, Any]) -> None:
        own = getattr(tree, "__dict__", {})
        self.kind = type(tree)
        self.is_own_attributes = own is tree  # of classes that say `self.__dict__ = self`
        self.shared = tuple([n for n, x in own.items() if n in tree and tree[n] is x])
        self.rest = {n: x for n, x in own.items() if n not in self.shared}
        self.factory = tree.default_factory if isinstance(tree, defaultdict) else None

    def __call__(self, entries: dict[Any, Any]) -> dict[Any, Any]:
        made: dict[Any, Any] = self.kind.__new__(self.kind)
        if self.is_own_attributes:
            made.__dict__ = made
        elif self.rest or self.shared:
            vars(made).update(self.rest)
        if isinstance(made, defaultdict):
            made.default_factory = self.factory
        for key, value in entries.items():
            made[key] = value
        if not self.is_own_attributes:
            for name in self.shared:
                vars(made)[name] = entries[name]
        return made

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Remade)
            and (self.kind, self.is_own_attributes, self.shared, self.factory, [*self.rest])
            == (other.kind, other.is_own_attributes, other.shared, other.factory, [*other.rest])
            and all(
                _same_attribute(x, y) for x, y in zip(self.rest.values(), other.rest.values(), strict=True)
            )
        )

    def __hash__(self) -> int:
        return hash((self.kind, self.shared))


def _same_attribute(x: Any, y: Any) -> bool:
    """Whether two attributes are the same: plain values by value, others by identity."""
    return x is y or (type(x) is type(y) and isinstance(x, str | int | float | bool | tuple) and x == y)


def unflatten(structure: Structure, leaves: Sequence[Any]) -> Any:
    """The tree of this structure with these leaves. Raises ValueError if there are too few or too many."""
    if structure.kind is None and len(leaves) == 1:
        return leaves[0]
    rest = iter(leaves)
    try:
        tree = _unflatten(structure, rest)
    except StopIteration:
        raise ValueError(f"{len(leaves)} leaves are too few for {structure}") from None
    if sum(1 for _ in rest):
        raise ValueError(f"{len(leaves)} leaves are too many for {structure}")
    return tree


def _unflatten(structure: Structure, rest: Iterator[Any]) -> Any:
    kind = structure.kind
    if kind is None:
        return next(rest)
    inside = []
    for branch in structure.branches:  # no comprehension: StopIteration must propagate
        inside.append(_unflatten(branch, rest))
    if kind in _FIXED:
        return structure.value
    if kind is dict:
        plain = dict(zip(structure.keys, inside, strict=True))
        return plain if structure.like is None else structure.like(plain)
    if not issubclass(kind, tuple | list):
        made = object.__new__(kind)  # as it was: the fields hold the constructor's results already
        for name, value in zip(structure.keys, inside, strict=True):
            object.__setattr__(made, name, value)
        return made
    return kind(*inside) if hasattr(kind, "_fields") else kind(inside)


def _binds(function: Callable[..., Any], *args: Any, **named: Any) -> bool:
    """Whether a function takes these arguments; True if the signature is unknown."""
    try:
        inspect.signature(function).bind(*args, **named)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def leaves(tree: Any) -> list[Any]:
    """Only the leaves."""
    return flatten(tree)[0]


def names(structure: Structure, root: str) -> list[str]:
    """The path of each leaf as a Python expression: root for a single one, else root[0], root['mask'], …"""
    if structure.is_leaf:
        return [root]
    if structure.kind in _FIXED:
        return []
    keys = structure.keys or range(len(structure.branches))
    return [
        name for key, b in zip(keys, structure.branches, strict=True) for name in names(b, f"{root}[{key!r}]")
    ]


def arguments(
    tree: Any, function: Callable[..., Any] | None = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments for calling a function: a tuple or list holds positional arguments, a dict named ones, anything
    else is the single argument. So is a dict whose keys are no names, or which the function does not take, if it
    takes one argument."""
    if isinstance(tree, dict):
        if not all(isinstance(key, str) for key in tree):
            return (tree,), {}
        alone = function is not None and not _binds(function, **tree) and _binds(function, tree)
        return ((tree,), {}) if alone else ((), tree)
    return (tuple(tree), {}) if isinstance(tree, tuple | list) else ((tree,), {})
