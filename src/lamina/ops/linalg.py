"""Linear algebra of small matrices, named and called as in torch.linalg, for every backend.

Linear systems, determinants, the factors of Cholesky, LU and QR, eigenvalues and singular values are ops: LAPACK on
a CPU (LU: NumPy by blocks), a block for each matrix on a GPU. Leading axes are a batch. Half types are computed in
float32.
Derivatives of every order are those of the ops and steps. A result that depends on values (a rank) is a tensor, never
a shape.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np

from lamina._lazy import lazy, listing
from lamina.ops.arguments import Dims, DTypeLike, checked
from lamina.ops.core import bind, call, floating, operand, recorder
from lamina.ops.primitives import arrange, products
from lamina.ops.primitives.arrange import broadcast_to, movedim, tril
from lamina.ops.primitives.cast import cast
from lamina.ops.primitives.decompose import OneTriangle, PseudoInverse, SingularValues, SymmetricEigen
from lamina.ops.primitives.determinant import Determinant
from lamina.ops.primitives.factorize import (
    CholeskyFactor,
    LinearSolve,
    LogDeterminant,
    TriangularSolve,
    first_bad,
)
from lamina.ops.primitives.lu import PivotedFactor, RowOrder, exchanged
from lamina.ops.primitives.marker import stop_gradient
from lamina.ops.primitives.matmul import matmul
from lamina.ops.primitives.norms import vector_norm
from lamina.ops.primitives.pointwise import (
    abs,
    ceil,
    clamp,
    exp,
    log,
    maximum,
    where,
)
from lamina.ops.primitives.products import vander as powers
from lamina.ops.primitives.qr import CompleteOrthogonalFactor, OrthogonalFactor, TriangularFactor
from lamina.ops.primitives.reduce import amax, amin, sum
from lamina.ops.primitives.shape import cat, expand, permute
from lamina.spec import ShapeError, broadcast_shapes, float32, int32, normalize_axes, normalize_axis

__all__ = ["LinAlgError", "cholesky", "cholesky_ex", "cond", "cross", "det", "diagonal", "eigh", "eigvalsh",
           "householder_product", "inv", "inv_ex", "lstsq", "lu", "lu_factor", "lu_factor_ex", "lu_solve",
           "matrix_exp", "matrix_norm", "matrix_power", "matrix_rank", "multi_dot", "norm", "pinv", "qr",
           "slogdet", "solve", "solve_ex", "solve_triangular", "svd", "svdvals", "tensorinv", "tensorsolve",
           "vander", "vecdot", "vector_norm"]  # fmt: skip
__dir__ = listing(__all__)
__getattr__ = lazy(
    __name__,
    {},
    instead={
        "eig": "eigenvalues of a matrix that is not symmetric are complex numbers, which there are none of; "
        "eigh takes symmetric ones, numpy.linalg.eig all of them on the host",
        "eigvals": "eigenvalues of a matrix that is not symmetric are complex numbers, which there are none of; "
        "eigvalsh takes symmetric ones, numpy.linalg.eigvals all of them on the host",
        "ldl_factor": "cholesky takes what is positive definite, lu_factor anything",
        "ldl_factor_ex": "cholesky_ex takes what is positive definite, lu_factor_ex anything",
        "ldl_solve": "cholesky_solve takes what is positive definite, lu_solve anything",
    },
)

T = TypeVar("T")


class LinAlgError(RuntimeError):
    """A matrix lacks the required property: it is singular, or not positive definite."""


class SlogDet(NamedTuple, Generic[T]):
    """The determinant as its sign and the logarithm of its magnitude."""

    sign: T
    logabsdet: T


class QR(NamedTuple, Generic[T]):
    """A matrix with orthonormal columns and a triangular one, whose product is the matrix."""

    Q: T
    R: T


class Eigh(NamedTuple, Generic[T]):
    """Eigenvalues in ascending order, and eigenvectors as columns."""

    eigenvalues: T
    eigenvectors: T


class SVD(NamedTuple, Generic[T]):
    """U diag(S) Vh is the matrix; S in descending order."""

    U: T
    S: T
    Vh: T


class LeastSquares(NamedTuple, Generic[T]):
    """The solution; the residual sums of squares, where available; ranks and singular values of A."""

    solution: T
    residuals: T
    rank: T
    singular_values: T


class SolveEx(NamedTuple, Generic[T]):
    """X, and the position of a zero pivot."""

    result: T
    info: T


class InvEx(NamedTuple, Generic[T]):
    """The inverse, and the position of a zero pivot."""

    inverse: T
    info: T


class CholeskyEx(NamedTuple, Generic[T]):
    """The factor, and the position of a pivot that is not positive."""

    L: T
    info: T


class LU(NamedTuple, Generic[T]):
    """A = P L U."""

    P: T
    L: T
    U: T


class LUFactor(NamedTuple, Generic[T]):
    """L and U in one matrix, and the row exchanges."""

    LU: T
    pivots: T


class LUFactorEx(NamedTuple, Generic[T]):
    """Likewise, and the position of a zero on U's diagonal."""

    LU: T
    pivots: T
    info: T


