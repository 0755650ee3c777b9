"""The kernels for orthogonal and triangular factors in the emulator, against LAPACK."""

import shutil
from typing import Any

import numpy as np
import pytest

from lamina.backends.cuda import backend
from lamina.ops.primitives.qr import CompleteOrthogonalFactor, OrthogonalFactor, TriangularFactor
from lamina.spec import DType, Policy, Shape, Spec, float32, float64
from tests.helpers.emulator import contrary, run_plan
from tests.helpers.planned import H200

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
CUDA = backend(H200)
RNG = np.random.default_rng(3)
OPS = (OrthogonalFactor(), TriangularFactor(), CompleteOrthogonalFactor())


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
@pytest.mark.parametrize(
    "shape", [(2, 1, 1), (3, 3), (2, 3, 12, 5), (4, 9), (33, 33), (3, 1), (1, 3), (0, 2, 2), (3, 0)]
)
def test_as_lapack(shape: Shape, dtype: DType) -> None:
    x = RNG.standard_normal(shape).astype(dtype.numpy)
    for op in OPS:
        wanted = op.reference(x.astype(np.float64))
        for found, y in zip(run(op, x, dtype), wanted, strict=True):
            np.testing.assert_allclose(found, y, rtol=0, atol=1e-12 if dtype == float64 else 3e-6)


def test_columns_that_are_not_reflected() -> None:
    """Zeros below the diagonal, negative diagonals, a column of zeros, NaN."""
    x = np.array([[-2.0, 1, 0, 1], [0, 0, 0, 2], [0, 3, 0, -1], [0, 4, 0, 1]])
    for op in OPS:
        for found, y in zip(run(op, x, float64), op.reference(x), strict=True):
            np.testing.assert_allclose(found, y, atol=1e-14)
    x[2, 2] = np.nan
    assert np.isnan(run(TriangularFactor(), x, float64)[0][2:, 2:]).any()
