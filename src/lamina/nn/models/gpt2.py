"""GPT-2 (Radford, Wu, Child, Luan, Amodei & Sutskever 2019): a causal decoder for text generation.

Arguments and keys are those of Hugging Face's transformers (transformer.h.0.attn.c_attn.weight, …), so published
weights load by name.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina import ops
from lamina.nn import init
from lamina.nn.attention import attended, join_heads, padding_bias, split_heads
from lamina.nn.container import ModuleList
from lamina.nn.dropout import Dropout
from lamina.nn.embedding import Embedding
from lamina.nn.linear import Linear
from lamina.nn.module import Module, T
from lamina.nn.norm import LayerNorm
from lamina.nn.parameter import Parameter
from lamina.ops.core import operand
from lamina.spec import ShapeError
from lamina.tensors import Tensor, empty, zeros

#: Keys and values of one layer, each (B, H, P, E / H), with capacity for P tokens.
LayerCache = tuple[Any, Any]


class Conv1D(Module):
    """y = x · weight + bias with weight (nx, nf): a linear layer whose weight is stored transposed."""

    def __init__(self, nf: int, nx: int, std: float = 0.02) -> None:
        self.weight = init.normal_(Parameter(empty((nx, nf))), 0.0, std)
        self.bias = init.zeros_(Parameter(empty(nf)))

    def forward(self, x: T) -> T:
        """x (…, nx) -> (…, nf)."""
        y: T = ops.matmul(x, self.weight) + self.bias
        return y


class GPT2Attention(Module):
    """Causal attention with n_head heads: each token attends to itself and earlier ones."""

    def __init__(
        self, n_embd: int, n_head: int, attn_pdrop: float, resid_pdrop: float, std: float = 0.02
    ) -> None:
        self.n_head = n_head
        self.c_attn = Conv1D(3 * n_embd, n_embd)
        self.c_proj = Conv1D(n_embd, n_embd, std)
        self.attn_dropout = Dropout(attn_pdrop)
        self.resid_dropout = Dropout(resid_pdrop)

    def forward(
        self, x: Any, bias: Any = None, cache: LayerCache | None = None, places: Any = None
    ) -> tuple[Any, LayerCache]:
        """x (B, L, E) -> the same shape, and the keys and values that it attended to.

        bias: added to the scores. cache: keys and values of earlier tokens; those of x are written at `places` (L,),
        and `bias` masks it.
        """
        q, k, v = (split_heads(part, self.n_head) for part in ops.chunk(self.c_attn(x), 3, -1))
        if cache is not None:
            k, v = (ops.index_copy(old, 2, places, new) for old, new in zip(cache, (k, v), strict=True))
        y = attended(q, k, v, bias, self.attn_dropout, causal=cache is None)
        return self.resid_dropout(self.c_proj(join_heads(y))), (k, v)


class GPT2MLP(Module):
    """Two linear layers with GELU, by its tanh approximation, in between."""

    def __init__(self, n_inner: int, n_embd: int, resid_pdrop: float, std: float = 0.02) -> None:
        self.c_fc = Conv1D(n_inner, n_embd)
        self.c_proj = Conv1D(n_embd, n_inner, std)
        self.dropout = Dropout(resid_pdrop)

    def forward(self, x: T) -> T:
        """x (…, E) -> the same shape."""
        return self.dropout(self.c_proj(ops.gelu(self.c_fc(x), approximate="tanh")))


class GPT2Block(Module):
    """Attention and a feed-forward network, each preceded by a layer norm and with a residual connection.

    std: the initial standard deviation of the weights that write to the residual stream.
    """

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        n_inner: int,
        attn_pdrop: float,
        resid_pdrop: float,
        eps: float,
        std: float = 0.02,
    ) -> None:
        self.ln_1 = LayerNorm(n_embd, eps)
        self.attn = GPT2Attention(n_embd, n_head, attn_pdrop, resid_pdrop, std)
        self.ln_2 = LayerNorm(n_embd, eps)
        self.mlp = GPT2MLP(n_inner, n_embd, resid_pdrop, std)

    def forward(
        self, x: Any, bias: Any = None, cache: LayerCache | None = None, places: Any = None
    ) -> tuple[Any, LayerCache]:
        """As in `GPT2Attention.forward`."""
        y, cache = self.attn(self.ln_1(x), bias, cache, places)
        x = x + y
        return x + self.mlp(self.ln_2(x)), cache


class GPT2Model(Module):
    """Token and position embeddings, n_layer blocks, a layer norm."""

    def __init__(
        self,
        vocab_size: int = 50257,
        n_positions: int = 1024,
        n_embd: int = 768,
        n_layer: int = 12,
        n_head: int = 12,
        n_inner: int | None = None,
        resid_pdrop: float = 0.1,
        embd_pdrop: float = 0.1,
        attn_pdrop: float = 0.1,
        layer_norm_epsilon: float = 1e-5,
    ) -> None:
        if n_embd % n_head:
            raise ValueError(f"GPT2Model: n_head={n_head} must divide n_embd={n_embd}")
        self.n_positions, self.n_embd, self.n_head = n_positions, n_embd, n_head
        with init.skipped():
            self.wte = Embedding(vocab_size, n_embd)
            self.wpe = Embedding(n_positions, n_embd)
        for table in (self.wte, self.wpe):
            init.normal_(table.weight, 0.0, 0.02)
        self.drop = Dropout(embd_pdrop)
        inner = 4 * n_embd if n_inner is None else n_inner
        std = 0.02 / max(2 * n_layer, 1) ** 0.5  # of weights that write to the residual stream
        self.h = ModuleList(
            GPT2Block(n_embd, n_head, inner, attn_pdrop, resid_pdrop, layer_norm_epsilon, std)
            for _ in range(n_layer)
        )
        self.ln_f = LayerNorm(n_embd, layer_norm_epsilon)

    def forward(self, input_ids: T, attention_mask: T | None = None, position_ids: T | None = None) -> T:
        """Integers (B, L) -> (B, L, n_embd). Raises ShapeError for more than n_positions.

        attention_mask: (B, L), 0 at padding tokens. position_ids: (B, L) or (L,), each token's position; by default
        0, 1, 2, ….
        """
        ids: T = operand(input_ids)
        self._check(ids)
        places: Any = np.arange(ids.shape[1]) if position_ids is None else position_ids
        x: T = self.drop(self.wte(ids) + self.wpe(places))
        bias = None if attention_mask is None else padding_bias(attention_mask, x)
        for block in self.h:
            x, _ = block(x, bias)
        return self.ln_f(x)

    def continued(
        self, input_ids: T, cache: tuple[LayerCache, ...], position: Any, attention_mask: Any = None
    ) -> tuple[T, tuple[LayerCache, ...]]:
        """`forward` for the tokens at position, position + 1, … of a text, given a `cache` of the earlier ones.

        Returns their outputs, and the updated cache. position: an integer () or (1,). attention_mask: (B, length of
        the cache), 0 at the padding on the left of shorter texts. All shapes are fixed, so one compiled program
        serves every token.
        """
        ids: T = operand(input_ids)
        self._check(ids)
        places = ops.cast(operand(position), "int64").reshape((1,)) + np.arange(ids.shape[1])
        own = places if attention_mask is None else _behind_padding(places, attention_mask)
        x: T = self.drop(self.wte(ids) + self.wpe(own))
        room = np.arange(cache[0][0].shape[2])
        bias = padding_bias(ops.le(room[None], places.unsqueeze(1)), x).permute((1, 2, 0, 3))
        if attention_mask is not None:
            bias = bias + padding_bias(attention_mask, x)
        after = []
        for block, held in zip(self.h, cache, strict=True):
            x, held = block(x, bias, held, places)
            after.append(held)
        return self.ln_f(x), tuple(after)

    def empty_cache(self, batch: int, length: int) -> tuple[tuple[Tensor, Tensor], ...]:
        """A zeroed key and value cache for `length` tokens of `batch` texts, for `continued`. Raises ShapeError."""
        if not 1 <= length <= self.n_positions:
            raise ShapeError(f"GPT2Model: a cache of {length} tokens, but n_positions is {self.n_positions}")
        shape = (batch, self.n_head, length, self.n_embd // self.n_head)
        like = self.wte.weight
        return tuple(
            (
                zeros(shape, dtype=like.dtype, device=like.device),
                zeros(shape, dtype=like.dtype, device=like.device),
            )
            for _ in self.h
        )

    def _check(self, ids: Any) -> None:
        if ids.ndim != 2 or ids.shape[1] > self.n_positions:
            raise ShapeError(
                f"GPT2Model: input_ids must be (B, L) with L at most n_positions={self.n_positions}, got {ids.spec}"
            )


class GPT2LMHeadModel(Module):
    """`GPT2Model` and the logits of the next token, with tied embedding weights by default.

    Arguments as in `GPT2Model`; the defaults are the smallest published model, of 124,439,808 parameters.
    """

    def __init__(
        self, vocab_size: int = 50257, *, n_embd: int = 768, tie_word_embeddings: bool = True, **options: Any
    ) -> None:
        self.transformer = GPT2Model(vocab_size, n_embd=n_embd, **options)
        with init.skipped():
            self.lm_head = Linear(n_embd, vocab_size, bias=False)
        if tie_word_embeddings:
            self.lm_head.weight = self.transformer.wte.weight
        else:
            init.normal_(self.lm_head.weight, 0.0, 0.02)

    def forward(self, input_ids: T, attention_mask: T | None = None, position_ids: T | None = None) -> T:
        """Integers (B, L) -> logits (B, L, vocab_size) of each next token; arguments as in `GPT2Model.forward`."""
        return self.lm_head(self.transformer(input_ids, attention_mask, position_ids))

    def continued(
        self, input_ids: T, cache: tuple[LayerCache, ...], position: Any, attention_mask: Any = None
    ) -> tuple[T, tuple[LayerCache, ...]]:
        """Logits, and the updated cache; see `GPT2Model.continued`."""
        x, after = self.transformer.continued(input_ids, cache, position, attention_mask)
        return self.lm_head(x), after

    def empty_cache(self, batch: int, length: int) -> tuple[tuple[Tensor, Tensor], ...]:
        """See `GPT2Model.empty_cache`."""
        return self.transformer.empty_cache(batch, length)


def _behind_padding(places: Any, attention_mask: Any) -> Any:
    """The positions (B, L) of the tokens at places (L,) in texts that begin behind padding; 0 for the padding."""
    padding = ops.sum(ops.cast(ops.eq(operand(attention_mask), 0), "int64"), 1, keepdim=True)
    return ops.maximum(places.unsqueeze(0) - padding, 0)