# ------------------------------------------------------------------------------------------------------- elimination
def _matrix(what: str, input: Any, square: bool = True) -> Any:
    x = floating(input, what)
    if x.ndim < 2 or (square and x.shape[-1] != x.shape[-2]):
        raise ShapeError(
            f"{what}: needs {'square matrices [..., N, N]' if square else 'matrices'}, got {x.spec}"
        )
    return x


def _check(what: str, info: Any, needs: str, pivot: Callable[[tuple[int, ...], int], float]) -> None:
    """Raise LinAlgError where info int32 [...] names a bad pivot; the error names the first of them.

    pivot: (a matrix of the batch, the row) -> its value. Traced values pass unchecked.
    """
    if info.records or recorder() is not None:
        return
    found = info.numpy()
    if not found.any():
        return
    batch = tuple(np.argwhere(found)[0].tolist())
    row = int(found[batch]) - 1
    which = f"matrix {batch} of the batch" if batch else "the matrix"
    raise LinAlgError(f"{what}: {which} is not {needs}: its pivot in row {row} is {pivot(batch, row):.4g}")


def _zero(batch: tuple[int, ...], row: int) -> float:
    return 0.0


@checked
def solve(A: Any, B: Any, *, left: bool = True) -> Any:
    """X of A X = B (left=False: X A = B) for A [..., N, N] and B [..., N, K], or vectors [N], as torch.linalg.solve.

    B is interpreted as vectors [..., N] if it has one axis, or one less than A and A's sizes except the last. Raises
    LinAlgError if A is singular (in compiled functions the result is not finite), ShapeError for mismatched sizes.
    """
    return _solved("solve", A, B, left, True).result


@checked
def solve_ex(A: Any, B: Any, *, left: bool = True, check_errors: bool = False) -> SolveEx[Any]:
    """`solve`, and int32 [...]: 0, or the 1-based index of the first zero pivot, for which the result is not finite.
    torch.linalg.solve_ex; no device-to-host copy unless check_errors."""
    return _solved("solve_ex", A, B, left, check_errors)


def _solved(what: str, A: Any, B: Any, left: bool, checks: bool) -> SolveEx[Any]:
    a, b = _matrix(what, A), floating(B, what)
    vectors = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    b = b.unsqueeze(-1) if vectors else b
    if not left:
        a, b = a.mT, b if vectors else b.mT
    if b.ndim < 2 or b.shape[-2] != a.shape[-1]:
        raise ShapeError(f"{what}: A {a.spec} and B {b.spec} do not fit")
    lead = broadcast_shapes(a.shape[:-2], b.shape[:-2], f"{what}: leading axes of A {a.spec} and B {b.spec}")
    x, info = _of_system(LinearSolve(), a, b)
    x = x.cast(a.dtype)
    x = x if left or vectors else x.mT
    info = broadcast_to(info, lead)
    if checks:
        _check(what, info, "invertible", _zero)
    return SolveEx(x.squeeze(-1) if vectors else x, info)


def _of_system(op: LinearSolve | TriangularSolve, a: Any, b: Any) -> tuple[Any, ...]:
    """The outputs of an op on A [..., N, N] and B [..., N, K], whose leading axes are broadcast.

    One matrix for a batch of B is factorized once, on all columns of the batch.
    """
    a, b = _wide(a), b.cast(_wide(a).dtype)
    if a.ndim == 2 and b.ndim > 2:
        *lead, n, k = b.shape
        columns = movedim(b, -2, 0).reshape((n, math.prod(lead) * k))
        x, *others = bind(op, a, columns)
        return movedim(x.reshape((n, *lead, k)), 0, -2), *others
    lead = broadcast_shapes(
        a.shape[:-2], b.shape[:-2], f"{op.name}: leading axes of A {a.spec} and B {b.spec}"
    )
    a, b = (x if x.ndim == 2 else expand(x, (*lead, *x.shape[-2:])) for x in (a, b))
    return bind(op, a, b)


