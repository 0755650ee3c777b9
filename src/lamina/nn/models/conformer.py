"""Conformer (Gulati et al. 2020): attention and convolutions for speech. Arguments and keys as torchaudio's."""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina import ops
from lamina.nn.activation import GLU, SiLU
from lamina.nn.attention import Mask, MultiheadAttention
from lamina.nn.container import ModuleList, Sequential
from lamina.nn.conv import Conv1d
from lamina.nn.dropout import Dropout
from lamina.nn.linear import Linear
from lamina.nn.module import Module, T
from lamina.nn.norm import BatchNorm1d, GroupNorm, LayerNorm
from lamina.ops.core import operand


class ConformerConvolution(Module):
    """Layer norm, 1×1 with a gate, depthwise convolution, batch or group norm, SiLU, 1×1, dropout."""

    def __init__(
        self,
        input_dim: int,
        num_channels: int,
        depthwise_kernel_size: int,
        dropout: float = 0.0,
        bias: bool = False,
        use_group_norm: bool = False,
    ) -> None:
        if depthwise_kernel_size % 2 == 0:
            raise ValueError(
                f"Conformer: depthwise_conv_kernel_size must be odd, got {depthwise_kernel_size}"
            )
        kernel, channels = depthwise_kernel_size, num_channels
        self.layer_norm = LayerNorm(input_dim)
        self.sequential = Sequential(
            Conv1d(input_dim, 2 * channels, 1, bias=bias),
            GLU(dim=1),
            Conv1d(channels, channels, kernel, padding=kernel // 2, groups=channels, bias=bias),
            GroupNorm(1, channels) if use_group_norm else BatchNorm1d(channels),
            SiLU(),
            Conv1d(channels, input_dim, 1, bias=bias),
            Dropout(dropout),
        )

    def forward(self, x: T) -> T:
        """x (L, B, E) -> the same shape."""
        y: T = self.sequential(ops.permute(self.layer_norm(x), (1, 2, 0)))
        return ops.permute(y, (2, 0, 1))


class ConformerFeedForward(Module):
    """Layer norm, linear layer, SiLU, linear layer, with dropout."""

    def __init__(self, input_dim: int, hidden_dim: int, dropout: float = 0.0) -> None:
        self.sequential = Sequential(
            LayerNorm(input_dim),
            Linear(input_dim, hidden_dim),
            SiLU(),
            Dropout(dropout),
            Linear(hidden_dim, input_dim),
            Dropout(dropout),
        )

    def forward(self, x: T) -> T:
        """x (…, E) -> the same shape."""
        return self.sequential(x)


class ConformerLayer(Module):
    """Half a feed-forward network, attention, convolution, the other half, a layer norm; residuals around each."""

    def __init__(
        self,
        input_dim: int,
        ffn_dim: int,
        num_attention_heads: int,
        depthwise_conv_kernel_size: int,
        dropout: float = 0.0,
        use_group_norm: bool = False,
        convolution_first: bool = False,
    ) -> None:
        self.ffn1 = ConformerFeedForward(input_dim, ffn_dim, dropout)
        self.self_attn_layer_norm = LayerNorm(input_dim)
        self.self_attn = MultiheadAttention(input_dim, num_attention_heads, dropout)
        self.self_attn_dropout = Dropout(dropout)
        self.conv_module = ConformerConvolution(
            input_dim, input_dim, depthwise_conv_kernel_size, dropout, True, use_group_norm
        )
        self.ffn2 = ConformerFeedForward(input_dim, ffn_dim, dropout)
        self.final_layer_norm = LayerNorm(input_dim)
        self.convolution_first = convolution_first

    def forward(self, input: T, key_padding_mask: Mask = None) -> T:
        """input (L, B, E) -> the same shape; key_padding_mask (B, L), True at padding frames."""
        x: T = self.ffn1(input) * 0.5 + input
        if self.convolution_first:
            x = x + self.conv_module(x)
        y: T = self.self_attn_layer_norm(x)
        x = x + self.self_attn_dropout(self.self_attn(y, y, y, key_padding_mask, False)[0])
        if not self.convolution_first:
            x = x + self.conv_module(x)
        return self.final_layer_norm(self.ffn2(x) * 0.5 + x)


class Conformer(Module):
    """num_layers layers on frames of input_dim features.

    Keys are conformer_layers.0.ffn1.sequential.0.weight, …. use_group_norm: instead of batch norm. convolution_first:
    the convolution precedes the attention.
    """

    def __init__(
        self,
        input_dim: int,
        num_heads: int,
        ffn_dim: int,
        num_layers: int,
        depthwise_conv_kernel_size: int,
        dropout: float = 0.0,
        use_group_norm: bool = False,
        convolution_first: bool = False,
    ) -> None:
        self.conformer_layers = ModuleList(
            ConformerLayer(
                input_dim,
                ffn_dim,
                num_heads,
                depthwise_conv_kernel_size,
                dropout,
                use_group_norm,
                convolution_first,
            )
            for _ in range(num_layers)
        )

    def forward(self, input: T, lengths: Any) -> tuple[T, Any]:
        """Frames (B, L, input_dim) -> the same shape, and the lengths.

        lengths: (B,), the number of non-padding frames of each, at least 1; attention ignores the others. As in
        torchaudio, convolutions and batch norms see the padding: use zeros.
        """
        x: T = operand(input)
        counts = operand(lengths)
        padding = ops.ge(np.arange(x.shape[1])[None], counts.unsqueeze(1))
        x = ops.transpose(x, 0, 1)
        for layer in self.conformer_layers:
            x = layer(x, padding)
        return ops.transpose(x, 0, 1), counts
