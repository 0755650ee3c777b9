"""CRNN (Shi, Bai & Yao 2017): recognizes a line of text, trained with CTC."""

from __future__ import annotations

from typing import Any

from lamina import ops
from lamina.nn.activation import LeakyReLU, ReLU
from lamina.nn.container import Sequential
from lamina.nn.conv import Conv2d
from lamina.nn.linear import Linear
from lamina.nn.module import Module, T
from lamina.nn.norm import BatchNorm2d
from lamina.nn.pool import MaxPool2d
from lamina.nn.rnn import LSTM
from lamina.ops.core import operand
from lamina.spec import ShapeError

_FILTERS = (64, 128, 256, 256, 512, 512, 512)
#: Convolutions followed by a batch norm, and the pools: height is halved four times, width twice.
_NORMS = (2, 4, 6)
_POOLS: dict[int, tuple[Any, Any, Any]] = {
    0: (2, 2, 0),
    1: (2, 2, 0),
    3: ((2, 2), (2, 1), (0, 1)),
    5: ((2, 2), (2, 1), (0, 1)),
}


class BidirectionalLSTM(Module):
    """A bidirectional LSTM, and a linear layer on each step."""

    def __init__(self, nIn: int, nHidden: int, nOut: int) -> None:
        self.rnn = LSTM(nIn, nHidden, bidirectional=True)
        self.embedding = Linear(2 * nHidden, nOut)

    def forward(self, x: T) -> T:
        """x (T, N, nIn) -> (T, N, nOut)."""
        y, _ = self.rnn(x)
        return self.embedding(y)


class CRNN(Module):
    """Seven convolutions over an image of height imgH, two bidirectional LSTMs along its width.

    imgH: a multiple of 16 that leaves one row after the pools, so 32. nc: channels. nclass: classes, including the
    blank. nh: size of the LSTMs' states. leakyRelu: slope 0.2 below zero. Keys are those of the widespread PyTorch
    version: cnn.conv0.weight, cnn.batchnorm2.running_mean, rnn.0.rnn.weight_ih_l0, rnn.1.embedding.bias.
    """

    def __init__(self, imgH: int, nc: int, nclass: int, nh: int, leakyRelu: bool = False) -> None:
        if imgH % 16:
            raise ValueError(f"CRNN: imgH must be a multiple of 16, got {imgH}")
        self.cnn, channels = Sequential(), nc
        for i, filters in enumerate(_FILTERS):
            kernel, padding = (2, 0) if i == 6 else (3, 1)
            self.cnn.add_module(f"conv{i}", Conv2d(channels, filters, kernel, 1, padding))
            if i in _NORMS:
                self.cnn.add_module(f"batchnorm{i}", BatchNorm2d(filters))
            self.cnn.add_module(f"relu{i}", LeakyReLU(0.2) if leakyRelu else ReLU())
            if i in _POOLS:
                self.cnn.add_module(f"pooling{list(_POOLS).index(i)}", MaxPool2d(*_POOLS[i]))
            channels = filters
        self.rnn = Sequential(BidirectionalLSTM(channels, nh, nh), BidirectionalLSTM(nh, nh, nclass))

    def forward(self, input: T) -> T:
        """Images (N, nc, imgH, W) -> logits (W / 4 + 1, N, nclass); `ops.ctc_loss` takes their log_softmax.

        Raises ShapeError if more than one row is left.
        """
        x: T = self.cnn(operand(input))
        if x.shape[2] != 1:
            raise ShapeError(f"CRNN: images must be 32 pixels high, {x.shape[2]} rows are left of them")
        y: T = self.rnn(ops.permute(ops.squeeze(x, 2), (2, 0, 1)))
        return y
