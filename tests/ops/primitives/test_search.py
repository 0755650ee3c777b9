"""Places, counts and distinct elements against NumPy, and what a graph cannot hold."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.spec import DTypeError, ShapeError
from tests.helpers.functions import run

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("right", [False, True])
def test_searchsorted(right: bool) -> None:
    rows = np.sort(RNG.integers(0, 9, (2, 3, 6)).astype(np.float64))
    x = RNG.integers(-1, 11, (2, 3, 4)).astype(np.float64)
    found = run(ops.searchsorted, rows, x, right=right)
    side: Any = "right" if right else "left"
    for place in np.ndindex(2, 3):
        np.testing.assert_array_equal(found[place], np.searchsorted(rows[place], x[place], side))
    np.testing.assert_array_equal(
        run(ops.bucketize, x, rows[0, 0], right=right), np.searchsorted(rows[0, 0], x, side)
    )
    assert run(ops.searchsorted, rows[0, 0], np.array(4.0), out_int32=True).dtype == np.int32
    order = np.array([2, 0, 1])
    assert run(ops.searchsorted, np.array([5.0, 9.0, 1.0]), np.array([6.0]), sorter=order).tolist() == [2]


def test_counts() -> None:
    x = RNG.integers(0, 6, 50)
    np.testing.assert_array_equal(ops.bincount(lm.tensor(x)).numpy(), np.bincount(x))
    np.testing.assert_array_equal(ops.bincount(lm.tensor(x.astype(np.uint8))).numpy(), np.bincount(x))
    assert ops.bincount(lm.tensor(x[:0].astype(np.uint8)), minlength=2).tolist() == [0, 0]
    weights = RNG.standard_normal(50)
    found = ops.bincount(lm.tensor(x), lm.tensor(weights), minlength=9).numpy()
    np.testing.assert_allclose(found, np.bincount(x, weights, 9))
    y = RNG.standard_normal(200)
    np.testing.assert_array_equal(run(ops.histc, y, 7, -1.0, 1.0), np.histogram(y, 7, (-1, 1))[0])
    np.testing.assert_array_equal(run(ops.histc, y, 5), np.histogram(y, 5)[0])
    assert run(ops.histc, np.array([2.0, 2.0]), 3).tolist() == [0, 2, 0]
    assert run(ops.histc, np.zeros(0), 2).tolist() == [0, 0]


def test_counts_of_traced_numbers_say_how_else_to_count() -> None:
    with pytest.raises(
        TypeError, match=r"bincount: .* count by lamina.zeros\(n\).index_add\(0, index, ones\)"
    ):
        lm.jit(lambda x: ops.bincount(x, minlength=3))(lm.tensor([1, 2]))


def test_isin() -> None:
    x, among = np.array([[1, 2], [3, 4]]), np.array([2, 4, 9])
    np.testing.assert_array_equal(run(ops.isin, x, among), np.isin(x, among))
    np.testing.assert_array_equal(run(ops.isin, x, among, invert=True), ~np.isin(x, among))


def test_nonzero() -> None:
    x = (RNG.random((3, 4)) > 0.5).astype(np.float32)
    np.testing.assert_array_equal(ops.nonzero(lm.tensor(x)).numpy(), np.argwhere(x))
    for found, wanted in zip(ops.nonzero(lm.tensor(x), as_tuple=True), np.nonzero(x), strict=True):
        np.testing.assert_array_equal(found.numpy(), wanted)
    assert ops.argwhere(lm.tensor(3.0)).shape == (1, 0)


def test_places_where_a_condition_holds() -> None:
    x = np.array([[0, 2, 0], [3, 0, -1]])
    for found, wanted in zip(ops.where(lm.tensor(x) != 0), np.nonzero(x), strict=True):
        assert found.dtype.short == "i64"
        np.testing.assert_array_equal(found.numpy(), wanted)
    assert [p.tolist() for p in ops.where(lm.tensor([0.0, 1.5]))] == [[1]]
    rows = lm.zeros(2, 3).index_add_(0, ops.where(lm.tensor([False, True]))[0], lm.ones(1, 3))
    assert rows.tolist() == [[0, 0, 0], [1, 1, 1]]
    for given, missing in (((1.0, None), "other"), ((None, 1.0), "input")):
        with pytest.raises(TypeError, match=f"where: {missing} is missing; give input and other"):
            ops.where(lm.tensor([True]), *given)


def test_unique() -> None:
    x = RNG.integers(0, 4, (3, 5))
    found = ops.unique(lm.tensor(x), return_inverse=True, return_counts=True)
    for y, wanted in zip(found, np.unique(x, return_inverse=True, return_counts=True), strict=True):
        np.testing.assert_array_equal(y.numpy(), wanted)
    rows = np.array([[1, 2], [0, 5], [1, 2]])
    values, counts = ops.unique(lm.tensor(rows), return_counts=True, dim=0)
    assert (values.tolist(), counts.tolist()) == ([[0, 5], [1, 2]], [1, 2])
    values, inverse, counts = ops.unique(lm.tensor(7), True, True, True, dim=0)
    assert (values.tolist(), inverse.tolist(), counts.tolist()) == ([7], [0], [1])
    values, inverse, counts = ops.unique_consecutive(lm.tensor([1, 1, 2, 1]), True, True)
    assert (values.tolist(), inverse.tolist(), counts.tolist()) == ([1, 2, 1], [0, 0, 1, 2], [2, 1, 1])


@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 0, 3)])
def test_nonzero_elements_when_compiled(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).integers(0, 2, shape).astype(np.float32)
    found = lm.jit(lambda x: (ops.nonzero(x), *ops.nonzero(x, as_tuple=True)))(x)
    for y, wanted in zip(found, (ops.nonzero(x), *ops.nonzero(x, as_tuple=True)), strict=True):
        assert y.spec.open == wanted.spec.open
        np.testing.assert_array_equal(y.numpy(), wanted.numpy())


@pytest.mark.parametrize("function", [ops.unique, ops.unique_consecutive])
def test_a_graph_has_no_shapes_that_depend_on_numbers(function: Any) -> None:
    with pytest.raises(TypeError, match="the shape of the result depends on the numbers in input"):
        lm.jit(function)(lm.ones(3))


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda x: ops.searchsorted(x, x[:1]), ShapeError, "searchsorted: sorted_sequence"),
        (lambda x: ops.searchsorted(x[0], x.long()), DTypeError, "cast one with ops.cast"),
        (lambda x: ops.bucketize(x, x), ShapeError, "boundaries must be a vector"),
        (lambda x: ops.bincount(x), DTypeError, "bincount: takes a vector of integers"),
        (lambda x: ops.bincount(x[0].long() - 3), ValueError, "bincount: numbers must be >= 0, got -2"),
        (lambda x: ops.histc(x, 0), ValueError, "histc: bins must be >= 1"),
    ],
)
def test_errors(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call(lm.ones((2, 3)))


def test_places_of_indices() -> None:
    x = RNG.integers(0, 60, (2, 5))
    for found, expected in zip(ops.unravel_index(x, (3, 4, 5)), np.unravel_index(x, (3, 4, 5)), strict=True):
        np.testing.assert_array_equal(found.numpy(), expected)
    assert [i.tolist() for i in ops.unravel_index(7, 10)] == [7]
    with pytest.raises(DTypeError, match="unravel_index: indices must be integers"):
        ops.unravel_index(1.5, (3,))


def test_nothing_repeats_in_nothing() -> None:
    values, inverse, counts = ops.unique_consecutive(lm.zeros(0), return_inverse=True, return_counts=True)
    assert values.shape == inverse.shape == counts.shape == (0,)
    assert ops.unique_consecutive(lm.zeros(0, 3), dim=0).shape == (0, 3)


def test_a_fraction_stands_between_integers() -> None:
    edges = lm.tensor([0, 2, 4])
    for kind in ("int64", "uint8"):
        assert ops.searchsorted(edges.to(kind), 2.5).item() == ops.bucketize(2.5, edges.to(kind)).item() == 2
        assert ops.searchsorted(edges.to(kind), 2).item() == 1
