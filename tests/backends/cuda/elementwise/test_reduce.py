"""Reductions on a GPU, run on a CPU: the first of the best elements, along axes of every length and order."""

import re
import shutil

import numpy as np
import pytest

from lamina.backends.cuda import backend
from lamina.ops.primitives import ArgMax, ArgMin, Reduce
from lamina.spec import DType, Layout, Policy, Shape, Spec, bfloat16, channels_last, float32, int64, uint8
from tests.helpers.eager import mismatch
from tests.helpers.emulator import run_plan
from tests.helpers.planned import H200

CUDA = backend(H200)
#: What is reduced, along which axis, and how many lanes share an output: those that have 8 neighbours each.
CASES: list[tuple[Shape, int, int]] = [
    ((3, 1), 1, 1),
    ((5, 8), -1, 1),
    ((5, 9), 1, 2),
    ((333, 21), 1, 4),
    ((5, 9), 0, 1),
    ((300, 3), 0, 1),
    ((2, 3, 70), -1, 16),
    ((2, 33, 7), 1, 1),
    ((1000,), 0, 32),
]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("dtype", [float32, bfloat16, uint8, int64], ids=str)
@pytest.mark.parametrize("op_class", [ArgMax, ArgMin])
@pytest.mark.parametrize(("shape", "axis", "shared"), CASES)
def test_the_first_of_the_best(
    shape: Shape, axis: int, shared: int, op_class: type[ArgMax], dtype: DType
) -> None:
    """Few different values, so that many are the best; NaN is, wherever it stands."""
    rng = np.random.default_rng(0)
    values = rng.integers(0, 4, shape).astype(dtype.numpy)
    if dtype.is_float:
        values.reshape(-1)[rng.integers(0, values.size, 3)] = np.nan
    plan = CUDA.plan(op_class(axis), [Spec(shape, dtype).fixed], Policy())
    (found,) = run_plan(plan, [values])
    wide = values.astype(np.float64)
    wanted = np.argmin(wide, axis) if op_class is ArgMin else np.argmax(wide, axis)
    np.testing.assert_array_equal(found, wanted)
    (launch,) = plan.make.steps  # type: ignore[attr-defined]
    lanes = re.search(r"#define ARG (\d+)", launch.program.text)
    assert lanes is not None
    assert int(lanes[1]) == shared
    assert launch.grid == (-(-found.size * int(lanes[1]) // 256),)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize(("axis", "shared"), [(0, False), (1, True), (2, False), (3, False)])
def test_neighbours_are_those_in_memory(axis: int, shared: bool) -> None:
    shape = (10, 12, 11, 9)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    plan = CUDA.plan(ArgMax(axis), [Spec(shape, float32, channels_last(shape))], Policy())
    np.testing.assert_array_equal(run_plan(plan, [x])[0], np.argmax(x, axis))
    assert ("#define ARG 2" in plan.make.steps[0].program.text) == shared  # type: ignore[attr-defined]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("dtype", [float32, bfloat16, int64], ids=str)
@pytest.mark.parametrize(
    ("count", "shape", "lanes"),
    [
        (2, (3, 2, 90112), 256),
        (4, (3, 4, 90112), 256),
        (5, (3, 5, 90112), 128),
        (16, (3, 16, 90112), 64),
        (17, (1, 17, 45056), 32),
        (2, (3, 2, 1000), 8),
        (3, (3, 3, 90113), 256),
    ],
)
def test_few_elements_of_many_outputs(count: int, shape: Shape, lanes: int, dtype: DType) -> None:
    """Threads that have nothing to add up would only wait: an output's few elements are one thread's."""
    x = np.random.default_rng(0).integers(-9, 9, shape).astype(dtype.numpy)
    plan = CUDA.plan(Reduce("sum", (1,)), [Spec(shape, dtype).fixed], Policy())
    (found,) = run_plan(plan, [x])
    np.testing.assert_array_equal(found, x.astype(np.float64).sum(1))
    (launch,) = plan.make.steps  # type: ignore[attr-defined]
    chosen = re.search(r"#define LANES (\d+)", launch.program.text)
    assert chosen is not None
    assert (int(chosen[1]), shape[1]) == (lanes, count)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (3,), (1, 3), (0, 2), (0, 1, 2, 3)], ids=str)
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_parts_of_a_tensor_are_read_where_they_lie(axes: tuple[int, ...], dtype: DType) -> None:
    """Half of the channels of images channels last, and the keys of a projection."""
    images = Layout((7 * 9 * 80, 1, 9 * 80, 80))
    keys = Layout((7 * 3 * 40 * 9, 9, 3 * 40 * 9, 1))
    for layout in (images, keys):
        spec = Spec((3, 40, 7, 9), dtype, layout)
        x = np.random.default_rng(1).standard_normal(spec.shape).astype(dtype.numpy)
        plan = CUDA.plan(Reduce("sum", axes, False), [spec], Policy())
        assert plan.inputs == (spec,)
        for misaligned in (False, True):
            (found,) = run_plan(plan, [x], misaligned=misaligned)
            assert not mismatch(found, x.astype(np.float64).sum(axes), dtype)
