"""Matrix products."""

from __future__ import annotations

from typing import Any

from lamina import ops
from lamina.convert.onnx.integer import (
    Dequantized,
    eight_bits,
    multiplied_integers,
    one_number,
    per_output,
    quantized_to,
    summed_integers,
    weights,
)
from lamina.convert.onnx.node import OnnxNode, converts
from lamina.convert.onnx.quantize import centred, requantized, rounded
from lamina.spec import float32, float64, int32

#: Sums of this many products of 9-bit integers are exact in float32.
_EXACT_TERMS = (1 << 24) // 255**2


@converts("MatMul")
def matmul(node: OnnxNode) -> Any:
    """numpy.matmul."""
    a, b = node.input(0), node.input(1)
    found = _of_integers(node)
    return product(a, b) if found is None else found


def real_product(
    a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any, *, transposed: bool = False
) -> Any:
    """The product of two dequantized matrices, float32; None if 8-bit kernels do not support it.

    a [..., K] with one scale, b [K, N] of known numbers ([N, K] if transposed), whose scale and zero point may be per
    column.
    """
    if b.ndim != 2 or not eight_bits(a) or not one_number(a_scale, a_zero):
        return None
    held, scale = weights(b, b_zero, transposed), per_output(b_scale, b.shape[0 if transposed else 1])
    if held is None or scale is None or 0 in a.shape or a.ndim < 1:
        return None
    scale = ops.mul(scale, ops.cast(a_scale, float32).reshape(()))
    return multiplied_integers(a, None if a_zero is None else a_zero.reshape(()), held, scale)


def integer_product(a: Any, a_zero: Any, b: Any, b_zero: Any) -> Any:
    """(A - its zero point) (B - its zero point), int32; a zero point for each row of A, for each column of B."""
    held = weights(b, b_zero) if b.ndim == 2 and eight_bits(a) and 0 not in a.shape else None
    if held is not None:
        zero = a_zero if a_zero is None or one_number(a_zero) else a_zero.unsqueeze(-1)
        return summed_integers(a, zero, held)
    left, right = centred(a, a_zero, axis=-2), centred(b, b_zero, axis=-1)
    if eight_bits(a, b) and a.shape[-1] <= _EXACT_TERMS:
        return ops.cast(ops.matmul(ops.cast(left, float32), ops.cast(right, float32)), int32)
    return product(left, right)


def product(x: Any, y: Any) -> Any:
    """The matrix product in the inputs' dtype; of integers exact below 2^53, by float64."""
    if x.dtype.kind == "f":
        return ops.matmul(x, y)
    return ops.cast(ops.matmul(ops.cast(x, float64), ops.cast(y, float64)), x.dtype)


@converts("Gemm")
def gemm(node: OnnxNode) -> Any:
    """alpha A B + beta C, A and B transposed if requested."""
    a, b, c = node.input(0), node.input(1), node.optional(2)
    a = ops.transpose(a, 0, 1) if node.get("transA", 0) else a
    b = ops.transpose(b, 0, 1) if node.get("transB", 0) else b
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    found = _of_integers(node, node.get("transA", 0), node.get("transB", 0))
    found = product(a, b) if found is None else found
    found = found if alpha == 1 else ops.cast(ops.mul(found, alpha), a.dtype)
    if c is None:
        return found
    return ops.add(found, c if beta == 1 else ops.cast(ops.mul(c, beta), a.dtype))


def _of_integers(node: OnnxNode, transpose_a: int = 0, transpose_b: int = 0) -> Any:
    """The product of two inputs produced by DequantizeLinear, by kernels for 8-bit integers; None for others."""
    if node.mode.training or node.input(1).ndim != 2:
        return None
    left, right = Dequantized.of(node, 0), Dequantized.of(node, 1)
    if left is None or right is None or not right.varies_along(0 if transpose_b else 1):
        return None
    a = ops.transpose(left.values, 0, 1) if transpose_a else left.values
    return real_product(
        a, left.scale, left.zero, right.values, right.scale, right.zero, transposed=bool(transpose_b)
    )


@converts("Einsum")
def einsum(node: OnnxNode) -> Any:
    """A sum over products of elements, given by the equation (einsum)."""
    return ops.einsum(node.needed("equation"), *node.inputs)


@converts("MatMulInteger")
def matmul_integer(node: OnnxNode) -> Any:
    """(A - its zero point) (B - its zero point), int32."""
    return integer_product(node.input(0), node.optional(2), node.input(1), node.optional(3))


@converts("QLinearMatMul")
def qlinear_matmul(node: OnnxNode) -> Any:
    """The product of quantized matrices, quantized again."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (node.input(i) for i in range(8))
    real = real_product(a, a_scale, a_zero, b, b_scale, b_zero)
    if real is not None and one_number(y_scale, y_zero):
        found = quantized_to(real, y_scale, y_zero, y_zero.dtype)
        return rounded(ops.div(real, y_scale), y_zero, y_zero.dtype) if found is None else found
    total = integer_product(a, a_zero, b, b_zero)
    return requantized(total, ops.mul(_rows(a_scale), b_scale), _rows(y_scale), _rows(y_zero))


def _rows(scale: Any) -> Any:
    """A scale for each row, if it is a vector of more than one."""
    return scale.unsqueeze(-1) if scale.ndim and scale.shape[-1] > 1 else scale


@converts("Det")
def det(node: OnnxNode) -> Any:
    """The determinant of each matrix, by elimination with partial pivoting."""
    x = node.input(0)
    n = x.shape[-1]
    found = None
    for step in range(n):
        x, pivot, sign = _eliminated(x, n - step)
        one = ops.mul(pivot, sign)
        found = one if found is None else ops.mul(found, one)
    return found


def _eliminated(x: Any, n: int) -> tuple[Any, Any, Any]:
    """[..., n, n] -> (the remaining matrix [..., n-1, n-1], the pivot [...], the sign of the row exchange [...])."""
    column = x[..., 0]
    chosen = ops.argmax(ops.abs(column), -1, True)  # [..., 1]
    at = ops.expand(chosen.unsqueeze(-1), (*chosen.shape[:-1], 1, n))
    row, first = ops.gather(x, x.ndim - 2, at), x[..., :1, :]
    pivot = row[..., 0, 0]
    sign = ops.where(ops.eq(chosen[..., 0], 0), 1.0, -1.0).cast(x.dtype)
    if n == 1:
        return x, pivot, sign
    exchanged = ops.scatter(x, x.ndim - 2, at, first)[..., 1:, :]
    safe = ops.where(ops.eq(pivot, 0), 1.0, pivot).cast(x.dtype)
    factor = ops.div(exchanged[..., :1], safe.unsqueeze(-1).unsqueeze(-1))
    return ops.sub(exchanged, ops.mul(factor, row))[..., 1:], pivot, sign
