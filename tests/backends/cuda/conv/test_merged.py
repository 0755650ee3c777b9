"""Grouped convolutions as ones of fewer, larger groups: the kernels around them, and what they are planned for."""

import shutil

import numpy as np
import pytest

from lamina import backends
from lamina.backends import Call
from lamina.backends.cuda.conv.conv import conv_problem
from lamina.backends.cuda.conv.merged import Merged, merged, merged_formulation
from lamina.backends.cuda.cudnn_graphs.conv import Direction, sides
from lamina.backends.cuda.cudnn_graphs.epilogue import Epilogue
from lamina.backends.reference import run_reference
from lamina.ops.primitives import Add, Conv, ConvDataGrad, ConvFilterGrad, Relu, Window
from lamina.spec import DType, Policy, Shape, Spec, bfloat16, float16, float32, float64, pack, unpack
from tests.backends.cuda.select.test_formulations import DIRECTIONS, draw, op_of, operands, square
from tests.helpers import emulator
from tests.helpers.eager import mismatch
from tests.helpers.planned import H200

CASES: dict[str, tuple[Shape, Shape, Window, int]] = {
    "pairs": ((2, 16, 5, 6), (24, 4, 3, 3), square(3, 1, 1, 4), 2),
    "dense": ((2, 16, 5, 6), (8, 4, 3, 3), square(3, 1, 1, 4), 4),
    "odd channels": ((1, 18, 6, 5), (12, 3, 3, 2), Window((2, 1), ((1, 0), (0, 1)), (1, 1), 6), 3),
    "one channel a group": ((1, 6, 5, 5), (12, 1, 3, 3), square(3, 2, 1, 6), 6),
    "one axis": ((2, 16, 9), (16, 8, 3), Window((1,), ((1, 1),), (1,), 2), 2),
    "three axes": ((1, 8, 3, 4, 3), (16, 2, 1, 3, 2), Window((1,) * 3, ((0, 1),) * 3, (1,) * 3, 4), 2),
}


@pytest.mark.feature("B012")
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("dtype", [float32, bfloat16, float16])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", CASES)
def test_fewer_groups_are_the_same(case: str, direction: Direction, dtype: DType) -> None:
    """The kernels on the emulator, over what lies in scratch memory; the convolution over larger groups in NumPy."""
    x, w, win, number = CASES[case]
    o = operands(x, w, win, dtype)
    form = Merged(o, number)
    other, formulation = form.operands, merged_formulation(direction, form)
    assert other.window.groups * number == win.groups
    assert formulation.scratch == other.w.nbytes == number * o.w.nbytes
    _, given = sides(direction, o)
    arrays = [draw(spec, i) for i, spec in enumerate(given)]
    (wanted,) = run_reference(op_of(direction, o), arrays, float64)
    filter_, scratch = emulator.Memory(o.w.nbytes), emulator.Memory(formulation.scratch)
    scratch.bytes[:] = 0xFF
    if direction is ConvFilterGrad:
        (whole,) = run_reference(op_of(direction, other), arrays, float64)
        scratch.bytes[:] = pack(whole.astype(dtype.numpy), other.w.physical).view(np.uint8).reshape(-1)
        emulator.run_steps(formulation.after, Call((0, 0), (filter_.pointer,), scratch.pointer))
        found = unpack(filter_.bytes.view(dtype.numpy), o.w.physical, o.w.shape)
    else:
        filter_.bytes[:] = pack(arrays[1], o.w.physical).view(np.uint8).reshape(-1)
        emulator.run_steps(formulation.before, Call((0, filter_.pointer), (0,), scratch.pointer))
        spread = unpack(scratch.bytes.view(dtype.numpy), other.w.physical, other.w.shape)
        found = run_reference(op_of(direction, other), [arrays[0], spread], float64)[0].astype(dtype.numpy)
    for memory in (filter_, scratch):
        memory.check(case)
    wrong = mismatch(found, wanted, dtype)
    assert not wrong, wrong


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("x", "groups", "stride", "numbers"),
    [
        ((64, 576, 14, 14), 24, 1, [24, 4]),
        ((64, 216, 28, 28), 9, 1, [9, 3]),
        ((64, 72, 56, 56), 3, 1, [3]),
        ((64, 72, 112, 112), 3, 2, [3]),
        ((64, 576, 28, 28), 24, 2, [24, 4]),
    ],
)
def test_where_it_comes_first(
    x: Shape, groups: int, stride: int, numbers: list[int], direction: Direction
) -> None:
    """Groups of 24 channels of a whole batch, in every direction; what is still in groups is left to contests."""
    o = operands(x, (x[1], 24, 3, 3), square(3, stride, 1, groups))
    names = [one.name for one in conv_problem(direction, o, H200).formulations]
    assert names[:2] == ["dense", "plain"]
    assert ("merged" in names) == (len(numbers) > 1)
    forms = merged(direction, o, H200.machine, Policy())
    assert [form.number for form in forms] == numbers


