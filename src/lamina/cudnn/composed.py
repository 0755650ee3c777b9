"""Attention as a graph of its steps, for features that cuDNN 9.19's single operation has no attribute for.

Dropout, sequences of different lengths and pages of a cache are steps that cuDNN's attention engines match as a
pattern; the order of the steps is part of it and must not change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lamina.cudnn.builder import Operations
from lamina.cudnn.tensor import Tensor


@dataclass(frozen=True)
class Dropout:
    """Dropout of the attention weights: kept with `probability`, then times `scale`.

    seed, offset: int64 tensors of one element; the same two give the same mask in the backward pass.
    scale: one float32 number, 1 / probability.
    """

    probability: float
    seed: Tensor
    offset: Tensor
    scale: Tensor


@dataclass(frozen=True)
class GivenMask:
    """Dropout of the attention weights by a mask of zeros and ones, [batch, heads, rows, columns].

    scale: one float32 number, the factor of the kept weights.
    """

    mask: Tensor
    scale: Tensor


@dataclass(frozen=True)
class Lengths:
    """How long each sequence is: int32 [batch, 1, 1, 1]; fill: the value of masked scores (float32, -inf)."""

    q: Tensor
    kv: Tensor
    fill: Tensor


def attention(
    graph: Operations,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    *,
    scale: Tensor,
    stats: Tensor | None = None,
    dropout: Dropout | GivenMask | None = None,
    lengths: Lengths | None = None,
    bias: Tensor | None = None,
    causal: Tensor | None = None,
) -> Tensor:
    """o = softmax(scale * q @ k) @ v.

    Args:
        graph: where the steps are added.
        q, o: [batch, heads, rows, features]. v: [batch, heads, columns, features].
        k: [batch, heads, features, columns]: the keys, transposed by their strides.
        scale: one float32 number.
        stats: written, float32 [batch, heads, rows, 1]: log of the sum of exponentials.
        bias: added to the scores, [batch, heads, rows, columns] where axes of 1 broadcast.
        causal: one float32 number, -inf or very low: the value where the column is after the row.
    """
    product: dict[str, Any] = {}
    if lengths is not None:
        product = {"m": lengths.q, "n": lengths.kv, "padding": 0.0}
    shape = (*q.dimensions[:3], k.dimensions[3])
    scores = graph.matmul(q, k, graph.packed(shape, "float32", virtual=True), **product)
    scores = graph.pointwise("mul", scores, scale)
    scores = _biased(graph, scores, bias, causal)
    if lengths is not None:
        scores = _masked(graph, scores, lengths)
    weights = _softmax(graph, scores, stats, "float32" if dropout else q.data_type)
    if dropout is not None:
        weights = _dropped(graph, weights, dropout, q.data_type)
    if lengths is not None:
        product = {"m": lengths.q, "k": lengths.kv, "padding": 0.0}
    return graph.matmul(weights, v, o, **product)


def attention_grad(
    graph: Operations,
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    *,
    stats: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    scale: Tensor,
    one: Tensor,
    row_sum: Tensor,
    dq_sum: Tensor,
    dropout: Dropout | GivenMask | None = None,
    bias: Tensor | None = None,
    causal: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk and dv of `attention`, by FlashAttention-2's equations.

    Args:
        graph: where the steps are added.
        do, q, o, dq: [batch, heads, rows, features]. dk, dv: [batch, heads, columns, features].
        k, v: [batch, heads, features, columns]: transposed by their strides, both of them.
        stats: what the forward pass wrote. scale: the same number.
        one: one float32 number on the host: 1, or the probability to keep with dropout. cuDNN 9.19's engines ignore
            it: with dropout pass o times that probability, and 1 here.
        row_sum: float32 [batch, heads, rows, 1], scratch. dq_sum: float32 as dq, scratch, zeros at the start.
        dropout, bias, causal: the same as forward.
    """
    batch, heads, rows, _ = q.dimensions
    columns = k.dimensions[3]
    shape, transposed = (batch, heads, rows, columns), (batch, heads, columns, rows)
    by_column = (heads * rows * columns, rows * columns, 1, columns)

    def scores(a: Tensor, b: Tensor) -> Tensor:
        return graph.matmul(a, b, graph.packed(shape, "float32", virtual=True))

    def turned(tensor: Tensor) -> Tensor:
        return graph.reshape(tensor, graph.tensor(transposed, by_column, q.data_type, virtual=True))

    mask = None if dropout is None else _mask(graph, shape, dropout)
    product = graph.pointwise("mul", do, o, graph.like(o, "float32"))
    total = graph.reduce("add", product, graph.packed((batch, heads, rows, 1), "float32", virtual=True))
    graph.pointwise("mul", total, one, row_sum)
    weights = _biased(graph, graph.pointwise("mul", scores(q, k), scale), bias, causal)
    weights = graph.pointwise("exp", graph.pointwise("sub", weights, stats))
    kept = weights
    if mask is not None and dropout is not None:
        kept = graph.pointwise("mul", graph.pointwise("mul", weights, mask), dropout.scale)
    graph.matmul(turned(kept), do, dv)
    slope = scores(do, v)
    if mask is not None:
        slope = graph.pointwise("mul", slope, mask)
    slope = graph.pointwise("mul", graph.pointwise("sub", slope, row_sum), weights)
    if dropout is not None:
        slope = graph.pointwise("mul", slope, dropout.scale)
    slope = graph.pointwise("mul", slope, scale)
    graph.matmul(turned(slope), q, dk)
    graph.matmul(slope, _rows(graph, k), dq_sum)
    graph.pointwise("identity", dq_sum, out=dq)
    return dq, dk, dv


