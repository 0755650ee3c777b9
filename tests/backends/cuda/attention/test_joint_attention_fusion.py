"""Attention reads the projection as it is and writes its gradient: the same numbers, no copies of thirds."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.backends import get
from lamina.backends.cuda.attention.joint_attention_fusion import (
    JOINT_ATTENTION,
    JOINT_ATTENTION_GRAD,
    STACKED_ATTENTION,
    STACKED_ATTENTION_GRAD,
    JointAttention,
)
from lamina.graph import Graph, gradients, trace
from lamina.graph.passes.attention import join_parts, reshape_behind
from lamina.graph.passes.canonicalize import drop_identities
from lamina.graph.passes.fusion import fuse_patterns
from lamina.graph.passes.manager import optimize
from lamina.graph.passes.pattern import Report
from lamina.ops.core import Array, bind
from tests.helpers.encoder import layer, names, same
from tests.helpers.stand_in import StandIn

rng = np.random.default_rng(0)


def joined(graph: Graph, backend: StandIn | None = None, report: Report | None = None) -> Graph:
    fusions = [JOINT_ATTENTION, JOINT_ATTENTION_GRAD, STACKED_ATTENTION, STACKED_ATTENTION_GRAD]
    better = fuse_patterns(
        join_parts(reshape_behind(graph)), fusions, backend or StandIn(), report or Report()
    )
    return drop_identities(better)


@pytest.mark.feature("B022")
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_reads_the_projection_and_writes_its_gradient(batch_first: bool, causal: bool) -> None:
    graph, arrays = layer(batch_first, causal)
    better = joined(graph)
    found = names(better)
    assert found["joint_attention"] == found["joint_attention_grad"] == 1
    assert not {"slice", "pad", "concat", "attention", "attention_grad"} & set(found)
    same(graph, better, arrays)


@pytest.mark.parametrize("stats", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_the_gradient_is_that_of_attention_to_the_parts(causal: bool, stats: bool) -> None:
    """By one op where the statistics are there, whose gradient nobody wants; and of its own gradient."""

    def jointly(x: Any, g: Any, h: Any) -> Any:
        y = bind(JointAttention(0.5, causal, stats), x)[0]
        (dx,) = gradients(y, [x], [g])
        return [y, dx, *gradients(dx, [x, g], [h])]

    def apart(x: Any, g: Any, h: Any) -> Any:
        y = ops.attention(*(x[i] for i in range(3)), causal=causal, scale=0.5)
        (dx,) = gradients(y, [x], [g])
        return [y, dx, *gradients(dx, [x, g], [h])]

    shape = (2, 3, 5, 4)
    arrays = [rng.standard_normal(s) for s in ((3, *shape), shape, (3, *shape))]
    graph = trace(jointly, *arrays)
    same(trace(apart, *arrays), graph, arrays)
    assert names(graph)["joint_attention_grad"] == int(stats)


def test_only_backends_with_a_kernel_attend_jointly() -> None:
    graph, _ = layer(True)
    assert names(optimize(graph, get(lm.device("cpu"), "reference")))["attention"] == 1
    assert names(optimize(graph, StandIn()))["joint_attention"] == 1


def test_a_refused_plan_is_reported() -> None:
    graph, arrays = layer(True)
    report = Report()
    better = joined(graph, StandIn(""), report)
    assert names(better)["attention"] == 1
    assert [line.partition("(")[0] for line in report.refused] == ["joint_attention", "joint_attention_grad"]
    same(graph, better, arrays)


def test_thirds_in_another_order_stay() -> None:
    def f(x: Any) -> Any:
        k, q, v = (ops.permute(p.reshape((2, 3, 2, 4)), (0, 2, 1, 3)) for p in ops.chunk(x, 3, -1))
        return [ops.attention(q, k, v)]

    graph = trace(f, rng.standard_normal((2, 3, 24)))
    assert joined(graph).nodes == graph.nodes


def test_thirds_of_several_projections_stay() -> None:
    def f(x: Any, y: Any) -> Any:
        heads = [
            ops.permute(p.reshape((2, 3, 2, 4)), (0, 2, 1, 3))
            for p in (ops.chunk(x, 3, -1)[0], *ops.chunk(y, 3, -1)[1:])
        ]
        return [ops.attention(*heads)]

    graph = trace(f, *(rng.standard_normal((2, 3, 24)) for _ in range(2)))
    assert joined(graph).nodes == graph.nodes


def stacked(order: tuple[int, int, int] = (0, 1, 2), causal: bool = False) -> tuple[Graph, list[Array]]:
    """Attention to the parts of one projection as [3, B, H, S, D], and its gradient."""

    def f(x: Any, g: Any) -> Any:
        parts = ops.unbind(ops.permute(x.reshape((2, 5, 3, 2, 4)), (2, 0, 3, 1, 4)), 0)
        y = ops.attention(*(parts[i] for i in order), causal=causal)
        y = ops.permute(y, (0, 2, 1, 3)).reshape((2, 5, 8))
        return [y, *gradients(y, [x], [g])]

    arrays = [rng.standard_normal((2, 5, n)) for n in (24, 8)]
    return trace(f, *arrays), arrays


@pytest.mark.feature("B022")
@pytest.mark.parametrize("causal", [False, True])
def test_parts_of_a_stack_are_read_where_they_lie(causal: bool) -> None:
    graph, arrays = stacked(causal=causal)
    better = joined(optimize(graph, get(lm.device("cpu"), "reference")))
    found = names(better)
    assert found["joint_attention"] == found["joint_attention_grad"] == 1
    assert not {"slice", "pad", "concat", "attention", "attention_grad"} & set(found)
    same(graph, better, arrays)


@pytest.mark.parametrize("learnt", [False, True])
@pytest.mark.parametrize("thirds", [False, True])
def test_a_bias_and_its_gradient_go_along(thirds: bool, learnt: bool) -> None:
    """As windows of an image have it, for all of a batch."""

    def f(x: Any, bias: Any, g: Any) -> Any:
        if thirds:
            parts = [ops.permute(p.reshape((2, 5, 2, 4)), (0, 2, 1, 3)) for p in ops.chunk(x, 3, -1)]
        else:
            parts = list(ops.unbind(ops.permute(x.reshape((2, 5, 3, 2, 4)), (2, 0, 3, 1, 4)), 0))
        y = ops.attention(*parts, bias)
        y = ops.permute(y, (0, 2, 1, 3)).reshape((2, 5, 8))
        return [y, *gradients(y, [x, bias] if learnt else [x], [g])]

    arrays = [rng.standard_normal(s) for s in ((2, 5, 24), (1, 2, 5, 5), (2, 5, 8))]
    graph = trace(f, *arrays)
    better = joined(optimize(graph, get(lm.device("cpu"), "reference")))
    found = names(better)
    assert found["joint_attention"] == found["joint_attention_grad"] == 1
    assert not {"slice", "pad", "concat", "attention", "attention_grad"} & set(found)
    same(graph, better, arrays)


def test_parts_of_a_stack_in_another_order_stay() -> None:
    graph, arrays = stacked((1, 0, 2))
    better = joined(optimize(graph, get(lm.device("cpu"), "reference")))
    assert names(better)["attention"] == names(better)["attention_grad"] == 1
    same(graph, better, arrays)


def test_parts_of_several_stacks_stay() -> None:
    def f(x: Any, y: Any) -> Any:
        q, k, v = x[0], x[1], y[2]
        return [ops.attention(q, k, v)]

    graph = trace(f, *(rng.standard_normal((3, 2, 2, 5, 4)) for _ in range(2)))
    assert "joint_attention" not in names(joined(graph))


def test_a_part_of_four_stays() -> None:
    graph = trace(lambda x: [ops.attention(x[0], x[1], x[2])], rng.standard_normal((4, 2, 2, 5, 4)))
    assert "joint_attention" not in names(joined(graph))
