"""Layers that only change shapes, or rearrange elements."""

from __future__ import annotations

from collections.abc import Sequence

from lamina import ops
from lamina.nn.module import Module, T


class Flatten(Module):
    """Merges axes start_dim … end_dim: (N, C, H, W) -> (N, C·H·W) by default."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: T) -> T:
        """x with the axes merged."""
        return ops.flatten(x, self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        """The arguments, as torch prints them."""
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """Splits one axis into several: the inverse of Flatten. One of the sizes may be -1."""

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def forward(self, x: T) -> T:
        """x with the axis split. Raises ShapeError if the product of the sizes differs from its size."""
        return ops.unflatten(x, self.dim, self.unflattened_size)

    def extra_repr(self) -> str:
        """The arguments, as torch prints them."""
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


class PixelShuffle(Module):
    """Channels to space: (…, C * r * r, H, W) -> (…, C, H * r, W * r) (Shi et al. 2016)."""

    def __init__(self, upscale_factor: int) -> None:
        self.upscale_factor = upscale_factor

    def forward(self, x: T) -> T:
        """The larger image. Raises ShapeError unless r * r divides the channels."""
        return ops.pixel_shuffle(x, self.upscale_factor)

    def extra_repr(self) -> str:
        """The argument, as torch prints it."""
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """Space to channels: (…, C, H * r, W * r) -> (…, C * r * r, H, W)."""

    def __init__(self, downscale_factor: int) -> None:
        self.downscale_factor = downscale_factor

    def forward(self, x: T) -> T:
        """The smaller image. Raises ShapeError unless r divides both sizes."""
        return ops.pixel_unshuffle(x, self.downscale_factor)

    def extra_repr(self) -> str:
        """The argument, as torch prints it."""
        return f"downscale_factor={self.downscale_factor}"


class ChannelShuffle(Module):
    """The channels of (N, C, *) interleaved over groups (Zhang et al. 2018); see `ops.channel_shuffle`."""

    def __init__(self, groups: int) -> None:
        self.groups = groups

    def forward(self, x: T) -> T:
        """x with its channels reordered. Raises ShapeError unless groups divides them."""
        return ops.channel_shuffle(x, self.groups)

    def extra_repr(self) -> str:
        """The argument, as torch prints it."""
        return f"groups={self.groups}"
