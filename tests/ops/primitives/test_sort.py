"""Orders along an axis against NumPy: stable, NaN last, any axis and dtype, gradients, errors."""

import numpy as np
import pytest

from lamina import ops
from lamina.spec import ShapeError
from tests.helpers.functions import grad, run

X = np.random.default_rng(0).integers(-4, 5, (4, 6, 5)).astype(np.float64)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_sort(dim: int) -> None:
    values, indices = run(ops.sort, X, dim)
    np.testing.assert_array_equal(indices, np.argsort(X, dim, kind="stable"))
    np.testing.assert_array_equal(values, np.sort(X, dim))
    down, order = run(ops.sort, X, dim, descending=True)
    np.testing.assert_array_equal(order, np.argsort(-X, dim, kind="stable"))
    np.testing.assert_array_equal(down, -np.sort(-X, dim))
    np.testing.assert_array_equal(run(ops.argsort, X, dim, True), order)


@pytest.mark.parametrize("largest", [True, False])
def test_topk(largest: bool) -> None:
    values, indices = run(ops.topk, X, 3, 1, largest)
    order = np.argsort(-X if largest else X, 1, kind="stable")[:, :3]
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(X, order, 1))


def test_nan_is_larger_than_everything() -> None:
    x = np.array([np.nan, 1.0, np.inf, -np.inf])
    assert run(ops.argsort, x).tolist() == [3, 1, 2, 0]
    assert run(ops.argsort, x, descending=True).tolist() == [0, 2, 1, 3]


def test_dtypes() -> None:
    for dtype in (np.int64, np.int8, np.uint8, np.bool_, np.float16):
        x = np.array([1, 0, 1]).astype(dtype)
        values, indices = run(ops.sort, x)
        assert (values.dtype, values.tolist(), indices.tolist()) == (dtype, [0, 1, 1], [1, 0, 2])


def test_without_axes_and_without_elements() -> None:
    values, indices = run(ops.sort, np.array(2.5))
    assert (values.shape, indices.tolist()) == ((), 0)
    assert run(ops.topk, np.array(2.5), 1)[0].shape == ()
    assert run(ops.sort, np.zeros((3, 0)))[0].shape == (3, 0)
    assert run(ops.topk, X, 0)[0].shape == (4, 6, 0)
    np.testing.assert_array_equal(run(ops.msort, X), np.sort(X, 0))


def test_gradients() -> None:
    """The gradient goes to the elements that were chosen."""
    x = np.array([[3.0, 1.0, 2.0], [4.0, 6.0, 5.0]])
    (found,) = grad(lambda x: ops.topk(x, 1)[0] * 2.0, x)
    assert found.tolist() == [[2, 0, 0], [0, 2, 0]]
    (found,) = grad(lambda x: ops.sort(x)[0] * np.array([1.0, 2.0, 3.0]), x)
    assert found.tolist() == [[3, 1, 2], [1, 3, 2]]


def test_errors() -> None:
    with pytest.raises(ShapeError, match=r"topk: k must be in 0 … 5, .* got 6"):
        run(ops.topk, X, 6)
    with pytest.raises(ShapeError, match="sort: axis 3 is outside a tensor of rank 3"):
        run(ops.sort, X, 3)
