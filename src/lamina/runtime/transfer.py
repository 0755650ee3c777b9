"""Copies between host and devices, in every direction, inferred from the operands."""

from __future__ import annotations

import operator
from math import prod
from typing import Any, NamedTuple

import numpy as np

from lamina.runtime import _cuda, arrays
from lamina.runtime.arena import checked_bytes
from lamina.runtime.compute_device import Device, pinned
from lamina.runtime.memory import Buffer, host_array
from lamina.runtime.platforms import platform_context
from lamina.runtime.stream import Stream, StreamLike, as_stream

Operand = (
    Any  # a Buffer, host memory (NumPy array, bytes, memoryview, …), or an array of CuPy, PyTorch, JAX, …
)
_CPU = Device("cpu")
_HOST, _UNIFIED = 1, 4  # CU_MEMORYTYPE_...; unified: the driver infers the device from the address


class _Side(NamedTuple):
    """One side of a copy: its start, its length, and the buffer or object that it belongs to."""

    pointer: int
    nbytes: int
    device: Device
    owner: object


def copy(
    destination: Operand, source: Operand, nbytes: int | None = None, *, stream: StreamLike | None = None
) -> None:
    """Copy `nbytes` bytes from `source` to `destination`.

    The operands determine the direction: host to device, device to host, within a device, between devices, or
    within the host. Without `stream` the copy is done on return. With a stream it is queued there: asynchronously
    for pinned memory, while pageable memory still blocks. Arrays must be
    C-contiguous; those of other libraries must be kept alive until the stream has passed.

    Args:
        destination: a Buffer, writable host memory, or an array of CuPy, PyTorch, JAX, Numba, ….
        source: likewise.
        nbytes: how many; by default all, and then both sides must have the same size.
        stream: the stream to queue it on, of this or another library.

    Raises:
        ValueError: sizes that differ or are exceeded, a closed buffer; TypeError: an operand that is no memory.
    """
    to = _side("copy: destination", destination, stream, writable=True)
    from_ = _side("copy: source", source, stream, writable=False)
    count = _count(to, from_, nbytes)
    if count == 0:
        return
    where = _where("copy", stream, to, from_)
    where.device.platform.copy(to.pointer, from_.pointer, count, where)
    _finish(where, stream, to, from_)


