"""Convolutions as three of half as many taps on half as many rows: on the emulator, and what they are planned for."""

import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest

from lamina.backends.cuda.conv.conv import conv_problem
from lamina.backends.cuda.conv.fast_fir import FastFir, fast_fir_formulation, takes_fast_fir
from lamina.backends.cuda.cudnn_graphs.conv import Direction, sides
from lamina.backends.cuda.launch.program import SubPlan, source, target
from lamina.backends.cuda.select.formulations import candidate, make_plan
from lamina.backends.reference import run_reference
from lamina.ops.primitives import Conv, ConvDataGrad, Window
from lamina.ops.primitives.conv import ConvFilterGrad
from lamina.spec import DType, Shape, bfloat16, float16, float64
from tests.backends.cuda.select.test_formulations import draw, operands
from tests.helpers import emulator
from tests.helpers.eager import apart
from tests.helpers.own_kernels import DEVICE, by_definition
from tests.helpers.planned import H200

#: The convolution of `seeds/001`.
LARGE: tuple[Shape, Shape, Window] = (
    (64, 128, 112, 112),
    (128, 128, 7, 7),
    Window((1, 1), ((3, 3), (3, 3)), (1, 1)),
)


def rows(low: int, high: int, *others: tuple[int, int], stride: int = 1) -> Window:
    """Padding along the first axis and along others; their stride."""
    rank = 1 + len(others)
    return Window((1, *(stride,) * (rank - 1)), ((low, high), *others), (1,) * rank)


CASES: dict[str, tuple[Shape, Shape, Window]] = {
    "seven taps": ((2, 8, 12, 9), (16, 8, 7, 7), rows(3, 3, (3, 3))),
    "rows odd": ((2, 8, 13, 9), (8, 8, 7, 7), rows(3, 3, (3, 3))),
    "six taps": ((1, 16, 14, 7), (8, 16, 6, 3), rows(2, 3, (1, 1))),
    "six taps, rows odd": ((1, 16, 14, 7), (8, 16, 6, 3), rows(2, 2, (1, 1))),
    "none behind": ((2, 8, 15, 8), (8, 8, 5, 2), rows(1, 0, (0, 1))),
    "none behind, rows odd": ((2, 8, 16, 8), (8, 8, 5, 2), rows(1, 0, (0, 1))),
    "more than the filter reaches": ((1, 8, 7, 5), (8, 8, 5, 1), rows(7, 6, (0, 0))),
    "strided along columns": ((2, 8, 12, 9), (8, 8, 5, 3), rows(2, 2, (1, 1), stride=2)),
    "one axis": ((3, 8, 21), (16, 8, 7), rows(3, 3)),
    "three axes": ((1, 8, 10, 4, 5), (8, 8, 5, 3, 3), rows(2, 2, (1, 1), (1, 1))),
}


def turns_into_one(w: Shape, win: Window) -> bool:
    """Whether the data gradient is a convolution of stride 1 with padding before its first row."""
    return max(win.stride) == 1 and win.padding[0][0] < w[2] - 1


@pytest.mark.feature("B012")
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize(
    ("case", "direction"),
    [(case, Conv) for case in CASES]
    + [(case, ConvDataGrad) for case, (_, w, win) in CASES.items() if turns_into_one(w, win)],
)
def test_the_three_parts_are_the_whole(case: str, direction: Direction) -> None:
    """As exact as five roundings of a result would be (one is the result's own), whatever rows and taps remain."""
    x, w, win = CASES[case]
    o = operands(x, w, win)
    result, given = sides(direction, o)
    arrays = [draw(spec, i) for i, spec in enumerate(given)]
    op = Conv(win) if direction is Conv else ConvDataGrad(win, x[2:])
    problem = conv_problem(direction, o, H200)
    plan = make_plan(problem, candidate(fast_fir_formulation(direction, o, by_definition), None, {}), DEVICE)
    (found,) = emulator.run_plan(plan, arrays)
    assert not (wrong := apart(found, run_reference(op, arrays, float64)[0], result.dtype, 5)), wrong


