"""Normalization on a GPU: ResNet's sizes against the reference, cuDNN's batch norm as another way; a step."""

from dataclasses import replace

import numpy as np
import pytest

import lamina as lm
from lamina import backends, nn, ops, optim
from lamina.backends.cuda.cudnn_graphs.conv import Operands
from lamina.backends.cuda.launch.program import source, target
from lamina.backends.cuda.norm import batch_persistent
from lamina.backends.cuda.norm.conv_batch_norm import (
    own_formulation,
    own_gradient_formulation,
    statistics_formulation,
)
from lamina.backends.cuda.norm.conv_batch_norm_fusion import ConvNorm, DataGradNorm, packed_mask
from lamina.backends.cuda.norm.norm import activation, cudnn_norm, cudnn_norm_grad
from lamina.backends.cuda.select.formulations import Formulation, Problem, choose
from lamina.backends.reference import run_reference
from lamina.ops.core import Array, Op
from lamina.ops.primitives import (
    Add,
    BatchNorm,
    BatchNormGrad,
    Conv,
    ConvDataGrad,
    Fused,
    GroupNorm,
    LayerNorm,
    LayerNormGrad,
    ReluGrad,
    Window,
)
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
)
from lamina.train import train_step
from tests.helpers.eager import execute, mismatch

pytestmark = pytest.mark.gpu
DEVICE = Device("cuda:0")
SHAPES = [(8, 64, 56, 56), (16, 256, 14, 14), (3, 2048, 7, 7), (2, 24, 33, 17), (64, 1000)]


def draw(shape: tuple[int, ...], dtype: DType, big: int, kinds: str, count: int) -> list[Array]:
    """`big` operands of a shape, then one number per channel: n normal, p a positive power of 2.

    Rounded to eighths: the sign that relu goes by is then exact in any precision.
    """
    rng = np.random.default_rng(len(shape) + shape[1])
    wide = dtype.compute.numpy

    def normal(size: int | tuple[int, ...]) -> Array:
        return np.asarray(np.round(rng.standard_normal(size) * 8) / 8)

    images = [normal(shape).astype(dtype.numpy) for _ in range(big)]
    small = [rng.choice([0.5, 1.0, 2.0], count) if k == "p" else normal(count) for k in kinds]
    return [*images, *(v.astype(wide) for v in small)]


def check(op: Op, arrays: list[Array], last: bool, policy: Policy | None = None) -> backends.Plan:
    arrange = channels_last if last else contiguous
    specs = [Spec(a.shape, as_dtype(a.dtype), arrange(a.shape)) for a in arrays]
    plan = backends.get(DEVICE).plan(op, specs, policy or Policy())
    first = compare(op, plan, arrays)
    again = execute(DEVICE, plan, arrays)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first, again, strict=True)), "not the same twice"
    return plan


def compare(op: Op, plan: backends.Plan, arrays: list[Array]) -> tuple[Array, ...]:
    found = execute(DEVICE, plan, arrays)
    for i, (y, ref, spec) in enumerate(
        zip(found, run_reference(op, arrays, float64), plan.outputs, strict=True)
    ):
        problem = mismatch(y, ref, spec.dtype)
        assert not problem, f"{op} output {i} of {arrays[0].shape}: {problem} ({plan.label})"
    return found


@pytest.mark.feature("F060", "F061")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [bfloat16, float16, float32, float64], ids=str)
@pytest.mark.parametrize("last", [True, False])
def test_batch_norm(shape: tuple[int, ...], dtype: DType, last: bool) -> None:
    """Plain, with relu, with a residual and relu; the same bits twice."""
    for relu, added in ((False, False), (True, False), (True, True)):
        forward = draw(shape, dtype, 1, "nnnp", shape[1])
        extra = draw(shape, dtype, 1, "", 0) if added else []
        check(BatchNorm(1e-5, 0.1, relu, added), [*forward, *extra], last)
        backward = draw(shape, dtype, 2, "nnp" + "n" * (relu and not added), shape[1])
        check(BatchNormGrad(relu, added), [*backward, *extra], last)


@pytest.mark.parametrize("columns", [40, 768, 4096, 40_000])
@pytest.mark.parametrize("dtype", [bfloat16, float32], ids=str)
def test_layer_norm(columns: int, dtype: DType) -> None:
    check(LayerNorm(1, 1e-5), draw((37, columns), dtype, 1, "nn", columns), False)
    rng = np.random.default_rng(1)
    stats = [v.astype(np.float32) for v in (rng.standard_normal(37), rng.uniform(0.5, 2, 37))]
    check(LayerNormGrad(1), [*draw((37, columns), dtype, 2, "n", columns), *stats], False)


@pytest.mark.parametrize("last", [True, False])
def test_group_norm(last: bool) -> None:
    check(GroupNorm(32, 1e-5), draw((4, 512, 16, 16), bfloat16, 1, "nn", 512), last)


