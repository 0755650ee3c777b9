"""The formulations of convolutions and products: own kernels on a CPU, the arithmetic of the forms in NumPy."""

import shutil
from dataclasses import replace
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lamina.backends import Call, NoKernel, NonDeterministicError
from lamina.backends.cuda import backend
from lamina.backends.cuda.conv import depthwise, transforms
from lamina.backends.cuda.conv.conv import conv_problem
from lamina.backends.cuda.conv.depthwise import depthwise_formulation, is_depthwise
from lamina.backends.cuda.conv.small_channels import (
    FilterGrad,
    Forward,
    small_channels_formulation,
    takes_small_channels,
)
from lamina.backends.cuda.conv.transforms import (
    can_swap,
    layout_formulation,
    multiplies,
    product_formulations,
    swapped,
    swapped_direction_formulation,
)
from lamina.backends.cuda.cudnn_graphs.conv import Direction, Operands, is_channels_last, sides
from lamina.backends.cuda.cudnn_graphs.epilogue import Epilogue, Vector
from lamina.backends.cuda.cudnn_graphs.matmul import Product
from lamina.backends.cuda.launch.program import Launch, Place, source
from lamina.backends.cuda.matmul.cublaslt import matrices
from lamina.backends.cuda.matmul.matmul import matmul_problem
from lamina.backends.cuda.select import formulations, known
from lamina.backends.cuda.select.formulations import Formulation
from lamina.backends.cuda.select.target import target_of
from lamina.backends.reference import run_reference
from lamina.cudnn import Choice, NumericalNote, PlanDatabase, PlanStore, Scout, finalize
from lamina.cudnn.finalize import ExpectedPlan
from lamina.ops.core import Array, Op
from lamina.ops.primitives import (
    Add,
    ClippedRelu,
    Conv,
    ConvDataGrad,
    ConvFilterGrad,
    DropoutGrad,
    Fused,
    GeluTanh,
    HardSwish,
    Mul,
    Neg,
    Relu,
    Silu,
    Tanh,
    Window,
)
from lamina.runtime import Device
from lamina.spec import (
    DType,
    Policy,
    Spec,
    bfloat16,
    bool_,
    channels_last,
    contiguous,
    float16,
    float32,
    float64,
    pack,
    unpack,
)
from tests.helpers import emulator
from tests.helpers.cudnn.installed import needs_cudnn_919
from tests.helpers.eager import mismatch
from tests.helpers.planned import H200, KINDS

emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
DIRECTIONS = (Conv, ConvDataGrad, ConvFilterGrad)


def operands(x: tuple[int, ...], w: tuple[int, ...], win: Window, dtype: DType = bfloat16) -> Operands:
    y = (x[0], w[0], *win.output(x[2:], w[2:]))
    return Operands(win, *(Spec(s, dtype, channels_last(s)) for s in (x, w, y)))


def square(kernel: int, stride: int = 1, pad: int = 0, groups: int = 1, dilation: int = 1) -> Window:
    return Window((stride, stride), ((pad, pad), (pad, pad)), (dilation, dilation), groups)


def op_of(direction: Direction, o: Operands) -> Op:
    if direction is Conv:
        return Conv(o.window)
    if direction is ConvDataGrad:
        return ConvDataGrad(o.window, o.x.shape[2:])
    return ConvFilterGrad(o.window, o.w.shape[2:])


