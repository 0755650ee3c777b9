"""Layout changes, padding and folding; adding, setting and scaling tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from lamina.c import cudnn
from lamina.cudnn.legacy.base import AnyHandle, Descriptor, Memory, call
from lamina.cudnn.legacy.filter import FilterDescriptor
from lamina.cudnn.legacy.flags import FoldingDirection, Name, TensorFormat, flag
from lamina.cudnn.legacy.tensor import TensorDescriptor


class TransformSettings(NamedTuple):
    """What `TensorTransform.get` returns; pads per axis N, C, spatial, folds per spatial axis."""

    format: TensorFormat
    pad_before: tuple[int, ...]
    pad_after: tuple[int, ...]
    fold: tuple[int, ...]
    direction: FoldingDirection


class TensorTransform(Descriptor):
    """Format change, padding and folding of spatial axes into channels (cudnnSetTensorTransformDescriptor).

    Args:
        format: of the result: "nchw" or "nhwc".
        pad_before, pad_after: zeros around each axis, in the order N, C, spatial for every format; negative
            ones cut. Left out: none.
        fold: how much each spatial axis shrinks in favour of C (or grows, unfolding). Left out: ones.
        direction: "fold" (pads first) or "unfold" (cuts by the pads afterwards).
        rank: number of axes if none of the lists says it.
    """

    kind = "TensorTransformDescriptor"
    _rank = 4

    def __init__(
        self,
        *,
        format: Name = "nchw",
        pad_before: Sequence[int] | None = None,
        pad_after: Sequence[int] | None = None,
        fold: Sequence[int] | None = None,
        direction: Name = "fold",
        rank: int = 4,
    ) -> None:
        super().__init__()
        for given, spatial in ((pad_before, 0), (pad_after, 0), (fold, 2)):
            rank = rank if given is None else len(given) + spatial
        self._rank = rank
        lists = (
            ("pad_before", pad_before or (0,) * rank, rank),
            ("pad_after", pad_after or (0,) * rank, rank),
            ("fold", fold or (1,) * (rank - 2), rank - 2),
        )
        for name, numbers, length in lists:
            if len(numbers) != length:
                raise ValueError(f"{name}={tuple(numbers)} must have {length} entries for {rank} axes")
        arrays = [tuple(numbers) for _, numbers, _ in lists]
        order, way = flag(TensorFormat, format), flag(FoldingDirection, direction)
        call(cudnn.cudnnSetTensorTransformDescriptor, self, rank, order, *arrays, way)

    @classmethod
    def empty(cls, rank: int = 4) -> Self:
        """A descriptor without settings, for the library to fill in for `rank` axes."""
        made = super().empty()
        made._rank = rank
        return made

    def get(self) -> TransformSettings:
        """Read from cuDNN (cudnnGetTensorTransformDescriptor)."""
        found = call(cudnn.cudnnGetTensorTransformDescriptor, self, self._rank)
        lists = tuple(found.padBeforeA), tuple(found.padAfterA), tuple(found.foldA)
        return TransformSettings(found.destFormat, *lists, found.direction)

    def destination(self, source: TensorDescriptor) -> TensorDescriptor:
        """The descriptor of what `run` makes of `source` (cudnnInitTransformDest)."""
        made = TensorDescriptor.empty(self.get().format)
        call(cudnn.cudnnInitTransformDest, self, source, made)
        return made

    def run(
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
        """y = alpha * transform(x) + beta * y (cudnnTransformTensorEx)."""
        call(cudnn.cudnnTransformTensorEx, handle, self, alpha, x_desc, x, beta, y_desc, y)

    def run_filter(
        self,
        handle: AnyHandle,
        *,
        x_desc: FilterDescriptor,
        x: Memory,
        y_desc: FilterDescriptor,
        y: Memory,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        """The same for a filter (cudnnTransformFilter)."""
        call(cudnn.cudnnTransformFilter, handle, self, alpha, x_desc, x, beta, y_desc, y)


def transform_tensor(
    handle: AnyHandle,
    *,
    x_desc: TensorDescriptor,
    x: Memory,
    y_desc: TensorDescriptor,
    y: Memory,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> None:
    """y = alpha * x + beta * y for two memory orders of one shape (cudnnTransformTensor); not in place.

    Raises ValueError for float64 to another type, which cuDNN 9.19 takes and answers with zeros.
    """
    if x_desc.data_type == cudnn.CUDNN_DATA_DOUBLE != y_desc.data_type:
        raise ValueError(
            f"transform_tensor: x is float64 and y is not ({y_desc!r}): cuDNN answers with zeros; convert x to y's "
            "type first"
        )
    call(cudnn.cudnnTransformTensor, handle, alpha, x_desc, x, beta, y_desc, y)


def add_tensor(
    handle: AnyHandle,
    *,
    a_desc: TensorDescriptor,
    a: Memory,
    c_desc: TensorDescriptor,
    c: Memory,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> None:
    """c = alpha * a + beta * c; axes of a that have size 1 are repeated (cudnnAddTensor)."""
    call(cudnn.cudnnAddTensor, handle, alpha, a_desc, a, beta, c_desc, c)


def set_tensor(handle: AnyHandle, *, y_desc: TensorDescriptor, y: Memory, value: Any) -> None:
    """Every element of y becomes `value`, a number, converted to y's type (cudnnSetTensor)."""
    call(cudnn.cudnnSetTensor, handle, y_desc, y, value)


def scale_tensor(handle: AnyHandle, *, y_desc: TensorDescriptor, y: Memory, alpha: float) -> None:
    """y = alpha * y (cudnnScaleTensor)."""
    call(cudnn.cudnnScaleTensor, handle, y_desc, y, alpha)