@pytest.mark.parametrize("channels", [8, 16, 32])
def test_powers_of_two_are_left_to_contests(channels: int) -> None:
    """Their groups have engines at the memory's rate."""
    o = operands((64, 512, 14, 14), (512, channels, 3, 3), square(3, 1, 1, 512 // channels))
    names = [one.name for one in conv_problem(Conv, o, H200).formulations]
    assert names[0] == "plain"
    assert {"merged", "dense"} <= {*names}


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_steps_stay_in_the_graph(direction: Direction) -> None:
    o = operands((64, 216, 28, 28), (216, 24, 3, 3), square(3, 1, 1, 9))
    bias = Spec((1, 216, 1, 1), bfloat16)
    problem = conv_problem(direction, o, H200, Epilogue((Add(), Relu()), (bias,), 2))
    assert [one.name for one in problem.formulations][:2] == ["dense", "plain"]


@pytest.mark.parametrize(
    ("x", "w", "win", "dtype", "reason"),
    [
        ((64, 72, 56, 56), (72, 72, 3, 3), square(3, 1, 1), bfloat16, "one group"),
        ((64, 72, 56, 56), (72, 1, 3, 3), square(3, 1, 1, 72), bfloat16, "one filter per channel"),
        ((64, 128, 56, 56), (128, 64, 3, 3), square(3, 1, 1, 2), bfloat16, "large groups"),
        ((64, 72, 56, 56), (72, 24, 3, 3), square(3, 1, 1, 3), float32, "no half type"),
    ],
)
def test_what_stays_in_groups(x: Shape, w: Shape, win: Window, dtype: DType, reason: str) -> None:
    for direction in DIRECTIONS:
        assert merged(direction, operands(x, w, win, dtype), H200.machine, Policy()) == [], reason


@pytest.mark.parametrize("side", [7, 14, 56])
def test_small_problems_are_dense_forward_and_left_to_contests_backward(side: int) -> None:
    """Engines for 24 channels take their time for one image too; a quarter as much for a power of two."""
    o = operands((1, 72, side, side), (72, 24, 3, 3), square(3, 1, 1, 3))
    assert [one.name for one in conv_problem(Conv, o, H200).formulations][:2] == ["dense", "plain"]
    for direction in (ConvDataGrad, ConvFilterGrad):
        assert conv_problem(direction, o, H200).formulations[0].name == "plain"
    o = operands((1, 64, side, side), (64, 16, 3, 3), square(3, 1, 1, 4))
    assert conv_problem(Conv, o, H200).formulations[0].name == "plain"


def test_a_filter_that_is_longer_read_than_groups_take_stays_in_groups() -> None:
    """Of 1512 channels: 41 MB of it, most of them zeros."""
    o = operands((1, 1512, 7, 7), (1512, 24, 3, 3), square(3, 1, 1, 63))
    assert conv_problem(Conv, o, H200).formulations[0].name == "plain"


def test_nothing_spreads_where_its_origin_is_sought() -> None:
    """Zeros times NaN are NaN in other groups; what a filter gradient has of them is left behind."""
    o = operands((64, 72, 56, 56), (72, 24, 3, 3), square(3, 1, 1, 3))
    policy = Policy(check_finite=True)
    found = [direction for direction in DIRECTIONS if merged(direction, o, H200.machine, policy)]
    assert found == [ConvFilterGrad]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_what_the_backend_plans(direction: Direction) -> None:
    o = operands((64, 576, 14, 14), (576, 24, 3, 3), square(3, 1, 1, 24))
    _, given = sides(direction, o)
    policy = Policy(algorithm="heuristic")  # whatever is known of it
    plan = backends.get(H200).plan(op_of(direction, o), [spec.open for spec in given], policy)
    assert " dense eng" in plan.label
