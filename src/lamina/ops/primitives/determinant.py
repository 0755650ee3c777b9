"""Determinants and their cofactors, which are their gradient: of singular matrices, too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lamina.ops.core import Arg, Array, Sample, bind
from lamina.ops.primitives.decompose import SingularValues
from lamina.ops.primitives.factorize import Factorization, eliminated
from lamina.ops.primitives.marker import stop_gradient
from lamina.ops.primitives.matmul import matmul
from lamina.ops.primitives.pointwise import where
from lamina.ops.primitives.reduce import prod, sum
from lamina.ops.primitives.shape import cat
from lamina.spec import Shape, Spec


@dataclass(frozen=True)
class Determinant(Factorization):
    """A [..., N, N] -> its determinant [...], the product of the pivots of elimination; 1 without rows."""

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        return (Spec(self.lead_of(x), x.dtype),)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        """g times the cofactors."""
        return (grads[0].unsqueeze(-1).unsqueeze(-1) * bind(Cofactors(), inputs[0])[0],)

    def composed(self, x: Any) -> Sequence[Any]:
        if not x.shape[-1]:
            return (sum(x, (-2, -1)) + 1.0,)
        _, pivots, signs = eliminated(x, None)
        return ((prod(cat(pivots, -1), -1) * signs[..., 0]).squeeze(-1),)

    def reference(self, x: Array) -> tuple[Array, ...]:
        with np.errstate(all="ignore"):
            return (np.asarray(np.linalg.det(x), x.dtype),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape in _SHAPES:
            yield Sample.of(cls(), Arg(shape, dominant=True))
        yield Sample.of(cls(), Arg((34, 34), low=-0.5, high=0.5))  # a dominant one's overflows


@dataclass(frozen=True)
class Cofactors(Factorization):
    """A [..., N, N] -> the cofactors [..., N, N]: det(A) A^-T, and its limit where A is singular.

    Third derivatives of a determinant are not finite where singular values repeat.
    """

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        self.lead_of(x)
        return (Spec(x.shape, x.dtype),)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        """With A = U diag(s) V^T the cofactors are those of diag(s), turned: c = det(U V^T) U cof(diag(s)) V^T.

        Let p_ij be the product of all s but s_i and s_j, 0 for i = j. Along E, cof(diag(s)) moves by
        sum_j p_ij E_jj at [i, i], and by -p_ij E_ji at [i, j].
        """
        u, s, v = bind(SingularValues(), inputs[0])
        pairs = _products_without_two(s)
        turned = matmul(matmul(u.mT, grads[0]), v)
        unit = np.eye(s.shape[-1], dtype=s.dtype.numpy)
        own = matmul(pairs, sum(turned * unit, -1, True)) * unit
        return (_handedness(u, v) * matmul(matmul(u, own - pairs * turned.mT), v.mT),)

    def reference(self, x: Array) -> tuple[Array, ...]:
        with np.errstate(all="ignore"):
            return (_cofactors(x),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape in _SHAPES:
            yield Sample.of(cls(), Arg(shape, distinct=True))


#: The condition up to which an inverse in float64 has half of the digits.
_WELL_CONDITIONED = 6e7

_SHAPES: tuple[Shape, ...] = ((4, 4), (2, 3, 3), (1, 1), (6, 6), (2, 1, 5, 5), (0, 3, 3))


def _products_without_two(s: Any) -> Any:
    """[..., N] -> [..., N, N]: the product of all elements but those at i and j; 0 for i = j."""
    n = s.shape[-1]
    unit = np.eye(n, dtype=bool)
    left_out = unit[:, None, :] | unit[None, :, :]  # [i, j, k]: k is i or j
    whole = prod(where(left_out, 1.0, s.unsqueeze(-2).unsqueeze(-2)), -1)
    return where(unit, 0.0, whole)


def _handedness(u: Any, v: Any) -> Any:
    """det(U) det(V), 1 or -1: [..., 1, 1]."""
    found = bind(Determinant(), stop_gradient(matmul(u, v.mT)))[0]
    return where(found < 0, -1.0, where(found > 0, 1.0, found)).unsqueeze(-1).unsqueeze(-1)


def _cofactors(x: Array) -> Array:
    """In float64: det(A) A^-T where that is accurate; of other matrices by singular values."""
    if x.shape[-1] == 1:
        return np.ones_like(x)
    wide = x.astype(np.float64)
    try:
        inverse = np.linalg.inv(wide)
    except np.linalg.LinAlgError:  # one of the batch is singular
        return _by_singular_values(wide).astype(x.dtype)
    condition = np.abs(x).sum(-2).max(-1, initial=0) * np.abs(inverse).sum(-2).max(-1, initial=0)
    size = np.linalg.det(wide)
    found: Array = size[..., None, None] * np.swapaxes(inverse, -1, -2)
    # The product loses as many digits as the condition has.
    poor = ~(condition < _WELL_CONDITIONED) | ~(np.isfinite(size) & (size != 0))
    if poor.any():
        found[poor] = _by_singular_values(wide[poor])
    return found.astype(x.dtype)


def _by_singular_values(x: Array) -> Array:
    finite = np.isfinite(x).all((-2, -1), keepdims=True)
    u, s, vh = np.linalg.svd(np.where(finite, x, 0))
    hand = np.sign(np.linalg.det(u @ vh))[..., None]
    others = np.where(np.eye(x.shape[-1], dtype=bool), 1, s[..., None, :]).prod(-1) * hand
    return np.where(finite, (u * others[..., None, :]) @ vh, np.nan)
