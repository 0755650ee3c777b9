"""What the code of functions does with numbers that outlive a call: whether it counts them up, and goes by them.

A place is where such a number is kept: a variable of the module or of a function around, an attribute, an item of a
dictionary or a list under a constant key.
"""

from __future__ import annotations

import dis
from collections.abc import Hashable, Iterable, Iterator
from types import CodeType
from typing import Literal, NamedTuple, TypeAlias


class CountPlace(NamedTuple):
    """kind: ATTR, ITEM, GLOBAL or DEREF (of a function around). name: of the variable or attribute, or the key."""

    kind: str
    name: Hashable


#: What is done with a place, or None where code may go on elsewhere or ends ("leave"), or a variable keeps what was
#: computed last ("keep").
Event: TypeAlias = tuple[Literal["read", "write", "leave", "keep"], CountPlace | None]


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """The code of a function and of the functions that are written in it."""
    yield code
    for x in code.co_consts:
        if isinstance(x, CodeType):
            yield from codes_in(x)


def is_counted_by(codes: Iterable[CodeType], places: Iterable[CountPlace]) -> bool:
    """Whether functions assign one of the places what they compute of it (`count += 1`), and read it for something
    else, too: a count that is only counted changes nothing.
    """
    wanted, moved, other = set(places), False, False
    for code in codes:
        read: list[str] | None = None  # what is done since the place was read, until there is a branch
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
    """What a function does with places, in the order of its code."""
    key: Hashable = None  # what was loaded last, where that is a constant
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
