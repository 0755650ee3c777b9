"""Factors of matrices and linear systems: Cholesky's factor, solutions, triangular solutions, determinants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lamina.ops.core import Arg, Array, Op, Sample, bind
from lamina.ops.primitives.arrange import broadcast_to, tril, triu
from lamina.ops.primitives.matmul import matmul
from lamina.ops.primitives.pointwise import abs, log, logical_not, sign, sqrt, where
from lamina.ops.primitives.reduce import argmax, prod, sum
from lamina.ops.primitives.shape import cat, expand, pad
from lamina.ops.primitives.statistics import any
from lamina.spec import Shape, ShapeError, Spec, float32, float64, int32, uint8


class Factorization(Op, abstract=True):
    """An op on square matrices [..., N, N], and right-hand sides [..., N, K] with the same leading axes; either of
    the two may be one for all, without leading axes.
    """

    dtypes = (float64, float32)

    def lead_of(self, a: Spec, b: Spec | None = None) -> Shape:
        """The leading axes of the result. Raises ShapeError for operands that do not fit, DTypeError."""
        self.check_float(a, *(() if b is None else (b,)))
        if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
            raise ShapeError(f"{self.name}: needs square matrices [..., N, N], got {a}")
        if b is None:
            return a.shape[:-2]
        leads = {a.shape[:-2], b.shape[:-2]} - {()}
        if b.ndim < 2 or b.shape[-2] != a.shape[-1] or len(leads) > 1:
            raise ShapeError(f"{self.name}: A {a} and B {b} do not fit")
        return leads.pop() if leads else ()

    def stacked(self, size: int, inputs: Sequence[Spec], batched: Sequence[bool]) -> Op | None:
        leads = {(size, *s.shape[:-2]) if b else s.shape[:-2] for s, b in zip(inputs, batched, strict=True)}
        return self if len(leads - {()}) == 1 else None


@dataclass(frozen=True)
class CholeskyFactor(Factorization):
    """A [..., N, N] -> (L [..., N, N], info int32 [...]): L L^T = A, L lower triangular; reads A's lower triangle.

    info is 0, or the 1-based index of the first pivot that is not positive: L's triangle is NaN from that column on.
    """

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        lead = self.lead_of(x)
        return Spec(x.shape, x.dtype), Spec(lead, int32)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        """I. Murray: "Differentiation of the Cholesky decomposition" (2016): L^-T phi(L^T g) L^-1, where phi takes
        the lower triangle and half of the diagonal; both triangles are then added in the one that is read.
        """
        low = outputs[0]
        half = np.tri(low.shape[-1], dtype=low.dtype.numpy) - 0.5 * np.eye(
            low.shape[-1], dtype=low.dtype.numpy
        )
        solve = TriangularSolve(upper=True)
        left = bind(solve, low.mT, matmul(low.mT, grads[0]) * half)[0]
        whole = bind(solve, low.mT, left.mT)[0]
        return ((whole + whole.mT) * half,)

    def composed(self, x: Any) -> Sequence[Any]:
        low, pivots = _triangle_of_columns(x)
        return low, first_bad(pivots, x.shape[:-2], True)

    def reference(self, x: Array) -> tuple[Array, ...]:
        lead, info = x.shape[:-2], np.zeros(x.shape[:-2], np.int32)
        try:
            low = np.linalg.cholesky(x)
            bad = ~(np.diagonal(low, 0, -2, -1) > 0)  # NaN, to which LAPACK may have no objection
            return low, np.where(bad.any(-1), bad.argmax(-1) + 1, 0).astype(np.int32) if bad.size else info
        except np.linalg.LinAlgError:
            low = np.empty_like(x)
            for at in np.ndindex(*lead):
                low[at], info[at] = _until_bad_pivot(x[at])
            return low, info

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape in ((4, 4), (2, 3, 3), (1, 1), (7, 7), (2, 1, 5, 5), (0, 3, 3), (34, 34)):
            yield Sample.of(cls(), Arg(shape, dominant=True))


@dataclass(frozen=True)
class LinearSolve(Factorization):
    """(A [..., N, N], B [..., N, K]) -> (X [..., N, K], info int32 [...]): A X = B, by elimination with pivoting.

    info is 0, or the 1-based index of the first pivot that is 0: X is not finite then.
    """

    arity = 2

    def infer(self, a: Spec, b: Spec) -> tuple[Spec, ...]:
        lead = self.lead_of(a, b)
        return Spec((*lead, *b.shape[-2:]), a.dtype), Spec(lead, int32)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        """gB = A^-T g and gA = -gB X^T."""
        a, b = inputs
        back = bind(self, a.mT, grads[0])[0]
        return -_summed(matmul(back, outputs[0].mT), a), _summed(back, b)

    def composed(self, a: Any, b: Any) -> Sequence[Any]:
        lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        x, pivots, _ = eliminated(*(expand(y, (*lead, *y.shape[-2:])) for y in (a, b)))
        return x, first_bad(pivots, lead, False)

    def reference(self, a: Array, b: Array) -> tuple[Array, ...]:
        lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        info = np.zeros(lead, np.int32)
        try:
            return np.linalg.solve(a, b), info
        except np.linalg.LinAlgError:
            wide, right = (np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (a, b))
            found = np.full(right.shape, np.nan, a.dtype)
            for at in np.ndindex(*lead):
                info[at] = _zero_pivot(wide[at])
                if not info[at]:
                    found[at] = np.linalg.solve(wide[at], right[at])
            return found, info

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for a, b in _SYSTEMS:
            yield Sample.of(cls(), Arg(a, dominant=True), Arg(b))


@dataclass(frozen=True)
class TriangularSolve(Factorization):
    """(A [..., N, N], B [..., N, K]) -> X [..., N, K]: A X = B, where A is taken as lower (upper) triangular.

    unit: the diagonal is taken as ones.
    """

    arity = 2
    upper: bool = False
    unit: bool = False

    def infer(self, a: Spec, b: Spec) -> tuple[Spec, ...]:
        return (Spec((*self.lead_of(a, b), *b.shape[-2:]), a.dtype),)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        """gB = A^-T g; gA = -gB X^T in the triangle that is read."""
        (g,), (a, b) = grads, inputs
        back = bind(TriangularSolve(not self.upper, self.unit), a.mT, g)[0]
        whole = -_summed(matmul(back, outputs[0].mT), a)
        cut = int(self.unit)
        return (triu(whole, cut) if self.upper else tril(whole, -cut)), _summed(back, b)

    def composed(self, a: Any, b: Any) -> Sequence[Any]:
        inverse = _triangle_inverse(a.mT if self.upper else a, self.unit)
        return (matmul(inverse.mT if self.upper else inverse, b),)

    def reference(self, a: Array, b: Array) -> tuple[Array, ...]:
        # Elimination of an upper triangle exchanges no rows: it is the substitution. A lower one is turned around.
        turned = slice(None, None, 1 if self.upper else -1)
        a, b = np.triu(a[..., turned, turned]), b[..., turned, :]
        if self.unit:
            n = a.shape[-1]
            a[..., np.arange(n), np.arange(n)] = 1
        try:
            found = np.linalg.solve(a, b)
            finite = bool(np.isfinite(found).all())
        except np.linalg.LinAlgError:
            finite = False
        if not finite:
            found = _substituted(a, b)
        return (np.ascontiguousarray(found[..., turned, :]),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for i, (a, b) in enumerate(_SYSTEMS):
            yield Sample.of(cls(i % 2 == 1, i % 4 > 1), Arg(a, dominant=True), Arg(b))


@dataclass(frozen=True)
class LogDeterminant(Factorization):
    """A [..., N, N] -> (the determinant's sign [...], the logarithm of its magnitude [...]): (0, -inf) for 0."""

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        lead = self.lead_of(x)
        return Spec(lead, x.dtype), Spec(lead, x.dtype)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        """g A^-T; the sign is piecewise constant."""
        a, g = inputs[0], grads[1]
        if g is None:
            return (None,)
        unit = broadcast_to(np.eye(a.shape[-1], dtype=a.dtype.numpy), a.shape)
        return (g.unsqueeze(-1).unsqueeze(-1) * bind(LinearSolve(), a.mT, unit)[0],)

    def composed(self, x: Any) -> Sequence[Any]:
        _, pivots, signs = eliminated(x, None)
        diagonal = cat(pivots, -1)
        turned = (prod(sign(diagonal), -1) * signs[..., 0]).squeeze(-1)
        return turned, sum(log(abs(diagonal)), -1).squeeze(-1)

    def reference(self, x: Array) -> tuple[Array, ...]:
        sign, size = np.linalg.slogdet(x)
        return np.asarray(sign, x.dtype), np.asarray(size, x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape in ((4, 4), (2, 3, 3), (1, 1), (7, 7), (2, 1, 5, 5), (0, 3, 3), (34, 34)):
            yield Sample.of(cls(), Arg(shape, dominant=True))


_SYSTEMS: tuple[tuple[Shape, Shape], ...] = (
    ((4, 4), (4, 2)), ((2, 3, 3), (2, 3, 1)), ((1, 1), (1, 1)), ((7, 7), (7, 5)), ((5, 5), (2, 3, 5, 2)),
    ((2, 3, 3), (3, 4)), ((0, 3, 3), (0, 3, 2)), ((3, 3), (3, 0)), ((34, 34), (34, 2)),
)  # fmt: skip


def _summed(g: Any, like: Any) -> Any:
    """A gradient summed over the leading axes that an operand does not have."""
    more = g.ndim - like.ndim
    return sum(g, tuple(range(more))) if more else g


def _until_bad_pivot(a: Array) -> tuple[Array, int]:
    """Cholesky's factor of a [N, N], NaN from the first bad pivot's column on, and that pivot's 1-based index."""
    good, bad = 0, len(a) + 1  # the leading matrix of `good` rows has a factor, that of `bad` has none
    low = np.full_like(a, np.nan)
    while bad - good > 1:
        rows = (good + bad) // 2
        try:
            low[:rows, :rows] = np.linalg.cholesky(a[:rows, :rows])
            good = rows
        except np.linalg.LinAlgError:
            bad = rows
    low[good:, :good] = _substituted(low[:good, :good], a[good:, :good].T, upper=False).T
    return np.tril(low), 0 if good == len(a) else bad


def _zero_pivot(a: Array) -> int:
    """The 1-based index of the first pivot of a [N, N] that is 0; 0 if there is none."""
    a = a.copy()
    for k in range(len(a)):
        at = k + int(np.argmax(np.abs(a[k:, k])))
        a[[k, at]] = a[[at, k]]
        if a[k, k] == 0:
            return k + 1
        a[k + 1 :] -= a[k + 1 :, k : k + 1] / a[k, k] * a[k]
    return 0


def _substituted(a: Array, b: Array, upper: bool = True) -> Array:
    """X of A X = B for triangular A, with infinities where the diagonal is 0; what is not finite reaches only the
    rows that depend on it.
    """
    found = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *b.shape[-2:]), a.dtype)
    rows = range(a.shape[-1])
    with np.errstate(all="ignore"):
        for i in reversed(rows) if upper else rows:
            known = slice(i + 1, None) if upper else slice(i)
            rest = b[..., i, :] - (a[..., i, None, known] @ found[..., known, :])[..., 0, :]
            found[..., i, :] = rest / a[..., i, i, None]
    return found


