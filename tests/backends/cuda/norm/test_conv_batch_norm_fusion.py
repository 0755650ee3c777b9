"""Convolutions take the sums of batch norms along where that is faster, and ReLU masks are packed; values stay."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import backends, ops
from lamina.backends import Fusion
from lamina.backends.cuda.norm import conv_batch_norm
from lamina.backends.cuda.norm.batch_norm_grad_mask_fusion import BATCH_NORM_GRAD_MASK
from lamina.backends.cuda.norm.conv_batch_norm_fusion import (
    CONV_BATCH_NORM,
    DATA_GRAD_BATCH_NORM,
    PACKED_RELU_MASK,
    ConvNorm,
    DataGradNorm,
)
from lamina.backends.cuda.select import formulations, known
from lamina.backends.cuda.select.formulations import Problem
from lamina.cudnn import Choice, PlanDatabase
from lamina.graph import Graph, gradients, trace
from lamina.graph.passes import fusion
from lamina.graph.passes.fuse_batch_norm import fuse_batch_norm
from lamina.graph.passes.fusion import fuse_elementwise, fuse_patterns
from lamina.graph.passes.manager import optimize
from lamina.graph.passes.pattern import Report
from lamina.ops.core import Op
from lamina.ops.primitives import BatchNorm, BatchNormGrad, Conv, ConvDataGrad, Fused, Window
from lamina.spec import Policy, Spec, bfloat16, channels_last, float32
from tests.helpers.norm_networks import alike, names, network, operands
from tests.helpers.planned import H200
from tests.helpers.stand_in import StandIn

HEURISTIC, POINT = Policy(algorithm="heuristic"), Window((1, 1), ((0, 0), (0, 0)), (1, 1))


def fused(graph: Graph, backend: StandIn, *fusions: Fusion) -> tuple[Graph, list[str]]:
    """The graph after these fusions, and what was refused."""
    report = Report()
    return fuse_patterns(graph, fusions, backend, report), report.refused


def prepared(graph: Graph) -> Graph:
    return fused(fuse_batch_norm(graph), StandIn(), BATCH_NORM_GRAD_MASK)[0]


@pytest.mark.parametrize("verdict", ["fused", "unfused", ""])
@pytest.mark.parametrize("join", [False, True])
def test_statistics_behind_the_convolution(verdict: str, join: bool) -> None:
    """One node where that is faster; the convolution's result is still there for the gradient."""
    arrays = operands()
    with lm.policy(algorithm="fastest"):
        graph = prepared(trace(network(ops.relu, join), *arrays))
    backend = StandIn(verdict)
    better, refused = fused(graph, backend, CONV_BATCH_NORM)
    merged = verdict == "fused"
    assert names(better).count("conv_norm") == merged
    assert names(better).count("batch_norm") == names(better).count("conv") - 1 == 1 - merged
    reason = {"fused": [], "unfused": ["the unfused form is as fast"], "": ["nothing for it"]}[verdict]
    assert [line.rpartition(": ")[2] for line in refused] == reason
    assert {policy.algorithm for _, policy in backend.asked} == {"fastest"}
    alike(graph, better, arrays)


def joined(x: Any, w: Any, scale: Any, bias: Any, mean: Any, var: Any, z: Any) -> Any:
    """A block whose input is relu of a join: x -> norm + z -> relu -> convolution, and the way around it."""
    y, mean, var = ops.batch_norm_with_statistics(ops.conv2d(x, w), mean, var, scale, bias, True)
    y = ops.relu(z + y)
    out = ops.conv2d(y, w) + y
    return [*gradients(ops.sum(out * out), [x, w, scale, bias, z]), mean, var]


def point_operands() -> list[Any]:
    rng = np.random.default_rng(5)
    small = [rng.uniform(0.5, 1.5, 8) for _ in range(4)]
    big = [rng.standard_normal((2, 8, 5, 4)) for _ in range(2)]
    return [big[0], rng.standard_normal((8, 8, 1, 1)), *small, big[1]]


def only_data_grads(op: Op, specs: Sequence[Any]) -> str:
    """What takes elementwise steps."""
    return "" if isinstance(op, Fused) and not isinstance(op.ops[0], ConvDataGrad) else "fused"


@pytest.mark.parametrize("verdict", ["fused", "unfused", ""])
def test_sums_behind_the_data_gradient(verdict: str) -> None:
    """One node with all that lies between, where the backend's kernel wins; the gradient itself stays an output."""
    arrays = point_operands()
    with lm.policy(algorithm="fastest"):
        plain = prepared(trace(joined, *arrays))
    graph = fuse_elementwise(plain, StandIn(only_data_grads))
    better, refused = fused(graph, StandIn(verdict), DATA_GRAD_BATCH_NORM)
    merged = verdict == "fused"
    assert names(better).count("data_grad_norm") == merged
    assert names(better).count("batch_norm_grad") == 1 - merged
    assert len(refused) == 1 - merged
    if merged:  # a CPU has no kernel for the fused gradient alone
        alike(plain, better, arrays)


