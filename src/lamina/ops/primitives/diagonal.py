"""Diagonals of matrices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lamina.ops.core import Array, BatchAxes, Op, Sample, call
from lamina.ops.primitives.shape import Reshape, Slice
from lamina.spec import DTYPES, Shape, ShapeError, Spec


@dataclass(frozen=True)
class Diagonal(Op):
    """A diagonal of the matrices [..., M, N] in the last two axes, as the last axis: elements (i, i + offset).

    A separate op, though a slice of the flattened matrix has the same elements: flattening a view with non-contiguous
    rows (`x.T`, `x[:, 1:]`) copies, whereas the diagonal is still a view.
    """

    offset: int = 0
    dtypes = DTYPES
    takes_part = True

    def infer(self, x: Spec) -> tuple[Spec]:
        self.check_float(x)
        if x.ndim < 2:
            raise ShapeError(f"{self.name}: needs two axes, got {x}")
        return (self.result((*x.shape[:-2], self._size(x.shape)), x.dtype),)

    def _size(self, shape: Shape) -> int:
        row, column = self._corner
        return max(min(shape[-2] - row, shape[-1] - column), 0)

    @property
    def _corner(self) -> tuple[int, int]:
        """The row and the column of the first element."""
        return max(-self.offset, 0), max(self.offset, 0)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        b = axes[0]
        return (b,) if b and b.axis < inputs[0].ndim - 2 else None

    def stacked(self, size: int, inputs: Sequence[Spec], batched: Sequence[bool]) -> Op:
        return self

    def _of_flat(self, shape: Shape) -> Slice:
        """The slice of matrices of this shape flattened to [..., M * N]."""
        *lead, rows, columns = shape
        (row, column), size = self._corner, self._size(shape)
        first, step = min(row * columns + column, rows * columns), columns + 1
        stop = min(first + size * step, rows * columns)
        return Slice((*(0 for _ in lead), first), (*lead, stop), (*(1 for _ in lead), step))

    def composed(self, x: Any) -> Sequence[Any]:
        *lead, rows, columns = x.shape
        return (call(self._of_flat(x.shape), call(Reshape((*lead, rows * columns)), x)),)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        *lead, rows, columns = shape = inputs[0].shape
        flat = Spec((*lead, rows * columns), inputs[0].dtype)
        (g,) = self._of_flat(shape).vjp(grads, (flat,), ())
        return (g.reshape(shape),)

    def strides_within(self, shape: Shape, strides: Shape) -> Shape:
        *lead, down, right = strides
        return (*lead, down + right)

    def first_within(self, strides: Shape) -> int:
        *_, down, right = strides
        row, column = self._corner
        return row * down + column * right

    def reference(self, x: Array) -> tuple[Array]:
        return (np.diagonal(x, self.offset, -2, -1),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        cases: list[tuple[int, Shape]] = [
            (0, (3, 3)), (1, (2, 4)), (-2, (2, 5, 3)), (0, (2, 3, 4, 5)), (4, (3, 3)), (0, (2, 0, 3)), (7, (9, 33)),
        ]  # fmt: skip
        for offset, shape in cases:
            yield Sample.of(cls(offset), shape)
