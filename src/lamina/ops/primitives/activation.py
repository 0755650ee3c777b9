"""Activations beyond those of `pointwise`, and vector similarities: Mish is an op, the others are composed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lamina.ops.arguments import checked, within
from lamina.ops.core import Arg, Array, Op, Sample, call, floating, operand
from lamina.ops.in_place import with_inplace
from lamina.ops.primitives.matmul import bmm, matmul
from lamina.ops.primitives.pointwise import (
    elu,
    maximum,
    sigmoid,
    softplus,
    tanh,
    where,
)
from lamina.ops.primitives.reduce import abs_max, amin, norm1, norm2
from lamina.ops.primitives.reduce import sum as sum_along
from lamina.ops.primitives.shape import chunk
from lamina.spec import (
    Shape,
    ShapeError,
    Spec,
    broadcast_shapes,
    float32,
    normalize_axes,
    normalize_axis,
    promote_types,
)

_SHAPES: tuple[Shape, ...] = ((3, 5), (1, 7, 1), (2, 3, 4, 5), (), (0, 3), (17,))


class _Mish(Op):
    elementwise = True

    def infer(self, *inputs: Spec) -> tuple[Spec]:
        self.check_float(*inputs)
        if any(x.shape != inputs[0].shape for x in inputs):
            raise ShapeError(f"{self.name}: {inputs[0]} and {inputs[-1]} must have one shape")
        return (inputs[0].open,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape in _SHAPES:
            yield Sample.of(cls(), *(Arg(shape, distinct=True), Arg(shape))[: cls.arity])


@dataclass(frozen=True)
class Mish(_Mish):
    """x * tanh(log(1 + exp(x))). D. Misra: "Mish" (BMVC 2020)."""

    inplace = {0: 0}

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return (call(MishGrad(), inputs[0], grads[0]),)

    def reference(self, x: Array) -> tuple[Array]:
        return (x * np.tanh(np.logaddexp(x, x.dtype.type(0))),)


@dataclass(frozen=True)
class MishGrad(_Mish):
    """(x, g) -> g * (t + x * (1 - t^2) * s) with t = tanh(log(1 + exp(x))) and s = sigmoid(x)."""

    arity = 2
    inplace = {0: 1}
    chained = 1

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        (u,), (x, g) = grads, inputs
        s, t = sigmoid(x), tanh(softplus(x))
        slope = (1 - t * t) * s  # the derivative of t
        bend = slope * (1 - s - 2 * t * s)  # the derivative of slope
        return u * g * (2 * slope + x * bend), call(self, x, u)

    def reference(self, x: Array, g: Array) -> tuple[Array]:
        t = np.tanh(np.logaddexp(x, x.dtype.type(0)))
        e = np.exp(-np.abs(x))
        return (g * (t + x * (1 - t * t) * (np.where(x >= 0, 1, e) / (1 + e))),)


@with_inplace
def mish(input: Any, inplace: bool = False) -> Any:
    """x * tanh(softplus(x)) (Misra 2020)."""
    return call(Mish(), floating(input, "mish"))


#: Fixed point of mean and variance: G. Klambauer et al.: "Self-normalizing neural networks" (NeurIPS 2017).
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


@with_inplace
def selu(input: Any, inplace: bool = False) -> Any:
    """1.0507 * elu(x, 1.6733), which keeps mean 0 and variance 1 (Klambauer et al. 2017)."""
    return elu(floating(input, "selu"), _SELU_ALPHA) * _SELU_SCALE


@checked
@with_inplace
def celu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    """x where x > 0, else alpha * (exp(x / alpha) - 1) (Barron 2017). Raises ValueError for alpha = 0."""
    x = floating(input, "celu")
    if alpha == 0:
        raise ValueError("celu: alpha must not be 0")
    return elu(x) if alpha == 1 else where(x > 0, x, elu(x * (1 / alpha)) * alpha)


def softsign(input: Any) -> Any:
    """x / (1 + |x|)."""
    x = floating(input, "softsign")
    return x / (x.abs() + 1.0)


@checked
def softshrink(input: Any, lambd: float = 0.5) -> Any:
    """x - lambd where x > lambd, x + lambd where x < -lambd, else 0. Raises ValueError for lambd < 0."""
    within("softshrink", "lambd", lambd, 0)
    x = floating(input, "softshrink")
    return where(x.abs() <= lambd, x.sign() * 0.0, x - x.sign() * lambd)


@checked
def hardshrink(input: Any, lambd: float = 0.5) -> Any:
    """x where |x| > lambd, else 0."""
    x = floating(input, "hardshrink")
    return where((x >= -lambd) & (x <= lambd), 0.0, x)


def tanhshrink(input: Any) -> Any:
    """x - tanh(x)."""
    x = floating(input, "tanhshrink")
    return x - x.tanh()


def logsigmoid(input: Any) -> Any:
    """log(1 / (1 + exp(-x))), without overflow."""
    return -softplus(-floating(input, "logsigmoid"))


@checked
def glu(input: Any, dim: int = -1) -> Any:
    """a * sigmoid(b) for the two halves a, b along dim (Dauphin et al. 2017). Raises ShapeError for an odd size."""
    x = operand(input, "glu")
    axis = normalize_axis(dim, x.ndim, "glu")
    if x.shape[axis] % 2:
        raise ShapeError(f"glu: axis {dim} of {x.spec} has an odd size")
    a, b = chunk(x, 2, axis)
    return a * sigmoid(b)


@checked
def normalize(input: Any, p: float = 2.0, dim: int | tuple[int, ...] = 1, eps: float = 1e-12) -> Any:
    """x / max(|x|, eps) with the p-norm |x| along dim, one axis or several jointly."""
    x = floating(input, "normalize")
    if x.ndim == 0:
        return normalize(x.reshape((1,)), p, dim, eps).reshape(())
    if isinstance(dim, tuple):
        return x / maximum(_norm(x, p, normalize_axes(dim, x.ndim, "normalize"), True), eps)
    axis = normalize_axis(dim, x.ndim, "normalize")
    return x / maximum(_norm(x, p, axis, True), eps)


@checked
def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    """The cosine of the angle between vectors along dim: x1 . x2 / (max(|x1|, eps) * max(|x2|, eps)).

    x1, x2: shapes that broadcast to a common one; the result has that shape without dim.
    """
    a, b = floating(x1, "cosine_similarity"), floating(x2, "cosine_similarity")
    rank = max(a.ndim, b.ndim)
    if rank == 0:
        return cosine_similarity(a.reshape((1,)), b.reshape((1,)), dim, eps)
    axis = normalize_axis(dim, rank, "cosine_similarity") - rank
    shape = broadcast_shapes(a.shape, b.shape, "cosine_similarity")
    dtype = promote_types(a.dtype, b.dtype)
    a, b = (_wide(x).expand(shape) for x in (a, b))  # in float16 the squares would overflow and eps be 0
    sizes = maximum(_norm(a, 2.0, axis), eps) * maximum(_norm(b, 2.0, axis), eps)
    return (sum_along(a * b, axis) / sizes).cast(dtype)


@checked
def pairwise_distance(x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Any:
    """The p-norm of x1 - x2 + eps along the last axis, of (…, D) or (D)."""
    apart = floating(x1, "pairwise_distance") - floating(x2, "pairwise_distance")
    return _norm(apart + eps, p, -1, keepdim)


def _norm(x: Any, p: float, axis: int | tuple[int, ...], keepdim: bool = False) -> Any:
    """(sum of |x|^p)^(1 / p) along axes; for p = inf and -inf the largest and least magnitude, for 0 the count."""
    if p in _NORMS:
        return _NORMS[p](x, axis, keepdim)
    if p == 0:
        return sum_along((x != 0).cast(x.dtype), axis, keepdim)
    return (sum_along(_wide(x).abs() ** p, axis, keepdim) ** (1 / p)).cast(x.dtype)


def _wide(x: Any) -> Any:
    """x in float32 if it is of a half type, in which powers overflow."""
    return x.cast(float32) if x.dtype.is_float and x.dtype.itemsize < 4 else x


_NORMS: dict[float, Any] = {
    1.0: norm1,
    2.0: norm2,
    float("inf"): abs_max,
    float("-inf"): lambda x, axis, keepdim: amin(x.abs(), axis, keepdim),
}


def bilinear(input1: Any, input2: Any, weight: Any, bias: Any = None) -> Any:
    """y[…, o] = input1[…, i] * weight[o, i, j] * input2[…, j] summed over i and j, + bias[o].

    input1: (…, I), input2: (…, J) with the same leading sizes, weight: (O, I, J), bias: (O) or None. Raises
    ShapeError.
    """
    a, b = floating(input1, "bilinear"), floating(input2, "bilinear")
    w = operand(weight, "bilinear", "weight")
    fits = w.ndim == 3 and a.ndim > 0 and a.shape[:-1] == b.shape[:-1]
    if not fits or (a.shape[-1], b.shape[-1]) != w.shape[1:]:
        raise ShapeError(
            f"bilinear: inputs (…, I) and (…, J) do not fit weight (O, I, J), got {a.spec}, {b.spec} and {w.spec}"
        )
    out, rows = w.shape[0], a.spec.numel // max(a.shape[-1], 1)
    by_row = matmul(
        a.reshape((rows, a.shape[-1])), w.permute((1, 0, 2)).reshape((w.shape[1], out * w.shape[2]))
    )
    y = bmm(by_row.reshape((rows, out, w.shape[2])), b.reshape((rows, b.shape[-1], 1)))
    y = y.reshape((*a.shape[:-1], out))
    return y if bias is None else y + operand(bias, "bilinear", "bias")
