"""Multi-head attention in NumPy, float64, forward and backward, by the formulas of cuDNN's legacy API.

queries: (batch, q_time, q_size); keys, values: (batch, kv_time, size). weights: "q_weights" (heads, projection,
q_size) and so on, "o_weights" (heads, output, v_projection); a missing matrix is the identity, and without
"o_weights" the heads are concatenated. "q_biases" ... (heads, projection, 1), "o_biases" (1, output, 1).
A query attends to the keys low <= j < high before the keys' end. Positions past a query's end give zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass
class Attention:
    """One call, with the values needed for its gradient."""

    queries: Array
    keys: Array
    values: Array
    weights: dict[str, Array]
    scale: float
    q_valid: Array  # (batch, q_time)
    projected: tuple[Array, Array, Array]  # (batch, heads, time, projection)
    softmax: Array  # (batch, heads, q_time, kv_time)
    mixed: Array  # (batch, heads, q_time, projection of v)
    out: Array


def _project(x: Array, w: Array | None, b: Array | None, heads: int) -> Array:
    if w is None:
        return np.repeat(x[:, None], heads, axis=1)
    y = np.einsum("hps,bts->bhtp", w, x)
    return y if b is None else y + b[None, :, None, :, 0]


def forward(
    queries: Any,
    keys: Any,
    values: Any,
    weights: Mapping[str, Any],
    *,
    heads: int,
    scale: float = 1.0,
    q_lengths: Any = None,
    kv_lengths: Any = None,
    window: tuple[Any, Any] | None = None,
    residuals: Any = None,
) -> Attention:
    """`Attention.out`: (batch, q_time, output)."""
    q, k, v = (np.asarray(a, np.float64) for a in (queries, keys, values))
    w = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    (batch, q_time, _), kv_time = q.shape, k.shape[1]
    qs, ks, vs = (
        _project(x, w.get(f"{name}_weights"), w.get(f"{name}_biases"), heads)
        for name, x in (("q", q), ("k", k), ("v", v))
    )
    seen = (
        np.arange(kv_time)
        < (np.full(batch, kv_time) if kv_lengths is None else np.asarray(kv_lengths))[:, None]
    )
    mask = np.repeat(seen[:, None, :], q_time, axis=1)
    if window is not None:
        low, high = (np.asarray(side)[:, None] for side in window)
        mask &= (np.arange(kv_time) >= low) & (np.arange(kv_time) < high)
    scores = np.where(mask[:, None], scale * np.einsum("bhtp,bhsp->bhts", qs, ks), -np.inf)
    exponents = np.exp(scores - scores.max(axis=-1, keepdims=True))
    softmax = exponents / exponents.sum(axis=-1, keepdims=True)
    mixed = np.einsum("bhts,bhsp->bhtp", softmax, vs)
    if "o_weights" in w:
        out = np.einsum("hop,bhtp->bto", w["o_weights"], mixed)
        out = out + w["o_biases"].sum(axis=0)[:, 0] if "o_biases" in w else out
    else:
        out = mixed.transpose(0, 2, 1, 3).reshape(batch, q_time, -1)
    if residuals is not None:
        out = out + np.asarray(residuals, np.float64)
    lengths = np.full(batch, q_time) if q_lengths is None else np.asarray(q_lengths)
    valid = (np.arange(q_time) < lengths[:, None]).astype(np.float64)
    return Attention(q, k, v, w, scale, valid, (qs, ks, vs), softmax, mixed, out * valid[..., None])


def backward(done: Attention, dout: Any) -> dict[str, Array]:
    """Gradients of sum(dout * out): "queries" (without the residuals' part), "keys", "values", and each weight."""
    g = np.asarray(dout, np.float64) * done.q_valid[..., None]
    qs, ks, vs = done.projected
    found: dict[str, Array] = {}
    if "o_weights" in done.weights:
        found["o_weights"] = np.einsum("bto,bhtp->hop", g, done.mixed)
        dmixed = np.einsum("hop,bto->bhtp", done.weights["o_weights"], g)
    else:
        dmixed = g.reshape(*g.shape[:2], qs.shape[1], -1).transpose(0, 2, 1, 3)
    dsoftmax = np.einsum("bhtp,bhsp->bhts", dmixed, vs)
    inner = (dsoftmax * done.softmax).sum(axis=-1, keepdims=True)
    dscores = done.scale * done.softmax * (dsoftmax - inner)
    parts = {
        "q": (done.queries, np.einsum("bhts,bhsp->bhtp", dscores, ks), "queries"),
        "k": (done.keys, np.einsum("bhts,bhtp->bhsp", dscores, qs), "keys"),
        "v": (done.values, np.einsum("bhts,bhtp->bhsp", done.softmax, dmixed), "values"),
    }
    for name, (x, dy, whole) in parts.items():
        w = done.weights.get(f"{name}_weights")
        if w is None:
            found[whole] = dy.sum(axis=1)
        else:
            found[f"{name}_weights"] = np.einsum("bhtp,bts->hps", dy, x)
            found[whole] = np.einsum("hps,bhtp->bts", w, dy)
    return found
