"""Plans of attention on parts of other tensors: values of own kernels, layouts, and what is copied."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lamina.backends import worthwhile
from lamina.backends.cuda.attention import attention
from lamina.backends.cuda.attention.parted_attention_fusion import PARTED_ATTENTION, PartedAttention
from lamina.backends.reference import run_reference
from lamina.graph import Graph
from lamina.graph.passes.fusion import fuse_patterns
from lamina.graph.passes.pattern import Report
from lamina.ops.primitives import Attention, AttentionGrad, Slice
from lamina.spec import DType, Policy, Spec, bfloat16, contiguous, dense, float16, float32, float64
from tests.backends.cuda.attention.test_parted_attention_fusion import CASES, channels, traced
from tests.backends.cuda.attention.test_windows import agree
from tests.helpers.emulator import run_plan
from tests.helpers.stand_in import CUDA, StandIn

rng = np.random.default_rng(0)


def parted(graph: Graph) -> tuple[PartedAttention, PartedAttention]:
    """The fused ops of attention and of its gradient."""
    better = fuse_patterns(graph, [PARTED_ATTENTION], StandIn(), Report())
    found = [node.op for node in better.nodes if isinstance(node.op, PartedAttention)]
    first, second = sorted(found, key=lambda op: isinstance(op.unfused, AttentionGrad))
    return first, second


@pytest.fixture
def only_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all formulations that are offered, Lamina's kernels."""
    chosen = attention.choose

    def choose(problem: Any, *rest: Any) -> Any:
        own = tuple(one for one in problem.formulations if one.name in ("windows", "tiles"))
        return chosen(replace(problem, formulations=own), *rest)

    monkeypatch.setattr(attention, "choose", choose)


@pytest.mark.usefixtures("only_own")
@pytest.mark.parametrize(
    ("queries", "dtype"), [(5, bfloat16), (5, float16), (70, bfloat16)], ids=["bf16", "fp16", "tiles"]
)
@pytest.mark.parametrize(("parts", "wide", "beside"), CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_values(parts: Callable[..., Any], wide: int, beside: int, queries: int, dtype: DType) -> None:
    """Of own kernels, emulated: q, k and v at strides and offsets, results without gaps."""
    graph, _ = traced(parts, wide, beside, False, queries)
    op, grad = parted(graph)
    node = next(n for n in fuse_patterns(graph, [PARTED_ATTENTION], StandIn(), Report()).nodes if n.op == op)
    arrays = [rng.standard_normal(v.shape).astype(dtype.numpy) for v in node.inputs]
    specs = [Spec(a.shape, dtype) for a in arrays]
    plan = CUDA.plan(op, specs, Policy())
    assert plan.label.endswith("windows" if queries == 5 else "tiles")
    wide_arrays = [a.astype(np.float64) for a in arrays]
    o, stats = run_reference(op, wide_arrays, float64)
    found = run_plan(plan, arrays)
    agree(found[0], o, dtype, 2)
    g = rng.standard_normal(o.shape).astype(dtype.numpy)
    given = [*arrays, o.astype(dtype.numpy), stats.astype(np.float32), g]
    kinds = [*[dtype] * (len(arrays) + 1), float32, dtype]
    plan = CUDA.plan(grad, [Spec(a.shape, k) for a, k in zip(given, kinds, strict=True)], Policy())
    wanted = run_reference(grad, [*wide_arrays, o, stats, g.astype(np.float64)], float64)
    for y, ref in zip(run_plan(plan, given), wanted, strict=True):
        agree(y, ref, dtype, 8)


def test_features_that_lie_among_channels_are_read_there() -> None:
    """A convolution's result is channels last; asked for one, the plan wants it so."""
    graph, _ = traced(channels, 48, 8, False)
    op, _ = parted(graph)
    shape = (2, 2, 24, 5)
    innermost = dense(shape, (0, 1, 3, 2))
    for given in (Spec(shape, bfloat16), Spec(shape, bfloat16, innermost), Spec(shape, bfloat16).fixed):
        assert CUDA.plan(op, [given], Policy()).inputs[0].physical == innermost
    image = Spec(shape, bfloat16, dense(shape, (0, 3, 1, 2)))
    assert CUDA.plan(op, [image], Policy()).inputs[0].physical == image.physical


@pytest.mark.parametrize(("begin", "dtype"), [(3, bfloat16), (8, float32), (1, float64)], ids=str)
def test_parts_that_no_kernel_reads_are_copied(begin: int, dtype: DType) -> None:
    """They begin between accesses, or have a type whose kernels read whole tensors: fusing them does not pay."""
    op = _sliced(begin)
    plan = CUDA.plan(op, [Spec((1, 1, 4, n), dtype) for n in (16, 8)], Policy())
    assert worthwhile(plan)
    assert [s.physical for s in plan.inputs] == [contiguous((1, 1, 4, n)) for n in (16, 8)]


def _sliced(begin: int) -> PartedAttention:
    """Attention of eight features of sixteen as q and v, and all of a second tensor as k."""
    cut = (Slice((0, 0, 0, begin), (1, 1, 4, begin + 8), (1, 1, 1, 1)),)
    return PartedAttention(Attention(0.5), (0, 1, 0), cut, (), cut)
