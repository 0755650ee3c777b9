"""Finds in bytecode what functions do with numbers that outlive a call: whether they increment them and depend on
them.

A place is where such a number is kept: a module variable, a variable of an enclosing function, an attribute, an item
of a dictionary or a list under a constant key.
"""

from __future__ import annotations

import dis
from collections.abc import Hashable, Iterable, Iterator
from types import CodeType
from typing import Literal, NamedTuple, TypeAlias


class CountPlace(NamedTuple):
    """kind: ATTR, ITEM, GLOBAL or DEREF (of an enclosing function). name: of the variable or attribute, or the
    key."""

    kind: str
    name: Hashable


#: An action on a place, or on None: a jump or return ("leave"), or the last result is stored in a local
#: variable ("keep").
Event: TypeAlias = tuple[Literal["read", "write", "leave", "keep"], CountPlace | None]


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """The code of a function and of the functions nested in it."""
    yield code
    for x in code.co_consts:
        if isinstance(x, CodeType):
            yield from codes_in(x)


def is_counted_by(codes: Iterable[CodeType], places: Iterable[CountPlace]) -> bool:
    """Whether functions assign to one of the places a value computed from it (`count += 1`), and also read it for
    something else: a counter that is only incremented changes nothing.
    """
    wanted, moved, other = set(places), False, False
    for code in codes:
        read: list[str] | None = None  # actions since the place was read, until a branch
        for what, place in _events(code):
            if what == "write" and place in wanted and read is not None:
                moved, other = True, other or "keep" in read
                read = None
            elif what == "read" and place in wanted:
                read, other = [], other or read is not None
            elif what == "leave":
                read, other = None, other or read is not None
            elif read is not None:
                read.append(what)
    return moved and other


def _events(code: CodeType) -> Iterator[Event]:
    """The actions of a function on places, in bytecode order."""
    key: Hashable = None  # the last value loaded, if constant
    ahead: list[CountPlace] = []  # items that are read to be written again: `d[key] += 1`
    last = ""
    for step in dis.get_instructions(code):
        verb, _, kind = step.opname.partition("_")
        if step.opname in ("LOAD_CONST", "LOAD_SMALL_INT"):
            key = step.argval if isinstance(step.argval, Hashable) else None
        elif step.opname == "BINARY_SUBSCR" or (step.opname == "BINARY_OP" and step.argrepr == "[]"):
            if last in ("LOAD_CONST", "LOAD_SMALL_INT", "COPY"):
                yield "read", (place := CountPlace("ITEM", key))
                ahead += [place] if last == "COPY" else []
        elif step.opname == "STORE_SUBSCR":
            if last == "SWAP" and ahead:
                yield "write", ahead.pop()
            elif last in ("LOAD_CONST", "LOAD_SMALL_INT"):
                yield "write", CountPlace("ITEM", key)
        elif verb in _VERBS and kind in ("ATTR", "GLOBAL", "DEREF"):
            yield _VERBS[verb], CountPlace(kind, step.argval)
        elif step.opname.startswith("STORE_FAST"):
            yield "keep", None
        elif "JUMP" in step.opname or step.opname.startswith("RETURN"):
            yield "leave", None
        if step.opname not in ("CACHE", "EXTENDED_ARG"):
            last = step.opname


_VERBS: dict[str, Literal["read", "write"]] = {"LOAD": "read", "STORE": "write"}
