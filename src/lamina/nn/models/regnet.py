"""RegNet (Radosavovic, Kosaraju, Girshick, He & Dollár 2020): widths and depths from a linear rule."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from lamina import ops
from lamina.nn import init
from lamina.nn.container import Sequential
from lamina.nn.linear import Linear
from lamina.nn.models.blocks import Norm, SqueezeExcitation, conv_norm, divisible
from lamina.nn.models.registry import network
from lamina.nn.module import Module, T
from lamina.nn.norm import BatchNorm2d

_PAPER = "Radosavovic et al. 2020, arXiv:2003.13678"


class RegNetBlock(Module):
    """relu(x + 1×1, grouped 3×3, optional squeeze and excitation, 1×1); x by a 1×1 if shapes change.

    group_width: channels per group. se_ratio: the squeezed channels as a fraction of those of x.
    """

    def __init__(
        self,
        width_in: int,
        width_out: int,
        stride: int,
        group_width: int,
        se_ratio: float | None = None,
        norm_layer: Norm = BatchNorm2d,
    ) -> None:
        self.proj: Module | None = None
        if width_in != width_out or stride != 1:
            self.proj = conv_norm(
                width_in, width_out, 1, stride, norm_layer=norm_layer, activation_layer=None
            )
        groups = width_out // group_width
        parts: dict[str, Module] = {
            "a": conv_norm(width_in, width_out, 1, norm_layer=norm_layer),
            "b": conv_norm(width_out, width_out, 3, stride, groups=groups, norm_layer=norm_layer),
        }
        if se_ratio:
            parts["se"] = SqueezeExcitation(width_out, round(se_ratio * width_in))
        parts["c"] = conv_norm(width_out, width_out, 1, norm_layer=norm_layer, activation_layer=None)
        self.f = Sequential(parts)

    def forward(self, x: T) -> T:
        """x (N, width_in, H, W) -> (N, width_out, H / stride, W / stride)."""
        skipped = x if self.proj is None else self.proj(x)
        y: T = skipped + self.f(x)
        return ops.relu(y)


def _he_out_with_bias_(layer: Any) -> None:
    """He's normal distribution by fan-out; biases (of squeeze and excitation) keep their default initialization."""
    init.torch_(layer)
    init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")


class RegNet(Module):
    """3×3/2, stages of blocks, each at half the size of the previous one, the mean, and a linear layer.

    widths, depths: channels and blocks of each stage (`regnet_stages`). Keys and initialization are torchvision's.
    """

    def __init__(
        self,
        widths: Sequence[int],
        depths: Sequence[int],
        group_width: int,
        se_ratio: float | None = None,
        num_classes: int = 1000,
        stem_width: int = 32,
        norm_layer: Norm = BatchNorm2d,
        in_channels: int = 3,
    ) -> None:
        channels = stem_width
        with init.scheme(_he_out_with_bias_):
            self.stem = conv_norm(in_channels, channels, 3, 2, norm_layer=norm_layer)
            stages = {}
            for i, (width, depth) in enumerate(zip(widths, depths, strict=True)):
                blocks = {}
                for j in range(depth):
                    of = (min(group_width, width), se_ratio, norm_layer)
                    blocks[f"block{i + 1}-{j}"] = RegNetBlock(channels, width, 1 if j else 2, *of)
                    channels = width
                stages[f"block{i + 1}"] = Sequential(blocks)
            self.trunk_output = Sequential(stages)
        with init.scheme(init.small_):
            self.fc = Linear(channels, num_classes)

    def forward(self, x: T) -> T:
        """Images (N, in_channels, H, W) -> logits (N, num_classes)."""
        x = ops.adaptive_avg_pool2d(self.trunk_output(self.stem(x)), 1)
        return self.fc(ops.flatten(x, 1))


def regnet_stages(
    depth: int, w_0: int, w_a: float, w_m: float, group_width: int
) -> tuple[list[int], list[int]]:
    """(widths, depths) of the stages of a network of `depth` blocks.

    Block i is w_0 + w_a · i wide, rounded to the nearest w_0 · w_mᵏ, and that to a multiple of 8; blocks of one width
    form a stage, whose width is then rounded to a multiple of the group width. Raises ValueError for parameters that
    give no widths.
    """
    if w_a < 0 or w_0 <= 0 or w_m <= 1 or w_0 % 8:
        raise ValueError(
            f"regnet: needs w_0 a multiple of 8, w_a >= 0 and w_m > 1, got w_0={w_0}, w_a={w_a}, w_m={w_m}"
        )
    powers = np.round(np.log((w_0 + w_a * np.arange(depth)) / w_0) / np.log(w_m))
    blocks = (np.round(w_0 * w_m**powers / 8) * 8).astype(int).tolist()
    stages = [(width, len(list(same))) for width, same in groupby(blocks)]
    widths = [divisible(width, min(group_width, width)) for width, _ in stages]
    return widths, [count for _, count in stages]


