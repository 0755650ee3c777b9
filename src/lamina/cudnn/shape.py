"""Operations that move elements or synchronize: concatenate, reshape, transpose, slice, signal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from lamina.c import cudnn as c
from lamina.cudnn.descriptor import Attribute, Descriptor, attribute, named, tensors
from lamina.cudnn.tensor import Tensor

_KIND = c.cudnnBackendDescriptorType_t


class Concatenate(Descriptor):
    """y = the inputs one after the other along an axis (CUDNN_BACKEND_OPERATION_CONCAT_DESCRIPTOR).

    inplace: the index of the input that is already stored in y; no address is bound to it.

    y is stored in memory even between two operations of one kernel; where some of the inputs are virtual, the others
    are in y already. cuDNN 9.19 also plans graphs that break these rules, but such a kernel has no address for a
    virtual y (it writes anywhere) and reads only the virtual input. Raises ValueError for both.
    """

    kind = _KIND.CUDNN_BACKEND_OPERATION_CONCAT_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "inputs": attribute("OPERATION_CONCAT_INPUT_DESCS", "BACKEND_DESCRIPTOR", many=True),
        "axis": attribute("OPERATION_CONCAT_AXIS"),
        "inplace": attribute("OPERATION_CONCAT_INPLACE_INDEX"),
        "y": attribute("OPERATION_CONCAT_OUTPUT_DESC", "BACKEND_DESCRIPTOR"),
    }

    def __init__(self, inputs: Sequence[Tensor], y: Tensor, axis: int, *, inplace: int | None = None) -> None:
        if isinstance(inputs, Tensor) or not all(isinstance(x, Tensor) for x in inputs):
            raise TypeError(f"Concatenate: inputs must be a sequence of Tensors, got {inputs!r}")
        if y.virtual:
            raise ValueError(
                f"Concatenate: y must be stored in memory, got the virtual {y}; make it without virtual=True"
            )
        real = [i for i, x in enumerate(inputs) if not x.virtual]
        if len(real) < len(inputs) and real not in ([], [inplace]):
            raise ValueError(
                f"Concatenate: beside virtual inputs the others must be stored in y, got inputs {real} in memory and "
                f"inplace={inplace}; put one there and name it by inplace, or concatenate what is in memory"
            )
        super().__init__(inputs=tuple(inputs), axis=axis, inplace=inplace, y=y)


class Reshape(Descriptor):
    """y = x in other sizes (CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR).

    mode: "view_only" (no element moves) or "logical" (by row-major order of the indices; cuDNN 9.22).
    """

    kind = _KIND.CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        **tensors("OPERATION_RESHAPE_", x="XDESC", y="YDESC"),
        "mode": attribute("OPERATION_RESHAPE_MODE", "RESHAPE_MODE", enum=c.cudnnBackendReshapeMode_t),
    }

    def __init__(self, x: Tensor, y: Tensor, *, mode: str | int | None = None) -> None:
        kinds = c.cudnnBackendReshapeMode_t
        kind = None if mode is None else named(kinds, "CUDNN_RESHAPE_", mode, "reshape mode")
        super().__init__(x=x, y=y, mode=kind)


class Transpose(Descriptor):
    """y = x with axes in another order (cuDNN 9.22): axis i of y is axis permutation[i] of x."""

    kind = _KIND.CUDNN_BACKEND_OPERATION_TRANSPOSE_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        **tensors("OPERATION_TRANSPOSE_", x="XDESC", y="YDESC"),
        "permutation": attribute("OPERATION_TRANSPOSE_PERMUTATION", many=True),
    }

    def __init__(self, x: Tensor, y: Tensor, permutation: Sequence[int]) -> None:
        super().__init__(x=x, y=y, permutation=tuple(permutation))


class Slice(Descriptor):
    """y = x[start:limit:step, …], one number per axis (cuDNN 9.22)."""

    kind = _KIND.CUDNN_BACKEND_OPERATION_SLICE_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        **tensors("OPERATION_SLICE_", x="XDESC", y="YDESC"),
        "start": attribute("OPERATION_SLICE_START_INDICES", many=True),
        "limit": attribute("OPERATION_SLICE_LIMIT_INDICES", many=True),
        "step": attribute("OPERATION_SLICE_STRIDES", many=True),
    }

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        start: Sequence[int],
        limit: Sequence[int],
        step: Sequence[int] | None = None,
    ) -> None:
        steps = (1,) * len(tuple(start)) if step is None else tuple(step)
        super().__init__(x=x, y=y, start=tuple(start), limit=tuple(limit), step=steps)


class Signal(Descriptor):
    """Set a flag when x is done, or wait for a flag before y proceeds (GPUs that share a graph).

    Args:
        mode: "set" or "wait".
        flag: int32 tensor of one element. value: the number written or waited for.
        x, y: the same tensor before and after, which orders the operation in the graph.
    """

    kind = _KIND.CUDNN_BACKEND_OPERATION_SIGNAL_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "mode": attribute("OPERATION_SIGNAL_MODE", "SIGNAL_MODE", enum=c.cudnnSignalMode_t),
        "flag": attribute("OPERATION_SIGNAL_FLAGDESC", "BACKEND_DESCRIPTOR"),
        "value": attribute("OPERATION_SIGNAL_VALUE"),
        **tensors("OPERATION_SIGNAL_", x="XDESC", y="YDESC"),
    }

    def __init__(
        self, mode: str | int, flag: Tensor, value: int, *, x: Tensor | None = None, y: Tensor | None = None
    ) -> None:
        kind = named(c.cudnnSignalMode_t, "CUDNN_SIGNAL_", mode, "signal mode")
        super().__init__(mode=kind, flag=flag, value=value, x=x, y=y)
