"""The recurrent language model: keys, values and gradients of PyTorch's example, its state, tied weights."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops
from tests.helpers.nn.twins import check, learns, same_weights, shapes

RNG = np.random.default_rng(0)
IDS = RNG.integers(0, 11, (6, 3))
KINDS = ["LSTM", "GRU", "RNN_TANH", "RNN_RELU"]


def pytorch(kind: str, tied: bool) -> Any:
    """The layers of PyTorch's example."""
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = torch.nn.Embedding(11, 8), torch.nn.Linear(8, 11)
            name, _, nonlinearity = kind.partition("_")
            options = {"nonlinearity": nonlinearity.lower()} if nonlinearity else {}
            self.rnn = getattr(torch.nn, name)(8, 8, 2, **options)
            if tied:
                self.decoder.weight = self.encoder.weight

        def forward(self, x: Any) -> Any:
            y, state = self.rnn(self.encoder(x))
            return torch.log_softmax(self.decoder(y).reshape(-1, 11), 1), state

    return Model()


@pytest.mark.feature("B021")
def test_keys_are_those_of_the_example() -> None:
    state = shapes(nn.RNNModel("LSTM", 11, 8, 12, 2).state_dict())
    gates = {f"rnn.{k}_{h}_l{i}" for k in ("weight", "bias") for h in ("ih", "hh") for i in (0, 1)}
    assert set(state) == gates | {"encoder.weight", "decoder.weight", "decoder.bias"}
    assert (state["rnn.weight_ih_l0"], state["decoder.weight"]) == ((48, 8), (11, 12))


@pytest.mark.torch
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients_are_pytorchs(kind: str, tied: bool) -> None:
    theirs, ours = pytorch(kind, tied), nn.RNNModel(kind, 11, 8, 8, 2, 0.0, tied)
    same_weights(theirs, ours)
    check(theirs, ours, (IDS,))


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_in_two_parts_is_the_text(kind: str) -> None:
    net = nn.RNNModel(kind, 11, 8, 12, 2).eval()
    whole, _ = net(IDS, net.init_hidden(3))
    first, state = net(IDS[:4])
    second, _ = net(IDS[4:], state)
    np.testing.assert_allclose(
        np.concatenate([first.numpy(), second.numpy()]), whole.numpy(), rtol=1e-5, atol=1e-6
    )


def test_it_learns() -> None:
    nn.manual_seed(0)

    def loss(outputs: Any, targets: Any) -> Any:
        return ops.nll_loss(outputs[0], targets)

    net = nn.RNNModel("LSTM", 11, 16, 16, 2, 0.1, tie_weights=True)
    learns(net, loss, IDS[:-1], IDS[1:].reshape(-1), 30)


def test_errors_say_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="rnn_type must be one of LSTM, GRU, RNN_TANH, RNN_RELU, got 'QRNN'"):
        nn.RNNModel("QRNN", 11, 8, 8, 2)
    with pytest.raises(ValueError, match="tie_weights needs nhid equal to ninp, got 12 and 8"):
        nn.RNNModel("LSTM", 11, 8, 12, 2, tie_weights=True)
    with pytest.raises(lm.ShapeError):
        nn.RNNModel("GRU", 11, 8, 12, 2)(IDS[None])


def test_initial_values_lie_within_a_tenth() -> None:
    """As the example has them: words and their logits uniform, the logits' bias zero."""
    net = nn.RNNModel("LSTM", 300, 20, 30, 1)
    for weight in (net.encoder.weight.numpy(), net.decoder.weight.numpy()):
        np.testing.assert_allclose([weight.min(), weight.max()], [-0.1, 0.1], atol=1e-3)
        assert abs(weight.mean()) < 0.005
    assert not net.decoder.bias.numpy().any()
