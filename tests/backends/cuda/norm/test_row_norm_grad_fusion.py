"""Gradients of norms of rows with the steps around them: kernels in the emulator, and what of graphs becomes one."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lamina import ops
from lamina.backends import NoKernel
from lamina.backends.cuda import backend
from lamina.backends.cuda.norm.row_norm_grad_fusion import SteppedNormGrad
from lamina.graph import Graph, compile, gradients, trace
from lamina.graph.passes.manager import optimize
from lamina.ops.core import Sample, bind
from lamina.ops.primitives import Add, Cast, LayerNorm, LayerNormGrad, RmsNorm, RmsNormGrad
from lamina.ops.primitives.fused_elementwise import FusedElementwise
from lamina.spec import Policy, ShapeError, Spec, bfloat16, float16, float32
from tests.backends.cuda.norm.test_row_norm_fusion import check, drawn
from tests.helpers.planned import H200

CUDA = backend(H200)
RMS, LAYER = RmsNormGrad(1), LayerNormGrad(1)
BOTH = FusedElementwise((Cast(float32), Cast(float32), Add()), ((0,), (1,), (~0, ~1)))


def given(norm: Any, rows: tuple[int, ...], width: int, count: int, *, added: bool) -> list[Spec]:
    """`count` tensors in g's place (of half types where there are several), x, scale, statistics, what is added."""
    x = Spec((*rows, width), float32)
    arriving = [Spec(x.shape, bfloat16 if count > 1 else float32)] * count
    statistics = [Spec(rows, float32)] * (1 + norm.centred)
    return [*arriving, x, Spec((width,), float32), *statistics, *[x] * added]


@pytest.mark.parametrize("sample", list(SteppedNormGrad.samples()), ids=str)
def test_samples(sample: Sample) -> None:
    (dtype,) = sample.dtypes
    check(sample.op, [Spec(a.shape, a.dtype or dtype) for a in sample.args])


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("width", [1, 8, 33, 300, 768, 1024])
@pytest.mark.parametrize("norm", [RMS, LAYER], ids=str)
def test_rows_of_any_width(norm: Any, width: int, aligned: bool) -> None:
    whole = SteppedNormGrad(norm, bfloat16, True, True, BOTH)
    plan = check(whole, given(norm, (3,), width, 2, added=True), aligned=aligned)
    assert plan.aliases == {0: 0, len(plan.outputs) - 1: len(plan.inputs) - 1}
    check(SteppedNormGrad(norm, float16), given(norm, (3,), width, 1, added=False), aligned=aligned)


@pytest.mark.parametrize("count", [1, 70, 3000])
def test_any_number_of_rows(count: int) -> None:
    check(SteppedNormGrad(RMS, bfloat16, True, True, BOTH), given(RMS, (count,), 24, 2, added=True))


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("norm", [RMS, LAYER], ids=str)
def test_long_rows_take_the_steps_one_after_the_other(norm: Any, aligned: bool) -> None:
    for op, count in (
        (SteppedNormGrad(norm, bfloat16, True, True, BOTH), 2),
        (SteppedNormGrad(norm, float32, True), 1),
        (SteppedNormGrad(norm, float32, before=BOTH), 2),
        (SteppedNormGrad(norm, bfloat16, keeps=True), 1),
    ):
        plan = check(op, given(norm, (3,), 1100, count, added=op.added), aligned=aligned)
        assert plan.parts


def test_no_rows() -> None:
    check(SteppedNormGrad(LAYER, bfloat16, True, True, BOTH), given(LAYER, (0,), 24, 2, added=True))


def test_what_has_no_kernel() -> None:
    specs = given(RMS, (3,), 24, 1, added=True)
    halves = [Spec(s.shape, bfloat16) if s.shape == (3, 24) else s for s in specs]
    with pytest.raises(NoKernel, match="no wider"):
        CUDA.plan(SteppedNormGrad(RMS, float32, True), halves, Policy())
    with pytest.raises(ShapeError, match="computed of and added to"):
        SteppedNormGrad(RMS, float32, True).infer(*specs[:-1], Spec((3, 23), float32))