@pytest.mark.feature("F060")
@pytest.mark.parametrize("dtype", [bfloat16, float16], ids=str)
def test_cudnn_competes(dtype: DType) -> None:
    """Its plan computes what the own kernels do; under `fastest` one of the two is taken."""
    shape, fastest = (8, 64, 28, 28), Policy(algorithm="fastest")
    forward, backward = draw(shape, dtype, 1, "nnnp", 64), draw(shape, dtype, 2, "nnp", 64)
    x = Spec(shape, dtype, channels_last(shape))
    formulations: dict[Op, tuple[list[Array], Formulation]] = {
        BatchNormGrad(): (backward, Formulation("cudnn", lambda: cudnn_norm_grad(x)))
    }
    for relu, added, hi in (
        (False, False, None),
        (True, False, None),
        (True, False, 0.75),
        (True, True, None),
    ):
        norm = BatchNorm(1e-5, 0.1, relu, added, hi)
        extra = draw(shape, dtype, 1, "", 0) if added else []
        formulations[norm] = ([*forward, *extra], cudnn_norm(norm, x))
    for op, (arrays, formulation) in formulations.items():
        own = check(op, arrays, True)
        problem = Problem(f"test {op} {x}", op.name, own.inputs, own.outputs, (formulation,), 0.0)
        plan = choose(problem, DEVICE, Policy())
        assert plan.label.startswith("cudnn")
        compare(op, plan, arrays)
        specs = [replace(s) for s in own.inputs]
        compare(op, backends.get(DEVICE).plan(op, specs, fastest), arrays)


