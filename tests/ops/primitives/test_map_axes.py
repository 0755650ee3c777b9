"""MapAxes: what it refuses, how many axes one op takes, where samples stay apart."""

import numpy as np
import pytest

import lamina as lm
from lamina.ops.core import BatchAxis, call
from lamina.ops.primitives.axis_map import AxisMap
from lamina.ops.primitives.map_axes import MapAxes, mapped
from lamina.spec import Spec, float32

TWICE = AxisMap("nearest", 2, 4, (0.5,))


def test_more_axes_than_one_op_takes() -> None:
    x = lm.tensor(np.arange(32.0).reshape((2,) * 5))
    y = mapped(x, [TWICE] * 5).numpy()
    wanted = x.numpy()
    for axis in range(5):
        wanted = wanted.repeat(2, axis)
    np.testing.assert_array_equal(y, wanted)
    same = mapped(x, [None] * 5)
    np.testing.assert_array_equal(same.numpy(), x.numpy())
    assert same.buffer is not x.buffer


def test_samples_stay_apart_along_axes_that_are_not_mapped() -> None:
    op, x = MapAxes((None, TWICE)), [Spec((3, 2), float32)]
    assert op.batch_axes(x, [BatchAxis(0)]) == (BatchAxis(0),)
    assert op.batch_axes(x, [BatchAxis(1)]) is None


def test_errors() -> None:
    with pytest.raises(lm.ShapeError, match=r"one map \(or None\) per axis, got 1 for f32\[2,2\]"):
        call(MapAxes((TWICE,)), lm.zeros((2, 2)))
    with pytest.raises(
        lm.ShapeError, match=r"nearest\[2>4,0.5\] reads an axis of 2, axis 0 of f32\[3\] has 3"
    ):
        call(MapAxes((TWICE,)), lm.zeros(3))
    with pytest.raises(lm.DTypeError, match="dtype int64 cannot be averaged"):
        call(MapAxes((AxisMap("area", 3, 2),)), lm.zeros(3, dtype="int64"))
