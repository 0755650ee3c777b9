"""The tensor descriptor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from lamina.c import cudnn as c
from lamina.cudnn.descriptor import integers
from lamina.cudnn.legacy.base import Descriptor, call
from lamina.cudnn.legacy.flags import DataType, Name, TensorFormat, flag

_MAX = 8  # CUDNN_DIM_MAX


def to_c(numbers: Sequence[int], format: TensorFormat | None, what: str = "dims") -> tuple[int, ...]:
    """Numbers per axis in the format's order -> in C's, which is N, C, spatial for every format.

    Raises TypeError that names `what` they are.
    """
    n = integers(what, numbers)
    return (n[0], n[-1], *n[1:-1]) if format == TensorFormat.CUDNN_TENSOR_NHWC and len(n) > 2 else n


def from_c(numbers: Sequence[int], format: TensorFormat | None) -> tuple[int, ...]:
    """Numbers per axis in C's order -> in the format's."""
    n = tuple(numbers)
    return (n[0], *n[2:], n[1]) if format == TensorFormat.CUDNN_TENSOR_NHWC and len(n) > 2 else n


class TensorSettings(NamedTuple):
    """What `TensorDescriptor.get` returns; dims and strides in the order that the format names."""

    dims: tuple[int, ...]
    data_type: DataType
    format: TensorFormat | None
    strides: tuple[int, ...]


class TensorDescriptor(Descriptor):
    """Sizes, element type and memory order of a tensor (cudnnSetTensorNdDescriptor, ...Ex).

    Args:
        dims: sizes, in the order that the format names: (N, C, H, W) for "nchw" and "nchw_vect_c",
            (N, H, W, C) for "nhwc", with more or fewer spatial axes alike. 2 to 8 axes; pad to 4 with ones.
        data_type: "float32", "float16", "bfloat16", "float64", "int8", "int8x4", …, a dtype or a DataType.
        format: "nchw", "nhwc" or "nchw_vect_c" (with int8x4, uint8x4, int8x32: C counts single channels and
            is a multiple of 4 or 32). None: `strides` alone say where elements are, dims are N, C, spatial.
        strides: elements from one index to the next, per axis in the order of dims; left out: packed.
    """

    kind = "TensorDescriptor"

    def __init__(
        self,
        dims: Sequence[int],
        *,
        data_type: Name = "float32",
        format: Name | None = "nchw",
        strides: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.format: TensorFormat | None = None if format is None else flag(TensorFormat, format)
        kind, sizes = flag(DataType, data_type), to_c(dims, self.format)
        if strides is None and self.format is not None:
            call(c.cudnnSetTensorNdDescriptorEx, self, self.format, kind, len(sizes), sizes)
            return
        if self.format == TensorFormat.CUDNN_TENSOR_NCHW_VECT_C:
            raise ValueError("format='nchw_vect_c' is packed: leave strides out")
        steps = _packed(sizes) if strides is None else to_c(strides, self.format, "strides")
        if len(steps) != len(sizes):
            raise ValueError(f"dims={tuple(dims)} and strides={tuple(strides or ())} differ in length")
        call(c.cudnnSetTensorNdDescriptor, self, kind, len(sizes), sizes, steps)

    @classmethod
    def empty(cls, format: Name | None = "nchw") -> Self:
        """A descriptor without settings, for the library to fill in, in dims of `format`'s order."""
        made = super().empty()
        made.format = None if format is None else flag(TensorFormat, format)
        return made

    @classmethod
    def of(cls, array: Any, *, format: Name | None = None, rank: int = 4) -> Self:
        """The descriptor of an array of any library, with its strides; nothing is copied.

        Args:
            array: NumPy, CuPy, PyTorch, JAX, Numba, … : what has `shape`, `dtype`, and strides if not packed.
            format: names the order of the array's axes ("nhwc"); None is N, C, spatial.
            rank: ones are appended to the sizes up to this many axes (put before C for "nhwc").
        """
        if not (hasattr(array, "shape") and hasattr(array, "dtype")):
            raise TypeError(f"TensorDescriptor.of: an array with shape and dtype is wanted, got {array!r}")
        order = None if format is None else flag(TensorFormat, format)
        dims, steps = [int(v) for v in array.shape], list(_strides(array))
        missing = max(0, rank - len(dims))
        at = len(dims) - (order == TensorFormat.CUDNN_TENSOR_NHWC and len(dims) > 1)
        steps[at:at] = [steps[-1] if steps else 1] * missing
        dims[at:at] = [1] * missing
        return cls(dims, data_type=str(array.dtype).removeprefix("torch."), format=order, strides=steps)

    def get(self) -> TensorSettings:
        """Read from cuDNN (cudnnGetTensorNdDescriptor); the format is the one that was given."""
        found = call(c.cudnnGetTensorNdDescriptor, self, _MAX)
        dims, strides = from_c(found.dimA, self.format), from_c(found.strideA, self.format)
        return TensorSettings(dims, found.dataType, self.format, strides)

    def _shown(self) -> dict[str, Any]:
        settings = self.get()
        shown = settings._asdict()
        packed = self.format is not None and settings.strides == self._packed_strides(settings)
        if packed:
            del shown["strides"]
        return shown

    def _packed_strides(self, settings: TensorSettings) -> tuple[int, ...]:
        if settings.format == TensorFormat.CUDNN_TENSOR_NCHW_VECT_C:  # never otherwise
            return settings.strides
        return _packed(settings.dims)

    @property
    def dims(self) -> tuple[int, ...]:
        """Sizes, in the format's order."""
        return self.get().dims

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements from one index to the next, in the format's order (vectors, for vectorised formats)."""
        return self.get().strides

    @property
    def data_type(self) -> DataType:
        """The element type."""
        return self.get().data_type

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.get().dims)

    @property
    def nbytes(self) -> int:
        """Bytes from the first to the last element (cudnnGetTensorSizeInBytes)."""
        return call(c.cudnnGetTensorSizeInBytes, self)


def _packed(dims: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides."""
    steps = [1]
    for size in reversed(tuple(dims)[1:]):
        steps.append(steps[-1] * size)
    return tuple(reversed(steps))


def _strides(array: Any) -> tuple[int, ...]:
    """Strides in elements, of arrays that tell them in bytes (NumPy, CuPy), in elements (PyTorch) or not."""
    steps = getattr(array, "strides", None)
    if callable(getattr(array, "stride", None)):
        return tuple(int(v) for v in array.stride())
    if steps is None:
        return _packed(array.shape)
    size = array.dtype.itemsize
    return tuple(int(step) // size for step in steps)


def matching(y: TensorDescriptor, dims: Sequence[int], data_type: Name | None = None) -> TensorDescriptor:
    """A packed descriptor of other sizes in `y`'s format and, unless said otherwise, its type."""
    return TensorDescriptor(
        dims,
        data_type=y.data_type if data_type is None else data_type,
        format=TensorFormat.CUDNN_TENSOR_NCHW if y.format is None else y.format,
    )
