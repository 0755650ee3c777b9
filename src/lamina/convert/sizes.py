"""Sizes that depend on free axes, found by tracing at several sizes: numbers that differ are expressed by formulas.

A network is traced at the examples' sizes and again with other sizes of the free axes. A number that differs is
matched with the sizes of available values: d, p d / q + c, c d e.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations_with_replacement, product
from math import prod
from typing import Any, Literal, NamedTuple

import numpy as np

from lamina.graph import Graph, Value
from lamina.spec import Shape

Array = np.ndarray[Any, Any]
#: Added to a free axis' example size in the other traces (STEPS); if the network does not accept that, factors of
#: it (TIMES).
STEPS = (2, 5)
TIMES = (2, 3)
#: The same in a search for sizes that are rounded, by these divisors.
DENSE_STEPS = (1, 2, 3, 5, 7, 12)
_ROUNDED_BY = (2, 3, 4)


class Dim(NamedTuple):
    """An axis of a value in the model, and its size in each trace. name: the value, or its representation."""

    name: Any
    axis: int
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Expression:
    """(factor * the product of sizes + before) / divisor, rounded down, + offset."""

    dims: tuple[Dim, ...]
    factor: int = 1
    divisor: int = 1
    offset: int = 0
    before: int = 0

    def written(self, dim: Callable[[Dim], Any], arithmetic: Callable[[str, Any, Any], Any]) -> Any:
        """Its value, in the writer's representation. dim: of one size; arithmetic: of operator ("Mul", "Div", "Add"),
        operand and operand or number."""
        found = dim(self.dims[0])
        for other in self.dims[1:]:
            found = arithmetic("Mul", found, dim(other))
        for operator, number, nothing in (
            ("Mul", self.factor, 1),
            ("Add", self.before, 0),
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
    for dim in dims:
        if (found := _rounded(numbers, dim)) is not None:
            return found
    for some, offset in product(combinations_with_replacement(dims, 2), (-1, 1)):
        if (found := _product(tuple(n - offset for n in numbers), some)) is not None:
            return replace(found, offset=offset)
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


def _rounded(numbers: tuple[int, ...], dim: Dim) -> Expression | None:
    """A part of a size, rounded down or up: (d + before) / divisor + offset. Few traces agree with several such
    formulas: none is then taken."""
    if len(set(dim.sizes)) <= len(DENSE_STEPS):
        return None
    for divisor in _ROUNDED_BY:
        for before in range(divisor):
            rest = {n - (d + before) // divisor for d, n in zip(dim.sizes, numbers, strict=True)}
            if len(rest) == 1:
                return Expression((dim,), 1, divisor, rest.pop(), before)
    return None


def _product(numbers: tuple[int, ...], dims: Sequence[Dim]) -> Expression | None:
    products = [prod(s) for s in zip(*(d.sizes for d in dims), strict=True)]
    if 0 in products:
        return None
    ratio = {Fraction(n, p) for n, p in zip(numbers, products, strict=True)}
    if len(ratio) != 1 or not (factor := ratio.pop()):
        return None
    return Expression(tuple(dims), factor.numerator, factor.denominator)


def probes(sizes: Mapping[str, int], dense: bool = False) -> Iterator[list[dict[str, int]]]:
    """Plans of sizes of the free axes by name: each a list of traces in addition to the examples'.

    dense: with more sizes of each axis.
    """
    for grown in (_added, _multiplied):
        steps = DENSE_STEPS if dense and grown is _added else None
        alone = [{**sizes, name: grown(n, i)} for name, n in sizes.items() for i in range(2)]
        if steps is not None:
            alone = [{**sizes, name: n + step} for name, n in sizes.items() for step in steps]
        together = [{name: grown(n, i % 2) + i // 2 * n for i, (name, n) in enumerate(sizes.items())}]
        if grown is _added:  # an odd number of everything: products that are halved are rounded there
            together.append({name: n + (2 if n % 2 else 5) for name, n in sizes.items()})
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


class Power(NamedTuple):
    """(numbers / divisor) ** exponent + offset, with a whole number for each trace."""

    numbers: tuple[int, ...]
    divisor: int
    exponent: float
    offset: float


#: What is searched for in a scalar that depends on a size: n / 2, 1 / n, sqrt(n), 2 / (n - 1), 1 / n - 1, …
_EXPONENTS = (1.0, -1.0, 0.5, -0.5)
_OFFSETS = (0.0, -1.0, 1.0, -0.5, 0.5)
_DIVISORS = range(1, 13)


def powers(arrays: Sequence[Array]) -> Iterator[Power]:
    """The powers of fractions of whole numbers that a scalar is in each trace, up to a rounding."""
    if arrays[0].ndim or arrays[0].dtype.kind in "bc":
        return
    if arrays[0].dtype.kind in "iu":
        yield Power(tuple(int(a) for a in arrays), 1, 1.0, 0.0)
        return
    values = np.array([float(a) for a in arrays])
    rounding = 4 * np.finfo(arrays[0].dtype).eps if arrays[0].dtype.kind == "f" else 2.0**-7
    for offset, divisor, exponent in product(_OFFSETS, _DIVISORS, _EXPONENTS):
        with np.errstate(all="ignore"):
            numbers = np.round((values - offset) ** (1 / exponent) * divisor)
            again = (numbers / divisor) ** exponent + offset
        bound = rounding * np.maximum(np.abs(values), abs(offset))
        if np.isfinite(numbers).all() and numbers.all() and (np.abs(again - values) <= bound).all():
            yield Power(tuple(int(n) for n in numbers), divisor, exponent, offset)


class Grid(NamedTuple):
    """first + steps[0] i + steps[1] j + … of the index along each axis: scalars, one in each trace; None for an axis
    along which nothing changes."""

    first: list[Array]
    steps: list[list[Array] | None]


def grid(arrays: Sequence[Array]) -> Grid | None:
    """The arithmetic progressions along all axes; None if there are none. Floats may be rounded."""
    if arrays[0].dtype == np.bool_ or not arrays[0].ndim:
        return None
    if any(not a.size or not np.isfinite(a.astype(np.float64)).all() for a in arrays):
        return None
    first = [a[(0,) * a.ndim] for a in arrays]
    steps: list[list[Array] | None] = []
    for axis, sizes in enumerate(zip(*(a.shape for a in arrays), strict=True)):
        lines = [a[(0,) * axis + (slice(None),) + (0,) * (a.ndim - axis - 1)] for a in arrays]
        if all((line == line[0]).all() for line in lines):
            steps.append(None)
        elif min(sizes) < 2:
            return None
        else:
            steps.append([_mean_step(line) for line in lines])
    found = Grid([np.asarray(x) for x in first], steps)
    return found if all(_is_grid(a, found, i) for i, a in enumerate(arrays)) else None


def _mean_step(line: Array) -> Array:
    """From the first element to the last in equal steps."""
    if line.dtype.kind in "iu":
        return np.asarray(line[1] - line[0])
    return np.asarray((float(line[-1]) - float(line[0])) / (line.size - 1)).astype(line.dtype)


def _is_grid(array: Array, found: Grid, trace: int) -> bool:
    exact = array.dtype.kind in "iu"
    made: Array = found.first[trace].astype(np.int64 if exact else np.float64)
    for axis, step in enumerate(found.steps):
        if step is not None:
            index = np.arange(array.shape[axis]).reshape([-1 if a == axis else 1 for a in range(array.ndim)])
            made = made + step[trace].astype(made.dtype) * index
    if exact:
        return bool((made == array).all())
    eps = 2.0**-7 if array.dtype.kind != "f" else float(np.finfo(array.dtype).eps)
    return bool(np.allclose(made, array.astype(np.float64), rtol=0, atol=4 * eps * float(np.abs(made).max())))


class TwoValues(NamedTuple):
    """One number where a mask is true, another one elsewhere; masks: one in each trace."""

    there: Array
    elsewhere: Array
    masks: list[Array]


def two_values(arrays: Sequence[Array]) -> TwoValues | None:
    """The two numbers of which a constant consists in all traces; None if there are others."""
    if arrays[0].dtype == np.bool_:
        return None
    values = np.unique(np.concatenate([np.unique(a) for a in arrays]))
    if values.size != 2 or np.isnan(values.astype(np.float64)).any():
        return None
    return TwoValues(values[0], values[1], [np.asarray(a == values[0]) for a in arrays])


class Diagonals(NamedTuple):
    """True where low <= column - row <= high in the last two axes; None for no bound."""

    low: int | None
    high: int | None


def band(arrays: Sequence[Array]) -> Diagonals | None:
    """The band of diagonals (a triangle, a window) that booleans are in each trace; None if they are none."""
    if arrays[0].dtype != np.bool_ or arrays[0].ndim < 2 or not all(a.any() for a in arrays):
        return None
    bounds = [_band_of(a) for a in arrays]
    if any(found is None for found in bounds):
        return None
    lows, highs = zip(*(found for found in bounds if found), strict=True)
    low = _common_bound(lows, [1 - a.shape[-2] for a in arrays])
    high = _common_bound([-n for n in highs], [1 - a.shape[-1] for a in arrays])
    if low is False or high is False:
        return None
    return Diagonals(low, None if high is None else -high)


def _band_of(array: Array) -> tuple[int, int] | None:
    rows, columns = array.shape[-2:]
    places = np.broadcast_to(np.arange(columns) - np.arange(rows)[:, None], array.shape)
    low, high = int(places[array].min()), int(places[array].max())
    return (low, high) if (((places >= low) & (places <= high)) == array).all() else None


def _common_bound(bounds: Sequence[int], ends: Sequence[int]) -> int | Literal[False] | None:
    """The lower bound of all traces, None if each reaches the matrix' end; False if they have none in common."""
    inner = {bound for bound, end in zip(bounds, ends, strict=True) if bound > end}
    if not inner:
        return None
    found = inner.pop()
    whole = all(end >= found for bound, end in zip(bounds, ends, strict=True) if bound == end)
    return found if not inner and whole else False


