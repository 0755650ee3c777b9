"""Bytes of files, pipes and contents, within their bounds."""

import os
import threading
from pathlib import Path

import pytest

from lamina.files.source import Source, WeightsError


def test_parts_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(range(10)))
    for source in (Source(tmp_path / "f"), Source("f", bytes(range(10)))):
        with source:
            assert source.read(3, 4).tolist() == [3, 4, 5, 6]
            assert source.read(10, 0).tolist() == []
            for place in ((-1, 2), (8, 3), (0, 2**63), (3, -1)):
                with pytest.raises(WeightsError, match="it ends after 10 bytes"):
                    source.read(*place)


def test_a_file_that_becomes_shorter_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(bytes(100))
    with Source(file) as source:
        os.truncate(file, 50)
        with pytest.raises(WeightsError, match="became shorter while it was read"):
            source.read(0, 100)


def test_pipes_are_read_and_devices_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(b"abc",))
    writer.start()
    with Source(tmp_path / "pipe") as source:
        assert source.read(1, 2).tobytes() == b"bc"
    writer.join()
    with pytest.raises(WeightsError, match="a device"):
        Source("/dev/zero")


def test_a_folder_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=f"is a folder, not a file: '{tmp_path}'"):
        Source(tmp_path)
