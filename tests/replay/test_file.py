"""A file of a plan: what is written is read, and a change of any byte is refused."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lamina.replay.errors import PlanFileError
from lamina.replay.file import CHUNK, MAGIC, Parts, Reading, write


def saved(path: Path, *pieces: Any, **header: Any) -> list[int]:
    parts = Parts()
    places = [parts.add(p) for p in pieces]
    write(path, header, parts)
    return places


def read(path: Path) -> Reading:
    reading = Reading(path)
    try:
        reading.finish()
    finally:
        reading.close()
    return reading


def test_parts_are_found_again(tmp_path: Path) -> None:
    large = np.random.default_rng(0).integers(0, 255, 2 * CHUNK + 77, np.uint8).tobytes()
    pieces = (b"abc", large, b"", b"abc", b"z" * 256)
    places = saved(tmp_path / "p", *pieces, a=[1, "ü"])
    assert places[0] == places[3]
    assert all(p % 256 == 0 for p in places)
    reading = read(tmp_path / "p")
    assert reading.header["a"] == [1, "ü"]
    assert reading.memory.ctypes.data % 256 == 0
    for place, piece in zip(places, pieces, strict=True):
        assert bytes(reading.part([place, len(piece)])) == piece
    assert len(reading.header["chunks"]) == 3


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_arrays_of_any_dtype_are_parts(dtype: Any, tmp_path: Path) -> None:
    array = np.arange(12).astype(dtype).reshape(3, 4)
    (place, turned) = saved(tmp_path / "p", array, array.T)
    reading = read(tmp_path / "p")
    assert bytes(reading.part([place, array.nbytes])) == array.tobytes()
    assert bytes(reading.part([turned, array.nbytes])) == array.T.tobytes()


def test_a_file_without_bytes(tmp_path: Path) -> None:
    saved(tmp_path / "p")
    assert read(tmp_path / "p").memory.size == 0


@pytest.mark.feature("F113")
def test_a_change_of_any_byte_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p"
    saved(path, bytes(range(256)) * 3, b"x", name="n")
    sound = path.read_bytes()
    rng = np.random.default_rng(0)
    places = {*range(70), *rng.integers(0, len(sound), 300).tolist(), len(sound) - 1}
    for place in places:
        changed = bytearray(sound)
        changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        with pytest.raises(PlanFileError, match=str(path)):
            read(path)
    path.write_bytes(sound)
    read(path)


def test_a_file_of_another_length_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p"
    saved(path, b"q" * 5000)
    sound = path.read_bytes()
    for length in (0, 1, len(MAGIC), 55, 56, 100, 4096, len(sound) - 1):
        path.write_bytes(sound[:length])
        with pytest.raises(PlanFileError):
            read(path)
    path.write_bytes(sound + b"\0")
    with pytest.raises(PlanFileError, match="bytes"):
        read(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    for content in (b"", b"{}" * 100, MAGIC, MAGIC[:-1] + b"\x09" + bytes(100)):
        (tmp_path / "p").write_bytes(content)
        with pytest.raises(PlanFileError, match="not a saved plan|another format"):
            read(tmp_path / "p")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PlanFileError, match="not a regular file"):
        Reading(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError):
        Reading(tmp_path / "absent")


def test_a_header_that_lies_is_refused(tmp_path: Path) -> None:
    """With the right checksum: whoever writes such files can compute it."""

    def forged(text: bytes, tail: bytes = b"") -> None:
        head = MAGIC + len(text).to_bytes(8, "little") + hashlib.sha256(text).digest() + text
        (tmp_path / "p").write_bytes(head + bytes(-len(head) % 4096) + tail)

    for text in (
        b"[" * 200_000,
        b"[]",
        b"{",
        json.dumps({"bytes": -1, "chunks": []}).encode(),
        json.dumps({"bytes": 1 << 60, "chunks": []}).encode(),
        json.dumps({"bytes": "0", "chunks": []}).encode(),
        json.dumps({"bytes": 0, "chunks": ["x"]}).encode(),
        json.dumps({"chunks": {}}).encode(),
    ):
        forged(text)
        with pytest.raises(PlanFileError):
            read(tmp_path / "p")
    forged(json.dumps({"bytes": 4, "chunks": [None]}).encode(), b"abcd")
    with pytest.raises(PlanFileError, match="changed"):
        read(tmp_path / "p")


@pytest.mark.parametrize("place", [[0, 300], [-1, 2], [5, -1], [0.0, 1], ["0", 1]])
def test_parts_lie_within_the_bytes(tmp_path: Path, place: Any) -> None:
    saved(tmp_path / "p", b"abc")
    with pytest.raises((PlanFileError, TypeError)):
        read(tmp_path / "p").part(place)
