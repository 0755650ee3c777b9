"""TensorBoard's event files: protocol buffer records, written without TensorBoard or protobuf.

A file is a sequence of records (TFRecord): the length as 8 bytes, the length's checksum, the bytes, their checksum; a
checksum is a CRC-32C that is rotated and shifted ("masked"). Each record is an `Event` message, of which a few
fields are needed: wall_time (1, double), step (2, int64), file_version (3, string) or summary (5), and session_log
(7), which tells TensorBoard to discard the events of earlier runs from a step on. A summary holds values (1) of a tag
(1, string) and a simple_value (2, float).
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np

_VERSION = "brain.Event:2"
#: SessionLog.START, after which events from this one's step on supersede earlier ones.
_START = 1


class EventFile:
    """An event file in a folder, open for writing.

    purge_step: events of the folder's earlier files from this step on are no longer shown.
    Raises OSError when it cannot be made.
    """

    def __init__(self, folder: str | Path, *, purge_step: int | None = None) -> None:
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads a folder's files in the order of their names: by time, then process, then number.
        stem = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
        number = 0
        while True:
            self.path = place / f"{stem}.{number}"
            try:
                self._file = self.path.open("xb")
                break
            except FileExistsError:
                number += 1
        self._write(_text(3, _VERSION))
        if purge_step is not None:
            self._write(_integer(2, purge_step) + _bytes(7, _integer(1, _START)))
        self.flush()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write scalars by their tags."""
        summary = b"".join(_bytes(1, _text(1, tag) + _float(2, value)) for tag, value in values.items())
        self._write(_integer(2, step) + _bytes(5, summary))

    def flush(self) -> None:
        """Flush to the operating system, so that TensorBoard sees the events."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close."""
        self._file.close()

    def _write(self, fields: bytes) -> None:
        event = _double(1, time.time()) + fields
        length = struct.pack("<Q", len(event))
        self._file.write(length + _checksum(length) + event + _checksum(event))


# ---- protocol buffers: a field is its number and wire type, then the bytes


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _integer(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _float(field: int, value: float) -> bytes:
    return _varint(field << 3 | 5) + np.float32(value).tobytes()


# ---- CRC-32C (Castagnoli): the reflected polynomial 0x82F63B78


@lru_cache(maxsize=1)
def _table() -> list[int]:
    found: list[int] = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        found.append(value)
    return found


def crc32c(data: bytes) -> int:
    """The checksum used by iSCSI, TFRecord and others."""
    table, value = _table(), 0xFFFFFFFF
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


def _checksum(data: bytes) -> bytes:
    """Masked, as in TFRecord."""
    value = crc32c(data)
    masked = ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return struct.pack("<I", masked)
