"""The kernel of one pass for the gradients of norms over short rows, run on a CPU."""

import shutil

import numpy as np
import pytest

from lamina.backends.cuda import backend
from lamina.backends.cuda.launch.program import Launch, Launches, lanes_of
from lamina.backends.cuda.norm.layer_norm_backward import ShortRows
from lamina.backends.reference import run_reference
from lamina.ops.primitives import LayerNormGrad, RmsNormGrad
from lamina.spec import DType, Policy, Spec, as_dtype, bfloat16, float16, float32, float64
from tests.helpers.eager import mismatch
from tests.helpers.emulator import run_plan
from tests.helpers.planned import H200

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
CUDA = backend(H200)
#: Shape, axes of a row, dtype: fewer rows than warps, more than blocks hold at once, several accesses of a lane,
#: several rows of a warp, lanes without an access, rows of odd length.
CASES = [
    ((5, 256), 1, bfloat16),
    ((3, 7, 512), 1, float16),
    ((2500, 128), 1, float32),
    ((2, 3, 4, 256), 2, float32),
    ((9, 64), 1, float64),
    ((7000, 64), 1, bfloat16),
    ((33, 192), 1, bfloat16),
    ((50, 144), 1, float16),
    ((13, 320), 1, bfloat16),
    ((5, 7, 20), 1, bfloat16),
    ((67, 9), 1, bfloat16),
    ((11, 49), 1, float32),
    ((3, 1024), 1, float32),
    ((4, 1024), 1, bfloat16),
    ((6, 1), 1, float32),
]


def names(steps: object) -> list[str]:
    assert isinstance(steps, Launches)
    return [step.program.name for step in steps.steps if isinstance(step, Launch)]


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize(("shape", "rank", "dtype"), CASES, ids=str)
def test_gradients_of_short_rows(shape: tuple[int, ...], rank: int, dtype: DType, centred: bool) -> None:
    rng = np.random.default_rng(0)
    op = LayerNormGrad(rank) if centred else RmsNormGrad(rank)
    lead, row, wide = shape[: len(shape) - rank], shape[len(shape) - rank :], dtype.compute.numpy
    arrays = [rng.standard_normal(shape).astype(dtype.numpy) for _ in range(2)]
    arrays.append(rng.standard_normal(row).astype(wide))
    arrays += [rng.standard_normal(lead).astype(wide)] * centred
    arrays.append(rng.uniform(0.5, 2, lead).astype(wide))
    plan = CUDA.plan(op, [Spec(a.shape, as_dtype(a.dtype)).fixed for a in arrays], Policy())
    assert names(plan.make) == ["row_grad", "row_grad_totals"]
    for misaligned in (False, True):  # addresses between vectors get the kernels of several passes
        found = run_plan(plan, arrays, misaligned=misaligned)
        wanted = run_reference(op, arrays, float64)
        for y, ref, spec in zip(found, wanted, plan.outputs, strict=True):
            assert not mismatch(y, ref, spec.dtype), f"{op} {shape} {dtype} misaligned={misaligned}"


@pytest.mark.parametrize(
    ("count", "dtype"), [(1152, float32), (1056, bfloat16), (576, float64), (99, float64)]
)
def test_other_rows_take_several_passes(count: int, dtype: DType) -> None:
    x = Spec((4, count), dtype).fixed
    assert ShortRows(x, 4, count, True, H200.machine).fits == (count == 99)


@pytest.mark.parametrize(
    ("count", "lanes", "turns"),
    [
        (64, 8, 1),
        (144, 8, 3),
        (192, 8, 3),
        (240, 32, 1),
        (320, 16, 3),
        (768, 32, 3),
        (1024, 32, 4),
        (16, 2, 1),
        (8, 1, 1),
    ],
)
def test_lanes_share_rows_with_few_idle(count: int, lanes: int, turns: int) -> None:
    rows = ShortRows(Spec((4096, count), bfloat16).fixed, 4096, count, True, H200.machine)
    assert (rows.lanes, rows.turns) == (lanes, turns)
    assert lanes_of(count // 8, 4) == (lanes, turns)
    assert rows.ahead
