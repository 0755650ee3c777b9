"""Normalizations of sums, and over groups of channels with an activation."""

from __future__ import annotations

from functools import reduce
from typing import Any

from lamina import ops
from lamina.convert.onnx.contrib.domain import contributes
from lamina.convert.onnx.indexing import as_index
from lamina.convert.onnx.node import OnnxNode
from lamina.spec import float32, int32


@contributes("SkipLayerNormalization")
def skip_layer_normalization(node: OnnxNode) -> Any:
    """The layer norm of x + skip + bias over the last axis, mean, 1 / standard deviation, and that sum."""
    scale, shift = node.input(2), node.optional(3)
    total = _total(node, 4)
    return _normalized(node, total, scale, shift)


@contributes("SkipSimplifiedLayerNormalization")
def skip_simplified_layer_normalization(node: OnnxNode) -> Any:
    """(x + skip + bias) / its root mean square, scaled; None, 1 / the root, and that sum."""
    total, wide = _total(node, 3), None
    wide = ops.cast(total, float32)
    inverse = ops.rsqrt(ops.add(ops.mean(ops.square(wide), -1, True), node.get("epsilon", 1e-12)))
    y = ops.mul(ops.cast(ops.mul(wide, inverse), total.dtype), node.input(2))
    return y, None, inverse, total


def _total(node: OnnxNode, bias: int) -> Any:
    """The sum of the first two inputs and a bias, if given."""
    return reduce(ops.add, [x for x in (node.input(0), node.input(1), node.optional(bias)) if x is not None])


def _normalized(node: OnnxNode, x: Any, scale: Any, shift: Any) -> tuple[Any, Any, Any, Any]:
    """(the layer norm over the last axis, the mean and 1 / deviation if requested, x)."""
    eps = node.get("epsilon", 1e-12)
    y = ops.layer_norm(x, (x.shape[-1],), scale, shift, eps)
    if not node.asks(1) and not node.asks(2):
        return y, None, None, x
    wide = ops.cast(x, float32)
    spread = ops.var(wide, -1, correction=0, keepdim=True)
    return y, ops.mean(wide, -1, True), ops.rsqrt(ops.add(spread, eps)), x


@contributes("EmbedLayerNormalization")
def embed_layer_normalization(node: OnnxNode) -> Any:
    """(the layer norm of the sum of word, position and segment embeddings, each sample's number of words, the sum).

    ids [B, T]; the tables [n, E]; mask [B, T] counts the words. Without segments all are of the first kind.
    """
    ids, segments, words, places, kinds = (node.optional(i) for i in range(5))
    at = node.optional(8)
    rows = places[: ids.shape[1]].unsqueeze(0) if at is None else _rows(places, at)
    total = ops.add(_rows(words, ids), rows)
    if kinds is not None:
        total = ops.add(total, kinds[:1] if segments is None else _rows(kinds, segments))
    y, _, _, _ = _normalized(node, total, node.input(5), node.input(6))
    mask = node.optional(7)
    kept = ops.ne(ids, ids) if mask is None else ops.ne(mask, 0)
    return y, ops.sum(ops.cast(kept, int32), 1, dtype=int32), total


def _rows(table: Any, index: Any) -> Any:
    """[*, E]: the table's rows."""
    flat = as_index(index).reshape((-1,))
    return ops.index_select(table, 0, flat).reshape((*index.shape, table.shape[1]))


@contributes("GroupNorm")
def group_norm(node: OnnxNode) -> Any:
    """Group norm, then silu if requested; channels are last by default."""
    return _group_normalized(node, node.input(0))


@contributes("SkipGroupNorm")
def skip_group_norm(node: OnnxNode) -> Any:
    """(`group_norm` of x + skip + bias, that sum); a skip [N, C] is broadcast over positions."""
    x, skip, bias = node.input(0), node.input(3), node.optional(4)
    if skip.ndim == 2:
        n, c = skip.shape
        skip = skip.reshape((n, 1, 1, c) if node.get("channels_last", 1) else (n, c, 1, 1))
    total = ops.add(x, skip)
    if bias is not None:
        total = ops.add(total, bias if node.get("channels_last", 1) else bias.reshape((-1, 1, 1)))
    return _group_normalized(node, total), total


def _group_normalized(node: OnnxNode, x: Any) -> Any:
    last = node.get("channels_last", 1)
    x = ops.permute(x, (0, 3, 1, 2)) if last else x
    scale, shift = (ops.cast(node.input(i), x.dtype) for i in (1, 2))
    y = ops.group_norm(x, node.needed("groups"), scale, shift, node.get("epsilon", 1e-5))
    y = ops.silu(y) if node.get("activation", 0) else y
    return ops.permute(y, (0, 2, 3, 1)) if last else y
