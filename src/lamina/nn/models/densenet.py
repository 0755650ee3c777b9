"""DenseNet (Huang, Liu, van der Maaten & Weinberger 2017): each layer reads the outputs of all previous ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

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
from lamina.nn.parameter import Parameter
from lamina.nn.pool import AvgPool2d, MaxPool2d
from lamina.tensors import zeros

_PAPER = "Huang et al. 2017, arXiv:1608.06993"


class DenseLayer(Module):
    """Norm, ReLU and 1×1, norm, ReLU and 3×3 to growth_rate channels, concatenated with the input's."""

    older_names: ClassVar[Mapping[str, str]] = {r"(norm|conv)\.([12])\.": r"\1\2."}

    def __init__(
        self, num_input_features: int, growth_rate: int, bn_size: int = 4, drop_rate: float = 0.0
    ) -> None:
        self.norm1 = BatchNorm2d(num_input_features)
        self.conv1 = Conv2d(num_input_features, bn_size * growth_rate, 1, bias=False)
        self.norm2 = BatchNorm2d(bn_size * growth_rate)
        self.conv2 = Conv2d(bn_size * growth_rate, growth_rate, 3, padding=1, bias=False)
        self.dropout = Dropout(drop_rate)

    def forward(self, x: T) -> T:
        """x (N, C, H, W) -> (N, C + growth_rate, H, W)."""
        y = self.conv1(ops.relu(self.norm1(x)))
        y = self.conv2(ops.relu(self.norm2(y)))
        return ops.cat([x, self.dropout(y)], 1)


class DenseNet(Module):
    """7×7/2, pool 3/2, four blocks of dense layers, then the mean and a linear layer.

    Between blocks channels and size are halved. Keys and initialization are torchvision's.

    Args:
        growth_rate: channels that each layer adds.
        block_config: layers of each block.
        num_init_features: filters of the first convolution.
        bn_size: a layer's 1×1 convolution has bn_size · growth_rate filters.
        drop_rate: dropout of a layer's output.
    """

    def __init__(
        self,
        growth_rate: int = 32,
        block_config: Sequence[int] = (6, 12, 24, 16),
        num_init_features: int = 64,
        bn_size: int = 4,
        drop_rate: float = 0.0,
        num_classes: int = 1000,
        in_channels: int = 3,
    ) -> None:
        channels = num_init_features
        with init.scheme(init.he_):
            first = Conv2d(in_channels, channels, 7, 2, 3, bias=False)
            parts: dict[str, Module] = {
                "conv0": first, "norm0": BatchNorm2d(channels), "relu0": ReLU(), "pool0": MaxPool2d(3, 2, 1),
            }  # fmt: skip
            for i, count in enumerate(block_config):
                layers = {
                    f"denselayer{j + 1}": DenseLayer(
                        channels + j * growth_rate, growth_rate, bn_size, drop_rate
                    )
                    for j in range(count)
                }
                parts[f"denseblock{i + 1}"] = Sequential(layers)
                channels += count * growth_rate
                if i + 1 < len(block_config):
                    parts[f"transition{i + 1}"] = _transition(channels, channels // 2)
                    channels //= 2
        self.features = Sequential({**parts, "norm5": BatchNorm2d(channels)})
        self.classifier = Linear(channels, num_classes)
        self.classifier.bias = Parameter(zeros(num_classes))

    def forward(self, x: T) -> T:
        """Images (N, in_channels, H, W) -> logits (N, num_classes)."""
        y = ops.adaptive_avg_pool2d(ops.relu(self.features(x)), 1)
        return self.classifier(ops.flatten(y, 1))


def _transition(channels: int, filters: int) -> Sequential:
    """Norm, ReLU, 1×1, and the mean of 2×2 pixels."""
    conv = Conv2d(channels, filters, 1, bias=False)
    return Sequential({"norm": BatchNorm2d(channels), "relu": ReLU(), "conv": conv, "pool": AvgPool2d(2, 2)})


@network(_PAPER)
def densenet121(num_classes: int = 1000, in_channels: int = 3, **options: Any) -> DenseNet:
    """121 layers, each of which adds 32 channels. options: of `DenseNet`."""
    return DenseNet(32, (6, 12, 24, 16), 64, num_classes=num_classes, in_channels=in_channels, **options)


@network(_PAPER)
def densenet161(num_classes: int = 1000, in_channels: int = 3, **options: Any) -> DenseNet:
    """161 layers, each of which adds 48 channels. options: of `DenseNet`."""
    return DenseNet(48, (6, 12, 36, 24), 96, num_classes=num_classes, in_channels=in_channels, **options)


@network(_PAPER)
def densenet169(num_classes: int = 1000, in_channels: int = 3, **options: Any) -> DenseNet:
    """169 layers, each of which adds 32 channels. options: of `DenseNet`."""
    return DenseNet(32, (6, 12, 32, 32), 64, num_classes=num_classes, in_channels=in_channels, **options)


@network(_PAPER)
def densenet201(num_classes: int = 1000, in_channels: int = 3, **options: Any) -> DenseNet:
    """201 layers, each of which adds 32 channels. options: of `DenseNet`."""
    return DenseNet(32, (6, 12, 48, 32), 64, num_classes=num_classes, in_channels=in_channels, **options)
