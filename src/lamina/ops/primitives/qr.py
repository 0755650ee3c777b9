"""Orthogonal and triangular factors by Householder's reflections, with LAPACK's signs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lamina.ops.core import Arg, Array, Op, Sample, bind
from lamina.ops.primitives.arrange import broadcast_to, tril
from lamina.ops.primitives.factorize import TriangularSolve
from lamina.ops.primitives.matmul import matmul
from lamina.ops.primitives.pointwise import abs, sqrt, where
from lamina.ops.primitives.reduce import sum
from lamina.ops.primitives.shape import cat
from lamina.spec import Shape, ShapeError, Spec, float32, float64


class _Orthogonal(Op, abstract=True):
    """An op on matrices [..., M, N]."""

    dtypes = (float64, float32)

    def check(self, x: Spec) -> None:
        self.check_float(x)
        if x.ndim < 2:
            raise ShapeError(f"{self.name}: needs matrices [..., M, N], got {x}")

    def stacked(self, size: int, inputs: Sequence[Spec], batched: Sequence[bool]) -> Op | None:
        return self


@dataclass(frozen=True)
class OrthogonalFactor(_Orthogonal):
    """A [..., M, N] -> (Q [..., M, K], R [..., K, N]), K = min(M, N): A = Q R, orthonormal columns in Q, R upper
    triangular. Gradients are not finite where R's diagonal has a zero.
    """

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        self.check(x)
        *lead, m, n = x.shape
        k = min(m, n)
        return Spec((*lead, m, k), x.dtype), Spec((*lead, k, n), x.dtype)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        """(gQ + Q sym(R gR^T - gQ^T Q)) R^-T, where sym mirrors the lower triangle (D. Roberts, L. Roberts: "QR and
        LQ decomposition matrix backpropagation algorithms for square, wide, and deep matrices", 2020).

        Columns beyond the square part are Y = Q R2: they add Y gR2^T to gQ, and get Q gR2.
        """
        (gq, gr), (q, r) = grads, outputs
        k, n = r.shape[-2:]
        square, own, beside = r[..., :k], None, None
        if gr is not None:
            own = gr[..., :k]
            if n > k:
                beside = matmul(q, gr[..., k:])
                more = matmul(inputs[0][..., k:], gr[..., k:].mT)
                gq = more if gq is None else gq + more
        terms = []
        if own is not None:
            terms.append(matmul(square, own.mT))
        if gq is not None:
            terms.append(-matmul(gq.mT, q))
        inner = terms[0] if len(terms) == 1 else terms[0] + terms[1]
        left = matmul(q, tril(inner) + tril(inner, -1).mT)
        left = left if gq is None else left + gq
        found = bind(TriangularSolve(upper=True), square, left.mT)[0].mT
        if n > k and beside is None:
            beside = inputs[0][..., k:] * 0.0
        return (found if beside is None else cat((found, beside), -1),)

    def composed(self, x: Any) -> Sequence[Any]:
        k = min(x.shape[-2:])
        q, r = reflected(x)
        return q[..., :k], r[..., :k, :]

    def reference(self, x: Array) -> tuple[Array, ...]:
        return _qr(x, "reduced")

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from _samples(cls())


@dataclass(frozen=True)
class TriangularFactor(_Orthogonal):
    """A [..., M, N] -> the R [..., K, N] of `OrthogonalFactor`, alone."""

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        self.check(x)
        *lead, m, n = x.shape
        return (Spec((*lead, min(m, n), n), x.dtype),)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        whole = OrthogonalFactor()
        return whole.vjp((None, grads[0]), inputs, bind(whole, inputs[0]))

    def composed(self, x: Any) -> Sequence[Any]:
        return (reflected(x, False)[1][..., : min(x.shape[-2:]), :],)

    def reference(self, x: Array) -> tuple[Array, ...]:
        return (_qr(x, "reduced")[1] if 0 in x.shape else np.asarray(np.linalg.qr(x, "r"), x.dtype),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from _samples(cls())


@dataclass(frozen=True)
class CompleteOrthogonalFactor(_Orthogonal):
    """A [..., M, N] -> (Q [..., M, M], R [..., M, N]): A = Q R, Q orthogonal, R upper triangular.

    The columns of Q beyond N depend on the reflections alone, through which its gradient goes step by step.
    """

    differentiable = False

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        self.check(x)
        *lead, m, _ = x.shape
        return Spec((*lead, m, m), x.dtype), Spec(x.shape, x.dtype)

    def composed(self, x: Any) -> Sequence[Any]:
        return reflected(x)

    def reference(self, x: Array) -> tuple[Array, ...]:
        return _qr(x, "complete")

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from _samples(cls())


_SHAPES: tuple[Shape, ...] = ((4, 4), (2, 5, 3), (3, 6), (1, 1), (1, 3), (3, 1), (0, 3, 3), (36, 34))


def _samples(op: Op) -> Iterator[Sample]:
    for shape in _SHAPES:
        yield Sample.of(op, Arg(shape, distinct=True))


def _qr(x: Array, mode: Any) -> tuple[Array, Array]:
    if x.size:
        q, r = np.linalg.qr(x, mode)
        return q.astype(x.dtype), r.astype(x.dtype)
    *lead, m, n = x.shape
    columns = m if mode == "complete" else min(m, n)
    q = np.broadcast_to(np.eye(m, columns, dtype=x.dtype), (*lead, m, columns)).copy()
    return q, np.zeros((*lead, columns, n), x.dtype)


def reflected(x: Any, with_q: bool = True) -> tuple[Any, Any]:
    """(Q [..., M, M], R [..., M, N]), one reflection after another; without Q None."""
    *lead, m, n = x.shape
    r, kind = x, x.dtype.numpy
    q: Any = broadcast_to(np.eye(m, dtype=kind), (*lead, m, m)) if with_q else None
    for i in range(min(m - 1, n)):
        below = (np.arange(m) >= i)[:, None]
        v = where(below, r[..., :, i : i + 1], 0.0)
        unit = (np.arange(m) == i)[:, None].astype(kind)
        square = sum(v * v, -2, True)
        first = r[..., i : i + 1, i : i + 1]
        # A column that is zero below its pivot is not reflected, as in LAPACK.
        needed = sum(where((np.arange(m) > i)[:, None], abs(v), 0.0), -2, True) > 0
        length = sqrt(where(needed, square, 1.0))
        v = v + unit * (where(first < 0, -1.0, 1.0) * length)
        factor = where(needed, 1.0 / where(needed, length * (length + abs(first)), 1.0), 0.0)
        r = r - factor * matmul(v, matmul(v.mT, r))
        q = q if q is None else q - matmul(matmul(q, v), v.mT) * factor
    return q, where(np.tri(m, n, -1, dtype=bool), 0.0, r)
