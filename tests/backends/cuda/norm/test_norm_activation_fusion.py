"""Activations and their gradients go into a batch norm's passes, which compute its result again."""

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.backends import NoKernel, Plan
from lamina.backends.cuda import backend
from lamina.backends.cuda.elementwise.fused_elementwise import instructions
from lamina.backends.cuda.norm import batch_persistent
from lamina.backends.cuda.norm.norm_activation_fusion import (
    NORM_ACTIVATION,
    NORM_ACTIVATION_GRAD,
    ActivatedNorm,
    ActivationNormGrad,
)
from lamina.backends.reference import run_reference
from lamina.graph import Graph, compile, gradients, trace
from lamina.graph.passes.canonicalize import drop_identities
from lamina.graph.passes.fuse_batch_norm import fuse_batch_norm
from lamina.graph.passes.fusion import fuse_patterns
from lamina.graph.passes.manager import optimize
from lamina.graph.passes.pattern import Report
from lamina.ops.core import Array, Op, bind
from lamina.ops.primitives import BatchNorm, BatchNormGrad, BatchNormInfer, Cast
from lamina.ops.primitives.activation import Mish
from lamina.ops.primitives.fused_elementwise import FusedElementwise
from lamina.ops.primitives.pointwise import (
    Elu,
    Gelu,
    GeluGrad,
    GeluTanh,
    HardSwish,
    LeakyRelu,
    Sigmoid,
    Silu,
    SiluGrad,
    Softplus,
    Tanh,
)
from lamina.spec import (
    DType,
    Policy,
    ShapeError,
    Spec,
    as_dtype,
    bfloat16,
    channels_last,
    contiguous,
    float16,
    float32,
    float64,
)
from tests.backends.cuda.norm.test_batch_persistent import SHAPES, with_blocks
from tests.helpers.eager import mismatch
from tests.helpers.emulator import run_plan
from tests.helpers.norm_networks import Activation, names, network, operands
from tests.helpers.own_programs import hasty_cubin, programs
from tests.helpers.planned import H200, KINDS
from tests.helpers.stand_in import StandIn

compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
CUDA = backend(H200)
ACTIVATIONS: dict[str, Activation] = {
    "silu": ops.silu,
    "hard swish": ops.hardswish,
    "gelu": ops.gelu,
    "gelu by tanh": lambda x: ops.gelu(x, "tanh"),
    "leaky relu": lambda x: ops.leaky_relu(x, 0.2),
    "elu": lambda x: ops.elu(x, 0.7),
    "sigmoid": ops.sigmoid,
    "tanh": ops.tanh,
    "softplus": ops.softplus,
    "mish": ops.mish,
    "scaled elu": lambda x: 1.05 * ops.elu(x, 1.67),
    "hard sigmoid": ops.hardsigmoid,
    "one less sigmoid": lambda x: 1.0 - ops.sigmoid(x),
    "sine of tanh": lambda x: ops.sin(ops.tanh(x)),
}
STEPS: list[Op] = [
    Silu(),
    HardSwish(),
    Gelu(),
    GeluTanh(),
    LeakyRelu(0.2),
    Elu(0.7),
    Sigmoid(),
    Tanh(),
    Mish(),
]
SILU_GRAD = FusedElementwise((SiluGrad(),), ((0, 1),))


def fused(graph: Graph, verdict: str = "fused") -> Graph:
    found = [NORM_ACTIVATION_GRAD, NORM_ACTIVATION]
    return fuse_patterns(fuse_batch_norm(drop_identities(graph)), found, StandIn(verdict), Report())


def alike(graph: Graph, better: Graph, arrays: list[Any]) -> None:
    """The fused graph's numbers, by what ops mean in NumPy."""
    meant = compile(better, "cpu", backend="reference", optimize=False)(*arrays)
    for found, expected in zip(meant, graph(*arrays), strict=True):
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-9, atol=1e-12)


