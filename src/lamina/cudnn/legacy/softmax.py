"""Softmax."""

from __future__ import annotations

from typing import NamedTuple

from lamina.c import cudnn as c
from lamina.cudnn.legacy.base import AnyHandle, Descriptor, Memory, call
from lamina.cudnn.legacy.flags import Name, SoftmaxAlgorithm, SoftmaxMode, flag
from lamina.cudnn.legacy.tensor import TensorDescriptor


class SoftmaxSettings(NamedTuple):
    """What `Softmax.get` returns."""

    algorithm: SoftmaxAlgorithm
    mode: SoftmaxMode


class Softmax(Descriptor):
    """Softmax; C has no descriptor for it, the settings are arguments of its calls.

    Args:
        algorithm: "fast" (exponentials overflow for large x), "accurate" (the maximum is subtracted first) or
            "log" (the logarithm of softmax).
        mode: "channel" (over C, at each position) or "instance" (over C, H, W).
    """

    def __init__(self, *, algorithm: Name = "accurate", mode: Name = "channel") -> None:
        super().__init__()
        self._settings = SoftmaxSettings(flag(SoftmaxAlgorithm, algorithm), flag(SoftmaxMode, mode))

    def get(self) -> SoftmaxSettings:
        """The settings."""
        _ = self.native
        return self._settings

    def forward(
        self,
        handle: AnyHandle,
        *,
        x_desc: TensorDescriptor,
        x: Memory,
        y_desc: TensorDescriptor,
        y: Memory,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        """y = alpha * softmax(x) + beta * y (cudnnSoftmaxForward); y may be x."""
        call(c.cudnnSoftmaxForward, handle, *self.get(), alpha, x_desc, x, beta, y_desc, y)

    def backward(
        self,
        handle: AnyHandle,
        *,
        y_desc: TensorDescriptor,
        y: Memory,
        dy_desc: TensorDescriptor,
        dy: Memory,
        dx_desc: TensorDescriptor,
        dx: Memory,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        """dx = alpha * (gradient by x) + beta * dx (cudnnSoftmaxBackward); y is what `forward` gave."""
        call(c.cudnnSoftmaxBackward, handle, *self.get(), alpha, y_desc, y, dy_desc, dy, beta, dx_desc, dx)
