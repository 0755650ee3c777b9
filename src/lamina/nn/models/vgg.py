"""VGG (Simonyan & Zisserman 2015), as torchvision has it, with and without batch norms."""

from __future__ import annotations

from collections.abc import Sequence

from lamina import ops
from lamina.nn import init
from lamina.nn.activation import ReLU
from lamina.nn.container import Sequential
from lamina.nn.conv import Conv2d
from lamina.nn.dropout import Dropout
from lamina.nn.linear import Linear
from lamina.nn.models.registry import network
from lamina.nn.module import Module, T
from lamina.nn.norm import BatchNorm2d
from lamina.nn.pool import AdaptiveAvgPool2d, MaxPool2d

_PAPER = "Simonyan & Zisserman 2015, arXiv:1409.1556"
_RATES = {"sgd": 0.01, "adam": 1e-4}

#: Filters of the 3×3 convolutions by configuration; 0 is a 2×2 pooling.
_LAYERS = {
    "A": (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0),
    "B": (64, 64, 0, 128, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0),
    "D": (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0),
    "E": (64, 64, 0, 128, 128, 0, *(256,) * 4, 0, *(512,) * 4, 0, *(512,) * 4, 0),
}


class VGG(Module):
    """3×3 convolutions and 2×2 poolings, then 25088 -> 4096 -> 4096 -> num_classes with dropout.

    layers: the filters of each convolution, 0 for a pooling. batch_norm: a norm after each convolution. Parameters
    are named as in torchvision (features.0.weight … classifier.6.bias), with the same initialization: convolutions
    from He's normal distribution by fan-out, linear layers normal with standard deviation 0.01. Images of 32 pixels
    or more: features are averaged to 7×7.
    """

    def __init__(
        self,
        layers: Sequence[int],
        num_classes: int = 1000,
        dropout: float = 0.5,
        *,
        batch_norm: bool = False,
    ) -> None:
        with init.scheme(init.he_out_):
            self.features = Sequential(*_features(layers, batch_norm))
        self.avgpool = AdaptiveAvgPool2d((7, 7))
        with init.scheme(init.small_):
            self.classifier = Sequential(
                Linear([n for n in layers if n][-1] * 7 * 7, 4096),
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


@network(_PAPER, rates=_RATES)
def vgg11(num_classes: int = 1000, dropout: float = 0.5) -> VGG:
    """Configuration A: 8 convolutions, 132,863,336 parameters with 1000 classes."""
    return VGG(_LAYERS["A"], num_classes, dropout)


@network(_PAPER, rates=_RATES)
def vgg13(num_classes: int = 1000, dropout: float = 0.5) -> VGG:
    """Configuration B: 10 convolutions, 133,047,848 parameters with 1000 classes."""
    return VGG(_LAYERS["B"], num_classes, dropout)


@network(_PAPER, rates=_RATES)
def vgg16(num_classes: int = 1000, dropout: float = 0.5) -> VGG:
    """Configuration D: 13 convolutions, 138,357,544 parameters with 1000 classes."""
    return VGG(_LAYERS["D"], num_classes, dropout)


@network(_PAPER, rates=_RATES)
def vgg19(num_classes: int = 1000, dropout: float = 0.5) -> VGG:
    """Configuration E: 16 convolutions, 143,667,240 parameters with 1000 classes."""
    return VGG(_LAYERS["E"], num_classes, dropout)


@network(_PAPER, rates=_RATES)
def vgg11_bn(num_classes: int = 1000, dropout: float = 0.5) -> VGG:
    """`vgg11` with batch norms: 132,868,840 parameters with 1000 classes."""
    return VGG(_LAYERS["A"], num_classes, dropout, batch_norm=True)


@network(_PAPER, rates=_RATES)
def vgg13_bn(num_classes: int = 1000, dropout: float = 0.5) -> VGG:
    """`vgg13` with batch norms: 133,053,736 parameters with 1000 classes."""
    return VGG(_LAYERS["B"], num_classes, dropout, batch_norm=True)


@network(_PAPER, rates=_RATES)
def vgg16_bn(num_classes: int = 1000, dropout: float = 0.5) -> VGG:
    """`vgg16` with batch norms: 138,365,992 parameters with 1000 classes."""
    return VGG(_LAYERS["D"], num_classes, dropout, batch_norm=True)


@network(_PAPER, rates=_RATES)
def vgg19_bn(num_classes: int = 1000, dropout: float = 0.5) -> VGG:
    """`vgg19` with batch norms: 143,678,248 parameters with 1000 classes."""
    return VGG(_LAYERS["E"], num_classes, dropout, batch_norm=True)


def _features(layers: Sequence[int], batch_norm: bool) -> list[Module]:
    modules: list[Module] = []
    channels = 3
    for filters in layers:
        if not filters:
            modules.append(MaxPool2d(2, 2))
            continue
        norm = [BatchNorm2d(filters)] if batch_norm else []
        modules += [Conv2d(channels, filters, 3, padding=1), *norm, ReLU()]
        channels = filters
    return modules
