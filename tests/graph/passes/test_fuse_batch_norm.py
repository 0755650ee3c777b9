"""Sums and relu go into batch norms: the same numbers, fewer nodes; what others read stays."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.graph import gradients, trace
from lamina.graph.passes.fuse_batch_norm import fuse_batch_norm
from lamina.ops.primitives import BatchNorm, BatchNormInfer
from tests.helpers.norm_networks import CLIPPED, Activation, alike, names, network, operands


@pytest.mark.parametrize(("act", "hi"), [(ops.relu, None), (CLIPPED, 0.8)], ids=["relu", "clipped"])
def test_relu_goes_into_the_norm(act: Activation, hi: float | None) -> None:
    arrays = operands()
    graph = trace(network(act), *arrays)
    better = fuse_batch_norm(graph)
    (forward,) = [node.op for node in better.nodes if isinstance(node.op, BatchNorm)]
    assert (forward.relu, forward.residual, forward.hi) == (True, False, hi)
    assert not {"relu", "clipped_relu"} & set(names(better))
    alike(graph, better, arrays)


@pytest.mark.parametrize("act", [ops.relu, CLIPPED], ids=["relu", "clipped"])
def test_a_residual_join_is_one_node(act: Activation) -> None:
    """The mask of a join stays apart: both branches read it."""
    arrays = operands()
    graph = trace(network(act, join=True), *arrays)
    better = fuse_batch_norm(graph)
    (forward,) = [n.op for n in better.nodes if isinstance(n.op, BatchNorm)]
    assert forward.relu
    assert forward.residual
    assert "relu" not in names(better)
    assert "clipped_relu" not in names(better)
    assert sum(name.endswith("relu_grad") for name in names(better)) == 1
    alike(graph, better, arrays)


def test_two_norms_meet_in_the_later_one() -> None:
    def f(x: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
        first = ops.batch_norm_with_statistics(x, mean, var, scale, bias, True)[0]
        second = ops.batch_norm_with_statistics(x * 2, mean, var, bias, scale, True)[0]
        y = ops.relu(second + first)
        return [y, *gradients(ops.sum(y * y), [x, scale, bias])]

    x, _, *small, _ = operands()
    graph = trace(f, x, *small)
    better = fuse_batch_norm(graph)
    assert [n.op.residual for n in better.nodes if isinstance(n.op, BatchNorm)] == [False, True]
    assert "relu" not in names(better)
    alike(graph, better, [x, *small])


def test_inference_takes_sum_and_relu() -> None:
    arrays = operands()
    graph = trace(network(ops.relu, join=True, training=False), *arrays)
    better = fuse_batch_norm(graph)
    (forward,) = [n.op for n in better.nodes if isinstance(n.op, BatchNormInfer)]
    assert forward.relu
    assert forward.residual
    alike(graph, better, arrays)


def test_what_others_read_stays() -> None:
    """A result with a second reader, a sum that broadcasts, a residual that comes later."""
    x, _, *small, z = operands()

    def read_twice(x: Any, z: Any, *small: Any) -> Any:
        y = ops.batch_norm_with_statistics(x, small[2], small[3], small[0], small[1], True)[0]
        return ops.relu(y), y

    def broadcast(x: Any, z: Any, *small: Any) -> Any:
        y = ops.batch_norm_with_statistics(x, small[2], small[3], small[0], small[1], True)[0]
        return ops.relu(y + z[:1])

    def later(x: Any, z: Any, *small: Any) -> Any:
        y, mean, _ = ops.batch_norm_with_statistics(x, small[2], small[3], small[0], small[1], True)
        return ops.relu(y + z * mean.reshape((1, 4, 1, 1)))

    for f in (read_twice, broadcast, later):
        graph = trace(f, x, z, *small)
        assert names(fuse_batch_norm(graph)) == names(graph)


def test_compiled_steps_agree() -> None:
    arrays = [a.astype(np.float32) for a in operands()]
    graph = trace(network(CLIPPED, join=True), *arrays)
    compiled, plain = lm.compile(graph, device="cpu"), lm.compile(graph, device="cpu", optimize=False)
    for found, expected in zip(compiled(*arrays), plain(*arrays), strict=True):
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=2e-3, atol=2e-4)
