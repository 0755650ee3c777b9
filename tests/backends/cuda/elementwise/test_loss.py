"""Losses on a GPU: how many kernels a training step has for its loss, and the own kernels in the emulator."""

import re
import shutil
from typing import Any

import numpy as np
import pytest

from lamina import ops
from lamina.backends.cuda import backend
from lamina.backends.reference import run_reference
from lamina.graph import compile, gradients, trace
from lamina.graph.passes.manager import optimize
from lamina.ops.core import Array, Op, bind
from lamina.ops.primitives import CrossEntropy, CrossEntropyGrad, LabelledMean
from lamina.spec import DType, Policy, Shape, Spec, as_dtype, bfloat16, float16, float32, float64, int64
from tests.helpers.eager import mismatch
from tests.helpers.emulator import contrary, run_plan
from tests.helpers.planned import H200

CUDA = backend(H200)
emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
rng = np.random.default_rng(3)


def kernels(loss: Any, *more: Spec, scaled: bool = False) -> list[str]:
    """The ops of a loss and of its gradient by the logits that launch a kernel on a GPU."""

    def step(x: Any, labels: Any, scale: Any, *weights: Any) -> list[Any]:
        found = loss(x, labels, *weights)
        return [found, *gradients(found * scale[0] if scaled else found, [x])]

    specs = (Spec((64, 10), float32), Spec((64,), int64), Spec((1,), float32), *more)
    graph = optimize(trace(step, *specs), CUDA)
    plans = [(n.op, CUDA.plan(n.op, [v.spec for v in n.inputs], n.policy)) for n in graph.nodes]
    return [op.name for op, plan in plans if not plan.view]


def test_a_loss_that_may_ignore_labels_has_as_many_kernels_as_one_that_does_not() -> None:
    assert kernels(ops.cross_entropy) == ["cross_entropy", "labelled_mean", "cross_entropy_grad"]
    every = kernels(lambda x, t: ops.cross_entropy(x, t, ignore_index=None))
    assert every == ["cross_entropy", "reduce", "cross_entropy_grad"]
    smooth = kernels(lambda x, t: ops.cross_entropy(x, t, label_smoothing=0.1))
    assert len(smooth) == 3


def test_a_scaled_loss_has_one_product_more() -> None:
    """The scale by the share of each label."""
    assert kernels(ops.cross_entropy, scaled=True) == [
        "cross_entropy",
        "labelled_mean",
        "fused_elementwise",
        "cross_entropy_grad",
    ]


def run(op: Op, inputs: list[Array], plan_kernels: list[str]) -> list[Array]:
    """What the planned kernels compute, the same whatever order the warps run in."""
    plan = CUDA.plan(op, [Spec(a.shape, as_dtype(a.dtype)) for a in inputs], Policy())
    assert [program.name for program in plan.make.programs] == plan_kernels
    found = run_plan(plan, inputs)
    with contrary():
        again = run_plan(plan, inputs)
    for a, b in zip(found, again, strict=True):
        np.testing.assert_array_equal(a, b)
    return list(found)


@emulated
@pytest.mark.parametrize(
    ("shape", "dtype", "labels"),
    [((32,), float32, "int64"), ((3, 5, 7), float64, "int32"), ((8191,), bfloat16, "int8"), ((0,), float32, "int64")],
)  # fmt: skip
def test_the_mean_of_few_losses_is_one_launch(shape: Shape, dtype: DType, labels: str) -> None:
    check(shape, dtype, labels, ["labelled_mean"])


@emulated
@pytest.mark.parametrize(
    ("shape", "dtype"), [((8192,), float32), ((5, 41, 71), float64), ((30000,), bfloat16)]
)
def test_the_mean_of_many_losses_is_two(shape: Shape, dtype: DType) -> None:
    check(shape, dtype, "int64", ["labelled_mean_parts", "labelled_mean_whole"])


def check(shape: Shape, dtype: DType, labels: str, launches: list[str]) -> None:
    losses = rng.random(shape).astype(dtype.numpy)
    given = rng.integers(0, 4, shape).astype(labels)
    op = LabelledMean(2)
    mean, share = run(op, [losses, given], launches)
    count = np.count_nonzero(given != 2)
    if not count:
        assert np.isnan(mean)
        assert np.isinf(share)
        return
    assert not mismatch(mean, losses.astype(np.float64).sum() / count, dtype)
    assert share == share.dtype.type(1) / share.dtype.type(count)


@emulated
def test_no_label_that_counts() -> None:
    mean, share = run(LabelledMean(-100), [np.zeros(5, np.float32), np.full(5, -100)], ["labelled_mean"])
    assert np.isnan(mean)
    assert share == np.inf


