"""The kernel that puts rows in another order, in the emulator: words of every width, aligned or not."""

import shutil

import numpy as np
import pytest

from lamina.backends.cuda import backend
from lamina.backends.reference import run_reference
from lamina.ops.primitives.sequence import TakeRows
from lamina.spec import DType, Policy, Spec, as_dtype, bfloat16, bool_, float32, float64, int8
from tests.helpers.emulator import run_plan
from tests.helpers.planned import H200

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
CUDA = backend(H200)


@pytest.mark.parametrize(
    ("dtype", "width", "word"),
    [
        (float32, 8, "Pack"),
        (float64, 3, "u64"),
        (bfloat16, 6, "u32"),
        (bfloat16, 5, "u16"),
        (bool_, 7, "u8"),
        (int8, 32, "Pack"),
    ],
)
def test_values(dtype: DType, width: int, word: str) -> None:
    x = (np.random.default_rng(2).standard_normal((9, width)) * 4).astype(dtype.numpy)
    index = np.array([8, -1, 0, 3, -1, 5, 1])
    inverse = np.array([int(np.argmax(index == r)) if r in index else -1 for r in range(9)])
    arrays = [x, index, inverse]
    plan = CUDA.plan(TakeRows(), [Spec(a.shape, as_dtype(a.dtype)) for a in arrays], Policy())
    assert f"typedef {word}" in plan.make.programs[0].text
    assert all(p.cubin("sm_90") for p in (*plan.make.programs, *plan.make.plain_programs))
    (found,) = run_plan(plan, arrays)
    assert found.tobytes() == run_reference(TakeRows(), arrays)[0].tobytes()
