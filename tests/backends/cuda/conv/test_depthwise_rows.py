"""Convolutions with one filter per channel that go down the rows: values on a CPU, tilings, machine code, order."""

import shutil
import struct
from dataclasses import replace
from math import prod

import numpy as np
import pytest

from lamina.backends import Call
from lamina.backends.cuda.conv.conv import conv_problem, data_grad_plan, forward_plan
from lamina.backends.cuda.conv.depthwise import depthwise_formulation, is_depthwise
from lamina.backends.cuda.conv.depthwise_rows import WalkAxis, _candidates, _tiling, takes_rows
from lamina.backends.cuda.cudnn_graphs.conv import Direction, Operands, sides
from lamina.backends.cuda.cudnn_graphs.epilogue import Epilogue, Vector
from lamina.backends.cuda.launch.program import Launch, Program
from lamina.backends.reference import run_reference
from lamina.ops.core import Array, Op
from lamina.ops.primitives import (
    Add,
    ClippedRelu,
    Conv,
    ConvDataGrad,
    ConvFilterGrad,
    Fused,
    HardSwish,
    Relu,
    Silu,
    Window,
)
from lamina.runtime import Device
from lamina.spec import (
    DType,
    Layout,
    Policy,
    Spec,
    bfloat16,
    channels_last,
    float16,
    float32,
    float64,
    pack,
    unpack,
)
from tests.helpers import emulator
from tests.helpers.eager import mismatch
from tests.helpers.planned import H200, KINDS

emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
DIRECTIONS = (Conv, ConvDataGrad, ConvFilterGrad)
Pads = tuple[tuple[int, int], tuple[int, int]]


