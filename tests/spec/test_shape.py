"""Checked arithmetic of shapes: never past 2^63 - 1, never negative, and messages that name the culprit."""

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.spec import (
    DTypeError,
    ShapeError,
    as_shape,
    broadcast_shapes,
    element_count,
    normalize_axes,
    normalize_axis,
)
from lamina.spec.shape import LIMIT

sizes = st.integers(0, 2**70)
small = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@given(st.lists(sizes, max_size=5))
def test_element_count_is_the_product_or_an_error(given_sizes: list[int]) -> None:
    if prod(given_sizes) <= LIMIT:
        assert element_count(given_sizes) == prod(given_sizes)
        assert as_shape(given_sizes) == tuple(given_sizes)
    else:
        with pytest.raises(ShapeError, match=r"input \(.*\) has \d+ elements, more than 2\^63 - 1"):
            as_shape(given_sizes, "input")


def test_element_count_at_the_edge() -> None:
    assert element_count((2**31, 2**31, 1)) == 2**62
    assert element_count((LIMIT,)) == LIMIT
    assert element_count((0, 2**62)) == 0
    with pytest.raises(ShapeError, match="9223372036854775808 elements"):
        element_count((2**32, 2**31))


def test_as_shape() -> None:
    assert as_shape(3) == (3,)
    assert as_shape(np.int32(3)) == (3,)
    assert as_shape([np.int64(2), 3]) == (2, 3)
    assert all(type(s) is int for s in as_shape(np.array([2, 3])))
    for wrong in ("ab", 1.5, (1, 2.0), None, object()):
        with pytest.raises(ShapeError, match="stride must be ints, got"):
            as_shape(wrong, "stride")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"shape must not have negative sizes, got \(2, -1\)"):
        as_shape((2, -1))


@given(small, small)
def test_broadcast_as_numpy(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    try:
        wanted = np.broadcast_shapes(a, b)
    except ValueError:
        with pytest.raises(ShapeError, match="add: shapes .* do not broadcast"):
            broadcast_shapes(a, b, "add")
    else:
        assert broadcast_shapes(a, b) == wanted


@given(st.integers(-6, 6), st.integers(0, 5))
def test_normalize_axis(axis: int, rank: int) -> None:
    if -rank <= axis < rank:
        assert normalize_axis(axis, rank) == range(rank)[axis]
    else:
        with pytest.raises(ShapeError, match=f"sum: axis {axis} is outside a tensor of rank {rank}"):
            normalize_axis(axis, rank, "sum")


def test_normalize_axes() -> None:
    assert normalize_axes(None, 3) == (0, 1, 2)
    assert normalize_axes(-1, 3) == (2,)
    assert normalize_axes((-1, 0), 3) == (0, 2)
    assert normalize_axes([], 3) == ()
    with pytest.raises(ShapeError, match=r"axes \(0, -3\) name an axis twice in a tensor of rank 3"):
        normalize_axes((0, -3), 3)


def test_sizes_that_equal_ints_are_none() -> None:
    assert as_shape((2, 3)) == (2, 3)
    for sizes in ((2.0, 3), (2, None), "23", (2, "3")):
        with pytest.raises(ShapeError, match="must be ints"):
            as_shape(sizes)  # type: ignore[arg-type]
    assert [type(n) for n in as_shape((np.int64(2), 3))] == [int, int]
    with pytest.raises(ShapeError, match="negative sizes"):
        as_shape((2, -1))
    with pytest.raises(ShapeError, match="more than 2"):
        as_shape((2**62, 4))


def test_errors_are_caught_as_pytorchs_are() -> None:
    assert issubclass(ShapeError, RuntimeError)
    assert issubclass(ShapeError, ValueError)
    assert issubclass(DTypeError, RuntimeError)
    assert issubclass(DTypeError, TypeError)
    with pytest.raises(IndexError, match="sum: axis 2 is outside a tensor of rank 2"):
        normalize_axis(2, 2, "sum")
