"""ConvNeXt (Liu, Mao, Wu, Feichtenhofer, Darrell & Xie 2022), as torchvision has it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from lamina import ops
from lamina.nn import init
from lamina.nn.activation import GELU
from lamina.nn.container import Sequential
from lamina.nn.conv import Conv2d
from lamina.nn.linear import Linear
from lamina.nn.models.blocks import LayerNorm2d, Permute, StochasticDepth, conv_norm
from lamina.nn.models.registry import network
from lamina.nn.module import Module, T
from lamina.nn.norm import LayerNorm
from lamina.nn.parameter import Parameter
from lamina.nn.shape import Flatten
from lamina.tensors import full

_PAPER = "Liu et al. 2022, arXiv:2201.03545"
_RATES = {"sgd": 0.01, "adam": 2e-4}


class ConvNeXtBlock(Module):
    """x + scale · (depthwise 7×7, layer norm, linear to four times the channels, GELU, linear back).

    The branch is dropped with probability `stochastic_depth_prob` in training; layer_scale: the initial scale.
    """

    layer_scale: Parameter

    def __init__(self, dim: int, layer_scale: float, stochastic_depth_prob: float) -> None:
        self.block = Sequential(
            Conv2d(dim, dim, 7, padding=3, groups=dim),
            Permute((0, 2, 3, 1)),
            LayerNorm(dim, eps=1e-6),
            Linear(dim, 4 * dim),
            GELU(),
            Linear(4 * dim, dim),
            Permute((0, 3, 1, 2)),
        )
        self.layer_scale = Parameter(full((dim, 1, 1), layer_scale))
        self.stochastic_depth = StochasticDepth(stochastic_depth_prob)

    def forward(self, x: T) -> T:
        """x (N, dim, H, W); shape and dtype stay."""
        branch: T = self.layer_scale * self.block(x)
        return self.stochastic_depth(branch) + x


class ConvNeXt(Module):
    """4×4/4, stages of blocks with a layer norm and 2×2/2 in between, then the mean, a layer norm and a linear layer.

    widths, depths: channels and blocks of each stage. stochastic_depth_prob: of the last block; it increases linearly
    from 0 at the first. Keys and initialization are torchvision's. Images of 32 pixels or more.
    """

    def __init__(
        self,
        widths: Sequence[int],
        depths: Sequence[int],
        stochastic_depth_prob: float = 0.0,
        layer_scale: float = 1e-6,
        num_classes: int = 1000,
        in_channels: int = 3,
    ) -> None:
        norm = partial(LayerNorm2d, eps=1e-6)
        made, last = 0, max(sum(depths) - 1, 1)
        with init.scheme(init.truncated(0.02)):
            features: list[Module] = [
                conv_norm(in_channels, widths[0], 4, 4, 0, norm_layer=norm, activation_layer=None, bias=True)
            ]
            for i, (width, depth) in enumerate(zip(widths, depths, strict=True)):
                if i:
                    features.append(Sequential(norm(widths[i - 1]), Conv2d(widths[i - 1], width, 2, 2)))
                shares = (stochastic_depth_prob * (made + j) / last for j in range(depth))
                features.append(Sequential(*(ConvNeXtBlock(width, layer_scale, p) for p in shares)))
                made += depth
            self.features = Sequential(*features)
            self.classifier = Sequential(norm(widths[-1]), Flatten(1), Linear(widths[-1], num_classes))

    def forward(self, x: T) -> T:
        """Images (N, in_channels, H, W) -> logits (N, num_classes)."""
        return self.classifier(ops.adaptive_avg_pool2d(self.features(x), 1))


def _convnext(width: int, depth: int, share: float, num_classes: int, options: dict[str, Any]) -> ConvNeXt:
    """Stages of 3, 3, depth and 3 blocks, the first one `width` wide, each twice as wide as the previous one."""
    chosen = {"stochastic_depth_prob": share, **options}
    widths = [width * factor for factor in (1, 2, 4, 8)]
    return ConvNeXt(widths, (3, 3, depth, 3), num_classes=num_classes, **chosen)


@network(_PAPER, rates=_RATES)
def convnext_tiny(num_classes: int = 1000, **options: Any) -> ConvNeXt:
    """18 blocks, of 96 channels in the first stage. options: of `ConvNeXt`."""
    return _convnext(96, 9, 0.1, num_classes, options)


@network(_PAPER, rates=_RATES)
def convnext_small(num_classes: int = 1000, **options: Any) -> ConvNeXt:
    """36 blocks, of 96 channels in the first stage. options: of `ConvNeXt`."""
    return _convnext(96, 27, 0.4, num_classes, options)


@network(_PAPER, rates=_RATES)
def convnext_base(num_classes: int = 1000, **options: Any) -> ConvNeXt:
    """36 blocks, of 128 channels in the first stage. options: of `ConvNeXt`."""
    return _convnext(128, 27, 0.5, num_classes, options)


@network(_PAPER, rates=_RATES)
def convnext_large(num_classes: int = 1000, **options: Any) -> ConvNeXt:
    """36 blocks, of 192 channels in the first stage. options: of `ConvNeXt`."""
    return _convnext(192, 27, 0.5, num_classes, options)