@emulated
@pytest.mark.parametrize("shape", [(6, 40), (3, 4, 5)])
def test_one_number_as_the_gradient_of_all_losses(shape: Shape) -> None:
    x = rng.standard_normal(shape).astype(np.float32)
    labels = rng.integers(0, 4, (shape[0], *shape[2:]))
    g, op = np.float32(0.75), CrossEntropyGrad(0.1, 1)
    (found,) = run(op, [x, labels, np.array(g)], ["cross_entropy_grad"])
    (wanted,) = run_reference(op, [x, labels, np.full(labels.shape, g)], float64)
    assert not mismatch(found, wanted, float32)


#: Rows that begin within 16 bytes, of which a thread, some lanes, a warp and a block have one each: more than a block
#: has, and not as many as several have.
ROWS = [(5, 7), (131, 9), (131, 21), (4, 33), (77, 64), (9, 100), (4, 257), (3, 2047), (3, 2051), (2, 4096)]
ROWS += [(2, 7, 9)]


@emulated
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [float16, bfloat16, float32, float64], ids=str)
@pytest.mark.parametrize("shape", ROWS)
def test_cross_entropy_in_one_pass_over_a_row(shape: Shape, dtype: DType, smoothing: float) -> None:
    x = (3 * rng.standard_normal(shape)).astype(dtype.numpy)
    labels = rng.integers(0, 5, (shape[0], *shape[2:]))
    (losses,) = run(CrossEntropy(smoothing, 2), [x, labels], ["cross_entropy"])
    g = rng.standard_normal(labels.shape).astype(losses.dtype)
    (found,) = run(CrossEntropyGrad(smoothing, 2), [x, labels, g], ["cross_entropy_grad"])
    assert not mismatch(losses, run_reference(CrossEntropy(smoothing, 2), [x, labels], float64)[0], float32)
    wanted = run_reference(CrossEntropyGrad(smoothing, 2), [x, labels, g], float64)[0]
    assert not mismatch(found, wanted, dtype if dtype.itemsize < 8 else float32)


def lanes(classes: int, dtype: DType) -> int:
    """Threads that share a row."""
    specs = [Spec((1000, classes), dtype), Spec((1000,), int64)]
    plan = CUDA.plan(CrossEntropy(), specs, Policy())
    found = re.search(r"#define LANES (\d+)", plan.make.programs[0].text)
    assert found is not None
    return int(found[1])


def test_short_rows_are_shared_by_few_lanes_and_long_ones_by_a_block() -> None:
    assert [lanes(n, bfloat16) for n in (8, 9, 21, 40, 64, 256, 1000, 2048, 2049)] == [
        1,
        2,
        4,
        8,
        2,
        8,
        32,
        32,
        256,
    ]
    assert [lanes(n, float32) for n in (21, 64, 256)] == [4, 4, 16]


@emulated
@pytest.mark.parametrize("classes", [6, 21, 70, 2053])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite(classes: int, bad: float) -> None:
    """In the first, a middle and the last class, and in all of them: what is infinite or NaN is so in both."""
    x = rng.standard_normal((5, classes)).astype(np.float32)
    x[0, 0], x[1, classes // 2], x[2, -1], x[3] = bad, bad, bad, bad
    labels, g = np.array([1, classes // 2, 0, 1, 2]), np.ones(5, np.float32)
    (losses,) = run(CrossEntropy(), [x, labels], ["cross_entropy"])
    (found,) = run(CrossEntropyGrad(), [x, labels, g], ["cross_entropy_grad"])
    with np.errstate(invalid="ignore", over="ignore"):
        assert not mismatch(losses, run_reference(CrossEntropy(), [x, labels], float64)[0], float32)
        assert not mismatch(found, run_reference(CrossEntropyGrad(), [x, labels, g], float64)[0], float32)


def test_the_kernels_compile() -> None:
    for count in (64, 1 << 20):
        plan = CUDA.plan(LabelledMean(-100), [Spec((count,), bfloat16), Spec((count,), int64)], Policy())
        assert all(program.cubin("sm_90") for program in plan.make.programs)
    for op, more in ((CrossEntropy(0.1, 3), ()), (CrossEntropyGrad(0.1, 3), (Spec((8,), float32),))):
        for classes in (7, 1000, 50257):
            specs = [Spec((8, classes), bfloat16), Spec((8,), int64), *more]
            assert all(program.cubin("sm_90") for program in CUDA.plan(op, specs, Policy()).make.programs)


@pytest.mark.gpu
@pytest.mark.parametrize("count", [7, 300_000])
def test_on_a_gpu(count: int) -> None:
    losses, labels = rng.random(count).astype(np.float32), rng.integers(0, 4, count)
    graph = trace(lambda a, b: bind(LabelledMean(2), a, b), losses, labels)
    found = compile(graph, "cuda")(losses, labels)
    wanted = losses[labels != 2].size
    np.testing.assert_allclose(found[0].numpy(), losses.astype(np.float64).sum() / wanted, rtol=1e-5)
    np.testing.assert_allclose(found[1].numpy(), 1 / wanted, rtol=1e-6)
