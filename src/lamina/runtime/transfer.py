"""Copies between host and devices, in every direction; the kind of a copy follows from its operands."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from lamina.runtime import _cuda
from lamina.runtime.device import Device
from lamina.runtime.memory import Buffer, checked_bytes, host_array
from lamina.runtime.stream import Stream

Operand = Any  # a Buffer, or host memory: a NumPy array, bytes, bytearray, memoryview, array.array, ...
_HOST, _UNIFIED = 1, 4  # CU_MEMORYTYPE_...; unified: the driver sees from the address on which device it lies


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of a copy: where it starts, how long it is, and the buffer or object that it belongs to."""

    pointer: int
    nbytes: int
    device: Device
    owner: object


def copy(
    destination: Operand, source: Operand, nbytes: int | None = None, *, stream: Stream | None = None
) -> None:
    """Copy `nbytes` bytes from `source` to `destination`.

    Host to device, device to host, within a device, between devices, within the host: whichever the operands
    are. Without `stream` the copy is done on return. With a stream it is queued there: pinned memory is then
    read or written while the program goes on, pageable memory still costs the wait. Host objects must be
    C-contiguous.

    Args:
        destination: a Buffer or writable host memory.
        source: a Buffer or host memory.
        nbytes: how many; by default all, and then both sides must have the same size.
        stream: the stream to queue it on.

    Raises:
        ValueError: sizes that differ or are exceeded, a closed buffer; TypeError: no memory in an operand.
    """
    to, from_ = _side("destination", destination, writable=True), _side("source", source, writable=False)
    count = _count(to, from_, nbytes)
    if count == 0:
        return
    where = _where("copy", stream, to, from_)
    where.device.platform.copy(to.pointer, from_.pointer, count, where)
    _finish(where, stream, to, from_)


def memset(buffer: Buffer, byte: int, stream: Stream | None = None) -> None:
    """Set every byte of `buffer` to `byte` (0 to 255); done on return unless queued on `stream`."""
    value = operator.index(byte)
    if not 0 <= value <= 255:
        raise ValueError(f"memset: byte must be between 0 and 255, got {byte}")
    if buffer.nbytes == 0:
        return
    side = _side("buffer", buffer, writable=True)
    where = _where("memset", stream, side)
    where.device.platform.fill(side.pointer, value, side.nbytes, where)
    _finish(where, stream, side)


def from_host(source: Operand, device: Device, *, stream: Stream | None = None) -> Buffer:
    """A new buffer on `device` with the bytes of `source` (bytes, NumPy array, ...).

    `stream`: the stream that the buffer is for and the copy is queued on (default: done on return).
    """
    side = _side("source", source, writable=False)
    buffer = device.allocate(side.nbytes, stream=stream)
    copy(buffer, source, stream=stream)
    return buffer


def to_host(buffer: Buffer, *, stream: Stream | None = None) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of `buffer` as a new NumPy array of uint8, queued on `stream` and waited for."""
    array = np.empty(buffer.nbytes, np.uint8)
    copy(array, buffer, stream=stream)
    if stream is not None:
        stream.synchronize()
    return array


def move(buffer: Buffer, device: Device, *, stream: Stream | None = None) -> Buffer:
    """`buffer` itself if it is on `device` already, else a copy of it there."""
    if buffer.device == device:
        return buffer
    moved = device.allocate(buffer.nbytes, stream=stream if stream and stream.device == device else None)
    copy(moved, buffer, stream=stream)
    return moved


def copy_2d(
    destination: Operand,
    source: Operand,
    *,
    width: int,
    height: int,
    destination_pitch: int,
    source_pitch: int,
    stream: Stream | None = None,
) -> None:
    """Copy `height` rows of `width` bytes; row r starts at r * pitch on either side."""
    pitches = {"destination_pitch": destination_pitch, "source_pitch": source_pitch}
    for name, pitch in pitches.items():
        if checked_bytes("copy_2d", name, pitch) < width:
            raise ValueError(f"copy_2d: {name} must be at least width ({width}), got {pitch}")
    copy_3d(
        destination,
        source,
        shape=(1, height, width),
        destination_strides=(height * destination_pitch, destination_pitch),
        source_strides=(height * source_pitch, source_pitch),
        stream=stream,
    )


def copy_3d(
    destination: Operand,
    source: Operand,
    *,
    shape: tuple[int, int, int],
    destination_strides: tuple[int, int],
    source_strides: tuple[int, int],
    stream: Stream | None = None,
) -> None:
    """Copy a block of `shape` (slices, rows, bytes per row) between pitched memories.

    Args:
        destination: a Buffer or writable host memory.
        source: a Buffer or host memory.
        shape: slices, rows per slice, contiguous bytes per row.
        destination_strides: bytes from slice to slice, a multiple of the bytes from row to row.
        source_strides: likewise.
        stream: as for `copy`.

    Raises:
        ValueError: rows or slices that overlap, strides that are no multiples, or a block beyond an operand.
    """
    to, from_ = _side("destination", destination, writable=True), _side("source", source, writable=False)
    _check_block("destination", to, shape, destination_strides)
    _check_block("source", from_, shape, source_strides)
    if 0 in shape:
        return
    where = _where("copy_3d", stream, to, from_)
    if where.device.kind == "cpu":
        _host_block(to, destination_strides, shape)[...] = _host_block(from_, source_strides, shape)
        return
    where.device.make_current()
    _cuda.call("cuMemcpy3DAsync", _block(to, destination_strides, from_, source_strides, shape), where.handle)
    _finish(where, stream, to, from_)


def _check_block(name: str, side: _Side, shape: tuple[int, int, int], strides: tuple[int, int]) -> None:
    slices, rows, width = (checked_bytes("copy_3d", "shape", extent) for extent in shape)
    slice_stride, row_stride = (checked_bytes("copy_3d", f"{name}_strides", stride) for stride in strides)
    if 0 in (slices, rows, width):
        return
    if row_stride < width or (slices > 1 and (slice_stride < rows * row_stride or slice_stride % row_stride)):
        raise ValueError(
            f"copy_3d: {name}_strides {strides} do not fit shape {shape}: a row stride >= width and "
            "a slice stride that is a multiple of it and >= rows * row stride are needed"
        )
    last = (slices - 1) * slice_stride + (rows - 1) * row_stride + width
    if last > side.nbytes:
        raise ValueError(f"copy_3d: the block ends at byte {last}, but {name} has {side.nbytes} bytes")


def _host_block(side: _Side, strides: tuple[int, int], shape: tuple[int, int, int]) -> np.ndarray[Any, Any]:
    return host_array(side.pointer, shape, np.uint8, (*strides, 1), owner=side.owner)


def _block(
    to: _Side,
    to_strides: tuple[int, int],
    from_: _Side,
    from_strides: tuple[int, int],
    shape: tuple[int, int, int],
) -> Any:
    """The driver's description of a 3D copy."""
    block = _cuda.open_cuda().driver.CUDA_MEMCPY3D()
    block.Depth, block.Height, block.WidthInBytes = shape
    for prefix, side, strides in (("src", from_, from_strides), ("dst", to, to_strides)):
        _describe(block, prefix, side, strides)
    return block


