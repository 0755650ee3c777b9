"""MaxViT (Tu, Talebi, Zhang, Yang, Milanfar, Bovik & Li 2022), as torchvision has it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from lamina import ops
from lamina.nn import init
from lamina.nn.activation import GELU, SiLU, Tanh
from lamina.nn.container import Identity, ModuleList, Sequential
from lamina.nn.conv import Conv2d
from lamina.nn.dropout import Dropout
from lamina.nn.linear import Linear
from lamina.nn.models.blocks import (
    SqueezeExcitation,
    StochasticDepth,
    conv_norm,
    position_bias,
    relative_positions,
)
from lamina.nn.models.registry import network
from lamina.nn.module import Module, T
from lamina.nn.norm import BatchNorm2d, LayerNorm
from lamina.nn.parameter import Parameter
from lamina.nn.pool import AdaptiveAvgPool2d, AvgPool2d
from lamina.nn.shape import Flatten
from lamina.spec import ShapeError
from lamina.tensors import empty

_PAPER = "Tu et al. 2022, arXiv:2204.01697"
_NORM = partial(BatchNorm2d, eps=1e-3, momentum=0.01)


class MaxViTConv(Module):
    """x + (norm, 1×1 to more channels, depthwise 3×3, squeeze and excitation, 1×1).

    x passes through a 1×1 convolution if shapes change.
    """

    def __init__(
        self,
        channels: int,
        filters: int,
        stride: int,
        expansion_ratio: float,
        squeeze_ratio: float,
        stochastic_depth_prob: float,
    ) -> None:
        hidden = int(filters * expansion_ratio)
        self.proj: Module = Identity()
        if stride != 1 or channels != filters:
            pool = [AvgPool2d(3, stride, 1)] if stride > 1 else []
            self.proj = Sequential(*pool, Conv2d(channels, filters, 1))
        conv = partial(conv_norm, norm_layer=_NORM, activation_layer=GELU)
        self.layers = Sequential(
            {
                "pre_norm": _NORM(channels),
                "conv_a": conv(channels, hidden, 1),
                "conv_b": conv(hidden, hidden, 3, stride, groups=hidden),
                "squeeze_excitation": SqueezeExcitation(hidden, int(filters * squeeze_ratio), SiLU),
                "conv_c": Conv2d(hidden, filters, 1),
            }
        )
        self.stochastic_depth = StochasticDepth(stochastic_depth_prob)

    def forward(self, x: T) -> T:
        """x (N, channels, H, W) -> (N, filters, H / stride, W / stride)."""
        y: T = self.proj(x) + self.stochastic_depth(self.layers(x))
        return y


class RelativeAttention(Module):
    """Attention between the positions of each window, with learned relative position biases.

    size: positions on a side of a window. Raises ValueError unless head_dim divides dim.
    """

    relative_position_bias_table: Parameter

    def __init__(self, dim: int, head_dim: int, size: int) -> None:
        if dim % head_dim:
            raise ValueError(f"RelativeAttention: head_dim={head_dim} must divide dim={dim}")
        self.heads, self.head_dim, self.places = dim // head_dim, head_dim, size**2
        self.to_qkv, self.merge = Linear(dim, 3 * dim), Linear(dim, dim)
        table = Parameter(empty((2 * size - 1) ** 2, self.heads))
        self.relative_position_bias_table = init.trunc_normal_(table, std=0.02)
        self.register_buffer("relative_position_index", relative_positions(size, size))

    def forward(self, x: T) -> T:
        """x (N, windows, positions, dim); shape and dtype stay."""
        n, windows, places, dim = x.shape
        split = self.to_qkv(x).reshape((n * windows, places, 3, self.heads, self.head_dim))
        q, k, v = ops.unbind(ops.permute(split, (2, 0, 3, 1, 4)))
        bias = position_bias(self.relative_position_bias_table, self.relative_position_index, self.places)
        y = ops.attention(q, k, v, bias, scale=dim**-0.5)
        joined: T = ops.permute(y, (0, 2, 1, 3)).reshape((n, windows, places, dim))
        return self.merge(joined)


class PartitionAttention(Module):
    """x + attention, followed by a feed-forward residual block, within partitions of size × size positions.

    kind: "window": a partition is a block of adjacent positions; "grid": it is evenly spaced over the image.
    """

    def __init__(
        self,
        dim: int,
        head_dim: int,
        size: int,
        kind: Literal["window", "grid"],
        mlp_ratio: int,
        attention_dropout: float,
        mlp_dropout: float,
        stochastic_depth_prob: float,
    ) -> None:
        self.size, self.kind = size, kind
        attention = RelativeAttention(dim, head_dim, size)
        self.attn_layer = Sequential(LayerNorm(dim), attention, Dropout(attention_dropout))
        self.mlp_layer = Sequential(
            LayerNorm(dim),
            Linear(dim, mlp_ratio * dim),
            GELU(),
            Linear(mlp_ratio * dim, dim),
            Dropout(mlp_dropout),
        )
        self.stochastic_dropout = StochasticDepth(stochastic_depth_prob)

    def forward(self, x: T) -> T:
        """x (N, dim, H, W), H and W multiples of size; shape and dtype stay. Raises ShapeError."""
        n, dim, height, width = x.shape
        if height % self.size or width % self.size:
            raise ShapeError(
                f"PartitionAttention: parts of {self.size} by {self.size} places do not fill {height} by {width}"
            )
        size, rows, columns = self.size, height // self.size, width // self.size
        # H and W, each as (partitions, positions) or the other way round, become (N, partitions, positions, dim).
        if self.kind == "window":
            split = x.reshape((n, dim, rows, size, columns, size))
            order = (0, 2, 4, 3, 5, 1)
        else:
            split = x.reshape((n, dim, size, rows, size, columns))
            order = (0, 3, 5, 2, 4, 1)
        apart = ops.permute(split, order)
        y: T = apart.reshape((n, rows * columns, size**2, dim))
        y = y + self.stochastic_dropout(self.attn_layer(y))
        y = y + self.stochastic_dropout(self.mlp_layer(y))
        back = tuple(int(i) for i in np.argsort(order))
        return ops.permute(y.reshape(apart.shape), back).reshape((n, dim, height, width))


class MaxViTLayer(Module):
    """A convolution block, then attention within windows and over the grid."""

    def __init__(
        self,
        channels: int,
        filters: int,
        stride: int,
        stochastic_depth_prob: float,
        *,
        squeeze_ratio: float,
        expansion_ratio: float,
        **attention: Any,
    ) -> None:
        conv = MaxViTConv(channels, filters, stride, expansion_ratio, squeeze_ratio, stochastic_depth_prob)
        attend = partial(
            PartitionAttention, filters, stochastic_depth_prob=stochastic_depth_prob, **attention
        )
        self.layers = Sequential(
            {
                "MBconv": conv,
                "window_attention": attend(kind="window"),
                "grid_attention": attend(kind="grid"),
            }
        )

    def forward(self, x: T) -> T:
        """x (N, channels, H, W) -> (N, filters, H / stride, W / stride)."""
        return self.layers(x)


class MaxViTBlock(Module):
    """Layers; the first one halves the size. shares: the probability with which each drops its branches."""

    def __init__(self, channels: int, filters: int, shares: Sequence[float], **of: Any) -> None:
        self.layers = ModuleList(
            MaxViTLayer(filters if i else channels, filters, 1 if i else 2, share, **of)
            for i, share in enumerate(shares)
        )

    def forward(self, x: T) -> T:
        """x (N, channels, H, W) -> (N, filters, H / 2, W / 2)."""
        for layer in self.layers:
            x = layer(x)
        return x


class MaxVit(Module):
    """Two convolutions, blocks, the mean, a norm and two linear layers with tanh in between.

    Keys and initialization are torchvision's. After each block the image's sides are multiples of partition_size.

    Args:
        stem_channels: filters of the first convolutions.
        block_channels, block_layers: channels and layers of each block.
        head_dim: features of an attention head.
        partition_size: positions on a side of a window or a grid.
        stochastic_depth_prob: of the last layer; it grows from 0 at the first.
    """

    def __init__(
        self,
        stem_channels: int,
        block_channels: Sequence[int],
        block_layers: Sequence[int],
        head_dim: int,
        partition_size: int,
        stochastic_depth_prob: float,
        squeeze_ratio: float = 0.25,
        expansion_ratio: float = 4.0,
        mlp_ratio: int = 4,
        mlp_dropout: float = 0.0,
        attention_dropout: float = 0.0,
        num_classes: int = 1000,
        in_channels: int = 3,
    ) -> None:
        of = {
            "head_dim": head_dim, "size": partition_size, "squeeze_ratio": squeeze_ratio,
            "expansion_ratio": expansion_ratio, "mlp_ratio": mlp_ratio, "mlp_dropout": mlp_dropout,
            "attention_dropout": attention_dropout,
        }  # fmt: skip
        shares = iter(np.linspace(0, stochastic_depth_prob, sum(block_layers)).tolist())
        with init.scheme(_initial):
            first = conv_norm(in_channels, stem_channels, 3, 2, norm_layer=_NORM, activation_layer=GELU)
            second = conv_norm(stem_channels, stem_channels, 3, norm_layer=None, activation_layer=None)
            self.stem = Sequential(first, second)
            self.blocks: ModuleList[MaxViTBlock] = ModuleList()
            channels = stem_channels
            for filters, count in zip(block_channels, block_layers, strict=True):
                own = [next(shares) for _ in range(count)]
                self.blocks.append(MaxViTBlock(channels, filters, own, **of))
                channels = filters
            self.classifier = Sequential(
                AdaptiveAvgPool2d(1),
                Flatten(),
                LayerNorm(channels),
                Linear(channels, channels),
                Tanh(),
                Linear(channels, num_classes, bias=False),
            )

    def forward(self, x: T) -> T:
        """Images (N, in_channels, H, W) -> logits (N, num_classes). Raises ShapeError."""
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.classifier(x)


def _initial(layer: init.Layer) -> None:
    """Weights normal with standard deviation 0.02, biases zero."""
    init.normal_(layer.weight, std=0.02)
    if layer.bias is not None:
        init.zeros_(layer.bias)


@network(_PAPER)
def maxvit_t(num_classes: int = 1000, **options: Any) -> MaxVit:
    """Tiny: 11 layers. options: of `MaxVit`."""
    chosen = {"stochastic_depth_prob": 0.2, **options}
    return MaxVit(64, (64, 128, 256, 512), (2, 2, 5, 2), 32, 7, num_classes=num_classes, **chosen)
