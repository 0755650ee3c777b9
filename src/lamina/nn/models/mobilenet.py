"""MobileNetV2 (Sandler et al. 2018) and MobileNetV3 (Howard et al. 2019), as torchvision has them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from lamina import ops
from lamina.nn import init
from lamina.nn.activation import Hardsigmoid, Hardswish, ReLU, ReLU6
from lamina.nn.container import Sequential
from lamina.nn.dropout import Dropout
from lamina.nn.linear import Linear
from lamina.nn.models.blocks import Norm, SqueezeExcitation, conv_norm, divisible
from lamina.nn.models.registry import network
from lamina.nn.module import Module, T
from lamina.nn.norm import BatchNorm2d

_PAPER = "Sandler et al. 2018, arXiv:1801.04381"
_PAPER3 = "Howard et al. 2019, arXiv:1905.02244"

#: Stages: expansion factor, filters, blocks, stride of the first block.
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class InvertedResidual(Module):
    """1×1 to `expand_ratio` times the channels, depthwise 3×3, 1×1 to `oup`; plus x if shapes agree."""

    def __init__(
        self, inp: int, oup: int, stride: int, expand_ratio: int, norm_layer: Norm = BatchNorm2d
    ) -> None:
        hidden = inp * expand_ratio
        conv = partial(conv_norm, norm_layer=norm_layer, activation_layer=ReLU6)
        layers: list[Module] = [conv(inp, hidden, 1)] if expand_ratio != 1 else []
        layers.append(conv(hidden, hidden, 3, stride, groups=hidden))
        layers += conv_norm(hidden, oup, 1, norm_layer=norm_layer, activation_layer=None)
        self.conv = Sequential(*layers)
        self.use_res_connect = stride == 1 and inp == oup

    def forward(self, x: T) -> T:
        """x (N, inp, H, W) -> (N, oup, H / stride, W / stride)."""
        return x + self.conv(x) if self.use_res_connect else self.conv(x)


class MobileNetV2(Module):
    """Images (N, 3, H, W) of 32 pixels or more -> logits; 3,504,872 parameters with 1000 classes.

    width_mult: a factor of all channels, rounded to multiples of 8. Keys are torchvision's (features.0.0.weight …
    classifier.1.bias), so its weights load by name; initialization is the same as well.
    """

    def __init__(
        self,
        num_classes: int = 1000,
        dropout: float = 0.2,
        width_mult: float = 1.0,
        norm_layer: Norm = BatchNorm2d,
        in_channels: int = 3,
    ) -> None:
        channels, last = divisible(32 * width_mult), divisible(1280 * max(1.0, width_mult))
        conv = partial(conv_norm, norm_layer=norm_layer, activation_layer=ReLU6)
        with init.scheme(init.he_out_):
            features: list[Module] = [conv(in_channels, channels, 3, 2)]
            for expand, width, count, stride in _STAGES:
                filters = divisible(width * width_mult)
                for i in range(count):
                    step = stride if i == 0 else 1
                    features.append(InvertedResidual(channels, filters, step, expand, norm_layer))
                    channels = filters
            self.features = Sequential(*features, conv(channels, last, 1))
        with init.scheme(init.small_):
            self.classifier = Sequential(Dropout(dropout), Linear(last, num_classes))

    def forward(self, x: T) -> T:
        """Images (N, in_channels, H, W) -> logits (N, num_classes)."""
        return self.classifier(ops.flatten(ops.adaptive_avg_pool2d(self.features(x), 1), 1))


#: MobileNetV3's norms.
_NORM3 = partial(BatchNorm2d, eps=1e-3, momentum=0.01)


class Bneck(NamedTuple):
    """A block of MobileNetV3, as in the paper's tables 1 and 2."""

    kernel: int
    expanded: int
    filters: int
    squeezes: bool
    hard_swish: bool
    stride: int = 1
    dilation: int = 1

    def scaled(self, width_mult: float) -> Bneck:
        """The block with its channels scaled by width_mult, as multiples of 8."""
        expanded, filters = (divisible(n * width_mult) for n in (self.expanded, self.filters))
        return self._replace(expanded=expanded, filters=filters)


