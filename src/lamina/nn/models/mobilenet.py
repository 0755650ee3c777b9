"""MobileNetV2 (Sandler, Howard, Zhu, Zhmoginov & Chen 2018), as torchvision has it."""

from __future__ import annotations

from lamina import ops
from lamina.nn import init
from lamina.nn.activation import ReLU6
from lamina.nn.container import Sequential
from lamina.nn.conv import Conv2d
from lamina.nn.dropout import Dropout
from lamina.nn.linear import Linear
from lamina.nn.module import Module, T
from lamina.nn.norm import BatchNorm2d

#: Stages: factor of the expansion, filters, blocks, stride of the first block.
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def _conv_norm(channels: int, filters: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> Sequential:
    """Convolution, batch norm, ReLU6."""
    conv = Conv2d(channels, filters, kernel, stride, kernel // 2, groups=groups, bias=False)
    return Sequential(conv, BatchNorm2d(filters), ReLU6())


class InvertedResidual(Module):
    """1×1 to `expand_ratio` times the channels, 3×3 per channel, 1×1 to `oup`; plus x where shapes agree."""

    def __init__(self, inp: int, oup: int, stride: int, expand_ratio: int) -> None:
        hidden = inp * expand_ratio
        layers: list[Module] = [_conv_norm(inp, hidden, 1)] if expand_ratio != 1 else []
        layers.append(_conv_norm(hidden, hidden, 3, stride, hidden))
        layers += [Conv2d(hidden, oup, 1, bias=False), BatchNorm2d(oup)]
        self.conv = Sequential(*layers)
        self.use_res_connect = stride == 1 and inp == oup

    def forward(self, x: T) -> T:
        """x (N, inp, H, W) -> (N, oup, H / stride, W / stride)."""
        return x + self.conv(x) if self.use_res_connect else self.conv(x)


class MobileNetV2(Module):
    """Images (N, 3, H, W) of 32 pixels or more -> logits; 3,504,872 parameters with 1000 classes.

    Keys are torchvision's (features.0.0.weight … classifier.1.bias), so its weights load by name; initial values
    are as there.
    """

    def __init__(self, num_classes: int = 1000, dropout: float = 0.2) -> None:
        with init.scheme(init.he_out_):
            features: list[Module] = [_conv_norm(3, 32, 3, 2)]
            channels = 32
            for expand, filters, count, stride in _STAGES:
                for i in range(count):
                    features.append(InvertedResidual(channels, filters, stride if i == 0 else 1, expand))
                    channels = filters
            self.features = Sequential(*features, _conv_norm(channels, 1280, 1))
        with init.scheme(init.small_):
            self.classifier = Sequential(Dropout(dropout), Linear(1280, num_classes))

    def forward(self, x: T) -> T:
        """Images (N, 3, H, W) -> logits (N, num_classes)."""
        return self.classifier(ops.flatten(ops.adaptive_avg_pool2d(self.features(x), 1), 1))


def mobilenet_v2(num_classes: int = 1000, dropout: float = 0.2) -> MobileNetV2:
    """The network of width 1."""
    return MobileNetV2(num_classes, dropout)
