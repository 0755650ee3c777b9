"""Convolutions of windows that lie side by side, as products: the kernels around them, and where they come first."""

import shutil

import numpy as np
import pytest

from lamina import backends
from lamina.backends import Call
from lamina.backends.cuda.conv.conv import conv_problem, forward_plan
from lamina.backends.cuda.conv.patches import patches
from lamina.backends.cuda.cudnn_graphs.conv import Direction, Operands, sides
from lamina.backends.cuda.cudnn_graphs.epilogue import NONE, Epilogue
from lamina.backends.cuda.launch.program import Fill, Launch, Place, scratch
from lamina.backends.reference import run_reference
from lamina.ops.core import Array
from lamina.ops.primitives import Add, Conv, ConvDataGrad, ConvFilterGrad, Relu, Window
from lamina.spec import DType, Policy, Shape, Spec, bfloat16, float16, float32, float64, pack, unpack
from tests.backends.cuda.select.test_formulations import DIRECTIONS, draw, op_of, operands, square
from tests.helpers import emulator
from tests.helpers.eager import mismatch
from tests.helpers.planned import H200


def side_by_side(*taps: int) -> Window:
    return Window(taps, ((0, 0),) * len(taps), (1,) * len(taps))


CASES: dict[str, tuple[Shape, Shape]] = {
    "square": ((2, 8, 12, 8), (16, 8, 4, 4)),
    "rows of odd length": ((2, 3, 10, 15), (8, 3, 5, 5)),
    "not square": ((1, 16, 6, 9), (8, 16, 2, 3)),
    "a rest beyond the last window": ((2, 8, 9, 11), (8, 8, 2, 4)),
    "a rest, and rows of odd length": ((2, 3, 8, 8), (8, 3, 3, 3)),
    "one axis": ((3, 8, 12), (16, 8, 4)),
    "one axis and a rest": ((3, 8, 14), (16, 8, 4)),
    "along one axis of two": ((2, 8, 3, 8), (8, 8, 1, 2)),
    "three axes": ((1, 4, 4, 6, 4), (8, 4, 2, 3, 2)),
    "one window": ((2, 8, 4, 4), (8, 8, 4, 4)),
}


def matrix(memory: emulator.Memory, place: Place, sides: tuple[int, int], dtype: DType) -> Array:
    """A matrix that lies at a place of a memory: a view."""
    whole: Array = memory.bytes[place.offset :][: sides[0] * sides[1] * dtype.itemsize]
    return whole.view(dtype.numpy).reshape(sides)


@pytest.mark.feature("B012")
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("dtype", [float32, bfloat16, float16])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", CASES)
def test_products_of_patches_are_the_same(case: str, direction: Direction, dtype: DType) -> None:
    """The kernels on the emulator, over what lies in scratch memory; the product in NumPy."""
    x, w = CASES[case]
    o = operands(x, w, side_by_side(*w[2:]), dtype)
    form = patches(direction, o)
    assert form is not None
    made = form.product(NONE, H200.machine, Policy())
    p = made.product
    result, given = sides(direction, o)
    arrays = [draw(spec, i) for i, spec in enumerate(given)]
    held = [emulator.Memory(spec.nbytes) for spec in given]
    for memory, array, spec in zip(held, arrays, given, strict=True):
        memory.bytes[:] = pack(array, spec.physical).view(np.uint8).reshape(-1)
    out, room = emulator.Memory(result.nbytes), emulator.Memory(made.scratch)
    call = Call(tuple(m.pointer for m in held), (out.pointer,), room.pointer)
    emulator.run_steps(made.before, call)
    places = [{"workspace": room, "output": out}.get(at.kind) or held[at.index] for at in made.places]
    sizes = [(p.k, p.m) if p.a_transposed else (p.m, p.k), (p.n, p.k) if p.b_transposed else (p.k, p.n)]
    a, b = (
        matrix(memory, at, size, dtype).astype(np.float64)
        for memory, at, size in zip(places[:2], made.places[:2], sizes, strict=True)
    )
    product = (a.T if p.a_transposed else a) @ (b.T if p.b_transposed else b)
    matrix(places[2], made.places[2], (p.m, p.n), dtype)[:] = product.astype(dtype.numpy)
    emulator.run_steps(made.after, call)
    for memory in (*held, out, room):
        memory.check(case)
    found = unpack(out.bytes.view(dtype.numpy), result.physical, result.shape)
    wrong = mismatch(found, run_reference(op_of(direction, o), arrays, float64)[0], dtype)
    assert not wrong, wrong


@pytest.mark.parametrize(
    ("x", "w", "copied"),
    [
        ((2, 8, 64), (16, 8, 4), False),
        ((2, 8, 66), (16, 8, 4), True),
        ((2, 8, 3, 8), (8, 8, 1, 4), False),
        ((2, 8, 3, 8), (8, 8, 3, 1), True),
        ((2, 8, 12, 12), (8, 8, 4, 4), True),
        ((2, 3, 64), (8, 3, 4), True),
    ],
)
def test_windows_that_lie_side_by_side_are_not_copied(x: Shape, w: Shape, copied: bool) -> None:
    for direction in DIRECTIONS:
        form = patches(direction, operands(x, w, side_by_side(*w[2:])))
        assert form is not None
        made = form.product(NONE, H200.machine, Policy())
        assert form.lies_so == (not copied)
        assert bool(made.before or made.after) == bool(made.scratch) == copied


