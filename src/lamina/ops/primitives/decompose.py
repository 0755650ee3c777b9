"""Matrix decompositions: eigenvalues of symmetric matrices, singular values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lamina.ops.core import Arg, Array, Op, Sample
from lamina.ops.primitives.marker import Marker, Passed
from lamina.ops.primitives.matmul import matmul
from lamina.ops.primitives.pointwise import where
from lamina.spec import ShapeError, Spec, float32, float64


@dataclass(frozen=True)
class SymmetricEigen(Op):
    """(A [..., N, N]) -> (w [..., N], V [..., N, N]): (A + A^T) / 2 = V diag(w) V^T, w ascending.

    The element of largest magnitude of each vector, a column of V, is positive. A matrix with NaN or infinities gives
    NaN. Gradients of vectors are not finite for repeated eigenvalues.
    """

    dtypes = (float64, float32)

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        self.check_float(x)
        if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
            raise ShapeError(f"{self.name}: needs square matrices [..., N, N], got {x}")
        return Spec(x.shape[:-1], x.dtype), Spec(x.shape, x.dtype)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        """V (diag(gw) + (V^T gV) / (w_j - w_i)) V^T, symmetrized."""
        (w, v), (gw, gv) = outputs, grads
        unit = np.eye(w.shape[-1], dtype=w.dtype.numpy)
        inner: Any = None if gw is None else gw.unsqueeze(-1) * unit
        if gv is not None:
            turned = matmul(v.mT, gv) * _inverse_gaps(w)
            inner = turned if inner is None else inner + turned
        g = matmul(matmul(v, inner), v.mT)
        return ((g + g.mT) * 0.5,)

    def reference(self, x: Array) -> tuple[Array, ...]:
        w, v = _finite(np.linalg.eigh, (x + np.swapaxes(x, -1, -2)) / 2, (x.shape[:-1], x.shape))
        return w, v * _signs(v)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape in ((4, 4), (2, 3, 3), (1, 1), (7, 7), (2, 1, 5, 5), (0, 3, 3)):
            yield Sample.of(cls(), Arg(shape, distinct=True))


@dataclass(frozen=True)
class SingularValues(Op):
    """(A [..., M, N], M >= N) -> (U [..., M, N], s [..., N], V [..., N, N]): A = U diag(s) V^T, s descending.

    The element of largest magnitude of each column of V is positive. A matrix with NaN or infinities gives NaN.
    Gradients of U and V are not finite for repeated singular values, those of U if one is 0.
    """

    dtypes = (float64, float32)

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        self.check_float(x)
        if x.ndim < 2 or x.shape[-2] < x.shape[-1]:
            raise ShapeError(f"{self.name}: needs matrices [..., M, N] with M >= N, got {x}")
        *lead, _, n = x.shape
        return Spec(x.shape, x.dtype), Spec((*lead, n), x.dtype), Spec((*lead, n, n), x.dtype)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        """J. Townsend: "Differentiating the singular value decomposition" (2016), with s_j^2 - s_i^2 as gaps."""
        (u, s, v), (gu, gs, gv) = outputs, grads
        unit, size = np.eye(s.shape[-1], dtype=s.dtype.numpy), s.unsqueeze(-1)
        terms = [] if gs is None else [gs.unsqueeze(-1) * unit]
        if gu is not None:
            terms.append(_turned(u, gu) * _inverse_gaps(s * s) * size.mT)
        if gv is not None:
            terms.append(size * (_turned(v, gv) * _inverse_gaps(s * s)))
        inner = terms[0]
        for term in terms[1:]:
            inner = inner + term
        left = matmul(u, inner)
        if gu is not None and u.shape[-2] > u.shape[-1]:
            left = left + (gu - matmul(u, matmul(u.mT, gu))) / size.mT
        return (matmul(left, v.mT),)

    def reference(self, x: Array) -> tuple[Array, ...]:
        *lead, m, n = x.shape
        shapes = ((*lead, m, n), (*lead, n), (*lead, n, n))
        u, s, vh = _finite(lambda a: np.linalg.svd(a, full_matrices=False), x, shapes)
        v = np.swapaxes(vh, -1, -2)
        signs = _signs(v)
        return u * signs, s, v * signs

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape in ((4, 4), (2, 5, 3), (1, 1), (9, 4), (2, 1, 3, 2), (3, 1), (0, 3, 3)):
            yield Sample.of(cls(), Arg(shape, distinct=True))


@dataclass(frozen=True)
class PseudoInverse(Marker, abstract=True):
    """(a [..., M, N], p [..., N, M]) -> p, given that p is the pseudoinverse of a: its derivative at constant rank.

    G. Golub, V. Pereyra: "The differentiation of pseudo-inverses and nonlinear least squares problems whose variables
    separate" (1973): dp = -p da p + p p^T da^T (1 - a p) + (1 - p a) da^T p^T p.
    """

    arity = 2

    def passed(self, inputs: Sequence[Passed]) -> tuple[Passed, ...]:
        return (inputs[1],)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        (g,), a, (p,) = grads, inputs[0], outputs
        left, right = matmul(matmul(g.mT, p), p.mT), matmul(matmul(p.mT, p), g.mT)
        found = left - matmul(a, matmul(p, left)) + right - matmul(matmul(right, p), a)
        return found - matmul(matmul(p.mT, g), p.mT), None


@dataclass(frozen=True)
class OneTriangle(Marker, abstract=True):
    """A symmetric a [..., N, N] of which consumers read one triangle: the gradient is symmetrized, so that a step
    along it keeps a symmetric.
    """

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        (g,) = grads
        return ((g + g.mT) * 0.5,)


def _inverse_gaps(values: Any) -> Any:
    """1 / (values_j - values_i) at [i, j], 0 where i = j."""
    apart = values.unsqueeze(-2) - values.unsqueeze(-1)
    unit = np.eye(values.shape[-1], dtype=bool)
    return where(unit, 0.0, 1.0 / where(unit, 1.0, apart))


def _turned(vectors: Any, grad: Any) -> Any:
    """The part of a gradient that rotates the vectors into each other: antisymmetric."""
    found = matmul(vectors.mT, grad)
    return found - found.mT


def _signs(vectors: Array) -> Array:
    """The signs that make the largest element of each column positive: [..., 1, N]."""
    if not vectors.size:
        return np.ones((*vectors.shape[:-2], 1, vectors.shape[-1]), vectors.dtype)
    at = np.argmax(np.abs(vectors), -2, keepdims=True)
    return np.where(np.take_along_axis(vectors, at, -2) < 0, -1, 1).astype(vectors.dtype)


def _finite(function: Callable[[Array], Any], x: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """LAPACK's result for finite matrices; NaN for others, which it may reject."""
    good = np.isfinite(x).all((-2, -1), keepdims=True)
    found = function(np.where(good, x, 0))
    return [
        np.where(good.reshape((*good.shape[:-2], *[1] * (len(shape) - good.ndim + 2))), y, np.nan).astype(
            x.dtype
        )
        for y, shape in zip(found, shapes, strict=True)
    ]
