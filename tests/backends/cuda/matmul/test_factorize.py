"""The kernels for factors, systems and determinants in the emulator, against LAPACK."""

import shutil
from typing import Any

import numpy as np
import pytest

from lamina.backends.cuda import backend
from lamina.backends.reference import run_reference
from lamina.ops.primitives.determinant import Cofactors, Determinant
from lamina.ops.primitives.factorize import CholeskyFactor, LinearSolve, LogDeterminant, TriangularSolve
from lamina.spec import DType, Policy, Spec, float32, float64
from tests.helpers.emulator import contrary, run_plan
from tests.helpers.planned import H200

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
CUDA = backend(H200)
RNG = np.random.default_rng(3)


def run(op: Any, *given: Any, dtype: DType = float64) -> list[np.ndarray[Any, Any]]:
    arrays = [np.ascontiguousarray(x, dtype.numpy) for x in given]
    plan = CUDA.plan(op, [Spec(x.shape, dtype) for x in arrays], Policy())
    found = run_plan(plan, arrays)
    with contrary():
        again = run_plan(plan, arrays)
    for a, b in zip(found, again, strict=True):
        np.testing.assert_array_equal(a, b)
    return found


def matrices(*shape: int) -> Any:
    """Far from singular, with rows that elimination exchanges."""
    return RNG.uniform(-0.5, 0.5, shape) + 3 * np.eye(shape[-1])[::-1]


@pytest.mark.parametrize("dtype", [float32, float64])
@pytest.mark.parametrize("shape", [(2, 1, 1), (3, 3), (2, 3, 12, 12), (33, 33)])
def test_as_lapack(shape: tuple[int, ...], dtype: DType) -> None:
    a, b = matrices(*shape), RNG.standard_normal((*shape[:-1], 3))
    whole = a @ a.swapaxes(-1, -2)
    cases: list[Any] = [(LinearSolve(), a, b), (LogDeterminant(), a), (CholeskyFactor(), whole)]
    lower = np.tril(a) + 4 * np.eye(shape[-1])
    cases += [(TriangularSolve(unit=unit), lower / 4, b) for unit in (False, True)]
    cases += [
        (TriangularSolve(upper=True, unit=unit), lower.swapaxes(-1, -2) / 4, b) for unit in (False, True)
    ]
    first, several = b.reshape(-1, *b.shape[-2:])[0], np.ones((5, shape[-1], 2))  # one matrix for all
    cases += [(LinearSolve(), a, first), (TriangularSolve(), lower.reshape(-1, *shape[-2:])[0], several)]
    for op, *given in cases:
        wanted = run_reference(op, [x.astype(dtype.numpy).astype(np.float64) for x in given], float64)
        for x, y in zip(run(op, *given, dtype=dtype), wanted, strict=True):
            error = 1e-12 if dtype == float64 else 3e-6
            np.testing.assert_allclose(
                x, y, rtol=0, atol=error * max(1.0, float(np.abs(y).max())), err_msg=str(op)
            )


def test_bad_pivots() -> None:
    a = np.stack((np.array([[1.0, 2, 0], [2, 4, 0], [0, 0, 1]]), 2 * np.eye(3)))
    x, info = run(LinearSolve(), a, np.ones((2, 3, 1)))
    assert info.tolist() == [2, 0]
    assert np.isnan(x[0]).all()
    np.testing.assert_array_equal(x[1], np.full((3, 1), 0.5))
    assert [y.tolist() for y in run(LogDeterminant(), a[:1])] == [[0], [-np.inf]]
    low, info = run(CholeskyFactor(), np.diag([4.0, -1, 9]))
    assert info == 2
    np.testing.assert_array_equal(low, [[2, 0, 0], [0, np.nan, 0], [0, np.nan, np.nan]])


@pytest.mark.parametrize("dtype", [float32, float64])
@pytest.mark.parametrize("shape", [(2, 1, 1), (3, 3), (2, 2, 6, 6), (17, 17), (0, 2, 2), (2, 0, 0)])
def test_determinants_and_cofactors(shape: tuple[int, ...], dtype: DType) -> None:
    a = RNG.standard_normal(shape)
    for op in (Determinant(), Cofactors()):
        (wanted,) = op.reference(a.astype(dtype.numpy).astype(np.float64))
        error = (1e-11 if dtype == float64 else 3e-6) * float(np.abs(wanted).max(initial=1e-9))
        np.testing.assert_allclose(run(op, a, dtype=dtype)[0], wanted, rtol=0, atol=error)


def test_cofactors_of_singular_matrices() -> None:
    """Of rank N - 1, N - 2 and 0; of what is not finite NaN."""
    left, right = RNG.standard_normal((2, 5, 5))
    ranks = [left[:, :rank] @ right[:rank] for rank in (4, 3, 0)]
    found = run(Cofactors(), np.stack(ranks))[0]
    minor = np.array([
        [(-1) ** (i + j) * np.linalg.det(np.delete(np.delete(ranks[0], i, 0), j, 1)) for j in range(5)]
        for i in range(5)
    ])  # fmt: skip
    np.testing.assert_allclose(found[0], minor, rtol=0, atol=1e-12 * np.abs(minor).max())
    np.testing.assert_allclose(found[1:], 0, atol=1e-12)
    assert np.isnan(run(Cofactors(), np.where(np.eye(3), np.nan, 1))[0]).any()
