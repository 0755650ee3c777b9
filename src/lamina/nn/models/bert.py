"""BERT (Devlin, Chang, Lee & Toutanova 2019): a bidirectional text encoder.

Arguments and keys are those of Hugging Face's transformers (bert.encoder.layer.0.attention.self.query.weight, …), so
published weights load by name.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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
from lamina.tensors import zeros


class BertOutput(NamedTuple):
    """The output of `BertModel`."""

    last_hidden_state: Any
    pooler_output: Any


class BertEmbeddings(Module):
    """The sum of token, position and segment embeddings; layer norm and dropout."""

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        places: int,
        segments: int,
        pad: int | None,
        dropout: float,
        eps: float,
    ) -> None:
        self.word_embeddings = Embedding(vocab_size, hidden_size, padding_idx=pad)
        self.position_embeddings = Embedding(places, hidden_size)
        self.token_type_embeddings = Embedding(segments, hidden_size)
        self.LayerNorm = LayerNorm(hidden_size, eps)
        self.dropout = Dropout(dropout)

    def forward(self, input_ids: T, token_type_ids: T | None, position_ids: T | None) -> T:
        """Integers (B, L) -> (B, L, hidden_size)."""
        length = input_ids.shape[1]
        places: Any = np.arange(length) if position_ids is None else position_ids
        segments: Any = np.zeros(length, np.int64) if token_type_ids is None else token_type_ids
        x: T = self.word_embeddings(input_ids) + self.position_embeddings(places)
        y: T = self.LayerNorm(x + self.token_type_embeddings(segments))
        return self.dropout(y)


class BertSelfAttention(Module):
    """Multi-head attention, without the output projection."""

    def __init__(self, hidden_size: int, heads: int, dropout: float) -> None:
        self.heads = heads
        self.query = Linear(hidden_size, hidden_size)
        self.key = Linear(hidden_size, hidden_size)
        self.value = Linear(hidden_size, hidden_size)
        self.dropout = Dropout(dropout)

    def forward(self, x: T, bias: T | None = None) -> T:
        """x (B, L, E) -> the same shape; bias: added to the scores."""
        q, k, v = (split_heads(layer(x), self.heads) for layer in (self.query, self.key, self.value))
        y: T = join_heads(attended(q, k, v, bias, self.dropout))
        return y


class BertResidual(Module):
    """A linear layer, dropout, the residual connection, a layer norm."""

    def __init__(self, inputs: int, hidden_size: int, dropout: float, eps: float) -> None:
        self.dense = Linear(inputs, hidden_size)
        self.LayerNorm = LayerNorm(hidden_size, eps)
        self.dropout = Dropout(dropout)

    def forward(self, x: T, skipped: T) -> T:
        """x (B, L, inputs), skipped (B, L, E) -> (B, L, E)."""
        y: T = self.LayerNorm(self.dropout(self.dense(x)) + skipped)
        return y


class BertAttention(Module):
    """Attention with output projection and residual connection."""

    def __init__(
        self, hidden_size: int, heads: int, attention_dropout: float, dropout: float, eps: float
    ) -> None:
        self.self = BertSelfAttention(hidden_size, heads, attention_dropout)
        self.output = BertResidual(hidden_size, hidden_size, dropout, eps)

    def forward(self, x: T, bias: T | None = None) -> T:
        """x (B, L, E) -> the same shape."""
        return self.output(self.self(x, bias), x)


class BertIntermediate(Module):
    """A linear layer and GELU."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        self.dense = Linear(hidden_size, intermediate_size)

    def forward(self, x: T) -> T:
        """x (B, L, E) -> (B, L, intermediate_size)."""
        return ops.gelu(self.dense(x))


class BertLayer(Module):
    """Attention, then a feed-forward network, each followed by a residual connection and a layer norm."""

    def __init__(
        self,
        hidden_size: int,
        heads: int,
        intermediate_size: int,
        attention_dropout: float,
        dropout: float,
        eps: float,
    ) -> None:
        self.attention = BertAttention(hidden_size, heads, attention_dropout, dropout, eps)
        self.intermediate = BertIntermediate(hidden_size, intermediate_size)
        self.output = BertResidual(intermediate_size, hidden_size, dropout, eps)

    def forward(self, x: T, bias: T | None = None) -> T:
        """x (B, L, E) -> the same shape."""
        x = self.attention(x, bias)
        return self.output(self.intermediate(x), x)


class BertEncoder(Module):
    """The layers in sequence."""

    def __init__(self, layers: int, *sizes: Any) -> None:
        self.layer = ModuleList(BertLayer(*sizes) for _ in range(layers))

    def forward(self, x: T, bias: T | None = None) -> T:
        """x (B, L, E) -> the same shape."""
        for layer in self.layer:
            x = layer(x, bias)
        return x


class BertPooler(Module):
    """tanh of a linear layer of the first token."""

    def __init__(self, hidden_size: int) -> None:
        self.dense = Linear(hidden_size, hidden_size)

    def forward(self, x: T) -> T:
        """x (B, L, E) -> (B, E)."""
        return ops.tanh(self.dense(x[:, 0]))


