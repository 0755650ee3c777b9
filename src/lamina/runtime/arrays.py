"""Arrays of other libraries: NumPy, CuPy, PyTorch, JAX, Numba, … as memory with a shape, without a copy.

Arrays are shared by DLPack, or else by the CUDA array interface (version 3). Both tell the stream on which the values
are still being computed: the reading stream waits for that one, without blocking the host.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from lamina.runtime import _cuda, dlpack
from lamina.runtime.compute_device import Device
from lamina.runtime.dlpack import Shared
from lamina.runtime.memory import Buffer
from lamina.runtime.stream import StreamLike, as_stream

_DEVICES = {
    dlpack.CPU: "cpu",
    dlpack.CUDA_HOST: "cpu",
    dlpack.CUDA: "cuda:{}",
    dlpack.CUDA_MANAGED: "cuda:{}",
}
_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL


def is_array(value: object) -> bool:
    """Whether `value` supports DLPack or the CUDA array interface."""
    # On the type: a property may work only for some values (PyTorch's for CUDA tensors).
    kind = type(value)
    return hasattr(kind, "__dlpack__") or hasattr(kind, "__cuda_array_interface__")


def share(array: Any, stream: StreamLike | None = None, *, write: bool = False) -> Shared:
    """The memory of another library's array: address, shape, strides, dtype and device.

    Args:
        array: supports DLPack or the CUDA array interface.
        stream: the stream that will read its values: it waits for work that the array's own library has queued.
            Default: the default stream of the array's device.
        write: whether it will be written; then read-only memory and copies are refused.

    Raises:
        TypeError: not an array, or an unknown dtype or device.
        BufferError: its library refuses (PyTorch: a tensor that requires a gradient), or it is read-only.
    """
    if hasattr(array, "__dlpack__"):
        shared = dlpack.adopt(_capsule(array, stream, write))
    elif hasattr(array, "__cuda_array_interface__"):
        shared = _by_interface(array, stream)
    else:
        raise TypeError(
            f"{type(array).__name__} is not an array: it has neither __dlpack__ nor __cuda_array_interface__"
        )
    if write and shared.read_only:
        raise BufferError(f"this {type(array).__name__} of shape {shared.shape} is read-only")
    return shared


def _capsule(array: Any, stream: StreamLike | None, write: bool) -> Any:
    """A capsule, versioned if the library supports it; `stream` waits for the array's values."""
    kind, index = array.__dlpack_device__()
    asked: dict[str, Any] = {}
    if kind in (dlpack.CUDA, dlpack.CUDA_MANAGED):
        asked["stream"] = as_stream(stream, Device(f"cuda:{index}")).handle
    newer = {"max_version": (1, 0)} | ({"copy": False} if write else {})
    with contextlib.suppress(TypeError):  # before DLPack 1.0 there was only `stream`
        return array.__dlpack__(**asked, **newer)
    return array.__dlpack__(**asked)


def _by_interface(array: Any, stream: StreamLike | None) -> Shared:
    facts = array.__cuda_array_interface__
    if facts.get("mask") is not None:
        raise TypeError("__cuda_array_interface__: masked arrays are not understood")
    kind = np.dtype(facts["typestr"])
    if kind.name not in dlpack.TYPES or kind.byteorder == ">":
        raise TypeError(f"__cuda_array_interface__: type {facts['typestr']!r} is not known")
    strides = facts.get("strides")
    if strides is not None and any(step % kind.itemsize for step in strides):
        raise TypeError(
            f"__cuda_array_interface__: strides {strides} are no multiples of {kind.itemsize} bytes"
        )
    pointer, read_only = facts["data"]
    steps = None if strides is None else tuple(step // kind.itemsize for step in strides)
    device = Device(f"cuda:{_ordinal(pointer)}")
    _order(as_stream(stream, device), facts, device)
    shape = tuple(facts["shape"])
    return Shared(pointer, shape, steps, kind.name, dlpack.CUDA, device.index, array, bool(read_only))


def _ordinal(pointer: int) -> int:
    """The number of the device that `pointer` belongs to (0 for an array without elements)."""
    if not pointer:
        return 0
    attribute = _cuda.open_cuda().driver.CUpointer_attribute(_ORDINAL)
    with Device("cuda").current():
        return int(_cuda.call("cuPointerGetAttribute", attribute, pointer))


def _order(reader: Any, facts: dict[str, Any], device: Device) -> None:
    """Make `reader` wait for the array's stream; before version 3 none is named: wait for the whole device."""
    if "stream" not in facts:
        device.synchronize()
    elif facts["stream"] is not None:
        reader.wait(as_stream(facts["stream"], device))


def device_of(shared: Shared) -> Device:
    """The device of the memory. TypeError unless it is the CPU or a CUDA device."""
    name = _DEVICES.get(shared.device_type)
    if name is None:
        raise TypeError(f"DLPack device type {shared.device_type} is neither CPU nor CUDA")
    return Device(name.format(shared.device_id))


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype for a DLPack or ml_dtypes name of an element type ("float32", "bfloat16").

    Raises TypeError for others.
    """
    if name not in dlpack.TYPES:
        raise TypeError(f"dtype {name!r} is not known; it must be one of {', '.join(dlpack.TYPES)}")
    return np.dtype(getattr(ml_dtypes, name, name))


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a C-ordered array."""
    steps, step = [], 1
    for extent in reversed(shape):
        steps.append(step)
        step *= max(1, extent)
    return tuple(reversed(steps))


def is_dense(shared: Shared) -> bool:
    """Whether the elements are contiguous in C order."""
    if shared.strides is None or 0 in shared.shape:
        return True
    pairs = zip(shared.shape, shared.strides, row_major(shared.shape), strict=True)
    return all(extent == 1 or step == wanted for extent, step, wanted in pairs)


def as_buffer(array: Any, stream: StreamLike | None = None, *, write: bool = False) -> Buffer:
    """The memory of a C-contiguous array as a Buffer that keeps the array alive.

    Arguments and errors are those of `share`, and ValueError for one that is not contiguous.
    """
    if isinstance(array, Buffer):
        return array
    shared = share(array, stream, write=write)
    if not is_dense(shared):
        raise ValueError(
            f"the array must be C-contiguous, got strides {shared.strides} (elements) for shape {shared.shape}"
        )
    return borrow(shared)


def borrow(shared: Shared) -> Buffer:
    """A buffer over shared memory, from its first element to its last (for strides that are not negative)."""
    size = numpy_dtype(shared.dtype).itemsize
    steps = row_major(shared.shape) if shared.strides is None else shared.strides
    if any(step < 0 for step in steps):
        raise ValueError(f"negative strides {steps} are not understood; make the array contiguous first")
    reach = sum((extent - 1) * step for extent, step in zip(shared.shape, steps, strict=True)) + 1
    nbytes = 0 if 0 in shared.shape else reach * size
    return Buffer.borrow(shared.pointer, nbytes, device_of(shared), shared.owner, read_only=shared.read_only)
