"""Vision Transformer (Dosovitskiy et al. 2021), as torchvision has it."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from lamina import ops
from lamina.nn import init
from lamina.nn.activation import GELU, Tanh
from lamina.nn.attention import MultiheadAttention
from lamina.nn.container import Sequential
from lamina.nn.conv import Conv2d
from lamina.nn.dropout import Dropout
from lamina.nn.linear import Linear
from lamina.nn.models.blocks import MLP
from lamina.nn.models.registry import network
from lamina.nn.module import Module, T
from lamina.nn.norm import LayerNorm
from lamina.nn.parameter import Parameter
from lamina.spec import ShapeError
from lamina.tensors import empty, zeros

_PAPER = "Dosovitskiy et al. 2021, arXiv:2010.11929"
_RATES = {"sgd": 0.01, "adam": 1e-4}
_NORM = partial(LayerNorm, eps=1e-6)


class EncoderBlock(Module):
    """x + attention(norm(x)), followed by the same with the MLP."""

    def __init__(
        self, num_heads: int, hidden_dim: int, mlp_dim: int, dropout: float, attention_dropout: float
    ) -> None:
        self.ln_1 = _NORM(hidden_dim)
        self.self_attention = MultiheadAttention(hidden_dim, num_heads, attention_dropout, batch_first=True)
        self.dropout = Dropout(dropout)
        self.ln_2 = _NORM(hidden_dim)
        with init.scheme(_xavier):
            self.mlp = MLP(hidden_dim, (mlp_dim, hidden_dim), GELU, dropout)

    def forward(self, x: T) -> T:
        """x (N, L, hidden_dim); shape and dtype stay."""
        y = self.ln_1(x)
        x = x + self.dropout(self.self_attention(y, y, y, need_weights=False)[0])
        return x + self.mlp(self.ln_2(x))


class VisionEncoder(Module):
    """Position embeddings, then blocks and a norm."""

    pos_embedding: Parameter

    def __init__(
        self,
        seq_length: int,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        mlp_dim: int,
        dropout: float,
        attention_dropout: float,
    ) -> None:
        self.pos_embedding = init.normal_(Parameter(empty(1, seq_length, hidden_dim)), std=0.02)
        self.dropout = Dropout(dropout)
        of = (num_heads, hidden_dim, mlp_dim, dropout, attention_dropout)
        self.layers = Sequential({f"encoder_layer_{i}": EncoderBlock(*of) for i in range(num_layers)})
        self.ln = _NORM(hidden_dim)

    def forward(self, x: T) -> T:
        """x (N, seq_length, hidden_dim); shape and dtype stay."""
        placed: T = x + self.pos_embedding
        return self.ln(self.layers(self.dropout(placed)))


class VisionTransformer(Module):
    """Patches as tokens: each is projected, a class token is prepended, and its output is classified.

    Keys and initialization are torchvision's: the classifier starts from zeros.

    Args:
        image_size: pixels on a side, a multiple of patch_size.
        representation_size: features of a linear layer with tanh before the classifier, where given.

    Raises ValueError unless patches tile the image.
    """

    class_token: Parameter

    def __init__(
        self,
        image_size: int,
        patch_size: int,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        mlp_dim: int,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        num_classes: int = 1000,
        representation_size: int | None = None,
        in_channels: int = 3,
    ) -> None:
        if image_size % patch_size:
            raise ValueError(
                f"VisionTransformer: patches of {patch_size} do not fill images of {image_size} pixels"
            )
        self.image_size, self.in_channels = image_size, in_channels
        with init.scheme(init.truncated(math.sqrt(1 / (in_channels * patch_size**2)))):
            self.conv_proj = Conv2d(in_channels, hidden_dim, patch_size, patch_size)
        self.class_token = Parameter(zeros(1, 1, hidden_dim))
        self.encoder = VisionEncoder(
            (image_size // patch_size) ** 2 + 1,
            num_layers,
            num_heads,
            hidden_dim,
            mlp_dim,
            dropout,
            attention_dropout,
        )
        self.heads = _heads(hidden_dim, representation_size, num_classes)

    def forward(self, x: T) -> T:
        """Images (N, in_channels, image_size, image_size) -> logits (N, num_classes). Raises ShapeError."""
        wanted = (self.in_channels, self.image_size, self.image_size)
        if tuple(x.shape[1:]) != wanted:
            raise ShapeError(
                f"VisionTransformer: needs images (N, {', '.join(map(str, wanted))}), got {x.shape}"
            )
        patches = ops.permute(ops.flatten(self.conv_proj(x), 2), (0, 2, 1))
        token = ops.expand(self.class_token, (x.shape[0], 1, patches.shape[2]))
        y = self.encoder(ops.cat([token, patches], 1))
        return self.heads(ops.select(y, 1, 0))


def _heads(features: int, representation_size: int | None, num_classes: int) -> Sequential:
    """The classifier, initialized to zeros, after an optional additional layer."""
    layers: dict[str, Module] = {}
    if representation_size is not None:
        with init.scheme(init.truncated(math.sqrt(1 / features))):
            layers = {"pre_logits": Linear(features, representation_size), "act": Tanh()}
        features = representation_size
    with init.scheme(_zeros):
        return Sequential({**layers, "head": Linear(features, num_classes)})


def _zeros(layer: init.Layer) -> None:
    init.zeros_(layer.weight)
    init.zeros_(layer.bias)


def _xavier(layer: init.Layer) -> None:
    """Weights from Glorot's uniform distribution, biases normal with standard deviation 10⁻⁶."""
    init.xavier_uniform_(layer.weight)
    init.normal_(layer.bias, std=1e-6)


@network(_PAPER, rates=_RATES)
def vit_b_16(num_classes: int = 1000, image_size: int = 224, **options: Any) -> VisionTransformer:
    """Base: 12 blocks, patches of 16 pixels. options: of `VisionTransformer`."""
    return VisionTransformer(image_size, 16, 12, 12, 768, 3072, num_classes=num_classes, **options)


@network(_PAPER, rates=_RATES)
def vit_b_32(num_classes: int = 1000, image_size: int = 224, **options: Any) -> VisionTransformer:
    """Base: 12 blocks, patches of 32 pixels. options: of `VisionTransformer`."""
    return VisionTransformer(image_size, 32, 12, 12, 768, 3072, num_classes=num_classes, **options)


@network(_PAPER, rates=_RATES)
def vit_l_16(num_classes: int = 1000, image_size: int = 224, **options: Any) -> VisionTransformer:
    """Large: 24 blocks, patches of 16 pixels. options: of `VisionTransformer`."""
    return VisionTransformer(image_size, 16, 24, 16, 1024, 4096, num_classes=num_classes, **options)


@network(_PAPER, rates=_RATES)
def vit_l_32(num_classes: int = 1000, image_size: int = 224, **options: Any) -> VisionTransformer:
    """Large: 24 blocks, patches of 32 pixels. options: of `VisionTransformer`."""
    return VisionTransformer(image_size, 32, 24, 16, 1024, 4096, num_classes=num_classes, **options)


@network(_PAPER, rates=_RATES)
def vit_h_14(num_classes: int = 1000, image_size: int = 224, **options: Any) -> VisionTransformer:
    """Huge: 32 blocks, patches of 14 pixels. options: of `VisionTransformer`."""
    return VisionTransformer(image_size, 14, 32, 16, 1280, 5120, num_classes=num_classes, **options)
