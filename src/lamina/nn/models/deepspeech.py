"""Deep Speech (Hannun et al. 2014): speech recognition. Arguments and keys as torchaudio's DeepSpeech."""

from __future__ import annotations

from typing import Any

from lamina import ops
from lamina.nn.dropout import Dropout
from lamina.nn.linear import Linear
from lamina.nn.module import Module, T
from lamina.nn.rnn import RNN
from lamina.ops.core import operand
from lamina.spec import ShapeError


class FullyConnected(Module):
    """A linear layer, a ReLU clipped at relu_max_clip, dropout."""

    def __init__(self, n_feature: int, n_hidden: int, dropout: float, relu_max_clip: int = 20) -> None:
        self.fc = Linear(n_feature, n_hidden)
        self.relu_max_clip = relu_max_clip
        self.dropout = Dropout(dropout)

    def forward(self, x: T) -> T:
        """x (…, n_feature) -> (…, n_hidden)."""
        return self.dropout(ops.hardtanh(self.fc(x), 0.0, float(self.relu_max_clip)))


class DeepSpeech(Module):
    """Three layers per frame, a bidirectional recurrent one, two more, and the classes' log-probabilities.

    Keys are fc1.fc.weight … bi_rnn.weight_ih_l0_reverse … out.bias.
    """

    def __init__(self, n_feature: int, n_hidden: int = 2048, n_class: int = 40, dropout: float = 0.0) -> None:
        self.n_hidden = n_hidden
        self.fc1 = FullyConnected(n_feature, n_hidden, dropout)
        self.fc2 = FullyConnected(n_hidden, n_hidden, dropout)
        self.fc3 = FullyConnected(n_hidden, n_hidden, dropout)
        self.bi_rnn = RNN(n_hidden, n_hidden, nonlinearity="relu", bidirectional=True)
        self.fc4 = FullyConnected(n_hidden, n_hidden, dropout)
        self.out = Linear(n_hidden, n_class)

    def forward(self, x: T, lengths: Any = None) -> T:
        """Spectra (N, 1, L, n_feature) -> log-probabilities (N, L, n_class).

        lengths: (N,), the number of non-padding frames of each; the recurrent layer ignores the others. Transposed to
        (L, N, n_class) the result is an input of `ops.ctc_loss`. Raises ShapeError.
        """
        given: T = operand(x)
        if given.ndim != 4 or given.shape[1] != 1:
            raise ShapeError(f"DeepSpeech: x must be (N, 1, L, n_feature), got {given.spec}")
        frames = self.fc3(self.fc2(self.fc1(given)))
        y, _ = self.bi_rnn(ops.transpose(ops.squeeze(frames, 1), 0, 1), None, lengths)
        forwards, backwards = ops.chunk(y, 2, -1)
        y = self.out(self.fc4(forwards + backwards))
        return ops.log_softmax(ops.transpose(y, 0, 1), 2)