# ---------------------------------------------------------------------------------------------------------- graphs


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_and_gradient_are_taken_in(name: str) -> None:
    """No elementwise node is left between the norm, or its gradient, and the convolutions."""
    arrays = operands()
    graph = trace(network(ACTIVATIONS[name]), *arrays)
    better = fused(graph)
    assert [type(n.op) for n in better.nodes if isinstance(n.op, ActivationNormGrad | ActivatedNorm)] == [
        ActivatedNorm,
        ActivationNormGrad,
    ]
    becomes = {"batch_norm": "activated_norm", "batch_norm_grad": "activation_norm_grad"}
    plain = names(trace(network(lambda x: x), *arrays))
    assert sorted(names(better)) == sorted(becomes.get(name, name) for name in plain)
    alike(graph, better, arrays)


def test_relu_is_told_by_its_mask() -> None:
    arrays = operands()
    better = optimize(trace(network(ops.relu), *(a.astype("float32") for a in arrays)), StandIn())
    assert "activation_norm_grad" not in names(better)


def two_gradients(x: Any, z: Any, *small: Any) -> Any:
    """What others read beside, too: the norm's own result."""
    y = ops.batch_norm_with_statistics(x, small[2], small[3], small[0], small[1], True)[0]
    return gradients(ops.sum(ops.silu(y) * z) + ops.sum(y * y * z), [x])


def other_norm(x: Any, z: Any, *small: Any) -> Any:
    """The gradient is that of a norm of z, the activation that of a norm of x."""
    norm = bind(BatchNorm(1e-5), x, *small)
    return bind(BatchNormGrad(), bind(SiluGrad(), norm[0], z)[0], z, small[0], *norm[1:3])


def behind_relu(x: Any, z: Any, *small: Any) -> Any:
    """The activation reads the norm behind its relu."""
    norm = bind(BatchNorm(1e-5, relu=True), x, *small)
    return bind(BatchNormGrad(), bind(SiluGrad(), norm[0], z)[0], x, small[0], *norm[1:3])


def product_beside(x: Any, z: Any, *small: Any) -> Any:
    """Beside the norm's result a tensor and its product with another are read."""
    norm = bind(BatchNorm(1e-5), x, *small)
    g = bind(SiluGrad(), norm[0], z)[0] * (z * x)
    return bind(BatchNormGrad(), g, x, small[0], *norm[1:3])


def read_twice(x: Any, z: Any, *small: Any) -> Any:
    norm = bind(BatchNorm(1e-5), x, *small)
    g = bind(SiluGrad(), norm[0], z)[0]
    return bind(BatchNormGrad(), g, x, small[0], *norm[1:3])[0], g


def two_tensors(x: Any, z: Any, *small: Any) -> Any:
    norm = bind(BatchNorm(1e-5), x, *small)
    return bind(BatchNormGrad(), norm[0] * z + x, x, small[0], *norm[1:3])


def without_result(x: Any, z: Any, *small: Any) -> Any:
    norm = bind(BatchNorm(1e-5), x, *small)
    return bind(BatchNormGrad(), ops.exp(z), x, small[0], *norm[1:3])


def too_long(x: Any, z: Any, *small: Any) -> Any:
    norm = bind(BatchNorm(1e-5), x, *small)
    y = norm[0] * z
    for _ in range(30):
        y = ops.tanh(y)
    return bind(BatchNormGrad(), y, x, small[0], *norm[1:3])


@pytest.mark.parametrize(
    "f", [other_norm, behind_relu, product_beside, read_twice, two_tensors, without_result, too_long]
)
def test_what_reads_more_stays(f: Callable[..., Any]) -> None:
    x, _, *small, z = operands()
    graph = fuse_batch_norm(trace(f, x, z, *small))
    assert names(fused(graph)) == names(graph)