def _rows(graph: Operations, k: Tensor) -> Tensor:
    """Keys [batch, heads, features, columns] as [batch, heads, columns, features]."""
    (*lead, features, columns), (*steps, feature, column) = k.dimensions, k.strides
    return graph.reshape(
        k, graph.tensor((*lead, columns, features), (*steps, column, feature), k.data_type, virtual=True)
    )


def _biased(graph: Operations, scores: Tensor, bias: Tensor | None, causal: Tensor | None) -> Tensor:
    """The scores plus a bias, and `causal` above the diagonal."""
    if bias is not None:
        scores = graph.pointwise("add", scores, bias)
    if causal is None:
        return scores
    row, column = (
        graph.pointwise("gen_index", scores, out=graph.like(scores, "int32"), axis=axis) for axis in (2, 3)
    )
    seen = graph.pointwise("cmp_ge", row, column, graph.like(scores, "bool"))
    return graph.pointwise("binary_select", scores, causal, graph.like(scores), t=seen)


def _mask(graph: Operations, shape: tuple[int, ...], dropout: Dropout | GivenMask) -> Tensor:
    if isinstance(dropout, GivenMask):
        return dropout.mask
    mask = graph.packed(shape, "float32", virtual=True)
    return graph.random(
        "bernoulli", mask, dropout.seed, offset=dropout.offset, probability=dropout.probability
    )


def _masked(graph: Operations, scores: Tensor, lengths: Lengths) -> Tensor:
    """The scores within both lengths, `fill` elsewhere."""
    index = {
        axis: graph.pointwise("gen_index", scores, out=graph.like(scores, "int32"), axis=axis)
        for axis in (2, 3)
    }
    within_q = graph.pointwise("cmp_lt", index[2], lengths.q, graph.like(scores, "bool"))
    within_kv = graph.pointwise("cmp_lt", index[3], lengths.kv, graph.like(scores, "bool"))
    mask = graph.pointwise("logical_and", within_q, within_kv, graph.like(scores, "bool"))
    return graph.pointwise("binary_select", scores, lengths.fill, graph.like(scores), t=mask)


def _softmax(graph: Operations, scores: Tensor, stats: Tensor | None, kind: str | int) -> Tensor:
    """The weights of each row, in the type `kind`."""
    row = (*scores.dimensions[:3], 1)
    largest = graph.reduce("max", scores, graph.packed(row, "float32", virtual=True))
    exponentials = graph.pointwise("exp", graph.pointwise("sub", scores, largest))
    total = graph.reduce("add", exponentials, graph.packed(row, "float32", virtual=True))
    if stats is not None:
        graph.pointwise("add", largest, graph.pointwise("log", total), stats)
    return graph.pointwise("div", exponentials, total, graph.like(scores, kind))


def _dropped(graph: Operations, weights: Tensor, dropout: Dropout | GivenMask, kind: str | int) -> Tensor:
    kept = graph.pointwise("mul", weights, _mask(graph, weights.dimensions, dropout))
    return graph.pointwise("mul", kept, dropout.scale, graph.like(weights, kind))
