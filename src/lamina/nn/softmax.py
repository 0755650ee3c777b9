"""Softmax layers."""

from __future__ import annotations

from lamina import ops
from lamina.nn.module import Module, T
from lamina.ops.core import operand
from lamina.spec import ShapeError


class Softmax(Module):
    """exp(x) / Σ exp(x) along an axis, overflow-free."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim

    def forward(self, x: T) -> T:
        """Probabilities that sum to 1 along the axis; shape and dtype stay."""
        return ops.softmax(x, self.dim)

    def extra_repr(self) -> str:
        """The argument, as torch prints it."""
        return f"dim={self.dim}"


class Softmin(Softmax):
    """Softmax of -x along an axis."""

    def forward(self, x: T) -> T:
        """Probabilities that sum to 1 along the axis; shape and dtype stay."""
        return ops.softmin(x, self.dim)


class LogSoftmax(Softmax):
    """The logarithm of softmax along an axis, overflow-free."""

    def forward(self, x: T) -> T:
        """Log-probabilities; shape and dtype stay."""
        return ops.log_softmax(x, self.dim)


class Softmax2d(Module):
    """Softmax over the channels at every position of [N, C, H, W] or [C, H, W]."""

    def forward(self, x: T) -> T:
        """Probabilities that sum to 1 over the channels; shape and dtype stay. Raises ShapeError for another rank."""
        given: T = operand(x, "Softmax2d")
        if given.ndim not in (3, 4):
            raise ShapeError(f"Softmax2d: needs [N, C, H, W] or [C, H, W], got {given.spec}")
        return ops.softmax(given, -3)
