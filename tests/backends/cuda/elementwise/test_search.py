"""Bisection in the emulator: equal elements, NaN, a row for each or one for all, empty rows."""

import shutil

import numpy as np
import pytest

from lamina.backends.cuda import backend
from lamina.backends.reference import run_reference
from lamina.ops.primitives.search import SearchSorted
from lamina.spec import Policy, Spec, bfloat16, float32
from tests.helpers.emulator import run_plan
from tests.helpers.planned import H200

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
CUDA = backend(H200)


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize(("rows", "size", "width"), [(1, 9, 300), (3, 300, 4), (2, 0, 3)])
def test_values(rows: int, size: int, width: int, right: bool) -> None:
    rng = np.random.default_rng(0)
    ordered = np.sort(rng.integers(-9, 9, (rows, size)).astype(np.float32), -1)
    values = rng.integers(-11, 11, (rows, width)).astype(np.float32)
    values[0, 0] = np.nan
    ordered[:, size // 2 + 1 :] = np.nan
    op = SearchSorted(right)
    plan = CUDA.plan(op, [Spec(ordered.shape, float32), Spec(values.shape, float32)], Policy())
    np.testing.assert_array_equal(
        run_plan(plan, [ordered, values])[0], run_reference(op, [ordered, values])[0]
    )


def test_the_kernel_compiles() -> None:
    plan = CUDA.plan(SearchSorted(), [Spec((1, 9), bfloat16), Spec((1, 40), bfloat16)], Policy())
    assert all(program.cubin("sm_90") for program in plan.make.programs)
