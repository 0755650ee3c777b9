"""Multi-head attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

from lamina import ops
from lamina.graph.ir.graph import Value
from lamina.nn import init
from lamina.nn.dropout import Dropout
from lamina.nn.linear import Linear
from lamina.nn.module import Module, T
from lamina.nn.parameter import Parameter
from lamina.ops.arguments import DTypeLike
from lamina.ops.core import operand
from lamina.ops.primitives.attention import attention_and_weights, dropping_attention
from lamina.runtime import Device
from lamina.spec import ShapeError, bool_
from lamina.tensors import Tensor, empty, tensor

#: An attention mask: booleans, or numbers added to the scores.
Mask: TypeAlias = Tensor | Value | None


class MultiheadAttention(Module):
    """Attention of num_heads heads (Vaswani et al. 2017): each on its own projections of query, key and value.

    Parameters as in torch: in_proj_weight (3 E, E), or q_proj_weight (E, E), k_proj_weight (E, kdim) and
    v_proj_weight (E, vdim) if those sizes differ, in_proj_bias (3 E,), optionally bias_k and bias_v (1, 1, E),
    out_proj. Sequences are (L, B, E), or (B, L, E) with batch_first, or (L, E). dropout: of the attention weights, in
    training. add_zero_attn: appends a key and a value of zeros.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Device | str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        if embed_dim < 1 or num_heads < 1 or embed_dim % num_heads:
            raise ValueError(
                f"MultiheadAttention: num_heads={num_heads} must divide embed_dim={embed_dim}, both at least 1"
            )
        self.embed_dim, self.num_heads, self.batch_first = embed_dim, num_heads, bool(batch_first)
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self.dropout = dropout
        self._drop = Dropout(dropout)
        if self.kdim == self.vdim == embed_dim:
            self.in_proj_weight = init.xavier_uniform_(Parameter(empty((3 * embed_dim, embed_dim))))
        else:
            self.register_parameter("in_proj_weight", None)
            for name, width in (("q", embed_dim), ("k", self.kdim), ("v", self.vdim)):
                weight = init.xavier_uniform_(Parameter(empty((embed_dim, width))))
                self.register_parameter(f"{name}_proj_weight", weight)
        biased = init.zeros_(Parameter(empty(3 * embed_dim))) if bias else None
        self.register_parameter("in_proj_bias", biased)
        for name in ("bias_k", "bias_v"):
            row = init.xavier_normal_(Parameter(empty((1, 1, embed_dim)))) if add_bias_kv else None
            self.register_parameter(name, row)
        self.add_zero_attn = add_zero_attn
        self.out_proj = Linear(embed_dim, embed_dim, bias)
        if self.out_proj.bias is not None:
            init.zeros_(self.out_proj.bias)
        self.to(device, dtype)

    @property
    def add_bias_kv(self) -> bool:
        """Whether a learned key and value are appended to the sequence's."""
        return self.bias_k is not None

    def forward(
        self,
        query: T,
        key: T,
        value: T,
        key_padding_mask: Mask = None,
        need_weights: bool = True,
        attn_mask: Mask = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[T, T | None]:
        """(output like query, weights) of query (L, B, E), key (S, B, kdim) and value (S, B, vdim), or without B.

        key_padding_mask: (B, S), attn_mask: (L, S) or (B H, L, S); bool, True for masked positions, or floats added
        to the scores. is_causal: position i attends only to positions up to i. need_weights: also return the weights,
        (B, L, S), or (B, H, L, S) unless averaged; otherwise None, which is faster. Raises ShapeError, DTypeError.
        """
        query, key, value = self._given(query, key, value)
        if query.ndim == 2:
            return self._one(
                (query, key, value),
                key_padding_mask,
                need_weights,
                attn_mask,
                average_attn_weights,
                is_causal,
            )
        projected, more = self._extended(*self._project(query, key, value))
        if more:
            if is_causal and attn_mask is None:
                attn_mask = tensor(
                    np.triu(np.ones((query.shape[axis := int(self.batch_first)], key.shape[axis]), bool), 1)
                )
            is_causal = False  # attn_mask contains it, as in torch
            key_padding_mask, attn_mask = (
                None if m is None else ops.pad(m, (0, more)) for m in (key_padding_mask, attn_mask)
            )
        q, k, v = (self._split(x) for x in projected)
        bias = self._bias(q, k, key_padding_mask, attn_mask)
        if not need_weights:
            return self._join(attended(q, k, v, bias, self._drop, is_causal)), None
        p = self._drop.p if self._drop.training else 0.0
        generator = self._drop.generator
        y, weights = attention_and_weights(q, k, v, bias, p, causal=is_causal, generator=generator)
        return self._join(y), ops.mean(weights, 1) if average_attn_weights else weights

    @staticmethod
    def _given(*given: Any) -> Iterator[Any]:
        """query, key and value as operands, a single one if they are identical."""
        names = ("query", "key", "value")
        made = {id(x): operand(x, "MultiheadAttention", name) for x, name in zip(given, names, strict=True)}
        return (made[id(x)] for x in given)

    def _one(
        self, given: tuple[T, T, T], padding: Mask, need: bool, mask: Mask, average: bool, is_causal: bool
    ) -> tuple[T, T | None]:
        """`forward` for an unbatched sequence: a batch of one."""
        batch = 0 if self.batch_first else 1
        if given[0] is given[1] is given[2]:
            query = key = value = ops.unsqueeze(given[0], batch)
        else:
            query, key, value = (ops.unsqueeze(x, batch) for x in given)
        wide = None if padding is None else ops.unsqueeze(padding, 0)
        o, weights = self.forward(query, key, value, wide, need, mask, average, is_causal)
        return ops.squeeze(o, batch), None if weights is None else ops.squeeze(weights, 0)

    def _project(self, query: Any, key: Any, value: Any) -> list[Any]:
        """The projections; a single product if query, key and value are identical."""
        bias, whole = self.in_proj_bias, self.in_proj_weight
        if whole is not None and query is key is value:
            return list(ops.chunk(ops.linear(query, whole, bias), 3, -1))
        if whole is not None:
            weights = ops.chunk(operand(whole), 3, 0)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None,) * 3 if bias is None else ops.chunk(operand(bias), 3, 0)
        given = (query, key, value)
        return [ops.linear(x, w, b) for x, w, b in zip(given, weights, biases, strict=True)]

    def _extended(self, q: Any, k: Any, v: Any) -> tuple[tuple[Any, Any, Any], int]:
        """Keys and values with the learned row and the row of zeros appended, and the number of these rows."""
        axis, more = int(self.batch_first), int(self.bias_k is not None) + int(self.add_zero_attn)
        shape = tuple(1 if i == axis else n for i, n in enumerate(k.shape))
        for row_k, row_v in ((self.bias_k, self.bias_v), (0.0, 0.0) if self.add_zero_attn else (None, None)):
            if row_k is not None:
                k, v = (
                    ops.cat([x, ops.expand(ops.cast(operand(row), x.dtype), shape)], axis)
                    for x, row in ((k, row_k), (v, row_v))
                )
        return (q, k, v), more

    def _split(self, x: Any) -> Any:
        """(L, B, E) or (B, L, E) as (B, H, L, E / H)."""
        if x.ndim != 3:
            raise ShapeError(f"MultiheadAttention: query, key and value must have 3 axes, got {x.spec}")
        apart = x.reshape((*x.shape[:2], self.num_heads, self.embed_dim // self.num_heads))
        return ops.permute(apart, (0, 2, 1, 3) if self.batch_first else (1, 2, 0, 3))

    def _join(self, o: Any) -> Any:
        """(B, H, L, E / H) as (L, B, E) or (B, L, E), projected."""
        together = ops.permute(o, (0, 2, 1, 3) if self.batch_first else (2, 0, 1, 3))
        return self.out_proj(together.reshape((*together.shape[:2], self.embed_dim)))

    def _bias(self, q: Any, k: Any, padding: Any, mask: Any) -> Any:
        """The total of the masks, added to the scores: (B or 1, H or 1, L or 1, S), or None."""
        (batch, heads, rows, _), columns = q.shape, k.shape[2]
        found = None
        if padding is not None:
            found = _additive(padding, (batch, columns), q, "key_padding_mask").reshape(
                (batch, 1, 1, columns)
            )
        if mask is not None:
            mask = operand(mask)
            whole = mask.ndim == 3
            shape = (batch * heads, rows, columns) if whole else (rows, columns)
            over = (batch, heads) if whole else (1, 1)
            added = _additive(mask, shape, q, "attn_mask").reshape((*over, rows, columns))
            found = added if found is None else found + added
        return found

    def __repr__(self) -> str:
        return f"MultiheadAttention(\n  (out_proj): {self.out_proj!r}\n)"


def attended(q: Any, k: Any, v: Any, bias: Any, drop: Dropout, causal: bool = False) -> Any:
    """`ops.attention` of q, k, v (B, H, L, E), with dropout of the weights by `drop` in training."""
    p = drop.p if drop.training else 0.0
    return dropping_attention(q, k, v, bias, p, causal=causal, generator=drop.generator)


def split_heads(x: Any, heads: int) -> Any:
    """(B, L, E) as (B, H, L, E / H)."""
    batch, length, width = x.shape
    return x.reshape((batch, length, heads, width // heads)).permute((0, 2, 1, 3))


def join_heads(x: Any) -> Any:
    """(B, H, L, E / H) as (B, L, E)."""
    batch, heads, length, width = x.shape
    return x.permute((0, 2, 1, 3)).reshape((batch, length, heads * width))


def padding_bias(mask: Any, like: Any) -> Any:
    """A mask (B, S), nonzero where to attend, as a bias for scores (B, H, L, S): 0, or half the lowest number.

    Not -inf: a fully masked row then gives a mean instead of NaN, which would spread to all others.
    """
    lowest = np.finfo(np.float16 if like.dtype.itemsize == 2 else np.float32).min / 2
    seen = ops.ne(operand(mask), 0)
    bias = ops.where(seen, np.array(0, like.dtype.numpy), np.array(lowest, like.dtype.numpy))
    return bias.unsqueeze(1).unsqueeze(1)


def _additive(mask: Any, shape: tuple[int, ...], like: Any, name: str) -> Any:
    """A mask as additive numbers: -inf where a bool mask is True."""
    mask = operand(mask)
    if mask.shape != shape:
        raise ShapeError(f"MultiheadAttention: {name} must be of shape {shape}, got {mask.spec}")
    if mask.dtype != bool_:
        return mask
    never, zero = (np.array(x, like.dtype.numpy) for x in (-np.inf, 0))
    return ops.where(mask, never, zero)
