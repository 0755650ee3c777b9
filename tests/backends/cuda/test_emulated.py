"""The CUDA kernels themselves, run on a CPU: results of every op against the reference, without a GPU."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lamina.backends import Call
from lamina.backends.cuda import backend
from lamina.backends.cuda.conv import depthwise
from lamina.backends.cuda.conv.direct import direct
from lamina.backends.cuda.conv.transforms import padded, space_to_depth, transformed
from lamina.backends.cuda.cudnn_graphs.conv import Direction, Operands, places_of
from lamina.backends.cuda.cudnn_graphs.epilogue import NONE
from lamina.backends.cuda.cudnn_graphs.matmul import Product
from lamina.backends.cuda.elementwise import reduce
from lamina.backends.cuda.launch import indexing
from lamina.backends.cuda.launch.program import Launch, Launches, Together, round_up, scratch
from lamina.backends.cuda.matmul.matmul import as_convolution, tiled
from lamina.backends.cuda.norm import norm
from lamina.backends.cuda.pool import pool
from lamina.backends.reference import run_reference
from lamina.ops.core import REGISTRY, Array, Op, Sample
from lamina.ops.primitives import (
    Add,
    BatchNorm,
    BatchNormGrad,
    Conv,
    ConvDataGrad,
    ConvFilterGrad,
    Foreach,
    Fused,
    LayerNorm,
    Matmul,
    MaxPool,
    MaxPoolGrad,
    Mul,
    Reduce,
    Relu,
    Window,
)
from lamina.spec import (
    DType,
    Layout,
    Policy,
    Spec,
    as_dtype,
    bfloat16,
    channels_last,
    contiguous,
    float32,
    float64,
    int64,
    pack,
    uint8,
    unpack,
)
from tests.helpers import emulator
from tests.helpers.eager import mismatch
from tests.helpers.emulator import Memory, run_launch, run_plan, run_steps
from tests.helpers.own_programs import OWN
from tests.helpers.planned import H200
from tools.mutate import forget

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
CUDA = backend(H200)
#: Elementwise ops are all made by one generator: one sample each is run, of others three.
ELEMENTWISE = {n for n in OWN if REGISTRY[n].elementwise}


def check(op: Op, arrays: list[Array], specs: list[Spec], misaligned: bool = False) -> None:
    plan = CUDA.plan(op, specs, Policy())
    found = run_plan(plan, arrays, misaligned=misaligned)
    wanted = run_reference(op, arrays, float64)
    for y, ref, spec in zip(found, wanted, plan.outputs, strict=True):
        problem = mismatch(y, ref, spec.dtype)
        assert not problem, f"{op} on {specs}: {problem} ({plan.label})"


def laid(arrays: list[Array], last: bool) -> list[Spec]:
    return [
        Spec(a.shape, as_dtype(a.dtype), channels_last(a.shape) if last else contiguous(a.shape))
        for a in arrays
    ]


def spread(samples: list[Sample], count: int) -> list[Sample]:
    return samples[:: max(1, len(samples) // count)][:count]


@pytest.mark.feature("F117")
@pytest.mark.parametrize("name", OWN)
def test_ops(name: str) -> None:
    """Samples in turn row-major, channels last, and at addresses that are not aligned."""
    op_class = REGISTRY[name]
    rng = np.random.default_rng(7)
    for turn, sample in enumerate(spread(list(op_class.samples()), 1 if name in ELEMENTWISE else 3)):
        dtypes = sample.dtypes or op_class.dtypes
        dtype = bfloat16 if turn % 2 and bfloat16 in dtypes else dtypes[min(1, len(dtypes) - 1)]
        arrays = sample.draw(rng, dtype)
        check(sample.op, arrays, laid(arrays, turn % 2 == 1), misaligned=turn == 2)


@pytest.mark.parametrize("padding", [(0, 0), (1, 1), (0, 1)])
@pytest.mark.parametrize("kernel", [(3, 3), (2, 2), (3, 2)])
@pytest.mark.parametrize("size", [(7, 9), (6, 5)])
def test_pools_channels_last(
    size: tuple[int, int], kernel: tuple[int, int], padding: tuple[int, int]
) -> None:
    """Windows that overlap or not, that reach over the edge or not; the gradient in blocks of a stride."""
    rng = np.random.default_rng(3)
    window = Window((2, 2), tuple((p, p) for p in padding), (1, 1))
    x = rng.permutation(2 * 24 * size[0] * size[1]).reshape(2, 24, *size).astype(np.float32) / 64
    check(MaxPool(kernel, window, True), [x], laid([x], True))
    y, index = run_reference(MaxPool(kernel, window, True), [x])
    op = MaxPoolGrad(kernel, window, size)
    arrays = [rng.standard_normal(y.shape).astype(np.float32), index]
    plan = CUDA.plan(op, laid(arrays, True), Policy())
    assert plan.make.programs[0].name == "max_pool_grad_blocks"
    check(op, arrays, laid(arrays, True))


@pytest.mark.parametrize("padding", [0, 1])
def test_a_pool_keeps_what_is_not_a_number(padding: int) -> None:
    x = np.random.default_rng(4).standard_normal((1, 8, 9, 9)).astype(np.float32)
    x[0, :, 4, 4], x[0, 3] = np.nan, -np.inf
    op = MaxPool((3, 3), Window((2, 2), ((padding, padding),) * 2, (1, 1)), True)
    found = run_plan(CUDA.plan(op, laid([x], True), Policy()), [x])
    for y, wanted in zip(found, run_reference(op, [x]), strict=True):
        np.testing.assert_array_equal(y, wanted)


@pytest.mark.feature("F044")
def test_vectors_tails_and_broadcasts() -> None:
    """Sizes around the width of an access; operands repeated along the innermost axis, or along others."""
    rng = np.random.default_rng(1)
    for a, b in (
        ((1003,), (1003,)),
        ((7, 16), (7, 1)),
        ((5, 24), (24,)),
        ((3, 8, 5), (8, 1)),
        ((2, 16, 3, 3), (16, 1, 1)),
    ):
        arrays = [rng.standard_normal(s).astype(bfloat16.numpy) for s in (a, b)]
        check(Add(), arrays, laid(arrays, True))


@pytest.mark.feature("B013")
def test_a_chain_is_one_kernel() -> None:
    rng = np.random.default_rng(2)
    op = Fused((Add(), Relu(), Mul()))
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((2, 8, 4, 4), (8, 1, 1), (2, 8, 4, 4))]
    specs = laid(arrays, True)
    plan = CUDA.plan(op, specs, Policy())
    assert isinstance(plan.make, Launches)
    assert len(plan.make.steps) == 1
    check(op, arrays, specs)


@pytest.mark.feature("F065")
@pytest.mark.parametrize("shape", [(6_000, 24), (3, 40_003), (100_000,)])
@pytest.mark.parametrize("last", [False, True])
def test_reductions_in_two_stages(shape: tuple[int, ...], last: bool) -> None:
    """Few results of many elements are split among blocks; the parts are combined by a second launch."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal(shape).astype(np.float32)
    op = Reduce("sum", (len(shape) - 1 if last else 0,))
    plan = CUDA.plan(op, laid([x], False), Policy())
    assert isinstance(plan.make, Launches)
    if len(plan.make.steps) == 2:
        assert plan.workspace > 0
    check(op, [x], laid([x], False))


