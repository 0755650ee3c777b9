"""Pooling layers of one to three spatial axes. Arguments as in torch.nn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from lamina import ops
from lamina.nn.module import Module, T
from lamina.nn.parameter import read, write
from lamina.nn.random import Generator, default_generator
from lamina.ops.core import operand
from lamina.ops.primitives.generator import drawn_for
from lamina.ops.primitives.region_pool import fractional_sizes
from lamina.ops.primitives.window import Padding, per_axis
from lamina.tensors import Tensor

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
        """x (N, C, *S) -> (N, C, *O), with return_indices (values, the position of each in *S).

        Raises ShapeError if the window does not fit.
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

    divisor_override: the divisor of sums in place of the window's size (2 and 3 axes).
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
    """Means over windows that divide each spatial axis into output_size parts, whatever its size."""

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
    """Means over windows that divide L of (N, C, L) into output_size parts; None keeps the size."""

    rank, function = 1, staticmethod(ops.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """Means over windows that divide H and W of (N, C, H, W) into output_size parts; None keeps a size."""

    rank, function = 2, staticmethod(ops.adaptive_avg_pool2d)


class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    """Means over windows that divide D, H and W of (N, C, D, H, W) into output_size parts; None keeps a size."""

    rank, function = 3, staticmethod(ops.adaptive_avg_pool3d)


class _LPPool(Module):
    """(The sum of the powers norm_type of each window) to the power 1 / norm_type."""

    rank: ClassVar[int]
    function: ClassVar[Callable[..., Any]]

    def __init__(
        self, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
    ) -> None:
        per_axis(type(self).__name__, "kernel_size", kernel_size, self.rank, 1)
        self.norm_type, self.kernel_size, self.stride, self.ceil_mode = (
            norm_type,
            kernel_size,
            stride,
            ceil_mode,
        )

    def forward(self, x: T) -> T:
        """x (N, C, *S) or (C, *S) -> the same with *O. Raises ShapeError when the window does not fit."""
        y: T = type(self).function(x, self.norm_type, self.kernel_size, self.stride, self.ceil_mode)
        return y

    def extra_repr(self) -> str:
        """The arguments, as torch prints them."""
        text = f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}"
        return f"{text}, ceil_mode={self.ceil_mode}"


class LPPool1d(_LPPool):
    """Power averages of each window of (N, C, L)."""

    rank, function = 1, staticmethod(ops.lp_pool1d)


class LPPool2d(_LPPool):
    """Power averages of each window of (N, C, H, W)."""

    rank, function = 2, staticmethod(ops.lp_pool2d)


class LPPool3d(_LPPool):
    """Power averages of each window of (N, C, D, H, W)."""

    rank, function = 3, staticmethod(ops.lp_pool3d)


class _AdaptiveMaxPool(Module):
    """The largest elements of windows that divide each spatial axis into output_size parts, whatever its size."""

    function: ClassVar[Callable[..., Any]]

    def __init__(self, output_size: int | Sequence[int | None], return_indices: bool = False) -> None:
        self.output_size, self.return_indices = output_size, return_indices

    def forward(self, x: T) -> T:
        """x (N, C, *S) or (C, *S) -> the same with *output_size; with return_indices (values, their positions)."""
        y: T = type(self).function(x, self.output_size, self.return_indices)
        return y

    def extra_repr(self) -> str:
        """The argument, as torch prints it."""
        return f"output_size={self.output_size}"


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """The largest elements of windows that divide L of (N, C, L) into output_size parts."""

    function = staticmethod(ops.adaptive_max_pool1d)


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """The largest elements of windows that divide H and W of (N, C, H, W) into parts; None keeps a size."""

    function = staticmethod(ops.adaptive_max_pool2d)


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """The largest elements of windows that divide D, H and W of (N, C, D, H, W) into parts; None keeps a size."""

    function = staticmethod(ops.adaptive_max_pool3d)


