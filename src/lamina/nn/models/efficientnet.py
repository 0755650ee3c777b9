"""EfficientNet (Tan & Le 2019) and EfficientNetV2 (Tan & Le 2021), as torchvision has them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from lamina import ops
from lamina.nn import init
from lamina.nn.activation import SiLU
from lamina.nn.container import Sequential
from lamina.nn.dropout import Dropout
from lamina.nn.linear import Linear
from lamina.nn.models.blocks import Norm, SqueezeExcitation, StochasticDepth, conv_norm, divisible
from lamina.nn.models.registry import network
from lamina.nn.module import Module, T
from lamina.nn.norm import BatchNorm2d

_PAPER = "Tan & Le 2019, arXiv:1905.11946"
_PAPER2 = "Tan & Le 2021, arXiv:2104.00298"


class MBConvStage(NamedTuple):
    """A stage, as in the papers' tables: expansion factor, kernel, stride of the first block, filters, blocks.

    fused: one k×k convolution replaces the 1×1 and the depthwise k×k one, without squeeze and excitation.
    """

    expand_ratio: int
    kernel: int
    stride: int
    filters: int
    blocks: int
    fused: bool = False

    def scaled(self, width_mult: float, depth_mult: float) -> MBConvStage:
        """The stage with its filters, as multiples of 8, and its blocks, rounded up, scaled by these factors."""
        filters, blocks = divisible(self.filters * width_mult), math.ceil(self.blocks * depth_mult)
        return self._replace(filters=filters, blocks=blocks)


class MBConv(Module):
    """A stage's block: 1×1 (or k×k) to more channels, depthwise k×k, squeeze and excitation, 1×1; plus x.

    x is added if shapes agree, to a branch that is dropped with probability `stochastic_depth_prob` in training.
    """

    def __init__(
        self, channels: int, stride: int, stage: MBConvStage, stochastic_depth_prob: float, norm_layer: Norm
    ) -> None:
        hidden, filters = divisible(channels * stage.expand_ratio), stage.filters
        conv = partial(conv_norm, norm_layer=norm_layer, activation_layer=SiLU)
        last = partial(conv, kernel_size=1, activation_layer=None)
        layers: list[Module]
        if stage.fused and hidden == channels:
            layers = [conv(channels, filters, stage.kernel, stride)]
        elif stage.fused:
            layers = [conv(channels, hidden, stage.kernel, stride), last(hidden, filters)]
        else:
            layers = [conv(channels, hidden, 1)] if hidden != channels else []
            layers.append(conv(hidden, hidden, stage.kernel, stride, groups=hidden))
            layers.append(SqueezeExcitation(hidden, max(1, channels // 4), SiLU))
            layers.append(last(hidden, filters))
        self.block = Sequential(*layers)
        self.stochastic_depth = StochasticDepth(stochastic_depth_prob)
        self.use_res_connect = stride == 1 and channels == filters

    def forward(self, x: T) -> T:
        """x (N, channels, H, W) -> (N, filters, H / stride, W / stride)."""
        y = self.block(x)
        return self.stochastic_depth(y) + x if self.use_res_connect else y


class EfficientNet(Module):
    """3×3/2, stages of `MBConv`, 1×1 to last_channel channels, the mean, dropout and a linear layer.

    Keys and initialization are torchvision's.

    Args:
        stages: with their filters and blocks.
        stem: filters of the first convolution.
        dropout: of the features.
        stochastic_depth_prob: the limit of the branches' dropout probability, which increases from block to block.
        last_channel: by default four times the last stage's filters.
        norm_layer: constructs a norm for a number of channels.
    """

    def __init__(
        self,
        stages: Sequence[MBConvStage],
        stem: int,
        dropout: float,
        stochastic_depth_prob: float = 0.2,
        num_classes: int = 1000,
        norm_layer: Norm = BatchNorm2d,
        last_channel: int | None = None,
        in_channels: int = 3,
    ) -> None:
        conv = partial(conv_norm, norm_layer=norm_layer, activation_layer=SiLU)
        total, made, channels = sum(s.blocks for s in stages), 0, stem
        with init.scheme(init.he_out_):
            features = [conv(in_channels, stem, 3, 2)]
            for stage in stages:
                blocks = []
                for i in range(stage.blocks):
                    share = stochastic_depth_prob * made / total
                    blocks.append(MBConv(channels, 1 if i else stage.stride, stage, share, norm_layer))
                    channels, made = stage.filters, made + 1
                features.append(Sequential(*blocks))
            last = last_channel or 4 * channels
            self.features = Sequential(*features, conv(channels, last, 1))
        with init.scheme(_uniform_by_outputs):
            self.classifier = Sequential(Dropout(dropout), Linear(last, num_classes))

    def forward(self, x: T) -> T:
        """Images (N, in_channels, H, W) -> logits (N, num_classes)."""
        return self.classifier(ops.flatten(ops.adaptive_avg_pool2d(self.features(x), 1), 1))


def _uniform_by_outputs(layer: init.Layer) -> None:
    """Weights uniform within 1 / √out_features, biases zero."""
    bound = 1 / math.sqrt(layer.weight.shape[0])
    init.uniform_(layer.weight, -bound, bound)
    init.zeros_(layer.bias)


_STAGES = (
    MBConvStage(1, 3, 1, 16, 1),
    MBConvStage(6, 3, 2, 24, 2),
    MBConvStage(6, 5, 2, 40, 2),
    MBConvStage(6, 3, 2, 80, 3),
    MBConvStage(6, 5, 1, 112, 3),
    MBConvStage(6, 5, 2, 192, 4),
    MBConvStage(6, 3, 1, 320, 1),
)
#: The norms of the larger variants.
_SLOW = partial(BatchNorm2d, eps=1e-3, momentum=0.01)
_NORM2 = partial(BatchNorm2d, eps=1e-3)


def _scaled(width_mult: float, depth_mult: float, dropout: float, **options: Any) -> EfficientNet:
    """The first version, with width and depth scaled by these factors."""
    stages = [s.scaled(width_mult, depth_mult) for s in _STAGES]
    return EfficientNet(stages, divisible(32 * width_mult), dropout, **options)


@network(_PAPER)
def efficientnet_b0(num_classes: int = 1000, dropout: float = 0.2, **options: Any) -> EfficientNet:
    """The network that the others are scaled from. options: of `EfficientNet`."""
    return _scaled(1.0, 1.0, dropout, num_classes=num_classes, **options)


@network(_PAPER, size=240)
def efficientnet_b1(num_classes: int = 1000, dropout: float = 0.2, **options: Any) -> EfficientNet:
    """Width times 1.0, depth times 1.1. options: of `EfficientNet`."""
    return _scaled(1.0, 1.1, dropout, num_classes=num_classes, **options)


@network(_PAPER, size=288)
def efficientnet_b2(num_classes: int = 1000, dropout: float = 0.3, **options: Any) -> EfficientNet:
    """Width times 1.1, depth times 1.2. options: of `EfficientNet`."""
    return _scaled(1.1, 1.2, dropout, num_classes=num_classes, **options)


@network(_PAPER, size=300)
def efficientnet_b3(num_classes: int = 1000, dropout: float = 0.3, **options: Any) -> EfficientNet:
    """Width times 1.2, depth times 1.4. options: of `EfficientNet`."""
    return _scaled(1.2, 1.4, dropout, num_classes=num_classes, **options)


@network(_PAPER, size=380)
def efficientnet_b4(num_classes: int = 1000, dropout: float = 0.4, **options: Any) -> EfficientNet:
    """Width times 1.4, depth times 1.8. options: of `EfficientNet`."""
    return _scaled(1.4, 1.8, dropout, num_classes=num_classes, **options)


@network(_PAPER, size=456)
def efficientnet_b5(num_classes: int = 1000, dropout: float = 0.4, **options: Any) -> EfficientNet:
    """Width times 1.6, depth times 2.2. options: of `EfficientNet`."""
    return _scaled(1.6, 2.2, dropout, num_classes=num_classes, **{"norm_layer": _SLOW, **options})


@network(_PAPER, size=528)
def efficientnet_b6(num_classes: int = 1000, dropout: float = 0.5, **options: Any) -> EfficientNet:
    """Width times 1.8, depth times 2.6. options: of `EfficientNet`."""
    return _scaled(1.8, 2.6, dropout, num_classes=num_classes, **{"norm_layer": _SLOW, **options})


@network(_PAPER, size=600)
def efficientnet_b7(num_classes: int = 1000, dropout: float = 0.5, **options: Any) -> EfficientNet:
    """Width times 2.0, depth times 3.1. options: of `EfficientNet`."""
    return _scaled(2.0, 3.1, dropout, num_classes=num_classes, **{"norm_layer": _SLOW, **options})


@network(_PAPER2, size=384)
def efficientnet_v2_s(num_classes: int = 1000, dropout: float = 0.2, **options: Any) -> EfficientNet:
    """The second version's small network. options: of `EfficientNet`."""
    stages = (
        MBConvStage(1, 3, 1, 24, 2, fused=True),
        MBConvStage(4, 3, 2, 48, 4, fused=True),
        MBConvStage(4, 3, 2, 64, 4, fused=True),
        MBConvStage(4, 3, 2, 128, 6),
        MBConvStage(6, 3, 1, 160, 9),
        MBConvStage(6, 3, 2, 256, 15),
    )
    chosen = {"norm_layer": _NORM2, "last_channel": 1280, **options}
    return EfficientNet(stages, 24, dropout, num_classes=num_classes, **chosen)


