"""Rules for networks on sequences: the same numbers, fewer passes over memory."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops
from lamina.backends import Backend, Plan, get
from lamina.graph import Graph, gradients, trace
from lamina.graph.passes.attention import (
    attend_jointly,
    join_gradients,
    join_parts,
    reshape_behind,
    sequence_rules,
)
from lamina.graph.passes.manager import drop_identities
from lamina.graph.passes.rewrite import rewrite
from lamina.ops.core import Array, Op
from lamina.spec import Policy, Spec

rng = np.random.default_rng(0)


class Joint(Backend):
    """The reference backend, with word of a kernel for attention on a joint projection."""

    name = "joint"

    def plan(self, op: Op, specs: Sequence[Spec], policy: Policy) -> Plan:
        return get(self.device, "reference").plan(op, specs, policy)

    def reorder(self, source: Spec, target: Spec) -> Plan:
        return get(self.device, "reference").reorder(source, target)

    def supports(self, op: type[Op]) -> str:
        return "kernel"


def names(graph: Graph) -> Counter[str]:
    return Counter(n.op.name for n in graph.nodes)


def same(graph: Graph, better: Graph, arrays: Sequence[Array]) -> None:
    for found, expected in zip(better(*arrays), graph(*arrays), strict=True):
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-10, atol=1e-12)


def layer(batch_first: bool, causal: bool = False) -> tuple[Graph, list[Array]]:
    """A layer of an encoder, forward and backward, in float64."""
    net = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=batch_first).to("float64")
    parameters = dict(net.named_parameters())

    def forward(x: Any, g: Any, *values: Any) -> Any:
        with nn.substitute(net, dict(zip(parameters, values, strict=True))):
            y = net(x, is_causal=causal)
        return [y, *gradients(y, [x, *values], [g])]

    arrays = [rng.standard_normal((3, 5, 8)) for _ in range(2)]
    arrays += [rng.standard_normal(p.shape) / 2 for p in parameters.values()]
    return trace(forward, *arrays), arrays


@pytest.mark.feature("B022")
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_reads_the_projection_and_writes_its_gradient(batch_first: bool, causal: bool) -> None:
    graph, arrays = layer(batch_first, causal)
    better = graph
    for rule in (reshape_behind, join_parts, attend_jointly, join_gradients):
        better = rewrite(better, rule)
    better = drop_identities(better)
    found = names(better)
    assert found["joint_attention"] == found["joint_attention_grad"] == 1
    assert not {"slice", "pad", "concat", "attention", "attention_grad"} & set(found)
    same(graph, better, arrays)


@pytest.mark.feature("B011")
def test_steps_move_to_the_products() -> None:
    graph, arrays = layer(True)
    better = rewrite(graph, reshape_behind)
    for node in better.nodes:
        if node.op.name in ("relu", "relu_grad"):
            assert node.outputs[0].ndim == 2, node
    same(graph, better, arrays)


def test_only_backends_with_a_kernel_attend_jointly() -> None:
    graph, arrays = layer(True)
    here = sequence_rules(graph, get(lm.device("cpu"), "reference"))
    assert names(here)["attention"] == 1
    there = sequence_rules(graph, Joint(lm.device("cpu")))
    assert names(there)["joint_attention"] == 1
    same(graph, here, arrays)
    same(graph, there, arrays)


def test_padded_parts_are_joined() -> None:
    def f(x: Any) -> Any:
        parts = ops.split(x, [2, 1, 4], 1)
        y = sum(ops.sum(ops.sin(p) * (i + 1.0)) for i, p in enumerate(parts))
        return gradients(y, [x])

    arrays = [rng.standard_normal((3, 7, 2))]
    graph = trace(f, *arrays)
    better = rewrite(graph, join_parts)
    assert names(graph)["pad"] == 3
    assert names(better)["pad"] == 0
    assert names(better)["concat"] == 1
    same(graph, better, arrays)


def overlapping(x: Any) -> Any:
    return [ops.pad(x, (0, 2)) + ops.pad(x, (1, 1))]


def with_a_gap(x: Any) -> Any:
    return [ops.pad(x, (0, 5)) + ops.pad(x, (5, 0))]


def with_a_value(x: Any) -> Any:
    return [ops.pad(x, (0, 4), value=1.0) + ops.pad(x, (4, 0))]


@pytest.mark.parametrize("f", [overlapping, with_a_gap, with_a_value])
def test_other_sums_of_pads_stay(f: Callable[[Any], Any]) -> None:
    graph = trace(f, rng.standard_normal(4))
    assert rewrite(graph, join_parts).nodes == graph.nodes


def test_thirds_in_another_order_stay_apart() -> None:
    def f(x: Any) -> Any:
        k, q, v = (ops.permute(p.reshape((2, 3, 2, 4)), (0, 2, 1, 3)) for p in ops.chunk(x, 3, -1))
        return [ops.attention(q, k, v)]

    graph = trace(f, rng.standard_normal((2, 3, 24)))
    assert names(rewrite(graph, attend_jointly)) == names(graph)


def test_broadcasts_over_reshaped_axes_stay() -> None:
    def f(x: Any, w: Any, b: Any) -> Any:
        return [ops.matmul(x, w).reshape((2, 3, 4)) + b]

    arrays = [rng.standard_normal(s) for s in ((6, 5), (5, 4), (3, 1))]
    graph = trace(f, *arrays)
    assert rewrite(graph, reshape_behind).nodes == graph.nodes
