"""Attention with its projection, various masks, caches, grouped heads and rotary positions.

Queries are [B, H, S, E], keys and values [B, G, T, E] with G heads, each of which serves H / G query heads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina import ops
from lamina.convert.onnx.attention import heads, shared, turned
from lamina.convert.onnx.contrib.domain import contributes
from lamina.convert.onnx.node import OnnxNode, as_tensor
from lamina.spec import bool_, float32, int64

#: The default value added to the score of a masked key.
_HIDDEN = -10000.0


def attended(
    node: OnnxNode, q: Any, k: Any, v: Any, bias: Any, cap: float = 0.0, sink: Any = None
) -> tuple[Any, Any]:
    """([B, S, H E], the scores before the softmax, None if a fused op computes them).

    bias: a term added to the scores; cap: scores are cap tanh(scores / cap); sink [H]: an additional score of every
    query, without a value.
    """
    scale = node.get("scale", 0.0) or q.shape[-1] ** -0.5
    k, v = shared(k, q.shape[1]), shared(v, q.shape[1])
    if not cap and sink is None and len(node.outputs) < 4:
        bias = None if bias is None else ops.cast(bias, q.dtype)
        return _joined(ops.attention(q, k, v, bias, scale=scale)), None
    scores = ops.mul(ops.matmul(q, ops.transpose(k, 2, 3)), scale)
    scores = ops.mul(ops.tanh(ops.div(scores, cap)), cap) if cap else scores
    scores = scores if bias is None else ops.add(scores, ops.cast(bias, scores.dtype))
    if sink is None:
        weights = ops.softmax(scores, -1)
    else:
        column = ops.expand(ops.cast(sink, scores.dtype).reshape((1, -1, 1, 1)), (*scores.shape[:-1], 1))
        weights = ops.softmax(ops.cat([scores, column], -1), -1)[..., :-1]
    return _joined(ops.matmul(weights, v)), scores


def _joined(x: Any) -> Any:
    """[B, H, S, E] -> [B, S, H E]."""
    b, h, s, e = x.shape
    return ops.transpose(x, 1, 2).reshape((b, s, h * e))


def _mask(node: OnnxNode, mask: Any, batch: int, keys: int) -> Any:
    """The mask as a term added to the scores, [B or 1, 1, S or 1, T].

    mask: flags [B, T] or [B, S, T], or the end position [B] of each sample's keys; with [2 B] also the start
        positions.
    """
    hidden = float(node.get("mask_filter_value", _HIDDEN))
    if mask.ndim == 1 and mask.shape[0] not in (batch, 2 * batch):
        raise node.error(f"a mask of one axis must have {batch} or {2 * batch} numbers, got {mask.shape[0]}")
    if mask.ndim == 1:
        place = as_tensor(np.arange(keys)[None])
        shown = ops.lt(place, ops.cast(mask[:batch], int64).unsqueeze(1))
        if mask.shape[0] == 2 * batch:
            shown = ops.logical_and(shown, ops.ge(place, ops.cast(mask[batch:], int64).unsqueeze(1)))
    elif mask.ndim in (2, 3):
        shown = mask if mask.dtype == bool_ else ops.gt(mask, 0)
    else:
        raise node.error(f"the mask must have one to three axes, got {mask.spec}")
    shown = shown.reshape((shown.shape[0], 1, *((1,) if shown.ndim == 2 else ()), *shown.shape[1:]))
    return ops.where(shown, 0.0, hidden)


def _causal(rows: int, keys: int) -> Any:
    """[1, 1, S, T]: minus infinity where a key comes after the query; the last query stands at the last key."""
    ahead = np.arange(keys)[None] > np.arange(rows)[:, None] + keys - rows
    return as_tensor(np.where(ahead, -np.inf, 0.0)[None, None], float32)


def _bias(node: OnnxNode, q: Any, keys: int, mask: Any, added: Any) -> Any:
    """The sum of the masks and the given bias; None if there is neither."""
    parts = [] if added is None else [ops.cast(added, float32)]
    if mask is not None:
        parts.append(_mask(node, mask, q.shape[0], keys))
    if node.get("unidirectional", 0):
        parts.append(_causal(q.shape[2], keys))
    total = None
    for part in parts:
        total = part if total is None else ops.add(total, part)
    return total


@contributes("Attention")
def attention(node: OnnxNode) -> Any:
    """(the attention of x w + bias [B, S, H E], keys and values including past ones [2, B, H, T, E])."""
    x, w, bias = node.input(0), node.input(1), node.optional(2)
    projected = ops.matmul(x, w)
    projected = projected if bias is None else ops.add(projected, bias)
    return self_attended(node, projected, node.optional(3), node.optional(4), node.optional(5))


def self_attended(node: OnnxNode, projected: Any, mask: Any, past: Any, added: Any = None) -> tuple[Any, Any]:
    """(the result, the keys and values) from concatenated queries, keys and values [B, S, 3 H E]."""
    if node.get("do_rotary", 0) or node.get("past_present_share_buffer", 0):
        raise node.error("do_rotary and past_present_share_buffer are not read; export without them")
    count = node.needed("num_heads")
    sizes = list(node.get("qkv_hidden_sizes", ())) or [projected.shape[-1] // 3] * 3
    q, k, v = (heads(part, count) for part in ops.split(projected, sizes, -1))
    if past is not None:
        k, v = ops.cat([past[0], k], 2), ops.cat([past[1], v], 2)
    y, _ = attended(node, q, k, v, _bias(node, q, k.shape[2], mask, added))
    return y, ops.stack([k, v], 0) if node.asks(1) else None


@contributes("MultiHeadAttention")
def multi_head_attention(node: OnnxNode) -> Any:
    """(the attention of queries over keys and values, keys and values including past ones, the scores)."""
    if any(node.optional(i) is not None for i in (8, 9)):
        raise node.error("caches of a fixed size (past_sequence_length, cache_indirection) are not read")
    q, k, v = _projected(node)
    for i, part in ((6, "k"), (7, "v")):
        past = node.optional(i)
        if past is not None and part == "k":
            k = ops.cat([past, k], 2)
        elif past is not None:
            v = ops.cat([past, v], 2)
    bias = _bias(node, q, k.shape[2], node.optional(4), node.optional(5))
    y, scores = attended(node, q, k, v, bias)
    return y, k, v, None if scores is None else ops.softmax(scores, -1)


def _projected(node: OnnxNode) -> tuple[Any, Any, Any]:
    """Queries, keys and values [B, H, *, E] of `MultiHeadAttention`, packed or not, with their biases."""
    q, k, v, bias = (node.optional(i) for i in range(4))
    count = node.needed("num_heads")
    if q.ndim == 5:
        packed = ops.permute(q, (3, 0, 2, 1, 4))  # [3, B, H, S, E]
        q, k, v = packed[0], packed[1], packed[2]
    elif k.ndim == 5:
        packed = ops.permute(k, (3, 0, 2, 1, 4))
        q, k, v = heads(q, count), packed[0], packed[1]
    else:
        q, k, v = (x if x.ndim == 4 else heads(x, count) for x in (q, k, v))
    if bias is None:
        return q, k, v
    widths = [count * x.shape[-1] for x in (q, k, v)]
    parts = ops.split(bias, widths, 0)
    own = [b.reshape((1, count, 1, -1)) for b in parts]
    q, k, v = (ops.add(x, b) for x, b in zip((q, k, v), own, strict=True))
    return q, k, v


@contributes("GroupQueryAttention", known=(6,))
def group_query_attention(node: OnnxNode) -> Any:
    """(causal attention [B, S, H E], the caches [B, G, T, E] with the new keys and values).

    Sample b has seqlens_k[b] + 1 keys, the new ones included; a longer cache keeps its size.
    """
    if any(node.optional(i) is not None for i in (12, 13, 14, 15, 16)) or node.get("sliding_window_cache", 0):
        raise node.error("quantized and windowed caches, norms of queries and query_seqlens are not read")
    q, k, v = _grouped(node)
    total = int(node.number(6))
    steps, batch = q.shape[2], q.shape[0]
    ends = ops.add(ops.cast(node.input(5), int64).reshape((-1,)), 1)
    begins = as_tensor(np.zeros(batch, np.int64)) if steps == total else ops.sub(ends, steps)
    if node.get("do_rotary", 0):
        q, k = _rotated(node, q, k, begins)
    cached = tuple(
        _written(past, new, begins, total) for past, new in ((node.optional(3), k), (node.optional(4), v))
    )
    k, v = (c[:, :, :total] for c in cached)
    bias = _seen(node, begins, ends, steps, total)
    added = node.optional(10)
    bias = bias if added is None else ops.add(bias, ops.cast(added[..., :total], float32))
    sink = node.optional(11)
    if sink is None and node.get("smooth_softmax", 0) == 1:
        sink = as_tensor(np.zeros(q.shape[1]), q.dtype)
    y, _ = attended(node, q, k, v, bias, node.get("softcap", 0.0), sink)
    return y, *cached


def _grouped(node: OnnxNode) -> tuple[Any, Any, Any]:
    """Queries [B, H, S, E], keys and values [B, G, S, E]."""
    q, k, v = (node.optional(i) for i in range(3))
    own, groups = node.needed("num_heads"), node.needed("kv_num_heads")
    if k is None:
        width = q.shape[-1] // (own + 2 * groups)
        q, k, v = ops.split(q, [own * width, groups * width, groups * width], -1)
    return heads(q, own), heads(k, groups), heads(v, groups)


def _rotated(node: OnnxNode, q: Any, k: Any, begins: Any) -> tuple[Any, Any]:
    """Queries and keys rotated by their positions: the given ones, else those after the sample's past."""
    cos, sin, places = node.input(7), node.input(8), node.optional(9)
    if places is None:
        places = ops.add(begins.unsqueeze(1), as_tensor(np.arange(q.shape[2])[None]))
    interleaved = bool(node.get("rotary_interleaved", 0))
    cos, sin = _at(cos, places), _at(sin, places)
    return turned(q, cos, sin, interleaved), turned(k, cos, sin, interleaved)


