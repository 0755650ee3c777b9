"""The kernels on bags of rows, in the emulator: bags of no rows, rows in no bag, every type."""

import shutil
from typing import Any

import numpy as np
import pytest

from lamina.backends.cuda import backend
from lamina.backends.reference import run_reference
from lamina.ops.primitives.embedding_bag import BagMax, BagSpread, BagSum
from lamina.spec import DType, Policy, Spec, as_dtype, bfloat16, float16, float32, float64, int64
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
