"""Convolutions dilated along one axis as ones without dilation on the same memory, and what that is planned for."""

from dataclasses import replace

import numpy as np
import pytest

from lamina import backends
from lamina.backends.cuda.conv.conv import conv_problem
from lamina.backends.cuda.conv.undilated import undilated, undilated_formulation
from lamina.backends.cuda.cudnn_graphs.conv import Direction, Operands, sides
from lamina.backends.cuda.cudnn_graphs.epilogue import Epilogue
from lamina.backends.cuda.select.formulations import candidates
from lamina.backends.cuda.select.target import target_of
from lamina.backends.reference import run_reference
from lamina.ops.core import Array
from lamina.ops.primitives import Add, Conv, ConvDataGrad, ConvFilterGrad, Relu, Window
from lamina.spec import Policy, Shape, Spec, channels_last, contiguous, float32, float64, pack, unpack
from tests.backends.cuda.select.test_formulations import DIRECTIONS, draw, op_of, operands
from tests.helpers.planned import H200


def line(
    dilation: int, low: int, high: int, groups: int = 1, *, stride: int = 1, flip: bool = False
) -> Window:
    return Window((stride,), ((low, high),), (dilation,), groups, flip)


CASES: dict[str, tuple[Shape, Shape, Window]] = {
    "both sides": ((2, 4, 12), (6, 4, 3), line(3, 3, 3)),
    "causal": ((2, 4, 16), (6, 4, 3), line(4, 8, 0)),
    "longer": ((1, 3, 10), (2, 3, 2), line(5, 5, 5)),
    "as long as the dilation": ((1, 3, 6), (2, 3, 3), line(6, 6, 6)),
    "groups": ((2, 8, 12), (4, 4, 3), line(2, 2, 2, 2)),
    "mirrored": ((2, 4, 12), (6, 4, 3), line(3, 6, 3, flip=True)),
    "along rows": ((2, 4, 12, 5), (6, 4, 3, 1), Window((1, 1), ((3, 3), (0, 0)), (3, 1))),
    "along columns": ((2, 4, 5, 12), (6, 4, 1, 3), Window((1, 1), ((0, 0), (2, 2)), (3, 2))),
    "three axes": ((2, 3, 2, 8, 3), (4, 3, 1, 3, 1), Window((1,) * 3, ((0, 0), (4, 0), (0, 0)), (1, 2, 1))),
}


def in_memory(array: Array, origin: Spec, to: Spec) -> Array:
    """The elements of one spec read as another one of the same memory."""
    return unpack(pack(array, origin.physical), to.physical, to.shape)


@pytest.mark.feature("B012")
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", CASES)
def test_the_same_memory_without_dilation(case: str, direction: Direction) -> None:
    o = operands(*CASES[case], float64)
    form = undilated(o)
    assert form is not None
    other = form.operands
    assert other.window.dilation == (1, 1)
    result, given = sides(direction, o)
    there, views = sides(direction, other)
    arrays = [draw(spec, i) for i, spec in enumerate(given)]
    (wanted,) = run_reference(op_of(direction, o), arrays, float64)
    seen = [in_memory(a, s, v) for a, s, v in zip(arrays, given, views, strict=True)]
    (found,) = run_reference(op_of(direction, other), seen, float64)
    np.testing.assert_allclose(in_memory(found, there, result), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("x", "w", "win", "reason"),
    [
        ((1, 8, 12), (8, 8, 3), line(1, 1, 1), "no dilation"),
        ((1, 8, 12), (8, 8, 3), line(2, 2, 2, stride=2), "a stride"),
        ((1, 8, 13), (8, 8, 3), line(2, 2, 2), "length no multiple"),
        ((1, 8, 12), (8, 8, 3), line(2, 2, 1), "result's length no multiple"),
        ((1, 8, 12), (8, 8, 3), line(2, 1, 1), "padding no multiple"),
        ((1, 8, 12), (8, 8, 1), line(2, 0, 0), "one tap"),
        ((1, 8, 12, 12), (8, 8, 3, 3), Window((1, 1), ((2, 2),) * 2, (2, 2)), "two axes of taps"),
        ((1, 8, 12, 12), (8, 8, 3, 1), Window((1, 1), ((2, 2), (1, 1)), (2, 1)), "padding elsewhere"),
    ],
)
def test_what_stays_dilated(x: Shape, w: Shape, win: Window, reason: str) -> None:
    o = operands(x, w, win)
    assert undilated(o) is None, reason
    for direction in DIRECTIONS:
        assert "undilated" not in [one.name for one in conv_problem(direction, o, H200).formulations]


def test_other_layouts_stay_dilated() -> None:
    shapes = ((1, 8, 12), (8, 8, 3), (1, 8, 12))
    last = [Spec(s, float32, channels_last(s)) for s in shapes]
    assert undilated(Operands(line(2, 2, 2), *last)) is not None
    for number, shape in enumerate(shapes):
        other = [*last]
        other[number] = Spec(shape, float32, contiguous(shape))
        assert undilated(Operands(line(2, 2, 2), *other)) is None


@pytest.mark.parametrize("dilation", [2, 16, 512])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_what_it_is_planned_for(direction: Direction, dilation: int) -> None:
    """Before the engines for dilated convolutions. cuDNN has plans of it."""
    o = operands((16, 128, 8192), (128, 128, 3), line(dilation, 2 * dilation, 0))
    names = [one.name for one in conv_problem(direction, o, H200).formulations]
    assert 0 <= names.index("undilated") < names.index("plain")
    problem = conv_problem(direction, o, H200)
    problem = replace(problem, formulations=tuple(w for w in problem.formulations if w.name == "undilated"))
    refusals: list[str] = []
    found = next(candidates(problem, target_of(H200), Policy(), ("a",), refusals), None)
    assert found is not None, refusals
    assert found.formulation.scratch == 0


@pytest.mark.parametrize("direction", [Conv, ConvDataGrad])
def test_steps_behind_it(direction: Direction) -> None:
    """Operands as large as the result, and those along channels, are viewed alike; others have no view."""
    o = operands((4, 64, 512), (64, 64, 3), line(8, 8, 8))
    (result, _), form = sides(direction, o), undilated(o)
    assert form is not None
    bias, residual, row = (Spec(s, o.x.dtype) for s in ((64, 1), result.shape, (512,)))
    steps = Epilogue((Add(), Add(), Relu()), (bias, residual), 2)
    viewed = form.epilogue(steps, result.shape)
    assert viewed is not None
    assert [spec.shape for spec in viewed.extras] == [(1, 64, 1, 1), (4, 64, 64, 8)]
    made = undilated_formulation(direction, form, steps, result.shape)
    assert made is not None
    problem = conv_problem(direction, o, H200, steps)
    assert made.name in [one.name for one in problem.formulations]
    assert undilated_formulation(direction, form, Epilogue((Add(),), (row,), 2), result.shape) is None
    assert "undilated" not in [
        one.name for one in conv_problem(direction, o, H200, Epilogue((Add(),), (row,), 2)).formulations
    ]


def test_a_filter_gradient_runs_undilated() -> None:
    """What the backend plans by itself where products of taps are not for it: a filter that is mirrored."""
    o = operands((16, 128, 8192), (128, 128, 3), line(16, 16, 16, flip=True))
    plan = backends.get(H200).plan(ConvFilterGrad(o.window, (3,)), [o.x.open, o.y.open], Policy())
    assert plan.label.startswith("cudnn conv_filter_grad undilated eng")
