"""The gather and scatter kernels in the emulator: accesses, few and many indices, places that collide."""

import shutil

import numpy as np
import pytest

from lamina.backends.cuda import backend
from lamina.backends.cuda.elementwise import gather
from lamina.backends.reference import run_reference
from lamina.ops.core import Op
from lamina.ops.primitives.gather import Gather, GatherGrad, Scatter, ScatterMode
from lamina.spec import (
    DType,
    Policy,
    Shape,
    Spec,
    as_dtype,
    bfloat16,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
)
from tests.helpers.eager import mismatch
from tests.helpers.emulator import contrary, run_plan
from tests.helpers.planned import H200

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
CUDA = backend(H200)
RNG = np.random.default_rng(0)


def _check(op: Op, arrays: list[np.ndarray], kernel: str, misaligned: bool = False) -> None:
    plan = CUDA.plan(op, [Spec(a.shape, as_dtype(a.dtype)) for a in arrays], Policy())
    assert plan.make.programs[-1].name == kernel
    (wanted,) = run_reference(op, arrays, float64)
    (found,) = run_plan(plan, arrays, misaligned=misaligned)
    assert not mismatch(found, wanted, as_dtype(found.dtype))
    with contrary():
        (again,) = run_plan(plan, arrays)
    np.testing.assert_array_equal(again, found)


def _draw(shape: Shape, dtype: DType) -> np.ndarray:
    return (RNG.standard_normal(shape) * (9 if dtype.kind == "i" else 1)).astype(dtype.numpy)


@pytest.mark.parametrize(
    ("shape", "index", "axis", "dtype"),
    [
        ((9, 32), (5, 1), 0, float32),  # whole accesses
        ((9, 6), (5, 1), 0, bfloat16),  # two elements at once
        ((3, 9, 5), (3, 4, 5), 1, float64),
        ((300,), (700,), 0, int64),
        ((2, 7, 3), (1, 4, 3), 1, int32),
    ],
)
def test_gather(shape: Shape, index: Shape, axis: int, dtype: DType) -> None:
    numbers = RNG.integers(-shape[axis], shape[axis], index)
    for misaligned in (False, True):
        _check(Gather(axis), [_draw(shape, dtype), numbers], "gather", misaligned)


def test_an_index_outside_gives_nan_and_adds_nothing() -> None:
    x, index = np.ones((3, 4), np.float32), np.array([[0], [5], [-4]])
    plan = CUDA.plan(Gather(0), [Spec((3, 4), float32), Spec((3, 1), int64)], Policy())
    (found,) = run_plan(plan, [x, index])
    assert (np.isnan(found[1:]).all(), found[0].tolist()) == (True, [1.0] * 4)
    for count in (3, 99):
        many = np.resize(index, (count, 1))
        plan = CUDA.plan(GatherGrad(0, 3), [Spec((count, 4), float32), Spec((count, 1), int64)], Policy())
        (found,) = run_plan(plan, [np.ones((count, 4), np.float32), many])
        assert found[:, 0].tolist() == [count / 3, 0.0, 0.0]


