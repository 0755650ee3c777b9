"""The generated loops of unfold and fold: axes, strides, dilations and paddings."""

import numpy as np
import pytest

from lamina.backends import NoKernel
from lamina.backends.cpu.loops import columns, table
from lamina.ops.primitives.fold import Col2im, Im2col
from lamina.ops.primitives.window import Window
from lamina.runtime import Device
from lamina.spec import DType, Shape, Spec, bfloat16, bool_, float16, float32, float64, int64
from tests.helpers.eager import execute, mismatch
from tests.helpers.loops import needs_llvm, plan, reference_of

pytestmark = needs_llvm
CASES = [
    ((2, 3, 5, 8), (3, 3), Window((1, 1), ((1, 1), (1, 1)), (1, 1))),
    ((1, 2, 9, 7), (2, 3), Window((2, 3), ((1, 0), (2, 1)), (3, 1))),
    ((2, 1, 13), (4,), Window((3,), ((1, 1),), (2,))),
    ((1, 2, 4, 3, 5), (2, 1, 3), Window((1, 2, 1), ((0, 1), (0, 0), (1, 1)), (1, 1, 2))),
    ((1, 1, 2, 2), (1, 1), Window((1, 1), ((2, 3), (0, 2)), (1, 1))),  # windows with nothing but zeros
]


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "LEAST", 0)


def _check(op: Im2col | Col2im, x: np.ndarray, dtype: DType) -> None:
    (y,) = execute(Device("cpu"), plan(op, [Spec(x.shape, dtype).fixed]), [x])
    (wanted,) = reference_of(op, [x]) if dtype.is_float else op.reference(x)
    assert mismatch(y, wanted.astype(y.dtype), dtype) == ""


@pytest.mark.parametrize(("shape", "kernel", "window"), CASES)
@pytest.mark.parametrize("dtype", [float32, float64, float16, bfloat16, int64, bool_], ids=str)
def test_values(shape: Shape, kernel: Shape, window: Window, dtype: DType) -> None:
    x = (np.random.default_rng(0).standard_normal(shape) * 4).astype(dtype.numpy)
    op = Im2col(kernel, window)
    _check(op, x, dtype)
    if dtype.is_float:
        _check(Col2im(shape[2:], kernel, window), op.reference(x)[0], dtype)


def test_long_rows_are_left_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    shape, kernel, window = CASES[0]
    monkeypatch.setattr(columns, "_OWN", 39)
    with pytest.raises(NoKernel, match="im2col holds a padded row, here of 10 elements"):
        plan(Im2col(kernel, window), [Spec(shape, float32)])
