"""The scan kernels in the emulator: rows in tiles with a carry, columns by threads, in place, every dtype."""

import shutil

import numpy as np
import pytest

from lamina.backends.cuda import backend
from lamina.backends.reference import run_reference
from lamina.ops.primitives.cumsum import Cumsum
from lamina.spec import DType, Policy, Shape, Spec, bfloat16, float16, float32, float64, int64
from tests.helpers.eager import mismatch
from tests.helpers.emulator import contrary, run_plan
from tests.helpers.planned import H200

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
CUDA = backend(H200)


@pytest.mark.parametrize(
    ("shape", "axis", "dtype", "kernel"),
    [
        ((2, 2500), 1, float32, "cumsum_rows"),  # two tiles and a half: the carry
        ((1, 1024), 1, bfloat16, "cumsum_rows"),  # one tile, to the element
        ((2, 1025, 3), 1, float64, "cumsum_rows"),
        ((3, 7), 1, int64, "cumsum_rows"),
        ((50, 40), 0, float16, "cumsum_columns"),
        ((2, 3, 300), 1, float32, "cumsum_columns"),
    ],
)
def test_values(shape: Shape, axis: int, dtype: DType, kernel: str) -> None:
    x = (np.random.default_rng(1).standard_normal(shape) * (9 if dtype == int64 else 1)).astype(dtype.numpy)
    op = Cumsum(axis)
    plan = CUDA.plan(op, [Spec(shape, dtype)], Policy())
    assert plan.make.programs[0].name == kernel
    (wanted,) = run_reference(op, [x], float64)
    (found,) = run_plan(plan, [x])
    assert not mismatch(found, wanted, dtype)
    with contrary():
        (again,) = run_plan(plan, [x])
    np.testing.assert_array_equal(again, found)


def test_the_kernels_compile() -> None:
    for axis in (0, 1):
        plan = CUDA.plan(Cumsum(axis), [Spec((64, 4096), bfloat16)], Policy())
        assert all(program.cubin("sm_90") for program in plan.make.programs)
