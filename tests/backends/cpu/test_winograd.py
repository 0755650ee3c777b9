"""Winograd's convolution on the cpu backend: its matrices, its values, and when it is chosen."""

from collections.abc import Iterator
from math import prod

import numpy as np
import pytest

from lamina import backends, nn, onednn
from lamina.backends.cpu import conv, library, winograd
from lamina.backends.cpu import window as windows
from lamina.backends.cpu.library import PrimitiveStage, Stages, at_output
from lamina.backends.cpu.winograd import (
    Axis,
    WinogradConv,
    _plain_product,
    bands,
    filter_matrix,
    output_matrix,
    plain,
)
from lamina.backends.reference import run_reference
from lamina.infer import Predictor
from lamina.ops.core import Array, Op
from lamina.ops.primitives import Add, Conv, ConvDataGrad, ConvFilterGrad, Fused, Relu, Window
from lamina.runtime import Device
from lamina.spec import Policy, Spec, bfloat16, float32, float64
from tests.helpers.eager import execute

pytestmark = pytest.mark.skipif(not onednn.available(), reason="oneDNN is built for x86-64")


@pytest.fixture(autouse=True)
def wide_registers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """It is taken as on a processor with AVX-512, and is right on any other."""
    monkeypatch.setattr(winograd, "prefers_channels_last", lambda: True)
    monkeypatch.setattr(windows, "prefers_channels_last", lambda: True)
    conv._known_forward.cache_clear()  # plans of this processor, and behind it those of the other one
    yield
    conv._known_forward.cache_clear()


CPU = Device("cpu")
BACKEND = backends.get(CPU, "cpu")
DIRECT = Policy(algorithm="fallback")
Pads = tuple[tuple[int, int], tuple[int, int]]


