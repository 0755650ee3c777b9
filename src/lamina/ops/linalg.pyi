"""Generated from the signatures by `python -m tools.stubs write`; do not edit."""

# An overload for traced values also takes what the one before takes; which one holds is decided in this order.
# mypy: disable-error-code="overload-overlap, override, misc"
# pyright: reportOverlappingOverload=false, reportIncompatibleMethodOverride=false

from collections.abc import Sequence
from typing import Literal, overload

from lamina.graph.ir.graph import Value
from lamina.ops.arguments import Dims, DTypeLike
from lamina.tensors import Tensor, TensorLike

__all__ = [
    "LinAlgError",
    "cholesky",
    "cholesky_ex",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eigh",
    "eigvalsh",
    "householder_product",
    "inv",
    "inv_ex",
    "lstsq",
    "lu",
    "lu_factor",
    "lu_factor_ex",
    "lu_solve",
    "matrix_exp",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "multi_dot",
    "norm",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_ex",
    "solve_triangular",
    "svd",
    "svdvals",
    "tensorinv",
    "tensorsolve",
    "vander",
    "vecdot",
    "vector_norm",
]
from typing import Generic, NamedTuple, TypeVar

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

@overload
def cholesky(input: TensorLike, *, upper: bool = False) -> Tensor: ...
@overload
def cholesky(input: Value, *, upper: bool = False) -> Value: ...
@overload
def cholesky_ex(
    input: TensorLike, *, upper: bool = False, check_errors: bool = False
) -> CholeskyEx[Tensor]: ...
@overload
def cholesky_ex(input: Value, *, upper: bool = False, check_errors: bool = False) -> CholeskyEx[Value]: ...
@overload
def cond(A: TensorLike, p: float | Literal["fro", "nuc"] | None = None) -> Tensor: ...
@overload
def cond(A: Value, p: float | Literal["fro", "nuc"] | None = None) -> Value: ...
@overload
def cross(input: TensorLike, other: TensorLike, *, dim: int = -1) -> Tensor: ...
@overload
def cross(input: Value | TensorLike, other: Value | TensorLike, *, dim: int = -1) -> Value: ...
@overload
def det(A: TensorLike) -> Tensor: ...
@overload
def det(A: Value) -> Value: ...
@overload
def diagonal(A: TensorLike, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor: ...
@overload
def diagonal(A: Value, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Value: ...
@overload
def eigh(A: TensorLike, UPLO: Literal["L", "U"] = "L") -> Eigh[Tensor]: ...
@overload
def eigh(A: Value, UPLO: Literal["L", "U"] = "L") -> Eigh[Value]: ...
@overload
def eigvalsh(A: TensorLike, UPLO: Literal["L", "U"] = "L") -> Tensor: ...
@overload
def eigvalsh(A: Value, UPLO: Literal["L", "U"] = "L") -> Value: ...
@overload
def householder_product(A: TensorLike, tau: TensorLike) -> Tensor: ...
@overload
def householder_product(A: Value | TensorLike, tau: Value | TensorLike) -> Value: ...
@overload
def inv(A: TensorLike) -> Tensor: ...
@overload
def inv(A: Value) -> Value: ...
@overload
def inv_ex(A: TensorLike, *, check_errors: bool = False) -> InvEx[Tensor]: ...
@overload
def inv_ex(A: Value, *, check_errors: bool = False) -> InvEx[Value]: ...
@overload
def lstsq(
    A: TensorLike, B: TensorLike, rcond: float | None = None, *, driver: str | None = None
) -> LeastSquares[Tensor]: ...
@overload
def lstsq(
    A: Value | TensorLike, B: Value | TensorLike, rcond: float | None = None, *, driver: str | None = None
) -> LeastSquares[Value]: ...
@overload
def lu(A: TensorLike) -> LU[Tensor]: ...
@overload
def lu(A: Value) -> LU[Value]: ...
@overload
def lu_factor(A: TensorLike) -> LUFactor[Tensor]: ...
@overload
def lu_factor(A: Value) -> LUFactor[Value]: ...
@overload
def lu_factor_ex(A: TensorLike, *, check_errors: bool = False) -> LUFactorEx[Tensor]: ...
@overload
def lu_factor_ex(A: Value, *, check_errors: bool = False) -> LUFactorEx[Value]: ...
@overload
def lu_solve(
    LU: TensorLike, pivots: TensorLike, B: TensorLike, *, left: bool = True, adjoint: bool = False
) -> Tensor: ...
@overload
def lu_solve(
    LU: Value | TensorLike,
    pivots: Value | TensorLike,
    B: Value | TensorLike,
    *,
    left: bool = True,
    adjoint: bool = False,
) -> Value: ...
@overload
def matrix_exp(A: TensorLike) -> Tensor: ...
@overload
def matrix_exp(A: Value) -> Value: ...
@overload
def matrix_norm(
    A: TensorLike,
    ord: float | Literal["fro", "nuc"] = "fro",
    dim: Sequence[int] = ...,
    keepdim: bool = False,
    *,
    dtype: DTypeLike | None = None,
) -> Tensor: ...
@overload
def matrix_norm(
    A: Value,
    ord: float | Literal["fro", "nuc"] = "fro",
    dim: Sequence[int] = ...,
    keepdim: bool = False,
    *,
    dtype: DTypeLike | None = None,
) -> Value: ...
@overload
def matrix_power(A: TensorLike, n: int) -> Tensor: ...
@overload
def matrix_power(A: Value, n: int) -> Value: ...
@overload
def matrix_rank(
    A: TensorLike, *, atol: float | None = None, rtol: float | None = None, hermitian: bool = False
) -> Tensor: ...
@overload
def matrix_rank(
    A: Value, *, atol: float | None = None, rtol: float | None = None, hermitian: bool = False
) -> Value: ...
@overload
def multi_dot(tensors: Sequence[TensorLike]) -> Tensor: ...
@overload
def multi_dot(tensors: Sequence[Value | TensorLike]) -> Value: ...
@overload
def norm(
    A: TensorLike,
    ord: float | Literal["fro", "nuc"] | None = None,
    dim: Dims | None = None,
    keepdim: bool = False,
    *,
    dtype: DTypeLike | None = None,
) -> Tensor: ...
@overload
def norm(
    A: Value,
    ord: float | Literal["fro", "nuc"] | None = None,
    dim: Dims | None = None,
    keepdim: bool = False,
    *,
    dtype: DTypeLike | None = None,
) -> Value: ...
@overload
def pinv(
    A: TensorLike, *, atol: float | None = None, rtol: float | None = None, hermitian: bool = False
) -> Tensor: ...
@overload
def pinv(
    A: Value, *, atol: float | None = None, rtol: float | None = None, hermitian: bool = False
) -> Value: ...
@overload
def qr(A: TensorLike, mode: Literal["reduced", "complete", "r"] = "reduced") -> QR[Tensor]: ...
@overload
def qr(A: Value, mode: Literal["reduced", "complete", "r"] = "reduced") -> QR[Value]: ...
@overload
def slogdet(A: TensorLike) -> SlogDet[Tensor]: ...
@overload
def slogdet(A: Value) -> SlogDet[Value]: ...
@overload
def solve(A: TensorLike, B: TensorLike, *, left: bool = True) -> Tensor: ...
@overload
def solve(A: Value | TensorLike, B: Value | TensorLike, *, left: bool = True) -> Value: ...
@overload
def solve_ex(
    A: TensorLike, B: TensorLike, *, left: bool = True, check_errors: bool = False
) -> SolveEx[Tensor]: ...
@overload
def solve_ex(
    A: Value | TensorLike, B: Value | TensorLike, *, left: bool = True, check_errors: bool = False
) -> SolveEx[Value]: ...
@overload
def solve_triangular(
    input: TensorLike, B: TensorLike, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor: ...
@overload
def solve_triangular(
    input: Value | TensorLike,
    B: Value | TensorLike,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> Value: ...
@overload
def svd(A: TensorLike, full_matrices: bool = True) -> SVD[Tensor]: ...
@overload
def svd(A: Value, full_matrices: bool = True) -> SVD[Value]: ...
@overload
def svdvals(A: TensorLike) -> Tensor: ...
@overload
def svdvals(A: Value) -> Value: ...
@overload
def tensorinv(A: TensorLike, ind: int = 2) -> Tensor: ...
@overload
def tensorinv(A: Value, ind: int = 2) -> Value: ...
@overload
def tensorsolve(A: TensorLike, B: TensorLike, dims: Sequence[int] | None = None) -> Tensor: ...
@overload
def tensorsolve(A: Value | TensorLike, B: Value | TensorLike, dims: Sequence[int] | None = None) -> Value: ...
@overload
def vander(x: TensorLike, *, N: int | None = None) -> Tensor: ...
@overload
def vander(x: Value, *, N: int | None = None) -> Value: ...
@overload
def vecdot(x: TensorLike, y: TensorLike, *, dim: int = -1) -> Tensor: ...
@overload
def vecdot(x: Value | TensorLike, y: Value | TensorLike, *, dim: int = -1) -> Value: ...
@overload
def vector_norm(
    input: TensorLike,
    ord: float = 2,
    dim: Dims | None = None,
    keepdim: bool = False,
    *,
    dtype: DTypeLike | None = None,
) -> Tensor: ...
@overload
def vector_norm(
    input: Value,
    ord: float = 2,
    dim: Dims | None = None,
    keepdim: bool = False,
    *,
    dtype: DTypeLike | None = None,
) -> Value: ...
@overload
def cholesky_solve(B: TensorLike, L: TensorLike, upper: bool = False) -> Tensor: ...
@overload
def cholesky_solve(B: Value | TensorLike, L: Value | TensorLike, upper: bool = False) -> Value: ...
@overload
def cholesky_inverse(L: TensorLike, upper: bool = False) -> Tensor: ...
@overload
def cholesky_inverse(L: Value, upper: bool = False) -> Value: ...
@overload
def logdet(A: TensorLike) -> Tensor: ...
@overload
def logdet(A: Value) -> Value: ...
