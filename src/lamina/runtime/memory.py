"""Memory: buffers, the pieces of an arena's memory, and how the CPU reads, fills and lends them."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Sequence
from math import prod
from types import TracebackType
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from lamina.runtime import dlpack
from lamina.runtime.arena import MAX_BYTES, Arena, Bin, Block, Lease, checked_bytes
from lamina.runtime.stream import as_stream
from lamina.runtime.uncopied import Uncopied

if TYPE_CHECKING:
    from lamina.runtime.compute_device import Device
    from lamina.runtime.stream import OwnedQueue, Stream


class _Loan(Lease):
    """Ownership of a block that returns to a shelf.

    It alone returns the block: of garbage in a cycle every finalizer runs, so that a lease inside the loan would
    return the block to the arena as well.
    """

    __slots__ = ("shelf",)

    def __init__(self, shelf: Shelf, block: Block, home: Bin) -> None:
        super().__init__(block, home)
        self.shelf = shelf

    @property
    def queue(self) -> Stream | OwnedQueue:
        """The queue of the shelf's stream."""
        return self.shelf.stream.queue

    def __del__(self) -> None:
        # As for any lease, no lock is taken. If two threads meet here, one block too many on the shelf does no harm.
        if not self.users and len(self.shelf.free) < self.shelf.most:
            self.shelf.free.append((self.block, self.home))
        else:
            super().__del__()


class Shelf:
    """Blocks of one size for reuse: for repeated allocations on one stream, such as the results of
    a program. Lock-free: a few freed blocks stay here, and count as in use in the arena.

    Blocks used on other streams return to the arena, and so do large ones, which others may need.
    """

    _MOST, _LARGE = 4, 1 << 20

    def __init__(self, arena: Arena, device: Device, nbytes: int, stream: Stream) -> None:
        self._arena, self._device, self._nbytes, self.stream = arena, device, nbytes, stream
        self._host = device.kind == "cpu"
        self.free: list[tuple[Block, Bin]] = []
        self.most = self._MOST if nbytes <= self._LARGE else 0

    def take(self) -> Buffer:
        """A buffer. Raises OutOfMemoryError."""
        try:
            block, home = self.free.pop()
        except IndexError:
            if not self._nbytes:
                return Buffer(0, 0, self._device, None, host=self._host)
            home = self._arena.bin_of(self._nbytes, self.stream)
            block = self._arena.take(home, self._nbytes)
        return Buffer(block.pointer, self._nbytes, self._device, _Loan(self, block, home), host=self._host)

    def __del__(self) -> None:
        self.most = 0  # loans that are collected together with the shelf return to the arena
        for block, home in self.free:
            home.put_back(block)


class Supply:
    """A source of buffers of one size for one stream: the common lookups are done once."""

    __slots__ = ("_arena", "_device", "_home", "_host", "_nbytes")

    def __init__(self, arena: Arena, device: Device, nbytes: int, stream: Stream, *, host: bool) -> None:
        self._arena, self._device, self._nbytes, self._host = arena, device, nbytes, host
        self._home = arena.bin_of(nbytes, stream) if nbytes else None

    def take(self) -> Buffer:
        """A buffer. Raises OutOfMemoryError."""
        if self._home is None:
            return Buffer(0, 0, self._device, None, self._host)
        lease = self._arena.lease(self._home, self._nbytes)
        return Buffer(lease.block.pointer, self._nbytes, self._device, lease, self._host)