# --------------------------------------------------------------------------------------- step by step, of other ops
def eliminated(a: Any, b: Any | None) -> tuple[Any, list[Any], Any]:
    """(a⁻¹ b, the pivots, the sign of the permutation), both [..., 1, 1], of a [..., N, N] and b [..., N, K] or None.

    A column's pivot is its largest element in the rows not yet used as pivots; the rows are swapped.
    """
    n = a.shape[-1]
    whole = a if b is None else cat((a, b), -1)
    kind, rows = a.dtype.numpy, np.arange(n)
    signs: Any = np.ones((1, 1), kind)
    pivots = []
    for k in range(n):
        column = whole[..., k : k + 1]
        at = argmax(where((rows >= k)[:, None], abs(column), -1.0), -2, True)  # [..., 1, 1]
        found = (at == rows[:, None]).cast(a.dtype)  # one at the pivot
        here = (rows == k)[:, None].astype(kind)
        pivot_row = sum(whole * found, -2, True)
        apart = pivot_row - whole[..., k : k + 1, :]
        whole = whole + (here - found) * apart
        signs = signs * where(at == k, np.ones((), kind), -np.ones((), kind))
        pivot = pivot_row[..., k : k + 1]
        pivots.append(pivot)
        # A zero column has no pivot: the determinant is 0, the inverse not finite.
        below = (rows > k) if b is None else (rows != k)
        factors = where(below[:, None], whole[..., k : k + 1], 0.0) / (
            pivot if b is not None else where(pivot == 0, 1.0, pivot)
        )
        whole = whole - factors * pivot_row
    if b is None:
        return None, pivots, signs
    return whole[..., n:] / cat(pivots, -2), pivots, signs


