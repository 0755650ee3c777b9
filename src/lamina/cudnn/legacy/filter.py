"""The filter descriptor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lamina.c import cudnn as c
from lamina.cudnn.legacy.base import AnyHandle, Descriptor, Memory, call
from lamina.cudnn.legacy.flags import DataType, Name, ReorderType, TensorFormat, flag
from lamina.cudnn.legacy.tensor import TensorDescriptor, from_c, to_c

_MAX = 8  # CUDNN_DIM_MAX


class FilterSettings(NamedTuple):
    """What `FilterDescriptor.get` returns; dims in the order that the format names."""

    dims: tuple[int, ...]
    data_type: DataType
    format: TensorFormat


class FilterDescriptor(Descriptor):
    """Sizes, element type and memory order of a convolution's filter (cudnnSetFilterNdDescriptor).

    Args:
        dims: K outputs, C inputs (of one group), spatial sizes, in the order that the format names:
            (K, C, R, S) for "nchw" and "nchw_vect_c", (K, R, S, C) for "nhwc". 3 to 8 axes.
        data_type: "float32", "float16", … or a DataType; vectorised ones for "nchw_vect_c".
        format: "nchw", "nhwc" or "nchw_vect_c".
    """

    kind = "FilterDescriptor"

    def __init__(self, dims: Sequence[int], *, data_type: Name = "float32", format: Name = "nchw") -> None:
        super().__init__()
        order = flag(TensorFormat, format)
        sizes = to_c(dims, order)
        call(c.cudnnSetFilterNdDescriptor, self, flag(DataType, data_type), order, len(sizes), sizes)

    def get(self) -> FilterSettings:
        """Read from cuDNN (cudnnGetFilterNdDescriptor)."""
        found = call(c.cudnnGetFilterNdDescriptor, self, _MAX)
        return FilterSettings(from_c(found.filterDimA, found.format), found.dataType, found.format)

    @property
    def dims(self) -> tuple[int, ...]:
        """Sizes, in the format's order."""
        return self.get().dims

    @property
    def data_type(self) -> DataType:
        """The element type."""
        return self.get().data_type

    @property
    def format(self) -> TensorFormat:
        """The memory order."""
        return self.get().format

    @property
    def nbytes(self) -> int:
        """Size of the filter in bytes (cudnnGetFilterSizeInBytes)."""
        return call(c.cudnnGetFilterSizeInBytes, self)

    def tensor(self) -> TensorDescriptor:
        """The same memory seen as a tensor: K stands for N."""
        settings = self.get()
        return TensorDescriptor(settings.dims, data_type=settings.data_type, format=settings.format)

    def reorder(
        self,
        handle: AnyHandle,
        *,
        w: Memory,
        reordered_w: Memory,
        bias: Memory = None,
        reordered_bias: Memory = None,
        reorder: Name = "default",
    ) -> None:
        """Order an int8x32 filter (and its bias) ahead of time for tensor cores (cudnnReorderFilterAndBias).

        The convolution that uses it then has reorder="no". Bias is left out where there is none.
        """
        flag_ = flag(ReorderType, reorder)
        with_bias = int(bias is not None)
        call(
            c.cudnnReorderFilterAndBias,
            handle,
            self,
            flag_,
            w,
            reordered_w,
            with_bias,
            bias,
            reordered_bias,
        )
