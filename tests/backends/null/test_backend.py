"""The null backend: plans with the layouts, views and workspaces that a library would have, and no kernels."""

from math import prod

import numpy as np
import pytest

from lamina import backends
from lamina.backends import Call
from lamina.ops.core import Op
from lamina.ops.primitives import (
    Add,
    Conv,
    ConvDataGrad,
    ConvFilterGrad,
    Fused,
    Matmul,
    Relu,
    Reshape,
    Window,
)
from lamina.ops.primitives.reduce import Reduce
from lamina.ops.primitives.shape import After
from lamina.runtime import Device
from lamina.spec import DType, Policy, ShapeError, Spec, bfloat16, channels_last, float32

NULL = backends.get(Device("cpu"), "null")
MIB = 1 << 20


def workspace(op: Op, *shapes: tuple[int, ...], dtype: DType = float32, limit: int | None = None) -> int:
    specs = [Spec(s, dtype) for s in shapes]
    return NULL.plan(op, specs, Policy(workspace_limit=limit)).workspace


@pytest.mark.parametrize(
    ("shapes", "elements"), [(((3, 5), (5, 7)), 21), (((2, 3, 5), (2, 5, 7)), 42), (((0, 5), (5, 7)), 1)]
)
def test_a_product_takes_its_result_in_float32(shapes: tuple[tuple[int, ...], ...], elements: int) -> None:
    for dtype in (float32, bfloat16):
        assert workspace(Matmul(), *shapes, dtype=dtype) == 4 * elements
        assert workspace(Fused((Matmul(), Relu())), *shapes, dtype=dtype) == 4 * elements


def test_a_product_takes_no_more_than_a_librarys_default() -> None:
    assert workspace(Matmul(), (8 * MIB - 1, 2), (2, 1)) == 32 * MIB - 4
    assert workspace(Matmul(), (8 * MIB + 1, 2), (2, 1)) == 32 * MIB


@pytest.mark.parametrize("dtype", [float32, bfloat16])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_takes_the_unfolded_input(groups: int, dtype: DType) -> None:
    """Forward and backward: for each image and place of the result all channels under the filter."""
    batch, channels, filters, taps = 3, 4, 6, (3, 2)
    window = Window((2, 1), ((1, 0), (0, 0)), (1, 1), groups)
    x, w = (batch, channels, 9, 7), (filters, channels // groups, *taps)
    y = Conv(window).infer(Spec(x, dtype), Spec(w, dtype))[0].shape
    unfolded = batch * channels * prod(taps) * prod(y[2:]) * dtype.itemsize
    assert workspace(Conv(window), x, w, dtype=dtype) == unfolded
    assert workspace(ConvDataGrad(window, x[2:]), y, w, dtype=dtype) == unfolded
    assert workspace(ConvFilterGrad(window, taps), x, y, dtype=dtype) == unfolded


def test_a_convolution_takes_no_more_than_256_mib() -> None:
    plain = Window((1, 1), ((0, 0), (0, 0)), (1, 1))
    assert workspace(Conv(plain), (64 * MIB - 1, 1, 1, 1), (1, 1, 1, 1)) == 256 * MIB - 4
    assert workspace(Conv(plain), (64 * MIB + 1, 1, 1, 1), (1, 1, 1, 1)) == 256 * MIB


def test_reductions_take_partial_sums_and_the_rest_nothing() -> None:
    assert workspace(Reduce("sum", (1,)), (5, 7), dtype=bfloat16) == 4 * 5
    assert workspace(Add(), (5, 7), (5, 7)) == workspace(Relu(), (5, 7)) == 0


@pytest.mark.parametrize(("limit", "taken"), [(0, 0), (50, 50), (84, 84), (1000, 84)])
def test_a_workspace_keeps_to_the_limit(limit: int, taken: int) -> None:
    assert workspace(Matmul(), (3, 5), (5, 7), limit=limit) == taken


def test_layouts_are_kept_or_row_major() -> None:
    shape = (2, 8, 3, 5)
    last = Spec(shape, float32, channels_last(shape))
    plan = NULL.plan(Add(), [last, Spec(shape, float32)], Policy())
    assert [s.tag for s in (*plan.inputs, *plan.outputs)][:2] == ["acdb", "abcd"]
    assert all(s.tag is not None for s in plan.outputs)
    assert (plan.label, plan.view) == ("null add", False)
    with pytest.raises(ShapeError):
        NULL.plan(Matmul(), [Spec((3, 5), float32), Spec((4, 7), float32)], Policy())


def test_reshapes_of_rows_are_views_and_others_copies() -> None:
    shape = (2, 8, 3, 5)
    found = [
        NULL.plan(Reshape((16, 15)), [s], Policy())
        for s in (Spec(shape, float32), Spec(shape, float32, channels_last(shape)))
    ]
    assert [(p.view, p.label) for p in found] == [(True, "view"), (False, "null reshape")]
    after = NULL.plan(After(), [Spec(shape, float32), Spec((3,), float32)], Policy())
    assert after.inputs[0] == after.outputs[0]


def test_running_touches_nothing() -> None:
    rows, last = Spec((2, 8, 3, 5), float32).fixed, Spec((2, 8, 3, 5), float32).with_tag("acdb")
    plan = NULL.reorder(rows, last)
    assert (plan.inputs, plan.outputs, plan.label) == ((rows,), (last,), "null reorder")
    held = np.arange(8, dtype=np.uint8)
    call = Call((held.ctypes.data,), (held.ctypes.data,), 0)
    for one in (plan, NULL.plan(Relu(), [rows], Policy())):
        one.bind(call)()
    assert held.tolist() == list(range(8))
    assert {NULL.supports(op) for op in (Conv, Matmul, After)} == {"null"}