@checked
def inv(A: Any) -> Any:
    """The inverse of A [..., N, N]. torch.linalg.inv.

    Raises LinAlgError if A is singular; in compiled functions the result is not finite.
    """
    return _inverted("inv", A, True).inverse


@checked
def inv_ex(A: Any, *, check_errors: bool = False) -> InvEx[Any]:
    """`inv`, and int32 [...]: 0, or the 1-based index of the first zero pivot. torch.linalg.inv_ex."""
    return _inverted("inv_ex", A, check_errors)


def _inverted(what: str, A: Any, checks: bool) -> InvEx[Any]:
    a = _matrix(what, A)
    x = _wide(a)
    found, info = bind(LinearSolve(), x, broadcast_to(np.eye(a.shape[-1], dtype=x.dtype.numpy), a.shape))
    if checks:
        _check(what, info, "invertible", _zero)
    return InvEx(found.cast(a.dtype), info)


@checked
def det(A: Any) -> Any:
    """The determinant of A [..., N, N]: [...]. torch.linalg.det.

    Its gradient, the cofactors, is that of singular matrices, too.
    """
    a = _matrix("det", A)
    return bind(Determinant(), _wide(a))[0].cast(a.dtype)


@checked
def slogdet(A: Any) -> SlogDet[Any]:
    """(sign, logarithm of the magnitude) of the determinant: (0, -inf) where it is 0. torch.linalg.slogdet."""
    a = _matrix("slogdet", A)
    turned, size = bind(LogDeterminant(), _wide(a))
    return SlogDet(turned.cast(a.dtype), size.cast(a.dtype))


# --------------------------------------------------------------------------------------------------------------- LU
@checked
def lu_factor(A: Any) -> LUFactor[Any]:
    """(LU [..., M, N], pivots int32 [..., min(M, N)]) of A [..., M, N]: unit lower triangular L below the diagonal
    and U above; row k was exchanged with row pivots[k] - 1. torch.linalg.lu_factor.

    Gradients are not finite where U's diagonal has a zero.
    """
    a = _matrix("lu_factor", A, square=False)
    factors, pivots = bind(PivotedFactor(), _wide(a))
    return LUFactor(factors.cast(a.dtype), pivots)


@checked
def lu_factor_ex(A: Any, *, check_errors: bool = False) -> LUFactorEx[Any]:
    """`lu_factor`, and int32 [...]: 0, or the 1-based index of U's first zero pivot. torch.linalg.lu_factor_ex."""
    factors, places = lu_factor(A)
    diagonal = arrange.diagonal(factors, 0, -2, -1).unsqueeze(-1)
    info = first_bad([diagonal] if places.shape[-1] else [], factors.shape[:-2], False)
    if check_errors:
        _check("lu_factor_ex", info, "invertible", _zero)
    return LUFactorEx(factors, places, info)


@checked
def lu(A: Any) -> LU[Any]:
    """(P [..., M, M], L [..., M, K], U [..., K, N]) of A [..., M, N] = P L U, K being the smaller of M and N: P is a
    permutation, L has a unit diagonal. torch.linalg.lu."""
    factors, pivots = lu_factor(A)
    (m, n), kind = factors.shape[-2:], factors.dtype.numpy
    count = builtins.min(m, n)
    order = bind(RowOrder(m), pivots)[0].unsqueeze(-2)  # A[order] = L U
    permutation = (order == np.arange(m, dtype=np.int32)[:, None]).cast(factors.dtype)
    below, above = np.tri(m, count, -1, dtype=bool), np.tri(count, n, -1, dtype=bool)
    low = where(below, factors[..., :count], np.eye(m, count, dtype=kind))
    return LU(permutation, low, where(above, 0.0, factors[..., :count, :]))


@checked
def lu_solve(LU: Any, pivots: Any, B: Any, *, left: bool = True, adjoint: bool = False) -> Any:
    """X of A X = B [..., N, K] (left=False: X A = B; adjoint: with A^T), given A's `lu_factor`.
    torch.linalg.lu_solve. Raises ShapeError for mismatched sizes."""
    factors, places = _matrix("lu_solve", LU), operand(pivots, "lu_solve", "pivots")
    b = _matrix("lu_solve", B, square=False)
    if not left:
        return lu_solve(factors, places, b.mT, adjoint=not adjoint).mT
    n = factors.shape[-1]
    if places.shape != (*factors.shape[:-2], n) or b.shape[-2] != n:
        raise ShapeError(f"lu_solve: LU {factors.spec}, pivots {places.spec} and B {b.spec} do not fit")
    lead = broadcast_shapes(
        factors.shape[:-2], b.shape[:-2], f"lu_solve: leading axes of LU {factors.spec} and B {b.spec}"
    )
    b, places = expand(b, (*lead, *b.shape[-2:])), expand(places.cast(int32), (*lead, n))
    if adjoint:
        y = solve_triangular(factors.mT, b, upper=False)
        return exchanged(solve_triangular(factors.mT, y, upper=True, unitriangular=True), places, True)
    y = solve_triangular(factors, exchanged(b, places, False), upper=False, unitriangular=True)
    return solve_triangular(factors, y, upper=True)