@pytest.mark.feature("B012")
def test_parts_save_arithmetic() -> None:
    whole = operands(*LARGE)
    parts = FastFir(whole).parts
    assert sum(part.flops for part in parts) == pytest.approx(whole.flops * 11 / 14, rel=0.01)
    assert [part.window.stride for part in parts] == [(2, 1), (2, 1), (1, 1)]
    assert [part.x.shape[2] for part in parts] == [112, 112, 59]


@pytest.mark.parametrize("case", CASES)
def test_parts_are_padded_by_no_more_than_their_rows_need(case: str) -> None:
    whole = FastFir(operands(*CASES[case]))
    even, odd, _ = whole.parts
    for part, needed in ((even, whole.rows), (odd, whole.whole.y.shape[2] // 2 + 1)):
        low, high = part.window.padding[0]
        rows = [
            replace(part.window, padding=((low, more), *part.window.padding[1:])).output(
                part.x.shape[2:], part.w.shape[2:]
            )[0]
            for more in range(high + 1)
        ]
        assert rows[-1] == part.y.shape[2] >= needed
        assert all(number < needed for number in rows[:-1])


def test_parts_share_the_memory_behind_what_is_between_them() -> None:
    whole = FastFir(operands(*CASES["seven taps"]))
    sizes = iter((3000, 7000, 100))
    steps, size = whole.steps(
        source(0), source(1), target(), lambda part: SimpleNamespace(workspace=next(sizes)), 512
    )
    offsets = {step.offset for step in steps if isinstance(step, SubPlan)}
    p, q, s = whole.parts
    between = sum(-(-x.nbytes // 256) * 256 for x in (p.w, q.w, s.w, s.x, p.y, q.y, s.y))
    assert offsets == {512 + between}
    assert size == 512 + between + 7000


@pytest.mark.feature("B012")
@pytest.mark.parametrize(
    ("x", "w", "win", "dtype", "directions"),
    [
        (*LARGE, bfloat16, [Conv, ConvDataGrad]),
        (*LARGE, float16, []),
        ((64, 128, 112, 112), (128, 128, 3, 3), rows(1, 1, (1, 1)), bfloat16, []),
        ((2, 128, 112, 112), (128, 128, 7, 7), rows(3, 3, (3, 3)), bfloat16, []),
        ((256, 64, 112, 112), (64, 64, 7, 7), rows(3, 3, (3, 3)), bfloat16, []),
        ((64, 128, 112, 112), (128, 128, 7, 7), rows(3, 3, (3, 3), stride=2), bfloat16, [Conv]),
        ((64, 128, 112, 112), (128, 128, 7, 7), rows(0, 3, (3, 3)), bfloat16, [ConvDataGrad]),
        ((64, 128, 112, 112), (128, 128, 7, 7), rows(7, 7, (3, 3)), bfloat16, [Conv]),
        ((64, 128, 112, 112), (128, 64, 7, 7), Window((1, 1), ((3, 3),) * 2, (1, 1), 2), bfloat16, []),
        ((64, 128, 112, 112), (128, 128, 7, 7), Window((2, 2), ((3, 3),) * 2, (1, 1)), bfloat16, []),
        ((64, 128, 112, 112), (128, 128, 7, 7), Window((1, 1), ((6, 6),) * 2, (2, 2)), bfloat16, []),
        ((64, 128, 112, 112), (128, 128, 7, 7), Window((1, 1), ((3, 3),) * 2, (1, 1), 1, True), bfloat16, []),
        ((64, 130, 112, 112), (128, 130, 7, 7), rows(3, 3, (3, 3)), bfloat16, []),
    ],
)
def test_when_it_pays(x: Shape, w: Shape, win: Window, dtype: DType, directions: list[Direction]) -> None:
    o = operands(x, w, win, dtype)
    every = (Conv, ConvDataGrad, ConvFilterGrad)
    assert [d for d in every if takes_fast_fir(d, o, H200.machine)] == directions
