"""1x1 convolutions with the sums of a batch norm, on a CPU: the kernels emulated, and which cases they take."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from lamina.backends import Call, NoKernel, Plan
from lamina.backends.cuda import backend
from lamina.backends.cuda.conv import conv as convolutions
from lamina.backends.cuda.cudnn_graphs.conv import Operands
from lamina.backends.cuda.launch.program import INCLUDE, Launch, check_join, source, target
from lamina.backends.cuda.norm import conv1x1_stats, conv_batch_norm
from lamina.backends.cuda.norm.conv_batch_norm_fusion import ConvNorm, DataGradNorm, packed_mask
from lamina.backends.cuda.select.formulations import Formulation, Problem, candidate, make_plan
from lamina.backends.reference import run_reference
from lamina.ops.core import Array, Op
from lamina.ops.primitives import (
    Add,
    BatchNorm,
    BatchNormGrad,
    BatchNormInfer,
    Conv,
    ConvDataGrad,
    Fused,
    Relu,
    ReluGrad,
    Window,
)
from lamina.runtime import Device, compile_cubin
from lamina.spec import (
    DType,
    Layout,
    Policy,
    Shape,
    Spec,
    as_dtype,
    bfloat16,
    channels_last,
    contiguous,
    float16,
    float32,
    float64,
    pack,
    unpack,
)
from tests.helpers import slow_from
from tests.helpers.eager import mismatch
from tests.helpers.emulator import Memory, contrary, run_plan, run_steps
from tests.helpers.planned import H200

POINT = Window((1, 1), ((0, 0), (0, 0)), (1, 1))
#: (x's shape, filters, dtype): fewer rows than a tile, and more; one and two columns of 64; two teams, and four.
CASES = [
    ((2, 64, 5, 7), 128, bfloat16),
    ((1, 192, 17, 19), 64, bfloat16),
    ((2, 256, 9, 8), 256, bfloat16),
    ((1, 64, 9, 15), 128, float16),
    ((1, 64, 15, 21), 512, bfloat16),
]


def last(shape: tuple[int, ...], dtype: DType) -> Spec:
    return Spec(shape, dtype, channels_last(shape))


def spec_of(a: Array) -> Spec:
    return Spec(a.shape, as_dtype(a.dtype))


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
    return rng.uniform(-1, 1, shape).astype(dtype.numpy)


def run(formulation: Formulation, inputs: list[Array], outputs: list[Spec]) -> list[Array]:
    """The results of a way's steps; tensors of rank 4 lie channels last."""
    images = [a.ndim == 4 and a.shape[2:] != (1, 1) and a.dtype.itemsize == 2 for a in inputs]
    laid = [channels_last(a.shape) if far else None for a, far in zip(inputs, images, strict=True)]
    held = [Memory(a.nbytes) for a in inputs]
    for memory, a, layout in zip(held, inputs, laid, strict=True):
        memory.bytes[:] = (a if layout is None else pack(a, layout)).reshape(-1).view(np.uint8)
    made, workspace = [Memory(s.nbytes) for s in outputs], Memory(formulation.scratch)
    call = Call(tuple(m.pointer for m in held), tuple(m.pointer for m in made), workspace.pointer)
    run_steps(formulation.steps, call)
    for i, memory in enumerate((*held, *made, workspace)):
        memory.check(str(i))
    raw = [m.bytes.copy().view(s.dtype.numpy) for m, s in zip(made, outputs, strict=True)]
    sums = workspace.bytes.tobytes()
    with contrary():  # result and sums are the same when warps come in another order and copies arrive late
        run_steps(formulation.steps[:2], call)
    assert all(m.bytes.tobytes() == r.tobytes() for m, r in zip(made, raw, strict=True))
    assert workspace.bytes.tobytes() == sums
    return [r if s.ndim == 1 else unpack(r, s.physical, s.shape) for r, s in zip(raw, outputs, strict=True)]


def small(rng: np.random.Generator, channels: int, count: int) -> list[Array]:
    return [rng.uniform(0.5, 2, channels).astype(np.float32) for _ in range(count)]


def compare(found: list[Array], wanted: tuple[Array, ...]) -> None:
    """Sums of products that were rounded to a half type are as far off as their largest terms."""
    for one, ref in zip(found, wanted, strict=True):
        scale = float(np.abs(ref).max())
        np.testing.assert_allclose(one.astype(np.float64), ref, rtol=2e-2, atol=1e-2 * scale)


