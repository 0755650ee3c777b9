"""Sliding windows as columns, and the inverse: Unfold and Fold. Arguments as in torch.nn."""

from __future__ import annotations

from lamina import ops
from lamina.nn.module import Module, T
from lamina.ops.arguments import Sizes


class Unfold(Module):
    """im2col: (N, C, H, W) -> (N, C * prod(kernel_size), positions); see `ops.unfold`."""

    def __init__(
        self, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
    ) -> None:
        self.kernel_size, self.dilation, self.padding, self.stride = kernel_size, dilation, padding, stride

    def forward(self, x: T) -> T:
        """The columns. Raises ShapeError if the kernel does not fit."""
        y: T = ops.unfold(x, self.kernel_size, self.dilation, self.padding, self.stride)
        return y

    def extra_repr(self) -> str:
        """The arguments, as torch prints them."""
        text = f"kernel_size={self.kernel_size}, dilation={self.dilation}"
        return f"{text}, padding={self.padding}, stride={self.stride}"


class Fold(Unfold):
    """col2im: columns (N, C * prod(kernel_size), positions) summed into (N, C, *output_size); see `ops.fold`."""

    def __init__(
        self,
        output_size: Sizes,
        kernel_size: Sizes,
        dilation: Sizes = 1,
        padding: Sizes = 0,
        stride: Sizes = 1,
    ) -> None:
        super().__init__(kernel_size, dilation, padding, stride)
        self.output_size = output_size

    def forward(self, x: T) -> T:
        """The images. Raises ShapeError for another number of columns."""
        y: T = ops.fold(x, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)
        return y

    def extra_repr(self) -> str:
        """The arguments, as torch prints them."""
        return f"output_size={self.output_size}, {super().extra_repr()}"
