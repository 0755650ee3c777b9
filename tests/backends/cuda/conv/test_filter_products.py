"""Filter gradients as products of taps: values on a CPU, how blocks share places, where they come first."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from lamina.backends.cuda.conv.conv import conv_problem
from lamina.backends.cuda.conv.filter_products import FilterProducts, filter_products
from lamina.backends.cuda.launch.program import Launch
from lamina.backends.reference import run_reference
from lamina.ops.core import Array
from lamina.ops.primitives import Conv, ConvDataGrad, ConvFilterGrad, Window
from lamina.runtime import Device
from lamina.spec import DType, Shape, Spec, bfloat16, float16, float32, float64
from tests.backends.cuda.select.test_formulations import draw, operands, run
from tests.backends.cuda.select.test_gpu_formulations import every_formulation
from tests.helpers import emulator
from tests.helpers.eager import mismatch
from tests.helpers.planned import H200

emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


def sequence(dilation: int, taps: int = 3, stride: int = 1) -> Window:
    """As long as what it reads, where the stride is 1 and the taps are odd."""
    pad = dilation * (taps // 2)
    return Window((stride,), ((pad, pad),), (dilation,))


def square(dilation: int, stride: int = 1, pad: int = 1) -> Window:
    return Window((stride, stride), ((pad, pad), (pad, pad)), (dilation, dilation))


CASES = {
    "as many as a block's": operands((2, 128, 80), (128, 128, 3), sequence(2)),
    "few channels": operands((3, 8, 37), (16, 8, 3), sequence(4), float16),
    "filters and channels beyond a block": operands((1, 136, 50), (72, 136, 2), Window((1,), ((3, 0),), (3,))),
    "more filters than channels": operands((2, 24, 33), (136, 24, 3), sequence(8)),
    "a stride": operands((2, 16, 41), (24, 16, 3), sequence(2, stride=3), float16),
    "taps beyond the image alone": operands((1, 8, 6), (8, 8, 5), sequence(9, 5)),
    "squares": operands((2, 40, 9, 11), (32, 40, 3, 3), square(2, pad=2)),
    "squares, uneven": operands((1, 16, 12, 7), (16, 16, 3, 2), Window((2, 1), ((0, 3), (1, 2)), (1, 3)), float16),
    "cubes": operands((2, 8, 5, 6, 7), (8, 8, 2, 1, 3), Window((1, 2, 1), ((1, 0), (0, 0), (2, 2)), (1, 1, 2))),
    "one place": operands((1, 8, 5), (8, 8, 3), Window((1,), ((0, 0),), (2,))),
}  # fmt: skip


def computed(form: FilterProducts, x: Array, dy: Array) -> Array:
    """By its kernels on the emulator."""
    return run(form.formulation(), [x, dy], [form.o.x, form.o.y], form.o.w)


@emulated
@pytest.mark.feature("B012")
@pytest.mark.parametrize("processors", [1, 9, 132])
@pytest.mark.parametrize("case", CASES)
def test_values(case: str, processors: int) -> None:
    """Blocks go over all places, or over a part each; in whatever order warps run, bits are the same."""
    o = CASES[case]
    form = filter_products(ConvFilterGrad, o, replace(H200.machine, multiprocessors=processors))
    assert form is not None
    assert form.slices * form.part >= form.places > (form.slices - 1) * form.part
    x, dy = draw(o.x, 4), draw(o.y, 5)
    found = computed(form, x, dy)
    with emulator.contrary():
        assert computed(form, x, dy).tobytes() == found.tobytes()
    (wanted,) = run_reference(ConvFilterGrad(o.window, o.w.shape[2:]), [x, dy], float64)
    assert not mismatch(found, wanted, o.w.dtype)


@emulated
def test_values_that_are_not_finite_stay_where_they_are() -> None:
    """What is beyond the image, or beyond the last place, counts as zero, whatever lies in memory."""
    o = CASES["few channels"]
    form = filter_products(ConvFilterGrad, o, H200.machine)
    assert form is not None
    x, dy = (np.ones(s.shape, s.dtype.numpy) for s in (o.x, o.y))
    x[1, 3], dy[2, 5] = np.inf, np.nan
    found = computed(form, x, dy)
    bad = ~np.isfinite(found.astype(np.float32))
    assert bad[:, 3].all()
    assert bad[5].all()
    assert bad.sum() == 3 * (16 + 8 - 1)


def test_blocks_fill_the_machine() -> None:
    """Two a multiprocessor, of at least eight turns each."""
    long = filter_products(
        ConvFilterGrad, operands((16, 128, 8192), (128, 128, 3), sequence(64)), H200.machine
    )
    assert long is not None
    assert (long.filters, long.channels, long.tiles, long.slices) == (128, 128, (1, 1), 88)
    assert 0.9 * 264 < long.results * long.slices <= 264
    short = filter_products(
        ConvFilterGrad, operands((1, 128, 512), (128, 128, 3), sequence(64)), H200.machine
    )
    assert short is not None
    assert (short.part, short.slices) == (256, 2)


@pytest.mark.parametrize("dilation", [2, 5, 512])
def test_all_dilations_share_a_kernel_and_come_first(dilation: int) -> None:
    """Whether the axis is a multiple of the dilation or not; so do other numbers of channels that a block holds."""
    first, other = (
        conv_problem(ConvFilterGrad, operands(x, w, sequence(d)), H200).formulations[0]
        for x, w, d in (
            ((16, 128, 8192), (128, 128, 3), dilation),
            ((2, 80, 77), (96, 80, 5), 3),
        )
    )
    assert first.name == other.name == "products"
    assert [s.program for s in first.steps if isinstance(s, Launch)] == [
        s.program for s in other.steps if isinstance(s, Launch)
    ]


def test_where_they_compete() -> None:
    """Without dilation, where the result is small; large ones leave no multiprocessor waiting."""
    little = conv_problem(ConvFilterGrad, operands((8, 128, 28, 28), (32, 128, 3, 3), square(1)), H200)
    names = [f.name for f in little.formulations]
    assert names.index("products") > names.index("plain")
    large = conv_problem(ConvFilterGrad, operands((8, 512, 28, 28), (512, 512, 3, 3), square(1)), H200)
    assert "products" not in [f.name for f in large.formulations]
    dilated = conv_problem(
        ConvFilterGrad, operands((8, 512, 28, 28), (512, 512, 3, 3), square(2, pad=2)), H200
    )
    assert dilated.formulations[0].name == "products"


@pytest.mark.parametrize(
    ("x", "w", "win", "dtype", "why"),
    [
        ((2, 16, 9), (16, 16, 3), sequence(2), float32, "the type"),
        ((2, 12, 9), (16, 12, 3), sequence(2), bfloat16, "channels between accesses"),
        ((2, 16, 9), (12, 16, 3), sequence(2), bfloat16, "filters between accesses"),
        ((2, 16, 9), (16, 8, 3), replace(sequence(2), groups=2), bfloat16, "groups"),
        ((2, 16, 9), (16, 16, 3), replace(sequence(2), flip=True), bfloat16, "a mirrored filter"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_refused(x: Shape, w: Shape, win: Window, dtype: DType, why: str) -> None:
    o = operands(x, w, win, dtype)
    assert filter_products(ConvFilterGrad, o, H200.machine) is None, why


def test_other_directions_and_layouts_are_refused() -> None:
    o = CASES["squares"]
    assert filter_products(Conv, o, H200.machine) is filter_products(ConvDataGrad, o, H200.machine) is None
    rows = replace(o, x=Spec(o.x.shape, o.x.dtype).fixed)
    assert filter_products(ConvFilterGrad, rows, H200.machine) is None


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_on_a_gpu(case: str) -> None:
    o, device = CASES[case], Device("cuda")
    form = filter_products(ConvFilterGrad, o, device.machine)
    assert form is not None
    problem = replace(conv_problem(ConvFilterGrad, o, device), formulations=(form.formulation(),))
    op = ConvFilterGrad(o.window, o.w.shape[2:])
    assert every_formulation(device, problem, op, [draw(o.x, 4), draw(o.y, 5)]) == {"products"}
