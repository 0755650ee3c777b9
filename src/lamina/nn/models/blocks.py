"""Building blocks shared by several families of networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from lamina import ops
from lamina.nn.activation import ReLU, Sigmoid
from lamina.nn.container import Sequential
from lamina.nn.conv import Conv2d
from lamina.nn.dropout import Dropout, _Dropout
from lamina.nn.linear import Linear
from lamina.nn.module import Module, T
from lamina.nn.norm import BatchNorm2d, LayerNorm

#: Constructs a norm for a number of channels.
Norm = Callable[[int], Module]
#: Constructs an activation.
Activation = Callable[[], Module]


def divisible(value: float, by: int = 8, least: int | None = None) -> int:
    """The multiple of `by` nearest to value, at least `least` (by default `by`), and at least 0.9 of value."""
    near = max(least or by, int(value + by / 2) // by * by)
    return near + by if near < 0.9 * value else near


def conv_norm(
    channels: int,
    filters: int,
    kernel_size: int = 3,
    stride: int = 1,
    padding: int | None = None,
    groups: int = 1,
    norm_layer: Norm | None = BatchNorm2d,
    activation_layer: Activation | None = ReLU,
    dilation: int = 1,
    bias: bool | None = None,
) -> Sequential:
    """A convolution, and optionally a norm and an activation: keys 0.weight, 1.weight, …

    padding: by default preserves the size at stride 1. bias: by default if there is no norm.
    """
    around = (kernel_size - 1) // 2 * dilation if padding is None else padding
    biased = norm_layer is None if bias is None else bias
    layers: list[Module] = [Conv2d(channels, filters, kernel_size, stride, around, dilation, groups, biased)]
    if norm_layer is not None:
        layers.append(norm_layer(filters))
    if activation_layer is not None:
        layers.append(activation_layer())
    return Sequential(*layers)


class SqueezeExcitation(Module):
    """Channels scaled by a gate that two 1×1 convolutions compute from their means (Hu, Shen & Sun 2018)."""

    def __init__(
        self,
        input_channels: int,
        squeeze_channels: int,
        activation: Activation = ReLU,
        scale_activation: Activation = Sigmoid,
    ) -> None:
        self.fc1 = Conv2d(input_channels, squeeze_channels, 1)
        self.fc2 = Conv2d(squeeze_channels, input_channels, 1)
        self.activation, self.scale_activation = activation(), scale_activation()

    def forward(self, x: T) -> T:
        """x (N, input_channels, H, W), with each channel scaled."""
        mean = ops.adaptive_avg_pool2d(x, 1)
        scale: T = self.scale_activation(self.fc2(self.activation(self.fc1(mean))))
        return scale * x


class StochasticDepth(_Dropout):
    """In training, drops a branch with probability p, otherwise scales it by 1 / (1 - p) (Huang et al. 2016).

    mode: "row" decides per sample, "batch" once for all. It belongs before the residual sum. Raises ValueError for a
    p outside [0, 1] or another mode.
    """

    def __init__(self, p: float, mode: Literal["row", "batch"] = "row") -> None:
        if mode not in ("row", "batch"):
            raise ValueError(f"StochasticDepth: mode must be 'row' or 'batch', got {mode!r}")
        super().__init__(p)
        self.mode = mode

    def _dropped(self, x: Any, state: Any) -> tuple[Any, Any]:
        rows = x.shape[:1] if self.mode == "row" else (1,) * min(x.ndim, 1)
        each = np.ones((*rows, *(1,) * (x.ndim - 1)), x.dtype.numpy)
        kept, _, after = ops.dropout(each, self.p, state=state)
        return x * kept, after

    def extra_repr(self) -> str:
        """The arguments."""
        return f"p={self.p}, mode={self.mode}"


class Permute(Module):
    """Permutes the axes."""

    def __init__(self, dims: Sequence[int]) -> None:
        self.dims = tuple(dims)

    def forward(self, x: T) -> T:
        """x with axis dims[i] at position i."""
        return ops.permute(x, self.dims)


class LayerNorm2d(LayerNorm):
    """Layer norm over the channels of (N, C, H, W), per pixel."""

    def forward(self, x: T) -> T:
        """x (N, C, H, W) normalized; shape and dtype stay."""
        rows: T = super().forward(ops.permute(x, (0, 2, 3, 1)))
        return ops.permute(rows, (0, 3, 1, 2))


class MLP(Sequential):
    """Linear layers with activations in between, each followed by dropout: keys 0.weight, 3.weight, …

    hidden_channels: the sizes of their outputs, the last one being that of the whole.
    """

    older_names: ClassVar[Mapping[str, str]] = {r"linear_1\.": "0.", r"linear_2\.": "3."}

    def __init__(
        self,
        in_channels: int,
        hidden_channels: Sequence[int],
        activation_layer: Activation = ReLU,
        dropout: float = 0.0,
    ) -> None:
        layers: list[Module] = []
        for size in hidden_channels:
            layers += [Linear(in_channels, size), activation_layer(), Dropout(dropout)]
            in_channels = size
        del layers[-2]
        super().__init__(*layers)


def relative_positions(height: int, width: int) -> np.ndarray[Any, Any]:
    """[P, P] int64 for the P = height · width positions of a window: the table row for each relative position.

    The table has (2 height - 1)(2 width - 1) rows, one per difference of positions (Liu et al. 2021).
    """
    places = np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij"), -1).reshape(-1, 2)
    apart = places[:, None] - places + (height - 1, width - 1)
    return np.asarray(apart[..., 0] * (2 * width - 1) + apart[..., 1], np.int64)


def position_bias(table: Any, index: Any, places: int) -> Any:
    """[1, heads, positions, positions], the bias of attention scores within a window.

    table: [rows, heads]. index: `relative_positions`, of any shape.
    """
    rows = ops.index_select(table, 0, ops.flatten(index))
    return ops.permute(rows.reshape((1, places, places, table.shape[1])), (0, 3, 1, 2))