def memset(buffer: Operand, value: int, stream: StreamLike | None = None, *, bits: int = 8) -> None:
    """Set every word of `buffer` to `value`; done on return unless queued on `stream`.

    Args:
        buffer: a Buffer, writable host memory, or an array of another library.
        value: an unsigned number of `bits` bits.
        stream: as for `copy`.
        bits: of a word: 8, 16 or 32; the memory must be a whole number of words.

    Raises:
        ValueError: a value or size that does not fit the word.
    """
    side = _side("memset: buffer", buffer, stream, writable=True)
    size = _word("memset", value, bits)
    if side.nbytes % size or side.pointer % size:
        raise ValueError(f"memset: {side.nbytes} bytes at {side.pointer:#x} are no words of {bits} bits")
    if side.nbytes == 0:
        return
    where = _where("memset", stream, side)
    if bits == 8:
        where.device.platform.fill(side.pointer, operator.index(value), side.nbytes, where)
    else:
        _fill_rows(side, value, bits, side.nbytes // size, 1, side.nbytes, where)
    _finish(where, stream, side)


def memset_2d(
    buffer: Operand,
    value: int,
    *,
    width: int,
    height: int,
    pitch: int,
    stream: StreamLike | None = None,
    bits: int = 8,
) -> None:
    """Set `height` rows of `width` words to `value`; row r starts at byte r * pitch.

    Args and errors as for `memset`; ValueError also for rows that overlap or end beyond the buffer.
    """
    side = _side("memset_2d: buffer", buffer, stream, writable=True)
    size = _word("memset_2d", value, bits)
    columns, rows = checked_bytes("memset_2d", "width", width), checked_bytes("memset_2d", "height", height)
    if checked_bytes("memset_2d", "pitch", pitch) < columns * size or pitch % size or side.pointer % size:
        raise ValueError(
            f"memset_2d: pitch must hold {columns} words of {bits} bits, and whole ones; got {pitch}"
        )
    if not columns or not rows:
        return
    if (last := (rows - 1) * pitch + columns * size) > side.nbytes:
        raise ValueError(f"memset_2d: the rows end at byte {last}, but the buffer has {side.nbytes} bytes")
    where = _where("memset_2d", stream, side)
    _fill_rows(side, value, bits, columns, rows, pitch, where)
    _finish(where, stream, side)


def _word(call: str, value: int, bits: int) -> int:
    """Bytes of a word, after a check that the value fits."""
    if bits not in (8, 16, 32):
        raise ValueError(f"{call}: bits must be 8, 16 or 32, got {bits}")
    if not hasattr(type(value), "__index__"):
        raise TypeError(f"{call}: value must be a whole number, got {value!r}")
    if not 0 <= operator.index(value) < 1 << bits:
        raise ValueError(f"{call}: value must be between 0 and {(1 << bits) - 1}, got {value}")
    return bits // 8


def _fill_rows(
    side: _Side, value: int, bits: int, width: int, height: int, pitch: int, where: Stream
) -> None:
    """Queue the fill of `height` rows of `width` words."""
    if where.device.kind == "cpu":
        kind = np.dtype(f"u{bits // 8}")
        rows = host_array(side.pointer, (height, width), kind, (pitch, kind.itemsize), owner=side.owner)
        rows[...] = value
        return
    with where.device.current():
        _cuda.call(f"cuMemsetD2D{bits}Async", side.pointer, pitch, value, width, height, where.handle)


def from_host(source: Operand, device: Device, *, stream: StreamLike | None = None) -> Buffer:
    """A new buffer on `device` with the bytes of `source` (bytes, NumPy array, ...).

    `stream`: the stream that the buffer is for and the copy is queued on (default: done on return).
    """
    side = _side("from_host: source", source, stream, writable=False)
    buffer = device.allocate(side.nbytes, stream=stream)
    copy(buffer, source, stream=stream)
    return buffer


def to_host(buffer: Operand, *, stream: StreamLike | None = None) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of `buffer` as a new NumPy array of uint8; queued on `stream`, then synchronized."""
    side = _side("to_host: buffer", buffer, stream, writable=False)
    array = np.empty(side.nbytes, np.uint8)
    if side.nbytes:
        where = _where("to_host", stream, side)
        where.device.platform.copy(array.__array_interface__["data"][0], side.pointer, side.nbytes, where)
        where.synchronize()
    return array


#: Size up to which values are downloaded by cached pinned memory, with fewer driver calls than a copy to memory
#: of any kind.
_SMALL = 1 << 16


def values_of(buffer: Buffer, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The row-major values in GPU memory as a new array, after all pending work of the default stream."""
    platform, nbytes = buffer.device.platform, prod(shape) * dtype.itemsize
    stream = platform.default_stream
    if nbytes > buffer.nbytes:
        raise ValueError(f"values_of: {nbytes} bytes of a buffer of {buffer.nbytes}")
    if not 0 < nbytes <= _SMALL:
        found = np.empty(shape, dtype)
        copy(found, buffer, nbytes)
        return found
    try:
        place, memory = platform.landing.pop()
    except IndexError:
        place = pinned(_SMALL)
        memory = place.array((_SMALL,), np.uint8)
    platform.copy(place.pointer, buffer.pointer, nbytes, stream)
    stream.synchronize()
    found = np.ndarray(shape, dtype, memory).copy()
    platform.landing.append((place, memory))
    return found


def move(buffer: Buffer, device: Device, *, stream: StreamLike | None = None) -> Buffer:
    """`buffer` itself if it is on `device` already, else a copy of it there."""
    if buffer.device == device:
        return buffer
    gpu = device if device.kind == "cuda" else buffer.device
    where = None if stream is None else as_stream(stream, gpu)
    moved = device.allocate(buffer.nbytes, stream=where if where and where.device == device else None)
    copy(moved, buffer, stream=where)
    return moved


def copy_2d(
    destination: Operand,
    source: Operand,
    *,
    width: int,
    height: int,
    destination_pitch: int,
    source_pitch: int,
    stream: StreamLike | None = None,
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
    stream: StreamLike | None = None,
) -> None:
    """Copy a block of `shape` (slices, rows, bytes per row) between pitched memories.

    Args:
        destination: as for `copy`.
        source: as for `copy`.
        shape: slices, rows per slice, contiguous bytes per row.
        destination_strides: bytes from slice to slice and from row to row; the first is a multiple of the second.
        source_strides: likewise.
        stream: as for `copy`.

    Raises:
        ValueError: rows or slices that overlap, strides that are no multiples, or a block beyond an operand.
    """
    to = _side("copy_3d: destination", destination, stream, writable=True)
    from_ = _side("copy_3d: source", source, stream, writable=False)
    _check_block("destination", to, shape, destination_strides)
    _check_block("source", from_, shape, source_strides)
    if 0 in shape:
        return
    where = _where("copy_3d", stream, to, from_)
    if where.device.kind == "cpu":
        _host_block(to, destination_strides, shape)[...] = _host_block(from_, source_strides, shape)
        return
    peers = to.device.kind == from_.device.kind == "cuda" and to.device != from_.device
    block = _block(to, destination_strides, from_, source_strides, shape, peers)
    with where.device.current():
        _cuda.call("cuMemcpy3DPeerAsync" if peers else "cuMemcpy3DAsync", block, where.handle)
    _finish(where, stream, to, from_)


def _check_block(name: str, side: _Side, shape: tuple[int, int, int], strides: tuple[int, int]) -> None:
    if len(shape) != 3 or len(strides) != 2:
        raise ValueError(
            f"copy_3d: shape must be (slices, rows, bytes) and {name}_strides those of slices and rows, got {shape} "
            f"and {strides}"
        )
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
    peers: bool,
) -> Any:
    """The driver's description of a 3D copy, with both contexts if it involves two devices."""
    driver = _cuda.open_cuda().driver
    block = driver.CUDA_MEMCPY3D_PEER() if peers else driver.CUDA_MEMCPY3D()
    if peers:
        block.srcContext, block.dstContext = platform_context(from_.device), platform_context(to.device)
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
def _side(what: str, operand: Operand, stream: StreamLike | None, *, writable: bool) -> _Side:
    """An operand as memory; `stream` (None: its device's default stream) waits for another library's array.

    what: the call and the argument.
    """
    if not isinstance(operand, (Buffer, np.ndarray)) and arrays.is_array(operand):
        operand = _adopted(what, operand, stream, writable)
    if isinstance(operand, Buffer):
        if writable and operand.read_only:
            raise ValueError(f"{what} is read-only: {operand!r}")
        return _Side(operand.pointer, operand.nbytes, operand.device, operand)
    array = operand if isinstance(operand, np.ndarray) else _as_bytes(what, operand)
    if array.dtype.hasobject:
        raise TypeError(
            f"{what} is an array of Python objects ({array.dtype}), whose bytes are references; give numbers"
        )
    if not array.flags.c_contiguous:
        raise ValueError(f"{what} must be C-contiguous, got strides {array.strides} for shape {array.shape}")
    if writable and not array.flags.writeable:
        raise ValueError(f"{what} is read-only")
    return _Side(array.__array_interface__["data"][0], array.nbytes, _CPU, array)


