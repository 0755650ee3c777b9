"""Matrix products over the last two axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from lamina.ops.core import Array, BatchAxes, BatchAxis, Op, Sample, call, operand
from lamina.spec import Shape, ShapeError, Spec, broadcast_shapes


@dataclass(frozen=True)
class Matmul(Op):
    """(..., M, K) x (..., K, N) -> (..., M, N), with equal leading (batch) sizes.

    transpose_a, transpose_b: the operand lies with its last two axes exchanged, (..., K, M) or (..., N, K).
    """

    transpose_a: bool = False
    transpose_b: bool = False
    arity = 2

    def infer(self, a: Spec, b: Spec) -> tuple[Spec]:  # type: ignore[override]
        self.check_float(a, b)
        if a.ndim < 2 or a.ndim != b.ndim or a.shape[:-2] != b.shape[:-2]:
            raise ShapeError(f"{self.name}: needs matrices with equal batch sizes, got {a} and {b}")
        m, k = a.shape[:-3:-1] if self.transpose_a else a.shape[-2:]
        k2, n = b.shape[:-3:-1] if self.transpose_b else b.shape[-2:]
        if k != k2:
            raise ShapeError(
                f"{self.name}: inner sizes {k} and {k2} differ: {a}{_mark(self.transpose_a)} times "
                f"{b}{_mark(self.transpose_b)}"
            )
        return (self.result((*a.shape[:-2], m, n), a.dtype),)

    def flops(self, a: Spec, b: Spec) -> int:  # type: ignore[override]
        return 2 * self.infer(a, b)[0].numel * a.shape[-2 if self.transpose_a else -1]

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        a, b = axes
        rank = inputs[0].ndim
        if a and b:
            return (a,) if a == b and a.axis < rank - 2 else None
        if a and a.axis == (rank - 1 if self.transpose_a else rank - 2):
            return (BatchAxis(rank - 2, a.size),)
        if b and b.axis == (rank - 2 if self.transpose_b else rank - 1):
            return (BatchAxis(rank - 1, b.size),)
        return None

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        """y = a b: da = g b^T and db = a^T g, with the transposes put where the operands have theirs."""
        (g,), (a, b) = grads, inputs
        ta, tb = self.transpose_a, self.transpose_b
        da = call(Matmul(tb, True), b, g) if ta else call(Matmul(False, not tb), g, b)
        db = call(Matmul(True, ta), g, a) if tb else call(Matmul(not ta, False), a, g)
        return da, db

    def reference(self, a: Array, b: Array) -> tuple[Array]:  # type: ignore[override]
        left = a.swapaxes(-1, -2) if self.transpose_a else a
        right = b.swapaxes(-1, -2) if self.transpose_b else b
        return (np.matmul(left, right),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        cases: list[tuple[Shape, Shape]] = [
            ((3, 5), (5, 4)), ((2, 7, 3), (2, 3, 9)), ((1, 17), (17, 1)), ((2, 3, 4, 5), (2, 3, 5, 2)),
            ((0, 4), (4, 3)), ((33, 20), (20, 18)),
        ]  # fmt: skip
        for ta, tb in ((False, False), (False, True), (True, False), (True, True)):
            for a, b in cases:
                yield Sample.of(cls(ta, tb), _swapped(a) if ta else a, _swapped(b) if tb else b)


def _swapped(shape: Shape) -> Shape:
    return (*shape[:-2], shape[-1], shape[-2])


def _mark(transposed: bool) -> str:
    return "^T" if transposed else ""


def matmul(a: Any, b: Any) -> Any:
    """The matrix product, as numpy.matmul: batch sizes broadcast, a vector counts as one row or column."""
    a, b = operand(a), operand(b)
    if a.ndim == 0 or b.ndim == 0:
        raise ShapeError(f"matmul: needs vectors or matrices, got {a.spec} and {b.spec}; use mul for numbers")
    rows, columns = a.ndim > 1, b.ndim > 1
    left = a if rows else a.reshape((1, a.shape[0]))
    right = b if columns else b.reshape((b.shape[0], 1))
    y = _product(left, right)
    shape = (*y.shape[:-2], *(y.shape[-2:-1] if rows else ()), *(y.shape[-1:] if columns else ()))
    return y.reshape(shape)


def _product(a: Any, b: Any) -> Any:
    if a.ndim > 2 and b.ndim == 2:  # one matrix for the whole batch: its rows are one long matrix
        if a.shape[-1] != b.shape[0]:
            raise ShapeError(
                f"matmul: inner sizes {a.shape[-1]} and {b.shape[0]} differ: {a.spec} times {b.spec}"
            )
        flat = a.reshape((prod(a.shape[:-1]), a.shape[-1]))
        return call(Matmul(), flat, b).reshape((*a.shape[:-1], b.shape[1]))
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2], "matmul")
    return call(Matmul(), a.expand((*batch, *a.shape[-2:])), b.expand((*batch, *b.shape[-2:])))


def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """input [..., I] times weight [O, I] transposed, plus bias [O], as torch.nn.functional.linear."""
    x, w = operand(input), operand(weight)
    if x.ndim < 1 or w.ndim != 2 or x.shape[-1] != w.shape[1]:
        raise ShapeError(f"linear: input [..., I] and weight [O, I] do not fit, got {x.spec} and {w.spec}")
    rows = prod(x.shape[:-1])
    y = call(Matmul(False, True), x.reshape((rows, x.shape[-1])), w)
    if bias is not None:
        bias = operand(bias)
        if bias.shape != (w.shape[0],):
            raise ShapeError(f"linear: bias must be of shape ({w.shape[0]},), got {bias.spec}")
        y = y + bias
    return y.reshape((*x.shape[:-1], w.shape[0]))
