"""The kernels on bags of rows, in the emulator: bags of no rows, rows in no bag, every type."""

import shutil
from typing import Any

import numpy as np
import pytest

from lamina.backends.cuda import backend
from lamina.backends.reference import run_reference
from lamina.ops.primitives.embedding_bag import BagMax, BagSpread, BagSum, EmbeddingSum
from lamina.spec import DType, Policy, Spec, as_dtype, bfloat16, float16, float32, float64, int32, int64
from tests.helpers.eager import mismatch
from tests.helpers.emulator import run_plan
from tests.helpers.planned import H200

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
CUDA = backend(H200)
STARTS = np.array([1, 4, 4, 40, 41])


TYPES = (float32, float64, bfloat16, float16, int64)
OPS: tuple[Any, ...] = (BagSum(), BagMax(), BagSpread(43))


@pytest.mark.parametrize(
    ("op", "dtype"), [(op, dtype) for op in OPS for dtype in TYPES if dtype in op.dtypes], ids=str
)
def test_values(op: Any, dtype: DType) -> None:
    rows = 4 if isinstance(op, BagSpread) else 43
    x = np.random.default_rng(2).integers(-9, 9, (rows, 37)).astype(dtype.numpy)  # sums are exact
    if isinstance(op, BagMax):
        x[7, 3] = np.nan
    plan = CUDA.plan(op, [Spec(a.shape, as_dtype(a.dtype)) for a in (x, STARTS)], Policy())
    assert all(p.cubin("sm_90") for p in plan.make.programs)
    found, wanted = run_plan(plan, [x, STARTS]), run_reference(op, [x, STARTS])
    assert len(found) == len(wanted)
    for y, right in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(y, np.float64), np.asarray(right, np.float64))


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize(
    ("dtype", "index", "width", "each"),
    [
        (float32, int64, 12, 5),
        (float64, int32, 7, 16),
        (bfloat16, int64, 16, 3),
        (float16, int32, 10, 1),
        (float32, int64, 3, 0),
    ],
)
def test_rows_are_summed_as_they_are_looked_up(
    dtype: DType, index: DType, width: int, each: int, mean: bool
) -> None:
    rng = np.random.default_rng(0)
    table = rng.standard_normal((9, width)).astype(dtype.numpy)
    places = rng.integers(0, 9, (301, each)).astype(index.numpy)
    op = EmbeddingSum(mean)
    plan = CUDA.plan(op, [Spec(table.shape, dtype), Spec(places.shape, index)], Policy())
    programs = (*plan.make.programs, *plan.make.plain_programs)
    assert all(p.cubin("sm_90") for p in programs)
    (wanted,) = run_reference(op, [table, places], float64)
    for misaligned in (False, True):
        (found,) = run_plan(plan, [table, places], misaligned=misaligned)
        assert not mismatch(found, wanted, dtype)


def test_a_row_that_is_not_there_gives_nan() -> None:
    table, places = np.ones((3, 4), np.float32), np.array([[0, 1], [2, 3], [-1, 0], [1 << 40, 0]])
    plan = CUDA.plan(EmbeddingSum(), [Spec((3, 4), float32), Spec((4, 2), int64)], Policy())
    (found,) = run_plan(plan, [table, places])
    assert (found[0].tolist(), np.isnan(found[1:]).all()) == ([2.0] * 4, True)
