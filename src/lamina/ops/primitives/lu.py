"""LU factors with row exchanges, and these exchanges as an order of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lamina.ops.core import Arg, Array, Op, Sample, bind
from lamina.ops.primitives.arrange import broadcast_to, tril, triu
from lamina.ops.primitives.factorize import TriangularSolve
from lamina.ops.primitives.gather import gather
from lamina.ops.primitives.matmul import matmul
from lamina.ops.primitives.pointwise import abs, where
from lamina.ops.primitives.reduce import argmax, sum
from lamina.ops.primitives.shape import cat, expand
from lamina.spec import ShapeError, Spec, float32, float64, int32

#: Columns that are eliminated one by one; those behind them follow by a triangular system and a matrix product.
_BLOCK = 16


@dataclass(frozen=True)
class PivotedFactor(Op):
    """A [..., M, N] -> (LU [..., M, N], pivots int32 [..., K]), K = min(M, N): L, unit lower triangular, below the
    diagonal, U above. Row k was exchanged with row pivots[k] - 1, whose element is the largest of its column.
    """

    dtypes = (float64, float32)

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        self.check_float(x)
        if x.ndim < 2:
            raise ShapeError(f"{self.name}: needs matrices [..., M, N], got {x}")
        *lead, m, n = x.shape
        return Spec(x.shape, x.dtype), Spec((*lead, min(m, n)), int32)

    def stacked(self, size: int, inputs: Sequence[Spec], batched: Sequence[bool]) -> Op | None:
        return self

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        """P L^-T (tril(L^T gL, -1) + triu(gU U^T)) U^-T of square matrices (F. de Hoog, R. Anderssen, M. Lukas:
        "Differentiation of matrix functionals using triangular factorization", 2011).

        Rows below them are L2 = A2 U^-1, columns beside them U2 = L^-1 A2.
        """
        g, (factors, pivots) = grads[0], outputs
        m, n = factors.shape[-2:]
        k = min(m, n)
        square, own = factors[..., :k, :k], g[..., :k, :k]
        low = tril(square, -1) + np.eye(k, dtype=factors.dtype.numpy)
        inner = tril(matmul(low.mT, tril(own, -1)), -1) + triu(matmul(triu(own), triu(square).mT))
        if m > n:
            inner = inner - triu(matmul(factors[..., k:, :].mT, g[..., k:, :]))
        if n > m:
            inner = inner - tril(matmul(g[..., k:], factors[..., k:].mT), -1)
        found = _divided(square, _under_unit(square, inner))
        if m > n:  # gA2 = gL2 U^-T; L2 = A2 U^-1 moves U against it
            found = cat((found, _divided(square, g[..., k:, :])), -2)
        if n > m:
            found = cat((found, _under_unit(square, g[..., k:])), -1)
        return (exchanged(found, pivots, True),)

    def composed(self, x: Any) -> Sequence[Any]:
        (m, n), rows = x.shape[-2:], np.arange(x.shape[-2])[:, None]
        columns, places = np.arange(n), []
        for k in range(min(m, n)):
            at = argmax(where(rows >= k, abs(x[..., k : k + 1]), -1.0), -2, True)  # [..., 1, 1]
            chosen, present = sum(where(at == rows, x, 0.0), -2, True), x[..., k : k + 1, :]
            x = where(rows == k, chosen, where(at == rows, present, x))
            pivot = chosen[..., k : k + 1]
            factors = where(rows > k, x[..., k : k + 1], 0.0) / where(pivot == 0, 1.0, pivot)
            x = where((rows > k) & (columns == k), factors, x - factors * where(columns > k, chosen, 0.0))
            places.append(at.squeeze(-1) + 1)
        if not places:
            return x, broadcast_to(np.zeros((0,), np.int32), (*x.shape[:-2], 0))
        return x, cat(places, -1).cast(int32)

    def reference(self, x: Array) -> tuple[Array, ...]:
        *lead, m, n = x.shape
        count = int(np.prod(lead))
        factors, pivots = x.reshape(count, m, n).copy(), np.zeros((count, min(m, n)), np.int32)
        with np.errstate(all="ignore"):
            for start in range(0, min(m, n), _BLOCK):
                _eliminate_block(factors, pivots, start, min(start + _BLOCK, m, n))
        return factors.reshape(x.shape), pivots.reshape(*lead, min(m, n))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape in ((4, 4), (2, 5, 3), (3, 6), (1, 1), (2, 1, 5, 5), (0, 3, 3), (3, 0), (20, 20), (34, 36)):
            yield Sample.of(cls(), Arg(shape, distinct=True))


@dataclass(frozen=True)
class RowOrder(Op):
    """pivots int32 [..., K] -> int32 [..., rows]: which row is at each place after the exchanges; inverse: at which
    place each row is. A pivot that is no row's 1-based index exchanges nothing.
    """

    rows: int
    inverse: bool = False
    differentiable = False
    dtypes = (int32,)

    def infer(self, pivots: Spec) -> tuple[Spec, ...]:
        self.check_float(pivots)
        if not pivots.ndim or pivots.shape[-1] > self.rows:
            raise ShapeError(f"{self.name}: needs pivots [..., K], K at most {self.rows} rows, got {pivots}")
        return (Spec((*pivots.shape[:-1], self.rows), int32),)

    def stacked(self, size: int, inputs: Sequence[Spec], batched: Sequence[bool]) -> Op | None:
        return self

    def composed(self, pivots: Any) -> Sequence[Any]:
        rows, count = np.arange(self.rows), pivots.shape[-1]
        order = broadcast_to(rows.astype(np.int32), (*pivots.shape[:-1], self.rows))
        for k in range(count):
            at = pivots[..., k : k + 1] - 1
            if self.inverse:  # exchange the values k and at
                order = where(order == k, at, where(order == at, k, order))
            else:
                other = sum(where(at == rows, order, 0), -1, True).cast(int32)
                order = where(rows == k, other, where(at == rows, order[..., k : k + 1], order))
        return (order.cast(int32),)

    def reference(self, pivots: Array) -> tuple[Array, ...]:
        *lead, count = pivots.shape
        flat = pivots.reshape(-1, count) - 1 if count else np.zeros((int(np.prod(lead)), 0), np.int32)
        every = np.arange(len(flat))
        order = np.broadcast_to(np.arange(self.rows, dtype=np.int32), (len(flat), self.rows)).copy()
        for k in range(count):
            at = np.where((flat[:, k] >= 0) & (flat[:, k] < self.rows), flat[:, k], k)
            held = order[every, at]
            order[every, at] = order[:, k]
            order[:, k] = held
        if self.inverse:
            order = np.argsort(order, -1).astype(np.int32)
        return (order.reshape(*lead, self.rows),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for i, shape in enumerate(((4,), (2, 3), (1,), (2, 1, 5), (0, 3), (0,))):
            yield Sample.of(cls(5, i % 2 == 1), Arg(shape, low=1, high=6, integers=True), dtypes=(int32,))


def exchanged(b: Any, pivots: Any, back: bool) -> Any:
    """The row exchanges of `PivotedFactor` on b [..., M, K], or undone: pivots' leading axes are b's."""
    order = bind(RowOrder(b.shape[-2], back), pivots)[0].unsqueeze(-1)
    return gather(b, -2, expand(order, b.shape))


def _under_unit(square: Any, b: Any) -> Any:
    """L^-T b, where L is the unit lower triangle of square [..., K, K]."""
    return bind(TriangularSolve(upper=True, unit=True), square.mT, b)[0]


def _divided(square: Any, b: Any) -> Any:
    """b U^-T, where U is the upper triangle of square [..., K, K]."""
    return bind(TriangularSolve(upper=True), square, b.mT)[0].mT


def _eliminate_block(a: Array, pivots: Array, start: int, stop: int) -> None:
    """Eliminate columns start … stop - 1 of a [B, M, N] in place, whose columns before them are done."""
    every = 0 if len(a) == 1 else np.arange(len(a))  # NumPy takes views where it can
    for k in range(start, stop):
        at = np.abs(a[:, k:, k]).argmax(-1) + k
        pivots[:, k] = at + 1
        held = a[every, at].copy()
        a[every, at] = a[:, k]
        a[:, k] = held
        pivot = a[:, k, k, None]
        a[:, k + 1 :, k] /= np.where(pivot == 0, 1, pivot)
        a[:, k + 1 :, k + 1 : stop] -= a[:, k + 1 :, k, None] * a[:, k, None, k + 1 : stop]
    if stop < a.shape[-1]:
        for i in range(
            start + 1, stop
        ):  # forward substitution, through which NaN goes no further than by elimination
            a[:, i, stop:] -= (a[:, i, None, start:i] @ a[:, start:i, stop:])[:, 0]
        a[:, stop:, stop:] -= a[:, stop:, start:stop] @ a[:, start:stop, stop:]
