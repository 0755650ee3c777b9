"""Linear attention with a state of constant size: a matrix that each step decays, corrects and adds to."""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina import ops
from lamina.convert.onnx.attention import heads, shared
from lamina.convert.onnx.node import OnnxNode, as_tensor, converts

RULES = ("linear", "gated", "delta", "gated_delta")


@converts("LinearAttention")
def linear_attention(node: OnnxNode) -> Any:
    """(outputs [B, T, H Ev], the state [B, G, E, Ev] after the last step), one step after the other.

    S = exp(g) S + beta k (v - exp(g) S^T k)^T and o = scale S^T q, with the terms that the update rule omits set to 1
    and 0.
    """
    rule = node.get("update_rule", "gated_delta")
    if rule not in RULES:
        raise node.error(f"update_rule must be one of {', '.join(RULES)}, got {rule!r}")
    own, groups = node.needed("q_num_heads"), node.needed("kv_num_heads")
    q, k, v = heads(node.input(0), own), heads(node.input(1), groups), heads(node.input(2), groups)
    decay = _gate(node, 4, groups) if rule.startswith("gated") else None
    rate = _gate(node, 5, groups) if rule.endswith("delta") else None
    state = node.optional(3)
    if state is None:
        state = as_tensor(np.zeros((k.shape[0], groups, k.shape[-1], v.shape[-1])), q.dtype)
    scale, outputs = node.get("scale", 0.0) or q.shape[-1] ** -0.5, []
    for t in range(q.shape[2]):
        key, value = k[:, :, t].unsqueeze(3), v[:, :, t].unsqueeze(2)  # [B, G, E, 1], [B, G, 1, Ev]
        state = state if decay is None else ops.mul(state, ops.exp(decay[:, :, t].unsqueeze(3)))
        if rate is not None:
            value = ops.sub(value, ops.sum(ops.mul(state, key), 2, True))
            value = ops.mul(value, rate[:, :, t].unsqueeze(3))
        state = ops.add(state, ops.mul(key, value))
        outputs.append(ops.matmul(q[:, :, t].unsqueeze(2), shared(state, own)))  # [B, H, 1, Ev]
    y = ops.mul(ops.cat(outputs, 2), scale)
    b, h, t, e = y.shape
    return ops.transpose(y, 1, 2).reshape((b, t, h * e)), state


def _gate(node: OnnxNode, index: int, groups: int) -> Any:
    """[B, G, T, E or 1] of [B, T, G E], [B, T, G] or [B, T, 1]."""
    x = node.input(index)
    return x.unsqueeze(1) if x.shape[-1] == 1 else heads(x, groups)
