"""Max-pools go into the batch norms before them, and their gradients likewise; what others read stays."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import backends, ops
from lamina.backends.cuda.norm.batch_norm_max_pool_fusion import (
    BATCH_NORM_MAX_POOL,
    BATCH_NORM_MAX_POOL_GRAD,
    NormPool,
)
from lamina.graph import Graph, gradients, trace
from lamina.graph.passes.fusion import fuse_patterns
from lamina.graph.passes.manager import optimize, refusals
from lamina.graph.passes.pattern import Report
from lamina.ops import primitives
from lamina.ops.core import bind
from lamina.ops.primitives import BatchNorm, Fused, MaxPool, Window
from lamina.runtime import Device
from tests.helpers.stand_in import StandIn, Verdict

rng = np.random.default_rng(0)


def operands() -> list[Any]:
    """x, a weight, scale, bias, running mean and variance."""
    arrays = [rng.standard_normal(s) for s in ((2, 8, 9, 7), (8, 8, 1, 1), (8,), (8,), (8,), (8,))]
    arrays[5] = np.abs(arrays[5]) + 0.5
    return arrays


def network(act: Callable[[Any], Any] = ops.relu) -> Callable[..., Any]:
    """Convolution, batch norm, activation, max-pool, convolution; the gradients, the running statistics."""

    def f(x: Any, w: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
        y, mean, var = ops.batch_norm_with_statistics(ops.conv2d(x, w), mean, var, scale, bias, True)
        y = ops.conv2d(ops.max_pool2d(act(y), 3, 2, 1), w)
        return [*gradients(ops.sum(y * y), [x, w, scale, bias]), mean, var]

    return f


def names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


def optimized(graph: Graph, backend: StandIn) -> tuple[Graph, list[str]]:
    """The graph as the passes leave it where only norms and pools are fused, and what was refused of these."""
    backend.verdict, said = _except_steps(backend.verdict), list[Report]()
    better = optimize(graph, backend, reports=said)
    return better, [line for line in refusals(said) if "pool" in line]


def _except_steps(verdict: Verdict) -> Verdict:
    return lambda op, specs: "" if isinstance(op, Fused) else verdict(op, specs)


def pooled(graph: Graph, backend: StandIn) -> tuple[Graph, list[str]]:
    """The graph after both fusions, and what was refused."""
    report = Report()
    return fuse_patterns(
        graph, [BATCH_NORM_MAX_POOL, BATCH_NORM_MAX_POOL_GRAD], backend, report
    ), report.refused


def alike(graph: Graph, better: Graph, arrays: list[Any]) -> None:
    for found, expected in zip(better(*arrays), graph(*arrays), strict=True):
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "act", [ops.relu, lambda x: ops.clipped_relu(x, 0.8), lambda x: x], ids=["relu", "clipped", "none"]
)
def test_a_training_step(act: Callable[[Any], Any]) -> None:
    """One node forward, one backward; neither the norm's result nor the pool's gradient is left."""
    arrays, backend = operands(), StandIn()
    graph = trace(network(act), *arrays)
    better, refused = optimized(graph, backend)
    found = names(better)
    assert found.count("norm_pool") == found.count("pool_norm_grad") == 1
    assert not {"batch_norm", "max_pool", "batch_norm_grad", "max_pool_grad"} & set(found)
    assert refused == []
    alike(graph, better, arrays)


def test_without_gradients_no_index_is_written() -> None:
    def forward(x: Any, *small: Any) -> Any:
        y, mean, var = ops.batch_norm_with_statistics(x, small[2], small[3], small[0], small[1], True)
        pooled, _ = bind(
            primitives.MaxPool((3, 3), primitives.Window((2, 2), ((1, 1), (1, 1)), (1, 1)), True), ops.relu(y)
        )
        return pooled, mean, var

    x, _, *small = operands()
    graph = trace(forward, x, *small)
    better, _ = optimized(graph, StandIn())
    (node,) = better.nodes
    assert isinstance(node.op, NormPool)
    assert not node.op.pool.index
    assert len(node.outputs) == 5
    alike(graph, better, [x, *small])


@pytest.mark.parametrize(
    ("verdict", "reason"), [("unfused", "the unfused form is as fast"), ("", "nothing for it")]
)
def test_both_stay_where_that_is_as_fast(verdict: str, reason: str) -> None:
    with lm.policy(algorithm="fastest"):
        graph = trace(network(lambda x: x), *operands())
    backend = StandIn(verdict)
    better, refused = pooled(graph, backend)
    assert better is graph
    assert [line.endswith(reason) for line in refused] == [True, True]
    assert {policy.algorithm for _, policy in backend.asked} == {"fastest"}


def test_what_others_read_stays() -> None:
    """The norm's result or the pool's gradient with a second reader, or given back; another policy."""
    x, _, *small = operands()
    pool = primitives.MaxPool((3, 3), primitives.Window((2, 2), ((1, 1), (1, 1)), (1, 1)), True)
    spread = primitives.MaxPoolGrad(pool.kernel, pool.window, x.shape[2:])

    def norm(x: Any, small: Any) -> Any:
        return bind(primitives.BatchNorm(1e-5), x, *small)

    def read_twice(x: Any, *small: Any) -> Any:
        y = norm(x, small)[0]
        return bind(pool, y)[0], ops.sum(y)

    def given_back(x: Any, *small: Any) -> Any:
        y = norm(x, small)[0]
        return bind(pool, y)[0], y

    def measured(x: Any, *small: Any) -> Any:
        y = norm(x, small)[0]
        with lm.policy(algorithm="fastest"):
            return bind(pool, y)[0]

    def gradient_read_twice(x: Any, *small: Any) -> Any:
        pooled, index = bind(pool, x)
        g = bind(spread, pooled, index)[0]
        return bind(primitives.BatchNormGrad(), g, x, small[0], small[1], small[3])[0], ops.sum(g)

    def of_statistics(x: Any, *small: Any) -> Any:
        mean = norm(x, small)[1]
        return bind(pool, ops.expand(mean.reshape((1, 8, 1, 1)), x.shape))[0]

    for f in (read_twice, given_back, measured, gradient_read_twice, of_statistics):
        graph, backend = trace(f, x, *small), StandIn()
        assert pooled(graph, backend)[0] is graph, f.__name__
        assert backend.asked == []


def test_compiled_for_a_host_nothing_changes() -> None:
    """oneDNN has no kernel for both."""
    arrays = [a.astype(np.float32) for a in operands()]
    graph = trace(network(), *arrays)
    better = optimize(graph, backends.get(Device("cpu")))
    assert not {"norm_pool", "pool_norm_grad"} & set(names(better))
    compiled = lm.compile(graph, device="cpu")
    for found, expected in zip(compiled(*arrays), graph(*arrays), strict=True):
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("read", [True, False])
def test_an_index_that_nobody_reads_is_left_out(index: bool, read: bool) -> None:
    kernel, window = (3, 3), Window((2, 2), ((1, 1), (1, 1)), (1, 1))
    op = NormPool(BatchNorm(1e-3, 0.1), MaxPool(kernel, window, index))
    pruned = op.prune([True] * 5 + [read] * index)
    assert isinstance(pruned, NormPool)
    assert pruned.pool.index == (index and read)
    assert pruned.norm == op.norm
