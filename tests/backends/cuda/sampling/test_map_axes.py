"""The kernel of linear maps in the emulator: rows of several planes, vectors along inner axes, several passes."""

import shutil

import numpy as np
import pytest

from lamina.backends.cuda import backend
from lamina.backends.reference import run_reference
from lamina.ops.primitives.axis_map import AxisMap
from lamina.ops.primitives.map_axes import MapAxes
from lamina.spec import DType, Policy, Shape, Spec, bfloat16, channels_last, float16, float32, float64, int8
from tests.helpers.eager import mismatch
from tests.helpers.emulator import run_plan
from tests.helpers.planned import H200

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
CUDA = backend(H200)
UP = AxisMap("linear", 6, 11, (6 / 11, 0))
DOWN = AxisMap("cubic-antialias", 33, 5, (33 / 5, 0))
EVEN = AxisMap("reflect", 6, 10, (2,))
TWICE, NEAREST = AxisMap("linear", 6, 12, (0.5, 0)), AxisMap("nearest", 6, 12, (0.5,))


@pytest.mark.parametrize(
    ("shape", "maps", "dtype", "launches"),
    [
        ((2, 3, 6, 6), (None, None, UP, UP), float32, 1),
        ((2, 8, 6, 6), (None, None, UP, UP.adjoint.adjoint), bfloat16, 1),
        ((2, 3, 11, 11), (None, None, UP.adjoint, UP.adjoint), float64, 1),
        ((1, 2, 33, 33), (None, None, DOWN, DOWN), float16, 2),
        ((2, 6, 3, 6), (None, UP, None, EVEN), float32, 1),  # the axis between is mapped to itself
        ((6, 2, 2, 6), (UP, None, None, EVEN), float32, 2),  # too far apart for one launch
        ((2, 6, 6), (None, EVEN, EVEN), int8, 1),
        ((1, 6, 33, 6), (None, UP, DOWN, EVEN), float32, 3),  # each axis once, of three
    ],
)
@pytest.mark.parametrize("last", [False, True])
def test_values(
    shape: Shape, maps: tuple[AxisMap | None, ...], dtype: DType, launches: int, last: bool
) -> None:
    x = (np.random.default_rng(0).standard_normal(shape) * (40 if dtype == int8 else 1)).astype(dtype.numpy)
    op = MapAxes(maps)
    plan = CUDA.plan(op, [Spec(shape, dtype, channels_last(shape) if last else None)], Policy())
    assert last or len(plan.make.steps) == launches
    (wanted,) = run_reference(op, [x], float64)
    for misaligned in (False, True):
        (found,) = run_plan(plan, [x], misaligned=misaligned)
        assert not mismatch(found, wanted, dtype)


def test_many_planes_share_a_thread() -> None:
    """Four rows of other planes by one thread, the last thread with fewer."""
    shape = (7, 37, 30, 6)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    op = MapAxes((None, None, AxisMap("nearest", 30, 120, (0.25,)), UP))
    plan = CUDA.plan(op, [Spec(shape, float32)], Policy())
    assert "#define EACH 4\n" in plan.make.programs[0].text
    (found,) = run_plan(plan, [x])
    assert not mismatch(found, run_reference(op, [x], float64)[0], float32)


@pytest.mark.parametrize(
    ("maps", "dtype", "rows"),
    [
        ((None, None, None, TWICE), float32, 4),
        ((None, None, UP, TWICE), float32, 4),
        ((None, NEAREST, UP, TWICE), bfloat16, 4),
        ((None, None, NEAREST, NEAREST), float16, 4),
        ((None, TWICE, NEAREST, NEAREST), float64, 2),
        ((None, NEAREST, NEAREST, NEAREST), int8, 4),
        ((None, NEAREST, None, EVEN), float32, 2),
        ((None, None, None, UP), float32, 1),
    ],
)
def test_adjacent_rows_share_a_thread(maps: tuple[AxisMap | None, ...], dtype: DType, rows: int) -> None:
    shape = (3, 6, 6, 6)
    x = (np.random.default_rng(0).standard_normal(shape) * (40 if dtype == int8 else 1)).astype(dtype.numpy)
    plan = CUDA.plan(MapAxes(maps), [Spec(shape, dtype)], Policy())
    assert f"#define ROWS {rows}\n" in plan.make.programs[0].text
    (wanted,) = run_reference(MapAxes(maps), [x], float64)
    for misaligned in (False, True):
        (found,) = run_plan(plan, [x], misaligned=misaligned)
        assert not mismatch(found, wanted, dtype)


def test_nothing_to_read_gives_zeros() -> None:
    back = AxisMap("patches", 4, 0, (3, 1, 0, 1)).adjoint
    plan = CUDA.plan(MapAxes((None, back)), [Spec((2, 0), float32)], Policy())
    (found,) = run_plan(plan, [np.zeros((2, 0), np.float32)])
    np.testing.assert_array_equal(found, np.zeros((2, 4)))


def test_no_maps_copy() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (found,) = run_plan(CUDA.plan(MapAxes((None, None)), [Spec((2, 3), float32)], Policy()), [x])
    np.testing.assert_array_equal(found, x)


def test_the_kernel_compiles() -> None:
    for maps, dtype in (
        ((None, UP, EVEN), bfloat16),
        ((None, EVEN, EVEN), int8),
        ((DOWN, None, UP), float64),
        ((None, UP, TWICE), bfloat16),
        ((NEAREST, NEAREST, NEAREST), int8),
    ):
        shape = tuple(4 if m is None else m.source for m in maps)
        plan = CUDA.plan(MapAxes(maps), [Spec(shape, dtype)], Policy())
        assert all(program.cubin("sm_90") for program in (*plan.make.programs, *plan.make.plain_programs))
