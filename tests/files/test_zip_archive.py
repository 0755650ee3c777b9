"""Members of archives, and archives that lie."""

import io
import struct
import zipfile

import pytest

from lamina.files.source import Source, WeightsError
from lamina.files.zip_archive import _wide, members
from tests.helpers.pickles import archive

GOOD = archive(b"abc", {"data/0": b"defg"})


def test_members_lie_where_they_say() -> None:
    found = members(Source("f", GOOD))
    assert set(found) == {"archive/data.pkl", "archive/version", "archive/data/0"}
    place = found["archive/data/0"]
    assert GOOD[place.offset : place.offset + place.nbytes] == b"defg"
    assert set(members(Source("f", GOOD + b""))) == set(found)


def test_sizes_of_64_bits_are_read() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as found, found.open("a", "w", force_zip64=True) as member:
        member.write(b"12345")
    assert members(Source("f", file.getvalue()))["a"].nbytes == 5


def test_a_directory_of_64_bits_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What 32 bits do not hold stands in a field of its own, among those of others, in the order of the entry."""
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 3)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        for name, data in (("a", b"12345"), ("b", b"12"), ("c", b"1234567")):
            member = zipfile.ZipInfo(name)
            member.extra = struct.pack("<2H4s", 0xCAFE, 4, b"abcd")
            made.writestr(member, data)
    given = file.getvalue()
    entry = given.index(b"PK\x01\x02")
    assert struct.unpack_from("<2I", given, entry + 20) == (0xFFFFFFFF, 0xFFFFFFFF)
    found = members(Source("f", given))
    assert {name: given[m.offset : m.offset + m.nbytes] for name, m in found.items()} == {
        "a": b"12345", "b": b"12", "c": b"1234567",
    }  # fmt: skip


def test_fields_of_others_stand_before_and_behind_the_wide_sizes() -> None:
    fill, other = 0xFFFFFFFF, struct.pack("<2H3s", 0xCAFE, 3, b"abc")
    wide = struct.pack("<2H3Q", 1, 24, 1 << 40, 1 << 41, 1 << 42)
    for extra in (wide, other + wide, wide + other, other + other + wide + other):
        assert list(_wide(extra, (fill, fill, fill))) == [1 << 40, 1 << 41, 1 << 42]
        assert list(_wide(extra, (7, fill, 8))) == [7, 1 << 40, 8]
    assert list(_wide(other, (7, fill, 8))) == [7, fill, 8]
    assert list(_wide(b"", (7, 8, 9))) == [7, 8, 9]


def changed(at: int, form: str, value: int, sign: bytes = b"PK\x01\x02") -> bytes:
    """The archive with a number of its first directory entry (or another record) changed."""
    data = bytearray(GOOD)
    struct.pack_into(form, data, data.find(sign) + at, value)
    return bytes(data)


LIES = {
    "bomb": (archive(bytes(1000), method=zipfile.ZIP_DEFLATED), "compressed or encrypted"),
    "encrypted": (changed(8, "<H", 1), "compressed or encrypted"),
    "longer": (changed(24, "<I", 9), "compressed or encrypted"),
    "behind the file": (changed(42, "<I", 2**31), "it ends after"),
    "other header": (changed(42, "<I", 1), "two headers|not the same"),
    "other name": (GOOD.replace(b"archive/version", b"archive/versiom", 1), "two headers"),
    "more entries": (changed(10, "<H", 9, b"PK\x05\x06"), "fewer than 9 entries"),
    "no directory": (changed(16, "<I", 2**31, b"PK\x05\x06"), "a directory of"),
    "cut off": (GOOD[:-30], "no end record"),
    "not utf-8": (GOOD.replace(b"version", b"\xff\xff\xff\xff\xff\xff\xff"), "not a sound zip"),
}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("net/code/__torch__/net.py", r"a program of TorchScript; save the state_dict\(\) of torch.jit.load"),
        ("weight.npy", "of NumPy's arrays"),
        ("net/data/0", "which torch.save never writes"),
    ],
)
def test_a_compressed_member_says_who_writes_such(name: str, hint: str) -> None:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(name, bytes(1000))
    with pytest.raises(WeightsError, match=hint):
        members(Source("f", held.getvalue()))


@pytest.mark.parametrize("name", LIES)
def test_lies_are_refused(name: str) -> None:
    content, error = LIES[name]
    with pytest.raises(WeightsError, match=error):
        members(Source("f", content))


def test_members_on_each_other_and_twice() -> None:
    data = bytearray(GOOD)
    first = data.find(b"PK\x01\x02")
    second = data.find(b"PK\x01\x02", first + 4)
    size = struct.unpack_from("<H", data, first + 28)[0] + 46
    assert second == first + size
    entry = bytes(data[first:second])
    twice = bytes(data[:first]) + entry * 3 + bytes(data[data.find(b"PK\x05\x06") :])
    with pytest.raises(WeightsError, match="stands twice|not a sound zip"):
        members(Source("f", _sized(twice, len(entry) * 3)))
    whole = bytearray(GOOD)
    struct.pack_into("<2I", whole, first + 20, 60, 60)  # the first one now reaches over the second
    with pytest.raises(WeightsError, match="lies on another one"):
        members(Source("f", bytes(whole)))


def _sized(data: bytes, nbytes: int) -> bytes:
    found = bytearray(data)
    struct.pack_into("<I", found, found.find(b"PK\x05\x06") + 12, nbytes)
    return bytes(found)
