"""Pooling layers of one to three spatial axes. Arguments as in torch.nn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from lamina import ops
from lamina.nn.module import Module, T
from lamina.ops.primitives.window import Padding, per_axis

Sizes = int | Iterable[int]


class _PoolLayer(Module):
    """A window that slides over the spatial axes."""

    rank: ClassVar[int]
    function: ClassVar[Callable[..., Any]]

    def __init__(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Padding = 0, ceil_mode: bool = False
    ) -> None:
        name = type(self).__name__
        per_axis(name, "kernel_size", kernel_size, self.rank, 1)
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        per_axis(name, "stride", self.stride, self.rank, 1)
        self.padding, self.ceil_mode = padding, ceil_mode

    def extra_repr(self) -> str:
        """The arguments."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class _MaxPool(_PoolLayer):
    """The largest element of each window."""

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Padding = 0,
        dilation: Sizes = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__(kernel_size, stride, padding, ceil_mode)
        self.return_indices = return_indices
        per_axis(type(self).__name__, "dilation", dilation, self.rank, 1)
        self.dilation = dilation

    def forward(self, x: T) -> T:
        """x (N, C, *S) -> (N, C, *O), with return_indices (values, where each was in *S).

        Raises ShapeError when the window does not fit.
        """
        y: T = type(self).function(
            x,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            ceil_mode=self.ceil_mode,
            return_indices=self.return_indices,
        )
        return y

    def extra_repr(self) -> str:
        """The arguments, as torch prints them."""
        return f"{super().extra_repr()}, dilation={self.dilation}, ceil_mode={self.ceil_mode}"


class MaxPool1d(_MaxPool):
    """The largest element of each window of (N, C, L)."""

    rank, function = 1, staticmethod(ops.max_pool1d)


class MaxPool2d(_MaxPool):
    """The largest element of each window of (N, C, H, W)."""

    rank, function = 2, staticmethod(ops.max_pool2d)


class MaxPool3d(_MaxPool):
    """The largest element of each window of (N, C, D, H, W)."""

    rank, function = 3, staticmethod(ops.max_pool3d)


class _AvgPool(_PoolLayer):
    """The mean of each window; count_include_pad says whether padding counts.

    divisor_override: what sums are divided by instead of the window's size (2 and 3 axes).
    """

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Padding = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__(kernel_size, stride, padding, ceil_mode)
        if self.rank == 1 and divisor_override is not None:
            raise TypeError(f"{type(self).__name__}: takes no divisor_override, as in torch")
        self.count_include_pad, self.divisor_override = count_include_pad, divisor_override

    def forward(self, x: T) -> T:
        """x (N, C, *S) -> (N, C, *O). Raises ShapeError when the window does not fit."""
        y: T = type(self).function(
            x,
            self.kernel_size,
            self.stride,
            self.padding,
            ceil_mode=self.ceil_mode,
            count_include_pad=self.count_include_pad,
            **({} if self.divisor_override is None else {"divisor_override": self.divisor_override}),
        )
        return y


class AvgPool1d(_AvgPool):
    """The mean of each window of (N, C, L)."""

    rank, function = 1, staticmethod(ops.avg_pool1d)


class AvgPool2d(_AvgPool):
    """The mean of each window of (N, C, H, W)."""

    rank, function = 2, staticmethod(ops.avg_pool2d)


class AvgPool3d(_AvgPool):
    """The mean of each window of (N, C, D, H, W)."""

    rank, function = 3, staticmethod(ops.avg_pool3d)


class _AdaptiveAvgPool(Module):
    """Means over windows that cut each spatial axis into output_size parts, whatever the input."""

    rank: ClassVar[int]
    function: ClassVar[Callable[..., Any]]

    def __init__(self, output_size: int | Sequence[int | None]) -> None:
        self.output_size = output_size

    def forward(self, x: T) -> T:
        """x (N, C, *S) -> (N, C, *output_size). Raises ShapeError for another rank."""
        y: T = type(self).function(x, self.output_size)
        return y

    def extra_repr(self) -> str:
        """The argument, as torch prints it."""
        return f"output_size={self.output_size}"


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """Means over windows that cut L of (N, C, L) into output_size parts; None keeps the size."""

    rank, function = 1, staticmethod(ops.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """Means over windows that cut H and W of (N, C, H, W) into output_size parts; None keeps a size."""

    rank, function = 2, staticmethod(ops.adaptive_avg_pool2d)


class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    """Means over windows that cut D, H and W of (N, C, D, H, W) into output_size parts; None keeps a size."""

    rank, function = 3, staticmethod(ops.adaptive_avg_pool3d)
