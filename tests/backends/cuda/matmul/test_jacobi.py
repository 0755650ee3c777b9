"""The kernels for singular values and eigenvalues in the emulator: what they are must hold, whatever the matrix."""

import shutil
from typing import Any

import numpy as np
import pytest

from lamina.backends.cuda import backend
from lamina.backends.reference import run_reference
from lamina.ops.primitives.decompose import SingularValues, SymmetricEigen
from lamina.spec import DType, Policy, Shape, Spec, float32, float64
from tests.helpers.emulator import contrary, run_plan
from tests.helpers.planned import H200

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
CUDA = backend(H200)
RNG = np.random.default_rng(3)


def run(op: Any, x: np.ndarray[Any, Any], dtype: DType) -> list[np.ndarray[Any, Any]]:
    plan = CUDA.plan(op, [Spec(x.shape, dtype)], Policy())
    found = run_plan(plan, [x.astype(dtype.numpy)])
    with contrary():
        again = run_plan(plan, [x.astype(dtype.numpy)])
    for a, b in zip(found, again, strict=True):
        np.testing.assert_array_equal(a, b)
    return [y.astype(np.float64) for y in found]


def near(found: Any, wanted: Any, dtype: DType) -> None:
    error = 1e-12 if dtype == float64 else 2e-6
    np.testing.assert_allclose(
        found, wanted, rtol=0, atol=error * max(1.0, float(np.abs(wanted).max(initial=0)))
    )


@pytest.mark.parametrize("dtype", [float32, float64])
@pytest.mark.parametrize("shape", [(3, 1, 1), (2, 2, 2), (7, 7), (2, 3, 12, 12), (33, 33)])
def test_eigenvalues(shape: Shape, dtype: DType) -> None:
    x = RNG.standard_normal(shape)
    w, v = run(SymmetricEigen(), x, dtype)
    whole = (x.astype(dtype.numpy) + np.swapaxes(x.astype(dtype.numpy), -1, -2)).astype(np.float64) / 2
    near(w, np.linalg.eigvalsh(whole), dtype)
    near(np.swapaxes(v, -1, -2) @ v, np.broadcast_to(np.eye(shape[-1]), shape), dtype)
    near(v * w[..., None, :] @ np.swapaxes(v, -1, -2), whole, dtype)
    near(v, run_reference(SymmetricEigen(), [x], float64)[1], float32)


@pytest.mark.parametrize("dtype", [float32, float64])
@pytest.mark.parametrize("shape", [(3, 1, 1), (2, 2, 2), (7, 5), (2, 20, 9), (31, 1)])
def test_singular_values(shape: Shape, dtype: DType) -> None:
    x = RNG.standard_normal(shape)
    u, s, v = run(SingularValues(), x, dtype)
    near(s, np.linalg.svd(x, compute_uv=False), dtype)
    unit = np.broadcast_to(np.eye(shape[-1]), v.shape)
    near(np.swapaxes(u, -1, -2) @ u, unit, dtype)
    near(np.swapaxes(v, -1, -2) @ v, unit, dtype)
    near(u * s[..., None, :] @ np.swapaxes(v, -1, -2), x, dtype)


def test_matrices_of_less_rank_equal_values_and_what_is_not_finite() -> None:
    flat = RNG.standard_normal((6, 2)) @ RNG.standard_normal((2, 4))
    for x in (flat, np.zeros((5, 3)), np.eye(4), np.diag([1e-30, 1.0, 1e-30])):
        u, s, v = run(SingularValues(), x, float64)
        near(s, np.linalg.svd(x, compute_uv=False), float64)
        near(u.T @ u, np.eye(x.shape[1]), float64)
        near(u * s @ v.T, x, float64)
    for x in (np.zeros((3, 3)), -np.eye(4), np.diag([2.0, -2.0, 2.0, 0.0])):
        w, v = run(SymmetricEigen(), x, float64)
        near(w, np.linalg.eigvalsh(x), float64)
        near(v * w @ v.T, x, float64)
    x = np.eye(3)
    x[1, 2] = np.inf
    batch = np.stack((np.eye(3), x))
    for op in (SingularValues(), SymmetricEigen()):
        for y in run(op, batch, float32):
            assert np.isfinite(y[0]).all()
            assert np.isnan(y[1]).all()
