"""Random graphs of elementwise, shape, product and reduction ops, with donated state."""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina import ops
from lamina.graph import Graph, trace

SIDE = 4


def random_graph(rng: np.random.Generator) -> tuple[Graph, list[np.ndarray], dict[int, int]]:  # type: ignore[type-arg]
    """A graph on SIDE×SIDE inputs, values for its inputs, and which inputs are donated to which outputs."""
    count = int(rng.integers(2, 5))
    arrays = [rng.standard_normal((SIDE, SIDE)).astype(np.float32) for _ in range(count)]

    def program(*inputs: Any) -> list[Any]:
        values = list(inputs)
        for _ in range(int(rng.integers(5, 25))):
            values.append(_step(rng, values))
        return [values[i] for i in rng.integers(0, len(values), count + 1)]

    graph = trace(program, *arrays)
    donors = rng.permutation(count)[: int(rng.integers(0, count))]
    return graph, arrays, {int(i): int(o) for o, i in enumerate(donors)}


def _step(rng: np.random.Generator, values: list[Any]) -> Any:
    a, b = (values[int(i)] for i in rng.integers(0, len(values), 2))
    kind = rng.integers(0, 9)
    if kind == 0:
        return ops.tanh(a)
    if kind == 1:
        return a + b
    if kind == 2:
        return a * 0.5
    if kind == 3:
        return ops.tanh(ops.matmul(a, b) * 0.25)
    if kind == 4:
        return ops.transpose(a, 1, 0)
    if kind == 5:
        return ops.reshape(ops.reshape(a, (SIDE * SIDE,)), (SIDE, SIDE))
    if kind == 6:
        return ops.cat([a[:2], b[2:]], 0)
    if kind == 7:
        return a - ops.mean(b, dim=1, keepdim=True)
    return ops.relu(a - b)