def memory_of(
    what: str, operand: Operand, stream: StreamLike | None = None, *, writable: bool = False
) -> Buffer:
    """The memory of an operand of `copy` as a buffer that keeps it alive. Errors are those of `copy`, and begin with
    `what`: the call and the argument."""
    side = _side(what, operand, stream, writable=writable)
    if isinstance(side.owner, Buffer):
        return side.owner
    read_only = isinstance(side.owner, np.ndarray) and not side.owner.flags.writeable
    return Buffer.borrow(side.pointer, side.nbytes, side.device, side.owner, read_only=read_only)


def _adopted(what: str, operand: Operand, stream: StreamLike | None, writable: bool) -> Buffer:
    try:
        return arrays.as_buffer(operand, stream, write=writable)
    except (TypeError, ValueError, BufferError) as error:
        raise type(error)(f"{what}: {error}") from error


def _as_bytes(what: str, operand: Operand) -> np.ndarray[Any, Any]:
    try:
        view = memoryview(operand)
    except TypeError:
        kind = type(operand).__name__
        raise TypeError(f"{what} must be a Buffer or host memory (bytes, NumPy array), got {kind}") from None
    if not view.c_contiguous:
        raise ValueError(f"{what} must be C-contiguous")
    return np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)


def _count(to: _Side, from_: _Side, nbytes: int | None) -> int:
    if nbytes is None:
        if to.nbytes != from_.nbytes:
            raise ValueError(
                f"copy: destination has {to.nbytes} bytes and source {from_.nbytes}; say how many with nbytes"
            )
        return to.nbytes
    count = nbytes if type(nbytes) is int and nbytes >= 0 else checked_bytes("copy", "nbytes", nbytes)
    for name, side in (("destination", to), ("source", from_)):
        if count > side.nbytes:
            raise ValueError(f"copy: nbytes is {count}, but {name} has {side.nbytes} bytes")
    return count


def _where(call: str, stream: StreamLike | None, *sides: _Side) -> Stream:
    """The stream to work on: `stream`, else the default stream of the first CUDA device, else the CPU's.

    Without `stream` it waits for pending work on the default stream of the other device.
    """
    gpus = [side.device for side in sides if side.device.kind == "cuda"]
    if stream is None and not gpus:
        return _CPU.default_stream
    where = as_stream(stream, gpus[0] if gpus else _CPU)
    if gpus and where.device.kind == "cpu":
        raise ValueError(f"{call}: memory of {gpus[0]} cannot be reached from {where!r}; give a CUDA stream")
    if stream is None and gpus[1:] and gpus[1] != gpus[0]:
        where.wait(gpus[1].default_stream)
    return where


def _finish(where: Stream, asked: StreamLike | None, *sides: _Side) -> None:
    """Wait if no stream was given; else keep the buffers' memory until that stream has passed."""
    if asked is None:
        where.synchronize()
        return
    for side in sides:
        if isinstance(side.owner, Buffer):
            side.owner.used_on(where)
