"""Translation by recurrent networks with attention (Bahdanau, Cho & Bengio 2015), as in PyTorch's tutorial."""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina import ops
from lamina.nn.attention import padding_bias
from lamina.nn.dropout import Dropout
from lamina.nn.embedding import Embedding
from lamina.nn.linear import Linear
from lamina.nn.module import Module, T
from lamina.nn.rnn import GRU
from lamina.ops.core import operand


class EncoderRNN(Module):
    """Embedding, dropout, a GRU."""

    def __init__(self, input_size: int, hidden_size: int, dropout_p: float = 0.1) -> None:
        self.embedding = Embedding(input_size, hidden_size)
        self.gru = GRU(hidden_size, hidden_size, batch_first=True)
        self.dropout = Dropout(dropout_p)

    def forward(self, input: T, lengths: Any = None) -> tuple[T, T]:
        """Integers (B, S) -> states (B, S, H) and the last one (1, B, H); lengths (B,) of padded texts."""
        return self.gru(self.dropout(self.embedding(input)), None, lengths)


class BahdanauAttention(Module):
    """The mean of the keys, weighted by Va(tanh(Wa(query) + Ua(key)))."""

    def __init__(self, hidden_size: int) -> None:
        self.Wa = Linear(hidden_size, hidden_size)
        self.Ua = Linear(hidden_size, hidden_size)
        self.Va = Linear(hidden_size, 1)

    def forward(self, query: T, keys: T, mask: T | None = None) -> tuple[T, T]:
        """query (B, 1, H), keys (B, S, H) -> context (B, 1, H) and weights (B, 1, S); mask (B, S): 0 at padding."""
        scores: Any = ops.transpose(self.Va(ops.tanh(self.Wa(query) + self.Ua(keys))), 1, 2)
        if mask is not None:
            scores = scores + padding_bias(mask, scores)[:, 0]
        weights: T = ops.softmax(scores, -1)
        return ops.matmul(weights, keys), weights


class AttnDecoderRNN(Module):
    """A GRU on the previous token and the attention context of its last state; the state predicts the next token."""

    def __init__(self, hidden_size: int, output_size: int, dropout_p: float = 0.1) -> None:
        self.embedding = Embedding(output_size, hidden_size)
        self.attention = BahdanauAttention(hidden_size)
        self.gru = GRU(2 * hidden_size, hidden_size, batch_first=True)
        self.out = Linear(hidden_size, output_size)
        self.dropout = Dropout(dropout_p)

    def forward(self, token: T, hidden: T, memory: T, mask: T | None = None) -> tuple[T, T, T]:
        """token (B, 1), state (1, B, H), memory (B, S, H) -> logits (B, 1, V), the state, weights (B, 1, S)."""
        context, weights = self.attention(ops.transpose(hidden, 0, 1), memory, mask)
        x: T = ops.cat([self.dropout(self.embedding(token)), context], 2)
        y, hidden = self.gru(x, hidden)
        return self.out(y), hidden, weights


class Seq2Seq(Module):
    """`EncoderRNN` and `AttnDecoderRNN`. Keys are encoder.embedding.weight, encoder.gru.…, decoder.attention.Wa.…, ….

    sos_token: the start token of the decoder's text.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        hidden_size: int = 128,
        dropout_p: float = 0.1,
        sos_token: int = 0,
    ) -> None:
        self.encoder = EncoderRNN(input_size, hidden_size, dropout_p)
        self.decoder = AttnDecoderRNN(hidden_size, output_size, dropout_p)
        self.sos_token = sos_token

    def forward(self, source: T, target: T, lengths: T | None = None) -> T:
        """Integers (B, S) and (B, L) -> logits (B, L, V) of each target token, from the previous ones.

        The decoder gets the correct tokens (teacher forcing). lengths: (B,), the source's numbers of non-padding
        tokens.
        """
        given, goal = operand(source), operand(target)
        memory, hidden = self.encoder(given, lengths)
        mask = _within(given, lengths)
        start = ops.full_like(goal[:, :1], self.sos_token)
        tokens = ops.cat([start, goal[:, :-1]], 1) if goal.shape[1] > 1 else start
        logits = []
        for t in range(goal.shape[1]):
            y, hidden, _ = self.decoder(tokens[:, t : t + 1], hidden, memory, mask)
            logits.append(y)
        found: T = ops.cat(logits, 1)
        return found

    def translate(self, source: T, length: int, lengths: T | None = None) -> T:
        """Integers (B, S) -> (B, length): greedy decoding, each token the most likely one after the previous ones."""
        given = operand(source)
        memory, hidden = self.encoder(given, lengths)
        mask = _within(given, lengths)
        token, tokens = ops.full_like(given[:, :1], self.sos_token), []
        for _ in range(length):
            y, hidden, _ = self.decoder(token, hidden, memory, mask)
            token = ops.argmax(y, -1)
            tokens.append(token)
        found: T = ops.cat(tokens, 1)
        return found


def _within(tokens: Any, lengths: Any) -> Any:
    """Which of the tokens (B, S) are not padding; None for all."""
    return (
        None if lengths is None else ops.lt(np.arange(tokens.shape[1])[None], operand(lengths).unsqueeze(1))
    )
