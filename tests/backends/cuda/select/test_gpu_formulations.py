"""Every formulation of convolutions and products on a GPU against the reference: cuDNN, cuBLASLt, own kernels."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from lamina.backends import Call, Plan
from lamina.backends.cuda.conv import slices
from lamina.backends.cuda.conv.conv import conv_problem, forward_plan
from lamina.backends.cuda.conv.fast_fir import fast_fir_formulation
from lamina.backends.cuda.cudnn_graphs.conv import Direction, Operands, sides
from lamina.backends.cuda.cudnn_graphs.epilogue import NONE, Epilogue, Vector
from lamina.backends.cuda.cudnn_graphs.matmul import Product
from lamina.backends.cuda.launch.program import source, target
from lamina.backends.cuda.matmul import cublaslt
from lamina.backends.cuda.matmul.matmul import matmul_problem
from lamina.backends.cuda.select import formulations
from lamina.backends.cuda.select.formulations import Problem, candidates, make_plan
from lamina.backends.reference import run_reference
from lamina.c import cublaslt as c
from lamina.cudnn import handle_of
from lamina.ops.core import Array, Op
from lamina.ops.primitives import (
    Add,
    ClippedRelu,
    Conv,
    ConvDataGrad,
    ConvFilterGrad,
    Fused,
    GeluTanh,
    Matmul,
    Relu,
    Window,
)
from lamina.runtime import Device, from_host, to_host
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
from tests.helpers.eager import apart, mismatch

pytestmark = pytest.mark.gpu
DIRECTIONS = (Conv, ConvDataGrad, ConvFilterGrad)


@pytest.fixture
def device() -> Device:
    return Device("cuda:0")


def every_formulation(
    device: Device,
    problem: Problem,
    op: Op,
    arrays: Sequence[Array],
    roundings: int = 1,
    of_engines: int = 1,
) -> set[str]:
    """Run the first candidate of each formulation (all of cuBLASLt's), compare; the names of those that ran.

    roundings: to the operands' type on the way to a result; of several, only the norm of the error is looked at.
    of_engines: those of cuDNN's engines, which may add up parts of a sum in that type.
    """
    wanted = run_reference(op, list(arrays), float64)[0]
    ran = set()
    for formulation in problem.formulations:
        single = Problem(
            problem.key, formulation.name, problem.inputs, problem.outputs, (formulation,), problem.flops
        )
        refusals: list[str] = []
        found = next(candidates(single, handle_of(device), Policy(), ("a", "fallback"), refusals), None)
        if found is None:
            continue
        plan = make_plan(single, found, device)
        inputs = [
            from_host(pack(a, s.physical).view(np.uint8).reshape(-1), device)
            for a, s in zip(arrays, plan.inputs, strict=True)
        ]
        (result,) = plan.outputs
        out, scratch = device.allocate(result.nbytes), device.allocate(plan.workspace)
        with device.stream() as stream:
            device.synchronize()
            call = Call(tuple(b.pointer for b in inputs), (out.pointer,), scratch.pointer, stream.handle)
            run = plan.bind(call)
            run()  # loads modules
            with stream.capture() as graph:
                run()
            graph.launch(stream)
            stream.synchronize()
            graph.close()
        y = unpack(to_host(out).view(result.dtype.numpy), result.physical, result.shape)
        several = roundings if found.plan is None else max(roundings, of_engines)
        once = mismatch(y, wanted, result.dtype)
        wrong = once if several == 1 else apart(y, wanted, result.dtype, several)
        assert not wrong, f"{found.label}: {wrong}"
        ran.add(formulation.name.partition(":")[0].rstrip("0123456789."))
    return ran


def convolution(
    device: Device,
    direction: Direction,
    x: tuple[int, ...],
    w: tuple[int, ...],
    win: Window,
    dtype: DType,
    steps: tuple[Op, ...] = (),
    of_engines: int = 1,
    policy: Policy | None = None,
) -> set[str]:
    y = (x[0], w[0], *win.output(x[2:], w[2:]))
    o = Operands(win, *(Spec(s, dtype, channels_last(s)) for s in (x, w, y)))
    _, given = sides(direction, o)
    rng = np.random.default_rng(0)
    specs = [*given, *([Spec((1, w[0], *(1,) * win.rank), dtype)] if steps else [])]
    arrays = [rng.standard_normal(s.shape).astype(dtype.numpy) for s in specs]
    shape = {Conv: (), ConvDataGrad: (x[2:],), ConvFilterGrad: (w[2:],)}[direction]
    head = direction(win, *shape)
    epilogue = Epilogue(steps, (Spec((1, w[0], *(1,) * win.rank), dtype),), 2) if steps else NONE
    problem = conv_problem(direction, o, device, epilogue, policy or Policy())
    op = Fused((head, *steps)) if steps else head
    return every_formulation(device, problem, op, arrays, of_engines=of_engines)


def square(stride: int = 1, pad: int = 0, groups: int = 1) -> Window:
    return Window((stride, stride), ((pad, pad), (pad, pad)), (1, 1), groups)


@pytest.mark.feature("B012")
@pytest.mark.parametrize("dtype", [bfloat16, float16])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_turned(device: Device, direction: Direction, dtype: DType) -> None:
    ran = convolution(device, direction, (4, 32, 14, 15), (64, 32, 3, 3), square(1, 1), dtype)
    assert {"plain", "turned", "relaid"} <= ran


@pytest.mark.feature("B012")
@pytest.mark.parametrize("dtype", [bfloat16, float16])
@pytest.mark.parametrize("dilation", [2, 32])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_undilated(device: Device, direction: Direction, dilation: int, dtype: DType) -> None:
    win = Window((1,), ((2 * dilation, 0),), (dilation,))
    ran = convolution(device, direction, (4, 64, 512), (128, 64, 3), win, dtype)
    assert {"plain", "undilated"} <= ran
    if direction is Conv:
        steps = (Add(), Relu())
        assert "undilated" in convolution(device, Conv, (4, 64, 512), (128, 64, 3), win, dtype, steps)


@pytest.mark.feature("B012")
@pytest.mark.parametrize("dtype", [bfloat16, float16])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_merged(device: Device, direction: Direction, stride: int, dtype: DType) -> None:
    """Groups of 24 and of 4 channels as larger ones and as one."""
    for channels, groups in ((144, 6), (128, 32)):
        x, w, win = (4, channels, 15, 14), (channels, channels // groups, 3, 3), square(stride, 1, groups)
        assert {"plain", "merged", "dense"} <= convolution(device, direction, x, w, win, dtype)
        if direction is Conv:
            assert {"merged", "dense"} <= convolution(device, Conv, x, w, win, dtype, (Add(), Relu()))


@pytest.mark.feature("B012")
@pytest.mark.parametrize("dtype", [bfloat16, float16])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_slices(device: Device, direction: Direction, dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two and three large groups one after the other, however long that is expected to take."""
    monkeypatch.setattr(slices, "_GAIN", 0.0)
    for channels, groups, stride in ((64, 2, 1), (40, 3, 2)):
        x, w = (4, channels * groups, 15, 14), (64 * groups, channels, 3, 3)
        win = square(stride, 1, groups)
        assert "slices" in convolution(device, direction, x, w, win, dtype)


@pytest.mark.feature("B012")
@pytest.mark.parametrize("dtype", [bfloat16, float16])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_patches(device: Device, direction: Direction, dtype: DType) -> None:
    """Windows that lie side by side as products: rows of odd length, a rest, one and three axes."""
    for x, taps in (
        ((4, 3, 64, 48), (16, 16)),
        ((4, 3, 45, 42), (14, 14)),
        ((4, 16, 30, 17), (4, 2)),
        ((4, 64, 128), (4,)),
        ((2, 8, 6, 8, 8), (2, 4, 2)),
    ):
        win = Window(taps, ((0, 0),) * len(taps), (1,) * len(taps))
        w = (64, x[1], *taps)
        ran = convolution(device, direction, x, w, win, dtype)
        assert {"plain", "patches-conv", "patches-matmul"} <= ran
        assert ("patches-blas" in ran) == c.library.available()
        if direction is Conv:
            assert "patches-conv" in convolution(device, Conv, x, w, win, dtype, (Add(), Relu()))


@pytest.mark.feature("B012")
@pytest.mark.parametrize("rows", [18, 21])
@pytest.mark.parametrize("direction", [Conv, ConvDataGrad])
def test_halved(device: Device, direction: Direction, rows: int) -> None:
    """Three convolutions of half as many taps; the result carries about five roundings instead of one."""
    win, x, w = square(1, 3), (3, 64, rows, 20), (128, 64, 7, 7)
    y = (x[0], w[0], *win.output(x[2:], w[2:]))
    o = Operands(win, *(Spec(s, bfloat16, channels_last(s)) for s in (x, w, y)))

    def plan(part: Operands) -> Plan:
        return forward_plan(Conv(part.window), (part.x.open, part.w.open), NONE, device, Policy())

    problem = replace(
        conv_problem(direction, o, device), formulations=(fast_fir_formulation(direction, o, plan),)
    )
    head = Conv(win) if direction is Conv else ConvDataGrad(win, x[2:])
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s.shape).astype(bfloat16.numpy) for s in problem.inputs]
    assert every_formulation(device, problem, head, arrays, roundings=5) == {"halved"}