def _regnet(depth: int, w_0: int, w_a: float, w_m: float, group_width: int, **options: Any) -> RegNet:
    widths, depths = regnet_stages(depth, w_0, w_a, w_m, group_width)
    return RegNet(widths, depths, group_width, **options)


@network(_PAPER)
def regnet_x_400mf(num_classes: int = 1000, **options: Any) -> RegNet:
    """400 million multiply-adds at 224 pixels. options: of `RegNet`."""
    return _regnet(22, 24, 24.48, 2.54, 16, num_classes=num_classes, **options)


@network(_PAPER)
def regnet_x_800mf(num_classes: int = 1000, **options: Any) -> RegNet:
    """800 million multiply-adds at 224 pixels. options: of `RegNet`."""
    return _regnet(16, 56, 35.73, 2.28, 16, num_classes=num_classes, **options)


@network(_PAPER)
def regnet_x_1_6gf(num_classes: int = 1000, **options: Any) -> RegNet:
    """1.6 billion multiply-adds at 224 pixels. options: of `RegNet`."""
    return _regnet(18, 80, 34.01, 2.25, 24, num_classes=num_classes, **options)


@network(_PAPER)
def regnet_x_3_2gf(num_classes: int = 1000, **options: Any) -> RegNet:
    """3.2 billion multiply-adds at 224 pixels. options: of `RegNet`."""
    return _regnet(25, 88, 26.31, 2.25, 48, num_classes=num_classes, **options)


@network(_PAPER)
def regnet_x_8gf(num_classes: int = 1000, **options: Any) -> RegNet:
    """8 billion multiply-adds at 224 pixels. options: of `RegNet`."""
    return _regnet(23, 80, 49.56, 2.88, 120, num_classes=num_classes, **options)


@network(_PAPER)
def regnet_x_16gf(num_classes: int = 1000, **options: Any) -> RegNet:
    """16 billion multiply-adds at 224 pixels. options: of `RegNet`."""
    return _regnet(22, 216, 55.59, 2.1, 128, num_classes=num_classes, **options)


@network(_PAPER)
def regnet_x_32gf(num_classes: int = 1000, **options: Any) -> RegNet:
    """32 billion multiply-adds at 224 pixels. options: of `RegNet`."""
    return _regnet(23, 320, 69.86, 2.0, 168, num_classes=num_classes, **options)


@network(_PAPER)
def regnet_y_400mf(num_classes: int = 1000, **options: Any) -> RegNet:
    """400 million multiply-adds at 224 pixels, with squeeze and excitation. options: of `RegNet`."""
    return _regnet(16, 48, 27.89, 2.09, 8, num_classes=num_classes, **{"se_ratio": 0.25, **options})


@network(_PAPER)
def regnet_y_800mf(num_classes: int = 1000, **options: Any) -> RegNet:
    """800 million multiply-adds at 224 pixels, with squeeze and excitation. options: of `RegNet`."""
    return _regnet(14, 56, 38.84, 2.4, 16, num_classes=num_classes, **{"se_ratio": 0.25, **options})


@network(_PAPER)
def regnet_y_1_6gf(num_classes: int = 1000, **options: Any) -> RegNet:
    """1.6 billion multiply-adds at 224 pixels, with squeeze and excitation. options: of `RegNet`."""
    return _regnet(27, 48, 20.71, 2.65, 24, num_classes=num_classes, **{"se_ratio": 0.25, **options})


@network(_PAPER)
def regnet_y_3_2gf(num_classes: int = 1000, **options: Any) -> RegNet:
    """3.2 billion multiply-adds at 224 pixels, with squeeze and excitation. options: of `RegNet`."""
    return _regnet(21, 80, 42.63, 2.66, 24, num_classes=num_classes, **{"se_ratio": 0.25, **options})


@network(_PAPER)
def regnet_y_8gf(num_classes: int = 1000, **options: Any) -> RegNet:
    """8 billion multiply-adds at 224 pixels, with squeeze and excitation. options: of `RegNet`."""
    return _regnet(17, 192, 76.82, 2.19, 56, num_classes=num_classes, **{"se_ratio": 0.25, **options})


@network(_PAPER)
def regnet_y_16gf(num_classes: int = 1000, **options: Any) -> RegNet:
    """16 billion multiply-adds at 224 pixels, with squeeze and excitation. options: of `RegNet`."""
    return _regnet(18, 200, 106.23, 2.48, 112, num_classes=num_classes, **{"se_ratio": 0.25, **options})


@network(_PAPER)
def regnet_y_32gf(num_classes: int = 1000, **options: Any) -> RegNet:
    """32 billion multiply-adds at 224 pixels, with squeeze and excitation. options: of `RegNet`."""
    return _regnet(20, 232, 115.89, 2.53, 232, num_classes=num_classes, **{"se_ratio": 0.25, **options})


@network(_PAPER)
def regnet_y_128gf(num_classes: int = 1000, **options: Any) -> RegNet:
    """128 billion multiply-adds at 224 pixels, with squeeze and excitation. options: of `RegNet`."""
    return _regnet(27, 456, 160.83, 2.52, 264, num_classes=num_classes, **{"se_ratio": 0.25, **options})
