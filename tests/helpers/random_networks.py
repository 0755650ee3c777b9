"""Random training graphs of convolutions, batch norms, activations, sums, pools and concatenations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lamina import ops
from lamina.graph import Graph, gradients, trace
from lamina.ops.core import Array
from lamina.spec import Shape, policy

Layer = Callable[
    [list[Any], list[Any]], list[Any]
]  # (values so far, inputs) -> a value, then running statistics


class Network:
    """A sequence of layers; each reads the last value, or occasionally an earlier one."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        batch, channels, side = rng.integers((2, 1, 6), (4, 5, 11))
        self.shapes: list[Shape] = [(int(batch), int(channels), int(side), int(side))]
        self.arrays: list[Array] = [rng.standard_normal(self.shapes[0])]
        self.layers: list[Layer] = []
        kinds = (self.conv, self.norm, self.activation, self.sum, self.pool, self.concat)
        for kind in rng.choice(len(kinds), int(rng.integers(4, 13)), p=[0.3, 0.25, 0.15, 0.1, 0.1, 0.1]):
            kinds[kind]()
        self.read = [int(i) for i in rng.integers(0, len(self.shapes), int(rng.integers(0, 3)))]

    def graph(self) -> tuple[Graph, list[Array]]:
        """The loss, gradients of all inputs, running statistics and further outputs; values for the inputs.

        Under the policy "fastest", for which backends measure fusions.
        """

        def program(*inputs: Any) -> list[Any]:
            values, statistics = [inputs[0]], []
            for layer in self.layers:
                value, *moved = layer(values, list(inputs))
                values.append(value)
                statistics += moved
            also = [values[i] for i in self.read]
            loss = ops.sum(values[-1] * values[-1])
            for value in also:
                loss = loss + ops.sum(ops.tanh(value))
            return [loss, *gradients(loss, list(inputs)), *statistics, *also]

        with policy(algorithm="fastest"):
            return trace(program, *self.arrays), self.arrays

    # ---- layers: each adds one, and the shape of its result
    def conv(self) -> None:
        """1x1 or 3x3, optionally with a stride and a bias."""
        i, (n, c, h, w) = self._source()
        taps, stride = int(self.rng.choice([1, 1, 3])), int(self.rng.choice([1, 1, 2]))
        filters, pad = int(self.rng.choice([c, 3, 8])), taps // 2
        weight = self._parameter((filters, c, taps, taps))
        bias = self._parameter((filters,)) if self.rng.random() < 0.3 else None
        self._add(
            lambda v, p: [ops.conv2d(v[i], p[weight], None if bias is None else p[bias], stride, pad)],
            (n, filters, (h - 1) // stride + 1, (w - 1) // stride + 1),
        )

    def norm(self) -> None:
        """Batch norm, sometimes with given statistics."""
        i, shape = self._source()
        scale, bias, mean, var = (self._parameter(shape[1:2], positive) for positive in (0, 0, 0, 1))
        training = self.rng.random() < 0.85 and shape[0] * shape[2] * shape[3] > 1

        def layer(values: list[Any], p: list[Any]) -> list[Any]:
            y, *moved = ops.batch_norm_with_statistics(
                values[i], p[mean], p[var], p[scale], p[bias], training
            )
            return [y, *(moved if training else [])]

        self._add(layer, shape)

    def activation(self) -> None:
        """ReLU, or the clipped one."""
        i, shape = self._source()
        act = ops.relu if self.rng.random() < 0.6 else lambda x: ops.clipped_relu(x, 0.8)
        self._add(lambda v, _: [act(v[i])], shape)

    def sum(self) -> None:
        """The sum of two values of one shape, possibly the same one twice."""
        i, shape = self._source()
        j = self._other(lambda s: s == shape)
        self._add(lambda v, _: [v[i] + v[j]], shape)

    def pool(self) -> None:
        """The maximum or the mean of a window."""
        i, (n, c, h, w) = self._source()
        size, stride = int(self.rng.integers(2, 4)), int(self.rng.integers(1, 3))
        pool, pad = (ops.max_pool2d, ops.avg_pool2d)[int(self.rng.integers(0, 2))], size // 2
        self._add(
            lambda v, _: [pool(v[i], size, stride, pad)],
            (n, c, (h + 2 * pad - size) // stride + 1, (w + 2 * pad - size) // stride + 1),
        )

    def concat(self) -> None:
        """Two values concatenated along the channels."""
        i, (n, c, h, w) = self._source()
        j = self._other(lambda s: (s[0], *s[2:]) == (n, h, w))
        self._add(lambda v, _: [ops.cat([v[i], v[j]], 1)], (n, c + self.shapes[j][1], h, w))

    def _source(self) -> tuple[int, Shape]:
        back = int(self.rng.integers(1, 4)) if self.rng.random() < 0.3 else 0
        i = max(0, len(self.shapes) - 1 - back)
        return i, self.shapes[i]

    def _other(self, fits: Callable[[Shape], bool]) -> int:
        return int(self.rng.choice([i for i, s in enumerate(self.shapes) if fits(s)]))

    def _parameter(self, shape: Shape, positive: bool | int = False) -> int:
        drawn = self.rng.standard_normal(shape)
        self.arrays.append(np.abs(drawn) + 0.5 if positive else drawn)
        return len(self.arrays) - 1

    def _add(self, layer: Layer, shape: Shape) -> None:
        self.layers.append(layer)
        self.shapes.append(shape)