@pytest.mark.parametrize("half", [True, False])
def test_masks_are_packed(half: bool) -> None:
    """Half types: the norm writes the mask and the data gradient reads it; the results stay the same."""
    arrays = [a.astype(np.float16 if half and a.ndim == 4 else np.float32) for a in point_operands()]
    with lm.policy(algorithm="fastest"):
        graph = prepared(trace(joined, *arrays))
    graph, _ = fused(graph, StandIn(), CONV_BATCH_NORM)
    graph, _ = fused(fuse_elementwise(graph, StandIn(only_data_grads)), StandIn(), DATA_GRAD_BATCH_NORM)
    better, _ = fused(graph, StandIn(), PACKED_RELU_MASK)
    (forward,) = [node for node in better.nodes if isinstance(node.op, ConvNorm)]
    (backward,) = [node for node in better.nodes if isinstance(node.op, DataGradNorm)]
    assert (forward.op.bits, backward.op.bits) == (half, half)  # type: ignore[attr-defined]
    assert [any(v is bits for v in backward.inputs) for bits in forward.outputs[6:]] == [True] * half
    assert names(graph) == names(better)
    for found, expected in zip(better(*arrays), graph(*arrays), strict=True):
        np.testing.assert_array_equal(found.numpy(), expected.numpy())
    assert fused(graph, StandIn(""), PACKED_RELU_MASK)[0] is graph


def test_without_timing_nothing_is_fused() -> None:
    with lm.policy(algorithm="heuristic"):
        graph, backend = trace(network(ops.relu), *operands()), StandIn()
    assert fused(graph, backend, CONV_BATCH_NORM, DATA_GRAD_BATCH_NORM) == (graph, [])
    assert backend.asked == []


@pytest.mark.feature("F081", "B013")
@pytest.mark.parametrize(
    ("batch", "depth", "unfused_first"), [(32, 64, True), (128, 64, False), (128, 512, True)]
)
@pytest.mark.parametrize("bits", [False, True])
def test_own_kernels_come_first_where_the_result_is_read_from_memory(
    batch: int, depth: int, unfused_first: bool, bits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing is known: results beyond the cache of short sums; with a packed mask there is no unfused form."""
    found: list[tuple[str, ...]] = []
    monkeypatch.setattr(known, "database_of", lambda device: None)

    def noted(problem: Problem, *rest: Any) -> Any:
        found.append(tuple(w.name for w in problem.formulations))
        return formulations.choose(problem, *rest)

    monkeypatch.setattr(conv_batch_norm, "choose", noted)
    last = [Spec((batch, c, 56, 56), bfloat16, channels_last((batch, c, 56, 56))) for c in (depth, 256)]
    small, w = Spec((256,), float32), Spec((256, depth, 1, 1), bfloat16)
    apart = ("unfused",) * (not bits)
    norm = ConvNorm(Conv(POINT), BatchNorm(1e-5, 0.1, True, True), bits)
    plan = backends.get(H200).plan(norm, (last[0], w, *[small] * 4, last[1]), HEURISTIC)
    assert found == [(*apart, "own", "statistics") if unfused_first else ("own", *apart, "statistics")]
    assert bool(plan.parts) == (found[0][0] == "unfused")
    back = DataGradNorm(ConvDataGrad(POINT, (56, 56)), BatchNormGrad(relu=True))
    turned = Spec((depth, 256, 1, 1), bfloat16)
    plan = backends.get(H200).plan(back, (last[0], turned, last[1], *[small] * 4), HEURISTIC)
    assert found[1:] == [("unfused", "own") if unfused_first else ("own", "unfused")]
    assert bool(plan.parts) == unfused_first


@pytest.mark.feature("F081", "B013")
@pytest.mark.parametrize("way", ["", "unfused", "own"])
def test_auto_joins_what_is_known_to_be_faster_joined(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A 1x1 convolution and the norm behind it: one kernel where that was measured, two where nothing is known."""
    x, w, small = Spec((32, 64, 28, 28), bfloat16), Spec((256, 64, 1, 1), bfloat16), Spec((256,), float32)

    def block(x: Any, w: Any, *norm: Any) -> Any:
        return ops.batch_norm_with_statistics(ops.conv2d(x, w), norm[2], norm[3], norm[0], norm[1], True)

    asked: list[Problem] = []
    choose = formulations._choose

    def noted(problem: Problem, *rest: Any) -> Any:
        asked.append(problem)
        return choose(problem, *rest)

    fusion._unprofitable.cache_clear()  # another test may have asked
    with lm.policy(algorithm="fastest"), monkeypatch.context() as patch:
        patch.setattr(formulations, "_choose", noted)
        optimize(trace(block, x, w, *[small] * 4), backends.get(H200))
    fusion._unprofitable.cache_clear()
    (problem,) = {p.place: p for p in asked if p.label.startswith("conv+")}.values()
    assert [w.name for w in problem.formulations] == ["unfused", "own", "statistics"]
    known_plans = {problem.place.nature: {problem.place.sizes: Choice(way)}} if way else {}
    monkeypatch.setattr(known, "database_of", lambda device: PlanDatabase("x", "9.19", {}, known_plans))
    better = optimize(trace(block, x, w, *[small] * 4), backends.get(H200))
    fusion._unprofitable.cache_clear()
    assert names(better).count("conv_norm") == (way == "own")
