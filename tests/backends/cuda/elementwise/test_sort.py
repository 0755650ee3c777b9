"""The sort kernels in the emulator: several rows in a tile, runs that are merged, the first few tile by tile."""

import shutil

import numpy as np
import pytest

from lamina.backends.cuda import backend
from lamina.backends.cuda.elementwise import sort
from lamina.backends.reference import run_reference
from lamina.ops.primitives.sort import Sort
from lamina.spec import DType, Policy, Shape, Spec, bfloat16, float16, float32, float64, int8, int64, uint8
from tests.helpers import slow_from
from tests.helpers.emulator import contrary, run_plan
from tests.helpers.planned import H200

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
CUDA = backend(H200)


@pytest.mark.parametrize("descending", slow_from(1, [True, False]))
@pytest.mark.parametrize(
    ("shape", "first", "dtype", "launches"),
    [
        ((7, 3), None, float32, 1),
        ((5, 1), None, int8, 1),
        ((2, 1000), None, uint8, 1),  # ties
        ((3, 1024), 1000, bfloat16, 1),
        ((2, 1025), None, float64, 1),  # all are compared with all
        ((1, 5000), 4990, int64, 1),
        ((3, 4097), 7, bfloat16, 1),
        ((2, 1025), None, float64, -2),
        ((1, 5000), None, int64, -4),  # a run without a partner
        ((2, 3000), 2000, float16, -3),
        ((2, 5000), 4, float32, -2),  # the first four of each tile
        ((1, 9000), 200, int64, -3),
    ],
)
def test_values(
    shape: Shape,
    first: int | None,
    dtype: DType,
    launches: int,
    descending: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """launches: less than 0 where elements are not compared all with all."""
    if launches < 0:
        monkeypatch.setattr(sort, "_MOST_COMPARED", 0)
    rng = np.random.default_rng(1)
    x = rng.integers(0 if dtype == uint8 else -60, 60, shape).astype(dtype.numpy)
    if dtype.is_float:
        x.reshape(-1)[::5] = rng.standard_normal(x.reshape(-1)[::5].shape)
        x.reshape(-1)[:3] = [np.nan, -np.inf, -0.0]
    op = Sort(descending, first)
    plan = CUDA.plan(op, [Spec(shape, dtype)], Policy())
    assert len(plan.make.steps) == abs(launches)
    found = run_plan(plan, [x])
    for y, wanted in zip(found, run_reference(op, [x]), strict=True):
        np.testing.assert_array_equal(y.astype(np.float64), wanted.astype(np.float64))
    with contrary():
        for y, again in zip(found, run_plan(plan, [x]), strict=True):
            np.testing.assert_array_equal(y.view(np.uint8), again.view(np.uint8))


def test_the_kernels_compile() -> None:
    for first in (None, 3):
        plan = CUDA.plan(Sort(True, first), [Spec((4, 4096), bfloat16)], Policy())
        assert all(program.cubin("sm_90") for program in plan.make.programs)


@pytest.mark.parametrize("dtype", [int64, float64], ids=str)
def test_all_bits_of_wide_numbers_count(dtype: DType) -> None:
    """Those that 32 bits hold are equal here, or are those alone that differ."""
    rng = np.random.default_rng(2)
    whole = np.stack([(rng.integers(-3, 3, 64) << 40) + 7, (1 << 40) + rng.permutation(64)])
    x = whole.astype(dtype.numpy) if dtype == int64 else 1.0 + whole * 2.0**-52
    op = Sort(False, None)
    found = run_plan(CUDA.plan(op, [Spec(x.shape, dtype)], Policy()), [x])
    for y, wanted in zip(found, run_reference(op, [x]), strict=True):
        np.testing.assert_array_equal(y, wanted)
