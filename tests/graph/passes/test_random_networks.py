"""Random training graphs: whatever the passes merge, results stay as they are, in float64 to the last few bits."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from lamina.backends.cuda.norm.batch_norm_max_pool_fusion import NormPool, PoolNormGrad
from lamina.backends.cuda.norm.conv_batch_norm_fusion import ConvNorm, DataGradNorm
from lamina.graph import Graph, compile
from lamina.graph.passes.manager import optimize
from lamina.ops.core import Array, Op
from lamina.ops.primitives import Fused
from lamina.spec import Spec
from tests.helpers import slow_from
from tests.helpers.random_networks import Network
from tests.helpers.stand_in import StandIn

MERGED = (Fused, ConvNorm, DataGradNorm, NormPool, PoolNormGrad)


def fickle(seed: int) -> StandIn:
    """What several ops become it refuses at random, or finds no faster than them unfused."""
    rng, known = np.random.default_rng(seed), dict[str, float]()

    def verdict(op: Op, specs: Sequence[Spec]) -> str:
        chance = known.setdefault(f"{op} {specs}", float(rng.random()))
        if not isinstance(op, MERGED) or chance >= 0.35:
            return "fused"
        return "unfused" if chance >= 0.2 else ""

    return StandIn(verdict)


def results(graph: Graph, arrays: Sequence[Array]) -> list[Array]:
    """By the references."""
    return [v.numpy() for v in compile(graph, "cpu", backend="reference", optimize=False)(*arrays)]


@pytest.mark.parametrize("start", slow_from(1, range(0, 200, 100)))
def test_passes_for_a_gpu_change_no_result(start: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(start, start + 100):
        graph, arrays = Network(np.random.default_rng(seed)).graph()
        better = optimize(graph, fickle(seed))
        seen.update({node.op.name for node in better.nodes})
        for found, wanted in zip(results(better, arrays), results(graph, arrays), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-7, atol=1e-8, err_msg=f"seed {seed}")
    assert {"fused", "conv_norm", "data_grad_norm", "norm_pool", "pool_norm_grad"} <= set(seen)


@pytest.mark.parametrize("start", slow_from(2, range(0, 40, 10)))
def test_memory_that_is_dead_is_not_read(start: int) -> None:
    """Compiled with what is dead poisoned: the same as with all kept."""
    for seed in range(start, start + 10):
        graph, arrays = Network(np.random.default_rng(seed)).graph()
        run = compile(graph, "cpu", backend="reference", poison=True)
        for _ in range(2):
            found = [v.numpy() for v in run(*arrays)]
            for one, wanted in zip(found, results(graph, arrays), strict=True):
                np.testing.assert_allclose(one, wanted, rtol=1e-7, atol=1e-8, err_msg=f"seed {seed}")