@network(_PAPER2, size=480)
def efficientnet_v2_m(num_classes: int = 1000, dropout: float = 0.3, **options: Any) -> EfficientNet:
    """The second version's medium network. options: of `EfficientNet`."""
    stages = (
        MBConvStage(1, 3, 1, 24, 3, fused=True),
        MBConvStage(4, 3, 2, 48, 5, fused=True),
        MBConvStage(4, 3, 2, 80, 5, fused=True),
        MBConvStage(4, 3, 2, 160, 7),
        MBConvStage(6, 3, 1, 176, 14),
        MBConvStage(6, 3, 2, 304, 18),
        MBConvStage(6, 3, 1, 512, 5),
    )
    chosen = {"norm_layer": _NORM2, "last_channel": 1280, **options}
    return EfficientNet(stages, 24, dropout, num_classes=num_classes, **chosen)


@network(_PAPER2, size=480)
def efficientnet_v2_l(num_classes: int = 1000, dropout: float = 0.4, **options: Any) -> EfficientNet:
    """The second version's large network. options: of `EfficientNet`."""
    stages = (
        MBConvStage(1, 3, 1, 32, 4, fused=True),
        MBConvStage(4, 3, 2, 64, 7, fused=True),
        MBConvStage(4, 3, 2, 96, 7, fused=True),
        MBConvStage(4, 3, 2, 192, 10),
        MBConvStage(6, 3, 1, 224, 19),
        MBConvStage(6, 3, 2, 384, 25),
        MBConvStage(6, 3, 1, 640, 7),
    )
    chosen = {"norm_layer": _NORM2, "last_channel": 1280, **options}
    return EfficientNet(stages, 32, dropout, num_classes=num_classes, **chosen)
