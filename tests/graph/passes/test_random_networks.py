"""Random training graphs: whatever the passes merge, results stay as they are, in float64 to the last few bits."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from lamina import backends
from lamina.backends import NoKernel, Plan
from lamina.backends.cuda import backend as cuda_backend
from lamina.graph import Graph, compile
from lamina.graph.passes.manager import optimize
from lamina.ops.core import Array, Op
from lamina.ops.primitives import ConvNorm, DataGradNorm, Fused, NormPool, PoolNormGrad
from lamina.runtime import Device
from lamina.spec import Policy, Spec
from tests.helpers.planned import H200
from tests.helpers.random_networks import Network

CUDA = cuda_backend(H200)
MERGED = (Fused, ConvNorm, DataGradNorm, NormPool, PoolNormGrad)


class Fickle(backends.Backend):
    """Supports what a GPU does. What several ops become it refuses at random, or finds no faster than them apart."""

    name = "fickle"

    def __init__(self, seed: int) -> None:
        super().__init__(Device("cpu"))
        self.rng = np.random.default_rng(seed)
        self.known: dict[str, float] = {}

    def plan(self, op: Op, specs: Sequence[Spec], policy: Policy) -> Plan:
        chance = self.known.setdefault(f"{op} {specs}", float(self.rng.random()))
        if isinstance(op, MERGED) and chance < 0.2:
            raise NoKernel("refused")
        apart = isinstance(op, MERGED) and chance < 0.35
        outputs = tuple(s.fixed for s in op.infer(*specs))
        label = "kernel apart" if apart else "kernel together"
        return Plan(tuple(s.fixed for s in specs), outputs, lambda call: lambda: None, label=label)

    def reorder(self, source: Spec, target: Spec) -> Plan:
        raise AssertionError("passes ask for plans of ops alone")

    def supports(self, op: type[Op]) -> str:
        return CUDA.supports(op)


def results(graph: Graph, arrays: Sequence[Array]) -> list[Array]:
    """By the references."""
    return [v.numpy() for v in compile(graph, "cpu", backend="reference", optimize=False)(*arrays)]


@pytest.mark.parametrize("start", range(0, 200, 100))
def test_passes_for_a_gpu_change_no_result(start: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(start, start + 100):
        graph, arrays = Network(np.random.default_rng(seed)).graph()
        better = optimize(graph, Fickle(seed))
        seen.update({node.op.name for node in better.nodes})
        for found, wanted in zip(results(better, arrays), results(graph, arrays), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-7, atol=1e-8, err_msg=f"seed {seed}")
    assert {"fused", "conv_norm", "data_grad_norm", "norm_pool", "pool_norm_grad"} <= set(seen)


@pytest.mark.parametrize("start", range(0, 40, 10))
def test_memory_that_is_dead_is_not_read(start: int) -> None:
    """Compiled with what is dead poisoned: the same as with all kept."""
    for seed in range(start, start + 10):
        graph, arrays = Network(np.random.default_rng(seed)).graph()
        run = compile(graph, "cpu", backend="reference", poison=True)
        for _ in range(2):
            found = [v.numpy() for v in run(*arrays)]
            for one, wanted in zip(found, results(graph, arrays), strict=True):
                np.testing.assert_allclose(one, wanted, rtol=1e-7, atol=1e-8, err_msg=f"seed {seed}")
