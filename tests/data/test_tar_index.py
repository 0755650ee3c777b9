"""Indexes of tar shards: where files lie, what is kept beside a shard, what is refused."""

import gzip
import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from lamina.data import DataError
from lamina.data.tar_index import index_of, read_shard, split_name

pytestmark = pytest.mark.feature("B030")


def shard(path: Path, files: dict[str, bytes], mode: Any = "w", **options: Any) -> Path:
    with tarfile.open(path, mode, **options) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


FILES = {
    "a/1.jpg": b"one",
    "a/1.cls": b"7",
    "README": b"no sample",
    "a/2.seg.PNG": b"",
    "a/2.cls": b"8" * 700,
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.b/1.seg.png", ("a.b/1", "seg.png")),
        ("1.JPG", ("1", "jpg")),
        ("none", ("none", "")),
        ("a/.hidden.jpg", ("a/.hidden.jpg", "")),
        ("__meta__.json", ("__meta__.json", "")),
    ],
)
def test_names(name: str, expected: tuple[str, str]) -> None:
    assert split_name(name) == expected


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_files_lie_where_the_index_says(tmp_path: Path, format: int) -> None:
    path = shard(tmp_path / "s.tar", FILES, format=format)
    found, content = index_of(path), path.read_bytes()
    assert len(found) == 2
    assert [list(found.files(n)) for n in range(2)] == [["jpg", "cls"], ["seg.png", "cls"]]
    names = [n for n in FILES if n != "README"]
    for number, name in enumerate(names):
        begin = int(found.offset[number])
        assert content[begin : begin + int(found.size[number])] == FILES[name]
        assert found.name(number) == name


def test_the_index_is_dalis_and_is_made_once(tmp_path: Path) -> None:
    path = shard(tmp_path / "s.tar", {"1.jpg": b"one", "1.cls": b"7", "2.jpg": b"two"})
    index_of(path)
    beside = tmp_path / "s.idx"
    assert beside.read_text() == "v1.2 2\njpg 512 3 1.jpg cls 1536 1 1.cls\njpg 2560 3 2.jpg\n"
    beside.write_text("v1.2 1\njpg 2560 3 2.jpg\n")  # another program's
    assert len(index_of(path)) == 1
    later = beside.stat().st_mtime_ns + 10**9
    os.utime(path, ns=(later, later))
    assert len(index_of(path)) == 2
    assert beside.read_text().startswith("v1.2 2\n")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "v1.1 1\njpg 512 3 1.jpg\n",
        "v1.2 2\njpg 512 3 1.jpg\n",
        "v1.2 1\njpg 512 3\n",
        "v1.2 1\njpg 512 9999999 1.jpg\n",
    ],
)
def test_an_index_that_does_not_fit_is_made_again(tmp_path: Path, text: str) -> None:
    path = shard(tmp_path / "s.tar", {"1.jpg": b"one"})
    (tmp_path / "s.idx").write_text(text)
    assert index_of(path).files(0) == {"jpg": 0}
    assert (tmp_path / "s.idx").read_text() == "v1.2 1\njpg 512 3 1.jpg\n"


def test_a_longer_shard_with_an_earlier_date_has_a_new_index(tmp_path: Path) -> None:
    files = {"1.jpg": b"one", "2.jpg": b"two", "README": b"no sample"}
    path = shard(tmp_path / "s.tar", files)
    assert len(index_of(path)) == 2
    written = (tmp_path / "s.idx").stat().st_mtime_ns
    index_of(path)
    assert (tmp_path / "s.idx").stat().st_mtime_ns == written  # what follows is no sample
    os.utime(shard(path, files | {"3.jpg": b"three"}), ns=(0, 0))  # as a copy that keeps dates leaves it
    assert [index_of(path).name(n) for n in range(3)] == ["1.jpg", "2.jpg", "3.jpg"]


def test_names_with_spaces_have_no_index_beside_them(tmp_path: Path) -> None:
    path = shard(tmp_path / "s.tar", {"a b.jpg": b"one"})
    assert index_of(path).name(0) == "a b.jpg"
    assert not (tmp_path / "s.idx").exists()


@pytest.mark.parametrize(("compressed", "streamed"), [(False, False), (False, True), (True, True)])
@pytest.mark.parametrize("end", [1024, 1024 + 100, 2048])
def test_a_shard_that_ends_in_front_of_or_in_a_header_is_named(
    tmp_path: Path, end: int, compressed: bool, streamed: bool
) -> None:
    """1024 and 2048 are the ends of the first and the second file, behind which a header or zeros belong."""
    whole = shard(tmp_path / "s.tar", {"1.jpg": b"one", "2.jpg": b"two"}).read_bytes()
    path = tmp_path / "cut.tar"
    path.write_bytes(gzip.compress(whole[:end]) if compressed else whole[:end])
    with pytest.raises(DataError, match=rf"cut.tar: ends too early: at byte {end // 512 * 512} a header"):
        list(read_shard(path, io.BytesIO(path.read_bytes()) if streamed else None))


def test_a_damaged_header_is_no_end(tmp_path: Path) -> None:
    path = shard(tmp_path / "s.tar", {"1.jpg": b"one", "2.jpg": b"two"})
    path.write_bytes(path.read_bytes()[:1024] + b"x" * 512 + path.read_bytes()[1536:])
    with pytest.raises(DataError, match=r"at byte 1024 a header or the archive's end should be \(.*\)"):
        index_of(path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: p.write_bytes(b"no tar" * 200), "is no tar that can be read here"),
        (lambda p: shard(p, {"1.jpg": b"one"}, "w:gz"), "ShardStream reads compressed ones"),
        (lambda p: shard(p, {"README": b"one"}), "no samples; files in a shard are named as KEY.KIND"),
        (lambda p: shard(p, {"1.jpg": b"one", "1.JPG": b"two"}), "the sample 1 has two files of kind jpg"),
        (lambda p: p.write_bytes(shard(p, {"1.jpg": b"x" * 5000}).read_bytes()[:2000]), r"ends|end of data"),
        (lambda p: None, "cannot be read"),
    ],
    ids=["text", "compressed", "no samples", "twice", "cut off", "missing"],
)
def test_what_is_no_shard_is_named(tmp_path: Path, make: Any, message: str) -> None:
    path = tmp_path / "s.tar"
    make(path)
    with pytest.raises(DataError, match=message) as found:
        index_of(path)
    assert str(path) in str(found.value)


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_streams_give_files_with_their_contents(tmp_path: Path, mode: str) -> None:
    path = shard(tmp_path / "s", FILES, mode)
    with path.open("rb") as file:
        found = [
            dict(zip((f.name for f in files), read, strict=True)) for files, read in read_shard(path, file)
        ]
    assert found == [
        {"a/1.jpg": b"one", "a/1.cls": b"7"},
        {"a/2.seg.PNG": b"", "a/2.cls": b"8" * 700},
    ]
