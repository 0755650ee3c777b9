"""The kernels for LU factors and their row orders in the emulator, against the definitions in NumPy."""

import shutil
from typing import Any

import numpy as np
import pytest

from lamina.backends.cuda import backend
from lamina.ops.primitives.lu import PivotedFactor, RowOrder
from lamina.spec import DType, Policy, Shape, Spec, float32, float64, int32
from tests.helpers.emulator import contrary, run_plan
from tests.helpers.planned import H200

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
CUDA = backend(H200)
RNG = np.random.default_rng(3)


def run(op: Any, x: np.ndarray[Any, Any], dtype: DType) -> list[np.ndarray[Any, Any]]:
    plan = CUDA.plan(op, [Spec(x.shape, dtype)], Policy())
    given = [np.ascontiguousarray(x, dtype.numpy)]
    found = run_plan(plan, given)
    with contrary():
        again = run_plan(plan, given)
    for a, b in zip(found, again, strict=True):
        np.testing.assert_array_equal(a, b)
    return found


@pytest.mark.parametrize("dtype", [float32, float64])
@pytest.mark.parametrize("shape", [(2, 1, 1), (3, 3), (2, 3, 12, 5), (4, 9), (33, 33), (0, 2, 2), (3, 0)])
def test_factors(shape: Shape, dtype: DType) -> None:
    x = RNG.standard_normal(shape).astype(dtype.numpy)
    factors, pivots = run(PivotedFactor(), x, dtype)
    wanted, places = PivotedFactor().reference(x.astype(np.float64))
    np.testing.assert_array_equal(pivots, places)
    np.testing.assert_allclose(factors, wanted, rtol=0, atol=1e-11 if dtype == float64 else 2e-5)


def test_a_column_of_zeros_is_not_divided() -> None:
    factors, pivots = run(PivotedFactor(), np.array([[0.0, 1, 2], [0, 3, 1], [0, 6, 4]]), float64)
    assert pivots.tolist() == [1, 3, 3]
    np.testing.assert_allclose(factors, [[0, 1, 2], [0, 6, 4], [0, 0.5, -1]])
    x = np.array([[1.0, 2, 3], [np.inf, 5, 6], [np.nan, 8, 9]])
    assert run(PivotedFactor(), x, float64)[1][0] == PivotedFactor().reference(x)[1][0] == 3  # as in NumPy


@pytest.mark.parametrize("inverse", [False, True])
def test_orders_of_rows(inverse: bool) -> None:
    op = RowOrder(6, inverse)
    pivots = RNG.integers(1, 7, (300, 4)).astype(np.int32)
    pivots[0] = (0, 9, -3, 2)  # what names no row exchanges nothing
    np.testing.assert_array_equal(run(op, pivots, int32)[0], op.reference(pivots)[0])
    np.testing.assert_array_equal(run(op, pivots[:, :0], int32)[0], [range(6)] * 300)
