"""CRNN: keys and values of the same layers in PyTorch, and that it learns by CTC."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops
from tests.helpers.nn.twins import check, learns, same_weights, shapes

X = np.random.default_rng(0).standard_normal((2, 1, 32, 36)).astype(np.float32)


def pytorch(classes: int, hidden: int) -> Any:
    """The layers under the names of the widespread version."""
    import torch
    from torch.nn import LSTM, BatchNorm2d, Conv2d, Linear, MaxPool2d, Module, ReLU, Sequential

    class Recurrent(Module):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.rnn, self.embedding = LSTM(inputs, hidden, bidirectional=True), Linear(2 * hidden, outputs)

        def forward(self, x: Any) -> Any:
            return self.embedding(self.rnn(x)[0])

    class Reader(Module):
        def __init__(self) -> None:
            super().__init__()
            self.cnn = Sequential()
            sizes = (1, 64, 128, 256, 256, 512, 512, 512)
            for i in range(7):
                conv = Conv2d(sizes[i], sizes[i + 1], 2 if i == 6 else 3, padding=0 if i == 6 else 1)
                self.cnn.add_module(f"conv{i}", conv)
                if i in (2, 4, 6):
                    self.cnn.add_module(f"batchnorm{i}", BatchNorm2d(sizes[i + 1]))
                self.cnn.add_module(f"relu{i}", ReLU())
                if i in (0, 1):
                    self.cnn.add_module(f"pooling{i}", MaxPool2d(2))
                if i in (3, 5):
                    self.cnn.add_module(f"pooling{i}", MaxPool2d(2, (2, 1), (0, 1)))
            self.rnn = Sequential(Recurrent(512, hidden), Recurrent(hidden, classes))

        def forward(self, x: Any) -> Any:
            return self.rnn(self.cnn(x).squeeze(2).permute(2, 0, 1))

    return torch.nn.Module.eval(Reader())


@pytest.mark.feature("B021")
def test_keys_are_those_of_published_weights() -> None:
    state = shapes(nn.CRNN(32, 1, 37, 256).state_dict())
    assert len(state) == 14 + 15 + 20
    wanted = {
        "cnn.conv0.weight": (64, 1, 3, 3), "cnn.batchnorm2.running_mean": (256,),
        "cnn.conv6.weight": (512, 512, 2, 2),
        "rnn.0.rnn.weight_ih_l0_reverse": (1024, 512), "rnn.0.embedding.weight": (256, 512),
        "rnn.1.embedding.bias": (37,),
    }  # fmt: skip
    assert {key: state[key] for key in wanted} == wanted


@pytest.mark.torch
def test_values_and_gradients_are_pytorchs() -> None:
    theirs, ours = pytorch(5, 6), nn.CRNN(32, 1, 5, 6).eval()
    same_weights(theirs, ours)
    check(theirs, ours, (X,))


def test_it_learns_to_read() -> None:
    nn.manual_seed(0)

    def loss(logits: Any, targets: Any) -> Any:
        return ops.ctc_loss(ops.log_softmax(logits, 2), *targets)

    targets = (np.array([[1, 2, 3], [4, 1, 0]]), np.array([10, 10]), np.array([3, 2]))
    learns(nn.CRNN(32, 1, 5, 8, leakyRelu=True), loss, X, targets)


def test_errors_say_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="imgH must be a multiple of 16, got 40"):
        nn.CRNN(40, 1, 5, 6)
    with pytest.raises(lm.ShapeError, match="images must be 32 pixels high, 3 rows are left"):
        nn.CRNN(32, 1, 5, 6)(np.zeros((1, 1, 64, 32), np.float32))
