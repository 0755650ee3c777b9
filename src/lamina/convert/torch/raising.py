"""Branches of a network's code that only raise or warn, by values of tensors: a graph is of the values that pass.

    if labels.max() >= self.vocab_size:
        raise ValueError("labels exceed the vocabulary")

A graph has no values to decide by. Where all that a branch does is raise, the other way is the only one that gives
results, so that it is the one recorded; where it warns, both give the same. What Python computes with in a condition
(`int(labels.max()) + 1 > n`) is a number with which it passes.
"""

from __future__ import annotations

import ast
import dis
import linecache
import sys
import warnings
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import is_fake
from torch.overrides import TorchFunctionMode

from lamina.convert.torch.known_numbers import KnownNumbers
from lamina.convert.torch.passing import Span, passing_value, place_of

#: Files that belong to libraries, not to networks.
LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]))


class RaisingBranches(TorchFunctionMode):
    """Within the block the truth of a tensor without a value is the one with which its line does not raise, where the
    line has nothing else to decide.
    """

    def __init__(self, known: KnownNumbers) -> None:
        super().__init__()
        self.known = known
        self._places: dict[str, None] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The function, or the truth of a tensor."""
        decides = (func in _DECIDING or func in _NUMBERS) and bool(args) and self._is_open(args[0])
        frame = own_frame() if decides else None
        passing = None if frame is None else _decided(frame, func, args[0])
        if frame is None or passing is None:
            return func(*args, **(kwargs or {}))
        self._places[f"{frame.f_code.co_filename}:{frame.f_lineno}"] = None
        return passing

    def _is_open(self, x: Any) -> bool:
        """Whether a tensor has no value that is the same in each call."""
        return _has_no_value(x) and not self.known.is_constant(x)

    def warn(self) -> None:
        """Of what is no longer checked."""
        for place in self._places:
            text = (
                f"{place}: what is raised here for values of tensors is not checked by the converted network"
            )
            warnings.warn(text, stacklevel=3)


#: Functions by which Python decides by a tensor's value.
_DECIDING = (torch.Tensor.__bool__, torch.Tensor.item, torch._assert)

_SOME: tuple[int, ...] = (0, 1, -1, 2**31, -(2**31))
#: Functions whose result Python computes with, and what may pass of it.
_NUMBERS: dict[Any, tuple[Any, ...]] = {
    torch.Tensor.__int__: _SOME,
    torch.Tensor.__float__: tuple(map(float, _SOME)),
    **dict.fromkeys(
        (torch.equal, torch.Tensor.equal, torch.allclose, torch.Tensor.allclose, torch.is_nonzero,
         torch.Tensor.is_nonzero),
        (False, True),
    ),
}  # fmt: skip


def _has_no_value(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and is_fake(x) and getattr(x, "constant", None) is None


class _PassingNumber:
    """A number that is only known to pass: its truth, and each comparison with it, are those with which nothing is
    raised.
    """

    def __init__(self, passes: bool) -> None:
        self._passes = passes

    def __bool__(self) -> bool:
        return self._passes

    def _compared(self, other: object) -> bool:
        return self._passes

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _compared
    __hash__ = None  # type: ignore[assignment]  # as for all that is equal to many


class _ConditionPart(NamedTuple):
    """A part of a condition: the expression and where it is, its truth with which nothing is raised, and where that
    decides alone: the part itself, and the sides of a comparison.
    """

    test: ast.expr
    place: Span
    passes: bool
    compared: frozenset[Span]


def own_frame() -> FrameType | None:
    """The innermost frame of a network's code, whether or not it lies in a file."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(LIBRARIES):
        frame = frame.f_back
    return frame


def _decided(frame: FrameType, function: Any, x: torch.Tensor) -> Any:
    """What a function gives in a frame, with which nothing is raised; None if other things depend on it."""
    if function is torch._assert:
        return True
    if function in _NUMBERS:
        return _number(frame, _NUMBERS[function])
    passing = _passing(frame, function)
    if function is torch.Tensor.item:
        return _PassingNumber(passing) if passing is not None else _number(frame, _items(x.dtype))
    return passing


