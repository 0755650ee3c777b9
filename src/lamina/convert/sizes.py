"""Sizes that depend on free axes, found by tracing at several sizes: numbers that differ are expressed by formulas.

A network is traced at the examples' sizes and again with other sizes of the free axes. A number that differs is
matched with the sizes of available values: d, p d / q + c, c d e.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations_with_replacement
from math import prod
from typing import Any, NamedTuple

import numpy as np

from lamina.graph import Graph, Value
from lamina.spec import Shape

Array = np.ndarray[Any, Any]
#: Added to a free axis' example size in the other traces (STEPS); if the network does not accept that, factors of
#: it (TIMES).
STEPS = (2, 5)
TIMES = (2, 3)


class Dim(NamedTuple):
    """An axis of a value in the model, and its size in each trace. name: the value, or its representation."""

    name: Any
    axis: int
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Expression:
    """(factor * the product of sizes) / divisor + offset."""

    dims: tuple[Dim, ...]
    factor: int = 1
    divisor: int = 1
    offset: int = 0

    def written(self, dim: Callable[[Dim], Any], arithmetic: Callable[[str, Any, Any], Any]) -> Any:
        """Its value, in the writer's representation. dim: of one size; arithmetic: of operator ("Mul", "Div", "Add"),
        operand and operand or number."""
        found = dim(self.dims[0])
        for other in self.dims[1:]:
            found = arithmetic("Mul", found, dim(other))
        for operator, number, nothing in (
            ("Mul", self.factor, 1),
            ("Div", self.divisor, 1),
            ("Add", self.offset, 0),
        ):
            if number != nothing:
                found = arithmetic(operator, found, number)
        return found


def expression(numbers: tuple[int, ...], dims: Sequence[Dim]) -> Expression | None:
    """A formula for these numbers, one in each trace; the simplest first."""
    for dim in dims:
        if dim.sizes == numbers:
            return Expression((dim,))
    for dim in dims:
        if (found := _affine(numbers, dim)) is not None:
            return found
    for count in (2, 3):
        for some in combinations_with_replacement(dims, count):
            if (found := _product(numbers, some)) is not None:
                return found
    return None


def _affine(numbers: tuple[int, ...], dim: Dim) -> Expression | None:
    pairs = sorted(set(zip(dim.sizes, numbers, strict=True)))
    if len(pairs) < 2 or pairs[0][0] == pairs[1][0]:
        return None
    slope = Fraction(pairs[1][1] - pairs[0][1], pairs[1][0] - pairs[0][0])
    offset = numbers[0] - slope * dim.sizes[0]
    if slope == 0 or offset.denominator != 1 or any(slope * d + offset != n for d, n in pairs):
        return None
    return Expression((dim,), slope.numerator, slope.denominator, int(offset))


def _product(numbers: tuple[int, ...], dims: Sequence[Dim]) -> Expression | None:
    products = [prod(s) for s in zip(*(d.sizes for d in dims), strict=True)]
    if 0 in products:
        return None
    ratio = {Fraction(n, p) for n, p in zip(numbers, products, strict=True)}
    if len(ratio) != 1 or not (factor := ratio.pop()):
        return None
    return Expression(tuple(dims), factor.numerator, factor.denominator)


def probes(sizes: Mapping[str, int]) -> Iterator[list[dict[str, int]]]:
    """Plans of sizes of the free axes by name: each a list of traces in addition to the examples'."""
    for grown in (_added, _multiplied):
        alone = [{**sizes, name: grown(n, i)} for name, n in sizes.items() for i in range(2)]
        together = [{name: grown(n, i % 2) + i // 2 * n for i, (name, n) in enumerate(sizes.items())}]
        yield alone + (together if len(sizes) > 1 else [])


def _added(size: int, i: int) -> int:
    return size + STEPS[i]


def _multiplied(size: int, i: int) -> int:
    return size * TIMES[i]


def difference(graphs: Sequence[Graph]) -> str | None:
    """The difference between graphs other than sizes; None if there is none."""
    first = graphs[0]
    for other in graphs[1:]:
        if len(first.nodes) != len(other.nodes):
            return f"{len(first.nodes)} and {len(other.nodes)} ops"
        places = [_places(first), _places(other)]
        for a, b in zip(first.nodes, other.nodes, strict=True):
            if type(a.op) is not type(b.op):
                return f"{a.op} and {b.op}"
            if [places[0].get(v) for v in a.inputs] != [places[1].get(v) for v in b.inputs]:
                return f"other operands of {a.op}"
        if [places[0].get(v) for v in first.outputs] != [places[1].get(v) for v in other.outputs]:
            return "other outputs"
    return None


def _places(graph: Graph) -> dict[Value, tuple[int, int]]:
    """The producer of each value that is not a constant."""
    found = {v: (-1, i) for i, v in enumerate(graph.inputs)}
    found.update({v: (n, i) for n, node in enumerate(graph.nodes) for i, v in enumerate(node.outputs)})
    return found


# ---- constants that depend on sizes


def filled(arrays: Sequence[Array]) -> Any | None:
    """The single number that fills the constant in each trace; None if there is none."""
    values = {a.reshape(-1)[:1].tobytes() for a in arrays}
    if len(values) != 1 or not all(a.size and (a == a.reshape(-1)[0]).all() for a in arrays):
        return None
    return arrays[0].reshape(-1)[0]


def repeated(arrays: Sequence[Array]) -> Array | None:
    """The part that repeats along the axes whose sizes differ, with size 1 there; None if the traces have
    none in common.
    """
    columns = zip(*(a.shape for a in arrays), strict=True)
    place = tuple(slice(None) if len(set(sizes)) == 1 else slice(0, 1) for sizes in columns)
    part = arrays[0][place]
    if not part.size or any(np.broadcast_to(part, a.shape).tobytes() != a.tobytes() for a in arrays):
        return None
    return part


class Counted(NamedTuple):
    """first, first + step, … along an axis, the others being 1."""

    axis: int
    first: Any
    step: Any


def counted(arrays: Sequence[Array]) -> Counted | None:
    """The arithmetic progression along the one axis whose size differs between the traces; None if it is none."""
    first = arrays[0]
    axes = [i for i, n in enumerate(zip(*(a.shape for a in arrays), strict=True)) if len(set(n)) > 1]
    if len(axes) != 1 or first.dtype == np.bool_:
        return None
    if any(a.size != a.shape[axes[0]] or a.size < 2 for a in arrays):
        return None
    start, step = first.reshape(-1)[0], first.reshape(-1)[1] - first.reshape(-1)[0]
    if any((a.reshape(-1) != start + step * np.arange(a.size)).any() for a in arrays):
        return None
    return Counted(axes[0], start, step)


class Triangle(NamedTuple):
    """True on and above (or below) a diagonal of the last two axes."""

    upper: bool
    diagonal: int


def triangle(arrays: Sequence[Array]) -> Triangle | None:
    """The triangle of booleans that the constant is in each trace; None if it is none."""
    if arrays[0].dtype != np.bool_ or arrays[0].ndim < 2:
        return None
    for upper in (False, True):
        for k in (0, -1, 1):
            made = np.triu if upper else np.tril
            if all((made(np.ones(a.shape, bool), k) == a).all() for a in arrays):
                return Triangle(upper, k)
    return None


def free_shape(shapes: Sequence[Shape], names: Mapping[tuple[int, ...], str]) -> list[int | str | None]:
    """A shape in a model's notation: a number, the name of a free axis of these sizes, None for neither."""
    return [sizes[0] if len(set(sizes)) == 1 else names.get(sizes) for sizes in zip(*shapes, strict=True)]
