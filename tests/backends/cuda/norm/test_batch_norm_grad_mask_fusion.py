"""relu's gradient goes into the gradient of the norm whose x tells the mask; what others read stays."""

from typing import Any

import pytest

import lamina as lm
from lamina import ops
from lamina.backends import get
from lamina.backends.cuda.norm.batch_norm_grad_mask_fusion import BATCH_NORM_GRAD_MASK
from lamina.graph import Graph, trace
from lamina.graph.passes.fuse_batch_norm import fuse_batch_norm
from lamina.graph.passes.fusion import fuse_patterns
from lamina.graph.passes.manager import optimize
from lamina.graph.passes.pattern import Report
from lamina.ops.core import bind
from lamina.ops.primitives import BatchNorm, BatchNormGrad, ReluGrad
from lamina.runtime import Device
from tests.helpers.norm_networks import CLIPPED, Activation, alike, names, network, operands
from tests.helpers.stand_in import StandIn


def masked(graph: Graph) -> Graph:
    return fuse_patterns(fuse_batch_norm(graph), [BATCH_NORM_GRAD_MASK], StandIn(), Report())


@pytest.mark.parametrize(("act", "hi"), [(ops.relu, None), (CLIPPED, 0.8)], ids=["relu", "clipped"])
def test_the_mask_is_told_from_x(act: Activation, hi: float | None) -> None:
    arrays = operands()
    graph = trace(network(act), *arrays)
    better = masked(graph)
    (backward,) = [node.op for node in better.nodes if isinstance(node.op, BatchNormGrad)]
    assert (backward.relu, backward.residual, backward.hi) == (True, False, hi)
    assert not any("relu" in name for name in names(better))
    alike(graph, better, arrays)


@pytest.mark.parametrize("act", [ops.relu, CLIPPED], ids=["relu", "clipped"])
def test_the_mask_of_a_join_stays(act: Activation) -> None:
    """Both branches read it, and x alone does not tell it."""
    arrays = operands()
    graph = trace(network(act, join=True), *arrays)
    better = masked(graph)
    (backward,) = [n.op for n in better.nodes if isinstance(n.op, BatchNormGrad)]
    assert not backward.relu
    assert sum(name.endswith("relu_grad") for name in names(better)) == 1
    alike(graph, better, arrays)


def test_a_masked_gradient_with_a_second_reader_stays() -> None:
    x, _, *small, z = operands()

    def f(x: Any, z: Any, *small: Any) -> Any:
        norm = bind(BatchNorm(1e-5, relu=True), x, *small)
        g = bind(ReluGrad(), norm[0], z)[0]
        return bind(BatchNormGrad(), g, x, small[0], *norm[1:3])[0], g

    assert names(masked(trace(f, x, z, *small))) == ["batch_norm", "relu_grad", "batch_norm_grad"]


def test_another_norms_x_stays() -> None:
    """The gradient is that of a norm of z, the mask that of a norm of x."""
    x, _, *small, z = operands()

    def f(x: Any, z: Any, *small: Any) -> Any:
        norm = bind(BatchNorm(1e-5, relu=True), x, *small)
        g = bind(ReluGrad(), norm[0], z)[0]
        return bind(BatchNormGrad(), g, z, small[0], *norm[1:3])

    assert names(masked(trace(f, x, z, *small))) == ["batch_norm", "relu_grad", "batch_norm_grad"]


@pytest.mark.parametrize("backend", ["gpu", "cpu"])
def test_each_backend_gets_the_form_that_suits_it(backend: str) -> None:
    """Own kernels take the mask along; oneDNN, which would compute the output again, gets it made."""
    with lm.policy(algorithm="heuristic"):  # the stand-in would say that a convolution takes the sums along
        graph = trace(network(ops.relu), *(a.astype("float32") for a in operands()))
    better = optimize(graph, StandIn() if backend == "gpu" else get(Device("cpu")))
    (backward,) = [n.op for n in better.nodes if isinstance(n.op, BatchNormGrad)]
    assert backward.relu == (backend == "gpu")
    assert "relu" not in names(better)