@pytest.mark.feature("F044", "F075")
@pytest.mark.parametrize(("channels", "dtype"), [(2, float64), (3, bfloat16), (4, uint8)])
def test_images_of_few_channels_to_channels_last(channels: int, dtype: DType) -> None:
    """Whole accesses of each plane, over more than one block's run; others where planes do not begin at one."""
    shapes = {True: (2, channels, 32, 136), False: (2, channels, 3, 7)}
    for whole, shape in shapes.items():
        x = np.random.default_rng(5).integers(0, 200, shape).astype(dtype.numpy)
        plan = CUDA.reorder(Spec(shape, dtype).fixed, Spec(shape, dtype, channels_last(shape)))
        assert isinstance(plan.make, Launches)
        assert (plan.make.programs[0].name == "interleave") == whole
        for misaligned in {False, whole}:
            (found,) = run_plan(plan, [x], misaligned=misaligned)
            np.testing.assert_array_equal(found, x)


@pytest.mark.feature("F044", "F075")
@pytest.mark.parametrize("dtype", [float64, float32, bfloat16])
def test_reorders(dtype: DType) -> None:
    """Between row-major and channels last, both ways, and to a strided view's dense form."""
    rng = np.random.default_rng(4)
    shape = (2, 37, 9, 11)
    x = rng.standard_normal(shape).astype(dtype.numpy)
    first, last = Spec(shape, dtype).fixed, Spec(shape, dtype, channels_last(shape))
    for given, wanted in ((first, last), (last, first)):
        (found,) = run_plan(CUDA.reorder(given, wanted), [x])
        np.testing.assert_array_equal(found, x)
    transposed = Spec((11, 37), dtype, Layout((1, 11)))
    y = rng.standard_normal((11, 37)).astype(dtype.numpy)
    (found,) = run_plan(CUDA.reorder(transposed, Spec((11, 37), dtype).fixed), [y])
    np.testing.assert_array_equal(found, y)