class Ends(NamedTuple):
    """A fixed part, a slice that is repeated, and another fixed part along an axis."""

    axis: int
    head: Array
    middle: Array
    tail: Array


def ends(arrays: Sequence[Array]) -> Ends | None:
    """The parts of a constant that repeats one slice except at the ends of its free axis; None if it does not."""
    axes = [i for i, n in enumerate(zip(*(a.shape for a in arrays), strict=True)) if len(set(n)) > 1]
    if len(axes) != 1:
        return None
    axis = axes[0]
    lines = [np.moveaxis(a, axis, 0) for a in arrays]
    longest = max(lines, key=len)
    middle = longest[len(longest) // 2]
    other = [i for i, part in enumerate(longest) if (part != middle).any()]
    start = max((i + 1 for i in other if i < len(longest) // 2), default=0)
    rest = max((len(longest) - i for i in other if i > len(longest) // 2), default=0)
    head, tail = longest[:start], longest[len(longest) - rest :]
    for line in lines:
        inner = len(line) - start - rest
        made = [head, np.broadcast_to(middle, (max(inner, 0), *middle.shape)), tail]
        if inner < 0 or (np.concatenate(made) != line).any():
            return None
    return Ends(axis, *(np.moveaxis(part, 0, axis) for part in (head, middle[None], tail)))


def free_shape(shapes: Sequence[Shape], names: Mapping[tuple[int, ...], str]) -> list[int | str | None]:
    """A shape in a model's notation: a number, the name of a free axis of these sizes, None for neither."""
    return [sizes[0] if len(set(sizes)) == 1 else names.get(sizes) for sizes in zip(*shapes, strict=True)]
