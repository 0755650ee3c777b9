"""Linear algebra: torch.linalg's functions, and older ones of torch.

The exporter assumes that the shapes of least squares depend on values: `lamina::lstsq` replaces it while a network's
graph is made.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from lamina import ops
from lamina.convert.torch.node import TorchCall, converts, defined, dtype_of, is_operand, known
from lamina.ops import linalg


@converts("linalg_inv", "inverse", "linalg_det", "det", "linalg_slogdet", "slogdet")
def of_one_matrix(call: TorchCall) -> Any:
    """The inverse; the determinant."""
    name = call.name.removeprefix("linalg_")
    return getattr(linalg, "inv" if name == "inverse" else name)(call.either("input", "A"))


@converts("logdet")
def logdet(call: TorchCall) -> Any:
    """The logarithm of the determinant: NaN where that is negative."""
    return linalg.logdet(call["input"])


@converts("linalg_matrix_exp", "matrix_exp")
def matrix_exp(call: TorchCall) -> Any:
    """The exponential of a matrix."""
    return linalg.matrix_exp(call.either("input", "A"))


@converts("linalg_solve")
def solve(call: TorchCall) -> Any:
    """A⁻¹ B."""
    return linalg.solve(call["A"], call["B"], left=call.get("left", True))


@converts("linalg_solve_ex", "linalg_inv_ex", "linalg_cholesky_ex", "linalg_lu", "linalg_lu_factor",
          "linalg_lu_factor_ex", "linalg_lu_solve", "linalg_tensorinv", "linalg_tensorsolve")  # fmt: skip
def of_the_name(call: TorchCall) -> Any:
    """The function of the same name and keywords."""
    if not call.get("pivot", True):
        raise call.error("takes pivot=True alone")
    given = {name: call[name] for name in call.cells if name != "pivot"}
    operands = [given.pop(name) for name in list(given) if is_operand(given[name])]
    return getattr(linalg, call.name.removeprefix("linalg_"))(*operands, **given)


@converts("lu_solve")
def lu_solve(call: TorchCall) -> Any:
    """A⁻¹ B from A's factors."""
    return linalg.lu_solve(call["LU_data"], call["LU_pivots"], call["input"])


@converts("linalg_cholesky", "cholesky")
def cholesky(call: TorchCall) -> Any:
    """The triangular factor."""
    return linalg.cholesky(call["input"], upper=call.get("upper", False))


@converts("cholesky_solve")
def cholesky_solve(call: TorchCall) -> Any:
    """(L L^T)⁻¹ B."""
    return linalg.cholesky_solve(call["input"], call["input2"], call.get("upper", False))


@converts("cholesky_inverse")
def cholesky_inverse(call: TorchCall) -> Any:
    """(L L^T)⁻¹."""
    return linalg.cholesky_inverse(call["input"], call.get("upper", False))


@converts("linalg_solve_triangular")
def solve_triangular(call: TorchCall) -> Any:
    """A⁻¹ B for a triangular A."""
    return linalg.solve_triangular(
        call["input"], call["B"], upper=call["upper"], left=call.get("left", True),
        unitriangular=call.get("unitriangular", False),
    )  # fmt: skip


@converts("linalg_eigh")
def eigh(call: TorchCall) -> Any:
    """Eigenvalues and vectors, with Lamina's signs."""
    return linalg.eigh(call["input"], call.get("UPLO", "L"))


@converts("linalg_eigvalsh")
def eigvalsh(call: TorchCall) -> Any:
    """Eigenvalues."""
    return linalg.eigvalsh(call["input"], call.get("UPLO", "L"))


@converts("linalg_svd", "linalg_svdvals", "svd")
def svd(call: TorchCall) -> Any:
    """Singular values and vectors, with Lamina's signs; torch.svd returns V instead of its transpose, by default
    without more vectors than values."""
    a = call.either("input", "A")
    if call.name == "linalg_svdvals":
        return linalg.svdvals(a)
    if call.name == "linalg_svd":
        return linalg.svd(a, call.get("full_matrices", True))
    u, s, vh = linalg.svd(a, not call.get("some", True))
    return (u, s, vh.mT) if call.get("compute_uv", True) else (u * 0, s, vh.mT * 0)


@converts("linalg_qr", "qr")
def qr(call: TorchCall) -> Any:
    """An orthogonal and a triangular matrix."""
    mode: Any = call.get("mode", "reduced") if call.name == "linalg_qr" else "reduced"
    return linalg.qr(call.either("input", "A"), mode if call.get("some", True) else "complete")


@converts("linalg_pinv", "pinverse", "linalg_matrix_rank", "matrix_rank")
def by_singular_values(call: TorchCall) -> Any:
    """The pseudoinverse; the rank. The tolerances must be known."""
    function = linalg.pinv if "inv" in call.name else linalg.matrix_rank
    given = {k: _number(call, k) for k in ("atol", "rtol", "rcond", "tol") if call.get(k) is not None}
    bounds = {"rtol": given.get("rcond", given.get("rtol")), "atol": given.get("tol", given.get("atol"))}
    return function(call.either("input", "A"), **bounds, hermitian=call.get("hermitian", False))


def _number(call: TorchCall, name: str) -> float:
    value = call[name]
    found = known(value) if is_operand(value) else value
    if found is None:
        raise call.error(f"takes {name} as a number that is known before the program runs")
    return float(found)


class LinalgMode(TorchFunctionMode):
    """Within the block PyTorch's least squares and covariances are replaced by those of the graph."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The function, or its replacement."""
        if func in _COVARIANCES:
            return getattr(torch.ops.lamina, func.__name__)(*args, **(kwargs or {}))
        if func is not torch.linalg.lstsq:
            return func(*args, **(kwargs or {}))

        def named(A: Any, B: Any, rcond: float | None = None, *, driver: str | None = None) -> Any:
            return torch.ops.lamina.lstsq(A, B, rcond)

        return torch.return_types.linalg_lstsq(named(*args, **(kwargs or {})))


