"""LeNet-5 (LeCun, Bottou, Bengio & Haffner 1998) with ReLU and max-pooling: small enough to train anywhere."""

from __future__ import annotations

from lamina import ops
from lamina._renamed import renamed
from lamina.nn import init
from lamina.nn.activation import ReLU
from lamina.nn.container import Sequential
from lamina.nn.conv import Conv2d
from lamina.nn.linear import Linear
from lamina.nn.models.registry import network
from lamina.nn.module import Module, T
from lamina.nn.pool import MaxPool2d


@network("LeCun et al. 1998", size=28, channels=1, classes=10, rates={"sgd": 0.02, "adam": 2e-3})
class LeNet(Module):
    """A small network: images (N, in_channels, 28, 28) -> logits (N, num_classes).

    61,706 parameters for one channel and 10 classes.
    """

    @renamed(classes="num_classes")
    def __init__(self, in_channels: int = 1, num_classes: int = 10) -> None:
        with init.scheme(init.he_):
            self.conv = Sequential(
                Conv2d(in_channels, 6, 5, 1, 2),
                ReLU(),
                MaxPool2d(2),
                Conv2d(6, 16, 5),
                ReLU(),
                MaxPool2d(2),
            )
            self.fc = Sequential(
                Linear(16 * 5 * 5, 120),
                ReLU(),
                Linear(120, 84),
                ReLU(),
                Linear(84, num_classes),
            )

    def forward(self, x: T) -> T:
        """Images (N, in_channels, 28, 28) -> logits (N, num_classes)."""
        return self.fc(ops.flatten(self.conv(x), 1))
