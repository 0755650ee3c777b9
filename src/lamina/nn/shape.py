"""Layers that only change shapes."""

from __future__ import annotations

from lamina import ops
from lamina.nn.module import Module, T


class Flatten(Module):
    """Axes start_dim … end_dim become one: (N, C, H, W) -> (N, C·H·W) by default."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: T) -> T:
        """x with the axes joined."""
        return ops.flatten(x, self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        """The arguments, as torch prints them."""
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"
