"""The kernels of grid_sample in the emulator: layouts, modes, gradients of huge, tiny and infinite values."""

import shutil

import numpy as np
import pytest

from lamina.backends.cuda import backend
from lamina.backends.reference import run_reference
from lamina.ops.core import Op
from lamina.ops.primitives import GridSample, GridSampleGrad, GridSampleGridGrad
from lamina.spec import DType, Policy, Shape, Spec, bfloat16, channels_last, float16, float32, float64
from tests.helpers.eager import mismatch
from tests.helpers.emulator import contrary, run_plan
from tests.helpers.planned import H200

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
CUDA = backend(H200)
CASES: list[tuple[tuple[str, str, bool], Shape, Shape, DType]] = [
    (("bilinear", "zeros", False), (2, 3, 5, 6), (2, 4, 3, 2), float32),
    (("bilinear", "reflection", True), (1, 16, 4, 1), (1, 5, 7, 2), bfloat16),
    (("nearest", "border", False), (2, 4, 5, 6), (2, 4, 3, 2), float64),
    (("bicubic", "zeros", True), (2, 3, 5, 6), (2, 4, 3, 2), float64),
    (("bicubic", "reflection", False), (1, 8, 2, 6), (1, 4, 3, 2), float32),
    (("bilinear", "border", False), (1, 8, 2, 3, 4), (1, 2, 2, 3, 3), float16),
    (("nearest", "reflection", False), (1, 2, 2, 3, 4), (1, 2, 2, 3, 3), float32),
]


def _run(op: Op, arrays: list[np.ndarray], dtype: DType, last: bool, misaligned: bool = False) -> np.ndarray:
    specs = [
        Spec(a.shape, dtype, channels_last(a.shape) if last and a.shape[-1] != a.ndim - 2 else None)
        for a in arrays
    ]
    (found,) = run_plan(CUDA.plan(op, specs, Policy()), arrays, misaligned=misaligned)
    return found


@pytest.mark.feature("F118")
@pytest.mark.parametrize(("options", "shape", "places", "dtype"), CASES)
@pytest.mark.parametrize("last", [False, True])
def test_values(
    options: tuple[str, str, bool], shape: Shape, places: Shape, dtype: DType, last: bool
) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(dtype.numpy)
    grid = rng.uniform(-1.7, 1.7, places).astype(dtype.numpy)
    g = rng.standard_normal((*shape[:2], *places[1:-1])).astype(dtype.numpy)
    calls: list[tuple[Op, list[np.ndarray]]] = [
        (GridSample(*options), [x, grid]),  # type: ignore[arg-type]
        (GridSampleGrad(*options, shape[2:]), [g, grid]),  # type: ignore[arg-type]
        (GridSampleGridGrad(*options), [g, x, grid]),  # type: ignore[arg-type]
    ]
    for op, arrays in calls:
        (wanted,) = run_reference(op, arrays, float64)
        for misaligned in (False, True):
            found = _run(op, arrays, dtype, last, misaligned)
            assert not mismatch(found, wanted, dtype), op


def test_a_thread_works_on_several_channels() -> None:
    rng = np.random.default_rng(0)
    x, grid = rng.standard_normal((1, 7, 9, 8)), rng.uniform(-1.2, 1.2, (1, 250, 300, 2))
    x, grid = x.astype(np.float32), grid.astype(np.float32)
    op = GridSample("bilinear", "zeros", False)
    plan = CUDA.plan(op, [Spec(x.shape, float32), Spec(grid.shape, float32)], Policy())
    assert "#define EACH 4\n" in plan.make.programs[0].text
    (found,) = run_plan(plan, [x, grid])
    assert not mismatch(found, run_reference(op, [x, grid], float64)[0], float32)


@pytest.mark.parametrize(
    ("options", "shape", "places", "dtype", "each"),
    [
        (("bilinear", "zeros", False), (12, 57, 8, 7), (12, 9, 8, 2), float32, 4),  # one in the last block
        (("bilinear", "reflection", True), (133, 1, 5, 9), (133, 17, 20, 2), float64, 1),
        (("nearest", "border", False), (34, 35, 5, 6), (34, 7, 3, 2), bfloat16, 8),
        (("bicubic", "zeros", True), (67, 6, 5, 8), (67, 4, 3, 2), float16, 3),
        (("bilinear", "border", False), (45, 9, 2, 3, 4), (45, 2, 2, 3, 3), float32, 4),
    ],
)
def test_images_that_blocks_hold(
    options: tuple[str, str, bool], shape: Shape, places: Shape, dtype: DType, each: int
) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(dtype.numpy)
    grid = rng.uniform(-1.7, 1.7, places).astype(dtype.numpy)
    op = GridSample(*options)  # type: ignore[arg-type]
    plan = CUDA.plan(op, [Spec(x.shape, dtype), Spec(grid.shape, dtype)], Policy())
    assert plan.make.programs[0].name == "grid_sample_held"
    assert f"#define EACH {each}\n" in plan.make.programs[0].text
    (wanted,) = run_reference(op, [x, grid], float64)
    for misaligned in (False, True):
        (found,) = run_plan(plan, [x, grid], misaligned=misaligned)
        assert not mismatch(found, wanted, dtype)
    with contrary():
        np.testing.assert_array_equal(run_plan(plan, [x, grid])[0], found)


