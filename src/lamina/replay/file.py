"""One file for a saved plan: a header in JSON, then bytes; a changed bit anywhere is refused.

    16 bytes   "LAMINA PLAN" and the format
     8 bytes   length of the header
    32 bytes   its SHA-256
               the header
               zeros up to a multiple of 4096
               the bytes, whose SHA-256 stand in the header for each 4 MiB

Nothing in it is executed while it is read, and sizes are bounded by the file's own.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lamina._json import parse_json
from lamina.replay.errors import PlanFileError
from lamina.runtime import usable_cores, write_atomically

Array = np.ndarray[Any, Any]

MAGIC = b"LAMINA PLAN\x00\x00\x00\x00\x01"
_HEAD = len(MAGIC) + 8 + 32
_PAGE = 4096
#: Bytes per checksum.
CHUNK = 4 << 20
#: The alignment of parts: as kernels and libraries require of addresses.
ALIGNMENT = 256
_MOST_THREADS = 8


class Parts:
    """Bytes to be written to a file, identical contents once: `add` returns their future place."""

    def __init__(self) -> None:
        self.pieces: list[memoryview] = []
        self.nbytes = 0
        self._known: dict[bytes, int] = {}

    def add(self, data: Any) -> int:
        """The offset of bytes-like data, or of an array's, of any dtype, in row-major order."""
        if isinstance(data, np.ndarray):  # NumPy has no memoryview of bfloat16
            data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        view = memoryview(data).cast("B")
        key = hashlib.sha256(view).digest() + len(view).to_bytes(8, "little")
        if key not in self._known:
            self._known[key] = self.nbytes
            self.pieces += [view, memoryview(bytes(-len(view) % ALIGNMENT))]
            self.nbytes += len(view) + -len(view) % ALIGNMENT
        return self._known[key]


def write(path: str | Path, header: Mapping[str, Any], parts: Parts) -> None:
    """Write a file atomically. Raises OSError."""
    facts = {**header, "bytes": parts.nbytes, "chunks": list(_digests(parts))}
    text = json.dumps(facts, separators=(",", ":")).encode()
    head = MAGIC + len(text).to_bytes(8, "little") + hashlib.sha256(text).digest() + text
    write_atomically(path, [head, bytes(-len(head) % _PAGE), *parts.pieces])


def _digests(parts: Parts) -> Iterator[str]:
    state, room = hashlib.sha256(), CHUNK
    for piece in parts.pieces:
        while len(piece):
            state.update(piece[:room])
            taken = min(room, len(piece))
            piece, room = piece[taken:], room - taken
            if not room:
                yield state.hexdigest()
                state, room = hashlib.sha256(), CHUNK
    if room < CHUNK:
        yield state.hexdigest()


class Reading:
    """A file that is being read: its header at once, its bytes by background threads.

    header: the JSON object. memory: the bytes, complete and checked once `finish` has returned.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = path
        self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self.header, self._start = self._read_header()
            nbytes, chunks = self._sizes()
            held = np.empty(nbytes + ALIGNMENT, np.uint8)
            first = -held.ctypes.data % ALIGNMENT
            self.memory: Array = held[first : first + nbytes]
        except BaseException:
            os.close(self._handle)
            raise
        self._wrong: list[str] = []
        self._left: Iterator[tuple[int, str]] = iter(list(enumerate(chunks)))
        self._lock = threading.Lock()
        count = min(len(chunks), max(1, usable_cores() - 1), _MOST_THREADS)
        self._threads = [threading.Thread(target=self._read_chunks, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Wait for the bytes. Raises PlanFileError if they were modified."""
        self._read_chunks()  # chunks that no other thread has begun
        self.close()
        if self._wrong:
            raise PlanFileError(f"{self.path}: {self._wrong[0]}")

    def close(self) -> None:
        """Stop reading. Idempotent."""
        with self._lock:
            self._left = iter(())
        for thread in self._threads:
            thread.join()
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def part(self, place: Any) -> memoryview:
        """A part by [offset, bytes], once it is read. Raises PlanFileError."""
        offset, nbytes = place
        if (
            type(offset) is not int
            or type(nbytes) is not int
            or not 0 <= offset <= offset + nbytes <= len(self.memory)
        ):
            raise PlanFileError(f"{self.path}: a part {place!r} is not among its {len(self.memory)} bytes")
        return self.memory.data[offset : offset + nbytes]

    def _read_header(self) -> tuple[dict[str, Any], int]:
        status = os.fstat(self._handle)
        if not stat.S_ISREG(status.st_mode):
            raise PlanFileError(f"{self.path}: not a regular file")
        self.size = status.st_size
        head = os.pread(self._handle, _HEAD, 0)
        if head[: len(MAGIC)] != MAGIC or len(head) < _HEAD:
            wrong = "a saved plan of another format" if head[:11] == MAGIC[:11] else "not a saved plan"
            raise PlanFileError(f"{self.path}: {wrong}")
        length = int.from_bytes(head[len(MAGIC) : len(MAGIC) + 8], "little")
        if length > self.size - _HEAD:
            raise PlanFileError(f"{self.path}: it ends within its header")
        text = _read(self._handle, _HEAD, bytearray(length))
        if hashlib.sha256(text).digest() != head[-32:]:
            raise PlanFileError(f"{self.path}: the header was changed after it was written")
        try:
            header = parse_json(text)
        except (ValueError, RecursionError) as error:
            raise PlanFileError(f"{self.path}: the header is no JSON: {error}") from None
        if not isinstance(header, dict):
            raise PlanFileError(f"{self.path}: the header is no object")
        return header, _HEAD + length + -(_HEAD + length) % _PAGE

    def _sizes(self) -> tuple[int, list[str]]:
        """The number of bytes, and their checksums."""
        nbytes, chunks = self.header.get("bytes"), self.header.get("chunks")
        if type(nbytes) is not int or nbytes < 0 or self.size != self._start + nbytes:
            raise PlanFileError(
                f"{self.path}: it has {self.size} bytes, but should have {self._start} and {nbytes!r}"
            )
        if not isinstance(chunks, list) or len(chunks) != -(-nbytes // CHUNK):
            raise PlanFileError(f"{self.path}: it has not one checksum for each part")
        if any(self._padding()):
            raise PlanFileError(f"{self.path}: the space behind the header was changed")
        return nbytes, chunks

    def _padding(self) -> bytearray:
        """The bytes between the header and the data."""
        end = _HEAD + int.from_bytes(os.pread(self._handle, 8, len(MAGIC)), "little")
        found: bytearray = _read(self._handle, end, bytearray(self._start - end))
        return found

    def _read_chunks(self) -> None:
        """Read and check chunks until none is left."""
        while not self._wrong:
            with self._lock:
                index, wanted = next(self._left, (-1, ""))
            if index < 0:
                return
            chunk = self.memory.data[index * CHUNK : (index + 1) * CHUNK]
            try:
                _read(self._handle, self._start + index * CHUNK, chunk)
            except (OSError, PlanFileError) as error:
                self._wrong.append(str(error))
                return
            if hashlib.sha256(chunk).hexdigest() != wanted:
                self._wrong.append(f"its bytes were changed after it was written (in part {index} of 4 MiB)")


def _read(handle: int, offset: int, into: Any) -> Any:
    """Fill a buffer from a file. Raises PlanFileError where the file ends early."""
    view = memoryview(into)
    while len(view):
        count = os.preadv(handle, [view], offset)
        if not count:
            raise PlanFileError("the file ends too early")
        view, offset = view[count:], offset + count
    return into