def window(pads: Pads) -> Window:
    return Window((1, 1), pads, (1, 1))


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("r", [3, 5])
@pytest.mark.parametrize(("size", "lo", "hi"), [(12, 1, 1), (13, 0, 2), (7, 2, 0), (26, 2, 2), (9, 0, 0)])
def test_the_three_transforms_make_a_correlation(r: int, size: int, lo: int, hi: int) -> None:
    """results · (inputs x * G w) is the sliding product, for every size and padding, in float64."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal(size), rng.standard_normal(r)
    axis = Axis(size, size + lo + hi - r + 1, 7 - r, lo)
    tiles = (axis.inputs() @ x).reshape(-1, 6) * (filter_matrix(r) @ w)
    y = axis.results() @ tiles.reshape(-1)
    assert np.allclose(y, np.correlate(np.pad(x, (lo, hi)), w, "valid"), atol=1e-12)


def test_matrices_of_the_paper() -> None:
    """F(4, 3) as printed by Lavin and Gray."""
    g = [
        [1 / 4, 0, 0],
        [-1 / 6] * 3,
        [-1 / 6, 1 / 6, -1 / 6],
        [1 / 24, 1 / 12, 1 / 6],
        [1 / 24, -1 / 12, 1 / 6],
        [0, 0, 1],
    ]
    a = [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]]
    assert np.allclose(filter_matrix(3), g)
    assert np.allclose(output_matrix(4), a)


@pytest.mark.feature("F045", "F046", "F052")
@pytest.mark.parametrize(
    ("x", "k", "r", "pads"),
    [
        ((6, 96, 14, 15), 128, 5, ((0, 3), (2, 1))),  # ragged tiles, uneven padding
        ((5, 96, 29, 31), 72, 3, ((0, 1), (2, 0))),
        ((8, 256, 12, 12), 256, 3, ((1, 1), (1, 1))),
        ((18, 96, 28, 32), 96, 3, ((1, 1), (1, 1))),  # more than one chunk of images
        ((2, 64, 57, 46), 192, 3, ((1, 1), (0, 2))),  # transforms in more than one part along both axes
    ],
)
def test_values(x: tuple[int, ...], k: int, r: int, pads: Pads) -> None:
    """Close to float64 in all directions, with fused steps; the direct algorithm stays at hand."""
    op = Conv(window(pads))
    images, w, b = normal(*x), normal(k, x[1], r, r, seed=1) * np.float32(0.05), normal(1, k, 1, 1, seed=2)
    y = run_reference(op, [images, w])[0]
    g = normal(*y.shape, seed=3)
    cases: list[tuple[Op, list[Array]]] = [
        (op, [images, w]),
        (Fused((op, Add(), Add(), Relu())), [images, w, b, g]),
        (ConvDataGrad(window(pads), x[2:]), [g, w]),
        (ConvFilterGrad(window(pads), (r, r)), [images, g]),
    ]
    for case, arrays in cases:
        exact = run_reference(case, arrays, float64)[0]
        specs = [Spec(a.shape, float32) for a in arrays]
        plan = BACKEND.plan(case, specs, Policy())
        assert plan.label == "onednn winograd by matmul"
        found = execute(CPU, plan, arrays)[0]
        assert np.sqrt(((found - exact) ** 2).mean() / (exact**2).mean()) < 8e-6
        assert np.abs(found - exact).max() < 5e-5 * np.abs(exact).max()
        again = execute(CPU, plan, arrays)[0]
        assert np.array_equal(found, again)
        for policy in (DIRECT, Policy(workspace_limit=plan.workspace - 1)):
            assert "winograd" not in BACKEND.plan(case, specs, policy).label


@pytest.mark.parametrize("lo", [0, 1, 2])
@pytest.mark.parametrize("rows", [4, 7, 42, 1000])
def test_parts_of_a_band_matrix_are_all_of_it(lo: int, rows: int) -> None:
    for matrix in (Axis(30, 31, 4, lo).inputs(), Axis(30, 31, 4, lo).results()):
        whole = np.zeros_like(matrix)
        for band in bands(matrix, rows):
            high, wide = band.values.shape
            assert high <= rows or band.values.shape == matrix.shape
            whole[band.row : band.row + high, band.column : band.column + wide] = band.values
        assert np.array_equal(whole, matrix)


def test_a_matrix_is_taken_in_parts_where_that_saves_a_third() -> None:
    long, short = Axis(56, 56, 4, 1).inputs(), Axis(32, 32, 4, 1).inputs()
    assert [band.values.shape for band in bands(long, 42)] == [(42, 29), (42, 29)]
    assert [band.values.shape for band in bands(short, 42)] == [(48, 32)]


def products(*specs: Spec) -> list[tuple[int, ...]]:
    """The sizes of the products of a plan on filters that stay."""
    packed = BACKEND.plan(Conv(window(((1, 1), (1, 1)))), specs, Policy()).packed
    assert packed is not None
    make = packed.plan.make
    assert isinstance(make, Stages)
    return [s.desc.dst.dims for s in make.stages if isinstance(s, PrimitiveStage)]


def test_products_at_places_take_a_kernel_of_their_own_within_caches() -> None:
    """Behind an axis of one; what does not fit into caches is left to the general kernel."""
    small = products(Spec((1, 128, 28, 28), float32), Spec((128, 128, 3, 3), float32))
    large = products(Spec((1, 512, 28, 28), float32), Spec((512, 512, 3, 3), float32))
    assert (1, 36, 49, 128) in small
    assert (36, 49, 512) in large


@pytest.mark.parametrize("k", [96, 100])
def test_filters_that_stay_are_transformed_once(k: int) -> None:
    """The plan for filters that change is the direct one; that for those that stay reads their transforms."""
    op = Fused((Conv(window(((1, 1), (1, 1)))), Add(), Add(), Relu()))
    arrays = [
        normal(1, 96, 28, 28),
        normal(k, 96, 3, 3, seed=1),
        normal(1, k, 1, 1),
        normal(1, k, 28, 28, seed=2),
    ]
    plan = BACKEND.plan(op, [Spec(a.shape, float32) for a in arrays], Policy())
    assert "winograd" not in plan.label
    assert plan.packed is not None
    assert plan.packed.plan.label == "onednn winograd by matmul"
    (held,) = execute(CPU, plan.packed.pack, arrays[1:2])
    found = execute(CPU, plan.packed.plan, [arrays[0], held, *arrays[2:]])[0]
    exact = run_reference(op, arrays, float64)[0]
    assert np.abs(found - exact).max() < 5e-5 * np.abs(exact).max()
    small = BACKEND.plan(op, [Spec(a.shape, float32) for a in arrays], DIRECT)
    assert small.packed is None or "winograd" not in small.packed.plan.label


def test_a_network_reads_transforms_of_its_weights_as_they_are_now() -> None:
    net = nn.Sequential(nn.Conv2d(96, 96, 3, padding=1), nn.ReLU()).eval()
    x = normal(1, 96, 28, 28)
    predictor = Predictor(net, device="cpu")
    for factor in (1.0, -2.0):
        net[0].weight.copy_(normal(96, 96, 3, 3, seed=3) * np.float32(factor * 0.05))
        predictor.refresh()
        np.testing.assert_allclose(predictor(x).numpy(), net(x).numpy(), atol=5e-4)


def test_chunks_divide_the_batch() -> None:
    x, w = Spec((20, 128, 32, 30), float32), Spec((128, 128, 3, 3), float32)
    (y,) = Conv(window(((1, 1), (1, 1)))).infer(x, w)
    problem = WinogradConv.of(window(((1, 1), (1, 1))), x, w, y)
    assert problem is not None
    assert 1 < problem.images < 20
    assert 20 % problem.images == 0


@pytest.mark.parametrize(
    ("change", "x", "w"),
    [
        ("small", (2, 16, 12, 12), (16, 16, 3, 3)),
        ("stride", (8, 256, 24, 24), (256, 256, 3, 3)),
        ("dilation", (8, 256, 12, 12), (256, 256, 3, 3)),
        ("groups", (8, 256, 12, 12), (256, 128, 3, 3)),
        ("flip", (8, 256, 12, 12), (256, 256, 3, 3)),
        ("even", (8, 256, 12, 12), (256, 256, 4, 4)),
        ("half", (8, 256, 12, 12), (256, 256, 3, 3)),
    ],
)
def test_other_convolutions_stay_direct(change: str, x: tuple[int, ...], w: tuple[int, ...]) -> None:
    pads = ((1, 1), (1, 1))
    step, gap = (2 if change == "stride" else 1,) * 2, (2 if change == "dilation" else 1,) * 2
    win = Window(step, pads, gap, 2 if change == "groups" else 1, change == "flip")
    kind = bfloat16 if change == "half" else float32
    images, filters = Spec(x, kind), Spec(w, kind)
    (y,) = Conv(win).infer(images, filters)
    assert WinogradConv.of(win, images, filters, y) is None
    plan = BACKEND.plan(Conv(win), [images, filters], Policy())
    if kind is float32 or convolves_bfloat16(images, filters, y, win):
        assert "winograd" not in plan.label
    else:  # it is the convolution in float32, between casts
        wide = BACKEND.plan(Conv(win), [Spec(x, float32), Spec(w, float32)], Policy())
        assert plan.label == f"{wide.label} in float32"


def convolves_bfloat16(x: Spec, w: Spec, y: Spec, win: Window) -> bool:
    """Whether oneDNN has more than its reference code for it on this processor."""
    images, result = (library.open_desc(s, "acdb") for s in (x, y))
    made = library.attempt(
        lambda: onednn.convolution_forward(
            images, library.open_desc(w), None, result, windows.sliding(win), prop="inference"
        )
    )
    return made is not None


@pytest.mark.parametrize(
    ("x", "k", "r", "chosen"),
    [
        ((1, 64, 56, 56), 192, 3, True),
        ((1, 64, 112, 112), 64, 3, False),  # the transforms cost as much as they save
        ((8, 64, 56, 56), 64, 3, False),
        ((1, 256, 56, 56), 256, 3, True),
        ((4, 256, 14, 14), 256, 3, True),
        ((16, 32, 28, 28), 96, 5, False),
        ((16, 64, 27, 27), 192, 5, True),
    ],
)
def test_the_transforms_must_pay(x: tuple[int, ...], k: int, r: int, chosen: bool) -> None:
    op = Conv(window(((r // 2, r // 2), (r // 2, r // 2))))
    plan = BACKEND.plan(op, [Spec(x, float32), Spec((k, x[1], r, r), float32)], Policy())
    assert ("winograd" in plan.label) == chosen


@pytest.mark.parametrize(
    ("x", "k", "r"), [((2, 256, 56, 40), 192, 3), ((4, 320, 14, 14), 256, 3), ((16, 64, 27, 20), 192, 5)]
)
def test_a_plan_says_what_it_saves(x: tuple[int, ...], k: int, r: int) -> None:
    """The 36 products of whole tiles beside the direct algorithm's, by their numbers of multiplications."""
    win, specs = window(((r // 2, r // 2),) * 2), [Spec(x, float32), Spec((k, x[1], r, r), float32)]
    (y,) = Conv(win).infer(*specs)
    problem = WinogradConv.of(win, specs[0], specs[1], y)
    assert problem is not None
    plan = BACKEND.plan(Conv(win), specs, Policy())
    direct = prod(y.shape) * x[1] * r * r
    between = 36 * problem.tiles * x[0] * x[1] * k
    assert problem.saved == pytest.approx(direct / between, rel=1e-12)
    assert plan.arithmetic == 1 / problem.saved


def test_each_limit_is_the_least_that_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = WinogradConv(2, 256, 192, 3, Axis(40, 40, 4, 1), Axis(28, 26, 4, 0))
    work = 2 * 40 * 26 * 256 * 192 * 9
    limits = {"LEAST_WORK": work, "LEAST_TILES": 2 * 70, "LEAST_CHANNELS": 192, "LEAST_GAIN": problem.gain()}
    for name, reached in limits.items():
        with monkeypatch.context() as patch:
            patch.setattr(winograd, name, reached)
            assert problem.pays, name
            patch.setattr(winograd, name, reached + (1e-9 if name == "LEAST_GAIN" else 1))
            assert not problem.pays, name


def test_data_gradient_with_more_padding_than_the_filter_reaches_stays_direct() -> None:
    win = window(((3, 0), (0, 0)))
    g, w = Spec((8, 256, 13, 12), float32), Spec((256, 256, 3, 3), float32)
    plan = BACKEND.plan(ConvDataGrad(win, (12, 14)), [g, w], Policy())
    assert "winograd" not in plan.label


def test_equal_layers_share_matrices_and_products() -> None:
    axis = Axis(14, 14, 4, 1)
    assert axis.inputs() is Axis(14, 14, 4, 1).inputs()
    assert axis.results() is Axis(14, 14, 4, 1).results()
    a, b, c = (plain(at_output(), *dims).desc for dims in ((3, 4), (4, 5), (3, 5)))
    assert _plain_product(a, b, c) is _plain_product(*(plain(at_output(), *d.dims).desc for d in (a, b, c)))
