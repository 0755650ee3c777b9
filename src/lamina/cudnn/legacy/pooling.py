"""Pooling over windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

from lamina.c import cudnn as c
from lamina.cudnn.legacy.base import AnyHandle, Descriptor, Memory, call, spatial_rank, spread
from lamina.cudnn.legacy.flags import Name, NanPropagation, PoolingMode, flag
from lamina.cudnn.legacy.tensor import TensorDescriptor, from_c, matching


class PoolingSettings(NamedTuple):
    """What `Pooling.get` returns."""

    mode: PoolingMode
    window: tuple[int, ...]
    pad: tuple[int, ...]
    stride: tuple[int, ...]
    nan: NanPropagation


class Pooling(Descriptor):
    """Maximum or average over windows of 1 to 6 spatial axes (cudnnSetPoolingNdDescriptor).

    Args:
        mode: "max", "max_deterministic", "average_count_include_padding" (divides by the whole window) or
            "average_count_exclude_padding" (by the part of it that is inside x).
        window: its sizes: one number, or one per axis.
        pad: on both sides of each axis; less than the window.
        stride: left out, the window.
        nan: "not_propagate" or "propagate".
        spatial: how many spatial axes there are if window, pad and stride are single numbers.
    """

    kind = "PoolingDescriptor"
    _rank = 1

    def __init__(
        self,
        mode: Name = "max",
        *,
        window: int | Sequence[int],
        pad: int | Sequence[int] = 0,
        stride: int | Sequence[int] | None = None,
        nan: Name = "not_propagate",
        spatial: int = 2,
    ) -> None:
        super().__init__()
        steps = window if stride is None else stride
        rank = self._rank = spatial_rank(spatial, window=window, pad=pad, stride=steps)
        sizes = [
            spread(name, value, rank) for name, value in (("window", window), ("pad", pad), ("stride", steps))
        ]
        option = flag(NanPropagation, nan)
        call(c.cudnnSetPoolingNdDescriptor, self, flag(PoolingMode, mode), option, rank, *sizes)

    @classmethod
    def empty(cls, spatial: int = 2) -> Self:
        """A descriptor without settings, to be given ones with `spatial` axes."""
        made = super().empty()
        made._rank = spatial
        return made

    def get(self) -> PoolingSettings:
        """Read from cuDNN (cudnnGetPoolingNdDescriptor)."""
        found = call(c.cudnnGetPoolingNdDescriptor, self, self._rank)
        return PoolingSettings(
            found.mode,
            tuple(found.windowDimA),
            tuple(found.paddingA),
            tuple(found.strideA),
            found.maxpoolingNanOpt,
        )

    def output_dims(self, x_desc: TensorDescriptor) -> tuple[int, ...]:
        """Sizes of y in the order of x's format: 1 + floor((H + 2 pad - window) / stride) per axis.

        cudnnGetPoolingNdForwardOutputDim.
        """
        found = call(c.cudnnGetPoolingNdForwardOutputDim, self, x_desc, x_desc.rank)
        return from_c(found, x_desc.format)

    def output(self, x_desc: TensorDescriptor) -> TensorDescriptor:
        """The packed descriptor of y, in x's format and type."""
        return matching(x_desc, self.output_dims(x_desc))

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
        """y = alpha * pool(x) + beta * y (cudnnPoolingForward)."""
        call(c.cudnnPoolingForward, handle, self, alpha, x_desc, x, beta, y_desc, y)

    def backward(
        self,
        handle: AnyHandle,
        *,
        y_desc: TensorDescriptor,
        y: Memory,
        dy_desc: TensorDescriptor,
        dy: Memory,
        x_desc: TensorDescriptor,
        x: Memory,
        dx_desc: TensorDescriptor,
        dx: Memory,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        """dx = alpha * (gradient of pool by x) + beta * dx (cudnnPoolingBackward)."""
        call(
            c.cudnnPoolingBackward, handle, self, alpha, y_desc, y, dy_desc, dy, x_desc, x, beta, dx_desc, dx
        )