def draw(spec: Spec, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(spec.shape).astype(spec.dtype.numpy)


def run(formulation: Formulation, arrays: list[Array], specs: list[Spec], result: Spec) -> Array:
    """A formulation of own kernels on the emulator."""
    held = [emulator.Memory(s.nbytes) for s in specs]
    for memory, array, spec in zip(held, arrays, specs, strict=True):
        memory.bytes[:] = pack(array, spec.physical).view(np.uint8).reshape(-1)
    out, scratch = emulator.Memory(result.nbytes), emulator.Memory(formulation.scratch)
    emulator.run_steps(
        formulation.steps, Call(tuple(m.pointer for m in held), (out.pointer,), scratch.pointer)
    )
    for memory in (*held, out, scratch):
        memory.check(formulation.name)
    return unpack(out.bytes.view(result.dtype.numpy), result.physical, result.shape)


def check(formulation: Formulation, op: Op, arrays: list[Array], specs: list[Spec], result: Spec) -> None:
    found = run(formulation, arrays, specs, result)
    problem = mismatch(found, run_reference(op, arrays, float64)[0], result.dtype)
    assert not problem, f"{formulation.name} for {op}: {problem}"


# --------------------------------------------------------------------------------------------- own kernels

DEPTHWISE = {
    "stride 1": operands((2, 16, 7, 9), (16, 1, 3, 3), square(3, 1, 1, 16)),
    "stride 2": operands((2, 24, 9, 10), (24, 1, 3, 3), square(3, 2, 1, 24), float16),
    "uneven": operands((1, 8, 6, 5), (8, 1, 3, 2), Window((2, 1), ((0, 1), (1, 0)), (1, 1), 8)),
    "many channels": operands((1, 264, 3, 4), (264, 1, 3, 3), square(3, 1, 1, 264)),
    "one place": operands((3, 8, 1, 1), (8, 1, 3, 3), square(3, 1, 1, 8)),
}


@emulated
@pytest.mark.feature("B012")
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", DEPTHWISE)
def test_depthwise(case: str, direction: Direction) -> None:
    o = DEPTHWISE[case]
    assert is_depthwise(direction, o, Vector())
    result, given = sides(direction, o)
    arrays = [draw(s, i) for i, s in enumerate(given)]
    check(
        depthwise_formulation(direction, o, Vector(), H200.machine),
        op_of(direction, o),
        arrays,
        list(given),
        result,
    )


@emulated
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_depthwise_with_indexes_of_64_bits(direction: Direction, monkeypatch: pytest.MonkeyPatch) -> None:
    o = DEPTHWISE["stride 2"]
    monkeypatch.setattr(depthwise, "index_type", lambda reach: "i32" if reach < o.y.numel else "i64")
    result, given = sides(direction, o)
    formulation = depthwise_formulation(direction, o, Vector(), H200.machine)
    first = next(step for step in formulation.steps if isinstance(step, Launch))
    assert first.program.file == "conv/depthwise.cu"
    assert "i64 Index" in first.program.text
    arrays = [draw(s, i) for i, s in enumerate(given)]
    check(formulation, op_of(direction, o), arrays, list(given), result)


SMALL_CHANNELS = {
    "one channel, 11 x 11 by 4": operands((2, 1, 31, 39), (32, 1, 11, 11), square(11, 4)),
    "three channels, 7 x 7 by 2": operands((1, 3, 18, 20), (64, 3, 7, 7), square(7, 2, 3), float16),
    "uneven": operands((3, 2, 9, 13), (32, 2, 3, 5), Window((1, 2), ((1, 0), (2, 1)), (1, 1))),
    "odd padding of odd channels": operands((1, 3, 12, 14), (96, 3, 5, 5), square(5, 2, 1)),
    "16 filters": operands((2, 3, 14, 18), (16, 3, 3, 3), square(3, 2, 1)),
    "24 filters": operands((1, 3, 15, 22), (24, 3, 3, 3), square(3, 2, 1), float16),
    "40 filters": operands((1, 3, 12, 20), (40, 3, 4, 4), square(4, 4)),
    "four channels, strides beyond the filter": operands((2, 4, 13, 54), (128, 4, 2, 3), square(2, 3)),
}


@emulated
@pytest.mark.feature("B012")
@pytest.mark.parametrize("direction", [Conv, ConvFilterGrad])
@pytest.mark.parametrize("case", SMALL_CHANNELS)
@pytest.mark.parametrize("processors", [1, 132])
def test_stem(case: str, direction: Direction, processors: int) -> None:
    """With few multiprocessors each block walks over many rows, with many of them over one. The order in which warps
    take turns and copies arrive makes no difference.
    """
    o, machine = SMALL_CHANNELS[case], replace(H200.machine, multiprocessors=processors)
    assert takes_small_channels(direction, o, Vector(), machine)
    result, given = sides(direction, o)
    arrays = [draw(s, i) for i, s in enumerate(given)]
    formulation = small_channels_formulation(direction, o, Vector(), machine)
    check(formulation, op_of(direction, o), arrays, list(given), result)
    with emulator.contrary():
        again = run(formulation, arrays, list(given), result)
    assert again.tobytes() == run(formulation, arrays, list(given), result).tobytes()


@emulated
@pytest.mark.feature("B012")
@pytest.mark.parametrize(
    "activations", [(Relu(),), (ClippedRelu(0.7),), (Silu(),), (HardSwish(), Neg())], ids=str
)
def test_bias_and_activations_in_own_kernels(activations: tuple[Op, ...]) -> None:
    for o in (DEPTHWISE["stride 2"], SMALL_CHANNELS["three channels, 7 x 7 by 2"]):
        bias = Spec((1, o.w.shape[0], 1, 1), o.x.dtype).fixed
        vector = Epilogue((Add(), *activations), (bias,), 2).vector(o.y.shape, 1)
        assert vector == Vector(2, None, activations)
        make = depthwise_formulation if o.window.groups > 1 else small_channels_formulation
        formulation = make(Conv, o, vector, H200.machine)
        specs = [o.x, o.w, bias]
        arrays = [draw(s, i) for i, s in enumerate(specs)]
        check(formulation, Fused((Conv(o.window), Add(), *activations)), arrays, specs, o.y)


@emulated
def test_addresses_between_vectors_are_refused() -> None:
    """Kernels with steps have none to stand in for them; a fault would end the process's use of the GPU."""
    o = DEPTHWISE["stride 1"]
    formulation = depthwise_formulation(Conv, o, Vector(activations=(Relu(),)), H200.machine)
    with pytest.raises(ValueError, match="multiples of 16, got 0x10002"):
        emulator.run_steps(formulation.steps, Call((0x10002, 0x20000), (0x30000,), 0))


@pytest.mark.parametrize("device", KINDS.values(), ids=list(KINDS))
def test_sizes_of_small_channels_fit_the_chip(device: Device) -> None:
    """AlexNet's and ResNet's first convolutions: blocks beside each other have room, nearly all products count."""
    alexnet = operands((1024, 1, 224, 224), (96, 1, 11, 11), square(11, 4))
    resnet = operands((128, 3, 224, 224), (64, 3, 7, 7), square(7, 2, 3))
    for o in (alexnet, resnet):
        forward, grad = Forward(o, device.machine), FilterGrad(o, device.machine)
        height, room = forward.height, device.machine.multiprocessor_shared_memory
        assert forward.resident(height) >= 3
        assert grad.resident == (2 if room > 100 << 10 else 1)
        assert forward.resident(height) * (forward.shared(height) + 1024) <= room
        assert grad.resident * (grad.shared + 1024) <= room
        assert 0 <= grad.columns * grad.spans_per_warp - grad.spans <= 2
        assert grad.fragments >= prod(o.w.shape)


@pytest.mark.parametrize(
    ("x", "w", "win", "reason"),
    [
        ((1, 8, 9, 9), (32, 8, 3, 3), square(3, 2), "many channels"),
        ((1, 3, 9, 9), (36, 3, 3, 3), square(3, 2), "filters in no eights"),
        ((1, 3, 9, 9), (8, 3, 3, 3), square(3, 2), "few filters"),
        ((1, 3, 9, 9), (32, 3, 3, 3), square(3, 1), "windows at odd elements"),
        ((1, 3, 9, 9), (32, 3, 3, 3), square(3, 2, dilation=2), "dilated"),
    ],
)
def test_what_small_channels_refuse(x: tuple[int, ...], w: tuple[int, ...], win: Window, reason: str) -> None:
    o = operands(x, w, win)
    assert not takes_small_channels(Conv, o, Vector(), H200.machine), reason
    assert "stem" not in [formulation.name for formulation in conv_problem(Conv, o, H200).formulations]


@pytest.mark.parametrize("filters", [16, 24, 32, 64])
@pytest.mark.parametrize("direction", [Conv, ConvFilterGrad])
def test_first_convolutions_of_networks(direction: Direction, filters: int) -> None:
    """Own kernels come first in both directions; the filter gradient of many weights is left to contests."""
    for kernel, stride, pad in ((3, 2, 1), (7, 2, 3), (7, 4, 3), (4, 4, 0)):
        o = operands((64, 3, 224, 224), (filters, 3, kernel, kernel), square(kernel, stride, pad))
        problem = conv_problem(direction, o, H200)
        assert problem.formulations[0].name == "stem"
        assert problem.kind.endswith(" few filters") == (filters % 32 > 0)
    for channels, kernel, first in ((1, 11, True), (3, 9, direction is Conv)):
        o = operands((64, channels, 224, 224), (96, channels, kernel, kernel), square(kernel, 4))
        assert (conv_problem(direction, o, H200).formulations[0].name == "stem") == first


@pytest.mark.parametrize(
    ("direction", "vector"),
    [
        (ConvDataGrad, Vector()),
        (Conv, None),
        (Conv, Vector(residual=2)),
        (ConvDataGrad, Vector(activations=(Relu(),))),
        (ConvFilterGrad, Vector(activations=(Relu(),))),
    ],
)
def test_what_small_channels_have_no_end_for(direction: Direction, vector: Vector | None) -> None:
    o = operands((2, 3, 32, 32), (32, 3, 7, 7), square(7, 2, 3))
    assert takes_small_channels(Conv, o, Vector(activations=(Relu(),)), H200.machine)
    assert takes_small_channels(ConvFilterGrad, o, Vector(), H200.machine)
    assert not takes_small_channels(direction, o, vector, H200.machine)


# -------------------------------------------------------------------------------------------------- rewrites


@pytest.mark.feature("B012")
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    "win",
    [
        square(3, 1, 1),
        Window((1, 1), ((0, 2), (1, 0)), (1, 1)),
        square(3, 1, 2, dilation=2),
        Window((1, 1), ((1, 1), (2, 0)), (1, 1), 1, True),
    ],
)
@emulated
def test_a_swapped_direction_is_the_same(win: Window, direction: Direction) -> None:
    """The other direction over the mirrored filter, as the small kernel makes it."""
    o = operands((2, 5, 8, 7), (3, 5, 3, 3), win, float32)
    assert can_swap(o)
    other, formulation = swapped(o), swapped_direction_formulation(direction, o, Epilogue((), (), 2))
    x, w, y = (draw(s, i) for i, s in enumerate((o.x, o.w, o.y)))
    wanted = run_reference(
        op_of(direction, o), {Conv: [x, w], ConvDataGrad: [y, w]}.get(direction, [x, y]), float64
    )
    launch = Formulation(
        "mirror", steps=(*formulation.before, *formulation.after), scratch=formulation.scratch
    )
    if direction is ConvFilterGrad:
        reversed_ = run_reference(op_of(direction, other), [y, x])[0]
        scratch, out = emulator.Memory(formulation.scratch), emulator.Memory(o.w.nbytes)
        scratch.bytes[:] = pack(reversed_, other.w.physical).view(np.uint8).reshape(-1)
        emulator.run_steps(launch.steps, Call((0, 0), (out.pointer,), scratch.pointer))
        found = unpack(out.bytes.view(np.float32), o.w.physical, o.w.shape)
    else:
        held, scratch = emulator.Memory(o.w.nbytes), emulator.Memory(formulation.scratch)
        held.bytes[:] = pack(w, o.w.physical).view(np.uint8).reshape(-1)
        emulator.run_steps(launch.steps, Call((0, held.pointer), (0,), scratch.pointer))
        mirrored = unpack(scratch.bytes.view(np.float32), other.w.physical, other.w.shape)
        back = ConvDataGrad if direction is Conv else Conv
        found = run_reference(op_of(back, other), [x if direction is Conv else y, mirrored])[0]
    np.testing.assert_allclose(found, wanted[0], rtol=2e-4, atol=2e-4)


