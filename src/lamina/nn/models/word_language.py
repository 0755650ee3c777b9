"""A recurrent language model (Zaremba, Sutskever & Vinyals 2014), as in PyTorch's word-level example."""

from __future__ import annotations

from typing import Any

from lamina import ops
from lamina.nn import init
from lamina.nn.dropout import Dropout
from lamina.nn.embedding import Embedding
from lamina.nn.linear import Linear
from lamina.nn.module import Module, T
from lamina.nn.rnn import GRU, LSTM, RNN
from lamina.tensors import Tensor, zeros

_KINDS = ("LSTM", "GRU", "RNN_TANH", "RNN_RELU")


class RNNModel(Module):
    """Embedding, recurrent layers and the log-probabilities of the next word.

    rnn_type: "LSTM", "GRU", "RNN_TANH" or "RNN_RELU". ntoken: vocabulary size. ninp, nhid: sizes of a word's
    embedding and of the state. tie_weights: input and output embeddings are shared (Press & Wolf 2016); then nhid
    must be ninp. Keys are encoder.weight, rnn.weight_ih_l0, …, decoder.weight, decoder.bias.
    """

    def __init__(
        self,
        rnn_type: str,
        ntoken: int,
        ninp: int,
        nhid: int,
        nlayers: int,
        dropout: float = 0.5,
        tie_weights: bool = False,
    ) -> None:
        if rnn_type not in _KINDS:
            raise ValueError(f"RNNModel: rnn_type must be one of {', '.join(_KINDS)}, got {rnn_type!r}")
        if tie_weights and nhid != ninp:
            raise ValueError(f"RNNModel: tie_weights needs nhid equal to ninp, got {nhid} and {ninp}")
        self.drop = Dropout(dropout)
        self.encoder = _uniform(Embedding(ntoken, ninp))
        self.rnn: LSTM | GRU | RNN
        if rnn_type in ("LSTM", "GRU"):
            kind = LSTM if rnn_type == "LSTM" else GRU
            self.rnn = kind(ninp, nhid, nlayers, dropout=dropout)
        else:
            self.rnn = RNN(ninp, nhid, nlayers, rnn_type.removeprefix("RNN_").lower(), dropout=dropout)
        self.decoder = _uniform(Linear(nhid, ntoken))
        if tie_weights:
            self.decoder.weight = self.encoder.weight

    def forward(self, input: T, hidden: Any = None) -> tuple[T, Any]:
        """Integers (L, B) and the state -> log-probabilities (L · B, ntoken) of each next word, and the state.

        hidden: (nlayers, B, nhid), for the LSTM a pair of them; by default zeros.
        """
        y, after = self.rnn(self.drop(self.encoder(input)), hidden)
        logits = self.decoder(self.drop(y))
        return ops.log_softmax(logits.reshape((-1, logits.shape[-1])), 1), after

    def init_hidden(self, bsz: int) -> Tensor | tuple[Tensor, Tensor]:
        """The initial state of bsz texts: zeros."""
        like = self.encoder.weight
        shape = (self.rnn.num_layers, bsz, self.rnn.hidden_size)
        h, c = (zeros(shape, dtype=like.dtype, device=like.device) for _ in range(2))
        return (h, c) if isinstance(self.rnn, LSTM) else h


def _uniform(layer: Any) -> Any:
    """Initialize the layer: weights uniform within 0.1 and biases zero."""
    init.uniform_(layer.weight, -0.1, 0.1)
    if getattr(layer, "bias", None) is not None:
        init.zeros_(layer.bias)
    return layer
