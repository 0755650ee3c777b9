"""Matrix products over the last two axes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from lamina.ops.arguments import Number, checked
from lamina.ops.core import Array, BatchAxes, BatchAxis, Op, Sample, call, made, operand
from lamina.ops.primitives.pointwise import add
from lamina.ops.primitives.reduce import sum
from lamina.spec import DTypeError, Shape, ShapeError, Spec, broadcast_shapes


@dataclass(frozen=True)
class Matmul(Op):
    """(..., M, K) x (..., K, N) -> (..., M, N), with equal leading (batch) sizes.

    transpose_a, transpose_b: the operand is stored with its last two axes swapped, (..., K, M) or (..., N, K).
    """

    transpose_a: bool = False
    transpose_b: bool = False
    arity = 2

    def infer(self, a: Spec, b: Spec) -> tuple[Spec]:
        self.check_float(a, b)
        if a.ndim < 2 or a.ndim != b.ndim or a.shape[:-2] != b.shape[:-2]:
            raise ShapeError(f"{self.name}: needs matrices with equal batch sizes, got {a} and {b}")
        m, k = a.shape[:-3:-1] if self.transpose_a else a.shape[-2:]
        k2, n = b.shape[:-3:-1] if self.transpose_b else b.shape[-2:]
        if k != k2:
            raise ShapeError(
                f"{self.name}: inner sizes {k} and {k2} differ: {a}{_mark(self.transpose_a)} times "
                f"{b}{_mark(self.transpose_b)}"
            )
        return (self.result((*a.shape[:-2], m, n), a.dtype),)

    def flops(self, a: Spec, b: Spec) -> int:
        return 2 * self.infer(a, b)[0].numel * a.shape[-2 if self.transpose_a else -1]

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        a, b = axes
        rank = inputs[0].ndim
        if a and b:
            return (a,) if a == b and a.axis < rank - 2 else None
        if a and a.axis == (rank - 1 if self.transpose_a else rank - 2):
            return (BatchAxis(rank - 2, a.size),)
        if b and b.axis == (rank - 2 if self.transpose_b else rank - 1):
            return (BatchAxis(rank - 1, b.size),)
        return None

    def stacked(self, size: int, inputs: Sequence[Spec], batched: Sequence[bool]) -> Op | None:
        return self if all(batched) else None

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        """y = a b: da = g b^T and db = a^T g, with transposes matching those of the operands."""
        (g,), (a, b) = grads, inputs
        ta, tb = self.transpose_a, self.transpose_b
        da = call(Matmul(tb, True), b, g) if ta else call(Matmul(False, not tb), g, b)
        db = call(Matmul(True, ta), g, a) if tb else call(Matmul(not ta, False), a, g)
        return da, db

    def reference(self, a: Array, b: Array) -> tuple[Array]:
        left = a.swapaxes(-1, -2) if self.transpose_a else a
        right = b.swapaxes(-1, -2) if self.transpose_b else b
        return (np.matmul(left, right),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        cases: list[tuple[Shape, Shape]] = [
            ((3, 5), (5, 4)), ((2, 7, 3), (2, 3, 9)), ((1, 17), (17, 1)), ((2, 3, 4, 5), (2, 3, 5, 2)),
            ((0, 4), (4, 3)), ((33, 20), (20, 18)),
        ]  # fmt: skip
        for ta, tb in ((False, False), (False, True), (True, False), (True, True)):
            for a, b in cases:
                yield Sample.of(cls(ta, tb), _swapped(a) if ta else a, _swapped(b) if tb else b)


def _swapped(shape: Shape) -> Shape:
    return (*shape[:-2], shape[-1], shape[-2])


def _mark(transposed: bool) -> str:
    return "^T" if transposed else ""


def matmul(input: Any, other: Any) -> Any:
    """The matrix product, as torch.matmul: batch sizes broadcast, a vector counts as one row or column.

    Integers, of one dtype, are multiplied exactly, without a library: for counters and small graphs.
    """
    a, b = operand(input, "matmul"), operand(other, "matmul", "other")
    if a.ndim == 0 or b.ndim == 0:
        raise ShapeError(f"matmul: needs vectors or matrices, got {a.spec} and {b.spec}; use mul for numbers")
    rows, columns = a.ndim > 1, b.ndim > 1
    left = a if rows else a.reshape((1, a.shape[0]))
    right = b if columns else b.reshape((b.shape[0], 1))
    y = _product(left, right)
    if rows and columns:
        return y
    shape = (*y.shape[:-2], *(y.shape[-2:-1] if rows else ()), *(y.shape[-1:] if columns else ()))
    return y.reshape(shape)


def mm(input: Any, mat2: Any) -> Any:
    """The product of two matrices [M, K] and [K, N]."""
    return matmul(*_ranked("mm", ("input", input, 2), ("mat2", mat2, 2)))


def mv(input: Any, vec: Any) -> Any:
    """The product of a matrix [M, K] and a vector [K]."""
    return matmul(*_ranked("mv", ("input", input, 2), ("vec", vec, 1)))


def bmm(input: Any, mat2: Any) -> Any:
    """The products of the matrices of two batches [B, M, K] and [B, K, N]."""
    a, b = _ranked("bmm", ("input", input, 3), ("mat2", mat2, 3))
    if a.shape[0] != b.shape[0]:
        raise ShapeError(f"bmm: batches must be of one size, got {a.spec} and {b.spec}")
    return matmul(a, b)


def dot(input: Any, tensor: Any) -> Any:
    """The scalar product of two vectors of one size."""
    return matmul(*_ranked("dot", ("input", input, 1), ("tensor", tensor, 1)))


@checked
def outer(input: Any, vec2: Any) -> Any:
    """input[i] * vec2[j]: [M] and [N] to [M, N]."""
    a, b = _ranked("outer", ("input", input, 1), ("vec2", vec2, 1))
    return a.reshape((a.shape[0], 1)) * b


@checked
def addmm(input: Any, mat1: Any, mat2: Any, *, beta: Number = 1, alpha: Number = 1) -> Any:
    """beta * input + alpha * (mat1 mat2); input broadcasts to the product, and is not read if beta is 0."""
    a, b = _ranked("addmm", ("mat1", mat1, 2), ("mat2", mat2, 2))
    return _added("addmm", input, matmul(a, b), beta, alpha)


@checked
def baddbmm(input: Any, batch1: Any, batch2: Any, *, beta: Number = 1, alpha: Number = 1) -> Any:
    """beta * input + alpha * (batch1 batch2), for batches of matrices; input broadcasts to the product."""
    return _added("baddbmm", input, bmm(batch1, batch2), beta, alpha)


def _added(what: str, input: Any, product: Any, beta: Number, alpha: Number) -> Any:
    x = operand(input, what)
    if broadcast_shapes(x.shape, product.shape, what) != product.shape:
        raise ShapeError(f"{what}: input {x.spec} does not broadcast to the product {product.spec}")
    product = product if alpha == 1 else product * alpha
    if beta == 0:
        return product
    return (x if beta == 1 else x * beta) + product


def _ranked(what: str, *given: tuple[str, Any, int]) -> list[Any]:
    """Operands with the ranks that an op requires. Raises ShapeError."""
    found = [operand(x, what, name) for name, x, _ in given]
    for (name, _, rank), x in zip(given, found, strict=True):
        if x.ndim != rank:
            raise ShapeError(f"{what}: {name} must be of rank {rank}, got {x.spec}")
    return found


def _are_integers(a: Any, b: Any) -> bool:
    return a.dtype.kind in "iu" and b.dtype.kind in "iu"


#: Elements that integer products hold at a time.
_HELD = 1 << 22


def _of_integers(a: Any, b: Any) -> Any:
    """The product of integer matrices, exact except for overflow of the dtype: elementwise, as no library provides
    it. Raises DTypeError, ShapeError."""
    if a.dtype != b.dtype:
        raise DTypeError(
            f"matmul: integers must be of one dtype, got {a.spec} and {b.spec}; cast one of them"
        )
    if a.shape[-1] != b.shape[-2]:
        raise ShapeError(
            f"matmul: inner sizes {a.shape[-1]} and {b.shape[-2]} differ: {a.spec} times {b.spec}"
        )
    shape = (*broadcast_shapes(a.shape[:-2], b.shape[:-2], "matmul"), a.shape[-2], b.shape[-1])
    size, step = a.shape[-1], max(1, _HELD // max(1, prod(shape)))
    starts = range(0, size, step) if size > step else [0]
    parts = [sum(a[..., :, i : i + step, None] * b[..., None, i : i + step, :], -2) for i in starts]
    return reduce(add, parts).cast(a.dtype)


def _product(a: Any, b: Any) -> Any:
    if _are_integers(a, b):
        return _of_integers(a, b)
    if a.ndim > 2 and b.ndim == 2:  # one matrix for the whole batch, whose rows are joined
        if a.shape[-1] != b.shape[0]:
            raise ShapeError(
                f"matmul: inner sizes {a.shape[-1]} and {b.shape[0]} differ: {a.spec} times {b.spec}"
            )
        flat = a.reshape((prod(a.shape[:-1]), a.shape[-1]))
        return call(made(Matmul), flat, b).reshape((*a.shape[:-1], b.shape[1]))
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2], "matmul")
    left, right = (x if x.shape[:-2] == batch else x.expand((*batch, *x.shape[-2:])) for x in (a, b))
    return call(made(Matmul), left, right)


def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """input [..., I] times weight [O, I] transposed, plus bias [O], as torch.nn.functional.linear.

    A weight of [I] is a single row whose axis is removed: the result is [...].
    """
    x, w = operand(input, "linear"), operand(weight, "linear", "weight")
    if x.ndim < 1 or w.ndim not in (1, 2) or x.shape[-1] != w.shape[-1]:
        raise ShapeError(f"linear: input [..., I] and weight [O, I] do not fit, got {x.spec} and {w.spec}")
    outputs = w.shape[:-1]
    a, b = (v if v.ndim == 2 else v.reshape((prod(v.shape[:-1]), v.shape[-1])) for v in (x, w))
    y = _of_integers(a, b.transpose(0, 1)) if _are_integers(a, b) else call(made(Matmul, False, True), a, b)
    if bias is not None:
        bias = operand(bias, "linear", "bias")
        if bias.shape not in (outputs, (prod(outputs),), ()):
            raise ShapeError(f"linear: bias must be of shape {outputs}, got {bias.spec}")
        y = y + bias
    return y if a is x and b is w else y.reshape((*x.shape[:-1], *outputs))
