"""Activations in front of a batch norm go into its passes, which compute them again; what others read stays."""

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.backends.cuda import backend
from lamina.backends.cuda.norm.batch_norm_of_activation_fusion import (
    NORM_OF_ACTIVATION,
    NORM_OF_ACTIVATION_GRAD,
    NormOfActivationGrad,
)
from lamina.backends.cuda.norm.norm_activation_fusion import (
    NORM_ACTIVATION,
    NORM_ACTIVATION_GRAD,
    ActivatedNorm,
)
from lamina.backends.protocol import worthwhile
from lamina.backends.reference import run_reference
from lamina.graph import Graph, compile, gradients, trace
from lamina.graph.passes.canonicalize import drop_identities
from lamina.graph.passes.fuse_batch_norm import fuse_batch_norm
from lamina.graph.passes.fusion import fuse_patterns
from lamina.graph.passes.pattern import Report
from lamina.ops.core import Op
from lamina.ops.primitives import BatchNorm, BatchNormGrad, Cast
from lamina.ops.primitives.fused_elementwise import FusedElementwise
from lamina.ops.primitives.pointwise import Gelu, GeluGrad, Relu, ReluGrad, Tanh
from lamina.spec import (
    DType,
    Policy,
    ShapeError,
    Spec,
    as_dtype,
    bfloat16,
    channels_last,
    float16,
    float32,
    float64,
)
from tests.backends.cuda.norm.test_batch_persistent import SHAPES, with_blocks
from tests.backends.cuda.norm.test_norm_activation_fusion import (
    ACTIVATIONS,
    alike,
    check,
    plan_of,
    small,
)
from tests.helpers.eager import mismatch
from tests.helpers.emulator import run_plan
from tests.helpers.norm_networks import Activation, names, operands
from tests.helpers.own_programs import hasty_cubin, programs
from tests.helpers.planned import H200, KINDS
from tests.helpers.stand_in import StandIn

CUDA = backend(H200)
compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
GELU = FusedElementwise((Gelu(),), ((0,),)), FusedElementwise((GeluGrad(),), ((0, 1),))
RELU = FusedElementwise((Relu(),), ((0,),)), FusedElementwise((Relu(), ReluGrad()), ((0,), (~0, 1)))


def network(act: Activation, read: str = "", behind: Activation = lambda y: y) -> Callable[..., Any]:
    """Convolution, activation, batch norm, convolution; gradients. read: what the loss reads beside, if anything."""

    def f(x: Any, w: Any, scale: Any, bias: Any, mean: Any, var: Any, z: Any) -> Any:
        a = act(ops.conv2d(x, w))
        y, *statistics = ops.batch_norm_with_statistics(a, mean, var, scale, bias, True)
        last = ops.conv2d(behind(y), w)
        loss = ops.sum(last * last)
        if read == "activation":
            loss = loss + ops.sum(a * z)
        found = gradients(loss, [x, w, scale, bias, *([a] if read == "gradient" else [])])
        return [*found, *statistics]

    return f


def fused(graph: Graph, verdict: str = "fused") -> Graph:
    found = [NORM_ACTIVATION_GRAD, NORM_ACTIVATION, NORM_OF_ACTIVATION_GRAD, NORM_OF_ACTIVATION]
    return fuse_patterns(fuse_batch_norm(drop_identities(graph)), found, StandIn(verdict), Report())


@pytest.mark.parametrize("name", [*ACTIVATIONS, "relu"])
def test_activation_and_gradient_are_taken_in(name: str) -> None:
    """No elementwise node is left between the convolutions and the norm, or between their gradients."""
    act = ACTIVATIONS.get(name, ops.relu)
    arrays = operands()
    graph = trace(network(act), *arrays)
    better = fused(graph)
    becomes = {"batch_norm": "activated_norm", "batch_norm_grad": "norm_of_activation_grad"}
    plain = names(trace(network(lambda x: x), *arrays))
    assert sorted(names(better)) == sorted(becomes.get(name, name) for name in plain)
    alike(graph, better, arrays)


@pytest.mark.parametrize("read", ["activation", "gradient"])
def test_what_others_read_stays(read: str) -> None:
    graph = fuse_batch_norm(trace(network(ops.gelu, read), *operands()))
    assert names(fused(graph)) == names(graph)


def test_what_has_no_kernel_stays() -> None:
    graph = fuse_batch_norm(trace(network(ops.gelu), *operands()))
    assert names(fused(graph, "")) == names(graph)


@pytest.mark.parametrize("behind", ["silu", "relu", "hard sigmoid"])
def test_activations_on_both_sides(behind: str) -> None:
    arrays = operands()
    graph = trace(network(ops.gelu, behind=ACTIVATIONS.get(behind, ops.relu)), *arrays)
    better = fused(graph)
    assert {"activated_norm", "norm_of_activation_grad"} <= set(names(better))
    assert not any("gelu" in name or "silu" in name for name in names(better))
    alike(graph, better, arrays)


def test_planned_steps_of_a_network() -> None:
    """In bfloat16: what the activation gives is no tensor, nor is its gradient."""
    rows = [Spec((16,), float32)] * 4
    specs = [Spec((4, 16, 12, 12), bfloat16), Spec((16, 16, 1, 1), bfloat16), *rows, Spec((1,), float32)]
    labels = [s.plan.label for s in compile(trace(network(ops.gelu), *specs), H200).program.steps]
    assert any(label.startswith("kernel gelu+batch_norm") for label in labels)
    assert any(label.startswith("kernel batch_norm_grad+gelu_grad") for label in labels)
    assert not any("gelu" in label and "batch_norm" not in label for label in labels)