@pytest.mark.feature("B012")
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_products(device: Device, direction: Direction, stride: int) -> None:
    ran = convolution(device, direction, (4, 64, 14, 14), (32, 64, 1, 1), square(stride), bfloat16)
    assert {"plain", "product"} <= ran
    assert ("blas" in ran) == c.library.available()


@pytest.mark.feature("B012")
@pytest.mark.parametrize("dtype", [bfloat16, float16])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_depthwise(device: Device, direction: Direction, stride: int, dtype: DType) -> None:
    ran = convolution(device, direction, (8, 144, 29, 30), (144, 1, 3, 3), square(stride, 1, 144), dtype)
    assert "depthwise" in ran


@pytest.mark.feature("B012")
@pytest.mark.parametrize("dtype", [bfloat16, float16])
@pytest.mark.parametrize(
    ("x", "taps", "stride"),
    [
        ((8, 144, 29, 30), (5, 5), (1, 1)),
        ((8, 72, 57, 56), (5, 5), (2, 2)),
        ((16, 768, 7, 7), (7, 7), (1, 1)),
        ((3, 35, 31, 33), (7, 7), (2, 1)),
        ((2, 35, 40, 41), (3, 3), (1, 1)),
        ((2, 16, 40, 41), (31, 1), (1, 1)),
        ((2, 16, 40, 41), (1, 7), (3, 3)),
    ],
    ids=str,
)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_depthwise_rows(
    device: Device,
    direction: Direction,
    x: tuple[int, ...],
    taps: tuple[int, int],
    stride: tuple[int, int],
    dtype: DType,
) -> None:
    (top, left), channels = (t // 2 for t in taps), x[1]
    win = Window(stride, ((top, top), (left, left)), (1, 1), channels)
    ran = convolution(device, direction, x, (channels, 1, *taps), win, dtype, of_engines=8)
    assert "depthwise" in ran


@pytest.mark.feature("B012")
@pytest.mark.parametrize("dtype", [bfloat16, float16])
@pytest.mark.parametrize("direction", [Conv, ConvFilterGrad])
@pytest.mark.parametrize(
    ("x", "w", "stride", "pad"),
    [
        ((3, 1, 224, 224), (96, 1, 11, 11), 4, 0),
        ((2, 3, 224, 224), (64, 3, 7, 7), 2, 3),
        ((2, 3, 97, 111), (32, 3, 3, 3), 2, 1),
    ],
)
def test_stem(
    device: Device,
    x: tuple[int, ...],
    w: tuple[int, ...],
    stride: int,
    pad: int,
    direction: Direction,
    dtype: DType,
) -> None:
    assert "stem" in convolution(device, direction, x, w, square(stride, pad), dtype)


@pytest.mark.feature("B012")
def test_bias_and_activation(device: Device) -> None:
    relu6 = (Add(), ClippedRelu(6.0))
    found = convolution(device, Conv, (2, 32, 28, 28), (32, 1, 3, 3), square(1, 1, 32), bfloat16, relu6)
    assert "depthwise" in found
    found = convolution(device, Conv, (2, 35, 28, 28), (35, 1, 7, 7), square(1, 3, 35), bfloat16, relu6)
    assert "depthwise" in found
    found = convolution(device, Conv, (2, 3, 64, 64), (64, 3, 7, 7), square(2, 3), bfloat16, (Add(), Relu()))
    assert "stem" in found
    found = convolution(device, Conv, (2, 64, 14, 14), (32, 64, 1, 1), square(), bfloat16, (Add(), Relu()))
    assert ("blas" in found) == c.library.available()


@pytest.mark.feature("B012")
@pytest.mark.skipif(not c.library.available(), reason="needs cuBLASLt")
@pytest.mark.parametrize("dtype", [bfloat16, float16, float32, float64])
@pytest.mark.parametrize("transposed", ["", "a", "b", "ab"])
@pytest.mark.parametrize("batch", [1, 5])
def test_cublaslt(device: Device, batch: int, transposed: str, dtype: DType) -> None:
    """Every algorithm, in a CUDA graph, within the workspace."""
    p = Product(batch, 48, 80, 64, "a" in transposed, "b" in transposed)
    a, b, c = specs(p, dtype)
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(s.shape).astype(dtype.numpy) for s in (a, b)]
    problem = matmul_problem(p, a, b, c, NONE, Policy(), device)
    assert "blas" in every_formulation(device, problem, Matmul(), arrays)