@emulated
@pytest.mark.feature("B012")
@pytest.mark.parametrize("dtype", [float32, bfloat16])
def test_the_other_layout(dtype: DType) -> None:
    """Operands are copied from row-major to channels last, or back; the result comes the other way."""
    shapes = ((2, 8, 6, 7), (16, 8, 3, 3), (2, 16, 6, 7))
    arrange = contiguous if dtype == float32 else channels_last
    other = channels_last if dtype == float32 else contiguous
    o = Operands(square(3, 1, 1), *(Spec(s, dtype, arrange(s)) for s in shapes))
    formulation = layout_formulation(Conv, o)
    assert formulation.spare == (dtype == bfloat16)
    arrays = [draw(s, i) for i, s in enumerate((o.x, o.w, o.y))]
    held, scratch = [emulator.Memory(s.nbytes) for s in (o.x, o.w, o.y)], emulator.Memory(formulation.scratch)
    for memory, array in zip(held[:2], arrays, strict=False):
        memory.bytes[:] = pack(array, arrange(array.shape)).view(np.uint8).reshape(-1)
    call = Call((held[0].pointer, held[1].pointer), (held[2].pointer,), scratch.pointer)
    emulator.run_steps(formulation.before, call)
    place = 0
    for array in arrays:
        inside = scratch.bytes[place : place + array.nbytes].view(dtype.numpy)
        wanted = pack(array, other(array.shape)).reshape(-1)
        if array is arrays[2]:
            inside[:] = wanted
        np.testing.assert_array_equal(inside, wanted)
        place += -(-array.nbytes // 256) * 256
    emulator.run_steps(formulation.after, call)
    found = held[2].bytes.view(dtype.numpy)
    np.testing.assert_array_equal(found, pack(arrays[2], arrange(shapes[2])).reshape(-1))


def test_what_does_not_turn() -> None:
    """Strides, groups, padding beyond the filter's reach, and filters of one tap, which are products."""
    for win, taps in ((square(3, 2, 1), 3), (square(3, 1, 3), 3), (square(1), 1)):
        assert not can_swap(operands((1, 8, 9, 9), (8, 8, taps, taps), win))
    assert not can_swap(operands((1, 8, 9, 9), (8, 2, 3, 3), square(3, 1, 1, 4)))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_products_of_odd_lines_come_before_padded_convolutions(
    direction: Direction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cuBLASLt's, then cuDNN's; not where x has to be gathered, nor where lines are whole 16 bytes."""
    blas = Formulation("blas:0")
    monkeypatch.setattr(transforms, "cublaslt_formulations", lambda *given, **around: [blas])
    for channels, stride, wanted in (
        (58, 1, ["blas:0", "product", "padded"]),
        (58, 2, ["padded", "plain"]),
        (64, 1, ["plain"]),
    ):
        o = operands((64, channels, 28, 28), (58, channels, 1, 1), square(1, stride))
        names = [one.name for one in conv_problem(direction, o, H200).formulations]
        assert names[: len(wanted)] == wanted
        assert "blas:0" in names


@emulated
@pytest.mark.feature("B012")
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_filters_of_one_tap_are_products(
    direction: Direction, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels around the product, which NumPy computes here as the graph and cuBLASLt are told to."""
    told: list[Any] = []

    def blas(p: Product, dtype: DType, places: Any, *_: Any, **around: Any) -> list[Formulation]:
        told.append((p, places))
        return []

    monkeypatch.setattr(transforms, "cublaslt_formulations", blas)
    monkeypatch.setattr(transforms, "matmul_graph", lambda p, dtype, places: (p, places))
    o = operands((2, 8, 5, 6), (16, 8, 1, 1), square(1, stride), float32)
    assert multiplies(o)
    assert is_channels_last(o)
    (formulation,) = product_formulations(direction, o, Vector(), None, Policy())
    arrays = [draw(s, i) for i, s in enumerate((o.x, o.w, o.y))]
    held = [emulator.Memory(s.nbytes) for s in (o.x, o.w, o.y)]
    result, _ = sides(direction, o)
    for memory, array, spec in zip(held, arrays, (o.x, o.w, o.y), strict=True):
        if spec is not result:
            memory.bytes[:] = pack(array, spec.physical).view(np.uint8).reshape(-1)
    x, w, y = held
    scratch = emulator.Memory(formulation.scratch)
    inputs = {Conv: (x, w), ConvDataGrad: (y, w), ConvFilterGrad: (x, y)}[direction]
    out = {Conv: y, ConvDataGrad: x, ConvFilterGrad: w}[direction]
    call = Call(tuple(m.pointer for m in inputs), (out.pointer,), scratch.pointer)
    emulator.run_steps(formulation.before, call)
    assert formulation.graph is not None
    ((p, places),) = told
    assert formulation.graph() == (p, places)

    def matrix(place: Place, sizes: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        memory = {"workspace": scratch, "output": out}.get(place.kind) or inputs[place.index]
        assert memory.bytes.size - place.offset >= 4 * prod(sizes)
        values = memory.bytes[place.offset :].view(np.float32)
        return np.lib.stride_tricks.as_strided(values, sizes, [4 * n for n in strides])

    a, b = (
        matrix(places[0], (p.batch, p.m, p.k), p.a_strides),
        matrix(places[1], (p.batch, p.k, p.n), p.b_strides),
    )
    matrix(places[2], (p.batch, p.m, p.n), p.c_strides)[:] = a @ b
    emulator.run_steps(formulation.after, call)
    found = unpack(out.bytes.view(np.float32), result.physical, result.shape)
    given = {Conv: arrays[:2], ConvDataGrad: [arrays[2], arrays[1]]}.get(direction, [arrays[0], arrays[2]])
    np.testing.assert_allclose(
        found, run_reference(op_of(direction, o), given, float64)[0], rtol=1e-5, atol=1e-5
    )


def test_formulations_of_a_strided_product_with_steps() -> None:
    """Behind a strided data gradient steps belong on the places between too: there is no such way."""
    o = operands((2, 8, 5, 6), (16, 8, 1, 1), square(1, 2))
    assert product_formulations(ConvDataGrad, o, Vector(activations=(Relu(),)), None, Policy()) == []


@pytest.mark.feature("F091")
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(
    ("refusals", "varying"),
    [
        ([], False),
        (["plain 1: not deterministic"], True),
        (["plain 1: out of memory", "plain 2: not deterministic"], True),
        (["plain 1: out of memory", "plain 2: uses TF32"], False),
    ],
)
def test_without_a_plan_everything_that_was_tried_is_told(
    refusals: list[str], varying: bool, deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where something was refused that varies from run to run, by a policy that forbids it, the error says so."""
    monkeypatch.setattr(formulations, "_choose", lambda *given: given[-1].extend(refusals))
    problem = conv_problem(Conv, operands((2, 8, 5, 6), (16, 8, 3, 3), square(3)), H200)
    with pytest.raises(NoKernel) as raised:
        formulations.choose(problem, H200, Policy(deterministic=deterministic))
    assert isinstance(raised.value, NonDeterministicError) == (varying and deterministic)
    first, *lines = str(raised.value).split("\n")
    assert first == f"cuda has no plan for {problem.key}:"
    assert lines == [f"  - {reason}" for reason in refusals]


# -------------------------------------------------------------------------------------------------- cuBLASLt


@pytest.mark.feature("B012")
@pytest.mark.parametrize("a_transposed", [False, True])
@pytest.mark.parametrize("b_transposed", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
def test_what_cublaslt_is_asked(batch: int, a_transposed: bool, b_transposed: bool) -> None:
    """Column-major views of the operands, as they lie, multiply to C as it lies."""
    p = Product(batch, 4, 5, 6, a_transposed, b_transposed)
    asked = matrices(p, float32, Vector(), tf32=False)
    assert asked is not None
    rng = np.random.default_rng(0)
    first, second = rng.standard_normal(batch * 24), rng.standard_normal(batch * 30)
    a = np.lib.stride_tricks.as_strided(first, (batch, 4, 6), [8 * s for s in p.a_strides])
    b = np.lib.stride_tricks.as_strided(second, (batch, 6, 5), [8 * s for s in p.b_strides])
    flat = (second, first) if asked.swapped else (first, second)
    views = []
    for data, (rows, columns), transposed in zip(
        flat, asked.shapes, (asked.a_transposed, asked.b_transposed), strict=False
    ):
        lies = data.reshape(batch, columns, rows).swapaxes(1, 2)  # column by column
        views.append(lies.swapaxes(1, 2) if transposed else lies)
    rows, columns = asked.shapes[3]
    flat_result = (views[0] @ views[1]).swapaxes(1, 2).reshape(-1)
    assert (rows, columns) == ((4, 5) if p.c_transposed else (5, 4))
    found = np.lib.stride_tricks.as_strided(flat_result, (batch, 4, 5), [8 * s for s in p.c_strides])
    np.testing.assert_allclose(found, a @ b, rtol=1e-12)


def test_epilogues_of_cublaslt() -> None:
    p = Product(1, 4, 5, 6, False, True)
    full, bias, row = Spec((4, 5), bfloat16), Spec((5,), bfloat16), Spec((4, 1), bfloat16)

    def epilogue(steps: tuple[Op, ...], *extras: Spec) -> str | None:
        vector = Epilogue(steps, extras, 2).vector((4, 5), -1)
        asked = vector and matrices(p, bfloat16, vector, tf32=False)
        return asked.epilogue + (" + C" if asked.residual else "") if asked else None

    assert epilogue((Add(), Relu()), bias) == "relu_bias"
    assert epilogue((Add(), GeluTanh()), bias) == "gelu_bias"
    assert epilogue((Add(), Add(), Relu()), bias, full) == "relu_bias + C"
    assert epilogue((Add(),), full) == " + C"
    assert epilogue((Add(), Tanh()), bias) is None
    assert epilogue((Add(),), row) is None
    assert epilogue((Relu(), Add()), bias) is None
    assert epilogue((ClippedRelu(6.0),)) is None
    both = Product(1, 4, 5, 6, True, True)
    assert matrices(both, bfloat16, Vector(bias=2), tf32=False) is None


@pytest.mark.feature("B051")
def test_a_scout_has_every_candidate_of_a_contest_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Under "fastest"; where the winner is remembered, it alone."""
    store = PlanStore("here", "1", tmp_path)
    monkeypatch.setattr(formulations, "plan_store", lambda device: store)
    monkeypatch.setattr(finalize, "_made", lambda config, target: (ExpectedPlan(config, target), True))
    problem, policy = (
        conv_problem(Conv, operands((8, 64, 28, 28), (64, 64, 3, 3), square(3, 1, 1)), H200),
        Policy(algorithm="fastest"),
    )
    target = target_of(H200)
    entries = formulations._entries(problem, H200, target, policy, 1 << 32, [])
    found: list[Any] = []

    def way() -> None:
        found.append(formulations._choose(problem, H200, target_of(H200), policy, []))

    def met() -> list[Any]:
        with Scout(way) as scout:
            scout.send(target)
            assert scout._thread is not None
            scout._thread.join()
            return list(scout._numbers)

    assert len(met()) == len({e.choice.key for e in entries if e.plan is not None}) > 3
    assert found[0].choice == entries[0].choice
    remembered = replace(entries[2].choice, milliseconds=1.0, heuristic=2.0)
    store.put("key", remembered, problem.place.nature, problem.place.sizes)
    assert len(met()) == 1
    assert found[1].choice == entries[2].choice


@pytest.mark.feature("B050", "B051")
def test_a_problem_of_the_database_has_a_short_contest(monkeypatch: pytest.MonkeyPatch) -> None:
    """All candidates competed for it when it was measured: its choice competes with the first ones of each
    formulation."""
    monkeypatch.setattr(finalize, "_made", lambda config, target: (ExpectedPlan(config, target), True))
    problem = conv_problem(Conv, operands((8, 64, 28, 28), (64, 64, 3, 3), square(3, 1, 1)), H200)
    target, policy = target_of(H200), Policy(algorithm="fastest")

    def entries() -> list[Any]:
        return formulations._entries(problem, H200, target, policy, 1 << 32, [])

    def knows(choice: Choice) -> None:
        plans = {
            problem.place.nature: {problem.place.sizes: replace(choice, milliseconds=1.0, heuristic=1.0)}
        }
        monkeypatch.setattr(known, "database_of", lambda device: PlanDatabase("x", "9", {}, plans))

    monkeypatch.setattr(known, "database_of", lambda device: None)
    every = [one.choice for one in entries()]
    assert len(every) > formulations._MOST_FEW
    firsts = list(dict.fromkeys(one.formulation for one in every))
    last = [one for one in every if one.engine >= 0][-1]
    knows(last)
    few = [one.choice for one in entries()]
    assert few[0] == every[0]  # whose time is the heuristic's
    assert last in few
    assert len(few) == len(set(few)) < len(every)
    assert {one.formulation for one in few} <= set(firsts) | {last.formulation}
    knows(every[0])
    assert [one.choice for one in entries()] == [one for one in few if one != last]
    knows(Choice("gone", 7))
    assert [one.choice for one in entries()] == every


@pytest.mark.parametrize(
    ("flops", "engines", "limit", "expected"),
    [
        (1e8, 4, 512, ["own", "drawn", "spacious", "direct"]),  # quick: what is plain is timed as well
        (1.1e8, 4, 512, ["own", "drawn", "spacious"]),
        (1.1e8, 3, 512, ["own", "drawn", "spare", "spacious"]),
        (1.1e8, 1, 512, ["own", "drawn", "spare", "spacious"]),
        (1.1e8, 1, 511, ["own", "drawn", "spare", "direct"]),
        (1.1e8, 0, 512, ["own", "spacious", "direct"]),
        (1e8, 4, 511, ["own", "drawn", "direct"]),
        (1.1e8, 4, 511, ["own", "drawn"]),
    ],
)
def test_what_a_contest_is_between(
    flops: float, engines: int, limit: int, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Good engines; own kernels that fit the limit; plain ones and spare formulations beside few others."""

    graph: Any = object  # nobody draws it here
    special: Any = ("special",)
    plain: Any = ("plain",)
    drawn, spare = Formulation("drawn", graph), Formulation("spare", graph, spare=True)
    own, spacious = Formulation("own", steps=special), Formulation("spacious", steps=special, scratch=512)
    direct = Formulation("direct", steps=plain)
    base = conv_problem(Conv, operands((8, 64, 28, 28), (64, 64, 3, 3), square(3, 1, 1)), H200)
    every = (own, drawn, spare, spacious, direct)
    problem = replace(base, formulations=every, flops=flops, plain=plain)

    def made(problem: Any, device: Any, chosen: Any, *_: Any) -> list[Any]:
        return [SimpleNamespace(formulation=f, choice=(f.name, i)) for f in chosen for i in range(engines)]

    monkeypatch.setattr(formulations, "_made", made)
    monkeypatch.setattr(
        formulations, "candidate", lambda f, plan, p: SimpleNamespace(formulation=f, choice=f.name)
    )
    refusals: list[str] = []
    found = formulations._entries(problem, H200, target_of(H200), Policy(), limit, refusals)
    assert list(dict.fromkeys(one.formulation.name for one in found)) == expected
    assert len({one.choice for one in found}) == len(found)  # each engine once
    refused = ["spacious: needs 512 bytes of workspace, the limit is 511"]
    assert refusals == (refused if limit < 512 else [])


def test_the_first_of_each_formulation_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """More of the preferred one; none of spare ones, none that takes more memory than there is."""
    graph: Any = object  # nobody draws it here
    own: Any = Formulation("own", steps=())
    every = (
        own,
        Formulation("best", graph),
        Formulation("next", graph),
        Formulation("spare", graph, spare=True),
    )
    base = conv_problem(Conv, operands((8, 64, 28, 28), (64, 64, 3, 3), square(3, 1, 1)), H200)
    problem = replace(base, formulations=every, apart=lambda: Formulation("apart"))

    def firsts(problem: Any, formulation: Formulation, *_: Any) -> Any:
        return (SimpleNamespace(name=f"{formulation.name}{i}", workspace=100 + i) for i in range(99))

    monkeypatch.setattr(formulations, "_firsts", firsts)
    monkeypatch.setattr(formulations, "_FEW", 4)

    def names(problem: Any, limit: int) -> str:
        found: list[Any] = formulations.drawn(problem, target_of(H200), Policy(), limit)
        return " ".join(one.name for one in found)

    turns = "own0 best0 next0 apart0 own1 best1 next1 apart1 best2 best3"
    assert names(problem, 103) == turns
    assert names(problem, 102) == turns.removesuffix(" best3")
    assert names(problem, 99) == ""

    def none() -> Formulation:
        raise NoKernel("a part has no plan")

    assert names(replace(problem, apart=none), 100) == "own0 best0 next0"


def test_variants_of_the_best_engine_get_the_workspace_that_its_formulation_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that differ in one knob are all built under one limit; what has no plan is left out."""
    problem = conv_problem(Conv, operands((8, 64, 28, 28), (64, 64, 3, 3), square(3, 1, 1)), H200)
    drawn = next(w for w in problem.formulations if w.graph is not None)
    spacious = replace(
        drawn, graph=lambda: (SimpleNamespace(build=lambda handle: "built"), {7: source()}), scratch=300
    )
    best: Any = SimpleNamespace(
        formulation=spacious, plan=SimpleNamespace(config=SimpleNamespace(key=(1, ())))
    )
    asked: list[Any] = []

    def build_all(configs: Any, target: Any, limits: Any) -> list[Any]:
        asked.append((configs, list(limits)))
        return ["why there is none", SimpleNamespace(number=2), SimpleNamespace(number=3)]

    monkeypatch.setattr(formulations.tune, "neighbours", lambda graph, key: [graph, key, "third"])
    monkeypatch.setattr(formulations.tune, "accepted", lambda configs, accept, refusals: configs)
    monkeypatch.setattr(formulations.tune, "build_all", build_all)
    monkeypatch.setattr(
        formulations, "candidate", lambda formulation, plan, pointers: (formulation, plan.number, pointers)
    )
    handle: Any = SimpleNamespace(device=H200)
    found = formulations._neighbours(problem, best, handle, Policy(workspace_limit=10_000), [])
    assert asked == [(["built", (1, ()), "third"], [10_000 - 512] * 3)]
    assert found == [(spacious, 2, {7: source()}), (spacious, 3, {7: source()})]


@needs_cudnn_919
def test_engines_that_take_any_steps_are_left_to_those_who_ask() -> None:
    """cuDNN names its engine 0 for a clipped relu behind a convolution: the parts run one after the other, unless
    such engines are asked for.
    """
    window = Window((1, 1), ((0, 0), (0, 0)), (1, 1))
    shapes = ((1, 40, 30, 30), (200, 40, 1, 1), (1, 200, 1, 1))
    x, w, bias = (Spec(s, bfloat16, channels_last(s)) for s in shapes)
    op = Fused((Conv(window), Add(), ClippedRelu(6.0)))

    def label(policy: Policy) -> str:
        return backend(H200).plan(op, [x, w, bias], policy).label

    for algorithm in ("auto", "heuristic"):
        assert label(Policy(algorithm=algorithm)) == "kernel conv+add+clipped_relu split"
    assert label(Policy(algorithm="fallback")).startswith("cudnn")
    relu = Fused((Conv(window), Add(), Relu()))
    assert not backend(H200).plan(relu, [x, w, bias], Policy()).label.endswith("split")


@needs_cudnn_919
def test_what_measurements_rule_out_does_not_compete(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for what the heuristics name first, so that there is always a candidate."""
    o = operands((8, 64, 14, 14), (64, 64, 3, 3), square(3, pad=1))
    problem = conv_problem(Conv, o, H200)
    plain = [w for w in problem.formulations if w.name == "plain"]
    noted: list[list[Any]] = []

    def build_all(configs: Any, target: Any, limits: Any) -> list[str]:
        noted.append([config.key for config in configs])
        return ["not made"] * len(configs)

    monkeypatch.setattr(formulations.tune, "build_all", build_all)
    asked: list[tuple[Any, ...]] = []

    def outclassed(*of: Any) -> bool:
        asked.append((of[0], of[1].tag, of[2]))
        return len(noted) == 1

    monkeypatch.setattr(formulations, "outclassed", outclassed)
    for _ in range(2):
        formulations._made(problem, H200, plain, target_of(H200), Policy(), 1 << 30, ("a", "b"), [])
    every, first = noted
    assert len(every) > 1
    assert first == every[:1]
    assert set(asked) == {("conv", "acdb", "plain")}


@pytest.mark.feature("B051")
def test_padded_operands_count_as_others_for_outclassed_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Spec((8, 8), bfloat16)
    engines = {"matmul half ab conv 19": (99, 0), "matmul half ab matmul 0": (99, 1)}
    monkeypatch.setattr(known, "database_of", lambda device: PlanDatabase("x", "9", {}, {}, engines))
    for formulation, engine, expected in (
        ("conv", 19, True),
        ("padded-conv", 19, True),
        ("padded-conv", 20, False),
        ("padded-matmul", 0, False),
        ("odd-conv", 19, False),
    ):
        assert known.outclassed("matmul", x, formulation, engine, H200) is expected


@pytest.mark.feature("B051")
@pytest.mark.parametrize("dtype", [bfloat16, float32])
def test_large_problems_of_half_types_try_no_engine_without_tensor_cores(
    dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for what the heuristics name first. Some take minutes, and a kernel cannot be stopped."""
    monkeypatch.setattr(finalize, "_made", lambda config, target: (ExpectedPlan(config, target), True))
    monkeypatch.setattr(known, "database_of", lambda device: None)
    o = operands((8, 64, 28, 28), (64, 64, 3, 3), square(3, 1, 1))
    base, target = conv_problem(Conv, o, H200), target_of(H200)

    def numbers(flops: float) -> tuple[set[int], set[int]]:
        """Engines without tensor cores: before the first step, and between steps."""
        problem = replace(base, flops=flops, inputs=tuple(replace(s, dtype=dtype) for s in base.inputs))
        plain = [w for w in problem.formulations if w.name == "plain"]
        policy = Policy(tf32=True)
        modes = ("a", "b", "fallback")
        made = formulations._made(problem, H200, plain, target, policy, 1 << 30, modes, [])
        fallback = formulations._of_graph
        monkeypatch.setattr(
            formulations,
            "_of_graph",
            lambda f, make, t, limit, _, wanted, reasons: fallback(f, make, t, limit, modes, wanted, reasons),
        )
        firsts = list(formulations._firsts(problem, plain[0], target, policy, 1 << 30, lambda config: ""))
        monkeypatch.setattr(formulations, "_of_graph", fallback)
        without = [
            {
                one.plan.config.key[0]
                for one in ones
                if one.plan is not None
                and one.plan.config is not None
                and NumericalNote.CUDNN_NUMERICAL_NOTE_TENSOR_CORE
                not in one.plan.config.engine.numerical_notes
            }
            for ones in (made[1:], firsts)
        ]
        return without[0], without[1]

    few, many = numbers(1e9), numbers(1e12)
    assert all(few)
    assert [bool(found) for found in many] == [dtype == float32] * 2


@needs_cudnn_919
def test_steps_without_nodes_in_cudnn_leave_its_graphs_out() -> None:
    """Own kernels have every elementwise step at their ends: what competes between runs is then of these alone."""
    a, w, c = (Spec(s, bfloat16).fixed for s in ((24, 56), (56, 48), (24, 48)))
    mask, scale = Spec((24, 48), bool_), Spec((), bfloat16)
    epilogue = Epilogue((DropoutGrad(0.1), Mul()), (mask, scale), 2)
    problem = matmul_problem(Product(1, 24, 48, 56, False, False), a, w, c, epilogue, Policy(), H200)
    assert "matmul" in {way.name for way in problem.formulations}
    found = formulations.drawn(problem, target_of(H200), Policy(), 1 << 30)
    assert "small" in {one.formulation.name for one in found}
    assert all(one.plan is None for one in found)
    refusals = list[str]()
    assert list(formulations.candidates(problem, target_of(H200), Policy(), ("a",), refusals))
    assert "matmul: graph: cuDNN has no pointwise node for dropout_grad" in refusals
