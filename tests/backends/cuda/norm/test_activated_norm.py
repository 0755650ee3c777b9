"""Group norms with activations behind them: values in the emulator, and what graphs become."""

import shutil
from typing import Any

import numpy as np
import pytest

from lamina import ops
from lamina.backends import NoKernel
from lamina.backends.cuda import backend
from lamina.backends.cuda.norm.norm_activation_fusion import ActivatedNorm, ActivationNormGrad
from lamina.graph import gradients, trace
from lamina.graph.passes.manager import optimize
from lamina.ops.core import Op
from lamina.ops.primitives import BatchNormGrad, GroupNorm, GroupNormGrad
from lamina.ops.primitives.fused_elementwise import FusedElementwise
from lamina.ops.primitives.pointwise import Gelu, Silu, SiluGrad
from lamina.spec import (
    DType,
    Policy,
    ShapeError,
    Spec,
    bfloat16,
    channels_last,
    contiguous,
    float16,
    float32,
    float64,
)
from tests.backends.cuda.norm.test_norm import check
from tests.helpers import slow_from
from tests.helpers.planned import H200

CUDA = backend(H200)
SILU, GELU = (FusedElementwise((op,), ((0,),)) for op in (Silu(), Gelu()))
SILU_GRAD = FusedElementwise((SiluGrad(),), ((0, 1),))
#: Shapes with their groups: accesses over several groups and images, one channel, few places, sums by a block.
CASES: list[tuple[tuple[int, ...], int]] = [
    ((2, 64, 8, 4), 32),
    ((3, 12, 37), 4),
    ((2, 24, 96, 90), 8),
    ((3, 1, 7, 5), 1),
    ((2, 6, 3), 3),
    ((2, 264, 5, 3), 1),
]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("last", [True, False], ids=["channels last", "row-major"])
@pytest.mark.parametrize("dtype", slow_from(2, [bfloat16, float32, float16, float64]), ids=str)
@pytest.mark.parametrize(("shape", "groups"), CASES, ids=str)
def test_values(shape: tuple[int, ...], groups: int, dtype: DType, last: bool) -> None:
    rng = np.random.default_rng(groups)
    wide = dtype.compute.numpy
    x, g = (rng.standard_normal(shape).astype(dtype.numpy) for _ in range(2))
    scale, bias = (rng.standard_normal(shape[1]).astype(wide) for _ in range(2))
    split = x.reshape(shape[0], groups, -1).astype(np.float64)
    mean, r = split.mean(2).astype(wide), (1 / np.sqrt(split.var(2) + 1e-5)).astype(wide)
    for steps in (SILU, GELU):
        check(ActivatedNorm(GroupNorm(groups, 1e-5), steps), [x, scale, bias], last, False)
    check(ActivationNormGrad(SILU_GRAD, GroupNormGrad(groups)), [g, x, scale, mean, r, bias], last, False)


def block(x: Any, weight: Any, scale: Any, bias: Any) -> Any:
    """A convolution between two group norms with silu, as in networks of diffusion."""
    inner = ops.conv2d(ops.silu(ops.group_norm(x, 4, scale, bias)), weight, padding=1)
    return ops.silu(ops.group_norm(inner, 1, scale, bias))


def ops_of(training: bool) -> list[Op]:
    x, weight = np.ones((2, 16, 8, 8), np.float32), np.ones((16, 16, 3, 3), np.float32)
    small = np.ones(16, np.float32)

    def run(weighting: Any, *given: Any) -> Any:
        y = block(*given)
        return (y, *gradients(ops.sum(y * weighting), given)) if training else y

    graph = trace(run, x, x, weight, small, small)
    return [node.op for node in optimize(graph, CUDA).nodes]


def test_activations_and_their_gradients_are_taken_in() -> None:
    found = ops_of(training=True)
    assert sum(isinstance(op, ActivatedNorm) for op in found) == 2
    assert sum(isinstance(op, ActivationNormGrad) for op in found) == 2
    assert not [op for op in found if isinstance(op, GroupNorm | GroupNormGrad | Silu | SiluGrad)]


def test_activations_of_inference_are_taken_in() -> None:
    found = ops_of(training=False)
    assert sum(isinstance(op, ActivatedNorm) for op in found) == 2
    assert not [op for op in found if isinstance(op, GroupNorm | Silu)]


def test_what_a_group_norm_does_not_take_is_refused() -> None:
    small = Spec((4,), float32)
    row = Spec((2, 4), float32)
    with pytest.raises(NoKernel, match="at several places"):
        CUDA.plan(ActivatedNorm(GroupNorm(2, 1e-5), SILU), [row, small, small], Policy())
    image = Spec((2, 4, 6, 6), float32)
    with pytest.raises(NoKernel, match="at several places"):
        CUDA.plan(ActivatedNorm(GroupNorm(2, 1e-5), SILU, before=GELU), [image, small, small], Policy())


def test_both_kinds_of_norms_lie_where_their_input_does() -> None:
    shape = (2, 16, 8, 8)
    small, stats = [Spec((16,), float32)] * 2, [Spec((2, 4), float32)] * 2
    for layout in (channels_last, contiguous):
        x = Spec(shape, bfloat16, layout(shape))
        forward = CUDA.plan(ActivatedNorm(GroupNorm(4, 1e-5), SILU), [x, *small], Policy())
        specs = [x, x, small[0], *stats, small[0]]
        backward = CUDA.plan(ActivationNormGrad(SILU_GRAD, GroupNormGrad(4)), specs, Policy())
        assert {s.tag for s in (*forward.outputs[:1], *backward.outputs[:1])} == {x.tag}


def test_errors_name_what_is_wrong() -> None:
    x, scale, bias = Spec((2, 4, 6, 6), float32), Spec((4,), float32), Spec((3,), float32)
    stats = [Spec((4,), float32)] * 2
    op = ActivationNormGrad(SILU_GRAD, BatchNormGrad())
    with pytest.raises(ShapeError, match="must be like scale"):
        op.infer(x, x, scale, *stats, bias)