class MobileNetV3Block(Module):
    """1×1, depthwise k×k, squeeze and excitation if configured, 1×1; plus x if shapes agree."""

    def __init__(self, channels: int, setting: Bneck, norm_layer: Norm) -> None:
        kernel, hidden, filters, squeezes, hard_swish, stride, dilation = setting
        conv = partial(conv_norm, norm_layer=norm_layer, activation_layer=Hardswish if hard_swish else ReLU)
        layers: list[Module] = [conv(channels, hidden, 1)] if hidden != channels else []
        step = 1 if dilation > 1 else stride
        layers.append(conv(hidden, hidden, kernel, step, groups=hidden, dilation=dilation))
        if squeezes:
            layers.append(SqueezeExcitation(hidden, divisible(hidden // 4), scale_activation=Hardsigmoid))
        layers.append(conv_norm(hidden, filters, 1, norm_layer=norm_layer, activation_layer=None))
        self.block = Sequential(*layers)
        self.use_res_connect = stride == 1 and channels == filters

    def forward(self, x: T) -> T:
        """x (N, channels, H, W) -> (N, filters, H / stride, W / stride); with a dilation the size is preserved."""
        return x + self.block(x) if self.use_res_connect else self.block(x)


class MobileNetV3(Module):
    """3×3/2, blocks, 1×1 to six times the channels, the mean, and two linear layers.

    Keys and initialization are torchvision's.

    Args:
        inverted_residual_setting: the blocks.
        last_channel: features between the linear layers.
        width_mult: factor of all channels, rounded to multiples of 8.
        norm_layer: constructs a norm for a number of channels.
    """

    def __init__(
        self,
        inverted_residual_setting: Sequence[Bneck],
        last_channel: int,
        num_classes: int = 1000,
        dropout: float = 0.2,
        width_mult: float = 1.0,
        norm_layer: Norm = _NORM3,
        in_channels: int = 3,
    ) -> None:
        conv = partial(conv_norm, norm_layer=norm_layer, activation_layer=Hardswish)
        channels, hidden = divisible(16 * width_mult), divisible(last_channel * width_mult)
        with init.scheme(init.he_out_):
            features: list[Module] = [conv(in_channels, channels, 3, 2)]
            for setting in (s.scaled(width_mult) for s in inverted_residual_setting):
                features.append(MobileNetV3Block(channels, setting, norm_layer))
                channels = setting.filters
            self.features = Sequential(*features, conv(channels, 6 * channels, 1))
        with init.scheme(init.small_):
            last = Linear(hidden, num_classes)
            self.classifier = Sequential(Linear(6 * channels, hidden), Hardswish(), Dropout(dropout), last)

    def forward(self, x: T) -> T:
        """Images (N, in_channels, H, W) -> logits (N, num_classes)."""
        return self.classifier(ops.flatten(ops.adaptive_avg_pool2d(self.features(x), 1), 1))


@network(_PAPER, rates={"sgd": 0.05, "adam": 5e-4})
def mobilenet_v2(
    num_classes: int = 1000, dropout: float = 0.2, width_mult: float = 1.0, **options: Any
) -> MobileNetV2:
    """MobileNetV2 of width 1. options: of `MobileNetV2`."""
    return MobileNetV2(num_classes, dropout, width_mult, **options)


@network(_PAPER3)
def mobilenet_v3_large(
    num_classes: int = 1000, *, reduced_tail: bool = False, dilated: bool = False, **options: Any
) -> MobileNetV3:
    """15 blocks. reduced_tail: half the channels in the last ones; dilated: they preserve the size, for segmentation.

    options: of `MobileNetV3`.
    """
    half, dilation = (2 if reduced_tail else 1), (2 if dilated else 1)
    last = Bneck(5, 960 // half, 160 // half, True, True, 1, dilation)
    setting = (
        Bneck(3, 16, 16, False, False),
        Bneck(3, 64, 24, False, False, 2),
        Bneck(3, 72, 24, False, False),
        Bneck(5, 72, 40, True, False, 2),
        Bneck(5, 120, 40, True, False),
        Bneck(5, 120, 40, True, False),
        Bneck(3, 240, 80, False, True, 2),
        Bneck(3, 200, 80, False, True),
        Bneck(3, 184, 80, False, True),
        Bneck(3, 184, 80, False, True),
        Bneck(3, 480, 112, True, True),
        Bneck(3, 672, 112, True, True),
        Bneck(5, 672, 160 // half, True, True, 2, dilation),
        last,
        last,
    )
    return MobileNetV3(setting, 1280 // half, num_classes, **options)


@network(_PAPER3)
def mobilenet_v3_small(
    num_classes: int = 1000, *, reduced_tail: bool = False, dilated: bool = False, **options: Any
) -> MobileNetV3:
    """11 blocks. reduced_tail: half the channels in the last ones; dilated: they preserve the size, for segmentation.

    options: of `MobileNetV3`.
    """
    half, dilation = (2 if reduced_tail else 1), (2 if dilated else 1)
    last = Bneck(5, 576 // half, 96 // half, True, True, 1, dilation)
    setting = (
        Bneck(3, 16, 16, True, False, 2),
        Bneck(3, 72, 24, False, False, 2),
        Bneck(3, 88, 24, False, False),
        Bneck(5, 96, 40, True, True, 2),
        Bneck(5, 240, 40, True, True),
        Bneck(5, 240, 40, True, True),
        Bneck(5, 120, 48, True, True),
        Bneck(5, 144, 48, True, True),
        Bneck(5, 288, 96 // half, True, True, 2, dilation),
        last,
        last,
    )
    return MobileNetV3(setting, 1024 // half, num_classes, **options)
