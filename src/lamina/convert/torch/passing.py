"""Numbers with which a condition of a network's code passes.

    if int(labels.max()) + 1 > self.vocab_size:
        raise ValueError("labels exceed the vocabulary")

`int` and `float` give Python's own numbers, which decide by themselves: so the condition is evaluated with one number
after another in place of that call, until its truth is the wanted one.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence
from itertools import chain
from types import FrameType
from typing import Any, TypeAlias

Point: TypeAlias = tuple[int, int]
Span: TypeAlias = tuple[Point, Point]
#: The name of the number in the condition that is evaluated: none that a program can write.
_NAME = "the number"
#: Expressions that only compute with the number. Others (an index, `:=`) may give it to something else.
_COMPUTING = (ast.Compare, ast.BinOp, ast.UnaryOp, ast.Call, ast.Tuple)


def place_of(node: ast.expr) -> Span:
    """Where an expression starts and ends: (line, column), (line, column)."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def passing_value(
    frame: FrameType, test: ast.expr, place: Span, passes: bool, candidates: Sequence[Any]
) -> Any:
    """The first of the candidates, of what the condition compares with, and of their neighbours, with which a
    condition has that truth; None if there is none.

    frame: where the condition is evaluated. place: of the call that gives the number, within `test`.
    """
    path = list(_path(test, place))
    if not path or not all(isinstance(node, _COMPUTING) for node in path[:-1]):
        return None
    fails = ast.UnaryOp(ast.Not(), _Replacing(place).visit(copy.deepcopy(test)))
    for number in chain(candidates, _beside(frame, path, type(candidates[0]))):
        if _evaluated(frame, fails, {_NAME: number}) is (not passes):
            return number
    return None


def _path(node: ast.AST, place: Span) -> Iterator[ast.AST]:
    """The expressions from `node` down to the one at a place; none if it is not there."""
    if isinstance(node, ast.expr) and place_of(node) == place:
        yield node
        return
    for child in ast.iter_child_nodes(node):
        if below := list(_path(child, place)):
            yield node
            yield from below
            return


class _Replacing(ast.NodeTransformer):
    """Puts the number in place of an expression."""

    def __init__(self, place: Span) -> None:
        self._place = place

    def visit(self, node: ast.AST) -> Any:
        """The expression itself, or the number's name."""
        if isinstance(node, ast.expr) and place_of(node) == self._place:
            return ast.copy_location(ast.Name(_NAME, ast.Load()), node)
        return self.generic_visit(node)


def _beside(frame: FrameType, path: list[ast.AST], kind: type) -> Iterator[Any]:
    """What the number is compared with, and the numbers next to that."""
    for node in path:
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        for side in (s for s in sides if s not in path):
            value = _evaluated(frame, side, {})
            for near in value if isinstance(value, list | tuple | set | frozenset | range) else (value,):
                if isinstance(near, int | float):
                    yield from (kind(near), kind(near + 1), kind(near - 1))


def _evaluated(frame: FrameType, expression: ast.expr, names: dict[str, Any]) -> Any:
    """A value in a frame; None where it has none there."""
    code = compile(ast.fix_missing_locations(ast.Expression(expression)), "<condition>", "eval")
    try:
        return eval(code, frame.f_globals, {**frame.f_locals, **names})
    except Exception:  # whatever the network's code raises
        return None