WINDOWS = {
    "alexnet": ((2, 1, 19, 23), (1, 1, 11, 11), (4, 4), ((0, 0), (0, 0))),
    "resnet": ((1, 3, 11, 9), (1, 3, 7, 7), (2, 2), ((3, 3), (3, 3))),
    "uneven": ((2, 3, 10, 11), (2, 3, 3, 5), (2, 3), ((1, 0), (2, 1))),
    "gaps": ((2, 2, 9, 9), (3, 2, 2, 2), (3, 3), ((0, 0), (1, 1))),
}


@pytest.mark.parametrize("case", WINDOWS)
@pytest.mark.parametrize("direction", [Conv, ConvFilterGrad, ConvDataGrad])
def test_space_to_depth_and_padded_channels(case: str, direction: Direction) -> None:
    """The kernels around the stride-1 convolution make it equal to the strided one; that is done directly here."""
    rng = np.random.default_rng(5)
    x_shape, w_shape, stride, pads = WINDOWS[case]
    win = Window(stride, pads, (1, 1))
    x, w = (rng.standard_normal(s).astype(np.float32) for s in (x_shape, w_shape))
    (y_spec,) = Conv(win).infer(Spec(x_shape, float32), Spec(w_shape, float32))
    g = rng.standard_normal(y_spec.shape).astype(np.float32)
    o = Operands(win, *(Spec(s, float32, channels_last(s)) for s in (x_shape, w_shape, y_spec.shape)))
    op, arrays, specs, out = {
        Conv: (Conv(win), [x, w], [o.x, o.w], o.y),
        ConvFilterGrad: (ConvFilterGrad(win, w_shape[2:]), [x, g], [o.x, o.y], o.w),
        ConvDataGrad: (ConvDataGrad(win, x_shape[2:]), [g, w], [o.y, o.w], o.x),
    }[direction]
    (wanted,) = run_reference(op, arrays, float64)
    inputs = [_memory(a, s) for a, s in zip(arrays, specs, strict=True)]
    pointers = tuple(m.pointer for m in inputs)
    plain = Memory(out.nbytes)
    run_launch(direct(direction, o), Call(pointers, (plain.pointer,)))
    assert not mismatch(_array(plain, out), wanted, float32)
    forms = [space_to_depth(o)] if direction is not ConvDataGrad else []
    if direction is not ConvFilterGrad or case == "gaps":  # one block per element makes the others slow here
        forms.append(padded(o))
    for deep in forms:
        formulation = transformed("deep", deep, direction, NONE)
        result, space = Memory(out.nbytes), Memory(formulation.scratch)
        call = Call(pointers, (result.pointer,), space.pointer)
        run_steps(formulation.before, call)
        x_place, w_place = scratch(0), scratch(round_up(deep.deep.x.nbytes, 256))
        own = places_of(direction)
        arguments = {
            Conv: (x_place, w_place, own[2]),
            ConvDataGrad: (own[2], w_place, x_place),
            ConvFilterGrad: (x_place, own[2], w_place),
        }[direction]
        run_launch(replace(direct(direction, deep.deep), arguments=arguments), call)
        run_steps(formulation.after, call)
        for memory in (*inputs, result, space):
            memory.check(f"{case} {direction.name}")
        assert not mismatch(_array(result, out), wanted, float32), f"{deep.block}"


