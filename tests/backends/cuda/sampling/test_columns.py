"""The kernels of unfold and fold in the emulator: axes, strides, dilations, paddings, accesses."""

import shutil

import numpy as np
import pytest

from lamina.backends.cuda import backend
from lamina.backends.cuda.sampling import columns
from lamina.backends.reference import run_reference
from lamina.ops.core import Op
from lamina.ops.primitives.fold import Col2im, Im2col
from lamina.ops.primitives.window import Window
from lamina.spec import DType, Policy, Shape, Spec, bfloat16, bool_, float16, float32, float64, int8, int64
from tests.helpers.eager import mismatch
from tests.helpers.emulator import contrary, run_plan
from tests.helpers.planned import H200

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
CUDA = backend(H200)
CASES = [
    ((2, 3, 5, 8), (3, 3), Window((1, 1), ((1, 1), (1, 1)), (1, 1))),  # rows of whole accesses
    ((1, 2, 9, 7), (2, 3), Window((2, 3), ((1, 0), (2, 1)), (3, 1))),
    ((2, 1, 13), (4,), Window((3,), ((1, 1),), (2,))),
    ((1, 2, 4, 3, 5), (2, 1, 3), Window((1, 2, 1), ((0, 1), (0, 0), (1, 1)), (1, 1, 2))),
    ((1, 1, 2, 2), (1, 1), Window((1, 1), ((2, 3), (0, 2)), (1, 1))),  # windows with nothing but zeros
]


def _check(op: Op, shape: Shape, dtype: DType) -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(shape) * (40 if dtype.kind == "i" else 1)).astype(dtype.numpy)
    plan = CUDA.plan(op, [Spec(shape, dtype)], Policy())
    (wanted,) = run_reference(op, [x], float64 if dtype.is_float else dtype)
    for misaligned in (False, True):
        (found,) = run_plan(plan, [x], misaligned=misaligned)
        assert not mismatch(found, wanted, dtype)
    with contrary():
        (again,) = run_plan(plan, [x])
    np.testing.assert_array_equal(again, found)


@pytest.mark.parametrize(("shape", "kernel", "window"), CASES)
@pytest.mark.parametrize("dtype", [float64, float32, float16, bfloat16, int8, int64, bool_])
def test_windows_as_columns(shape: Shape, kernel: Shape, window: Window, dtype: DType) -> None:
    _check(Im2col(kernel, window), shape, dtype)


@pytest.mark.parametrize(("shape", "kernel", "window"), CASES)
@pytest.mark.parametrize("dtype", [float64, float32, float16, bfloat16])
def test_columns_as_images(shape: Shape, kernel: Shape, window: Window, dtype: DType) -> None:
    (columns,) = Im2col(kernel, window).infer(Spec(shape, dtype))
    _check(Col2im(shape[2:], kernel, window), columns.shape, dtype)


@pytest.mark.parametrize(("shape", "kernel", "window"), CASES[:2])
def test_long_indexes(shape: Shape, kernel: Shape, window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes are then constants, and indexes have 64 bits."""
    monkeypatch.setattr(columns, "index_type", lambda reach: "i64")
    op = Im2col(kernel, window)
    plan = columns.im2col(op, (Spec(shape, float32),), H200, Policy())
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    np.testing.assert_array_equal(run_plan(plan, [x])[0], op.reference(x)[0])
    back = Col2im(shape[2:], kernel, window)
    made = op.reference(x)[0]
    plan = columns.col2im(back, (Spec(made.shape, float32),), H200, Policy())
    assert not mismatch(run_plan(plan, [made])[0], back.reference(made.astype(np.float64))[0], float32)


def test_the_result_is_written_once() -> None:
    """One launch, in accesses of 16 bytes."""
    op = Im2col((3, 3), Window((1, 1), ((1, 1), (1, 1)), (1, 1)))
    plan = CUDA.plan(op, [Spec((64, 32, 56, 56), float32)], Policy())
    (launch,) = plan.make.steps
    assert ("#define V 4\n" in launch.program.text, plan.workspace) == (True, 0)
    large = CUDA.plan(op, [Spec((64, 128, 512, 512), float32)], Policy())
    assert "typedef i64 Index;" in large.make.steps[0].program.text


def test_nothing_to_read_and_nothing_to_write() -> None:
    op = Im2col((1,), Window((1,), ((0, 0),), (1,)))
    assert (
        run_plan(CUDA.plan(op, [Spec((0, 1, 4), float32)], Policy()), [np.zeros((0, 1, 4), np.float32)])[
            0
        ].size
        == 0
    )
    op = Im2col((1,), Window((1,), ((1, 1),), (1,)))
    (found,) = run_plan(
        CUDA.plan(op, [Spec((1, 1, 0), float32)], Policy()), [np.zeros((1, 1, 0), np.float32)]
    )
    np.testing.assert_array_equal(found, np.zeros((1, 1, 2)))


def test_the_kernels_compile() -> None:
    for shape, kernel, window in CASES:
        op = Im2col(kernel, window)
        (made,) = op.infer(Spec(shape, bfloat16))
        for one, spec in ((op, Spec(shape, bfloat16)), (Col2im(shape[2:], kernel, window), made)):
            plan = CUDA.plan(one, [spec], Policy())
            programs = (*plan.make.programs, *plan.make.plain_programs)
            assert all(program.cubin("sm_90") for program in programs)
