"""Operations on arrays of other libraries, without descriptors or a handle of the caller's.

on_arrays(Convolution(pad=1).forward, x=x, w=w, y=out)                 # out = conv(x, w)
on_arrays(Pooling("max", window=2).backward, y=y, dy=dy, x=x, dx=dx, beta=1.0)   # dx += gradient
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from lamina.cudnn.legacy.base import AnyHandle
from lamina.cudnn.legacy.filter import FilterDescriptor
from lamina.cudnn.legacy.flags import Name
from lamina.cudnn.legacy.handles import handle_for
from lamina.cudnn.legacy.tensor import TensorDescriptor
from lamina.runtime.arrays import device_of, share
from lamina.runtime.stream import StreamLike

R = TypeVar("R")
_LEGACY_STREAM = 0


def on_arrays(
    operation: Callable[..., R],
    *,
    handle: AnyHandle = None,
    stream: StreamLike = _LEGACY_STREAM,
    format: Name | None = None,
    **arguments: Any,
) -> R:
    """Run an operation of this package on arrays; results go to the arrays that are its outputs.

    Args:
        operation: a method with keywords in pairs such as x_desc and x, `Convolution(pad=1).forward` for example.
        handle: by default this thread's handle for the arrays' device and `stream`.
        stream: where the work is queued; by default CUDA's legacy default stream, which is also PyTorch's and CuPy's
            unless configured otherwise, so that no synchronization with their work is needed.
        format: names the order of the arrays' axes ("nhwc"); None is N, C, spatial. **arguments: the operation's,
        without the descriptors that follow from the arrays: those of tensors with their strides, those of filters for
        packed arrays. alpha and beta as usual.

    Returns:
        What the operation returns.

    Raises:
        TypeError: the operation has no argument of such a name, or none of the arguments is an array.
        ValueError: a filter whose elements are not packed. CudnnError: the library refuses.
    """
    known = inspect.signature(operation).parameters
    unknown = sorted(set(arguments) - set(known))
    name = getattr(operation, "__qualname__", str(operation))
    if unknown:
        raise TypeError(f"{name} has no argument {unknown[0]!r}; it has {', '.join(list(known)[1:])}")
    arrays = {key: value for key, value in arguments.items() if f"{key}_desc" in known and value is not None}
    for key, array in arrays.items():
        kind = str(known[f"{key}_desc"].annotation)
        if f"{key}_desc" not in arguments:
            arguments[f"{key}_desc"] = _described(key, array, "FilterDescriptor" in kind, format)
    if handle is None:
        if not arrays:
            raise TypeError(f"{name}: none of {sorted(arguments)} is an array whose device could be taken")
        handle = handle_for(device_of(share(next(iter(arrays.values())), stream)), stream)
    return operation(handle, **arguments)


def _described(
    name: str, array: Any, is_filter: bool, format: Name | None
) -> TensorDescriptor | FilterDescriptor:
    tensor = TensorDescriptor.of(array, format=format)
    if not is_filter:
        return tensor
    made = FilterDescriptor(tensor.dims, data_type=tensor.data_type, format=format or "nchw")
    if tensor.strides != TensorDescriptor(made.dims, data_type=made.data_type, format=made.format).strides:
        raise ValueError(
            f"{name}: a filter of sizes {made.dims} must be packed, its strides are {tensor.strides}"
        )
    return made