# --------------------------------------------------------------------------------------------- tensors as matrices
@checked
def cross(input: Any, other: Any, *, dim: int = -1) -> Any:
    """The cross product of vectors of three along dim. torch.linalg.cross."""
    return products.cross(input, other, dim)


@checked
def diagonal(A: Any, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    """The diagonals of matrices [..., M, N], as the last axis. torch.linalg.diagonal."""
    return arrange.diagonal(A, offset, dim1, dim2)


@checked
def tensorinv(A: Any, ind: int = 2) -> Any:
    """The inverse of A as a matrix of its first ind axes and the others: shape A.shape[ind:] + A.shape[:ind].
    torch.linalg.tensorinv. Raises ValueError for ind < 1, ShapeError where that matrix is not square."""
    a = floating(A, "tensorinv")
    if ind < 1:
        raise ValueError(f"tensorinv: ind must be at least 1, got {ind}")
    rows, columns = a.shape[:ind], a.shape[ind:]
    if math.prod(rows) != math.prod(columns):
        raise ShapeError(
            f"tensorinv: the first {ind} axes of {a.spec} must have as many elements as the others"
        )
    return inv(a.reshape((math.prod(rows), math.prod(columns)))).reshape((*columns, *rows))


@checked
def tensorsolve(A: Any, B: Any, dims: Sequence[int] | None = None) -> Any:
    """X of tensordot(A, X, X.ndim) = B: A's first axes are B's, the others X's; the axes in dims are first moved to
    the end. torch.linalg.tensorsolve. Raises ShapeError for mismatched sizes."""
    a, b = floating(A, "tensorsolve"), floating(B, "tensorsolve")
    if dims is not None:
        moved = normalize_axes(list(dims), a.ndim, "tensorsolve")
        a = permute(a, [*(i for i in range(a.ndim) if i not in moved), *(d % a.ndim for d in dims)])
    columns = a.shape[b.ndim :]
    if math.prod(columns) != b.spec.numel or a.spec.numel != b.spec.numel**2:
        raise ShapeError(f"tensorsolve: A {a.spec} and B {b.spec} make no square matrix")
    return solve(a.reshape((b.spec.numel, b.spec.numel)), b.reshape((b.spec.numel,))).reshape(columns)


# -------------------------------------------------------------------------------------------------------- triangles
@checked
def cholesky(input: Any, *, upper: bool = False) -> Any:
    """The lower triangular L of L L^T = input [..., N, N], symmetric and positive definite; upper: L^T.

    Only the lower triangle is read; the gradient is symmetric. torch.linalg.cholesky. Raises LinAlgError for a matrix
    that is not positive definite; in compiled functions the result is not finite.
    """
    return _factor("cholesky", input, upper, True).L


@checked
def cholesky_ex(input: Any, *, upper: bool = False, check_errors: bool = False) -> CholeskyEx[Any]:
    """`cholesky`, and int32 [...]: 0, or the 1-based index of the first pivot that is not positive, from which on the
    factor is not finite. torch.linalg.cholesky_ex; no device-to-host copy unless check_errors."""
    return _factor("cholesky_ex", input, upper, check_errors)


def _factor(what: str, input: Any, upper: bool, checks: bool) -> CholeskyEx[Any]:
    x = _matrix(what, input)
    a = _wide(x)
    low, info = bind(CholeskyFactor(), call(OneTriangle(), a) if a.records or recorder() is not None else a)
    if checks:

        def pivot(batch: tuple[int, ...], row: int) -> float:
            before = low.numpy()[batch][row, :row]
            return float(a.numpy()[batch][row, row] - before @ before)

        _check(what, info, "positive definite", pivot)
    return CholeskyEx((low.mT if upper else low).cast(x.dtype), info)


@checked
def cholesky_solve(B: Any, L: Any, upper: bool = False) -> Any:
    """X of A X = B [..., N, K], given A's factor L [..., N, N] from `cholesky`. torch.cholesky_solve."""
    factor = _matrix("cholesky_solve", L)
    low = factor.mT if upper else factor
    return solve_triangular(low.mT, solve_triangular(low, B, upper=False), upper=True)


@checked
def cholesky_inverse(L: Any, upper: bool = False) -> Any:
    """The inverse of a matrix from its factor L [..., N, N] (`cholesky`). torch.cholesky_inverse."""
    factor = _matrix("cholesky_inverse", L)
    unit = broadcast_to(np.eye(factor.shape[-1], dtype=_wide(factor).dtype.numpy), factor.shape)
    return cholesky_solve(unit, factor, upper).cast(factor.dtype)


@checked
def logdet(A: Any) -> Any:
    """The logarithm of the determinant of A [..., N, N]: -inf where it is 0, NaN where it is negative.
    torch.logdet."""
    found = slogdet(A)
    return where(found.sign < 0, np.nan, found.logabsdet)


@checked
def solve_triangular(
    input: Any, B: Any, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    """X of A X = B (left=False: X A = B) for triangular A, input [..., N, N], and B [..., N, K].

    unitriangular: the diagonal is assumed to be ones. torch.linalg.solve_triangular.
    """
    a, b = _matrix("solve_triangular", input), _matrix("solve_triangular", B, square=False)
    if b.shape[-2 if left else -1] != a.shape[-1]:
        raise ShapeError(f"solve_triangular: A {a.spec} and B {b.spec} do not fit")
    op = TriangularSolve(upper == left, unitriangular)
    x = _of_system(op, a, b)[0] if left else _of_system(op, a.mT, b.mT)[0].mT
    return x.cast(a.dtype)


# --------------------------------------------------------------------------------------------------------- orthogonal
def _wide(x: Any) -> Any:
    return x.cast(float32) if x.dtype.itemsize < 4 else x


@checked
def qr(A: Any, mode: Literal["reduced", "complete", "r"] = "reduced") -> QR[Any]:
    """(Q, R) of A [..., M, N] by Householder's reflections, with LAPACK's signs. torch.linalg.qr.

    K = min(M, N). "reduced": Q [..., M, K], R [..., K, N]; "complete": [..., M, M] and [..., M, N]; "r": Q is an
    empty tensor. Gradients are not finite where R's diagonal has a zero.
    """
    x = _matrix("qr", A, square=False)
    wide = _wide(x)
    if mode == "r":
        return QR(x.new_zeros((0,)), bind(TriangularFactor(), wide)[0].cast(x.dtype))
    more = mode == "complete" and x.shape[-2] > x.shape[-1]
    q, r = bind(CompleteOrthogonalFactor() if more else OrthogonalFactor(), wide)
    return QR(q.cast(x.dtype), r.cast(x.dtype))


def _symmetric(x: Any, uplo: str) -> Any:
    """The symmetric matrix from one triangle; gradients go to the full matrix, as in torch."""
    low = tril(x if uplo == "L" else x.mT)
    whole = low + tril(low, -1).mT
    return stop_gradient(whole - x) + x


@checked
def eigh(A: Any, UPLO: Literal["L", "U"] = "L") -> Eigh[Any]:
    """(eigenvalues [..., N] in ascending order, eigenvectors [..., N, N] as columns) of symmetric A [..., N, N].

    UPLO: the triangle that is read. In each vector the element of largest magnitude is positive; torch leaves the
    signs to the library. The vectors' gradients are not finite for repeated eigenvalues. torch.linalg.eigh.
    """
    x = _matrix("eigh", A)
    w, v = bind(SymmetricEigen(), _symmetric(_wide(x), UPLO))
    return Eigh(w.cast(x.dtype), v.cast(x.dtype))


@checked
def eigvalsh(A: Any, UPLO: Literal["L", "U"] = "L") -> Any:
    """The eigenvalues [..., N] of symmetric A [..., N, N], in ascending order. torch.linalg.eigvalsh."""
    return eigh(A, UPLO).eigenvalues


@checked
def svd(A: Any, full_matrices: bool = True) -> SVD[Any]:
    """(U, S, Vh) with A [..., M, N] = U diag(S) Vh, S [..., K] descending, K = min(M, N). torch.linalg.svd.

    full_matrices: U [..., M, M] and Vh [..., N, N], whose additional columns and rows have no gradient; else U [...,
    M, K] and Vh [..., K, N]. Signs are such that the largest element of each vector of the shorter side is positive.
    Gradients of vectors are not finite for repeated singular values.
    """
    x = _matrix("svd", A, square=False)
    *_, m, n = x.shape
    wide = _wide(x)
    u, s, v = bind(SingularValues(), wide if m >= n else wide.mT)
    if full_matrices and m != n:
        found = qr(stop_gradient(u), "complete").Q
        u = cat((u, stop_gradient(found[..., min(m, n) :])), -1)
    u, v = (u, v) if m >= n else (v, u)
    return SVD(u.cast(x.dtype), s.cast(x.dtype), v.mT.cast(x.dtype))


@checked
def svdvals(A: Any) -> Any:
    """The singular values [..., K] of A [..., M, N], in descending order. torch.linalg.svdvals."""
    return svd(A, full_matrices=False).S


def _kept(x: Any, values: Any, atol: float | None, rtol: float | None) -> Any:
    """Which magnitudes [..., K] are nonzero: above the larger of atol and rtol times the largest one."""
    if rtol is None:
        rtol = 0.0 if atol else float(np.finfo(values.dtype.numpy).eps) * max(x.shape[-2:])
    return values > maximum(amax(values, -1, True) * rtol, atol or 0.0)


@checked
def matrix_rank(
    A: Any, *, atol: float | None = None, rtol: float | None = None, hermitian: bool = False
) -> Any:
    """The number of singular values of A [..., M, N] above max(atol, rtol * the largest): int64 [...].

    rtol: max(M, N) times the dtype's eps by default, 0 where atol is given. hermitian: A is symmetric, and magnitudes
    of eigenvalues are used. torch.linalg.matrix_rank.
    """
    x = _matrix("matrix_rank", A, square=hermitian)
    values = abs(eigvalsh(x)) if hermitian else svdvals(x)
    return sum(_kept(x, values, atol, rtol).cast("int64"), -1)


@checked
def pinv(A: Any, *, atol: float | None = None, rtol: float | None = None, hermitian: bool = False) -> Any:
    """The Moore-Penrose pseudoinverse [..., N, M] of A [..., M, N], with `matrix_rank`'s cutoff for singular values.

    Gradients assume constant rank, whether or not singular values repeat. torch.linalg.pinv.
    """
    x = _matrix("pinv", A, square=hermitian)
    a = _wide(x)
    u, s, vh = svd(stop_gradient(a), full_matrices=False)
    kept = _kept(x, s, atol, rtol)
    p = matmul(vh.mT * where(kept, 1.0 / where(kept, s, 1.0), 0.0).unsqueeze(-2), u.mT)
    return call(PseudoInverse(), a, p).cast(x.dtype)


@checked
def lstsq(A: Any, B: Any, rcond: float | None = None, *, driver: str | None = None) -> LeastSquares[Any]:
    """X [..., N, K] that minimizes |A X - B|, for A [..., M, N] and B [..., M, K] (or vectors [..., M]).

    Uses singular values, so it is the minimum-norm solution; rcond: the fraction of the largest one below which they
    count as 0, by default max(M, N) times eps. driver: accepted for torch's sake and ignored. residuals is empty
    unless M > N; then the sums of squared residuals [..., K]. torch.linalg.lstsq.
    """
    a, b = _matrix("lstsq", A, square=False), floating(B, "lstsq")
    vectors = b.ndim == a.ndim - 1
    b = b.unsqueeze(-1) if vectors else b
    if b.ndim < 2 or b.shape[-2] != a.shape[-2]:
        raise ShapeError(f"lstsq: A {a.spec} and B {b.spec} do not fit")
    x = matmul(pinv(a, rtol=rcond), b)
    values = svdvals(a)
    rank = sum(_kept(a, values, None, rcond).cast("int64"), -1)
    left = b - matmul(a, x)
    more = a.shape[-2] > a.shape[-1]
    residuals = sum(left * left, -2) if more else a.new_zeros((0,))
    return LeastSquares(x.squeeze(-1) if vectors else x, residuals, rank, values)


@checked
def cond(A: Any, p: float | Literal["fro", "nuc"] | None = None) -> Any:
    """The norm of A times the norm of its inverse; None and 2: the ratio of the largest to the smallest singular
    value, -2 the inverse ratio. torch.linalg.cond."""
    x = _matrix("cond", A, square=p not in (None, 2, -2))
    if p in (None, 2, -2):
        values = svdvals(x)
        most, least = values[..., 0], values[..., -1]
        return least / most if p == -2 else most / least
    order: Any = p
    return matrix_norm(x, order) * matrix_norm(inv(x), order)


# ----------------------------------------------------------------------------------------------- products and norms
@checked
def matrix_power(A: Any, n: int) -> Any:
    """A [..., N, N] to the power n, by squaring; for n < 0 of its inverse. torch.linalg.matrix_power."""
    a = _matrix("matrix_power", A)
    if n < 0:
        return matrix_power(inv(a), -n)
    found: Any = None
    while n:
        if n & 1:
            found = (a.clone() if n == 1 else a) if found is None else matmul(found, a)
        n >>= 1
        a = matmul(a, a) if n else a
    return a * 0.0 + np.eye(a.shape[-1], dtype=a.dtype.numpy) if found is None else found


#: Terms of the series for the exponential and the norm up to which it is exact, by itemsize; and the maximum number
#: of squarings.
_TERMS, _REACH, _SQUARED = {4: 10, 8: 18}, {4: 0.6, 8: 1.0}, 12


@checked
def matrix_exp(A: Any) -> Any:
    """The exponential of A [..., N, N]: the series of A / 2^s, squared s times. torch.linalg.matrix_exp.

    Matrices with norms beyond 2^12 are only as accurate as twelve squarings allow. (Moler and Van Loan 2003)
    """
    a = _matrix("matrix_exp", A)
    if not a.spec.numel:
        return a
    kind, a = a.dtype, a.cast(float32) if a.dtype.itemsize < 4 else a
    wide = a.dtype.itemsize
    columns = sum(abs(stop_gradient(a)), -2, keepdim=True)
    held = amax(columns, -1, keepdim=True)  # [..., 1, 1]: the largest
    times = clamp(ceil(log(held / _REACH[wide] + 1e-30) * (1 / np.log(2.0))), 0.0, float(_SQUARED))
    a = a * exp(times * -np.log(2.0))
    eye = np.eye(a.shape[-1], dtype=a.dtype.numpy)
    found = eye + a * (1 / _TERMS[wide])
    for n in range(_TERMS[wide] - 1, 0, -1):
        found = eye + matmul(a, found) * (1 / n)
    for i in range(_SQUARED):
        squared = where(times > i, found, 0.0)  # the others are masked before they could overflow
        found = where(times > i, matmul(squared, squared), found)
    return found.cast(kind)


@checked
def householder_product(A: Any, tau: Any) -> Any:
    """The first columns of H_1 H_2 … H_k with H_i = 1 - tau_i v_i v_iᵀ, v_i being column i of A [..., M, N] below its
    diagonal, with 1 on it. tau: [..., k], k at most N. torch.linalg.householder_product. Raises ShapeError.
    """
    a, scale = _matrix("householder_product", A, square=False), floating(tau, "householder_product")
    (rows, columns), count = a.shape[-2:], scale.shape[-1]
    if not count <= columns <= rows or scale.shape[:-1] != a.shape[:-2]:
        raise ShapeError(
            f"householder_product: takes A [..., M, N] with M >= N and tau [..., k], k <= N, got {a.spec} and "
            f"{scale.spec}"
        )
    kind, a = a.dtype, _wide(a)
    scale = scale.cast(a.dtype).unsqueeze(-1)
    v = where(
        np.tri(rows, count, -1, dtype=np.bool_), a[..., :count], np.eye(rows, count, dtype=a.dtype.numpy)
    )
    # H_1 … H_k = 1 - V T V^T, where T = (1 + diag(tau) S)^-1 diag(tau), S the strict upper triangle of V^T V
    # (C. Puglisi: "Modification of the Householder method based on the compact WY representation", 1992).
    (turned,) = bind(
        TriangularSolve(upper=True, unit=True), scale * matmul(v.mT, v), scale * v[..., :columns, :].mT
    )
    return (np.eye(rows, columns, dtype=a.dtype.numpy) - matmul(v, turned)).cast(kind)


@checked
def multi_dot(tensors: Sequence[Any]) -> Any:
    """The product of matrices in the cheapest order; the ends may be vectors. torch.linalg.multi_dot.

    Raises ValueError for fewer than two.
    """
    xs = [floating(x, "multi_dot") for x in tensors]
    if len(xs) < 2:
        raise ValueError(f"multi_dot: takes two tensors or more, got {len(xs)}")
    first, last = xs[0].ndim == 1, xs[-1].ndim == 1
    xs[0] = xs[0].unsqueeze(0) if first else xs[0]
    xs[-1] = xs[-1].unsqueeze(-1) if last else xs[-1]
    sizes = [xs[0].shape[0], *(x.shape[-1] for x in xs)]
    found = _ordered(xs, sizes, 0, len(xs) - 1, {})[1]()
    found = found.squeeze(-1) if last else found
    return found.squeeze(0) if first else found


def _ordered(xs: list[Any], sizes: list[int], i: int, j: int, known: dict[tuple[int, int], Any]) -> Any:
    """(the minimum number of multiplications for tensors i … j, the function that computes their product)."""
    if i == j:
        return 0, lambda: xs[i]
    if (i, j) not in known:
        ways = []
        for k in range(i, j):
            (cost, left), (more, right) = (
                _ordered(xs, sizes, i, k, known),
                _ordered(xs, sizes, k + 1, j, known),
            )
            total = cost + more + sizes[i] * sizes[k + 1] * sizes[j + 1]
            ways.append((total, lambda left=left, right=right: matmul(left(), right())))
        known[i, j] = min(ways, key=lambda way: way[0])
    return known[i, j]


@checked
def vecdot(x: Any, y: Any, *, dim: int = -1) -> Any:
    """The dot products of vectors along an axis; leading axes are a batch and broadcast. torch.linalg.vecdot.

    Raises ShapeError for vectors of different lengths.
    """
    a, b = operand(x, "vecdot", "x"), operand(y, "vecdot", "y")
    shape = broadcast_shapes(a.shape, b.shape, "vecdot")
    axis = normalize_axis(dim, len(shape), "vecdot: dim") - len(shape)
    if min(a.ndim, b.ndim) < -axis or a.shape[axis] != b.shape[axis]:
        raise ShapeError(f"vecdot: vectors along axis {dim} must be of one length, got {a.spec} and {b.spec}")
    return sum(a * b, axis)


@checked
def vander(x: Any, *, N: int | None = None) -> Any:
    """The powers 0 … N - 1 of the elements of x [..., K]: [..., K, N], N = K by default. torch.linalg.vander.

    Raises ValueError for N < 2, ShapeError for a scalar.
    """
    v = operand(x, "vander", "x")
    if not v.ndim:
        raise ShapeError(f"vander: x must have an axis, got {v.spec}")
    if N is not None and N < 2:
        raise ValueError(f"vander: N must be at least 2, got {N}")
    return powers(v, N, increasing=True)


@checked
def matrix_norm(
    A: Any,
    ord: float | Literal["fro", "nuc"] = "fro",
    dim: Sequence[int] = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: DTypeLike | None = None,
) -> Any:
    """The norm of matrices along two axes: "fro" the root of the sum of squares, inf and -inf the largest and
    smallest row sum of magnitudes, 1 and -1 the column sum; of the singular values "nuc" the sum, 2 and -2 the
    largest and the smallest. dtype: the compute dtype. torch.linalg.matrix_norm. Raises ValueError for another ord.
    """
    x = _matrix("matrix_norm", A if dtype is None else cast(A, dtype), square=False)
    rows, columns = (d % x.ndim for d in dim)
    if ord == "fro":
        return vector_norm(x, 2, (rows, columns), keepdim)
    if ord in (2, -2, "nuc"):
        values = svdvals(movedim(x, (rows, columns), (-2, -1)))
        found = sum(values, -1) if ord == "nuc" else (amax if ord == 2 else amin)(values, -1)
        return found.unsqueeze(min(rows, columns)).unsqueeze(max(rows, columns)) if keepdim else found
    order = float(ord)
    if max(order, -order) not in (1, np.inf):
        raise ValueError(f"matrix_norm: ord must be 'fro', 'nuc', inf, -inf, 1, -1, 2 or -2, got {ord!r}")
    sums, over = (columns, rows) if np.isinf(order) else (rows, columns)
    found = (amax if order > 0 else amin)(sum(abs(x), sums, True), over, True)
    return found if keepdim else found.squeeze(max(rows, columns)).squeeze(min(rows, columns))


@checked
def norm(
    A: Any,
    ord: float | Literal["fro", "nuc"] | None = None,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DTypeLike | None = None,
) -> Any:
    """`matrix_norm` if dim is two axes, or ord is given for a matrix; else `vector_norm`. torch.linalg.norm.

    dtype: the compute dtype.
    """
    x = floating(A if dtype is None else cast(A, dtype), "norm")
    axes = (-2, -1) if dim is None and x.ndim == 2 else (dim,) if isinstance(dim, int) else tuple(dim or ())
    if ord is not None and len(axes) == 2:
        return matrix_norm(x, ord, axes, keepdim)
    if isinstance(ord, str):
        raise ValueError(f"norm: ord={ord!r} is of matrices, got {x.spec} and dim {dim}")
    return vector_norm(x, 2 if ord is None else ord, dim, keepdim)


inverse = inv
pinverse = pinv