class Buffer(Uncopied):
    """A piece of memory of one device: ``pointer`` (address as an int, 0 for no bytes; ValueError once it is closed),
    ``nbytes``, ``device``.

    It owns its memory from creation: the memory returns to its arena when the buffer and all its views are
    closed or garbage-collected. ``host`` says whether the CPU may access the address, ``read_only`` whether
    nobody may write (borrowed bytes, read-only files, views that others share).
    """

    __slots__ = ("__weakref__", "_owner", "device", "host", "nbytes", "pinned", "pointer", "read_only")

    def __init__(
        self,
        pointer: int,
        nbytes: int,
        device: Device,
        owner: object,
        host: bool,
        *,
        pinned: bool = False,
        read_only: bool = False,
    ) -> None:
        self.pointer = pointer
        self._owner = owner
        self.nbytes = nbytes
        self.device = device
        self.host = host
        self.pinned = pinned
        self.read_only = read_only

    @classmethod
    def borrow(
        cls, pointer: int, nbytes: int, device: Device, owner: object = None, *, read_only: bool = False
    ) -> Buffer:
        """A buffer on memory allocated elsewhere; `owner` is kept alive with it."""
        size = checked_bytes("borrow", "nbytes", nbytes)
        host = device.kind == "cpu"
        return cls(operator.index(pointer), size, device, owner, host=host, read_only=read_only)

    if not TYPE_CHECKING:  # to a type checker it would mean that every attribute exists

        def __getattr__(self, name: str) -> Any:
            """Report a buffer without its pointer as closed: ops read it too often for a property."""
            if name == "pointer":
                raise ValueError(f"this buffer of {self.nbytes} bytes on {self.device} is closed")
            return object.__getattribute__(self, name)

    @property
    def borrowed(self) -> bool:
        """Whether the memory was allocated elsewhere, so that it may be written without this library's knowledge."""
        return not isinstance(self._owner, Lease)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        try:
            _ = self.pointer
        except ValueError:
            return True
        return False

    def close(self) -> None:
        """Release the memory; it is freed once all views are closed as well. Idempotent."""
        if not self.closed:
            del self.pointer
        self._owner = None

    def view(self, offset: int, nbytes: int) -> Buffer:
        """`nbytes` bytes from `offset` on, as a buffer that shares ownership."""
        start, size = checked_bytes("view", "offset", offset), checked_bytes("view", "nbytes", nbytes)
        if start + size > self.nbytes:
            raise ValueError(
                f"view: bytes {start} to {start + size} are not within a buffer of {self.nbytes} bytes"
            )
        return Buffer(
            self.pointer + start,
            size,
            self.device,
            self._owner,
            host=self.host,
            pinned=self.pinned,
            read_only=self.read_only,
        )

    def used_on(self, *streams: Stream) -> None:
        """Declare that work on `streams` uses this memory, so that it is not reused before they have passed.

        Needed only for streams other than the one the buffer was allocated for.
        """
        lease = self._owner
        if isinstance(lease, Lease):
            for stream in streams:
                if stream.queue is not lease.queue:
                    lease.users.add(stream)

    def array(self, shape: Sequence[int], dtype: Any, offset: int = 0) -> np.ndarray[Any, np.dtype[Any]]:
        """A NumPy array on this host-accessible memory; it shares ownership, and is writable if the memory is.

        Args:
            shape: its shape; C order.
            dtype: its NumPy dtype (ml_dtypes too).
            offset: its start, in bytes.
        """
        if not self.host:
            raise ValueError(
                f"array: {self.device} memory is not accessible to the CPU; copy it with to_host"
            )
        owner = self._owner
        if (
            type(owner) is np.ndarray
            and owner.nbytes == self.nbytes
            and owner.shape == shape
            and owner.dtype == dtype
            and owner.flags.c_contiguous
            and not offset
            and not self.read_only
        ):
            return owner.view()  # the very array that was borrowed
        part = self.view(offset, prod(map(operator.index, shape)) * np.dtype(dtype).itemsize)
        found = host_array(part.pointer, shape, dtype, owner=part._owner)
        if self.read_only:
            found.flags.writeable = False
        return found

    # ---- other libraries: a flat array of bytes
    def __dlpack_device__(self) -> tuple[int, int]:
        return (dlpack.CPU if self.device.kind == "cpu" else dlpack.CUDA, self.device.index)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"__dlpack__: {self!r} can be shared without a copy only")
        if self.device.kind == "cuda":
            lend(self, stream)
        where = self.__dlpack_device__()
        owner = (self, self._owner)
        return dlpack.export(
            self.pointer,
            (self.nbytes,),
            (1,),
            "uint8",
            where,
            owner,
            max_version=max_version,
            read_only=self.read_only,
        )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.device.kind != "cuda":
            raise AttributeError(f"__cuda_array_interface__: the buffer is on {self.device}")
        return {
            "shape": (self.nbytes,),
            "strides": None,
            "typestr": "|u1",
            "data": (self.pointer, self.read_only),
            "version": 3,
            "stream": self.device.default_stream.handle,
        }

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    def __len__(self) -> int:
        return self.nbytes

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        where = "closed" if self.closed else f"{self.pointer:#x}"
        kind = (", pinned" if self.pinned else "") + (", read-only" if self.read_only else "")
        return f"Buffer({self.device}, {self.nbytes} bytes at {where}{kind})"


