"""Norm and pool in one kernel on a GPU: ResNet's stem, odd sizes, the bits of the separate kernels, a step."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import backends, ops
from lamina.backends.cuda.norm import batch_persistent
from lamina.backends.cuda.norm.batch_norm_max_pool_fusion import NormPool, PoolNormGrad
from lamina.backends.cuda.select import known
from lamina.backends.reference import run_reference
from lamina.graph import gradients, trace
from lamina.ops.core import Array, Op
from lamina.ops.primitives import BatchNorm, BatchNormGrad, MaxPool, MaxPoolGrad, Window
from lamina.runtime import Device
from lamina.spec import (
    DType,
    Policy,
    Shape,
    Spec,
    as_dtype,
    bfloat16,
    channels_last,
    float16,
    float32,
    float64,
)
from tests.helpers.eager import execute, mismatch

pytestmark = pytest.mark.gpu
DEVICE = Device("cuda:0")
STEM = Window((2, 2), ((1, 1), (1, 1)), (1, 1))
#: Kernel, window, x.
CASES: list[tuple[Shape, Window, Shape]] = [
    ((3, 3), STEM, (4, 64, 112, 112)),
    ((3, 3), STEM, (3, 40, 33, 47)),
    ((2, 2), Window((2, 2), ((0, 0), (0, 0)), (1, 1)), (16, 256, 14, 15)),
    ((2, 5), Window((1, 2), ((1, 0), (2, 2)), (1, 1)), (2, 24, 19, 28)),
]


def plan(op: Op, arrays: list[Array], policy: Policy | None = None) -> backends.Plan:
    specs = [Spec(a.shape, as_dtype(a.dtype), channels_last(a.shape)) for a in arrays]
    return backends.get(DEVICE).plan(op, specs, policy or Policy())


def run(op: Op, arrays: list[Array], policy: Policy | None = None) -> tuple[Array, ...]:
    return execute(DEVICE, plan(op, arrays, policy), arrays)


def eighths(shape: Shape, dtype: DType, most: int = 16) -> Array:
    """Multiples of 1/8, whose sums are exact: the order in which they are taken does not show."""
    rng = np.random.default_rng(len(shape) + shape[-1])
    return (rng.integers(-most, most + 1, shape) / 8).astype(dtype.numpy)


def same(found: tuple[Array, ...], wanted: list[Array]) -> None:
    for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert a.tobytes() == b.tobytes(), f"output {i}: {np.sum(a != b)} of {a.size} differ"


@pytest.fixture
def in_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms alone run in passes, as the fused kernels do, so that their sums round alike, whatever was measured."""
    monkeypatch.setattr(batch_persistent, "tiling", lambda *given: None)
    monkeypatch.setattr(known, "_measured_here", lambda place, device: [])


@pytest.mark.usefixtures("in_passes")
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [bfloat16, float16, float32, float64], ids=str)
def test_the_bits_of_separate_kernels(case: tuple[Shape, Window, Shape], dtype: DType) -> None:
    """Forward with relu, without and clipped; backward with and without relu; against the reference where exact."""
    kernel, window, x = case
    wide, image = dtype.compute, eighths(x, dtype)
    a, b, c = (eighths(x[1:2], wide, most) for most in (16, 9, 5))
    power = np.random.default_rng(0).choice([0.5, 1.0, 2.0], x[1]).astype(wide.numpy)
    pool, grad = MaxPool(kernel, window, True), MaxPoolGrad(kernel, window, x[2:])
    for relu, hi in ((True, None), (False, None), (True, 0.75)):
        norm, arrays = BatchNorm(1e-3, 0.1, relu, hi=hi), [image, a, b, c, power]
        fused = NormPool(norm, pool)
        assert plan(fused, arrays).label.endswith("fused")
        y, *statistics = run(norm, arrays)
        pooled, index = run(pool, [y])
        found = run(fused, arrays)
        same(found, [pooled, *statistics, index])
        assert not mismatch(found[0], run_reference(fused, arrays, float64)[0], dtype)
    g = eighths(index.shape, dtype, 3)
    for relu in (False, True):
        back, arrays = BatchNormGrad(relu), [g, index, image, a, b, power, *([c] if relu else [])]
        (spread,) = run(grad, arrays[:2])
        separate = run(back, [spread, *arrays[2:]])
        op = PoolNormGrad(grad, back)
        assert plan(op, arrays).label.endswith("fused")
        same(run(op, arrays), list(separate))
        for y, wanted, spec in zip(
            separate, run_reference(op, arrays, float64), plan(op, arrays).outputs, strict=True
        ):
            assert not mismatch(y, wanted, spec.dtype)


def test_the_fastest_is_right() -> None:
    """Whichever of both wins."""
    kernel, window, x = CASES[0]
    fastest, image = Policy(algorithm="fastest"), eighths(x, bfloat16)
    small = [eighths(x[1:2], float32, most) for most in (16, 9, 5)]
    power = np.full(x[1], 0.5, np.float32)
    op = NormPool(BatchNorm(1e-3, 0.1, True), MaxPool(kernel, window, True))
    arrays = [image, *small, power]
    found = run(op, arrays, fastest)
    for y, wanted in zip(found[:5], run_reference(op, arrays, float64)[:5], strict=True):
        assert not mismatch(y, wanted, as_dtype(y.dtype))
    op = PoolNormGrad(MaxPoolGrad(kernel, window, x[2:]), BatchNormGrad())
    arrays = [eighths(found[5].shape, bfloat16, 3), found[5], image, *small[:2], power]
    for y, wanted in zip(run(op, arrays, fastest), run_reference(op, arrays, float64), strict=True):
        assert not mismatch(y, wanted, as_dtype(y.dtype))


def test_a_compiled_stem() -> None:
    """Convolution, norm, relu, pool and the gradients of all: merged, and as the graph computes it unmerged."""

    def step(x: Any, w: Any, scale: Any, bias: Any, mean: Any, var: Any) -> list[Any]:
        y, mean, var = ops.batch_norm_with_statistics(
            ops.conv2d(x, w, padding=1), mean, var, scale, bias, True
        )
        y = ops.max_pool2d(ops.relu(y), 3, 2, 1)
        return [*gradients(ops.sum(y * y), [w, scale, bias]), mean, var]

    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(bfloat16.numpy) for s in ((4, 16, 30, 28), (32, 16, 3, 3)))
    small = [rng.uniform(0.5, 1.5, 32).astype(np.float32) for _ in range(4)]
    graph = trace(step, x, w, *small)
    compiled = lm.compile(graph, device="cuda:0")
    labels = [s.plan.label for s in compiled.program.steps]
    assert sum("norm_pool fused" in label for label in labels) == 1
    assert sum("pool_norm_grad fused" in label for label in labels) == 1
    plain = lm.compile(graph, device="cuda:0", optimize=False)
    for found, wanted in zip(compiled(x, w, *small), plain(x, w, *small), strict=True):
        a, b = (v.numpy().astype(np.float64) for v in (found, wanted))
        assert np.linalg.norm(a - b) <= 2e-2 * np.linalg.norm(b)