def _items(dtype: torch.dtype) -> tuple[Any, ...]:
    """What may pass of a tensor's element."""
    return (
        (False, True)
        if dtype is torch.bool
        else tuple(map(float, _SOME))
        if dtype.is_floating_point
        else _SOME
    )


def _passing(frame: FrameType, function: Any) -> bool | None:
    """The truth of what a frame decides, with which nothing is raised; None if other things depend on it."""
    is_number = function is torch.Tensor.item
    place = _value_place(frame, called=is_number)
    if place is None:
        return None
    found = {
        part.passes
        for part in _parts(frame.f_code.co_filename)
        if (place in part.compared if is_number else _within(place, part.place) or _within(part.place, place))
    }
    return found.pop() if len(found) == 1 else None


def _number(frame: FrameType, candidates: tuple[Any, ...]) -> Any:
    """The number at a call with which the condition around it passes; None if there is none, or if other things
    depend on it.
    """
    place = _value_place(frame, called=True)
    around = [part for part in _parts(frame.f_code.co_filename) if place and _within(place, part.place)]
    if place is None or len(around) != 1:
        return None
    return passing_value(frame, around[0].test, place, around[0].passes, candidates)


def _within(inner: Span, outer: Span) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _value_place(frame: FrameType, called: bool) -> Span | None:
    """Where the expression starts and ends whose truth is asked for: that of the instruction before (in Python 3.11 a
    jump may have the place of another part). called: that of the call itself."""
    found = dis.Positions()
    for instruction in dis.get_instructions(frame.f_code):
        if instruction.offset >= frame.f_lasti + called:
            break
        found = instruction.positions or dis.Positions()
    line, last, column, stop = found
    if line is None or last is None or column is None or stop is None:
        return None
    return (line, column), (last, stop)


@lru_cache(maxsize=256)
def _parts(file: str) -> list[_ConditionPart]:
    """The parts of all conditions in a file of branches that only raise, or only warn."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return []
    found: list[_ConditionPart] = []
    for node in _uncaught(tree):
        if isinstance(node, ast.If) and _only_raises(node.body) != _only_raises(node.orelse):
            found += _of(node.test, _only_raises(node.orelse))
        elif isinstance(node, ast.If) and not node.orelse and all(map(_warns, node.body)):
            found += _of(node.test, False)
        elif isinstance(node, ast.Assert):
            found += _of(node.test, True)
    return found


def _uncaught(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those in the body of a `try` with handlers: what is raised there decides what runs next."""
    yield node
    caught = node.body if isinstance(node, ast.Try | ast.TryStar) and node.handlers else []
    for child in ast.iter_child_nodes(node):
        if child not in caught:
            yield from _uncaught(child)


def _only_raises(branch: list[ast.stmt]) -> bool:
    """Whether all that it does is raise, perhaps with a text that it makes before."""
    steps = all(isinstance(step, ast.Raise | ast.Assign | ast.Expr) for step in branch)
    return steps and bool(branch) and isinstance(branch[-1], ast.Raise)


def _warns(step: ast.stmt) -> bool:
    """Whether it is a call of a function that warns, as its name says: `warnings.warn`, `log.warning`."""
    called = step.value.func if isinstance(step, ast.Expr) and isinstance(step.value, ast.Call) else None
    name = (
        called.attr
        if isinstance(called, ast.Attribute)
        else called.id
        if isinstance(called, ast.Name)
        else ""
    )
    return "warn" in name


def _of(test: ast.expr, passes: bool) -> Iterator[_ConditionPart]:
    """The parts of a condition, each with its truth with which the whole is `passes`."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _of(test.operand, not passes)
    elif isinstance(test, ast.BoolOp):
        for part in test.values:
            yield from _of(part, passes)
    else:
        sides = [test.left, *test.comparators] if isinstance(test, ast.Compare) else []
        yield _ConditionPart(test, place_of(test), passes, frozenset(map(place_of, [test, *sides])))