@pytest.mark.parametrize(
    ("shape", "places", "kernel"),
    [
        ((64, 32, 56, 56), (64, 56, 56, 2), "grid_sample_held"),
        ((132, 1, 100, 200), (132, 99, 99, 2), "grid_sample_held"),
        ((131, 1, 100, 200), (131, 99, 99, 2), "grid_sample"),  # fewer blocks than multiprocessors
        ((132, 1, 200, 200), (132, 99, 99, 2), "grid_sample"),  # too large
        ((132, 1, 100, 200), (132, 49, 50, 2), "grid_sample"),  # most of it is not read
    ],
)
def test_which_images_blocks_hold(shape: Shape, places: Shape, kernel: str) -> None:
    plan = CUDA.plan(
        GridSample("bilinear", "zeros", False), [Spec(shape, float32), Spec(places, float32)], Policy()
    )
    assert plan.make.programs[0].name == kernel


@pytest.mark.feature("F107")
def test_gradients_have_the_same_bits_in_any_order() -> None:
    rng = np.random.default_rng(0)
    g = (rng.standard_normal((1, 3, 40, 20)) * 10.0 ** rng.integers(-6, 7, (1, 3, 40, 20))).astype(np.float32)
    grid = rng.uniform(-1, 1, (1, 40, 20, 2)).astype(np.float32)
    op = GridSampleGrad("bilinear", "zeros", False, (2, 3))
    found = _run(op, [g, grid], float32, False)
    with contrary():
        np.testing.assert_array_equal(_run(op, [g, grid], float32, False), found)
    order = rng.permutation(40)
    np.testing.assert_array_equal(
        _run(op, [g[:, :, order].copy(), grid[:, order].copy()], float32, False), found
    )


def test_what_is_not_finite_stays_where_it_belongs() -> None:
    g = np.ones((1, 2, 1, 3), np.float32)
    g[0, 1, 0, 1] = np.inf
    grid = np.array(
        [[[[-0.75, -0.75], [0.75, 0.75], [0.25, -0.75]]]], np.float32
    )  # elements 0, 15, 2 of 4 x 4
    found = _run(GridSampleGrad("nearest", "zeros", False, (4, 4)), [g, grid], float32, False).reshape(2, 16)
    assert np.isnan(found[1, 15])
    found[1, 15] = 1
    wanted = np.zeros((2, 16), np.float32)
    wanted[:, [0, 15, 2]] = 1
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("largest", [0.0, 1e-280, 1.0, 1e308])
def test_gradients_of_any_size(largest: float) -> None:
    g = np.array([largest, -largest / 4]).reshape(1, 1, 1, 2)
    grid = np.array([[[[-0.5, 0.0], [0.5, 0.0]]]])
    found = _run(GridSampleGrad("nearest", "zeros", False, (1, 2)), [g, grid], float64, False)
    np.testing.assert_array_equal(found.ravel(), [largest, -largest / 4])


def test_places_far_outside_and_nothing_at_all() -> None:
    x = np.arange(1, 5, dtype=np.float32).reshape(1, 1, 2, 2)
    grid = np.array([[[[1e30, 0], [np.nan, 0], [-np.inf, -np.inf]]]], np.float32)
    for mode in ("nearest", "bilinear", "bicubic"):
        for padding, wanted in (("zeros", [0, 0, 0]), ("border", None)):
            op = GridSample(mode, padding, False)  # type: ignore[arg-type]
            found = _run(op, [x, grid], float32, False)
            np.testing.assert_allclose(found, run_reference(op, [x, grid], float64)[0], rtol=1e-6)
            if wanted:
                np.testing.assert_array_equal(found.ravel(), wanted)
    nothing = [np.zeros((1, 1, 0, 3), np.float32), grid[:, :0]]
    empty = _run(GridSampleGrad("bilinear", "zeros", False, (2, 2)), nothing, float32, False)
    np.testing.assert_array_equal(empty, np.zeros((1, 1, 2, 2)))


def test_the_kernels_compile() -> None:
    for options, shape, places, dtype in (CASES[1], CASES[3], CASES[5]):
        g = (*shape[:2], *places[1:-1])
        for op, shapes in (
            (GridSample(*options), (shape, places)),  # type: ignore[arg-type]
            (GridSampleGrad(*options, shape[2:]), (g, places)),  # type: ignore[arg-type]
            (GridSampleGridGrad(*options), (g, shape, places)),  # type: ignore[arg-type]
        ):
            plan = CUDA.plan(op, [Spec(s, dtype) for s in shapes], Policy())
            assert all(program.cubin("sm_90") for program in plan.make.programs)