@pytest.mark.parametrize("mode", ["set", "add", "mul", "min", "max"])
@pytest.mark.parametrize(
    ("shape", "index", "source", "axis", "dtype", "kernel"),
    [
        ((5, 7), (9, 7), (9, 7), 0, float32, "scatter_few"),
        ((5, 7), (40, 4), (40, 4), 0, int32, "scatter_sorted"),
        ((3, 40, 2), (1, 50, 1), (3, 50, 2), 1, bfloat16, "scatter_sorted"),
        ((2, 3), (2, 250), (2, 250), 1, float64, "scatter_many"),
        ((2, 9, 3), (2, 1300, 3), (2, 1300, 3), 1, int64, "scatter_many"),  # the indices in two tiles
    ],
)
@pytest.mark.parametrize("looks", [0, gather.LOOKS])
def test_scatter(
    mode: ScatterMode,
    shape: Shape,
    index: Shape,
    source: Shape,
    axis: int,
    dtype: DType,
    kernel: str,
    looks: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So few elements are looked at by warps; sorted where that is forbidden."""
    monkeypatch.setattr(gather, "LOOKS", looks)
    numbers = RNG.integers(-shape[axis], shape[axis], index)
    arrays = [_draw(shape, dtype), numbers, _draw(source, dtype)]
    if mode == "mul":
        arrays[2] = np.where(RNG.random(source) < 0.5, 1, -1).astype(dtype.numpy)
    if mode == "set" and kernel == "scatter_many":
        kernel = "scatter_sorted"
    if looks and mode != "set" and kernel != "scatter_few":
        kernel = "scatter_seen"
    _check(Scatter(axis, mode), arrays, kernel)


@pytest.mark.parametrize("mode", ["set", "add", "mul", "min", "max"])
@pytest.mark.parametrize(
    ("shape", "index", "source", "axis", "dtype", "tile"),
    [
        ((20, 300), (20, 270), (20, 270), 1, float32, 1),
        ((260, 30), (260, 50), (260, 50), 1, bfloat16, 16),  # the last block has fewer lines
        ((2, 12, 67), (2, 9, 67), (2, 9, 67), 1, float64, 8),  # lines across, of both images in one block
        ((60, 40, 5), (50, 50, 4), (50, 50, 4), 1, float16, 16),  # elements that the source does not reach
        ((32, 7, 3), (32, 9, 1), (32, 9, 3), 1, int64, 4),
        ((144, 6), (144, 5), (144, 5), 1, int32, 8),
        ((100, 150), (99, 150), (99, 150), 0, float32, 8),
        ((99, 5), (99, 20), (99, 20), 1, int8, 4),
    ],
)
def test_lines_that_blocks_hold(
    mode: ScatterMode, shape: Shape, index: Shape, source: Shape, axis: int, dtype: DType, tile: int
) -> None:
    """Entries that name the same element are combined in their order: sums are those of a loop, in every bit."""
    numbers = RNG.integers(-shape[axis], shape[axis], index)
    arrays = [_draw(shape, dtype), numbers, _draw(source, dtype)]
    if mode == "mul":
        arrays[2] = np.where(RNG.random(source) < 0.5, 1, -1).astype(dtype.numpy)
    plan = CUDA.plan(Scatter(axis, mode), [Spec(a.shape, as_dtype(a.dtype)) for a in arrays], Policy())
    assert f"#define TILE {tile}\n" in plan.make.programs[0].text
    _check(Scatter(axis, mode), arrays, "scatter_claimed")


def test_entries_are_combined_in_their_order() -> None:
    """As one after the other, in every bit, also where all name one element; those outside change nothing."""
    x, given = _draw((16, 64), float32), _draw((16, 200), float32)
    numbers = RNG.integers(0, 64, (16, 200))
    numbers[0], numbers[1, :50] = 63, 64
    wanted = x.copy()
    for row in range(16):
        for at, value in zip(numbers[row], given[row], strict=True):
            if at < 64:
                wanted[row, at] += value
    specs = [Spec(a.shape, as_dtype(a.dtype)) for a in (x, numbers, given)]
    (found,) = run_plan(CUDA.plan(Scatter(1, "add"), specs, Policy()), [x, numbers, given])
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("shape", "entries", "kernel"),
    [
        ((16, 6144), 2048, "scatter_claimed"),
        ((15, 6144), 2048, "scatter_sorted"),  # too few blocks
        ((16, 6145), 2048, "scatter_sorted"),  # more than 48 KiB
        ((16, 6144), 2049, "scatter_sorted"),
        ((4096, 64), 256, "scatter_claimed"),
        ((65536, 63), 256, "scatter_sorted"),  # many rounds
        ((4096, 64), 4, "scatter_few"),
    ],
)
def test_which_lines_blocks_hold(shape: Shape, entries: int, kernel: str) -> None:
    specs = [Spec(shape, float32), Spec((shape[0], entries), int64), Spec((shape[0], entries), float32)]
    plan = CUDA.plan(Scatter(1, "add"), specs, Policy())
    assert plan.make.programs[-1].name == kernel


@pytest.mark.parametrize(("rows", "kernel"), [(1 << 14, "scatter_seen"), ((1 << 14) + 1, "scatter_sorted")])
def test_indices_are_sorted_where_looking_at_them_takes_longer(rows: int, kernel: str) -> None:
    """2²⁴ looks: 2¹⁴ rows at 1,024 indices."""
    plan = CUDA.plan(GatherGrad(0, rows), [Spec((1024, 1), float32), Spec((1024, 1), int64)], Policy())
    assert plan.make.programs[-1].name == kernel


def test_the_kernels_compile() -> None:
    specs = [Spec((9, 8), bfloat16), Spec((99, 1), int32), Spec((99, 8), bfloat16)]
    for op, given in (
        (Gather(0), specs[:2]),
        (Scatter(0, "max"), specs),
        (GatherGrad(0, 1), [specs[2], specs[1]]),
    ):
        plan = CUDA.plan(op, given, Policy())
        assert all(program.cubin("sm_90") for program in plan.make.programs)
