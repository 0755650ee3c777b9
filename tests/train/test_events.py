"""TensorBoard's event files: the known checksum, known bytes, what a reader finds."""

import struct
from pathlib import Path

import pytest

from lamina.train import events
from lamina.train.events import EventFile, crc32c
from tests.helpers.events import read_events

pytestmark = pytest.mark.feature("B031")


def test_the_checksum_of_the_standard() -> None:
    """RFC 3720, B.4, and the check value of the polynomial."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E


def test_the_bytes_of_a_record(tmp_path: Path) -> None:
    """As protobuf's own encoder writes Event(step=300, summary=Summary(value=[Value(tag="a", simple_value=1.5)]))."""
    file = EventFile(tmp_path)
    before = file.path.stat().st_size
    file.scalars(300, {"a": 1.5})
    file.close()
    record = file.path.read_bytes()[before:]
    body = record[12:-4]
    assert struct.unpack("<Q", record[:8])[0] == len(body)
    assert body[0] == 0x09  # field 1, eight bytes
    assert body[9:] == bytes.fromhex("10ac02 2a0a 0a08 0a0161 15 0000c03f")


def test_what_a_reader_finds(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "new" / "folder")
    file.scalars(0, {"loss": 0.5, "accuracy": 0.25})
    file.scalars(2**40, {"Größe": float("inf")})
    file.close()
    first, *rest = read_events(file.path)
    assert first["version"] == "brain.Event:2"
    assert [(e["step"], e["scalars"]) for e in rest] == [
        (0, {"loss": 0.5, "accuracy": 0.25}),
        (2**40, {"Größe": float("inf")}),
    ]
    assert first["time"] <= rest[0]["time"] <= rest[1]["time"]


def test_each_file_has_a_name_of_its_own(tmp_path: Path) -> None:
    names = set()
    for _ in range(3):
        file = EventFile(tmp_path)
        file.close()
        names.add(file.path.name)
    assert len(names) == 3
    assert all(n.startswith("events.out.tfevents.") for n in names)


def test_a_damaged_record_is_seen(tmp_path: Path) -> None:
    file = EventFile(tmp_path)
    file.scalars(1, {"loss": 1.0})
    file.close()
    data = bytearray(file.path.read_bytes())
    data[-8] ^= 1
    file.path.write_bytes(data)
    with pytest.raises(ValueError, match="damaged or cut short"):
        read_events(file.path)


@pytest.mark.parametrize(
    ("value", "found"),
    [(0, b"\0"), (127, b"\x7f"), (128, b"\x80\x01"), (300, b"\xac\x02"), (-1, b"\xff" * 9 + b"\x01"),
     (-(1 << 63), b"\x80" * 9 + b"\x01"), ((1 << 64) - 1, b"\xff" * 9 + b"\x01")],
)  # fmt: skip
def test_whole_numbers_are_written_in_groups_of_seven_bits(value: int, found: bytes) -> None:
    """Negative ones as 64 bits without sign, ten bytes, as protocol buffers have them."""
    assert events._varint(value) == found