def _lstsq(a: Any, b: Any, rcond: float | None) -> Any:
    *lead, rows, columns = a.shape
    vectors = b.ndim == a.ndim - 1
    more = [] if vectors else [b.shape[-1]]
    left = [*lead, *more] if rows > columns else [0]
    values = a.new_empty([*lead, min(rows, columns)])
    return (
        a.new_empty([*lead, columns, *more]),
        a.new_empty(left),
        a.new_empty(lead, dtype=torch.int64),
        values,
    )


defined("lstsq", "(Tensor input, Tensor b, float? rcond) -> (Tensor, Tensor, Tensor, Tensor)", _lstsq)


@converts("linalg_lstsq", "lamina::lstsq")
def lstsq(call: TorchCall) -> Any:
    """The solutions of least squares."""
    return linalg.lstsq(call.either("input", "A"), call.either("b", "B"), call.get("rcond"))


def _square(input: Any, **_: Any) -> torch.Tensor:
    return input.new_empty([input.shape[0]] * 2 if input.ndim == 2 else [])


#: They inspect values, which the exporter cannot trace.
_COVARIANCES = (torch.cov, torch.Tensor.cov, torch.corrcoef, torch.Tensor.corrcoef)
defined(
    "cov",
    "(Tensor input, *, int correction=1, Tensor? fweights=None, Tensor? aweights=None) -> Tensor",
    _square,
)
defined("corrcoef", "(Tensor input) -> Tensor", _square)


@converts("lamina::cov", "lamina::corrcoef")
def covariances(call: TorchCall) -> Any:
    """Of variables, one per row."""
    return getattr(ops, call.name.removeprefix("lamina::"))(
        call["input"], **{k: call[k] for k in call.cells if k != "input"}
    )


@converts("linalg_cond")
def cond(call: TorchCall) -> Any:
    """The condition number."""
    return linalg.cond(call.either("input", "A"), call.get("p"))


@converts("linalg_vecdot")
def vecdot(call: TorchCall) -> Any:
    """Dot products along an axis."""
    return linalg.vecdot(call["x"], call["y"], dim=call.get("dim", -1))


@converts("linalg_vander")
def vander(call: TorchCall) -> Any:
    """Powers."""
    return linalg.vander(call["x"], N=call.get("N"))


@converts("block_diag")
def block_diag(call: TorchCall) -> Any:
    """Matrices along a diagonal, passed one by one or as a list."""
    given = [call[k] for k in call.cells]
    return ops.block_diag(
        *itertools.chain.from_iterable(x if isinstance(x, (list, tuple)) else [x] for x in given)
    )


@converts("linalg_norm", "linalg_matrix_norm")
def norm(call: TorchCall) -> Any:
    """Of matrices and vectors."""
    dim, whole = call.get("dim"), call.name == "linalg_matrix_norm"
    dim = tuple(dim) if isinstance(dim, (tuple, list)) else dim
    x = call["input"] if call.get("dtype") is None else ops.cast(call["input"], call.dtype(None))
    if whole:
        return linalg.matrix_norm(x, call.get("ord", "fro"), dim or (-2, -1), call.get("keepdim", False))
    return linalg.norm(x, call.get("ord"), dim, call.get("keepdim", False))


@converts("linalg_matrix_power", "matrix_power")
def matrix_power(call: TorchCall) -> Any:
    """A matrix multiplied by itself."""
    return linalg.matrix_power(call["input"], call["n"])


@converts("linalg_householder_product", "orgqr")
def householder_product(call: TorchCall) -> Any:
    """The product of Householder reflections."""
    return linalg.householder_product(call["input"], call.either("tau", "input2"))


@converts("linalg_multi_dot", "chain_matmul")
def multi_dot(call: TorchCall) -> Any:
    """A product of several matrices: in one list, or one by one."""
    given = next((call[name] for name in ("tensors", "matrices") if name in call), None)
    return linalg.multi_dot([call[name] for name in call.cells if name != "out"] if given is None else given)


@converts("tensordot")
def tensordot(call: TorchCall) -> Any:
    """Products summed over axes; the ATen overload has each operand's axes separately."""
    a, b = call.either("input", "a"), call.either("other", "b")
    dims = (call["dims_self"], call["dims_other"]) if "dims_self" in call else call.get("dims", 2)
    return ops.tensordot(a, b, dims)


@converts("grouped_mm", "_grouped_mm", "transformers::grouped_mm_fallback")
def grouped_product(call: TorchCall) -> Any:
    """Rows [S, K] in groups, each times its own matrix of [G, K, N]: group g ends before row offs[g].

    The groups' lengths are only known by value, so each matrix is applied to all rows, those of other groups being
    zeros.
    """
    x, weight = call["input"], call.either("mat2", "mat_b", "weight")
    ends, bias = call.get("offs"), call.get("bias")
    if (x.ndim, weight.ndim) != (2, 3) or ends is None or bias is not None:
        raise call.error(f"takes rows [S, K], matrices [G, K, N] and offs, without a bias; got {x}, {weight}")
    row = np.arange(x.shape[0])
    below = [ops.unsqueeze(ops.lt(row, ends[g]), 1) for g in range(weight.shape[0])]  # of the groups up to g
    inside = [below[0], *(b & ~a for a, b in itertools.pairwise(below))]
    parts = [ops.matmul(ops.where(own, x, 0.0), weight[g]) for g, own in enumerate(inside)]
    kind = call.get("out_dtype")
    return ops.cast(sum(parts[1:], parts[0]), x.dtype if kind is None else dtype_of(kind))
