"""VGG (Simonyan & Zisserman 2015), as torchvision has it, without batch norm."""

from __future__ import annotations

from collections.abc import Sequence

from lamina import ops
from lamina.nn import init
from lamina.nn.activation import ReLU
from lamina.nn.container import Sequential
from lamina.nn.conv import Conv2d
from lamina.nn.dropout import Dropout
from lamina.nn.linear import Linear
from lamina.nn.module import Module, T
from lamina.nn.pool import AdaptiveAvgPool2d, MaxPool2d

#: Filters of the 3×3 convolutions by configuration; 0 is a 2×2 pooling.
_LAYERS = {
    "A": (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0),
    "D": (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0),
}


class VGG(Module):
    """3×3 convolutions and 2×2 poolings, then 25088 -> 4096 -> 4096 -> num_classes with dropout.

    layers: the filters of each convolution, 0 for a pooling. Parameters are called as in torchvision
    (features.0.weight … classifier.6.bias) and start as there: convolutions from He's normal distribution by
    fan out, linear layers normal with deviation 0.01. Images of 32 pixels or more: features are averaged to 7×7.
    """

    def __init__(self, layers: Sequence[int], num_classes: int = 1000, dropout: float = 0.5) -> None:
        with init.scheme(init.he_out_):
            self.features = Sequential(*_features(layers))
        self.avgpool = AdaptiveAvgPool2d((7, 7))
        with init.scheme(init.small_):
            self.classifier = Sequential(
                Linear(layers[-2] * 7 * 7, 4096),
                ReLU(),
                Dropout(dropout),
                Linear(4096, 4096),
                ReLU(),
                Dropout(dropout),
                Linear(4096, num_classes),
            )

    def forward(self, x: T) -> T:
        """Images (N, 3, H, W) -> logits (N, num_classes)."""
        return self.classifier(ops.flatten(self.avgpool(self.features(x)), 1))


def vgg11(num_classes: int = 1000, dropout: float = 0.5) -> VGG:
    """Configuration A: 8 convolutions, 132,863,336 parameters with 1000 classes."""
    return VGG(_LAYERS["A"], num_classes, dropout)


def vgg16(num_classes: int = 1000, dropout: float = 0.5) -> VGG:
    """Configuration D: 13 convolutions, 138,357,544 parameters with 1000 classes."""
    return VGG(_LAYERS["D"], num_classes, dropout)


def _features(layers: Sequence[int]) -> list[Module]:
    modules: list[Module] = []
    channels = 3
    for filters in layers:
        modules += [Conv2d(channels, filters, 3, padding=1), ReLU()] if filters else [MaxPool2d(2, 2)]
        channels = filters or channels
    return modules