@pytest.mark.parametrize(("shape", "filters", "dtype"), slow_from(2, CASES, several=True))
@pytest.mark.parametrize("residual", [False, True])
def test_forward(shape: tuple[int, ...], filters: int, residual: bool, dtype: DType) -> None:
    """With relu, also the bits that say where its result is positive."""
    rng = np.random.default_rng(1)
    result = (shape[0], filters, *shape[2:])
    op = ConvNorm(Conv(POINT), BatchNorm(1e-3, 0.1, residual, residual), bits=residual)
    x, w, y = last(shape, dtype), Spec((filters, shape[1], 1, 1), dtype).fixed, last(result, dtype)
    arrays = [drawn(rng, s.shape, dtype) for s in (x, w)] + small(rng, filters, 4)
    arrays += [drawn(rng, result, dtype)] * residual
    given = [target(5), *(source(i) for i in range(2, len(arrays)))]
    (formulation,) = conv_batch_norm.own_formulation(op, Operands(POINT, x, w, y), given, H200.machine)
    statistics = [Spec((filters,), float32).fixed] * 4
    found = run(
        formulation, arrays, [y, *statistics, y, *(s.fixed for s in op.infer(*map(spec_of, arrays))[6:])]
    )
    wanted = run_reference(op, arrays, float64)
    compare(found[:6], wanted[:6])
    if residual:  # bits of the result as it was rounded
        assert found[6].reshape(wanted[6].shape).tobytes() == packed_mask(found[0]).tobytes()


#: (steps, whether the mask is bits, the norm's own relu)
STEPS: list[tuple[Any, bool, str]] = [
    ((), False, ""),
    ((), False, "clipped"),
    ((Add(),), False, "relu"),
    ((ReluGrad(),), False, ""),
    ((Add(), ReluGrad()), False, "relu"),
    ((Add(), ReluGrad()), True, ""),
]


@pytest.mark.parametrize(("shape", "filters", "dtype"), slow_from(2, CASES, several=True))
@pytest.mark.parametrize(("steps", "bits", "relu"), STEPS)
def test_data_gradient(
    shape: tuple[int, ...], filters: int, steps: Any, bits: bool, relu: str, dtype: DType
) -> None:
    """With what stands behind it, the norm having a relu of its own or not. shape: of the result's gradient."""
    rng = np.random.default_rng(2)
    result = (shape[0], filters, *shape[2:])
    head = ConvDataGrad(POINT, result[2:])
    norm = BatchNormGrad(relu=bool(relu), hi=0.5 if relu == "clipped" else None)
    op = DataGradNorm(Fused((head, *steps)) if steps else head, norm, bits)
    dy, w, dx = last(shape, dtype), Spec((shape[1], filters, 1, 1), dtype).fixed, last(result, dtype)
    more = [drawn(rng, result, dtype) for _ in range(len(steps) + 1)]
    if bits:
        more[1] = packed_mask(more[1])
    arrays = [*(drawn(rng, s.shape, dtype) for s in (dy, w)), *more, *small(rng, filters, 3 + norm.relu)]
    places = [source(i) for i in range(len(arrays))]
    o = Operands(POINT, dx, w, dy)
    (formulation,) = conv_batch_norm.own_gradient_formulation(op, o, places, 2 + len(steps), H200.machine)
    found = run(formulation, arrays, [dx, *[Spec((filters,), float32).fixed] * 2, dx])
    wanted = run_reference(op, arrays, float64)
    compare(found, wanted)


