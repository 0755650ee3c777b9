"""MNASNet, variant B1 (Tan, Chen, Pang, Vasudevan, Sandler, Howard & Le 2019), as torchvision has it."""

from __future__ import annotations

from functools import partial

from lamina import ops
from lamina.nn import init
from lamina.nn.container import Sequential
from lamina.nn.dropout import Dropout
from lamina.nn.linear import Linear
from lamina.nn.models.blocks import conv_norm, divisible
from lamina.nn.models.registry import network
from lamina.nn.module import Module, T
from lamina.nn.norm import BatchNorm2d

_PAPER = "Tan et al. 2019, arXiv:1807.11626"

#: Stages: kernel, stride of the first block, expansion factor, blocks, filters at width 1.
_STAGES = (
    (3, 2, 3, 3, 24),
    (5, 2, 3, 3, 40),
    (5, 2, 6, 3, 80),
    (3, 1, 6, 2, 96),
    (5, 2, 6, 4, 192),
    (3, 1, 6, 1, 320),
)
#: The running statistics' momentum is 3 · 10⁻⁴, the paper's decay of 0.9997.
_NORM = partial(BatchNorm2d, momentum=1 - 0.9997)


class MNASBlock(Module):
    """1×1 to `expansion` times the channels, depthwise k×k, 1×1; plus x if shapes agree."""

    def __init__(self, channels: int, filters: int, kernel: int, stride: int, expansion: int) -> None:
        hidden = channels * expansion
        self.layers = Sequential(
            *conv_norm(channels, hidden, 1, norm_layer=_NORM),
            *conv_norm(hidden, hidden, kernel, stride, groups=hidden, norm_layer=_NORM),
            *conv_norm(hidden, filters, 1, norm_layer=_NORM, activation_layer=None),
        )
        self.apply_residual = stride == 1 and channels == filters

    def forward(self, x: T) -> T:
        """x (N, channels, H, W) -> (N, filters, H / stride, W / stride)."""
        return self.layers(x) + x if self.apply_residual else self.layers(x)


class MNASNet(Module):
    """3×3/2, six stages of blocks, 1×1 to 1280 channels, the mean, dropout and a linear layer.

    alpha: the width multiplier. Keys and initialization are torchvision's. Raises ValueError unless alpha > 0.
    """

    def __init__(
        self, alpha: float, num_classes: int = 1000, dropout: float = 0.2, in_channels: int = 3
    ) -> None:
        if not alpha > 0:
            raise ValueError(f"MNASNet: alpha must be above 0, got {alpha}")
        stem, channels = divisible(32 * alpha), divisible(16 * alpha)
        with init.scheme(init.he_out_):
            layers = [
                *conv_norm(in_channels, stem, 3, 2, norm_layer=_NORM),
                *conv_norm(stem, stem, 3, groups=stem, norm_layer=_NORM),
                *conv_norm(stem, channels, 1, norm_layer=_NORM, activation_layer=None),
            ]
            for kernel, stride, expansion, count, width in _STAGES:
                filters = divisible(width * alpha)
                blocks = [MNASBlock(channels, filters, kernel, stride, expansion)]
                blocks += [MNASBlock(filters, filters, kernel, 1, expansion) for _ in range(count - 1)]
                layers.append(Sequential(*blocks))
                channels = filters
            self.layers = Sequential(*layers, *conv_norm(channels, 1280, 1, norm_layer=_NORM))
        with init.scheme(_uniform_by_fan_out):
            self.classifier = Sequential(Dropout(dropout), Linear(1280, num_classes))

    def forward(self, x: T) -> T:
        """Images (N, in_channels, H, W) -> logits (N, num_classes)."""
        return self.classifier(ops.mean(self.layers(x), (2, 3)))


def _uniform_by_fan_out(layer: init.Layer) -> None:
    """Weights uniform with standard deviation 1 / √fan_out, biases zero."""
    init.kaiming_uniform_(layer.weight, mode="fan_out", nonlinearity="sigmoid")
    init.zeros_(layer.bias)


@network(_PAPER)
def mnasnet0_5(num_classes: int = 1000, dropout: float = 0.2, in_channels: int = 3) -> MNASNet:
    """The width times 0.5."""
    return MNASNet(0.5, num_classes, dropout, in_channels)


@network(_PAPER)
def mnasnet0_75(num_classes: int = 1000, dropout: float = 0.2, in_channels: int = 3) -> MNASNet:
    """The width times 0.75."""
    return MNASNet(0.75, num_classes, dropout, in_channels)


@network(_PAPER)
def mnasnet1_0(num_classes: int = 1000, dropout: float = 0.2, in_channels: int = 3) -> MNASNet:
    """The width times 1.0."""
    return MNASNet(1.0, num_classes, dropout, in_channels)


@network(_PAPER)
def mnasnet1_3(num_classes: int = 1000, dropout: float = 0.2, in_channels: int = 3) -> MNASNet:
    """The width times 1.3."""
    return MNASNet(1.3, num_classes, dropout, in_channels)