def test_a_result_that_others_read_is_kept() -> None:
    """The gradient is one expression of it and z, and is taken in; the activation is not."""
    x, _, *small, z = operands()

    def f(x: Any, z: Any, *small: Any) -> Any:
        norm = bind(BatchNorm(1e-5), x, *small)
        g = bind(SiluGrad(), norm[0], z)[0]
        return ops.silu(norm[0]), norm[0], bind(BatchNormGrad(), g, x, small[0], *norm[1:3])[0]

    better = fused(trace(f, x, z, *small))
    assert sorted(names(better)) == ["activation_norm_grad", "batch_norm", "silu"]
    alike(trace(two_gradients, x, z, *small), fused(trace(two_gradients, x, z, *small)), [x, z, *small])


def test_inference_and_training_without_a_gradient() -> None:
    arrays = operands()

    def f(training: bool, x: Any, w: Any, scale: Any, bias: Any, mean: Any, var: Any, z: Any) -> Any:
        return ops.hardswish(ops.batch_norm_with_statistics(x, mean, var, scale, bias, training)[0])

    for training in (True, False):
        graph = trace(lambda *xs, t=training: f(t, *xs), *arrays)
        better = fused(graph)
        assert names(better) == ["activated_norm"]
        alike(graph, better, arrays)


def test_what_has_no_kernel_stays() -> None:
    arrays = operands()
    graph = fuse_batch_norm(trace(network(ops.silu), *arrays))
    assert names(fused(graph, "")) == names(graph)


def test_planned_steps_of_a_network() -> None:
    """In bfloat16, with what stands around: neither the norm's result nor its gradient is a tensor."""
    net = lm.nn.Sequential(
        lm.nn.Conv2d(8, 16, 3, padding=1, bias=False),
        lm.nn.BatchNorm2d(16),
        lm.nn.SiLU(),
        lm.nn.Conv2d(16, 8, 3),
    )
    x = Spec((4, 8, 12, 12), bfloat16)
    shapes = {name: Spec(p.shape, bfloat16 if p.ndim == 4 else float32) for name, p in net.named_parameters()}

    def step(x: Any, w: Any, scale: Any, bias: Any, mean: Any, var: Any, v: Any) -> Any:
        y, *statistics = ops.batch_norm_with_statistics(
            ops.conv2d(x, w, padding=1), mean, var, scale, bias, True
        )
        y = ops.conv2d(ops.silu(y), v)
        return [*gradients(ops.sum(y * y), [w, scale, bias, v]), *statistics]

    small = Spec((16,), float32)
    specs = [x, shapes["0.weight"], *[small] * 4, shapes["3.weight"]]
    labels = [s.plan.label for s in compile(trace(step, *specs), H200).program.steps]
    assert any(label.startswith("kernel batch_norm+silu") for label in labels)
    assert any(label.startswith("kernel batch_norm_grad+silu_grad") for label in labels)
    assert not any("silu" in label and "batch_norm" not in label for label in labels)


# --------------------------------------------------------------------------------------------------------- kernels


def activated(norm: BatchNorm | BatchNormInfer, *steps: Op) -> ActivatedNorm:
    """A norm with functions of its result, one after the other."""
    return ActivatedNorm(norm, FusedElementwise(steps, ((0,), *((~i,) for i in range(len(steps) - 1)))))


def small(channels: int, count: int, rng: np.random.Generator) -> list[Array]:
    return [
        *(rng.standard_normal(channels).astype(np.float32) for _ in range(count - 1)),
        rng.uniform(0.5, 2, channels).astype(np.float32),
    ]


def plan_of(op: Op, arrays: list[Array], last: bool, device: lm.Device = H200) -> Plan:
    specs = [
        Spec(a.shape, as_dtype(a.dtype), channels_last(a.shape) if last else contiguous(a.shape))
        for a in arrays
    ]
    return backend(device).plan(op, specs, Policy())


def check(op: Op, arrays: list[Array], last: bool, misaligned: bool = False) -> None:
    plan = plan_of(op, arrays, last)
    found = run_plan(plan, arrays, misaligned=misaligned)
    for i, (y, ref) in enumerate(zip(found, run_reference(op, arrays, float64), strict=True)):
        problem = mismatch(y, ref, plan.outputs[i].dtype)
        assert not problem, f"{op} output {i} of {arrays[0].shape}: {problem} ({plan.label})"


