"""Attention and rotary position embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lamina import ops
from lamina.convert.onnx.node import OnnxNode, as_tensor, converts
from lamina.convert.onnx.proto import dtype_of
from lamina.spec import bool_, int64


@dataclass(frozen=True)
class AttentionInputs:
    """Queries [B, H, Tq, E], keys [B, H, Tk, E] and values [B, H, Tk, Ev].

    cached: keys and values including past ones, before heads were repeated; past: how many are past ones.
    """

    q: Any
    k: Any
    v: Any
    cached: tuple[Any, Any]
    past: int


@converts("Attention")
def attention(node: OnnxNode) -> Any:
    """(softmax(q k^T scale + bias) v, keys and values including past ones, the scores at the requested stage)."""
    given = _operands(node)
    scale = node.get("scale") or given.q.shape[-1] ** -0.5
    bias = _bias(node, given)
    cap = node.get("softcap", 0.0)
    if node.asks(3) or cap or "softmax_precision" in node.attributes or bias is not None:
        y, shown = _composed(node, given, scale, cap, bias)
    else:
        y, shown = ops.attention(given.q, given.k, given.v, scale=scale), None
    if node.input(0).ndim == 3:
        b, h, t, e = y.shape
        y = ops.transpose(y, 1, 2).reshape((b, t, h * e))
    return y, *given.cached, shown


def heads(x: Any, count: int) -> Any:
    """[B, T, H E] -> [B, H, T, E]."""
    b, t, width = x.shape
    return ops.transpose(x.reshape((b, t, count, width // count)), 1, 2)


def shared(x: Any, count: int) -> Any:
    """[B, G, T, E] with each group's head repeated for its queries: [B, count, T, E]."""
    b, groups, t, e = x.shape
    if groups == count:
        return x
    return ops.expand(x.unsqueeze(2), (b, groups, count // groups, t, e)).reshape((b, count, t, e))


def _operands(node: OnnxNode) -> AttentionInputs:
    q, k, v = (node.input(i) for i in range(3))
    if q.ndim == 3:
        own, groups = node.needed("q_num_heads"), node.needed("kv_num_heads")
        q, k, v = heads(q, own), heads(k, groups), heads(v, groups)
    past = 0
    if node.optional(4) is not None:
        past = node.input(4).shape[2]
        k, v = ops.cat([node.input(4), k], 2), ops.cat([node.input(5), v], 2)
    return AttentionInputs(q, shared(k, q.shape[1]), shared(v, q.shape[1]), (k, v), past)


def _bias(node: OnnxNode, given: AttentionInputs) -> Any:
    """The term added to the scores [B, H, Tq, Tk] (or broadcasting with them), None if there is none."""
    rows, columns = given.q.shape[2], given.k.shape[2]
    allowed = _window(node, given, rows, columns)
    bias, mask = None, node.optional(3)
    if mask is not None:
        mask = _filled(mask, columns)
        if mask.dtype == bool_:
            allowed = mask if allowed is None else ops.logical_and(allowed, mask)
        else:
            bias = mask
    if allowed is None:
        return bias
    return ops.where(allowed, bias if bias is not None else as_tensor(0.0, given.q.dtype), -np.inf)


def _filled(mask: Any, columns: int) -> Any:
    """A mask shorter than the keys hides the remaining keys."""
    short = columns - mask.shape[-1]
    if short <= 0 or mask.shape[-1] == 1:
        return mask
    if mask.dtype == bool_:
        rest = as_tensor(np.zeros((*mask.shape[:-1], short), bool))
    else:
        rest = as_tensor(np.full((*mask.shape[:-1], short), -np.inf), mask.dtype)
    return ops.cat([mask, rest], -1)


def _window(node: OnnxNode, given: AttentionInputs, rows: int, columns: int) -> Any:
    """Which keys a query may attend to by position: causal, within a distance, up to the sample's last key."""
    valid = node.optional(6)
    left, right = node.get("left_window_size", -1), node.get("right_window_size", -1)
    right = (
        min(right, 0) if right >= 0 and node.get("is_causal", 0) else 0 if node.get("is_causal", 0) else right
    )
    key, query = np.arange(columns)[None], np.arange(rows)[:, None]
    if valid is None:
        ahead = key - query - given.past
        allowed = np.ones((rows, columns), bool)
        allowed &= (ahead <= right) | (right < 0)
        allowed &= (-ahead <= left) | (left < 0)
        return None if allowed.all() else as_tensor(allowed)
    valid = ops.cast(valid, int64).reshape((-1, 1, 1, 1))
    shown = ops.lt(as_tensor(key), valid)
    ahead = ops.sub(as_tensor(key - query + rows), valid)  # the last query is at the last valid key
    shown = shown if right < 0 else ops.logical_and(shown, ops.le(ahead, right))
    return shown if left < 0 else ops.logical_and(shown, ops.ge(ahead, -left))


def _composed(node: OnnxNode, given: AttentionInputs, scale: float, cap: float, bias: Any) -> tuple[Any, Any]:
    """(the result, the scores at the stage of qk_matmul_output_mode); rows without a key are 0."""
    root = scale**0.5
    scores = ops.matmul(ops.mul(given.q, root), ops.mul(ops.transpose(given.k, 2, 3), root))
    stages = [scores]
    scores = ops.mul(ops.tanh(ops.div(scores, cap)), cap) if cap else scores
    stages.append(scores)
    scores = scores if bias is None else ops.add(scores, bias)
    stages.append(scores)
    precision = node.get("softmax_precision")
    wide = scores if precision is None else ops.cast(scores, dtype_of(precision))
    top = ops.amax(wide, -1, True)
    empty = ops.eq(top, -np.inf)
    weights = ops.where(empty, 0.0, ops.softmax(ops.where(empty, 0.0, wide), -1))
    weights = ops.cast(weights, given.q.dtype)
    stages.append(weights)
    return ops.matmul(weights, given.v), stages[node.get("qk_matmul_output_mode", 0)]


@converts("RotaryEmbedding")
def rotary_embedding(node: OnnxNode) -> Any:
    """Rotary position embedding: pairs of features rotated by the position (https://arxiv.org/abs/2104.09864)."""
    x, cos, sin, places = node.input(0), node.input(1), node.input(2), node.optional(3)
    wide = x if x.ndim == 4 else heads(x, node.needed("num_heads"))
    width = node.get("rotary_embedding_dim", 0) or wide.shape[-1]
    cos, sin = (_angles(table, places)[..., : width // 2] for table in (cos, sin))
    found = turned(wide, cos, sin, bool(node.get("interleaved", 0)))
    return found if x.ndim == 4 else ops.transpose(found, 1, 2).reshape(x.shape)


def turned(x: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
    """[..., E] with as many pairs of features rotated as the tables [..., n] have angles; the rest is unchanged.

    Pairs are neighbors (interleaved), or features i and i + n.
    """
    n = cos.shape[-1]
    moved, rest = x[..., : 2 * n], x[..., 2 * n :]
    a, b = (moved[..., 0::2], moved[..., 1::2]) if interleaved else (moved[..., :n], moved[..., n:])
    real, imaginary = ops.sub(ops.mul(cos, a), ops.mul(sin, b)), ops.add(ops.mul(sin, a), ops.mul(cos, b))
    apart = ops.stack([real, imaginary], -1).reshape(moved.shape) if interleaved else None
    moved = ops.cat([real, imaginary], -1) if apart is None else apart
    return moved if 2 * n == x.shape[-1] else ops.cat([moved, rest], -1)


def _angles(table: Any, places: Any) -> Any:
    """[B, 1, T, E / 2]: the rows of a table at each position, or as given."""
    if places is None:
        return table.unsqueeze(1)
    rows = ops.index_select(table, 0, ops.cast(places, int64).reshape((-1,)))
    return rows.reshape((*places.shape, table.shape[-1])).unsqueeze(1)


@converts("FlexAttention", domain="ai.onnx.preview")
def flex_attention(node: OnnxNode) -> Any:
    """softmax(f(q k^T scale)) v; f, and the function of the weights, are subgraphs."""
    q, k, v = (node.input(i) for i in range(3))
    k, v = shared(k, q.shape[1]), shared(v, q.shape[1])
    scale = node.get("scale") or q.shape[-1] ** -0.5
    precision = node.get("softmax_precision")
    scores = ops.mul(ops.matmul(q, ops.transpose(k, 2, 3)), scale)
    scores = scores if precision is None else ops.cast(scores, dtype_of(precision))
    scores = _changed(node, "score_mod", scores)
    weights = _changed(node, "prob_mod", ops.softmax(scores, -1))
    return ops.matmul(ops.cast(weights, v.dtype), v)


def _changed(node: OnnxNode, attribute: str, x: Any) -> Any:
    body = node.get(attribute)
    return x if body is None else node.run_graph(body, [x])[0]
