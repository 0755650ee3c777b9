"""Norms of rows with the steps around them: kernels in the emulator, and what of graphs becomes one."""

from typing import Any

import numpy as np
import pytest

from lamina import ops
from lamina.backends import NoKernel
from lamina.backends.cuda import backend
from lamina.backends.cuda.norm.row_norm_fusion import SteppedNorm
from lamina.backends.reference import run_reference
from lamina.graph import Graph, compile, gradients, trace
from lamina.graph.passes.manager import optimize
from lamina.ops.core import Op, Sample, bind
from lamina.ops.primitives import Add, Cast, LayerNorm, Mul, RmsNorm
from lamina.ops.primitives.fused_elementwise import FusedElementwise
from lamina.spec import Policy, Spec, as_dtype, bfloat16, float16, float32
from tests.helpers.eager import mismatch
from tests.helpers.emulator import run_plan
from tests.helpers.planned import H200

CUDA = backend(H200)
RMS, LAYER = RmsNorm(1, 1e-6), LayerNorm(1, 1e-5)
ADDED = FusedElementwise((Cast(float32), Add()), ((0,), (~0, 1)))
SUM = FusedElementwise((Cast(float32), Cast(float32), Add(), Mul()), ((0,), (1,), (~0, ~1), (~2, 2)))