def gradient_of(step: Op) -> FusedElementwise:
    """An activation's gradient as the fusion finds it."""

    def f(x: Any, z: Any, *small: Any) -> Any:
        norm = bind(BatchNorm(1e-5), x, *small)
        (g,) = step.vjp([z], [norm[0]], bind(step, norm[0]))
        return bind(BatchNormGrad(), g, x, small[0], *norm[1:3])

    graph = fused(trace(f, *[Spec((2, 2), float32)] * 2, *[Spec((2,), float32)] * 4))
    (node,) = [n for n in graph.nodes if isinstance(n.op, ActivationNormGrad)]
    return node.op.act  # type: ignore[attr-defined, no-any-return]


@compiler
@pytest.mark.parametrize("turn", range(len(STEPS)), ids=lambda turn: STEPS[turn].name)
def test_values(turn: int) -> None:
    """Every activation, forward and backward, in every layout: odd sizes, several types, misaligned addresses."""
    step, rng = STEPS[turn], np.random.default_rng(turn)
    shape = ((3, 8, 5, 3), (2, 72, 4, 4), (5, 7, 3), (70, 24))[turn % 4]
    dtype: DType = (bfloat16, float32, float16)[turn % 3]
    x, g = (rng.standard_normal(shape).astype(dtype.numpy) for _ in range(2))
    act = gradient_of(step)
    for last in (False, True):
        misaligned = last and turn % 2 == 1
        check(activated(BatchNorm(1e-5), step), [x, *small(shape[1], 4, rng)], last, misaligned)
        check(activated(BatchNormInfer(1e-5), step), [x, *small(shape[1], 4, rng)], last, misaligned)
        scale, mean, bias, rstd = small(shape[1], 4, rng)
        check(ActivationNormGrad(act, BatchNormGrad()), [g, x, scale, mean, rstd, bias], last, misaligned)


@compiler
def test_float64_and_two_functions() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 5, 7, 2))
    numbers = [a.astype(np.float64) for a in small(5, 4, rng)]
    check(activated(BatchNorm(1e-5), Tanh(), Softplus()), [x, *numbers], True)
    scale, mean, bias, rstd = numbers
    check(ActivationNormGrad(gradient_of(Mish()), BatchNormGrad()), [x, x, scale, mean, rstd, bias], False)


