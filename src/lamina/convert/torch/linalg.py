"""Linear algebra: torch.linalg's functions, and those of torch that are older."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from lamina import ops
from lamina.convert.torch.node import TorchCall, converts, dtype_of
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
    """A⁻¹ B of a triangle A."""
    return linalg.solve_triangular(
        call["input"], call["B"], upper=call["upper"], left=call.get("left", True),
        unitriangular=call.get("unitriangular", False),
    )  # fmt: skip


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
    """The product of reflections."""
    return linalg.householder_product(call["input"], call.either("tau", "input2"))


@converts("linalg_multi_dot", "chain_matmul")
def multi_dot(call: TorchCall) -> Any:
    """A product of several matrices."""
    return linalg.multi_dot(call.either("tensors", "matrices"))


@converts("tensordot")
def tensordot(call: TorchCall) -> Any:
    """Products summed over axes; the overload of ATen has the axes of each operand apart."""
    a, b = call.either("input", "a"), call.either("other", "b")
    dims = (call["dims_self"], call["dims_other"]) if "dims_self" in call else call.get("dims", 2)
    return ops.tensordot(a, b, dims)


@converts("grouped_mm", "_grouped_mm", "transformers::grouped_mm_fallback")
def grouped_product(call: TorchCall) -> Any:
    """Rows [S, K] in groups, each times a matrix of its own of [G, K, N]: group g ends before row offs[g].

    How long a group is only its numbers say, so each matrix meets all rows, those of other groups as zeros.
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