def drawn(spec: Spec, seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal(spec.shape).astype(spec.dtype.numpy)


def check(op: Op, specs: list[Spec], *, aligned: bool = True) -> Any:
    """What the kernel gives, by the emulator, is what the reference gives."""
    arrays = [drawn(s, i) for i, s in enumerate(specs)]
    plan = CUDA.plan(op, specs, Policy())
    found = run_plan(plan, arrays, misaligned=not aligned)
    for a, b in zip(found, run_reference(op, arrays), strict=True):
        assert not (problem := mismatch(a, b, as_dtype(a.dtype))), problem
    return plan


def small(norm: Op, width: int) -> list[Spec]:
    return [Spec((width,), float32)] * (1 + isinstance(norm, LayerNorm))


@pytest.mark.parametrize("sample", list(SteppedNorm.samples()), ids=str)
def test_samples(sample: Sample) -> None:
    (dtype,) = sample.dtypes
    check(sample.op, [Spec(a.shape, a.dtype or dtype) for a in sample.args])


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("width", [8, 300, 768, 2052, 8192, 9000])
@pytest.mark.parametrize("norm", [RMS, LAYER], ids=str)
def test_rows_of_any_width(norm: RmsNorm | LayerNorm, width: int, aligned: bool) -> None:
    """Short rows of several in a warp, rows of a block, rows that are read again."""
    rows = Spec((3, width), bfloat16), Spec((3, width), float32)
    check(SteppedNorm(norm, bfloat16, ADDED, True), [*rows, *small(norm, width)], aligned=aligned)
    check(SteppedNorm(norm, float16), [rows[1], *small(norm, width)], aligned=aligned)


@pytest.mark.parametrize("count", [1, 70, 700])
def test_any_number_of_rows(count: int) -> None:
    rows = [Spec((count, 24), t) for t in (bfloat16, float16, float32)]
    plan = check(SteppedNorm(RMS, bfloat16, SUM, True), [*rows, *small(RMS, 24)])
    assert plan.aliases == {2: 2}


def test_no_rows() -> None:
    rows = Spec((0, 24), bfloat16), Spec((0, 24), float32)
    check(SteppedNorm(LAYER, bfloat16, ADDED, True), [*rows, *small(LAYER, 24)])


def test_wider_operands_are_refused() -> None:
    rows = Spec((3, 24), float32), Spec((3, 24), float32)
    narrowed = FusedElementwise((Add(), Cast(bfloat16)), ((0, 1), (~0,)))
    with pytest.raises(NoKernel, match="no wider"):
        CUDA.plan(SteppedNorm(RMS, bfloat16, narrowed), [*rows, *small(RMS, 24)], Policy())


# ------------------------------------------------------------------------------------------------------------ graphs


def normed(x: Any, scale: Any) -> Any:
    return bind(RMS, x, scale)[0]


def residual(h: Any, stream: Any, scale: Any, w: Any) -> Any:
    """A branch is added to the residual stream, which goes on; its norm in a half type is multiplied."""
    stream = h.reshape(stream.shape).float() + stream
    y = normed(stream, scale).to(dtype="bfloat16")
    return [ops.matmul(y.reshape(h.shape), w), stream * 2.0]


GIVEN = [Spec((6, 32), bfloat16), Spec((2, 3, 32), float32), Spec((32,), float32), Spec((32, 16), bfloat16)]


def stepped(graph: Graph) -> list[Any]:
    return [n.op for n in graph.nodes if isinstance(n.op, SteppedNorm)]


def optimized(fn: Any, specs: list[Spec]) -> Graph:
    graph = trace(fn, *specs)
    better = optimize(graph, CUDA)
    arrays = [drawn(s, i) for i, s in enumerate(specs)]
    ways = [compile(g, "cpu", backend="reference", optimize=False)(*arrays) for g in (better, graph)]
    for found, wanted in zip(*ways, strict=True):
        assert not mismatch(found.numpy(), wanted.numpy().astype(np.float64), found.dtype)
    return better


@pytest.mark.feature("B013")
def test_a_residual_sum_is_normalized_and_rounded_at_once() -> None:
    better = optimized(residual, GIVEN)
    (op,) = stepped(better)
    assert (op.keeps, op.dtype, op.count) == (True, bfloat16, 2)
    assert not [n for n in better.nodes if n.op.name in ("rms_norm", "cast")]


def test_with_its_gradient() -> None:
    def step(h: Any, stream: Any, scale: Any, w: Any, g: Any) -> list[Any]:
        y = residual(h, stream, scale, w)[0]
        return [y, *gradients(y, [h, stream, scale, w], [g])]

    (op,) = stepped(optimized(step, [*GIVEN, Spec((6, 16), bfloat16)]))
    assert op.keeps


def test_a_view_of_the_result_is_rounded() -> None:
    """Rows as one matrix, and in a half type behind that: a linear layer that flattens its input under autocast."""
    x, scale = Spec((2, 3, 32), float32), Spec((32,), float32)
    better = optimized(
        lambda x, s: normed(x, s).reshape((6, 4, 8)).reshape((6, 32)).to(dtype="bfloat16"), [x, scale]
    )
    (op,) = stepped(better)
    assert (op.dtype, op.keeps, op.count) == (bfloat16, False, 1)
    assert better.outputs[0].spec == Spec((6, 32), bfloat16)
    assert not [n for n in better.nodes if n.op.name == "cast"]
    seen = optimized(
        lambda x, s: [(rows := normed(x, s).reshape((6, 32))).to(dtype="bfloat16"), rows + 1.0], [x, scale]
    )
    assert stepped(seen) == []


def test_what_is_read_in_both_types_is_rounded_apart() -> None:
    better = optimized(
        lambda x, s: [(y := normed(x * x, s)).half(), y], [Spec((4, 24), float32), Spec((24,), float32)]
    )
    (op,) = stepped(better)
    assert (op.dtype, op.keeps, op.count) == (float32, False, 1)


def test_what_is_wider_or_repeated_stays() -> None:
    """Results that are widened, and sums of what is not whole, or of what another shape's rows are."""
    scale = Spec((24,), float32)
    wider = optimized(lambda x, s: normed(x, s).float(), [Spec((4, 24), bfloat16), scale])
    assert stepped(wider) == []
    repeated = optimized(lambda x, b, s: normed(x + b, s), [Spec((4, 24), float32), scale, scale])
    assert stepped(repeated) == []
    cut = optimized(lambda x, s: normed((x * x).reshape((4, 24)), s), [Spec((8, 12), float32), scale])
    assert stepped(cut) == []