def first_bad(pivots: Sequence[Any], lead: Sequence[int], positive: bool) -> Any:
    """int32 [lead]: the 1-based index of the first invalid pivot [..., 1, 1], else 0."""
    if not pivots:
        return broadcast_to(np.zeros((), np.int32), tuple(lead))
    given = cat(list(pivots), -2).squeeze(-1)
    wrong = logical_not(given > 0) if positive else given == 0
    first = argmax(wrong.cast(uint8), -1) + 1
    return where(any(wrong, -1), first, 0).cast(int32)


def _triangle_of_columns(a: Any) -> tuple[Any, list[Any]]:
    """The Cholesky factor, column by column, and its pivots [..., 1, 1]."""
    columns: list[Any] = []
    pivots: list[Any] = []
    for k in range(a.shape[-1]):
        rest = a[..., k:, k : k + 1]
        if columns:
            made = cat(columns, -1)[..., k:, :]
            rest = rest - matmul(made, made[..., :1, :].mT)
        pivots.append(rest[..., :1, :])
        rest = rest / sqrt(pivots[-1])
        columns.append(rest if not k else cat((rest[..., :1, :] * np.zeros((k, 1), a.dtype.numpy), rest), -2))
    return cat(columns, -1), pivots


def _triangle_inverse(x: Any, unit: bool) -> Any:
    """The inverse of a lower triangular matrix [..., N, N]: all blocks of 1, 2, 4, … rows are inverted at once.

    [[A, 0], [C, B]] has the inverse [[A⁻¹, 0], [-B⁻¹ C A⁻¹, B⁻¹]].
    """
    kind = x.dtype if x.dtype.itemsize >= 4 else float32
    n, lead = x.shape[-1], x.shape[:-2]
    size = 1 << max(n - 1, 0).bit_length()
    below = np.tri(n, k=-1, dtype=bool)
    diagonal = np.eye(n, dtype=kind.numpy)
    x = where(below, x.cast(kind), diagonal if unit else x.cast(kind) * diagonal)
    more = np.diag((np.arange(size) >= n).astype(kind.numpy))
    x = pad(x, (0, size - n, 0, size - n)) + more if size > n else x
    found = (1.0 / sum(x * np.eye(size, dtype=kind.numpy), -1)).reshape((*lead, size, 1, 1))
    width = 1
    while width < size:
        pairs = size // (2 * width)
        # The block below the diagonal of each pair: [..., pairs, width, width].
        blocks = x.reshape((*lead, pairs, 2, width, pairs, 2, width))[..., 1, :, :, 0, :]
        own = np.eye(pairs, dtype=kind.numpy)[:, None, :, None]
        corner = sum(blocks * own, -2)
        halves = found.reshape((*lead, pairs, 2, width, width))
        first, second = halves[..., 0, :, :], halves[..., 1, :, :]
        across = -matmul(matmul(second, corner), first)
        zero = across * 0.0
        found = cat((cat((first, zero), -1), cat((across, second), -1)), -2)
        width *= 2
    return found.reshape((*lead, size, size))[..., :n, :n]
