"""DeepSpeech: torchaudio's keys, values and gradients of the same layers in PyTorch, CTC, lengths."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops
from tests.helpers.nn.twins import check, learns, same_weights, shapes

RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 1, 11, 6)).astype(np.float32)


def pytorch(features: int, hidden: int, classes: int) -> Any:
    """The layers under torchaudio's names."""
    import torch

    class Dense(torch.nn.Module):
        def __init__(self, inputs: int) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(inputs, hidden)

        def forward(self, x: Any) -> Any:
            return self.fc(x).clamp(0, 20)

    class DeepSpeech(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2, self.fc3, self.fc4 = (Dense(n) for n in (features, hidden, hidden, hidden))
            self.bi_rnn = torch.nn.RNN(hidden, hidden, nonlinearity="relu", bidirectional=True)
            self.out = torch.nn.Linear(hidden, classes)

        def forward(self, x: Any) -> Any:
            y, _ = self.bi_rnn(self.fc3(self.fc2(self.fc1(x)))[:, 0].transpose(0, 1))
            y = self.out(self.fc4(y[..., :hidden] + y[..., hidden:]))
            return y.transpose(0, 1).log_softmax(2)

    return DeepSpeech()


@pytest.mark.feature("B021")
def test_keys_are_torchaudios() -> None:
    state = shapes(nn.DeepSpeech(6, 8, 5).state_dict())
    dense = {f"fc{i}.fc.{kind}" for i in (1, 2, 3, 4) for kind in ("weight", "bias")}
    gates = {
        f"bi_rnn.{k}_{h}_l0{d}" for k in ("weight", "bias") for h in ("ih", "hh") for d in ("", "_reverse")
    }
    assert set(state) == dense | gates | {"out.weight", "out.bias"}
    assert (state["fc1.fc.weight"], state["bi_rnn.weight_ih_l0_reverse"], state["out.weight"]) == (
        (8, 6),
        (8, 8),
        (5, 8),
    )
    with nn.init.skipped():
        assert nn.DeepSpeech(494).out.weight.shape == (40, 2048)


@pytest.mark.torch
def test_values_and_gradients_are_pytorchs() -> None:
    theirs, ours = pytorch(6, 8, 5), nn.DeepSpeech(6, 8, 5)
    same_weights(theirs, ours)
    check(theirs, ours, (X,))


def test_frames_of_padding_are_not_seen() -> None:
    net = nn.DeepSpeech(6, 8, 5).eval()
    whole, cut = net(X, np.array([7, 7, 7])).numpy(), net(X[:, :, :7]).numpy()
    np.testing.assert_allclose(whole[:, :7], cut, rtol=1e-4, atol=1e-6)


def test_it_learns_to_spell() -> None:
    nn.manual_seed(0)
    labels, counts = np.array([[1, 2, 3], [4, 1, 0], [2, 0, 0]]), np.array([3, 2, 1])
    frames = np.array([11, 9, 6])

    def loss(log_probs: Any, targets: Any) -> Any:
        return ops.ctc_loss(ops.transpose(log_probs, 0, 1), *targets)

    learns(nn.DeepSpeech(6, 16, 5, dropout=0.1), loss, (X, frames), (labels, frames, counts), 30)


def test_errors_say_what_does_not_fit() -> None:
    with pytest.raises(lm.ShapeError, match=r"DeepSpeech: x must be \(N, 1, L, n_feature\)"):
        nn.DeepSpeech(6, 8, 5)(X[:, 0])
