"""Pickles as data: an interpreter of their opcodes that only makes containers, strings and numbers.

A pickle is a program. Here none of it is run: a name in it (GLOBAL) is looked up in a table given by the caller,
whose functions are the caller's own, and any other name is an error. Opcodes that could reach further (INST,
OBJ, NEWOBJ_EX, EXT) are refused. The memory and the steps of a pickle are counted before they are
spent.
Opcodes: Python's `pickletools`.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

#: The maximum number of opcodes of one pickle.
STEPS = 2_000_000
#: Bytes that a pickle's objects may need beyond the size of the file.
ALLOWANCE = 160 << 20
#: Upper bound on the bytes of an opcode's object, beside those of its argument.
_COST = {"EMPTY_SET": 240, "FROZENSET": 240, "SETITEM": 120, "EMPTY_DICT": 72, "PUT": 120, "MEMOIZE": 120}
_COST |= {"BINPUT": 120, "LONG_BINPUT": 120, "REDUCE": 400, "BINPERSID": 300}
_USUAL_COST, _ITEM_COST = 64, 120


class PickleError(ValueError):
    """A pickle that is damaged, exceeds its limits, or holds anything other than data; the message names
    the cause."""


class Function(NamedTuple):
    """A function that a pickle may call: the caller's own, under the pickle's name for it."""

    name: str
    call: Callable[..., Any]


class _Mark:
    """Where the items of a container begin on the stack."""


_MARK = _Mark()


def read_pickle(
    file: io.BytesIO,
    names: Mapping[tuple[str, str], Any],
    persistent: Callable[[Any], Any],
    allowance: int,
) -> Any:
    """The value of the next pickle in a file.

    names: the objects for (module, name); a `Function` may be called, anything else is a value.
    persistent: returns the object of a persistent id. allowance: bytes that it may allocate, beside `ALLOWANCE`.
    Raises PickleError.
    """
    machine = _Machine(names, persistent, allowance + ALLOWANCE)
    try:
        for step, (opcode, argument, _) in enumerate(pickletools.genops(file)):
            if step > STEPS:
                raise PickleError(f"more than {STEPS} steps")
            if opcode.name == "STOP":
                return machine.result()
            machine.do(opcode.name, argument)
    except PickleError:
        raise
    except (
        ValueError,
        TypeError,
        IndexError,
        KeyError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise PickleError(f"{type(error).__name__}: {error}") from error
    raise PickleError("it has no end")


class _Machine:
    """The stack and the memo of a pickle."""

    def __init__(
        self, names: Mapping[tuple[str, str], Any], persistent: Callable[[Any], Any], allowance: int
    ) -> None:
        self.names, self.persistent, self.left = names, persistent, allowance
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def do(self, name: str, argument: Any) -> None:
        size = len(argument) if isinstance(argument, str | bytes | bytearray) else 8
        self.spend(_COST.get(name, _USUAL_COST) + size)
        if name in _VALUES:
            self.stack.append(_VALUES[name](argument))
        elif name in _ACTIONS:
            _ACTIONS[name](self, argument)
        else:
            raise PickleError(f"the opcode {name}, which data does not need")

    def spend(self, nbytes: int) -> None:
        self.left -= nbytes
        if self.left < 0:
            raise PickleError("it would need too much memory")

    def result(self) -> Any:
        (value,) = self.stack
        return _no_mark(value)

    def pop(self) -> Any:
        return _no_mark(self.stack.pop())

    def top(self, kind: type) -> Any:
        """The object that an item is put into."""
        found = self.stack[-1]
        if type(found) is not kind:
            raise PickleError(f"an item for a {type(found).__name__}, not a {kind.__name__}")
        return found

    def items(self) -> list[Any]:
        """Pop the items above the last mark, and the mark."""
        for at in range(len(self.stack) - 1, -1, -1):
            if self.stack[at] is _MARK:
                found = self.stack[at + 1 :]
                del self.stack[at:]
                self.spend(_ITEM_COST * len(found))
                return found
        raise PickleError("the end of a container that never began")

    def take(self, count: int) -> tuple[Any, ...]:
        """The last items as a tuple."""
        found = [self.pop() for _ in range(count)]
        return tuple(reversed(found))

    def store(self, index: int) -> None:
        self.memo[index] = _no_mark(self.stack[-1])

    def look_up(self, module: str, name: str) -> Any:
        if type(module) is not str or type(name) is not str:
            raise PickleError("a name that is no text")
        if (module, name) not in self.names:
            raise PickleError(f"{module}.{name}"[:200] + " is not among what weights consist of")
        return self.names[module, name]

    def call(self, function: Any, arguments: Any) -> Any:
        if type(function) is not Function or type(arguments) is not tuple:
            raise PickleError(f"a call of {str(function)[:100]}, which is no function")
        return function.call(*arguments)

    def build(self, state: Any) -> None:
        """State of an object: dicts had attributes that weights do not need (`_metadata`), others have none."""
        if type(self.stack[-1]) is not dict:
            raise PickleError(f"attributes for a {type(self.stack[-1]).__name__}")

    def fill(self, pairs: list[Any]) -> None:
        found = self.top(dict)
        if len(pairs) % 2:
            raise PickleError("a key without a value")
        for key, value in _pairs(pairs):
            found[_key(key)] = value

    def merge(self, values: list[Any]) -> None:
        self.top(set).update(map(_key, values))

    def extend(self, values: list[Any]) -> None:
        self.top(list).extend(values)


def _no_mark(value: Any) -> Any:
    if value is _MARK:
        raise PickleError("a mark where a value belongs")
    return value


def _pairs(items: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(items[::2], items[1::2], strict=True)


def _key(value: Any) -> Any:
    """A key whose hash an attacker cannot choose freely: strings, 64-bit numbers, and tuples of these."""
    parts = value if type(value) is tuple and len(value) < 16 else (value,)
    for part in parts:
        if type(part) not in (str, bytes, bool, int, float, type(None)):
            raise PickleError(f"a {type(part).__name__} as a key")
        if type(part) is int and part.bit_length() > 64:
            raise PickleError("a whole number of more than 64 bits as a key")
    return value


def _dict_of(pairs: list[Any]) -> dict[Any, Any]:
    if len(pairs) % 2:
        raise PickleError("a key without a value")
    return {_key(k): v for k, v in _pairs(pairs)}


def _same(value: Any) -> Any:
    return value


def _text(value: Any) -> Any:
    """A string written by Python 2, as text."""
    return value.decode("latin-1") if isinstance(value, bytes) else value


#: Opcodes that put a value on the stack, and the value.
_VALUES: dict[str, Callable[[Any], Any]] = {
    "MARK": lambda _: _MARK,
    "NONE": lambda _: None,
    "NEWTRUE": lambda _: True,
    "NEWFALSE": lambda _: False,
    "EMPTY_DICT": lambda _: {},
    "EMPTY_LIST": lambda _: [],
    "EMPTY_TUPLE": lambda _: (),
    "EMPTY_SET": lambda _: set(),
    **dict.fromkeys(("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"), _same),
    **dict.fromkeys(("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"), _same),
    **dict.fromkeys(("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"), bytes),
    **dict.fromkeys(("STRING", "BINSTRING", "SHORT_BINSTRING"), _text),
}  # fmt: skip


def _appended(machine: _Machine, _: Any) -> None:
    value = machine.pop()
    machine.extend([value])


def _entered(machine: _Machine, _: Any) -> None:
    machine.fill(list(machine.take(2)))


def _reduced(machine: _Machine, _: Any) -> None:
    function, arguments = machine.take(2)
    machine.stack.append(machine.call(function, arguments))


def _named(machine: _Machine, argument: str) -> None:
    module, _, name = argument.partition(" ")
    machine.stack.append(machine.look_up(module, name))


#: Opcodes that change the stack.
_ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": lambda m, _: None,
    "FRAME": lambda m, _: None,
    "POP": lambda m, _: m.stack.__delitem__(-1),
    "POP_MARK": lambda m, _: m.items().clear(),
    "DUP": lambda m, _: m.stack.append(_no_mark(m.stack[-1])),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.items())),
    "TUPLE1": lambda m, _: m.stack.append(m.take(1)),
    "TUPLE2": lambda m, _: m.stack.append(m.take(2)),
    "TUPLE3": lambda m, _: m.stack.append(m.take(3)),
    "LIST": lambda m, _: m.stack.append(m.items()),
    "DICT": lambda m, _: m.stack.append(_dict_of(m.items())),
    "FROZENSET": lambda m, _: m.stack.append(frozenset(map(_key, m.items()))),
    "APPEND": _appended,
    "APPENDS": lambda m, _: m.extend(m.items()),
    "SETITEM": _entered,
    "SETITEMS": lambda m, _: m.fill(m.items()),
    "ADDITEMS": lambda m, _: m.merge(m.items()),
    "PUT": lambda m, index: m.store(index),
    "BINPUT": lambda m, index: m.store(index),
    "LONG_BINPUT": lambda m, index: m.store(index),
    "MEMOIZE": lambda m, _: m.store(len(m.memo)),
    "GET": lambda m, index: m.stack.append(m.memo[index]),
    "BINGET": lambda m, index: m.stack.append(m.memo[index]),
    "LONG_BINGET": lambda m, index: m.stack.append(m.memo[index]),
    "GLOBAL": _named,
    "STACK_GLOBAL": lambda m, _: m.stack.append(m.look_up(*m.take(2))),
    "REDUCE": _reduced,
    "NEWOBJ": _reduced,
    "BUILD": lambda m, _: m.build(m.pop()),
    "BINPERSID": lambda m, _: m.stack.append(m.persistent(m.pop())),
}
