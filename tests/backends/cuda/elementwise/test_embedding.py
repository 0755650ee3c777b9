"""The gradient of embeddings in the emulator: runs of equal indices within a chunk, over its end, and over many."""

import shutil

import numpy as np
import pytest

from lamina.backends.cuda import backend
from lamina.backends.cuda.elementwise.embedding import CHUNK
from lamina.backends.reference import run_reference
from lamina.ops.primitives.embedding import EmbeddingGrad
from lamina.spec import DType, Policy, Spec, as_dtype, bfloat16, float32, float64, int32, int64
from tests.helpers.eager import mismatch
from tests.helpers.emulator import contrary, run_plan
from tests.helpers.planned import H200

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
CUDA = backend(H200)
RNG = np.random.default_rng(0)

#: Sorted: a run that is a chunk, one of three, one within a chunk, one over an end, no row 4, short ones, and none.
RUNS = {0: CHUNK, 1: 3 * CHUNK, 2: CHUNK // 2, 3: CHUNK, 5: 4, 6: 1, 7: 3, -1: 2}


@pytest.mark.feature("F065")
@pytest.mark.parametrize(
    ("kind", "dtype", "width"), [(int64, float32, 3), (int32, bfloat16, 130), (int64, float64, 1)]
)
def test_gradient(kind: DType, dtype: DType, width: int) -> None:
    """In any order of the threads the sums have the same bits; -1 and 7 name no row."""
    index = RNG.permutation(np.repeat([*RUNS], [*RUNS.values()])).astype(kind.numpy)
    g = RNG.standard_normal((len(index), width)).astype(dtype.numpy)
    op = EmbeddingGrad(7)
    plan = CUDA.plan(op, [Spec(a.shape, as_dtype(a.dtype)) for a in (g, index)], Policy())
    (found,) = run_plan(plan, [g, index])
    (wanted,) = run_reference(op, [g, index], float64)
    assert not mismatch(found, wanted, dtype)
    if dtype == float32:
        with contrary():
            (again,) = run_plan(plan, [g, index])
        np.testing.assert_array_equal(again, found)


def test_work_grows_with_the_number_of_indices() -> None:
    """Blocks by chunks of indices and columns; nobody compares all indices with all."""
    g, index = Spec((100_000, 256), float32), Spec((100_000,), int64)
    plan = CUDA.plan(EmbeddingGrad(50_000), [g, index], Policy())
    sums = next(
        s for s in plan.make.steps if getattr(s, "program", None) and s.program.name == "embedding_grad"
    )
    assert sums.grid == (100_000 // CHUNK * 2,)
    assert plan.workspace < 100_000 * (24 + 256 * 4 // 8)
