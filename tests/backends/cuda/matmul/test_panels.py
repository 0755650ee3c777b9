"""Factors by panels in the emulator, against LAPACK: incomplete panels, panels that exceed shared memory."""

import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lamina.backends.cuda import backend
from lamina.backends.cuda.launch.program import Launches
from lamina.backends.cuda.matmul.panels import PANEL
from lamina.backends.reference import run_reference
from lamina.ops.core import Op
from lamina.ops.primitives.determinant import Determinant
from lamina.ops.primitives.factorize import CholeskyFactor, LinearSolve, LogDeterminant, TriangularSolve
from lamina.ops.primitives.lu import PivotedFactor
from lamina.ops.primitives.qr import CompleteOrthogonalFactor, OrthogonalFactor, TriangularFactor
from lamina.runtime import Device, Machine
from lamina.spec import DType, Policy, Spec, float32, float64
from tests.helpers.emulator import contrary, run_plan
from tests.helpers.planned import H200

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
RNG = np.random.default_rng(5)
Case = tuple[Op, tuple[np.ndarray[Any, Any], ...]]


def run(op: Op, given: Any, dtype: DType = float64, device: Device = H200) -> list[np.ndarray[Any, Any]]:
    arrays = [np.ascontiguousarray(x, dtype.numpy) for x in given]
    plan = backend(device).plan(op, [Spec(x.shape, dtype) for x in arrays], Policy())
    assert plan.label.endswith("panels")
    assert isinstance(plan.make, Launches)
    assert plan.make.launches > 1 or isinstance(op, TriangularSolve)
    return run_plan(plan, arrays)


def near(op: Op, given: Any, dtype: DType = float64, **more: Any) -> None:
    wanted = run_reference(op, [x.astype(dtype.numpy).astype(np.float64) for x in given], float64)
    for x, y in zip(run(op, given, dtype, **more), wanted, strict=True):
        error = (1e-11 if dtype == float64 else 3e-6) * max(1.0, float(np.abs(y).max()))
        np.testing.assert_allclose(x, y, rtol=0, atol=error, err_msg=str(op))


def systems(lead: tuple[int, ...], n: int, k: int) -> list[Case]:
    """Of all ops on square matrices; rows are exchanged across panels."""
    a, b = RNG.standard_normal((*lead, n, n)), RNG.standard_normal((*lead, n, k))
    a[..., ::2, :] *= 0.1
    low = np.tril(a) + 6 * np.eye(n)
    triangles: list[Case] = []
    for unit in (False, True):
        scaled = low / 9 if unit else low
        triangles += [
            (TriangularSolve(False, unit), (scaled, b)),
            (TriangularSolve(True, unit), (scaled.mT, b)),
        ]
    return [
        (CholeskyFactor(), (a @ a.mT + np.eye(n),)),
        *triangles,
        (LinearSolve(), (a + np.eye(n), b)),
        (LogDeterminant(), (a,)),
        (Determinant(), (a / 3,)),
        (PivotedFactor(), (a,)),
        (OrthogonalFactor(), (a,)),
    ]


def test_as_lapack() -> None:
    for op, given in systems((2,), 70, 11):
        near(op, given)


@pytest.mark.slow
def test_in_every_order_of_threads() -> None:
    """Every bit is the same."""
    for op, given in systems((), 33, 1):
        near(op, given)
        with contrary():
            again = run(op, given)
        for a, b in zip(run(op, given), again, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_in_float32() -> None:
    for op, given in systems((), 40, 3):
        near(op, given, float32)


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param((100, 40), marks=pytest.mark.slow),
        (40, 100),
        pytest.param((2, 34, 33), marks=pytest.mark.slow),
    ],
)
def test_matrices_that_are_not_square(shape: tuple[int, ...]) -> None:
    a = RNG.standard_normal(shape)
    for op in (PivotedFactor(), OrthogonalFactor(), TriangularFactor(), CompleteOrthogonalFactor()):
        near(op, (a,))


@pytest.mark.slow
def test_one_operand_for_all_systems() -> None:
    a, b = RNG.standard_normal((2, 40, 40)) + 9 * np.eye(40), RNG.standard_normal((2, 40, 3))
    for op in (LinearSolve(), TriangularSolve()):
        near(op, (a[0], b))
        near(op, (a, b[0]))


@pytest.mark.parametrize("kilobytes", [30, 26, 21])
def test_panels_of_fewer_columns_and_outside_of_shared_memory(kilobytes: int) -> None:
    """16 and then 32 columns, 8 and then more, and none that fits."""
    small = Device("cuda", machine=replace(Machine.named("h200"), shared_memory=kilobytes << 10))
    for op, given in systems((), 70, 2):
        if isinstance(op, PivotedFactor | OrthogonalFactor):
            near(op, given, device=small)


def test_systems_of_which_no_column_fits_are_one_blocks_work() -> None:
    small = Device("cuda", machine=replace(Machine.named("h200"), shared_memory=26 << 10))
    for n, panels in ((700, True), (800, False)):
        specs = [Spec((n, n), float64), Spec((n, 1), float64)]
        plan = backend(small).plan(TriangularSolve(), specs, Policy())
        assert plan.label.endswith("panels") == panels


def test_bad_pivots() -> None:
    """In the second panel."""
    n = PANEL + 8
    whole = 2 * np.eye(n)
    whole[n - 3, n - 3] = -1
    low, info = run(CholeskyFactor(), (whole,))
    assert info == n - 2
    assert np.isfinite(low[:, : n - 3]).all()
    assert np.isnan(np.diagonal(low)[n - 3 :]).all()
    assert not np.triu(low, 1).any()
    singular = RNG.standard_normal((2, n, n))
    singular[0, :, n - 2] = singular[0, :, 3] = 0
    x, info = run(LinearSolve(), (singular, np.ones((2, n, 1))))
    assert info.tolist() == [4, 0]
    assert np.isnan(x[0]).all()
    assert np.isfinite(x[1]).all()
    assert run(Determinant(), (singular,))[0][0] == 0
    sign, size = run(LogDeterminant(), (singular,))
    assert (sign[0], size[0]) == (0, -np.inf)
    factors, pivots = run(PivotedFactor(), (singular[:1],))
    np.testing.assert_allclose(
        factors, run_reference(PivotedFactor(), [singular[:1]], float64)[0], atol=1e-12
    )
    assert pivots[0, 3] == 4


def test_products_of_pivots_neither_overflow_nor_vanish() -> None:
    n = PANEL + 1
    diagonal = np.full(n, 1e200)
    diagonal[::2] = 1e-200
    diagonal[0] = -3
    (found,) = run(Determinant(), (np.diag(diagonal),))
    np.testing.assert_allclose(found, -3, rtol=1e-12)
    assert run(Determinant(), (np.eye(n) * 1e200,))[0] == np.inf
    assert run(Determinant(), (np.eye(n) * 1e-200,))[0] == 0


@pytest.mark.slow
def test_what_is_not_finite_is_not_lost() -> None:
    n = PANEL + 4
    for op, given in systems((), n, 2):
        x = given[0].copy()
        x[n - 2, 1] = x[1, n - 2] = np.nan
        reached = run_reference(op, [x, *given[1:]], float64)
        for y, must in zip(run(op, (x, *given[1:])), reached, strict=True):
            assert not (np.isfinite(y) & np.isnan(must.astype(np.float64))).any(), str(op)
