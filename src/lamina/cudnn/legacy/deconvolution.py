"""Deconvolution (transposed convolution) as a descriptor of its own."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.cudnn.legacy.base import spread
from lamina.cudnn.legacy.convolution import ConvolutionBase
from lamina.cudnn.legacy.filter import FilterDescriptor
from lamina.cudnn.legacy.flags import Name
from lamina.cudnn.legacy.tensor import TensorDescriptor, from_c, matching, to_c


class Deconvolution(ConvolutionBase):
    """A convolution run the other way: forward is its data gradient, the data gradient its forward.

    x is N×C×H×W, w is C×(K/groups)×R×S (the filter's outputs are x's channels), y is N×K×P×Q with
    P = (H - 1) * stride - 2 * pad + (R - 1) * dilation + 1 + output_padding.

    Arguments as `Convolution`, and the operations take algorithms of the C call that they make: `forward`
    those of "backward_data", `backward_data` those of "forward".
    """

    _transposed = True

    def output_dims(
        self,
        x_desc: TensorDescriptor,
        w_desc: FilterDescriptor,
        *,
        output_padding: int | Sequence[int] = 0,
    ) -> tuple[int, ...]:
        """Sizes of y, in the order of x's format.

        Args:
            x_desc, w_desc: input and filter.
            output_padding: what is added to y's spatial sizes on one side, less than the stride: which of the
                sizes that a convolution takes to x's is meant.

        Raises:
            ValueError: formats that differ, channels that do not fit, sizes below 1, too much output padding.
        """
        settings, x, w = self.get(), to_c(x_desc.dims, x_desc.format), to_c(w_desc.dims, w_desc.format)
        if x_desc.format is not None and x_desc.format != w_desc.format:
            raise ValueError(f"x_desc is {x_desc.format.name} and w_desc {w_desc.format.name}")
        if len(x) != len(w) or len(x) != len(settings.pad) + 2:
            raise ValueError(f"x {x}, w {w} and {len(settings.pad)} spatial axes do not fit together")
        if x[1] != w[0]:
            raise ValueError(f"x has {x[1]} channels and w takes {w[0]} (x {x}, w {w})")
        extra = spread("output_padding", output_padding, len(settings.pad))
        sizes = [
            (size - 1) * stride - 2 * pad + (window - 1) * dilation + 1 + more
            for size, window, pad, stride, dilation, more in zip(
                x[2:], w[2:], settings.pad, settings.stride, settings.dilation, extra, strict=True
            )
        ]
        for more, stride, dilation in zip(extra, settings.stride, settings.dilation, strict=True):
            if not 0 <= more < max(stride, dilation):
                raise ValueError(f"output_padding={extra} must be less than stride {settings.stride}")
        if min(sizes) < 1:
            raise ValueError(f"y would have sizes {tuple(sizes)} (x {x}, w {w}, pad {settings.pad})")
        return from_c((x[0], w[1] * settings.groups, *sizes), x_desc.format)

    def output(
        self,
        x_desc: TensorDescriptor,
        w_desc: FilterDescriptor,
        *,
        output_padding: int | Sequence[int] = 0,
        data_type: Name | None = None,
    ) -> TensorDescriptor:
        """The packed descriptor of y, in x's format and, unless said otherwise, its type."""
        return matching(x_desc, self.output_dims(x_desc, w_desc, output_padding=output_padding), data_type)

    def bias_dims(self, w_desc: FilterDescriptor) -> tuple[int, ...]:
        """Sizes of the bias for a filter: 1, K, 1, 1 in the order of its format."""
        dims = to_c(w_desc.dims, w_desc.format)
        return from_c((1, dims[1] * self.get().groups, *(1,) * (len(dims) - 2)), w_desc.format)
