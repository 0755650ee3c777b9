"""Matrix products."""

from __future__ import annotations

from typing import Any

from lamina import ops
from lamina.convert.onnx.node import OnnxNode, converts
from lamina.convert.onnx.quantize import centred, requantized
from lamina.spec import float64


@converts("MatMul")
def matmul(node: OnnxNode) -> Any:
    """numpy.matmul."""
    return product(node.input(0), node.input(1))


def product(x: Any, y: Any) -> Any:
    """The matrix product in the inputs' dtype; of integers exact below 2^53, by float64."""
    if x.dtype.kind == "f":
        return ops.matmul(x, y)
    return ops.cast(ops.matmul(ops.cast(x, float64), ops.cast(y, float64)), x.dtype)


@converts("Gemm")
def gemm(node: OnnxNode) -> Any:
    """alpha A B + beta C, A and B transposed where that is asked for."""
    a, b, c = node.input(0), node.input(1), node.optional(2)
    a = ops.transpose(a, 0, 1) if node.get("transA", 0) else a
    b = ops.transpose(b, 0, 1) if node.get("transB", 0) else b
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    found = product(a, b)
    found = found if alpha == 1 else ops.cast(ops.mul(found, alpha), a.dtype)
    if c is None:
        return found
    return ops.add(found, c if beta == 1 else ops.cast(ops.mul(c, beta), a.dtype))


@converts("Einsum")
def einsum(node: OnnxNode) -> Any:
    """A sum over products of elements, as the equation says."""
    return ops.einsum(node.needed("equation"), *node.inputs)


@converts("MatMulInteger")
def matmul_integer(node: OnnxNode) -> Any:
    """(A - its zero point) (B - its zero point), int32."""
    a = centred(node.input(0), node.optional(2), axis=-2)
    b = centred(node.input(1), node.optional(3), axis=-1)
    return product(a, b)


@converts("QLinearMatMul")
def qlinear_matmul(node: OnnxNode) -> Any:
    """The product of quantized matrices, quantized again."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (node.input(i) for i in range(8))
    total = product(centred(a, a_zero, axis=-2), centred(b, b_zero, axis=-1))
    return requantized(total, ops.mul(_rows(a_scale), b_scale), _rows(y_scale), _rows(y_zero))


def _rows(scale: Any) -> Any:
    """A scale for each row, if it is a vector of more than one."""
    return scale.unsqueeze(-1) if scale.ndim and scale.shape[-1] > 1 else scale


@converts("Det")
def det(node: OnnxNode) -> Any:
    """The determinant of each matrix, by elimination with the largest pivot."""
    x = node.input(0)
    n = x.shape[-1]
    found = None
    for step in range(n):
        x, pivot, sign = _eliminated(x, n - step)
        one = ops.mul(pivot, sign)
        found = one if found is None else ops.mul(found, one)
    return found


def _eliminated(x: Any, n: int) -> tuple[Any, Any, Any]:
    """[..., n, n] -> (what is left [..., n-1, n-1], the pivot [...], the sign of the exchange [...])."""
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