def test_only_a_rest_is_filled() -> None:
    """Every element of x has a window, and every element of a row a place: nothing is set to zero first."""
    for x, w, filled in (
        ((2, 8, 12, 12), (8, 8, 4, 4), set[Direction]()),
        ((2, 8, 13, 12), (8, 8, 4, 4), {ConvDataGrad}),
        ((2, 3, 15, 15), (8, 3, 5, 5), {Conv, ConvFilterGrad}),
    ):
        for direction in DIRECTIONS:
            form = patches(direction, operands(x, w, side_by_side(*w[2:])))
            assert form is not None
            made = form.product(NONE, H200.machine, Policy())
            found = any(isinstance(step, Fill) for step in (*made.before, *made.after))
            assert found == (direction in filled)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("size", [14, 16, 32])
@pytest.mark.parametrize("batch", [1, 64])
def test_patches_of_images_are_products(batch: int, size: int, direction: Direction) -> None:
    o = operands((batch, 3, 224, 224), (768, 3, size, size), side_by_side(size, size))
    problem = conv_problem(direction, o, H200)
    names = [one.name for one in problem.formulations]
    assert names[0] == "patches-conv"
    assert {"patches-matmul", "padded", "plain"} <= {*names}
    assert problem.kind.endswith(" patches")


@pytest.mark.parametrize(("size", "first"), [(16, "patches-conv"), (4, "deep")])
def test_few_windows_of_many_taps_are_products(size: int, first: str) -> None:
    """An engine takes its time for each tap, even of 196 windows that are no arithmetic to speak of."""
    o = operands((1, 3, 14 * size, 14 * size), (384, 3, size, size), side_by_side(size, size))
    assert conv_problem(Conv, o, H200).formulations[0].name == first


def test_small_windows_of_many_channels_are_left_to_contests() -> None:
    """Forward and for the filter their engines are good; the data gradient's are not."""
    o = operands((64, 320, 14, 14), (320, 320, 2, 2), side_by_side(2, 2))
    firsts = {d: conv_problem(d, o, H200).formulations[0].name for d in DIRECTIONS}
    assert firsts == {Conv: "plain", ConvDataGrad: "patches-conv", ConvFilterGrad: "plain"}
    assert "patches-conv" in [one.name for one in conv_problem(Conv, o, H200).formulations]


@pytest.mark.parametrize(
    ("x", "w", "win", "reason"),
    [
        ((2, 8, 8, 8), (8, 8, 3, 3), square(3, 2), "windows overlap"),
        ((2, 8, 9, 9), (8, 8, 2, 2), square(2, 3), "gaps between windows"),
        ((2, 8, 8, 8), (8, 8, 2, 2), square(2, 2, 1), "padding"),
        ((2, 8, 8, 8), (8, 8, 2, 2), square(2, 2, dilation=2), "dilation"),
        ((2, 8, 8, 8), (8, 8, 1, 1), square(1), "one tap"),
        ((2, 8, 8, 8), (8, 4, 2, 2), square(2, 2, groups=2), "groups"),
        ((2, 8, 8, 8), (10, 8, 2, 2), square(2, 2), "rows of y are no whole 16 bytes"),
        ((2, 8, 8, 8), (8, 8, 2, 2), Window((2, 2), ((0, 0),) * 2, (1, 1), flip=True), "mirrored"),
    ],
)
def test_what_stays_a_convolution(x: Shape, w: Shape, win: Window, reason: str) -> None:
    for direction in DIRECTIONS:
        assert patches(direction, operands(x, w, win)) is None, reason


def test_row_major_operands_stay_a_convolution() -> None:
    o = operands((2, 8, 8, 8), (8, 8, 2, 2), square(2, 2))
    assert patches(Conv, Operands(o.window, o.x, o.w, o.y.open.fixed)) is None
    assert patches(Conv, Operands(o.window, o.x.open.fixed, o.w, o.y)) is None


IMAGE = (64, 3, 224, 224), (768, 3, 16, 16)


@pytest.mark.parametrize(
    ("shapes", "first"),
    [
        ([(1, 768, 1, 1)], ["patches-conv", "patches-matmul"]),
        ([(768, 1, 1), (64, 768, 14, 14)], ["patches-matmul", "patches-conv"]),
    ],
    ids=str,
)
def test_steps_follow_the_product(shapes: list[Shape], first: list[str]) -> None:
    """A bias, and what is as large as the result, on rows: the second by cuDNN's products first."""
    o = operands(*IMAGE, side_by_side(16, 16))
    epilogue = Epilogue((*(Add() for _ in shapes), Relu()), tuple(Spec(s, bfloat16) for s in shapes), 2)
    names = [one.name for one in conv_problem(Conv, o, H200, epilogue).formulations]
    assert names[:2] == first
    form = patches(Conv, o)
    assert form is not None
    rows = form.epilogue(epilogue)
    assert rows is not None
    assert [spec.shape for spec in rows.extras] == [(768,), (64 * 14 * 14, 768)][: len(shapes)]


def test_other_steps_run_behind_it() -> None:
    """What varies along some axes only is added by a kernel of its own."""
    shape = (1, 768, 14, 14)
    epilogue = Epilogue((Add(), Relu()), (Spec(shape, bfloat16),), 2)
    specs = [Spec(s, bfloat16) for s in (*IMAGE, shape)]
    plan = forward_plan(Conv(side_by_side(16, 16)), specs, epilogue, H200, Policy())
    assert plan.label.endswith(" split")
    launches = [step.program.name for step in plan.make.steps if isinstance(step, Launch)]
    assert launches == ["elementwise"] * 2


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_what_the_backend_plans(direction: Direction) -> None:
    o = operands(*IMAGE, side_by_side(16, 16))
    _, given = sides(direction, o)
    plan = backends.get(H200).plan(op_of(direction, o), [spec.open for spec in given], Policy())
    assert " patches-" in plan.label
    assert plan.workspace >= o.x.nbytes
    places = [p for step in plan.make.steps if isinstance(step, Launch) for p in step.arguments]
    assert scratch() in places
