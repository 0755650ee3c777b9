"""The kernel of unevenly spaced maxima in the emulator: one to three axes, windows for all planes and for each."""

import shutil

import numpy as np
import pytest

from lamina.backends.cuda import backend
from lamina.ops.primitives import RegionMax
from lamina.ops.primitives.region_pool import adaptive_bounds
from lamina.spec import DType, Policy, Shape, Spec, as_dtype, bfloat16, float32, float64
from tests.helpers.emulator import run_plan
from tests.helpers.planned import H200

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
CUDA = backend(H200)


def _check(op: RegionMax, *arrays: np.ndarray) -> None:
    specs = [Spec(a.shape, as_dtype(a.dtype)) for a in arrays]
    found = run_plan(CUDA.plan(op, specs, Policy()), arrays)
    for mine, wanted in zip(found, op.reference(*arrays), strict=True):
        np.testing.assert_array_equal(mine, wanted)


@pytest.mark.feature("F118")
@pytest.mark.parametrize(
    ("shape", "output", "dtype"),
    [
        ((2, 3, 7), (3,), float32), ((2, 3, 7, 5), (3, 4), bfloat16), ((1, 2, 5, 4, 7), (2, 3, 4), float64),
        ((0, 3, 7), (2,), float32),
    ],
)  # fmt: skip
def test_adaptive_windows(shape: Shape, output: Shape, dtype: DType) -> None:
    x = np.random.default_rng(0).integers(-3, 4, shape).astype(dtype.numpy)  # with ties: the first one counts
    _check(RegionMax(output), x, *adaptive_bounds(shape[2:], output))


def test_windows_of_each_plane_and_nan() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 2, 6, 5)).astype(np.float32)
    x[0, 1, 2:4, 1] = np.nan
    x[1, 0] = -np.inf
    starts = np.stack([np.r_[rng.integers(0, 5, 2), rng.integers(0, 4, 2)] for _ in range(4)])
    _check(RegionMax((2, 2)), x, starts, starts + rng.integers(1, 3, starts.shape).clip(max=2))


def test_the_kernel_compiles() -> None:
    bounds = [Spec(b.shape, as_dtype(b.dtype)) for b in adaptive_bounds((7, 5), (3, 4))]
    plan = CUDA.plan(RegionMax((3, 4)), [Spec((2, 3, 7, 5), bfloat16), *bounds], Policy())
    assert all(program.cubin("sm_90") for program in plan.make.programs)
