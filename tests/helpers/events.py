"""Reads TensorBoard's event files: TensorBoard's view of the output of `lamina.train.events`."""

import struct
from pathlib import Path
from typing import Any

from lamina.train.events import crc32c


def checksum(data: bytes) -> bytes:
    """Masked, as in TFRecord."""
    value = crc32c(data)
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def read_events(path: str | Path) -> list[dict[str, Any]]:
    """The events of a file: "time", "step", and "scalars" by tag, if any.

    Raises ValueError for a record with a wrong checksum, or a truncated one.
    """
    data = Path(path).read_bytes()
    found: list[dict[str, Any]] = []
    place = 0
    while place < len(data):
        head = data[place : place + 12]
        size = struct.unpack("<Q", head[:8])[0] if len(head) == 12 else -1
        body = data[place + 12 : place + 12 + max(size, 0)]
        end = data[place + 12 + len(body) : place + 16 + len(body)]
        if len(body) != size or checksum(head[:8]) != head[8:] or checksum(body) != end:
            raise ValueError(f"{path}: the record at byte {place} is damaged or cut short")
        found.append(_event(body))
        place += 16 + size
    return found


def _event(body: bytes) -> dict[str, Any]:
    fields = _fields(body)
    event: dict[str, Any] = {"time": struct.unpack("<d", fields[1][0])[0], "step": (fields.get(2) or [0])[0]}
    if 3 in fields:
        event["version"] = fields[3][0].decode()
    if 5 in fields:
        values = [_fields(v) for v in _fields(fields[5][0]).get(1, [])]
        event["scalars"] = {v[1][0].decode(): struct.unpack("<f", v[2][0])[0] for v in values}
    return event


def _fields(body: bytes) -> dict[int, list[Any]]:
    """Numbers of fields, and their integers or bytes in order."""
    found: dict[int, list[Any]] = {}
    place = 0
    while place < len(body):
        key, place = _read_varint(body, place)
        kind = key & 7
        if kind == 0:
            value, place = _read_varint(body, place)
        else:
            size, place = (8, place) if kind == 1 else (4, place) if kind == 5 else _read_varint(body, place)
            value, place = body[place : place + size], place + size
        found.setdefault(key >> 3, []).append(value)
    return found


def _read_varint(body: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = body[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