@pytest.mark.feature("B012")
@pytest.mark.parametrize("dtype", [bfloat16, float16])
@pytest.mark.parametrize("transposed", ["", "a", "b", "ab"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("added", [False, True])
def test_padded_products(device: Device, added: bool, batch: int, transposed: str, dtype: DType) -> None:
    """Rows that are no multiple of 16 bytes; what is added to the result has a rounding of its own."""
    p = Product(batch, 403, 517, 301, "a" in transposed, "b" in transposed)
    a, b, y = specs(p, dtype)
    epilogue = Epilogue((Add(),), (y,), 2) if added else NONE
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(s.shape).astype(dtype.numpy) for s in (a, b, *epilogue.extras)]
    problem = matmul_problem(p, a, b, y, epilogue, Policy(), device)
    problem = replace(
        problem, formulations=tuple(f for f in problem.formulations if f.name.startswith("padded"))
    )
    op = Fused((Matmul(), Add())) if added else Matmul()
    ran = every_formulation(device, problem, op, arrays, roundings=1 + added, of_engines=2)
    assert "padded-matmul" in ran
    assert ("padded-conv" in ran) == (batch == 1)
    assert ("padded-blas" in ran) == c.library.available()


def specs(p: Product, dtype: DType) -> list[Spec]:
    """A, B and C as they lie: logically [batch, M, K], [batch, K, N], [batch, M, N]."""
    lead = (p.batch,) if p.batch > 1 else ()
    sized = (((p.m, p.k), p.a_strides), ((p.k, p.n), p.b_strides), ((p.m, p.n), p.c_strides))
    return [Spec((*lead, *size), dtype, Layout(s if lead else s[1:])) for size, s in sized]


@pytest.mark.feature("B012")
@pytest.mark.skipif(not c.library.available(), reason="needs cuBLASLt")
@pytest.mark.parametrize("steps", [(Add(),), (Add(), Relu()), (Add(), GeluTanh()), (Add(), Add(), Relu())])
def test_epilogues_of_cublaslt(device: Device, steps: tuple[Op, ...]) -> None:
    p = Product(1, 48, 80, 64, False, True)
    a, b, c = specs(p, bfloat16)
    extras = (Spec((80,), bfloat16), c)[: sum(isinstance(s, Add) for s in steps)]
    rng = np.random.default_rng(2)
    arrays = [rng.standard_normal(s.shape).astype(bfloat16.numpy) for s in (a, b, *extras)]
    problem = matmul_problem(p, a, b, c, Epilogue(steps, extras, 2), Policy(), device)
    assert "blas" in every_formulation(device, problem, Fused((Matmul(), *steps)), arrays)


@pytest.mark.skipif(not c.library.available(), reason="needs cuBLASLt")
def test_cublaslt_keeps_the_workspace_limit(device: Device) -> None:
    p = Product(1, 128, 128, 65536, True, False)
    places = (source(0), source(1), target())
    for limit in (0, 1 << 20):
        found = cublaslt.cublaslt_formulations(
            p, bfloat16, places, device, Policy(workspace_limit=limit), Vector()
        )
        assert found
        assert all(formulation.scratch <= limit for formulation in found)


@pytest.mark.feature("B012")
def test_large_problems_try_what_no_heuristic_names(device: Device) -> None:
    """Neighbours of the best configuration compete, and the winner can be rebuilt from what is remembered."""
    x, w = (32, 128, 56, 56), (256, 128, 3, 3)
    o = Operands(square(1, 1), *(Spec(s, bfloat16, channels_last(s)) for s in (x, w, (32, 256, 56, 56))))
    problem = conv_problem(Conv, o, device, NONE, Policy(algorithm="fastest"))
    handle = handle_of(device)
    first = next(candidates(problem, handle, Policy(), ("a",), []))
    near = formulations._neighbours(problem, first, handle, Policy(), [])
    assert near
    assert {one.choice.engine for one in near} == {first.choice.engine}
    assert first.choice not in [one.choice for one in near]
    again = formulations.rebuild(problem, near[0].choice, handle, Policy())
    assert again is not None
    assert again.choice == near[0].choice