# ------------------------------------------------------------------------------------------------------------ graphs
def stepped(graph: Graph) -> list[SteppedNormGrad]:
    return [n.op for n in graph.nodes if isinstance(n.op, SteppedNormGrad)]


def optimized(fn: Callable[..., Any], specs: list[Spec], within: float = 1e-5) -> Graph:
    """The graph after all passes (proven in float64). within: of the largest number, how far results differ."""
    graph = trace(fn, *specs)
    better = optimize(graph, CUDA)
    arrays = [drawn(s, i) / max(1, s.shape[0] ** 0.5) for i, s in enumerate(specs)]
    given = [a.astype(s.dtype.numpy) for a, s in zip(arrays, specs, strict=True)]
    ways = [compile(g, "cpu", backend="reference", optimize=False)(*given) for g in (better, graph)]
    for found, wanted in zip(*ways, strict=True):
        a, b = (y.numpy().astype(np.float64) for y in (found, wanted))
        assert np.abs(a - b).max() <= within * np.abs(b).max()
    return better


def block(norm: Any, stream: Any, scales: list[Any], weights: list[Any]) -> Any:
    """Two products of the norm of a residual stream in a half type, whose sum is added to it."""
    y = bind(norm, stream, *scales)[0]
    one, two = (ops.matmul(y.to(dtype="bfloat16"), w) for w in weights[:2])
    return stream + ops.matmul(one * two, weights[2]).float()


@pytest.mark.feature("B013")
@pytest.mark.parametrize("norm", [RmsNorm(1, 1e-6), LayerNorm(1, 1e-5)], ids=str)
def test_blocks_of_a_transformer(norm: Any) -> None:
    """Between two blocks a gradient is one pass: of both products' gradients, with the stream's, in both types."""
    count = 1 + norm.centred

    def step(x: Any, g: Any, *rest: Any) -> list[Any]:
        scales, weights = list(rest[: 3 * count]), list(rest[3 * count :])
        y = x.float()
        for k in range(3):
            y = block(norm, y, scales[k * count : (k + 1) * count], weights[3 * k : 3 * k + 3])
        return list(gradients(y, [x, *scales, *weights], [g]))

    small, w = [Spec((32,), float32)] * 3 * count, [Spec((32, 32), bfloat16)] * 9
    better = optimized(step, [Spec((6, 32), bfloat16), Spec((6, 32), float32), *small, *w], 0.03)
    found = stepped(better)
    assert len(found) == 3
    assert [(op.added, op.dtype, op.keeps) for op in found] == [
        (True, bfloat16, True),
        (True, bfloat16, True),
        (True, bfloat16, False),
    ]
    assert all(op.before is not None and op.count == 2 for op in found)
    assert not [n for n in better.nodes if n.op.name in ("rms_norm_grad", "layer_norm_grad")]


def test_what_stays_apart() -> None:
    """A sum that is made later, a gradient that others read, roundings to two types, long rows."""
    specs = [Spec((4, 24), float32)] * 3 + [Spec((24,), float32), Spec((4,), float32)]

    def grad(g: Any, x: Any, s: Any, r: Any) -> Any:
        return bind(RMS, g, x, s, r)[0]

    later = optimized(lambda g, x, h, s, r: [(d := grad(g, x, s, r)) + ops.exp(d), h], specs)
    assert stepped(later) == []
    read = optimized(lambda g, x, h, s, r: [(d := grad(g, x, s, r)) + h, d], specs)
    assert stepped(read) == []
    two = optimized(lambda g, x, h, s, r: [(d := grad(g, x, s, r)).half(), d.to(dtype="bfloat16"), h], specs)
    assert stepped(two) == []
    shared = optimized(lambda g, x, h, s, r: [grad(t := g * h, x, s, r), ops.sum(t)], specs)
    assert stepped(shared) == []
    long = [Spec((2, 1100), float32)] * 3 + [Spec((1100,), float32), Spec((2,), float32)]
    assert stepped(optimized(lambda g, x, h, s, r: [grad(g, x, s, r) + h], long)) == []
    assert len(stepped(optimized(lambda g, x, h, s, r: [grad(g, x, s, r) + h], specs))) == 1