@pytest.mark.parametrize(
    "shape", [(8, 64, 56, 56), (64, 256, 28, 28), (3, 2048, 7, 7), (64, 144, 7, 7)], ids=str
)
@pytest.mark.parametrize("dtype", [bfloat16, float16, float32], ids=str)
def test_one_launch(shape: tuple[int, ...], dtype: DType) -> None:
    """Blocks that wait for each other: kept elements and others, relu, clipped relu, residuals, again and again."""
    x = Spec(shape, dtype, channels_last(shape))
    for relu, added, hi in ((False, False, None), (True, False, 0.75), (True, True, None)):
        extra = draw(shape, dtype, 1, "", 0) if added else []
        forward = [*draw(shape, dtype, 1, "nnnp", shape[1]), *extra]
        backward = [*draw(shape, dtype, 2, "nnp" + "n" * (relu and not added), shape[1]), *extra]
        norm, grad = BatchNorm(1e-5, 0.1, relu, added, hi), BatchNormGrad(relu, added, True, hi)
        formulations = (
            (norm, forward, batch_persistent.forward(norm, x, activation(norm), (), 0, DEVICE.machine)),
            (grad, backward, batch_persistent.backward(grad, x, activation(grad), (), 0, DEVICE.machine)),
        )
        for op, arrays, formulation in formulations:
            assert formulation is not None
            own = check(op, arrays, True)
            problem = Problem(f"one launch {op} {x}", op.name, own.inputs, own.outputs, (formulation,), 0.0)
            plan = choose(problem, DEVICE, Policy())
            assert "resident" in plan.label
            first = compare(op, plan, arrays)
            for _ in range(5):
                again = execute(DEVICE, plan, arrays)
                assert all(a.tobytes() == b.tobytes() for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("dtype", [bfloat16, float16], ids=str)
@pytest.mark.parametrize(("kernel", "residual"), [(1, False), (3, True)])
def test_statistics_behind_a_convolution(dtype: DType, kernel: int, residual: bool) -> None:
    """cuDNN's convolution sums what it writes; what `fastest` takes gives the same."""
    pad, shape = kernel // 2, (8, 64, 28, 28)
    op = ConvNorm(
        Conv(Window((1, 1), ((pad, pad), (pad, pad)), (1, 1))), BatchNorm(1e-3, 0.1, True, residual)
    )
    (x,), (w,) = draw(shape, dtype, 1, "", 0), draw((64, 64, kernel, kernel), dtype, 1, "", 0)
    arrays = [
        x,
        w,
        *draw((64, 64), dtype, 0, "nnnp", 64),
        *(draw(shape, dtype, 1, "", 0) if residual else []),
    ]
    specs = [
        Spec(a.shape, as_dtype(a.dtype), channels_last(a.shape) if a.ndim == 4 else None) for a in arrays
    ]
    fastest = backends.get(DEVICE).plan(op, specs, Policy(algorithm="fastest"))
    y = fastest.outputs[5]
    operands = Operands(op.conv.window, fastest.inputs[0], fastest.inputs[1], y)
    formulation = statistics_formulation(
        op, operands, [target(5), *map(source, range(2, len(arrays)))], DEVICE.machine
    )
    problem = Problem(f"test {op} {y}", op.name, fastest.inputs, fastest.outputs, (formulation,), 0.0)
    wanted = run_reference(op, arrays, float64)
    for plan in (fastest, choose(problem, DEVICE, Policy())):
        for found, ref in zip(execute(DEVICE, plan, arrays), wanted, strict=True):
            scale = float(np.abs(ref).max())
            np.testing.assert_allclose(found.astype(np.float64), ref, rtol=2e-2, atol=2e-2 * scale)
    assert plan.label.startswith("cudnn")


def _alone(formulation: Formulation, op: Op, plan: backends.Plan, arrays: list[Array]) -> None:
    """A way by itself gives what the reference gives, six times the same."""
    problem = Problem(f"alone {op} {plan.inputs}", op.name, plan.inputs, plan.outputs, (formulation,), 0.0)
    alone = choose(problem, DEVICE, Policy())
    assert alone.label.endswith(" own")
    first = execute(DEVICE, alone, arrays)
    wanted = run_reference(op, arrays, float64)
    if isinstance(op, ConvNorm) and op.bits:
        assert first[6].tobytes() == packed_mask(first[0]).tobytes()
    for found, ref in zip(first[:6], wanted[:6], strict=True):
        scale = float(np.abs(ref).max())
        np.testing.assert_allclose(found.astype(np.float64), ref, rtol=2e-2, atol=1e-2 * scale)
    for _ in range(5):
        again = execute(DEVICE, alone, arrays)
        assert all(a.tobytes() == b.tobytes() for a, b in zip(first, again, strict=True))


POINTS = [((8, 64, 28, 28), 256), ((8, 256, 28, 28), 64), ((3, 512, 7, 9), 2048), ((16, 128, 14, 14), 192)]


@pytest.mark.parametrize("dtype", [bfloat16, float16], ids=str)
@pytest.mark.parametrize(("shape", "filters"), POINTS)
def test_point_convolutions_with_sums(shape: tuple[int, ...], filters: int, dtype: DType) -> None:
    """The own kernels that sum while they write, forward and as data gradients with all that may stand behind."""
    point, result = Window((1, 1), ((0, 0), (0, 0)), (1, 1)), (shape[0], filters, *shape[2:])
    x, w = draw(shape, dtype, 1, "", 0)[0], draw((filters, shape[1], 1, 1), dtype, 1, "", 0)[0]
    like = draw(result, dtype, 3, "", 0)
    small = draw(result[:2], dtype, 0, "nnnp", filters)

    def specs(arrays: list[Array]) -> list[Spec]:
        last = [a.ndim == 4 and a.shape[2:] != (1, 1) and a.dtype != np.uint8 for a in arrays]
        layouts = [channels_last(a.shape) if far else None for a, far in zip(arrays, last, strict=True)]
        return [Spec(a.shape, as_dtype(a.dtype), lay) for a, lay in zip(arrays, layouts, strict=True)]

    for bits in (False, True):
        op = ConvNorm(Conv(point), BatchNorm(1e-3, 0.1, True, True), bits)
        arrays = [x, w, *small, like[0]]
        plan = backends.get(DEVICE).plan(op, specs(arrays), Policy())
        o = Operands(point, plan.inputs[0], plan.inputs[1], plan.outputs[5])
        (formulation,) = own_formulation(
            op, o, [target(5), *map(source, range(2, len(arrays)))], DEVICE.machine
        )
        _alone(formulation, op, plan, arrays)
    head, turned = ConvDataGrad(point, shape[2:]), np.ascontiguousarray(w.transpose(1, 0, 2, 3))
    join: tuple[Op, ...] = (Add(), ReluGrad())
    for steps, relu, bits in ((join, False, False), (join, False, True), ((), True, False)):
        back = DataGradNorm(Fused((head, *steps)) if steps else head, BatchNormGrad(relu=relu), bits)
        count = 2 + len(steps)
        arrays = [x, turned, *like[: len(steps) + 1], *(small[3], small[0], small[3], small[1])[: 3 + relu]]
        if bits:
            arrays[3] = packed_mask(arrays[3])
        plan = backends.get(DEVICE).plan(back, specs(arrays), Policy())
        o = Operands(point, plan.outputs[3], plan.inputs[1], plan.inputs[0])
        (formulation,) = own_gradient_formulation(
            back, o, [source(i) for i in range(len(arrays))], count, DEVICE.machine
        )
        _alone(formulation, back, plan, arrays)


@pytest.mark.feature("F060", "F095")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_training_step_as_on_the_cpu(precision: str) -> None:
    """Losses and running statistics over five captured steps."""
    rng = np.random.default_rng(3)
    images, labels = rng.standard_normal((16, 3, 12, 12)).astype(np.float32), rng.integers(0, 5, 16)

    def trained(device: str) -> tuple[list[float], list[Array]]:
        nn.manual_seed(1)
        net = nn.Sequential(
            nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 8, 3), nn.GroupNorm(2, 8), nn.Flatten(), nn.Linear(8 * 64, 5), nn.LayerNorm(5),
        )  # fmt: skip
        step = train_step(net, ops.cross_entropy, optim.SGD(lr=0.05), device=device, precision=precision)
        losses = [step(images, labels).item() for _ in range(5)]
        return losses, [v.numpy() for v in (net[1].running_mean, net[1].running_var)]

    tolerance = 1e-3 if precision == "fp32" else 5e-2
    (found, kept), (wanted, expected) = trained("cuda:0"), trained("cpu")
    np.testing.assert_allclose(found, wanted, rtol=tolerance)
    for a, b in zip(kept, expected, strict=True):
        assert lm.spec.as_dtype(a.dtype) == float32
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
