"""The kernels for boxes in the emulator: values, gradients in any order, what is kept."""

import shutil

import numpy as np
import pytest

from lamina.backends.cuda import backend
from lamina.backends.reference import run_reference
from lamina.ops.primitives import KeepBoxes, RoiAlign, RoiAlignGrad
from lamina.spec import DType, Policy, Spec, as_dtype, bfloat16, float32, float64
from tests.helpers.eager import mismatch
from tests.helpers.emulator import contrary, run_plan
from tests.helpers.planned import H200

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
CUDA = backend(H200)
BOXES = np.array(
    [[0, 1, 1, 5, 4], [1, 0, 2, 7, 6], [1, -3, -2, 3, 3], [0, 2.5, 3.25, 2.5, 3.25], [0, 40, 2, 50, 3]]
)


def _run(op: RoiAlign | RoiAlignGrad | KeepBoxes, *arrays: np.ndarray) -> np.ndarray:
    specs = [Spec(a.shape, as_dtype(a.dtype)) for a in arrays]
    (found,) = run_plan(CUDA.plan(op, specs, Policy()), arrays)
    return found


@pytest.mark.feature("F118")
@pytest.mark.parametrize("dtype", [float32, float64, bfloat16])
@pytest.mark.parametrize("options", [(1.0, 2, True), (1.0, 0, False), (0.5, 0, True), (0.75, 3, False)])
def test_features_and_gradients(options: tuple[float, int, bool], dtype: DType) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 6, 7)).astype(dtype.numpy)
    g = rng.standard_normal((5, 3, 2, 3)).astype(dtype.numpy)
    boxes = BOXES.astype(dtype.numpy)
    for op, arrays in (
        (RoiAlign((2, 3), *options), [x, boxes]),
        (RoiAlignGrad((2, 3), *options, (2, 6, 7)), [g, boxes]),
    ):
        (wanted,) = run_reference(op, arrays, float64)
        assert not mismatch(_run(op, *arrays), wanted, dtype), op


def test_gradients_have_the_same_bits_in_any_order() -> None:
    rng = np.random.default_rng(0)
    low = rng.uniform(0, 5, (40, 2))
    boxes = np.concatenate([np.zeros((40, 1)), low, low + rng.uniform(0, 4, (40, 2))], 1).astype(np.float32)
    g = (rng.standard_normal((40, 2, 2, 2)) * 10.0 ** rng.integers(-6, 7, (40, 2, 2, 2))).astype(np.float32)
    op = RoiAlignGrad((2, 2), 1.0, 2, True, (1, 8, 8))
    found, order = _run(op, g, boxes), rng.permutation(40)
    np.testing.assert_array_equal(_run(op, g[order], boxes[order]), found)
    with contrary():
        np.testing.assert_array_equal(_run(op, g, boxes), found)


def test_a_box_of_no_image_is_nan_and_gets_nothing() -> None:
    boxes = np.array(
        [[3, 0, 0, 2, 2], [-1, 0, 0, 2, 2], [np.nan, 0, 0, 2, 2], [0, 0, 0, np.inf, 2], [0, 0, 0, 2, 2]]
    )
    boxes = boxes.astype(np.float32)
    x = np.ones((1, 1, 3, 3), np.float32)
    found = _run(RoiAlign((1, 1), 1.0, 0, True), x, boxes).ravel()
    np.testing.assert_array_equal(found, [np.nan, np.nan, np.nan, 0, 1])
    g = np.ones((5, 1, 1, 1), np.float32)
    dx = _run(RoiAlignGrad((1, 1), 1.0, 0, True, (1, 3, 3)), g, boxes)
    assert dx.sum() == pytest.approx(1)
    g[4] = np.inf
    assert np.isnan(_run(RoiAlignGrad((1, 1), 1.0, 0, True, (1, 3, 3)), g, boxes)[0, 0, 0, 0])
    empty = _run(RoiAlignGrad((1, 1), 1.0, 0, True, (1, 3, 3)), g[:0], boxes[:0])
    np.testing.assert_array_equal(empty, np.zeros((1, 1, 3, 3)))


@pytest.mark.parametrize("count", [1, 63, 64, 65, 300])
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.8])
def test_what_is_kept(count: int, threshold: float) -> None:
    rng = np.random.default_rng(count)
    low = rng.uniform(0, 20, (count, 2))
    boxes = np.concatenate([low, low + rng.uniform(0, 12, (count, 2))], 1)
    op = KeepBoxes(threshold)
    found = _run(op, boxes)
    np.testing.assert_array_equal(found, op.reference(boxes)[0])
    assert found[0]
    assert count < 300 or 0 < found.sum() < count


def test_the_kernels_compile() -> None:
    x, g = Spec((1, 2, 8, 8), bfloat16), Spec((3, 2, 2, 2), float64)
    plans = [
        CUDA.plan(RoiAlign((2, 2), 0.25, 0, True), [x, Spec((3, 5), bfloat16)], Policy()),
        CUDA.plan(RoiAlignGrad((2, 2), 0.25, 2, False, (1, 8, 8)), [g, Spec((3, 5), float64)], Policy()),
        CUDA.plan(KeepBoxes(0.5), [Spec((100, 4), float32)], Policy()),
    ]
    assert all(program.cubin("sm_90") for plan in plans for program in plan.make.programs)