@pytest.mark.feature("F043")
@pytest.mark.parametrize("transposed", [(False, True), (False, False), (True, False), (True, True)])
def test_products_tiled_and_as_convolutions(transposed: tuple[bool, bool]) -> None:
    rng = np.random.default_rng(6)
    for m, n, k in ((9, 7, 18), (67, 5, 21)):
        _check_product(rng, m, n, k, transposed)


def _check_product(rng: np.random.Generator, m: int, n: int, k: int, transposed: tuple[bool, bool]) -> None:
    a = rng.standard_normal((k, m) if transposed[0] else (m, k)).astype(np.float32)
    b = rng.standard_normal((n, k) if transposed[1] else (k, n)).astype(np.float32)
    (wanted,) = run_reference(Matmul(*transposed), [a, b], float64)
    product = Product(1, m, n, k, *transposed)
    strides = (1, m) if product.c_transposed else (n, 1)
    spec = Spec((m, n), float32, Layout(strides))
    inputs = [_memory(x, Spec(x.shape, float32).fixed) for x in (a, b)]
    direction, o, places = as_convolution(product, float32)
    x_place, w_place, y_place = places
    arguments = {
        Conv: (x_place, w_place, y_place),
        ConvDataGrad: (y_place, w_place, x_place),
        ConvFilterGrad: (x_place, y_place, w_place),
    }[direction]
    for launch in (
        tiled(product, Spec(a.shape, float32)),
        replace(direct(direction, o), arguments=arguments),
    ):
        result = Memory(spec.nbytes)
        run_launch(launch, Call(tuple(x.pointer for x in inputs), (result.pointer,)))
        result.check("product")
        assert not mismatch(_array(result, spec), wanted, float32), launch.program.name


def _memory(array: Array, spec: Spec) -> Memory:
    memory = Memory(spec.nbytes)
    memory.bytes[:] = pack(array, spec.physical).view(np.uint8).reshape(-1)
    return memory


def _array(memory: Memory, spec: Spec) -> Array:
    return unpack(memory.bytes.copy().view(spec.dtype.numpy), spec.physical, spec.shape)


@pytest.mark.parametrize("op", [Add(), Mul()], ids=str)
def test_single_numbers_in_one_launch(op: Op) -> None:
    """More of them than a block has threads."""
    values = np.arange(300, dtype=np.int64)
    arrays = [v.reshape(()) for pair in zip(values, values[::-1], strict=True) for v in pair]
    check(Foreach(op, 300), arrays, [Spec((), int64)] * 600)


def test_jumps_between_fibers_are_not_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A compiler that checks jumps by default, as Ubuntu's does: kernels would abort at their first barrier."""
    compiler = tmp_path / "g++"
    compiler.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} -D_FORTIFY_SOURCE=2 "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    made = tmp_path / "jump.so"
    text = '#include <setjmp.h>\nextern "C" void jump(jmp_buf to) { _longjmp(to, 1); }\n'
    emulator._make(made, ["-shared", "-x", "c++", "-"], text)
    assert b"longjmp" in made.read_bytes()
    assert b"longjmp_chk" not in made.read_bytes()


SIZED = ("batch norm", "its gradient", "passes", "its gradient in passes", "columns", "max pool")


