"""Translation with attention: keys and values of the same layers in PyTorch, lengths, training, translating."""

from typing import Any

import numpy as np
import pytest

from lamina import nn
from tests.helpers.nn.twins import check, learns, same_weights, shapes

RNG = np.random.default_rng(0)
SOURCE, TARGET = RNG.integers(1, 9, (3, 6)), RNG.integers(1, 8, (3, 4))
LENGTHS = np.array([6, 4, 2])


def pytorch(inputs: int, outputs: int, hidden: int) -> Any:
    """The layers under the names of PyTorch's tutorial."""
    import torch
    from torch.nn import GRU, Embedding, Linear, Module

    class Encoder(Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.gru = Embedding(inputs, hidden), GRU(hidden, hidden, batch_first=True)

    class Attention(Module):
        def __init__(self) -> None:
            super().__init__()
            self.Wa, self.Ua, self.Va = Linear(hidden, hidden), Linear(hidden, hidden), Linear(hidden, 1)

        def forward(self, query: Any, keys: Any) -> Any:
            scores = self.Va(torch.tanh(self.Wa(query) + self.Ua(keys))).transpose(1, 2)
            return torch.softmax(scores, -1) @ keys

    class Decoder(Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.attention = Embedding(outputs, hidden), Attention()
            self.gru, self.out = GRU(2 * hidden, hidden, batch_first=True), Linear(hidden, outputs)

    class Translator(Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = Encoder(), Decoder()

        def forward(self, source: Any, target: Any) -> Any:
            memory, h = self.encoder.gru(self.encoder.embedding(source))
            tokens, logits = torch.cat([torch.zeros_like(target[:, :1]), target[:, :-1]], 1), []
            for t in range(target.shape[1]):
                context = self.decoder.attention(h.transpose(0, 1), memory)
                x = torch.cat([self.decoder.embedding(tokens[:, t : t + 1]), context], 2)
                y, h = self.decoder.gru(x, h)
                logits.append(self.decoder.out(y))
            return torch.cat(logits, 1)

    return Translator()


@pytest.mark.feature("B021")
def test_keys_are_those_of_the_tutorial() -> None:
    state = shapes(nn.Seq2Seq(9, 8, 6).state_dict())
    assert len(state) == 5 + 5 + 6 + 2
    assert state["encoder.embedding.weight"] == (9, 6)
    assert state["decoder.attention.Va.weight"] == (1, 6)
    assert state["decoder.gru.weight_ih_l0"] == (18, 12)
    assert state["decoder.out.bias"] == (8,)


@pytest.mark.torch
def test_values_and_gradients_are_pytorchs() -> None:
    theirs, ours = pytorch(9, 8, 6), nn.Seq2Seq(9, 8, 6, dropout_p=0.0)
    same_weights(theirs, ours)
    check(theirs, ours, (SOURCE, TARGET))


def test_padding_changes_nothing() -> None:
    net = nn.Seq2Seq(9, 8, 6).eval()
    whole, cut = net(SOURCE, TARGET, LENGTHS).numpy()[1], net(SOURCE[1:2, :4], TARGET[1:2]).numpy()[0]
    np.testing.assert_allclose(whole, cut, rtol=1e-4, atol=1e-6)


def test_it_learns_and_translates() -> None:
    nn.manual_seed(0)
    net = nn.Seq2Seq(9, 8, 16)
    learns(net, nn.token_loss, (SOURCE, TARGET, LENGTHS), TARGET, 80)
    found = net.eval().translate(SOURCE, 4, LENGTHS).numpy()
    assert (found == TARGET).mean() > 0.9