@compiler
@pytest.mark.parametrize(("shape", "blocks"), SHAPES, ids=str)
@pytest.mark.parametrize("room", [192 << 10, 0], ids=["kept", "read again"])
def test_in_one_launch(shape: tuple[int, ...], blocks: int, room: int) -> None:
    """Elements that are kept in shared memory, and others; by itself, whatever the choice between formulations is."""
    machine, rng = with_blocks(blocks, room), np.random.default_rng(shape[1])
    device = lm.Device("cuda", machine=machine)
    dtype = (bfloat16, float32, float16)[shape[1] // 8 % 3]
    x, g = (rng.standard_normal(shape).astype(dtype.numpy) for _ in range(2))
    scale, mean, bias, rstd = small(shape[1], 4, rng)
    for op, arrays in (
        (activated(BatchNorm(1e-5), Silu()), [x, scale, bias, mean, rstd]),
        (ActivationNormGrad(SILU_GRAD, BatchNormGrad()), [g, x, scale, mean, rstd, bias]),
    ):
        plan = plan_of(op, arrays, True, device)
        assert plan.label.endswith("resident")
        for y, ref in zip(run_plan(plan, arrays), run_reference(op, arrays, float64), strict=True):
            assert not mismatch(y, ref, as_dtype(y.dtype)), f"{op} {shape}"


@compiler
@pytest.mark.parametrize("step", [Silu(), HardSwish(), Gelu(), LeakyRelu(), Tanh()], ids=lambda op: op.name)
def test_what_is_not_finite_goes_through(step: Op) -> None:
    """Channels whose result is infinite or no number: as where the activation is an op by itself."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2, 8, 3, 3)).astype(np.float32)
    scale, mean, bias, var = small(8, 4, rng)
    bias[:3] = np.inf, -np.inf, np.nan
    given = [x, scale, bias, mean, var]
    with np.errstate(invalid="ignore"):
        (wanted,) = run_reference(step, [run_reference(BatchNormInfer(1e-5), given, float32)[0]], float32)
    (found,) = run_plan(plan_of(activated(BatchNormInfer(1e-5), step), given, True), given)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(wanted))


def test_what_is_refused() -> None:
    x, row = Spec((2, 8, 3, 3), float32), Spec((8,), float32)
    plain = [x, *[row] * 4]
    with pytest.raises(NoKernel, match="functions of a bare norm's result alone, got activated_norm"):
        CUDA.plan(activated(BatchNorm(1e-5, relu=True), Tanh()), plain, Policy())
    with pytest.raises(ShapeError, match="activated_norm: .* must not change shape or dtype"):
        activated(BatchNorm(1e-5), Cast(bfloat16)).infer(*plain)
    with pytest.raises(ShapeError, match="activation_norm_grad: 5 inputs are not what"):
        ActivationNormGrad(SILU_GRAD, BatchNormGrad()).infer(x, *plain[:4])
    with pytest.raises(ShapeError, match="6 inputs are not what"):
        ActivationNormGrad(SILU_GRAD, BatchNormGrad(relu=True)).infer(x, *plain)


def test_what_is_slow_twice_is_stored() -> None:
    """float64 on a GPU that has few units for it: the plan says so."""
    op = ActivationNormGrad(FusedElementwise((GeluGrad(),), ((0, 1),)), BatchNormGrad())

    def objection(dtype: DType, device: lm.Device) -> str:
        x, row = Spec((8, 16, 9, 9), dtype), Spec((16,), dtype)
        return backend(device).plan(op, [x, x, *[row] * 4], Policy()).objection

    assert not objection(float32, KINDS["rtx5090"])
    assert not objection(float64, H200)
    assert objection(float64, KINDS["rtx5090"]) == f"to compute {op} in every pass takes longer"


def test_instructions_are_counted_once() -> None:
    """A division and exp, which silu's gradient names twice, and operators; a mask is nearly nothing. In half types
    both are the units' for special functions."""
    assert instructions(SILU_GRAD, 2, float32) == 16 + 8 + 2 + 5
    assert instructions(SILU_GRAD, 2, bfloat16) == 4 + 4 + 2 + 5
    assert instructions(gradient_of(LeakyRelu()), 2, bfloat16) == 3


@pytest.mark.parametrize("machine", sorted(KINDS))
def test_kernels_compile_for_every_machine(machine: str) -> None:
    device = KINDS[machine]
    x, row = Spec((4, 24, 9, 9), bfloat16, channels_last((4, 24, 9, 9))), Spec((24,), float32)
    act = FusedElementwise((GeluGrad(),), ((0, 1),))
    for op, specs in (
        (activated(BatchNorm(1e-5), Gelu()), [x, *[row] * 4]),
        (ActivationNormGrad(act, BatchNormGrad()), [x, x, *[row] * 4]),
    ):
        plan = backend(device).plan(op, specs, Policy())
        for program in programs(plan):
            assert len(hasty_cubin(program, device.machine.target)) > 1000


def test_a_text_has_no_sizes() -> None:
    """One kernel in one launch serves all norms with an activation."""
    row, texts = Spec((24,), float32), set()
    for side in (7, 9):
        x = Spec((4, 24, side, side), bfloat16, channels_last((4, 24, side, side)))
        (step,) = CUDA.plan(activated(BatchNorm(1e-5), Silu()), [x, *[row] * 4], Policy()).make.steps  # type: ignore[attr-defined]
        assert step.program.file == batch_persistent._FILE
        texts.add(step.program.text)
    assert len(texts) == 1
