"""The scan kernels in the emulator: rows in tiles with a carry, columns by threads, in place, every dtype."""

import shutil

import numpy as np
import pytest

from lamina.backends.cuda import backend
from lamina.backends.reference import run_reference
from lamina.ops.primitives.scan import Scan, ScanKind
from lamina.spec import DType, Policy, Shape, Spec, bfloat16, float16, float32, float64, int64
from tests.helpers.eager import mismatch
from tests.helpers.emulator import contrary, run_plan
from tests.helpers.planned import H200

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
CUDA = backend(H200)


@pytest.mark.parametrize(
    ("shape", "axis", "dtype", "kernel"),
    [
        ((2, 2500), 1, float32, "scan_rows"),  # two tiles and a half: the carry
        ((1, 1024), 1, bfloat16, "scan_rows"),  # one tile, to the element
        ((2, 1025, 3), 1, float64, "scan_rows"),
        ((3, 7), 1, int64, "scan_rows"),
        ((50, 40), 0, float16, "scan_columns"),
        ((2, 3, 300), 1, float32, "scan_columns"),
    ],
)
def test_values(shape: Shape, axis: int, dtype: DType, kernel: str) -> None:
    x = (np.random.default_rng(1).standard_normal(shape) * (9 if dtype == int64 else 1)).astype(dtype.numpy)
    op = Scan("sum", axis)
    plan = CUDA.plan(op, [Spec(shape, dtype)], Policy())
    assert plan.make.programs[0].name == kernel
    (wanted,) = run_reference(op, [x], float64)
    (found,) = run_plan(plan, [x])
    assert not mismatch(found, wanted, dtype)
    with contrary():
        (again,) = run_plan(plan, [x])
    np.testing.assert_array_equal(again, found)


@pytest.mark.parametrize("kind", ["prod", "max", "min", "logsumexp"])
@pytest.mark.parametrize(("shape", "axis"), [((2, 1300), 1), ((40, 33), 0)])
def test_kinds(kind: ScanKind, shape: Shape, axis: int) -> None:
    x = np.random.default_rng(2).standard_normal(shape)
    x = np.exp(x * 0.01) if kind == "prod" else x
    x[0, 7] = np.nan if kind == "max" else x[0, 7]
    op = Scan(kind, axis)
    (wanted,) = run_reference(op, [x])
    (found,) = run_plan(CUDA.plan(op, [Spec(shape, float64)], Policy()), [x])
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


def test_the_kernels_compile() -> None:
    for axis in (0, 1):
        plan = CUDA.plan(Scan("sum", axis), [Spec((64, 4096), bfloat16)], Policy())
        assert all(program.cubin("sm_90") for program in plan.make.programs)
