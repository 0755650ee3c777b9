"""Memory as a file."""

from __future__ import annotations

import errno
import io
import operator
from typing import Any, SupportsIndex

from lamina.runtime.memory import Buffer
from lamina.runtime.stream import StreamLike, as_stream
from lamina.runtime.transfer import copy, memory_of

_STARTS = {io.SEEK_SET: "start", io.SEEK_CUR: "position", io.SEEK_END: "end"}


class DeviceFile(io.RawIOBase):
    """A buffer of any device as a raw binary file of fixed size: read, write, seek, tell.

    Everything that takes a file works on device memory: ``io.BufferedReader(DeviceFile(b))``,
    ``shutil.copyfileobj``, ``np.save``. Reading stops at the end of the buffer (end of file); writing past it
    raises OSError (no space left) and writes nothing. Closing the file leaves the buffer open.

    Args:
        buffer: the memory: a Buffer, or what `copy` takes (a tensor, an array of another library).
        stream: reads and writes are queued there, after its pending work; by default each is synchronous.
            A read waits for its own bytes either way.
    """

    def __init__(self, buffer: Buffer | Any, stream: StreamLike | None = None) -> None:
        super().__init__()
        self._buffer = memory_of("DeviceFile: buffer", buffer, stream)
        self._stream = None if stream is None else as_stream(stream, self._buffer.device)
        self._position = 0

    def __len__(self) -> int:
        return self._buffer.nbytes

    def readable(self) -> bool:
        """True while the file is open."""
        self._check_open()
        return True

    def writable(self) -> bool:
        """Whether the memory may be written, while the file is open."""
        self._check_open()
        return not self._buffer.read_only

    def seekable(self) -> bool:
        """True while the file is open."""
        self._check_open()
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """Up to `size` bytes from the position on (None and negative numbers: all)."""
        self._check_open()
        rest = self._left()
        data = bytearray(rest if size is None or size < 0 else min(size, rest))
        self.readinto(data)
        return bytes(data)

    def readall(self) -> bytes:
        """All bytes from the position on."""
        return self.read()

    def readinto(self, target: Any, /) -> int:
        """Fill `target` from the position on; returns the number of bytes read, fewer near the end and 0 at it."""
        self._check_open()
        view = memory_of("readinto: target", target, self._stream, writable=True)
        count = min(view.nbytes, self._left())
        if count:
            copy(view, self._buffer.view(self._position, count), count, stream=self._stream)
            if self._stream is not None:
                self._stream.synchronize()
        self._position += count
        return count

    def write(self, data: Any, /) -> int:
        """Write all of `data` at the position; OSError (ENOSPC) if it does not fit, and then nothing is written."""
        if not self.writable():
            raise io.UnsupportedOperation(f"write: {self._buffer!r}")
        view = memory_of("write: data", data, self._stream)
        if view.nbytes > self._left():
            size, place = self._buffer.nbytes, self._position
            raise OSError(
                errno.ENOSPC, f"write of {view.nbytes} bytes at {place} exceeds a buffer of {size} bytes"
            )
        if view.nbytes:
            copy(self._buffer.view(self._position, view.nbytes), view, stream=self._stream)
        self._position += view.nbytes
        return view.nbytes

    def seek(self, offset: SupportsIndex, whence: int = io.SEEK_SET, /) -> int:
        """Move the position; past the end is allowed (with nothing to read and no room to write)."""
        self._check_open()
        if whence not in _STARTS:
            raise ValueError(f"seek: whence must be 0, 1 or 2, got {whence}")
        start = (0, self._position, self._buffer.nbytes)[whence]
        target = start + operator.index(offset)
        if target < 0:
            raise ValueError(f"seek: {offset} from the {_STARTS[whence]} is before the beginning")
        self._position = target
        return target

    def tell(self) -> int:
        """The position, in bytes from the beginning."""
        self._check_open()
        return self._position

    def truncate(self, size: int | None = None, /) -> int:
        """Refused: memory has a fixed size."""
        raise io.UnsupportedOperation("truncate: the size of a buffer is fixed")

    def _left(self) -> int:
        """Bytes from the position to the end."""
        return max(0, self._buffer.nbytes - self._position)

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on a closed DeviceFile")

    def __repr__(self) -> str:
        return f"DeviceFile({self._buffer!r}, position={self._position})"