def steps_of(case: str, n: int) -> tuple[Any, ...]:
    """What runs in a case whose sizes are made of `n`, all others being alike."""
    shape = (64, 64 * n, 64, 64) if "passes" in case else (2 * n, 8 * n, 7, n + 2)
    image, channel = Spec(shape, bfloat16, channels_last(shape)), Spec(shape[1:2], float32)
    rows, scale = Spec((16 * n, 768), bfloat16), Spec((768,), float32)
    window = Window((2, 1), ((0, 1), (1, 1)), (1, 1))
    if case == "depthwise convolution":
        win = Window((1, 1), ((1, 1), (1, 1)), (1, 1), shape[1])
        o = Operands(win, image, Spec((shape[1], 1, 3, 3), bfloat16), image)
        return depthwise.depthwise_formulation(Conv, o, None, H200.machine).steps
    plan = {
        "batch norm": lambda: CUDA.plan(BatchNorm(1e-5, 0.1, True), (image, *(channel,) * 4), Policy()),
        "its gradient": lambda: CUDA.plan(BatchNormGrad(), (image, image, *(channel,) * 3), Policy()),
        "columns": lambda: CUDA.plan(Reduce("mean", (2, 3)), (image,), Policy()),
        "rows": lambda: CUDA.plan(Reduce("sum", (1,)), (Spec((8 * n, 64 + 8 * n), float32),), Policy()),
        "max pool": lambda: CUDA.plan(MaxPool((2, 3), window, True), (image,), Policy()),
        "row norm": lambda: CUDA.plan(LayerNorm(1, 1e-5), (rows, scale, scale), Policy()),
    }[case.replace(" in passes", "").replace("passes", "batch norm")]()
    assert isinstance(plan.make, Launches)
    return plan.make.steps


@pytest.mark.parametrize("case", [*SIZED, "rows", "row norm", "depthwise convolution"])
def test_kernels_of_a_kind_are_one_for_all_sizes(case: str) -> None:
    """What is compiled for a network's first step does not grow with how many sizes it has."""
    found = [[s.program for s in steps_of(case, n) if isinstance(s, Launch | Together)] for n in (5, 6, 9)]
    assert len({tuple(p.source for p in programs) for programs in found}) == 1
    assert len(found[0]) == {"passes": 3, "its gradient in passes": 3}.get(case, 1)


@pytest.mark.parametrize("last", [False, True])
def test_indexes_of_64_bits(last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where 32 bits are not enough sizes are constants: the same results, of tensors that are small."""
    for module in (indexing, norm, pool, reduce):
        monkeypatch.setattr(module, "index_type", lambda reach: "i64")
    rng, shape = np.random.default_rng(11), (3, 5, 6, 11)
    x = rng.standard_normal(shape).astype(np.float32)
    small = [rng.standard_normal(5).astype(np.float32) for _ in range(3)]
    positive = np.ones(5, np.float32)
    row = [rng.standard_normal(11).astype(np.float32) for _ in range(2)]
    given: list[tuple[Op, list[Array]]] = [
        (Reduce("mean", (1, 3)), [x]),
        (Reduce("sum", (0, 2)), [x]),
        (BatchNorm(1e-5, 0.1, True), [x, *small, positive]),
        (BatchNormGrad(True), [x, -x, *small[:2], positive, small[2]]),
        (LayerNorm(1, 1e-5), [x, *row]),
        (MaxPool((2, 3), Window((2, 1), ((0, 1), (1, 1)), (1, 1)), True), [x]),
    ]
    for op, arrays in given:
        forget()
        plan = CUDA.plan(op, laid(arrays, last), Policy())
        assert isinstance(plan.make, Launches)
        assert any("typedef i64 Index" in program.text for program in plan.make.programs)
        check(op, arrays, laid(arrays, last))
    forget()
    to = Spec(shape, float32, contiguous(shape) if last else channels_last(shape))
    (found,) = run_plan(CUDA.reorder(laid([x], last)[0], to), [x])
    np.testing.assert_array_equal(found, x)
    forget()