# --------------------------------------------------------------------------------------------------------- kernels


@compiler
@pytest.mark.parametrize("op_class", [ActivatedNorm, NormOfActivationGrad])
@pytest.mark.parametrize("dtype", [float32, bfloat16, float16], ids=str)
def test_values(op_class: type[Op], dtype: DType) -> None:
    """In every layout; odd sizes and misaligned addresses."""
    rng = np.random.default_rng(2)
    for turn, sample in enumerate(op_class.samples()):
        arrays = sample.draw(rng, dtype)
        for last in (False, True):
            check(sample.op, arrays, last, misaligned=turn % 2 == 1)


@compiler
def test_a_large_mean_takes_no_digits_away() -> None:
    """The shift of the sums is the activation of a channel's first element."""
    x = (np.random.default_rng(0).standard_normal((4, 2, 60, 60)) + 1000).astype(np.float32)
    arrays = [x, *[np.full(2, v, np.float32) for v in (2, 1, 0, 1)]]
    op = ActivatedNorm(BatchNorm(1e-5), None, RELU[0])
    for last in (False, True):
        for y, ref in zip(
            run_plan(plan_of(op, arrays, last), arrays), run_reference(op, arrays, float64), strict=True
        ):
            np.testing.assert_allclose(y, ref, rtol=2e-4, atol=2e-4)


@compiler
@pytest.mark.parametrize(("shape", "blocks"), SHAPES, ids=str)
@pytest.mark.parametrize("room", [192 << 10, 0], ids=["kept", "read again"])
def test_in_one_launch(shape: tuple[int, ...], blocks: int, room: int) -> None:
    device = lm.Device("cuda", machine=with_blocks(blocks, room))
    rng = np.random.default_rng(shape[1])
    dtype = (bfloat16, float32, float16)[shape[1] // 8 % 3]
    x, g = (rng.standard_normal(shape).astype(dtype.numpy) for _ in range(2))
    scale, mean, bias, rstd = small(shape[1], 4, rng)
    for op, arrays in (
        (
            ActivatedNorm(BatchNorm(1e-5), FusedElementwise((Tanh(),), ((0,),)), GELU[0]),
            [x, scale, bias, mean, rstd],
        ),
        (NormOfActivationGrad(*GELU, BatchNormGrad()), [g, x, scale, mean, rstd]),
    ):
        plan = plan_of(op, arrays, True, device)
        assert plan.label.endswith("resident")
        for y, ref in zip(run_plan(plan, arrays), run_reference(op, arrays, float64), strict=True):
            assert not mismatch(y, ref, as_dtype(y.dtype)), f"{op} {shape}"


def test_what_changes_the_type_is_refused() -> None:
    """Of what is normalized, and of its gradient."""
    x, row = Spec((2, 8, 3, 3), bfloat16), Spec((8,), float32)
    wider = FusedElementwise((Cast(float32),), ((0,),))
    with pytest.raises(ShapeError, match="activated_norm: .* must not change shape or dtype"):
        ActivatedNorm(BatchNorm(1e-5), None, wider).infer(x, *[row] * 4)
    with pytest.raises(ShapeError, match="norm_of_activation_grad: .* must not change shape or dtype"):
        NormOfActivationGrad(GELU[0], wider, BatchNormGrad()).infer(x, x, *[row] * 3)


def test_what_is_slow_again_is_stored() -> None:
    """float64 on a GPU that has few units for it: the plan says so, and nothing is fused."""
    op = NormOfActivationGrad(*GELU, BatchNormGrad())

    def planned(dtype: DType, device: lm.Device) -> str:
        x, row = Spec((8, 16, 9, 9), dtype), Spec((16,), dtype)
        return backend(device).plan(op, [x, x, *[row] * 3], Policy()).objection

    assert not planned(float32, KINDS["rtx5090"])
    assert "in every pass takes longer" in planned(float64, KINDS["rtx5090"])
    assert not worthwhile(
        CUDA.plan(op, [Spec((8, 16, 9, 9), bfloat16)] * 2 + [Spec((16,), float32)] * 3, Policy())
    )
    specs = [Spec(s, float64) for s in ((8, 16, 9, 9), (16, 16, 1, 1), (16,), (16,), (16,), (16,), (1,))]
    graph, report = trace(network(ops.gelu), *specs), Report()
    found = fuse_patterns(graph, [NORM_OF_ACTIVATION_GRAD], backend(KINDS["rtx5090"]), report)
    assert names(found) == names(graph)
    assert any("in every pass takes longer" in reason for reason in report.refused)


@pytest.mark.parametrize("machine", sorted(KINDS))
def test_kernels_compile_for_every_machine(machine: str) -> None:
    device = KINDS[machine]
    x, row = Spec((4, 24, 9, 9), bfloat16, channels_last((4, 24, 9, 9))), Spec((24,), float32)
    for op, specs in (
        (ActivatedNorm(BatchNorm(1e-5), None, GELU[0]), [x, *[row] * 4]),
        (NormOfActivationGrad(*GELU, BatchNormGrad()), [x, x, *[row] * 3]),
    ):
        for program in programs(backend(device).plan(op, specs, Policy())):
            assert len(hasty_cubin(program, device.machine.target)) > 1000
