"""Norms and distances along axes."""

from __future__ import annotations

import math
from typing import Any, Literal

from lamina.ops.arguments import Dims, DTypeLike, checked
from lamina.ops.core import operand
from lamina.ops.primitives.cast import cast
from lamina.ops.primitives.elementary import pow
from lamina.ops.primitives.pointwise import abs, sub, where
from lamina.ops.primitives.reduce import amax, amin, dims, norm2, sum
from lamina.spec import DTypeError, ShapeError, float32, normalize_axis


@checked
def vector_norm(
    input: Any, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: DTypeLike | None = None
) -> Any:
    """The sum of magnitudes to the power of ord, to the power of 1 / ord, along dim; for ord 0 the number of
    nonzeros, for infinities the largest and smallest magnitude. torch.linalg.vector_norm.

    The gradient is 0 where the norm is 0. dtype: input is cast to it first. Raises DTypeError for integers.
    """
    x = operand(input, "vector_norm")
    x = x if dtype is None else cast(x, dtype)
    if not x.dtype.is_float:
        raise DTypeError(f"vector_norm: takes floats, got {x.spec}; cast with ops.cast")
    return _norm(x, float(ord), dims(dim, x.ndim, "vector_norm"), keepdim)


def _norm(x: Any, p: float, axes: tuple[int, ...], keepdim: bool) -> Any:
    if p == 0:
        return _total(cast(x != 0, x.dtype), axes, keepdim)
    if x.ndim == 0 or p == 1:
        return _total(abs(x), axes, keepdim)
    if math.isinf(p):
        if p > 0 and any(x.shape[a] == 0 for a in axes):
            return _total(x, axes, keepdim)
        return (amax if p > 0 else amin)(abs(x), axes, keepdim)
    if p == 2:
        return norm2(x, axes, keepdim)
    if x.dtype.itemsize < 4:  # powers overflow in half types
        return cast(_norm(cast(x, float32), p, axes, keepdim), x.dtype)
    zero = x == 0
    powers = pow(where(zero, 1.0, abs(x)), p)
    total = _total(where(zero, 0.0 if p > 0 else math.inf, powers), axes, keepdim)
    none = (total == 0) | (total == math.inf)
    return where(none, pow(total, 1 / p), pow(where(none, 1.0, total), 1 / p))


def _total(x: Any, axes: tuple[int, ...], keepdim: bool) -> Any:
    return sum(x, axes, keepdim) if x.ndim else x


@checked
def norm(
    input: Any,
    p: float | Literal["fro", "nuc"] | None = "fro",
    dim: Dims = None,
    keepdim: bool = False,
    dtype: DTypeLike | None = None,
) -> Any:
    """`vector_norm` of order p, where "fro" and None mean 2, by default over all axes. torch.norm.

    Raises NotImplementedError for "nuc", the sum of the singular values: `linalg.matrix_norm` computes it.
    """
    if p == "nuc":
        raise NotImplementedError("norm: 'nuc' is of matrices: linalg.matrix_norm(input, 'nuc', dim)")
    return vector_norm(input, 2.0 if p is None or p == "fro" else p, dim, keepdim, dtype=dtype)


@checked
def dist(input: Any, other: Any, p: float = 2) -> Any:
    """The p-norm of the difference."""
    return vector_norm(sub(input, other), p)


@checked
def renorm(input: Any, p: float, dim: int, maxnorm: float) -> Any:
    """input with each slice of an axis whose p-norm exceeds maxnorm scaled down to it. torch.renorm."""
    x = operand(input, "renorm")
    if x.ndim < 2 or p <= 0 or maxnorm < 0:
        raise ShapeError(f"renorm: needs two axes, p > 0 and maxnorm >= 0, got {x.spec}, {p} and {maxnorm}")
    axis = normalize_axis(dim, x.ndim, "renorm")
    size = vector_norm(x, p, [a for a in range(x.ndim) if a != axis], True)
    return x * where(size > maxnorm, maxnorm / (size + 1e-7), 1.0)