def operands(
    x: tuple[int, int, int, int],
    taps: tuple[int, int],
    stride: tuple[int, int] = (1, 1),
    pads: Pads | None = None,
    dtype: DType = bfloat16,
    dilation: int = 1,
) -> Operands:
    """One filter per channel; without `pads` half of it beyond each side."""
    kh, kw = taps
    padding = ((kh // 2, kh // 2), (kw // 2, kw // 2)) if pads is None else pads
    win, w = Window(stride, padding, (dilation, dilation), x[1]), (x[1], 1, *taps)
    y = (x[0], x[1], *win.output(x[2:], taps))
    return Operands(win, *(Spec(s, dtype, channels_last(s)) for s in (x, w, y)))


def op_of(direction: Direction, o: Operands) -> Op:
    if direction is Conv:
        return Conv(o.window)
    if direction is ConvDataGrad:
        return ConvDataGrad(o.window, o.x.shape[2:])
    return ConvFilterGrad(o.window, o.w.shape[2:])


def check(
    direction: Direction,
    o: Operands,
    multiprocessors: int,
    vector: Vector | None = None,
    op: Op | None = None,
    extras: tuple[Spec, ...] = (),
    bad: tuple[float, float] | None = None,
) -> None:
    """The kernels on the emulator against float64, nothing written beside the result and the workspace.

    bad: how far into the image that is read, from 0 to 1, there is this value.
    """
    machine = replace(H200.machine, multiprocessors=multiprocessors)
    formulation = depthwise_formulation(direction, o, vector or Vector(), machine)
    result, given = sides(direction, o)
    rng, specs = np.random.default_rng(1), (*given, *extras)
    arrays: list[Array] = [rng.standard_normal(s.shape).astype(s.dtype.numpy) for s in specs]
    if bad is not None:
        arrays[0].flat[int(bad[0] * (arrays[0].size - 1))] = bad[1]
    held = [emulator.Memory(s.nbytes) for s in (*specs, result)]
    for memory, array, spec in zip(held, arrays, specs, strict=False):
        memory.bytes[:] = pack(array, spec.physical).view(np.uint8).reshape(-1)
    scratch = emulator.Memory(formulation.scratch)
    *inputs, out = [m.pointer for m in held]
    emulator.run_steps(formulation.steps, Call(tuple(inputs), (out,), scratch.pointer))
    for memory in (*held, scratch):
        memory.check(formulation.name)
    found = unpack(held[-1].bytes.view(result.dtype.numpy), result.physical, result.shape)
    wanted = run_reference(op or op_of(direction, o), arrays, float64)[0]
    assert not mismatch(found, wanted, result.dtype), (direction, o)


CASES = {
    "5 x 5": operands((2, 24, 9, 10), (5, 5)),
    "5 x 5 by 2": operands((2, 24, 11, 14), (5, 5), (2, 2), dtype=float16),
    "7 x 7": operands((3, 16, 7, 7), (7, 7)),
    "7 x 7 by 2, no padding": operands((1, 40, 16, 13), (7, 7), (2, 2), ((0, 0), (0, 0)), float16),
    "odd channels": operands((2, 35, 8, 17), (5, 5), pads=((1, 3), (2, 0))),
    "few taps of odd channels": operands((2, 13, 6, 5), (3, 3)),
    "1 x 7": operands((1, 8, 5, 20), (1, 7), dtype=float16),
    "31 x 1": operands((2, 2, 37, 3), (31, 1)),
    "1 x 31": operands((2, 2, 3, 37), (1, 31)),
    "even taps, strides apart": operands((1, 34, 9, 14), (4, 6), (1, 3), ((1, 2), (3, 3))),
    "strides beyond the filter": operands((2, 6, 13, 17), (2, 5), (4, 6), ((1, 0), (2, 2))),
    "padding beyond the filter": operands((1, 10, 3, 4), (2, 5), pads=((4, 3), (6, 7))),
    "one row": operands((2, 130, 1, 9), (7, 7)),
}


def among_channels(x: Spec, channels: int) -> Spec:
    """A part of images with so many channels, channels last."""
    _, _, h, w = x.shape
    return Spec(x.shape, x.dtype, Layout((h * w * channels, 1, w * channels, channels)))


@emulated
@pytest.mark.parametrize("direction", [Conv, ConvFilterGrad])
@pytest.mark.parametrize("case", ["3 x 3", "3 x 3 by 2", "5 x 5", "5 x 5 by 2", "odd channels", "31 x 1"])
def test_parts_of_images_are_read_where_they_lie(case: str, direction: Direction) -> None:
    small = {"3 x 3": operands((2, 16, 9, 10), (3, 3)), "3 x 3 by 2": operands((2, 24, 9, 7), (3, 3), (2, 2))}
    o = (small | CASES)[case]
    check(direction, replace(o, x=among_channels(o.x, o.x.shape[1] + 16)), 2)


@emulated
@pytest.mark.feature("B012")
@pytest.mark.parametrize("multiprocessors", [1, 132])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", CASES)
def test_values(case: str, direction: Direction, multiprocessors: int) -> None:
    """With few multiprocessors threads walk down image after image, with many of them down parts of one."""
    o = CASES[case]
    assert is_depthwise(direction, o, Vector())
    check(direction, o, multiprocessors)


@emulated
@pytest.mark.feature("B012")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("multiprocessors", [1, 132])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", CASES)
def test_what_is_not_finite_reaches_no_more_than_it_should(
    case: str, direction: Direction, multiprocessors: int, bad: float
) -> None:
    """One element of the image, in corners and within it: the sums that it is part of, and no others."""
    o = CASES[case]
    for place in (0.0, 0.5, 1.0):
        check(direction, o, multiprocessors, bad=(place, bad))


@emulated
@pytest.mark.feature("B012")
@pytest.mark.parametrize("case", ["5 x 5 by 2", "odd channels"])
@pytest.mark.parametrize("activation", [Relu(), ClippedRelu(0.7), Silu()], ids=str)
def test_bias_and_activation(case: str, activation: Op) -> None:
    o = CASES[case]
    bias = Spec((1, o.w.shape[0], 1, 1), o.x.dtype).fixed
    vector = Epilogue((Add(), activation), (bias,), 2).vector(o.y.shape, 1)
    assert is_depthwise(Conv, o, vector)
    check(Conv, o, 1, vector, Fused((Conv(o.window), Add(), activation)), (bias,))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_which_kernel_takes_what(direction: Direction) -> None:
    """Nine taps of channels in multiples of eight stay with the kernel that goes along the rows."""

    def programs(o: Operands) -> set[str]:
        steps = depthwise_formulation(direction, o, None, H200.machine).steps
        return {step.program.file for step in steps if isinstance(step, Launch)}

    beside = {"conv/depthwise_sum.cu"} if direction is ConvFilterGrad else set()
    own = {"conv/depthwise_rows_filter.cu" if direction is ConvFilterGrad else "conv/depthwise_rows.cu"}
    assert programs(operands((2, 16, 9, 9), (3, 3))) == {"conv/depthwise.cu"} | beside
    assert programs(operands((2, 20, 9, 9), (3, 3))) == own | beside
    assert programs(operands((2, 16, 9, 9), (3, 3), (3, 3))) == own | beside
    assert programs(operands((2, 16, 9, 9), (5, 5))) == own | beside
    assert conv_problem(direction, operands((2, 16, 9, 9), (5, 5)), H200).formulations[0].name == "depthwise"


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_what_is_refused(direction: Direction) -> None:
    x = (1, 16, 40, 40)
    flipped = operands(x, (5, 5))
    several = Window((1, 1), ((2, 2), (2, 2)), (1, 1), 16)
    shapes = (x, (32, 1, 5, 5), (1, 32, 40, 40))
    for o in (
        operands(x, (5, 5), dilation=2),
        operands(x, (15, 15)),
        operands(x, (1, 39)),
        operands(x, (5, 5), dtype=float32),
        replace(flipped, window=replace(flipped.window, flip=True)),
        Operands(several, *(Spec(s, bfloat16, channels_last(s)) for s in shapes)),
    ):
        assert not is_depthwise(direction, o, Vector())
    assert not is_depthwise(direction, operands(x, (5, 5)), None)
    assert not is_depthwise(direction, operands(x, (5, 5)), Vector(residual=2))


@pytest.mark.parametrize(("taps", "channels"), [(3, 16), (7, 18)])
def test_steps_that_no_own_kernel_takes_run_apart(taps: int, channels: int) -> None:
    o = operands((2, channels, 9, 9), (taps, taps))
    given = (o.x.open, o.w.open, o.y.open)
    alone, residual = Epilogue((Silu(),), (), 2), Epilogue((Add(), Relu()), (o.y.open,), 2)
    for steps in (alone, residual):
        found = data_grad_plan(op_of(ConvDataGrad, o), given[2:0:-1], steps, H200, Policy())
        assert found.label.endswith(" split"), found.label
    found = forward_plan(Conv(o.window), given[:2], residual, H200, Policy())
    assert found.label.endswith(" split"), found.label
    biased = Epilogue((Add(), HardSwish()), (Spec((1, channels, 1, 1), bfloat16),), 2)
    for steps in (alone, biased):
        taken = forward_plan(Conv(o.window), given[:2], steps, H200, Policy())
        assert taken.label.endswith(" depthwise"), taken.label


def test_places_that_meet() -> None:
    """The tap of every pair of places, from the definition."""
    for kernel, stride, pad in ((5, 1, 2), (5, 2, 2), (7, 2, 3), (4, 3, 1), (2, 4, 1), (3, 1, 5)):
        forward = WalkAxis.of(Conv, kernel, stride, pad)
        back = WalkAxis.of(ConvDataGrad, kernel, stride, pad)
        for y in range(6):
            for x in range(-pad, 6 * stride + kernel):
                tap = x + pad - y * stride
                step, read = divmod(x - forward.first, stride)
                assert forward.base + stride * (step - y) + read == tap
                if 0 <= tap < kernel:
                    assert 0 <= step - y < forward.depth
                group, written = divmod(x, stride)
                depth = y - back.first - group
                assert back.base - stride * depth + written == tap
                if 0 <= tap < kernel:
                    assert 0 <= depth < back.depth


NETWORKS = [
    ((128, 1152, 7, 7), 5, 1),
    ((128, 240, 28, 28), 5, 1),
    ((128, 72, 56, 56), 5, 2),
    ((128, 96, 56, 56), 7, 1),
    ((128, 768, 7, 7), 7, 1),
    ((1, 384, 14, 14), 7, 1),
]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("device", KINDS.values(), ids=list(KINDS))
def test_tilings(direction: Direction, device: Device) -> None:
    """Walks cover the result, threads keep their channels, and all blocks run at a time."""
    processors = device.machine.multiprocessors
    for shape, kernel, stride in NETWORKS:
        o = operands(shape, (kernel, kernel), (stride, stride))
        assert takes_rows(direction, o)
        found = _tiling(direction, o, processors)
        assert any(replace(one, span=found.span) == found for one in _candidates(direction, o))
        result, _ = sides(direction, o) if direction is not ConvFilterGrad else (o.y, None)
        assert found.strips * found.columns >= result.shape[3] > (found.strips - 1) * found.columns
        assert found.walks * found.span >= found.steps > (found.walks - 1) * found.span
        launch = next(
            s
            for s in depthwise_formulation(direction, o, None, device.machine).steps
            if isinstance(s, Launch)
        )
        chunks = shape[1] // found.width
        if direction is not ConvFilterGrad:
            assert launch.grid[0] * launch.block[0] % chunks == 0
        assert launch.grid[0] <= max(found.resident * processors, chunks)


@pytest.mark.parametrize("multiprocessors", [1, 132])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", CASES)
def test_what_a_tiling_takes(case: str, direction: Direction, multiprocessors: int) -> None:
    """The steps of all blocks that a multiprocessor has, some longer where few of them wait for memory beside each
    other, and the filters, once for each block that is there at a time. No walk reads more rows than there are.
    """
    o = CASES[case]
    for one in _candidates(direction, o):
        for span in {1, -(-one.steps // 2), one.steps}:
            tiling = replace(one, span=span)
            walks = o.x.shape[0] * one.strips * -(-one.steps // span) * (o.x.shape[1] // one.width)
            blocks = -(-walks // 128)
            resident = min(-(-blocks // multiprocessors), one.resident)
            in_turn = -(-blocks // multiprocessors)
            if in_turn > one.resident:
                in_turn = -(-blocks // (one.resident * multiprocessors)) * one.resident
            rows = min(one.reads, span + one.depth - 1)
            steps = in_turn * rows * one.instructions * (1 + resident**-2)
            filters = 9 * resident * one.width * prod(o.w.shape[2:])
            assert tiling.time(o, multiprocessors) == pytest.approx(steps + filters)


def stack_bytes(program: Program, arch: str) -> set[int]:
    """Bytes of memory that the functions of a program take per thread (.nv.info's frame sizes)."""
    code, found, at = program.cubin(arch), set[int](), 0
    while (at := code.find(b"\x04\x11\x08\x00", at)) >= 0:
        found.add(struct.unpack_from("<II", code, at + 4)[1])
        at += 12
    return found


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_nothing_is_spilled(arch: str) -> None:
    pytest.importorskip("cuda.core")
    text = 'extern "C" __global__ void local(int *p) { volatile int a[64]; a[p[0]] = 1; p[1] = a[p[2]]; }'
    assert stack_bytes(Program("local", text=text), arch) == {256}
    for shape, kernel, stride in NETWORKS[2:5]:
        o = operands(shape, (kernel, kernel), (stride, stride))
        for direction in DIRECTIONS:
            formulation = depthwise_formulation(direction, o, None, H200.machine)
            launch = next(s for s in formulation.steps if isinstance(s, Launch))
            assert stack_bytes(launch.program, arch) == {0}, (direction, shape)