def _describe(block: Any, prefix: str, side: _Side, strides: tuple[int, int]) -> None:
    host = side.device.kind == "cpu"
    kind = _cuda.open_cuda().driver.CUmemorytype(_HOST if host else _UNIFIED)
    setattr(block, f"{prefix}MemoryType", kind)
    setattr(block, f"{prefix}Host" if host else f"{prefix}Device", side.pointer)
    setattr(block, f"{prefix}Pitch", strides[1])
    setattr(block, f"{prefix}Height", strides[0] // strides[1])


# --------------------------------------------------------------------------------------------------- operands
def _side(name: str, operand: Operand, *, writable: bool) -> _Side:
    if isinstance(operand, Buffer):
        return _Side(operand.pointer, operand.nbytes, operand.device, operand)
    array = operand if isinstance(operand, np.ndarray) else _as_bytes(name, operand)
    if not array.flags.c_contiguous:
        raise ValueError(
            f"copy: {name} must be C-contiguous, got strides {array.strides} for shape {array.shape}"
        )
    if writable and not array.flags.writeable:
        raise ValueError(f"copy: {name} is read-only")
    return _Side(array.__array_interface__["data"][0], array.nbytes, Device("cpu"), array)


def _as_bytes(name: str, operand: Operand) -> np.ndarray[Any, Any]:
    try:
        view = memoryview(operand)
    except TypeError:
        kind = type(operand).__name__
        raise TypeError(
            f"copy: {name} must be a Buffer or host memory (bytes, NumPy array), got {kind}"
        ) from None
    if not view.c_contiguous:
        raise ValueError(f"copy: {name} must be C-contiguous")
    return np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)


def _count(to: _Side, from_: _Side, nbytes: int | None) -> int:
    if nbytes is None:
        if to.nbytes != from_.nbytes:
            raise ValueError(
                f"copy: destination has {to.nbytes} bytes and source {from_.nbytes}; say how many with nbytes"
            )
        return to.nbytes
    count = checked_bytes("copy", "nbytes", nbytes)
    for name, side in (("destination", to), ("source", from_)):
        if count > side.nbytes:
            raise ValueError(f"copy: nbytes is {count}, but {name} has {side.nbytes} bytes")
    return count


def _where(call: str, stream: Stream | None, *sides: _Side) -> Stream:
    """The stream to work on: `stream`, else the default stream of the first CUDA device, else the CPU's."""
    gpu = next((side.device for side in sides if side.device.kind == "cuda"), None)
    if stream is None:
        return (gpu or Device("cpu")).default_stream
    if gpu is not None and stream.device.kind == "cpu":
        raise ValueError(f"{call}: memory of {gpu} cannot be reached from {stream!r}; give a CUDA stream")
    return stream


def _finish(where: Stream, asked: Stream | None, *sides: _Side) -> None:
    """Wait if no stream was asked for; else keep the buffers' memory until that stream has passed."""
    if asked is None:
        where.synchronize()
        return
    for side in sides:
        if isinstance(side.owner, Buffer):
            side.owner.used_on(where)
