"""The kernels of normalization, run on a CPU: layouts, sizes around an access and a block, relu, residuals."""

import shutil
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from lamina.backends import Call, Plan
from lamina.backends.cuda import backend
from lamina.backends.cuda.cudnn_graphs.conv import Operands
from lamina.backends.cuda.launch.program import Launches, kernel_plan, source, target
from lamina.backends.cuda.norm import norm
from lamina.backends.cuda.norm.batch_norm_of_activation_fusion import NormOfActivationGrad
from lamina.backends.cuda.norm.conv_batch_norm import statistics_formulation
from lamina.backends.cuda.norm.conv_batch_norm_fusion import ConvNorm
from lamina.backends.cuda.norm.norm import batch_norm_grad, channel_blocks
from lamina.backends.cuda.norm.norm_activation_fusion import ActivationNormGrad
from lamina.backends.cuda.select.formulations import Problem
from lamina.backends.reference import run_reference
from lamina.ops.core import REGISTRY, Array, Op, Sample
from lamina.ops.primitives import (
    BatchNorm,
    BatchNormGrad,
    BatchNormInfer,
    Conv,
    GroupNorm,
    GroupNormGrad,
    LayerNorm,
    LayerNormGrad,
    RmsNorm,
    RmsNormGrad,
    Window,
)
from lamina.ops.primitives.fused_elementwise import FusedElementwise
from lamina.ops.primitives.pointwise import Gelu, GeluGrad
from lamina.runtime import Device
from lamina.spec import (
    DType,
    Policy,
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
from tests.helpers.eager import mismatch
from tests.helpers.emulator import Memory, run_plan, run_steps
from tests.helpers.planned import H200

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
CUDA = backend(H200)
NORMS = [n for n in sorted(REGISTRY) if n.startswith(("batch_norm", "layer_norm", "rms_norm", "group_norm"))]


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("channels", [24, 1, 2, 8, 40, 256, 4096])
@pytest.mark.parametrize("dtype", [bfloat16, float32, float64], ids=str)
def test_blocks_share_channels_and_places(channels: int, dtype: DType, last: bool) -> None:
    """Each element is one thread's; neighbours in memory are neighbouring threads', a warp of them where they are
    so many; parts begin where an access does."""
    shape = (6, channels, 8, 12)
    x = Spec(shape, dtype, channels_last(shape) if last else contiguous(shape))
    for aligned in (True, False):
        blocks = channel_blocks(x, aligned, H200.machine)
        part, splits = blocks.split
        assert blocks.by_rows == (not last or channels == 1)
        assert (splits - 1) * part < 6 * 96 <= splits * part
        assert blocks.grid == (blocks.across, splits)
        if blocks.by_rows:
            assert blocks.across == channels
            assert blocks.width == (16 // dtype.itemsize if aligned else 1)
            assert part % blocks.width == 0
        else:
            assert channels % blocks.width == 0
            touched = blocks.lanes * blocks.width
            assert 256 % blocks.lanes == 0
            assert touched >= min(channels, 32 * blocks.width)
            assert blocks.lanes == 1 or touched < 2 * channels
            assert (blocks.across - 1) * touched < channels <= blocks.across * touched


def check(op: Op, arrays: list[Array], last: bool, misaligned: bool = False) -> None:
    specs = [
        Spec(a.shape, as_dtype(a.dtype), channels_last(a.shape) if last else contiguous(a.shape))
        for a in arrays
    ]
    plan = CUDA.plan(op, specs, Policy())
    found = run_plan(plan, arrays, misaligned=misaligned)
    for i, (y, ref, spec) in enumerate(
        zip(found, run_reference(op, arrays, float64), plan.outputs, strict=True)
    ):
        problem = mismatch(y, ref, spec.dtype)
        assert not problem, f"{op} output {i} of {specs}: {problem} ({plan.label})"


def arrays_for(op: Op, x: tuple[int, ...], dtype: DType) -> list[Array]:
    """Operands of batch norm and its gradient."""
    rng = np.random.default_rng(len(x) * x[1])
    big, wide = dtype.numpy, dtype.compute.numpy
    count = {BatchNorm: 1, BatchNormInfer: 1, BatchNormGrad: 2}[type(op)]
    images = [rng.standard_normal(x).astype(big) for _ in range(count)]
    small = [rng.standard_normal(x[1]).astype(wide) for _ in range(3 if count == 1 else 2)]
    small.append(rng.uniform(0.5, 2, x[1]).astype(wide))
    if count == 1:
        return [*images, *small, *([rng.standard_normal(x).astype(big)] if op.residual else [])]  # type: ignore[attr-defined]
    if op.residual:  # type: ignore[attr-defined]
        return [*images, *small, rng.standard_normal(x).astype(big)]
    return [*images, *small, *([rng.standard_normal(x[1]).astype(wide)] if op.relu else [])]  # type: ignore[attr-defined]


def batch_cases() -> Iterator[tuple[Op, tuple[int, ...], DType, bool]]:
    shapes = ((3, 8, 5, 3), (2, 72, 4, 4), (5, 7, 3), (70, 24))
    for i, x in enumerate(shapes):
        for last in (False, True):
            dtype = (bfloat16, float32, float64)[(i + last) % 3]
            relu, residual = (i + last) % 2 == 1, i % 3 > 0
            hi = 0.75 if relu and i > 0 else None
            yield BatchNorm(1e-5, 0.1, relu, residual, hi), x, dtype, last
            yield BatchNormGrad(relu, relu and residual, i != 3, hi), x, dtype, last
            yield BatchNormInfer(1e-3, relu, residual, hi), x, dtype, last


@pytest.mark.parametrize("case", list(batch_cases()), ids=str)
def test_batch_norm(case: tuple[Op, tuple[int, ...], DType, bool]) -> None:
    op, x, dtype, last = case
    check(op, arrays_for(op, x, dtype), last, misaligned=len(x) == 3)


@pytest.mark.parametrize("last", [False, True])
def test_a_channel_is_split_among_blocks(last: bool) -> None:
    """Few channels of many elements: partial sums by many blocks; a large mean takes no digits away."""
    x = (np.random.default_rng(0).standard_normal((4, 2, 60, 60)) + 1000).astype(np.float32)
    small = [np.full(2, v, np.float32) for v in (2, 1, 0, 1)]
    op = BatchNorm(1e-5)
    specs = [Spec(x.shape, float32, channels_last(x.shape) if last else None), *[Spec((2,), float32)] * 4]
    plan = CUDA.plan(op, specs, Policy())
    assert isinstance(plan.make, Launches)
    moments = plan.make.steps[0]
    assert moments.grid[1] > 1  # type: ignore[attr-defined]
    found = run_plan(plan, [x, *small])
    wanted = run_reference(op, [x, *small], float64)
    for y, ref in zip(found, wanted, strict=True):
        np.testing.assert_allclose(y, ref, rtol=2e-4, atol=2e-4)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(found, run_plan(plan, [x, *small]), strict=True))


@pytest.mark.parametrize("residual", [False, True])
def test_statistics_from_sums_of_a_convolution(residual: bool) -> None:
    """What follows a convolution that has summed its own result."""
    shape, op = (3, 16, 5, 4), BatchNorm(1e-3, 0.1, True, residual)
    y = Spec(shape, bfloat16, channels_last(shape))
    arrays = arrays_for(op, shape, bfloat16)
    o = Operands(Window((1, 1), ((0, 0), (0, 0)), (1, 1)), y, Spec((16, 16, 1, 1), bfloat16).fixed, y)
    places = [target(5), *(source(i) for i in range(2, 6 + residual))]
    formulation = statistics_formulation(ConvNorm(Conv(o.window), op), o, places, H200.machine)
    held = [Memory(a.nbytes) for a in arrays[1:]]
    for memory, a, spec in zip(held, arrays[1:], [None] * 4 + [y], strict=False):
        memory.bytes[:] = (a if spec is None else pack(a, y.physical)).view(np.uint8).reshape(-1)
    outs = [Memory(y.nbytes), *(Memory(64) for _ in range(4)), Memory(y.nbytes)]
    outs[5].bytes[:] = pack(arrays[0], y.physical).view(np.uint8).reshape(-1)
    scratch = Memory(formulation.scratch)
    wide = arrays[0].astype(np.float32)
    sums = np.concatenate([wide.sum((0, 2, 3)), np.square(wide).sum((0, 2, 3))])
    scratch.bytes[:] = sums.astype(np.float32).view(np.uint8)
    call = Call((0, 0, *(m.pointer for m in held)), tuple(m.pointer for m in outs), scratch.pointer)
    run_steps(formulation.after, call)
    for i, ref in enumerate(run_reference(op, arrays, float64)):
        raw = outs[i].bytes.copy()
        found = unpack(raw.view(bfloat16.numpy), y.physical, shape) if i == 0 else raw.view(np.float32)
        assert not mismatch(found, ref, bfloat16 if i == 0 else float32)


@pytest.mark.parametrize("named", [(0,), (1,), (0, 1), ()], ids=str)
def test_images_lie_as_the_one_that_says_how(named: tuple[int, ...]) -> None:
    """The gradient that arrives and x of a batch norm's gradient; channels last where neither does."""
    op = BatchNormGrad()
    arrays = arrays_for(op, (3, 8, 5, 3), float32)
    specs = [
        Spec(a.shape, as_dtype(a.dtype), contiguous(a.shape) if i in named else None)
        for i, a in enumerate(arrays)
    ]
    plan = batch_norm_grad(op, tuple(specs), CUDA.device, Policy())
    wanted = contiguous((3, 8, 5, 3)) if named else channels_last((3, 8, 5, 3))
    assert [plan.inputs[0].physical, plan.inputs[1].physical, plan.outputs[0].physical] == [wanted] * 3


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("last", [False, True])
def test_every_sample_in_every_layout(name: str, last: bool) -> None:
    rng = np.random.default_rng(3)
    samples: list[Sample] = list(REGISTRY[name].samples())
    for turn, sample in enumerate(samples[last::4]):
        dtypes = sample.dtypes or REGISTRY[name].dtypes
        arrays = sample.draw(rng, dtypes[-1 - (turn // 2) % 2])
        if all(a.size < 4000 for a in arrays):
            check(sample.op, arrays, last, misaligned=turn % 3 == 2)


@pytest.mark.parametrize(
    ("columns", "dtype"), [(24, bfloat16), (1000, float32), (2056, bfloat16), (8200, float32)]
)
def test_rows_in_registers_and_beyond(columns: int, dtype: DType) -> None:
    """Rows of a warp, of a block, and rows too long for registers."""
    rng = np.random.default_rng(columns)
    x, g = (rng.standard_normal((3, columns)).astype(dtype.numpy) for _ in range(2))
    scale, bias = (rng.standard_normal(columns).astype(np.float32) for _ in range(2))
    mean, r = rng.standard_normal(3).astype(np.float32), rng.uniform(0.5, 2, 3).astype(np.float32)
    check(LayerNorm(1, 1e-5), [x, scale, bias], False)
    check(LayerNormGrad(1), [g, x, scale, mean, r], False)
    check(RmsNormGrad(1), [g, x, scale, r], False)


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("last", [False, True])
def test_groups_where_they_lie(groups: int, last: bool) -> None:
    """Groups of channels that lie together are read channels last, as rows."""
    rng = np.random.default_rng(groups)
    x, g = (rng.standard_normal((2, 64, 5, 4)).astype(bfloat16.numpy) for _ in range(2))
    scale, bias = (rng.standard_normal(64).astype(np.float32) for _ in range(2))
    mean, r = (rng.uniform(0.5, 2, (2, groups)).astype(np.float32) for _ in range(2))
    check(GroupNorm(groups, 1e-5), [x, scale, bias], last)
    check(GroupNormGrad(groups), [g, x, scale, mean, r], last)
    spec = Spec(x.shape, bfloat16, channels_last(x.shape))
    plan = CUDA.plan(GroupNorm(groups, 1e-5), [spec, *[Spec((64,), float32)] * 2], Policy())
    assert plan.inputs[0].tag == "acdb"


#: Rows that a part of a warp, a warp or a block holds, or reads again; more rows than a block has, and a rest.
ROWS = [
    ((37, 64), bfloat16, 8),
    ((70000, 16), bfloat16, 2),
    ((9, 192), float16, 8),
    ((19, 20), bfloat16, 8),
    ((5, 768), bfloat16, 32),
    ((70, 8), bfloat16, 1),
    ((33, 7), float32, 8),
    ((3, 2000), float32, 256),
    ((2, 9000), bfloat16, 256),
]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize(("shape", "dtype", "group"), ROWS, ids=str)
def test_rows_by_parts_of_warps(shape: tuple[int, int], dtype: DType, group: int, centred: bool) -> None:
    rng = np.random.default_rng(0)
    op = LayerNorm(1, 1e-5) if centred else RmsNorm(1, 1e-5)
    arrays = [rng.standard_normal(shape).astype(dtype.numpy)]
    arrays += [rng.standard_normal(shape[1]).astype(np.float32) for _ in range(1 + centred)]
    plan = backend(H200).plan(op, [Spec(a.shape, as_dtype(a.dtype)).fixed for a in arrays], Policy())
    (step,) = plan.make.steps
    assert f"#define GROUP {group}\n" in step.program.text
    for misaligned in (False, True):
        found = run_plan(plan, arrays, misaligned=misaligned)
        for y, ref, spec in zip(found, run_reference(op, arrays, float64), plan.outputs, strict=True):
            assert not mismatch(y, ref, spec.dtype), f"{op} {shape} {dtype} misaligned={misaligned}"


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("shape", [(3, 12, 2, 4), (2, 6, 8, 8), (5, 4, 3)], ids=str)
def test_groups_by_parts_of_warps(shape: tuple[int, ...]) -> None:
    """Rows of a group norm, which have scales of their own, forward and backward."""
    rng = np.random.default_rng(1)
    x, g = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    scale, bias = (rng.standard_normal(shape[1]).astype(np.float32) for _ in range(2))
    forward = GroupNorm(2, 1e-5)
    _, mean, spread = run_reference(forward, [x, scale, bias], float64)
    saved = [a.astype(np.float32) for a in (mean, spread)]
    for op, arrays in ((forward, [x, scale, bias]), (GroupNormGrad(2), [g, x, scale, *saved])):
        plan = backend(H200).plan(op, [Spec(a.shape, float32).fixed for a in arrays], Policy())
        found = run_plan(plan, arrays)
        for result, ref, spec in zip(found, run_reference(op, arrays, float64), plan.outputs, strict=True):
            assert not mismatch(result, ref, spec.dtype), f"{op} {shape}"


@pytest.mark.parametrize("op", [BatchNorm(1e-5), BatchNormGrad()], ids=["forward", "backward"])
@pytest.mark.parametrize(
    ("shape", "dtype", "last", "asked"),
    [
        ((2, 16, 5, 5), bfloat16, True, True),
        ((2, 16, 3, 5, 5), float16, True, True),
        ((2, 16, 5, 5), float32, True, False),
        ((2, 16, 5, 5), bfloat16, False, False),
        ((2, 12, 5, 5), bfloat16, True, False),
        ((2, 16, 5), float16, True, False),
    ],
)
def test_cudnns_norms_are_asked_for_what_they_take(
    op: Op, shape: tuple[int, ...], dtype: DType, last: bool, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under "fastest": half types, channels last, eight channels at a time."""
    seen: list[str] = []

    def choose(problem: Problem, device: Device, policy: Policy) -> Plan:
        seen.extend(f.name for f in problem.formulations)
        return kernel_plan(device, problem.inputs, problem.outputs, problem.formulations[0].steps, label="")

    monkeypatch.setattr(norm, "choose", choose)
    lies = channels_last(shape) if last else contiguous(shape)
    big = [Spec(shape, dtype, lies)] * (1 if isinstance(op, BatchNorm) else 2)
    small = [Spec((shape[1],), float32)] * (4 if isinstance(op, BatchNorm) else 3)
    CUDA.plan(op, [*big, *small], Policy(algorithm="fastest"))
    assert ("cudnn" in seen) == asked


@pytest.mark.parametrize("form", ["before", "behind", "both"])
@pytest.mark.parametrize("half", [bfloat16, float16], ids=str)
def test_whether_passes_compute_again_is_judged_by_the_images(form: str, half: DType) -> None:
    """Where arithmetic takes longer than to read the images: a half type is read as fast as float32 is by twice the
    bandwidth. Statistics are float32 for all of them."""
    act, grad = FusedElementwise((Gelu(),), ((0,),)), FusedElementwise((GeluGrad(),), ((0, 1),))
    norm: BatchNormGrad | ActivationNormGrad = BatchNormGrad()
    if form != "before":
        norm = ActivationNormGrad(grad, BatchNormGrad())
    op: Op = norm if form == "behind" else NormOfActivationGrad(act, grad, norm)

    def objects(dtype: DType, bandwidth: float) -> bool:
        device = Device("cuda", machine=replace(H200.machine, bandwidth=bandwidth))
        x, row = Spec((8, 16, 9, 9), dtype), Spec((16,), float32)
        specs = [x, x, *[row] * (3 if form == "before" else 4)]
        return bool(backend(device).plan(op, specs, Policy()).objection)

    speeds = np.geomspace(1e11, 1e16, 16)
    found = [objects(half, speed) for speed in speeds]
    assert found == sorted(found)
    assert {*found} == {False, True}
    assert [objects(float32, 2 * speed) for speed in speeds] == found
