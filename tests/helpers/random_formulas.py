"""Random elementwise programs: trees, slices, broadcast values, casts and reductions, like users' formulas."""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina import ops
from lamina.graph import Graph, trace
from lamina.graph.ir.graph import Value
from lamina.ops.core import Array
from lamina.spec import DType, Spec, bfloat16, channels_last, float16, float32, int64

_ONE: list[Any] = [ops.tanh, ops.sigmoid, ops.abs, ops.neg, ops.relu, ops.silu, ops.cos, ops.sign, ops.gelu]
_TWO: list[Any] = [ops.add, ops.sub, ops.mul, ops.minimum, ops.maximum]
_REDUCED: list[Any] = [ops.sum, ops.mean, ops.amax, ops.amin]


class Formula:
    """One program: `graph`, and `arrays` for its inputs.

    Values are of the size of the loop, or broadcast to it. Results: the last few values, some of them reduced.
    """

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        rank = int(self.rng.integers(1, 5))
        self.shape = tuple(int(n) for n in self.rng.choice([1, 2, 3, 5, 8, 16], rank))
        self.dtype: DType = self.rng.choice(np.array([float32, float32, bfloat16, float16], object))
        specs = [self._input() for _ in range(int(self.rng.integers(1, 4)))]
        self.arrays = [self._array(s) for s in specs]
        self.graph: Graph = trace(self._results, *specs)

    def _input(self) -> Spec:
        """Of the loop's size, larger along the last axis (read by slices), or broadcast along some axes."""
        kind = self.rng.integers(0, 4)
        shape = list(self.shape)
        if kind == 1:
            shape[-1] *= 2
        elif kind == 2:
            shape = [n if self.rng.random() < 0.5 else 1 for n in shape]
        last = len(shape) == 4 and self.rng.random() < 0.5
        layout = channels_last(tuple(shape)) if last else None
        return Spec(tuple(shape), self.dtype, layout)

    def _array(self, spec: Spec) -> Array:
        return np.asarray(self.rng.standard_normal(spec.shape)).astype(spec.dtype.numpy)

    def _read(self, x: Value) -> Any:
        """An input in the shape of the loop's values."""
        if x.shape[-1] == 2 * self.shape[-1] and x.shape != self.shape:
            return ops.chunk(x, 2, dim=-1)[int(self.rng.integers(0, 2))]
        if x.shape != self.shape and self.rng.random() < 0.5:
            return ops.expand(x, self.shape)
        return x

    def _step(self, values: list[Any]) -> Any:
        """One more value from existing ones."""
        rng = self.rng
        a, b = (values[int(rng.integers(0, len(values)))] for _ in range(2))
        kind = rng.integers(0, 9)
        if kind < 3:
            return _ONE[int(rng.integers(0, len(_ONE)))](a)
        if kind < 6:
            return _TWO[int(rng.integers(0, len(_TWO)))](a, b)
        if kind == 6:
            return ops.where(ops.gt(a, float(np.round(rng.uniform(-1, 1), 2))), a, b)
        if kind == 7:
            return a * float(np.round(rng.uniform(-2, 2), 2))
        return a.cast(rng.choice(np.array([float32, bfloat16], object))).cast(self.dtype)

    def _results(self, *inputs: Value) -> list[Any]:
        values = [self._read(x) for x in inputs]
        for _ in range(int(self.rng.integers(2, 12))):
            values.append(self._step(values))
        found = [values[-1]]
        if self.rng.random() < 0.7:
            axes = [a for a in range(len(values[-1].shape)) if self.rng.random() < 0.5] or [0]
            reduced = _REDUCED[int(self.rng.integers(0, len(_REDUCED)))]
            found = [reduced(values[-1], axes)]
        if self.rng.random() < 0.4:
            found.append(values[int(self.rng.integers(len(inputs), len(values)))])
        if self.rng.random() < 0.2:
            found.append(ops.sum(ops.gt(values[-1], 0.0).cast(int64)))
        return found