def _at(table: Any, places: Any) -> Any:
    """[B, 1, S, E / 2]: the rows of a table at each position."""
    rows = ops.index_select(table, 0, ops.cast(places, int64).reshape((-1,)))
    return rows.reshape((*places.shape, table.shape[-1])).unsqueeze(1)


def _written(past: Any, new: Any, begins: Any, total: int) -> Any:
    """The cache [B, G, max(T, its size), E] with the new rows from each sample's position on."""
    b, g, steps, e = new.shape
    held = 0 if past is None else past.shape[2]
    size = max(held, total)
    if not held:
        return ops.pad(new, [0, 0, 0, size - steps])
    wide = ops.pad(past, [0, 0, 0, size - held])
    place = ops.sub(as_tensor(np.arange(size)[None]), begins.unsqueeze(1))  # [B, size]
    inside = ops.logical_and(ops.ge(place, 0), ops.lt(place, steps))
    index = ops.clamp(place, 0, steps - 1).reshape((b, 1, size, 1))
    rows = ops.gather(new, 2, ops.expand(index, (b, g, size, e)))
    return ops.where(inside.reshape((b, 1, size, 1)), rows, wide)


def _seen(node: OnnxNode, begins: Any, ends: Any, steps: int, total: int) -> Any:
    """[B, 1, S, T]: minus infinity where a query does not attend to a key."""
    key = as_tensor(np.arange(total).reshape(1, 1, 1, -1))
    own = ops.add(begins.reshape((-1, 1, 1, 1)), as_tensor(np.arange(steps).reshape(1, 1, -1, 1)))
    if not node.get("causal", 1):
        return ops.where(ops.lt(key, ends.reshape((-1, 1, 1, 1))), as_tensor(0.0, float32), -np.inf)
    shown, reach = ops.le(key, own), node.get("local_window_size", -1)
    if reach > 0:
        shown = ops.logical_and(shown, ops.gt(key, ops.sub(own, reach)))
    return ops.where(shown, as_tensor(0.0, float32), -np.inf)


@contributes("RotaryEmbedding")
def rotary_embedding(node: OnnxNode) -> Any:
    """Pairs of features rotated by angles that grow with the position; a single position is the first step's."""
    x, places = node.input(0), ops.cast(node.input(1), int64)
    if node.get("is_packed_batching", 0):
        raise node.error("is_packed_batching is not read: give sequences of one length")
    width = node.get("rotary_embedding_dim", 0)
    tables = node.input(2), node.input(3)
    wide = x
    if x.ndim == 3:
        count = node.get("num_heads", 0) or x.shape[-1] // (width or 2 * tables[0].shape[-1])
        wide = heads(x, count)
    if places.ndim == 1:
        steps = as_tensor(np.arange(wide.shape[2])[None])
        places = ops.expand(ops.add(places.reshape((1, 1)), steps), (x.shape[0], wide.shape[2]))
    cos, sin = (_at(table, places) for table in tables)
    found = turned(wide, cos, sin, bool(node.get("interleaved", 0)))
    scale = node.get("scale", 1.0)
    found = found if scale == 1 else ops.mul(found, scale)
    return found if x.ndim == 4 else ops.transpose(found, 1, 2).reshape(x.shape)
