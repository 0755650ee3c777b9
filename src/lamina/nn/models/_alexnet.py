"""AlexNet (Krizhevsky, Sutskever & Hinton 2012), in two forms."""

from __future__ import annotations

import math

from lamina import ops
from lamina._renamed import renamed
from lamina.nn import init
from lamina.nn.activation import ReLU
from lamina.nn.container import Sequential
from lamina.nn.conv import Conv2d
from lamina.nn.dropout import Dropout
from lamina.nn.linear import Linear
from lamina.nn.models.registry import network
from lamina.nn.module import Module, T
from lamina.nn.pool import AdaptiveAvgPool2d, MaxPool2d

_PAPER = "Krizhevsky et al. 2012"
_PAPER2 = "Krizhevsky 2014, arXiv:1404.5997"


@network(_PAPER, channels=1, classes=10, rates={"sgd": 0.006, "adam": 1e-4})
class AlexNet(Module):
    """The full-width network: images (N, in_channels, 224, 224) -> logits (N, num_classes).

    96 filters 11×11/4, pool 3/2, 256 5×5, pool, 384, 384, 256 3×3, pool, then 6400 -> 4096 -> 4096 ->
    num_classes with dropout. Parameters are named conv.0 … conv.10 and fc.0, fc.3, fc.6. Any image size with 5×5
    features works: 195 to 226 pixels on a side.

    Weights start normal with standard deviation 1/√fan_in, biases from 0: training from scratch then makes progress
    at once, without a warm-up, at a learning rate of 0.01 with momentum 0.9. (With torch's initial values the loss
    stagnates for the first epochs on small data; with He's it diverges at that rate.) The last layer's weights are
    ten times smaller: all classes start nearly equal, and the first steps are smooth enough for comparing losses
    across two devices.
    """

    @renamed(classes="num_classes")
    def __init__(self, in_channels: int = 1, num_classes: int = 10, dropout: float = 0.5) -> None:
        with init.scheme(init.lecun_):
            self.conv = Sequential(
                Conv2d(in_channels, 96, 11, 4),
                ReLU(),
                MaxPool2d(3, 2),
                Conv2d(96, 256, 5, 1, 2),
                ReLU(),
                MaxPool2d(3, 2),
                Conv2d(256, 384, 3, 1, 1),
                ReLU(),
                Conv2d(384, 384, 3, 1, 1),
                ReLU(),
                Conv2d(384, 256, 3, 1, 1),
                ReLU(),
                MaxPool2d(3, 2),
            )
            self.fc = Sequential(
                Linear(256 * 5 * 5, 4096),
                ReLU(),
                Dropout(dropout),
                Linear(4096, 4096),
                ReLU(),
                Dropout(dropout),
                _calm(4096, num_classes),
            )

    def forward(self, x: T) -> T:
        """Images (N, in_channels, H, W) -> logits (N, num_classes)."""
        return self.fc(ops.flatten(self.conv(x), 1))


def _calm(features: int, num_classes: int) -> Linear:
    """A linear layer whose weights are a tenth of those of `init.lecun_`."""

    def write(layer: init.Layer) -> None:
        init.normal_(layer.weight, 0.0, 0.1 / math.sqrt(features))
        init.zeros_(layer.bias)

    with init.scheme(write):
        return Linear(features, num_classes)


class AlexNetImageNet(Module):
    """torchvision's AlexNet (Krizhevsky 2014): images (N, 3, 224, 224) -> logits (N, num_classes).

    Parameters are named as there (features.0.weight … classifier.6.bias), so its weights load by name. Any image of
    63 pixels or more works: the features are averaged to 6×6.
    """

    @renamed(classes="num_classes")
    def __init__(self, num_classes: int = 1000, dropout: float = 0.5) -> None:
        self.features = Sequential(
            Conv2d(3, 64, 11, 4, 2),
            ReLU(),
            MaxPool2d(3, 2),
            Conv2d(64, 192, 5, 1, 2),
            ReLU(),
            MaxPool2d(3, 2),
            Conv2d(192, 384, 3, 1, 1),
            ReLU(),
            Conv2d(384, 256, 3, 1, 1),
            ReLU(),
            Conv2d(256, 256, 3, 1, 1),
            ReLU(),
            MaxPool2d(3, 2),
        )
        self.avgpool = AdaptiveAvgPool2d((6, 6))
        self.classifier = Sequential(
            Dropout(dropout),
            Linear(256 * 6 * 6, 4096),
            ReLU(),
            Dropout(dropout),
            Linear(4096, 4096),
            ReLU(),
            Linear(4096, num_classes),
        )

    def forward(self, x: T) -> T:
        """Images (N, 3, H, W) -> logits (N, num_classes)."""
        return self.classifier(ops.flatten(self.avgpool(self.features(x)), 1))


@network(_PAPER2, command="alexnet-imagenet", rates={"sgd": 0.01, "adam": 1e-4})
def alexnet(num_classes: int = 1000, dropout: float = 0.5) -> AlexNetImageNet:
    """torchvision's; `AlexNet` is the full-width network of the original paper."""
    return AlexNetImageNet(num_classes, dropout)
