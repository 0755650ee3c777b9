"""Factors and systems as ops: bad pivots, operands without leading axes, refusals."""

import numpy as np
import pytest

from lamina.ops.core import bind
from lamina.ops.primitives.factorize import CholeskyFactor, LinearSolve, LogDeterminant, TriangularSolve
from lamina.spec import DTypeError, ShapeError, Spec, float16, float32, float64

RNG = np.random.default_rng(2)


def test_one_matrix_of_a_batch_has_no_factor() -> None:
    """The others are computed, and of the bad one the columns before the bad pivot."""
    good, bad = np.array([[4.0, 2, 0], [2, 5, 0], [0, 0, 1]]), np.array([[4.0, 2, 2], [2, 1, 0], [2, 0, 9]])
    low, info = (x.numpy() for x in bind(CholeskyFactor(), np.stack((good, bad))))
    assert info.tolist() == [0, 2]
    np.testing.assert_allclose(low[0], np.linalg.cholesky(good))
    np.testing.assert_array_equal(low[1], [[2, 0, 0], [1, np.nan, 0], [1, np.nan, np.nan]])


def test_one_matrix_of_a_batch_is_singular() -> None:
    a, b = np.stack((np.eye(2), np.ones((2, 2)))), np.array([[3.0], [5]])
    x, info = (y.numpy() for y in bind(LinearSolve(), a, b))
    assert info.tolist() == [0, 2]
    np.testing.assert_array_equal(x, [b, np.full((2, 1), np.nan)])
    assert [y.tolist() for y in bind(LogDeterminant(), a)] == [[1, 0], [0, -np.inf]]


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_the_other_triangle_is_not_read(upper: bool, unit: bool) -> None:
    a, b = RNG.normal(size=(2, 4, 4)) + 3 * np.eye(4), RNG.normal(size=(4, 3))
    whole = np.triu(a) if upper else np.tril(a)
    if unit:
        whole[:, range(4), range(4)] = 1
    (x,) = bind(TriangularSolve(upper, unit), a, b)
    np.testing.assert_allclose(whole @ x.numpy(), np.stack((b, b)), atol=1e-12)


def test_refusals() -> None:
    with pytest.raises(
        ShapeError, match=r"cholesky_factor: needs square matrices \[\.\.\., N, N\], got f32\[2,3\]"
    ):
        CholeskyFactor().infer(Spec((2, 3), float32))
    with pytest.raises(ShapeError, match=r"linear_solve: A f32\[2,3,3\] and B f32\[4,3,1\] do not fit"):
        LinearSolve().infer(Spec((2, 3, 3), float32), Spec((4, 3, 1), float32))
    with pytest.raises(DTypeError, match="triangular_solve: input 1 is float64"):
        TriangularSolve().infer(Spec((3, 3), float32), Spec((3, 1), float64))
    with pytest.raises(DTypeError, match="log_determinant: dtype float16"):
        LogDeterminant().infer(Spec((3, 3), float16))
