"""Swin Transformer (Liu et al. 2021) and its second version (Liu et al. 2022), as torchvision has them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lamina import ops
from lamina.nn import init
from lamina.nn.activation import GELU, ReLU
from lamina.nn.container import Sequential
from lamina.nn.conv import Conv2d
from lamina.nn.dropout import Dropout
from lamina.nn.linear import Linear
from lamina.nn.models.blocks import MLP, Permute, StochasticDepth, position_bias, relative_positions
from lamina.nn.models.registry import network
from lamina.nn.module import Module, T
from lamina.nn.norm import LayerNorm
from lamina.nn.parameter import Parameter
from lamina.ops.core import operand
from lamina.tensors import empty, full

_PAPER = "Liu et al. 2021, arXiv:2103.14030"
_PAPER2 = "Liu et al. 2022, arXiv:2111.09883"
_RATES = {"sgd": 0.01, "adam": 2e-4}

#: Added to the scores of positions that only the shift brought into the same window.
_APART = -100.0

Pair = tuple[int, int]


class ShiftedWindowAttention(Module):
    """Attention within windows of positions, optionally shifted so that each crosses the borders of unshifted ones.

    Learned relative position biases. attention_dropout: of the weights, in training; dropout: of the result.
    """

    relative_position_bias_table: Parameter

    def __init__(
        self,
        dim: int,
        window_size: Pair,
        shift_size: Pair,
        num_heads: int,
        attention_dropout: float = 0.0,
        dropout: float = 0.0,
    ) -> None:
        self.window_size, self.shift_size, self.num_heads = window_size, shift_size, num_heads
        self.qkv, self.proj = Linear(dim, 3 * dim), Linear(dim, dim)
        self.register_buffer("relative_position_index", relative_positions(*window_size).reshape(-1))
        self.attention_dropout, self.dropout = Dropout(attention_dropout), Dropout(dropout)
        self._add_biases()

    def _add_biases(self) -> None:
        """The parameters that the biases are computed from."""
        rows = math.prod(2 * size - 1 for size in self.window_size)
        table = Parameter(empty(rows, self.num_heads))
        self.relative_position_bias_table = init.trunc_normal_(table, std=0.02)

    def _bias(self) -> Any:
        """The bias of the scores, [1, heads, P, P] for the P positions of a window."""
        places = math.prod(self.window_size)
        return position_bias(self.relative_position_bias_table, self.relative_position_index, places)

    def _project(self, x: Any) -> Any:
        """(…, C) -> (…, 3 C): queries, keys, values."""
        return self.qkv(x)

    def _scores(self, q: Any, k: Any) -> tuple[Any, Any, float]:
        """Queries and keys (N W, heads, P, D) to multiply, and the scale of the products."""
        return q, k, q.shape[-1] ** -0.5

    def forward(self, x: T) -> T:
        """x (N, H, W, C); shape and dtype stay."""
        given: T = operand(x)
        _, height, width, _ = given.shape
        below, right = (-n % size for n, size in zip((height, width), self.window_size, strict=True))
        y: T = ops.pad(given, (0, 0, 0, right, 0, below))
        padded = (height + below, width + right)
        shift = tuple(
            0 if size >= n else by
            for size, n, by in zip(self.window_size, padded, self.shift_size, strict=True)
        )
        if any(shift):
            y = ops.roll(y, [-n for n in shift], (1, 2))
        y = self._within_windows(y, shift)
        if any(shift):
            y = ops.roll(y, shift, (1, 2))
        inside: T = y[:, :height, :width, :]
        return inside

    def _within_windows(self, x: Any, shift: tuple[int, ...]) -> Any:
        """Attention of x (N, H, W, C), whose sides are multiples of the window's."""
        n, height, width, channels = x.shape
        (h, w), heads = self.window_size, self.num_heads
        grid, places = (height // h, width // w), h * w
        windows = math.prod(grid)
        apart = x.reshape((n, grid[0], h, grid[1], w, channels))
        rows = ops.permute(apart, (0, 1, 3, 2, 4, 5)).reshape((n * windows, places, channels))
        split = self._project(rows).reshape((n * windows, places, 3, heads, channels // heads))
        q, k, v = ops.unbind(ops.permute(split, (2, 0, 3, 1, 4)))
        q, k, scale = self._scores(q, k)
        bias = self._bias()
        if any(shift):
            bias = bias + _regions((height, width), self.window_size, shift, x.dtype.numpy)
            if n > 1:  # to the op, windows are heads, so that one bias serves all images
                bias = bias.reshape((1, windows * heads, places, places))
                q, k, v = (t.reshape((n, windows * heads, places, channels // heads)) for t in (q, k, v))
        y = self._attend(q, k, v, bias, scale).reshape((n * windows, heads, places, channels // heads))
        y = self.proj(ops.permute(y, (0, 2, 1, 3)).reshape((n * windows, places, channels)))
        y = self.dropout(y).reshape((n, *grid, h, w, channels))
        return ops.permute(y, (0, 1, 3, 2, 4, 5)).reshape((n, height, width, channels))

    def _attend(self, q: Any, k: Any, v: Any, bias: Any, scale: float) -> Any:
        if self.training and self.attention_dropout.p > 0:
            weights = ops.attention_weights(q, k, bias, scale=scale)
            return ops.matmul(self.attention_dropout(weights), v)
        return ops.attention(q, k, v, bias, scale=scale)


class ShiftedWindowAttentionV2(ShiftedWindowAttention):
    """Scores are cosines times a learned scale; two linear layers on log-spaced distances compute the biases."""

    logit_scale: Parameter

    def _add_biases(self) -> None:
        axes = (8 * np.arange(1 - n, n, dtype=np.float32) / (n - 1) for n in self.window_size)
        apart = np.stack(np.meshgrid(*axes, indexing="ij"), -1)[None]
        logs = np.sign(apart) * np.log2(np.abs(apart) + 1, dtype=np.float32) / 3
        self.register_buffer("relative_coords_table", logs.astype(np.float32))
        self.logit_scale = Parameter(full((self.num_heads, 1, 1), math.log(10)))
        self.cpb_mlp = Sequential(Linear(2, 512), ReLU(), Linear(512, self.num_heads, bias=False))

    def _bias(self) -> Any:
        table = ops.reshape(self.cpb_mlp(self.relative_coords_table), (-1, self.num_heads))
        return 16.0 * ops.sigmoid(
            position_bias(table, self.relative_position_index, math.prod(self.window_size))
        )

    def _project(self, x: Any) -> Any:
        """Keys have no bias: their third of it counts as zeros."""
        channels = self.proj.in_features
        own = np.repeat(np.array([1, 0, 1], np.float32), channels)
        bias = operand(self.qkv.bias)
        return ops.linear(x, self.qkv.weight, bias * own.astype(bias.dtype.numpy))

    def _scores(self, q: Any, k: Any) -> tuple[Any, Any, float]:
        scale = ops.exp(ops.clamp_max(self.logit_scale, math.log(100)))
        return ops.normalize(q, dim=-1) * scale, ops.normalize(k, dim=-1), 1.0


def _regions(size: Pair, window: Pair, shift: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """[windows, 1, P, P]: zeros between positions that were neighbors before the shift, else `_APART`."""
    labels = [
        np.select([np.arange(n) < n - w, np.arange(n) < n - s], [0, 1], 2) if s else np.zeros(n, int)
        for n, w, s in zip(size, window, shift, strict=True)
    ]
    label = 3 * labels[0][:, None] + labels[1]
    apart = label.reshape(size[0] // window[0], window[0], size[1] // window[1], window[1])
    rows = apart.transpose(0, 2, 1, 3).reshape(-1, 1, math.prod(window))
    return np.where(rows[..., None] == rows[:, :, None], 0.0, _APART).astype(dtype)


class SwinBlock(Module):
    """x + attention(norm(x)), followed by the same with the MLP; version 2 has its norms after both."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        window_size: Pair,
        shift_size: Pair,
        mlp_ratio: float = 4.0,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        stochastic_depth_prob: float = 0.0,
        *,
        version: int = 1,
    ) -> None:
        attention = ShiftedWindowAttentionV2 if version == 2 else ShiftedWindowAttention
        self.version = version
        self.norm1 = LayerNorm(dim)
        self.attn = attention(dim, window_size, shift_size, num_heads, attention_dropout, dropout)
        self.stochastic_depth = StochasticDepth(stochastic_depth_prob)
        self.norm2 = LayerNorm(dim)
        self.mlp = MLP(dim, (int(dim * mlp_ratio), dim), GELU, dropout)

    def forward(self, x: T) -> T:
        """x (N, H, W, dim); shape and dtype stay."""
        for norm, module in ((self.norm1, self.attn), (self.norm2, self.mlp)):
            branch = norm(module(x)) if self.version == 2 else module(norm(x))
            x = x + self.stochastic_depth(branch)
        return x


class PatchMerging(Module):
    """Merges four positions into one with twice the channels: a norm, a linear layer; version 2 swaps these."""

    def __init__(self, dim: int, *, version: int = 1) -> None:
        self.version = version
        self.reduction = Linear(4 * dim, 2 * dim, bias=False)
        self.norm = LayerNorm((2 if version == 2 else 4) * dim)

    def forward(self, x: T) -> T:
        """x (N, H, W, dim) -> (N, ⌈H / 2⌉, ⌈W / 2⌉, 2 dim)."""
        n, height, width, channels = x.shape
        y = ops.pad(x, (0, 0, 0, width % 2, 0, height % 2))
        rows, columns = y.shape[1] // 2, y.shape[2] // 2
        # A position's column counts two, its row one.
        y = ops.permute(y.reshape((n, rows, 2, columns, 2, channels)), (0, 1, 3, 4, 2, 5))
        y = y.reshape((n, rows, columns, 4 * channels))
        return self.norm(self.reduction(y)) if self.version == 2 else self.reduction(self.norm(y))


class SwinTransformer(Module):
    """Patches, stages of alternately shifted blocks with mergings in between; the mean, a linear layer.

    version: 1 or 2. stochastic_depth_prob: of the last block; it increases linearly from 0 at the first. Keys and
    initialization are torchvision's. Images of any size: incomplete windows are padded.
    """

    def __init__(
        self,
        patch_size: Pair,
        embed_dim: int,
        depths: Sequence[int],
        num_heads: Sequence[int],
        window_size: Pair,
        mlp_ratio: float = 4.0,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        stochastic_depth_prob: float = 0.1,
        num_classes: int = 1000,
        in_channels: int = 3,
        *,
        version: int = 1,
    ) -> None:
        conv = Conv2d(in_channels, embed_dim, patch_size, patch_size)
        layers: list[Module] = [Sequential(conv, Permute((0, 2, 3, 1)), LayerNorm(embed_dim))]
        dim, made, last = embed_dim, 0, max(sum(depths) - 1, 1)
        with init.scheme(init.truncated(0.02)):
            for stage, (depth, heads) in enumerate(zip(depths, num_heads, strict=True)):
                if stage:
                    layers.append(PatchMerging(dim, version=version))
                    dim *= 2
                blocks = []
                for i in range(depth):
                    shift = (window_size[0] // 2, window_size[1] // 2) if i % 2 else (0, 0)
                    share = stochastic_depth_prob * (made + i) / last
                    of = (mlp_ratio, dropout, attention_dropout, share)
                    blocks.append(SwinBlock(dim, heads, window_size, shift, *of, version=version))
                layers.append(Sequential(*blocks))
                made += depth
            self.features = Sequential(*layers)
            self.norm = LayerNorm(dim)
            self.head = Linear(dim, num_classes)

    def forward(self, x: T) -> T:
        """Images (N, in_channels, H, W) -> logits (N, num_classes)."""
        return self.head(ops.mean(self.norm(self.features(x)), (1, 2)))


def _swin(width: int, depth: int, share: float, num_classes: int, options: dict[str, Any]) -> SwinTransformer:
    """Stages of 2, 2, depth and 2 blocks, with one head per 32 channels, the first one `width` wide."""
    window = (8, 8) if options.get("version") == 2 else (7, 7)
    heads = [width // 32 * factor for factor in (1, 2, 4, 8)]
    chosen = {"stochastic_depth_prob": share, **options}
    return SwinTransformer((4, 4), width, (2, 2, depth, 2), heads, window, num_classes=num_classes, **chosen)


@network(_PAPER, rates=_RATES)
def swin_t(num_classes: int = 1000, **options: Any) -> SwinTransformer:
    """Tiny: 12 blocks. options: of `SwinTransformer`."""
    return _swin(96, 6, 0.2, num_classes, options)


@network(_PAPER, rates=_RATES)
def swin_s(num_classes: int = 1000, **options: Any) -> SwinTransformer:
    """Small: 24 blocks. options: of `SwinTransformer`."""
    return _swin(96, 18, 0.3, num_classes, options)


@network(_PAPER, rates=_RATES)
def swin_b(num_classes: int = 1000, **options: Any) -> SwinTransformer:
    """Base: 24 blocks. options: of `SwinTransformer`."""
    return _swin(128, 18, 0.5, num_classes, options)


@network(_PAPER2, size=256, rates=_RATES)
def swin_v2_t(num_classes: int = 1000, **options: Any) -> SwinTransformer:
    """Tiny: 12 blocks, version 2, with windows of 8 by 8. options: of `SwinTransformer`."""
    return _swin(96, 6, 0.2, num_classes, {"version": 2, **options})


@network(_PAPER2, size=256, rates=_RATES)
def swin_v2_s(num_classes: int = 1000, **options: Any) -> SwinTransformer:
    """Small: 24 blocks, version 2, with windows of 8 by 8. options: of `SwinTransformer`."""
    return _swin(96, 18, 0.3, num_classes, {"version": 2, **options})


@network(_PAPER2, size=256, rates=_RATES)
def swin_v2_b(num_classes: int = 1000, **options: Any) -> SwinTransformer:
    """Base: 24 blocks, version 2, with windows of 8 by 8. options: of `SwinTransformer`."""
    return _swin(128, 18, 0.5, num_classes, {"version": 2, **options})
