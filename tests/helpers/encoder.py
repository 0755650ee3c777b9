"""A layer of a transformer's encoder with its gradients, and the values that tests compare."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from lamina import nn
from lamina.graph import Graph, gradients, trace
from lamina.ops.core import Array

rng = np.random.default_rng(0)


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
