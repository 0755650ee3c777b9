"""Checked shapes: every size passed to a library or an allocator goes through here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from operator import index
from typing import SupportsIndex

from lamina.spec.errors import OutsideError, ShapeError

#: The largest number of elements or bytes that is accepted: sizes travel as signed 64-bit integers in C.
LIMIT = 2**63 - 1

Shape = tuple[int, ...]
_INT = frozenset({int})


def as_shape(sizes: int | SupportsIndex | Iterable[SupportsIndex], what: str = "shape") -> Shape:
    """A tuple of ints >= 0. Raises ShapeError for anything else."""
    if type(sizes) is tuple and _INT.issuperset(map(type, sizes)):  # the common case
        shape: Shape = sizes
    else:
        try:
            shape = tuple(map(index, sizes)) if isinstance(sizes, Iterable) else (index(sizes),)
        except TypeError:
            raise ShapeError(f"{what} must be ints, got {sizes!r}") from None
    if shape and min(shape) < 0:
        raise ShapeError(f"{what} must not have negative sizes, got {shape}")
    if prod(shape) > LIMIT:
        element_count(shape, what)  # says so
    return shape


def element_count(sizes: Iterable[int], what: str = "shape") -> int:
    """The product of sizes. Raises ShapeError past 2^63 - 1."""
    sizes = tuple(sizes)
    count = prod(sizes)
    if count > LIMIT:
        raise ShapeError(f"{what} {sizes} has {count} elements, more than 2^63 - 1")
    return count


def broadcast_shapes(a: Sequence[int], b: Sequence[int], what: str = "broadcast") -> Shape:
    """The shape that a and b broadcast to by NumPy's rule. Raises ShapeError when they do not."""
    rank = max(len(a), len(b))
    left = (1,) * (rank - len(a)) + tuple(a)
    right = (1,) * (rank - len(b)) + tuple(b)
    for x, y in zip(left, right, strict=True):
        if x != y and 1 not in (x, y):
            raise ShapeError(f"{what}: shapes {tuple(a)} and {tuple(b)} do not broadcast")
    return tuple(y if x == 1 else x for x, y in zip(left, right, strict=True))


def normalize_axis(axis: int, rank: int, what: str = "axis") -> int:
    """The axis counted from the front. Raises OutsideError when it is outside [-rank, rank)."""
    if not -rank <= axis < rank:
        raise OutsideError(f"{what}: axis {axis} is outside a tensor of rank {rank}")
    return axis % rank


def normalize_axes(axes: int | Iterable[int] | None, rank: int, what: str = "axes") -> tuple[int, ...]:
    """Sorted axes counted from the front, without repeats; None means all. Raises ShapeError."""
    if axes is None:
        return tuple(range(rank))
    given = (axes,) if isinstance(axes, int) else tuple(axes)
    found = tuple(sorted(normalize_axis(a, rank, what) for a in given))
    if len(set(found)) != len(found):
        raise ShapeError(f"{what}: axes {given} name an axis twice in a tensor of rank {rank}")
    return found
