"""The uncompressed members of a zip archive, as torch writes them; nothing is unpacked.

Written for untrusted files: members that are compressed or encrypted, overlap or lie outside the file,
occur twice or whose two headers disagree are refused, so that no more is read than the file has. Format:
PKWARE's APPNOTE.TXT, 4.3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from lamina.files.source import Source, WeightsError

MAGIC = b"PK\x03\x04"
_CENTRAL, _END, _END64, _LOCATOR64 = b"PK\x01\x02", b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
_LOCAL_SIZE, _CENTRAL_SIZE, _END_SIZE, _LOCATOR_SIZE, _END64_SIZE = 30, 46, 22, 20, 56
#: The longest comment after the end record.
_LONGEST_COMMENT = 65535
_ENCRYPTED = 1
_FILL = 0xFFFFFFFF
#: The maximum size of a directory in bytes.
_LONGEST_DIRECTORY = 64 << 20


class Member(NamedTuple):
    """A member: the position of its bytes in the file, and their CRC-32."""

    offset: int
    nbytes: int
    crc: int


def members(source: Source) -> dict[str, Member]:
    """The members by name. Raises WeightsError."""
    try:
        return _members(source)
    except (struct.error, UnicodeDecodeError, OverflowError) as error:
        raise WeightsError(f"{source.path}: not a sound zip archive ({error})") from error


def _members(source: Source) -> dict[str, Member]:
    count, nbytes, start = _directory(source)
    if not 0 <= start <= start + nbytes <= source.size or nbytes > _LONGEST_DIRECTORY:
        raise _unsound(source, f"a directory of {nbytes} bytes at {start}")
    found: dict[str, Member] = {}
    ends = []
    for name, member, first in _entries(source, source.read(start, nbytes).tobytes(), count):
        if name in found:
            raise _unsound(source, f"the member {name!r} stands twice")
        found[name] = member
        ends.append((first, member.offset + member.nbytes, name))
    end = 0
    for first, last, name in sorted(ends):
        if first < end or last > start:
            raise _unsound(source, f"the member {name!r} lies on another one")
        end = last
    return found


def _unsound(source: Source, why: str) -> WeightsError:
    return WeightsError(f"{source.path}: not a sound zip archive: {why}")


def _directory(source: Source) -> tuple[int, int, int]:
    """Entries, bytes and offset of the central directory, from the record at the end of the file."""
    length = min(source.size, _END_SIZE + _LONGEST_COMMENT)
    tail = source.read(source.size - length, length).tobytes()
    at = tail.rfind(_END)
    if at < 0 or len(tail) - at < _END_SIZE:
        raise _unsound(source, "it has no end record; it may have been cut off")
    *_, count, nbytes, start, _ = struct.unpack_from("<4H2IH", tail, at + 4)
    place = source.size - length + at - _LOCATOR_SIZE
    if place < 0:
        return count, nbytes, start
    locator = source.read(place, _LOCATOR_SIZE).tobytes()
    if locator[:4] != _LOCATOR64:
        return count, nbytes, start
    (record,) = struct.unpack_from("<Q", locator, 8)
    end = source.read(record, _END64_SIZE).tobytes()
    if end[:4] != _END64:
        raise _unsound(source, "its 64-bit end record is missing")
    count, nbytes, start = struct.unpack_from("<3Q", end, 32)
    return count, nbytes, start


def _entries(source: Source, directory: bytes, count: int) -> Iterator[tuple[str, Member, int]]:
    """Each entry's name, its bytes, and the position of its local header."""
    at = 0
    for _ in range(count):
        if directory[at : at + 4] != _CENTRAL:
            raise _unsound(source, f"its directory has fewer than {count} entries")
        (flags, method, crc, packed, nbytes, name_size, extra_size, comment_size, _disk, header) = (
            struct.unpack_from("<2H4xI2I3HH6xI", directory, at + 8)
        )
        at += _CENTRAL_SIZE
        name = directory[at : at + name_size].decode()
        extra = directory[at + name_size : at + name_size + extra_size]
        at += name_size + extra_size + comment_size
        nbytes, packed, header = _wide(extra, (nbytes, packed, header))
        if method != 0 or packed != nbytes or flags & _ENCRYPTED:
            raise _unsound(source, f"the member {name!r} is compressed or encrypted{_written_by(name)}")
        offset = _data_of(source, name, header, crc, flags)
        if not offset <= offset + nbytes <= source.size:
            raise _unsound(source, f"the member {name!r} of {nbytes} bytes ends behind the file")
        yield name, Member(offset, nbytes, crc), header


def _written_by(name: str) -> str:
    """Advice for an archive with such a member, depending on the program that writes these."""
    if name.endswith(".npy"):
        return "; of NumPy's arrays: net.load_state_dict(dict(numpy.load(path)))"
    if "/code/" in name:
        return ": it is a program of TorchScript; save the state_dict() of torch.jit.load(path)"
    return ", which torch.save never writes"


def _wide(extra: bytes, sizes: Iterable[int]) -> Iterator[int]:
    """Sizes and offset; those exceeding 32 bits are in the extra field."""
    wide, at = b"", 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            wide = extra[at + 4 : at + 4 + length]
        at += 4 + length
    for size in sizes:
        if size == _FILL and wide:
            (size,) = struct.unpack_from("<Q", wide)
            wide = wide[8:]
        yield size


def _data_of(source: Source, name: str, header: int, crc: int, flags: int) -> int:
    """The position of a member's bytes, after its local header, which must agree with the directory."""
    local = source.read(header, _LOCAL_SIZE).tobytes()
    own_flags, method, own_crc = struct.unpack_from("<2H4xI", local, 6)
    name_size, extra_size = struct.unpack_from("<2H", local, 26)
    own_name = source.read(header + _LOCAL_SIZE, name_size).tobytes()
    late = own_flags & 8 and own_crc == 0  # streamed archives have the checksum after the bytes
    if (
        local[:4] != MAGIC
        or own_name != name.encode()
        or method != 0
        or own_flags != flags
        or not (late or own_crc == crc)
    ):
        raise _unsound(source, f"the two headers of the member {name!r} are not the same")
    return header + _LOCAL_SIZE + int(name_size) + int(extra_size)