@pytest.mark.parametrize("lies", slow_from(2, product([contiguous, channels_last, None], repeat=2)))
@pytest.mark.parametrize("op_class", [ConvNorm, DataGradNorm])
def test_unfused_in_any_layout(
    op_class: type[Op], lies: tuple[Callable[[Shape], Layout] | None, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The convolution's operands in one layout, the norm's in another: the plan says how it wants them."""

    def choose(problem: Problem, device: Device, policy: Policy) -> Plan:
        (formulation,) = (
            formulation for formulation in problem.formulations if formulation.name in ("direct", "unfused")
        )
        return make_plan(problem, candidate(formulation, None, {}), device)

    monkeypatch.setattr(convolutions, "choose", choose)
    monkeypatch.setattr(conv_batch_norm, "choose", choose)
    convolutions._cached.cache_clear()
    sample = [s for s in op_class.samples() if not isinstance(getattr(s.op, "grad", None), Fused)][-1]
    arrays = sample.draw(np.random.default_rng(3), float32)
    specs = [
        Spec(a.shape, as_dtype(a.dtype), arrange and arrange(a.shape))
        for a, arrange in zip(arrays, [lies[0]] * 2 + [lies[1]] * (len(arrays) - 2), strict=True)
    ]
    made = backend(H200).plan(sample.op, specs, Policy())
    found = run_plan(made, arrays)
    convolutions._cached.cache_clear()
    assert len(made.parts) == 2
    wanted = run_reference(sample.op, arrays, float64)
    assert [mismatch(a, b, float32) for a, b in zip(found, wanted, strict=True)] == [""] * len(wanted)


def test_plans_that_do_not_fit_together_are_refused() -> None:
    """What one leaves in one layout the next must not read in another."""
    x = Spec((2, 8, 3, 5), float32)
    left, read = Relu(), BatchNormInfer(1e-5)
    one = backend(H200).plan(left, [x.fixed], Policy())
    more = [Spec((8,), float32)] * 4
    two = [backend(H200).plan(read, [s, *more], Policy()) for s in (x.fixed, last(x.shape, float32))]
    check_join(one, two[0])
    with pytest.raises(NoKernel, match=r"leaves f32\[2,8,3,5\] and .* reads f32\[2,8,3,5\]:acdb"):
        check_join(one, two[1])


def test_which_cases_are_taken() -> None:
    x, w, y = (
        last((2, 64, 8, 8), float16),
        Spec((128, 64, 1, 1), float16).fixed,
        last((2, 128, 8, 8), float16),
    )
    machine = H200.machine
    assert conv1x1_stats.tiling(POINT, x, w, y, machine) == conv1x1_stats.ProductTiling(128, 128, 64, machine)
    assert conv1x1_stats.tiling(POINT, y, w, x, machine) == conv1x1_stats.ProductTiling(128, 64, 128, machine)
    others = [
        (replace(POINT, stride=(2, 2)), x, w, y),
        (POINT, x, w, Spec(y.shape, float16).fixed),  # not channels last
        (POINT, last(x.shape, float32), w, last(y.shape, float32)),
        (POINT, last((2, 48, 8, 8), float16), Spec((128, 48, 1, 1), float16).fixed, y),
        (POINT, x, Spec((96, 64, 1, 1), float16).fixed, last((2, 96, 8, 8), float16)),
        (POINT, x, Spec((128, 32, 1, 1), float16).fixed, y),  # in groups
    ]
    assert [conv1x1_stats.tiling(*case, machine) for case in others] == [None] * len(others)
    op = DataGradNorm(Fused((ConvDataGrad(POINT, (8, 8)), ReluGrad(), Add())), BatchNormGrad())
    assert conv_batch_norm.steps_behind(op, [source(i) for i in range(8)], 4) is None


@pytest.mark.parametrize(
    ("rows", "columns", "depth"), [(401408, 256, 64), (401408, 64, 256), (6272, 2048, 256)]
)
def test_it_compiles_and_fits(rows: int, columns: int, depth: int) -> None:
    """For an H200, whose blocks have 227 KiB of shared memory."""
    tiles = conv1x1_stats.ProductTiling(rows, columns, depth, H200.machine)
    norm = tuple(source(i) for i in range(5))
    behind = conv1x1_stats.Behind(source(), source(), norm)
    for launch in (
        conv1x1_stats.forward(tiles, bfloat16, target()),
        conv1x1_stats.data_grad(tiles, bfloat16, behind, target()),
    ):
        assert isinstance(launch, Launch)
        assert tiles.shared + 3 * 4 * tiles.wide <= H200.machine.shared_memory
        assert tiles.stages >= 3
        assert compile_cubin(
            launch.program.source, arch="sm_90a", includes=[INCLUDE], name=launch.program.name
        )
    assert tiles.grid[0] * tiles.grid[1] <= H200.machine.multiprocessors
    assert tiles.parts == tiles.teams * tiles.grid[1]