class BertModel(Module):
    """Embeddings, encoder, and the pooler unless add_pooling_layer is False.

    The defaults are those of the base model: 109,482,240 parameters. Weights are initialized with standard deviation
    0.02.
    """

    def __init__(
        self,
        vocab_size: int = 30522,
        hidden_size: int = 768,
        num_hidden_layers: int = 12,
        num_attention_heads: int = 12,
        intermediate_size: int = 3072,
        hidden_dropout_prob: float = 0.1,
        attention_probs_dropout_prob: float = 0.1,
        max_position_embeddings: int = 512,
        type_vocab_size: int = 2,
        layer_norm_eps: float = 1e-12,
        pad_token_id: int | None = 0,
        add_pooling_layer: bool = True,
    ) -> None:
        if hidden_size % num_attention_heads:
            raise ValueError(
                f"BertModel: num_attention_heads={num_attention_heads} must divide hidden_size={hidden_size}"
            )
        self.max_position_embeddings = max_position_embeddings
        dropout, eps = hidden_dropout_prob, layer_norm_eps
        with init.scheme(_initial):
            self.embeddings = BertEmbeddings(
                vocab_size, hidden_size, max_position_embeddings, type_vocab_size, pad_token_id, dropout, eps
            )
            self.encoder = BertEncoder(
                num_hidden_layers, hidden_size, num_attention_heads, intermediate_size, attention_probs_dropout_prob,
                dropout, eps,
            )  # fmt: skip
            self.pooler = BertPooler(hidden_size) if add_pooling_layer else None
        for table in self.embeddings.children():
            if isinstance(table, Embedding):
                values = init.normal_(table.weight, 0.0, 0.02).numpy().copy()
                if table.padding_idx is not None:
                    values[table.padding_idx] = 0
                table.weight.copy_(values)

    def forward(
        self,
        input_ids: T,
        attention_mask: T | None = None,
        token_type_ids: T | None = None,
        position_ids: T | None = None,
    ) -> BertOutput:
        """Integers (B, L) -> (B, L, hidden_size), and (B, hidden_size) for the first token (None without pooler).

        attention_mask: (B, L), 0 at padding tokens. token_type_ids: (B, L), each token's segment, by default 0.
        position_ids: (B, L) or (L,), each token's position. Raises ShapeError if the text is too long.
        """
        ids: T = operand(input_ids)
        if ids.ndim != 2 or ids.shape[1] > self.max_position_embeddings:
            most = self.max_position_embeddings
            raise ShapeError(
                f"BertModel: input_ids must be (B, L) with L at most max_position_embeddings={most}, got {ids.spec}"
            )
        x = self.embeddings(ids, token_type_ids, position_ids)
        bias = None if attention_mask is None else padding_bias(attention_mask, x)
        x = self.encoder(x, bias)
        return BertOutput(x, None if self.pooler is None else self.pooler(x))


class BertPredictionHeadTransform(Module):
    """A linear layer, GELU, a layer norm."""

    def __init__(self, hidden_size: int, eps: float) -> None:
        self.dense = Linear(hidden_size, hidden_size)
        self.LayerNorm = LayerNorm(hidden_size, eps)

    def forward(self, x: T) -> T:
        """x (B, L, E) -> the same shape."""
        return self.LayerNorm(ops.gelu(self.dense(x)))


class BertLMPredictionHead(Module):
    """The logits of each token. `bias` is the decoder's, under the two names that it has in published files."""

    def __init__(self, vocab_size: int, hidden_size: int, eps: float) -> None:
        self.transform = BertPredictionHeadTransform(hidden_size, eps)
        self.decoder = Linear(hidden_size, vocab_size)
        self.bias = Parameter(zeros(vocab_size))
        self.decoder.bias = self.bias

    def forward(self, x: T) -> T:
        """x (B, L, E) -> (B, L, vocab_size)."""
        return self.decoder(self.transform(x))


class BertOnlyMLMHead(Module):
    """`BertLMPredictionHead` under the name that it has in published files."""

    def __init__(self, vocab_size: int, hidden_size: int, eps: float) -> None:
        self.predictions = BertLMPredictionHead(vocab_size, hidden_size, eps)

    def forward(self, x: T) -> T:
        """x (B, L, E) -> (B, L, vocab_size)."""
        return self.predictions(x)


class BertForMaskedLM(Module):
    """`BertModel` without its pooler, and the logits of the tokens, with tied embedding weights.

    Arguments as in `BertModel`. The loss is `token_loss` with labels -100 at unmasked tokens.
    """

    def __init__(
        self,
        vocab_size: int = 30522,
        hidden_size: int = 768,
        *,
        layer_norm_eps: float = 1e-12,
        tie_word_embeddings: bool = True,
        **options: Any,
    ) -> None:
        eps = layer_norm_eps
        self.bert = BertModel(vocab_size, hidden_size, layer_norm_eps=eps, add_pooling_layer=False, **options)
        with init.scheme(_initial):
            self.cls = BertOnlyMLMHead(vocab_size, hidden_size, eps)
        if tie_word_embeddings:
            self.cls.predictions.decoder.weight = self.bert.embeddings.word_embeddings.weight

    def forward(
        self,
        input_ids: T,
        attention_mask: T | None = None,
        token_type_ids: T | None = None,
        position_ids: T | None = None,
    ) -> T:
        """Integers (B, L) -> logits (B, L, vocab_size); arguments as in `BertModel.forward`."""
        found = self.bert(input_ids, attention_mask, token_type_ids, position_ids)
        logits: T = self.cls(found.last_hidden_state)
        return logits


def _initial(layer: Any) -> None:
    """Weights normal with standard deviation 0.02, biases zero."""
    init.normal_(layer.weight, 0.0, 0.02)
    if layer.bias is not None:
        init.zeros_(layer.bias)
