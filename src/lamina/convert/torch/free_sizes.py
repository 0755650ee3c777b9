"""The input sizes for which a graph of torch.export holds: fixed sizes, bounds of the free ones, and
conditions that the module's code evaluated (`if x.shape[0] % 2`): another outcome needs another graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, TypeAlias

import sympy
import torch

from lamina.spec import Shape

#: The sizes of one input: an integer if fixed, else a formula of symbols (`s0`, `2*s0`).
Sizes: TypeAlias = tuple[Any, ...]
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
#: The maximum number of cached answers, by kind of sizes.
REMEMBERED = 1024


class FreeSizes:
    """The sizes that a graph accepts.

    shapes: of the inputs, with formulas of symbols where they are free. bounds: the minimum and maximum of a
    formula. conditions: relations of the symbols that were decided while the graph was made, all of which must hold.
    made_of: the input shapes that it was made from, for which it holds even if a condition cannot be evaluated.
    """

    def __init__(
        self,
        shapes: Sequence[Sizes],
        bounds: Mapping[Any, tuple[Any, Any]] | None = None,
        conditions: Sequence[Any] = (),
        made_of: tuple[Shape, ...] = (),
    ) -> None:
        self.shapes, self._made_of = tuple(shapes), made_of
        self._bounds = dict(bounds or {})
        self._conditions = tuple(conditions)
        self._answer = lru_cache(REMEMBERED)(self._decide)  # sympy takes some 30 µs per relation

    @classmethod
    def of(
        cls,
        shapes: Sequence[Sequence[Any]],
        ranges: Mapping[Any, Any],
        made_of: Sequence[Shape],
        numbers: Sequence[Any] = (),
    ) -> FreeSizes:
        """Those of a graph whose inputs have such shapes (ints and SymInts); ranges: the exporter's, by formula.

        numbers: its non-tensor results (`return y, y.shape[0]`): it only holds while they are unchanged.
        """
        known = {id(env): env for shape in shapes for x in shape if (env := _environment(x)) is not None}
        conditions = [env.replace(guard.expr) for env in known.values() for guard in env.guards]
        made, own = tuple(map(tuple, made_of)), [tuple(map(_formula, shape)) for shape in shapes]
        free = {s for shape in own for f in shape if not isinstance(f, int) for s in f.free_symbols}
        # Other symbols are numbers that follow from values (how many elements a mask selects): no shape tells them.
        bounds = {f: (r.lower, r.upper) for f, r in ranges.items() if f.free_symbols <= free}
        values = _values(own, made)
        asked = {s for x in numbers if isinstance(x, _SYMBOLIC) for s in x.node.expr.free_symbols}
        conditions += [sympy.Eq(s, values.get(s)) for s in asked]
        return cls(own, bounds, conditions, made)

    def hold(self, shapes: Sequence[Shape]) -> bool:
        """Whether the graph holds for inputs of these shapes."""
        return self._answer(tuple(tuple(shape) for shape in shapes))

    def _decide(self, shapes: tuple[Shape, ...]) -> bool:
        if shapes == self._made_of:
            return True
        if [len(s) for s in shapes] != [len(s) for s in self.shapes]:
            return False
        values = _values(self.shapes, shapes)
        sizes = chain(*map(zip, self.shapes, shapes))
        return (
            all(_value(own, values) == size for own, size in sizes)
            and all(low <= _value(f, values) <= high for f, (low, high) in self._bounds.items())
            and all(_value(condition, values) == sympy.true for condition in self._conditions)
        )


def _values(own: Sequence[Sizes], given: Sequence[Shape]) -> dict[Any, Any]:
    """The values of the shapes' symbols for given shapes."""
    pairs = chain(*map(zip, own, given))
    return {symbol: sympy.Integer(size) for symbol, size in pairs if isinstance(symbol, sympy.Symbol)}


def _formula(size: Any) -> Any:
    """The size if the graph fixes it, even if the exporter still has a symbol for it; else its formula."""
    fixed = size.node.maybe_as_int() if isinstance(size, torch.SymInt) else size
    return size.node.expr if fixed is None else int(fixed)


def _environment(size: Any) -> Any:
    """The exporter's record of decisions about a symbol."""
    return size.node.shape_env if isinstance(size, torch.SymInt) else None


def _value(formula: Any, values: Mapping[Any, Any]) -> Any:
    return formula if isinstance(formula, int) else formula.xreplace(values)
