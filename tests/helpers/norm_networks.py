"""Networks of convolutions and batch norms with their gradients, as seen by passes and fusions."""

from collections.abc import Callable
from typing import Any

import numpy as np

from lamina import ops
from lamina.graph import Graph, gradients

rng = np.random.default_rng(0)
Activation = Callable[[Any], Any]
CLIPPED: Activation = lambda x: ops.clipped_relu(x, 0.8)  # noqa: E731


def operands() -> list[Any]:
    """x, a weight, scale, bias, running mean and variance, z."""
    shapes: list[tuple[int, ...]] = [(3, 4, 6, 5), (4, 4, 1, 1), (4,), (4,), (4,), (4,), (3, 4, 6, 5)]
    arrays = [rng.standard_normal(s) for s in shapes]
    arrays[5] = np.abs(arrays[5]) + 0.5
    return arrays


def network(act: Activation, join: bool = False, training: bool = True) -> Callable[..., Any]:
    """Convolution, batch norm, optionally a residual's sum, activation, convolution; the gradients of all
    operands."""

    def f(x: Any, w: Any, scale: Any, bias: Any, mean: Any, var: Any, z: Any) -> Any:
        y, mean, var = ops.batch_norm_with_statistics(ops.conv2d(x, w), mean, var, scale, bias, training)
        y = ops.conv2d(act(z + y if join else y), w)
        return [
            *gradients(ops.sum(y * y), [x, w, scale, bias, z] if join else [x, w, scale, bias]),
            mean,
            var,
        ]

    return f


def names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


def alike(graph: Graph, better: Graph, arrays: list[Any]) -> None:
    for found, expected in zip(better(*arrays), graph(*arrays), strict=True):
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-9, atol=1e-12)