class _FractionalMaxPool(Module):
    """The largest elements of randomly placed windows (Graham 2015), drawn anew at each call, also in inference.

    generator: the generator whose state is used and advanced; by default the one seeded by `manual_seed`.
    _random_samples [N, C, rank]: the draws, to fix them.
    """

    rank: ClassVar[int]
    function: ClassVar[Callable[..., Any]]

    def __init__(
        self,
        kernel_size: Sizes,
        output_size: int | Sequence[int] | None = None,
        output_ratio: float | Sequence[float] | None = None,
        return_indices: bool = False,
        _random_samples: Any = None,
        *,
        generator: Generator | None = None,
    ) -> None:
        self.kernel_size = per_axis(type(self).__name__, "kernel_size", kernel_size, self.rank, 1)
        fractional_sizes(type(self).__name__, (1 << 20,) * self.rank, output_size, output_ratio)
        self.output_size, self.output_ratio = output_size, output_ratio
        self.return_indices = return_indices
        if _random_samples is None:
            self._random_samples = None
        else:  # they are moved and saved with the module
            self.register_buffer("_random_samples", _random_samples)
        self.generator = generator or default_generator

    def forward(self, x: T) -> T:
        """x (N, C, *S) or (C, *S) -> the same with *O; with return_indices (values, the position of each in *S)."""
        given: T = operand(x)
        drawn = self._random_samples
        if drawn is None:
            lead: tuple[int, ...] = (1,) * (self.rank + 2 - given.ndim)
            state = read(self.generator.state)
            if isinstance(given, Tensor) and isinstance(state, Tensor):
                state = state.to(given.device)
            shape = (*lead, *given.shape[: 2 - len(lead)], self.rank)
            drawn, after = ops.random_uniform(drawn_for(state, given), shape, dtype=given.dtype)
            write(self.generator.state, after)
        y: T = type(self).function(
            given, self.kernel_size, self.output_size, self.output_ratio, self.return_indices, drawn
        )
        return y

    def extra_repr(self) -> str:
        """The arguments."""
        return f"kernel_size={self.kernel_size}, output_size={self.output_size}, output_ratio={self.output_ratio}"


class FractionalMaxPool2d(_FractionalMaxPool):
    """The largest elements of randomly placed windows of (N, C, H, W)."""

    rank, function = 2, staticmethod(ops.fractional_max_pool2d)


class FractionalMaxPool3d(_FractionalMaxPool):
    """The largest elements of randomly placed windows of (N, C, D, H, W)."""

    rank, function = 3, staticmethod(ops.fractional_max_pool3d)


class _MaxUnpool(Module):
    """The elements at the positions from a max pool with return_indices; zeros elsewhere."""

    rank: ClassVar[int]
    function: ClassVar[Callable[..., Any]]

    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0) -> None:
        name = type(self).__name__
        self.kernel_size = per_axis(name, "kernel_size", kernel_size, self.rank, 1)
        self.stride = self.kernel_size if stride is None else per_axis(name, "stride", stride, self.rank, 1)
        self.padding = per_axis(name, "padding", padding, self.rank, 0)

    def forward(self, x: T, indices: Any, output_size: Sequence[int] | None = None) -> T:
        """x and indices (N, C, *S) or (C, *S) -> the same with *O; output_size: selects among the possible sizes."""
        y: T = type(self).function(x, indices, self.kernel_size, self.stride, self.padding, output_size)
        return y

    def extra_repr(self) -> str:
        """The arguments, as torch prints them."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool1d(_MaxUnpool):
    """The inverse of MaxPool1d, except for the elements that it dropped."""

    rank, function = 1, staticmethod(ops.max_unpool1d)


class MaxUnpool2d(_MaxUnpool):
    """The inverse of MaxPool2d, except for the elements that it dropped."""

    rank, function = 2, staticmethod(ops.max_unpool2d)


class MaxUnpool3d(_MaxUnpool):
    """The inverse of MaxPool3d, except for the elements that it dropped."""

    rank, function = 3, staticmethod(ops.max_unpool3d)