def lend(buffer: Buffer, stream: Any) -> None:
    """Let the consumer's `stream` (as passed to `__dlpack__`) use GPU memory.

    It waits for the default stream of the device, and the memory is not reused before it has passed. None means
    the legacy default stream, -1 that the consumer orders its work itself.
    """
    if stream == 0:
        raise ValueError(
            "__dlpack__: stream=0 is ambiguous; 1 is the legacy default stream, 2 the thread's own"
        )
    if stream == -1:
        return
    device = buffer.device
    with device.current():  # whose legacy default stream is meant
        reader = as_stream(0 if stream is None else stream, device)
        reader.wait(device.default_stream)
    buffer.used_on(reader)


def allocate(
    arena: Arena,
    device: Device,
    nbytes: SupportsIndex,
    stream: Stream | None,
    *,
    host: bool,
    pinned: bool = False,
) -> Buffer:
    """A buffer of `nbytes` from `arena`; zero bytes give address 0 and allocate nothing."""
    size = (
        nbytes
        if type(nbytes) is int and 0 < nbytes <= MAX_BYTES
        else checked_bytes("allocate", "nbytes", nbytes)
    )
    if size == 0:
        return Buffer(0, 0, device, None, host=host, pinned=pinned)
    lease = arena.allocate(size, stream)
    return Buffer(lease.block.pointer, size, device, lease, host=host, pinned=pinned)


class _Span:
    """Exposes host memory to NumPy; it lives as long as the array does."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, pointer: int, nbytes: int, owner: object) -> None:
        self.__array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (pointer, False),
            "version": 3,
        }
        self.owner = owner


def host_array(
    pointer: int,
    shape: Sequence[int],
    dtype: Any,
    strides: Sequence[int] | None = None,
    *,
    owner: object = None,
) -> np.ndarray[Any, np.dtype[Any]]:
    """A NumPy array on host memory at address `pointer`, without owning it.

    Args:
        pointer: address of element (0, ..., 0).
        shape: its shape.
        dtype: its NumPy dtype (ml_dtypes too).
        strides: in bytes, as in NumPy, negative ones too; None: C order.
        owner: kept alive as long as the array (or a view of it).

    Raises:
        ValueError: a negative extent, strides of another length than shape, or a null pointer with elements.
    """
    kind, extents = np.dtype(dtype), tuple(shape)
    if kind.hasobject:
        raise TypeError(
            f"host_array: dtype must be of numbers, got {kind}: bytes in memory are no Python objects"
        )
    if extents and min(extents) < 0:
        raise ValueError(f"host_array: shape must not be negative, got {extents}")
    if strides is not None and len(strides) != len(extents):
        raise ValueError(f"host_array: shape {extents} and strides {tuple(strides)} differ in length")
    if 0 in extents:
        return np.empty(extents, kind)
    if pointer == 0:
        raise ValueError(f"host_array: null pointer for an array of shape {extents}")
    low, high = _extent(extents, kind.itemsize, strides)
    memory = np.asarray(_Span(pointer + low, high - low, owner))
    return np.ndarray(extents, kind, memory, -low, None if strides is None else tuple(strides))


def _extent(shape: tuple[int, ...], itemsize: int, strides: Sequence[int] | None) -> tuple[int, int]:
    """First and one-past-last byte that an array touches, relative to element (0, ..., 0)."""
    if strides is None:
        return 0, prod(map(int, shape)) * itemsize
    low, high = 0, itemsize
    for extent, stride in zip(shape, strides, strict=True):
        reach = (extent - 1) * stride
        if reach < 0:
            low += reach
        else:
            high += reach
    return low, high


#: Copies of fewer bytes take less time than releasing and reacquiring the GIL.
_SHORT = 1 << 14
_move = ctypes.CDLL(None).memmove  # unlike ctypes.memmove it releases the GIL
_move.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_move.restype = ctypes.c_void_p
_fill = ctypes.CDLL(None).memset
_fill.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
_fill.restype = ctypes.c_void_p


def host_copy(destination: int, source: int, nbytes: int) -> None:
    """Copy `nbytes` within host memory; the two may overlap."""
    if nbytes < _SHORT:
        ctypes.memmove(destination, source, nbytes)
    else:
        _move(destination, source, nbytes)


def host_fill(destination: int, byte: int, nbytes: int) -> None:
    """Set `nbytes` of host memory to `byte`."""
    _fill(destination, byte, nbytes)
