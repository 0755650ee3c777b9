"""The cache on disk."""

import contextlib
import os
import pwd
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lamina.runtime import DiskCache, cache, cache_directory, digest, distrust


def test_the_folder_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMINA_CACHE", str(tmp_path / "a" / "b"))
    assert cache_directory() == tmp_path / "a" / "b"
    assert stat.S_IMODE(os.stat(cache_directory()).st_mode) == 0o700


def test_the_folder_without_a_wish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAMINA_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "lamina"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "lamina"


def test_the_folder_where_there_is_no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In containers whose user has no entry, or whose home cannot be written."""
    for name in ("LAMINA_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    expected = tmp_path / f"lamina-{os.getuid()}"
    with monkeypatch.context() as patch:
        patch.setattr(pwd, "getpwuid", lambda user: {}[user])
        assert cache_directory() == expected
        patch.chdir(tmp_path)
        patch.setenv("LAMINA_CACHE", "~/x")
        assert cache_directory().name == "x"
    assert stat.S_IMODE(expected.stat().st_mode) == 0o700
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    assert cache_directory() == expected


def test_what_others_may_write_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither read nor written; a warning says it once."""
    folder = tmp_path / "kernels"
    disk = DiskCache(folder)
    disk.put("k", b"mine")
    assert disk.get("k") == b"mine"
    assert stat.S_IMODE((folder / "k").stat().st_mode) == 0o600
    (folder / "k").chmod(0o620)
    with pytest.warns(
        RuntimeWarning, match="does without .*k: it can be written by others .mode 620; chmod go-w"
    ):
        assert disk.get("k") is None
    (folder / "k").chmod(0o600)
    folder.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="kernels: it can be written by others"):
        assert disk.get("k") is None
    disk.put("other", b"")  # no second warning
    assert os.listdir(folder) == ["k"]
    folder.chmod(0o700)
    assert disk.get("k") == b"mine"
    assert distrust(folder) == distrust(folder / "absent") == ""
    monkeypatch.setattr(os, "getuid", lambda: 4321)
    monkeypatch.setattr(cache, "_warned", set())
    with pytest.warns(RuntimeWarning, match="does without"):
        assert disk.get("k") is None
    assert "belongs to user" in distrust(folder)


def test_keeps_blobs(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "kernels")
    assert cache.get("k") is None
    for blob in (b"", b"one", b"two" * 1000):
        cache.put("k", blob)
        assert cache.get("k") == blob
    assert sorted(os.listdir(tmp_path / "kernels")) == ["k"]  # no temporary file is left
    cache.clear()
    assert cache.get("k") is None


def test_every_torn_or_edited_file_reads_as_absent(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    cache.put("k", b"payload")
    whole = (tmp_path / "k").read_bytes()
    for length in range(len(whole)):
        (tmp_path / "k").write_bytes(whole[:length])
        assert cache.get("k") is None
    for place in range(len(whole)):
        edited = bytearray(whole)
        edited[place] ^= 1
        (tmp_path / "k").write_bytes(edited)
        assert cache.get("k") is None
    (tmp_path / "k").write_bytes(whole + b"x")
    assert cache.get("k") is None
    cache.put("k", b"again")
    assert cache.get("k") == b"again"


def test_the_oldest_go_when_the_limit_is_reached(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, limit=400)
    for number in range(3):
        cache.put(str(number), bytes(100))  # 140 bytes each on disk
        os.utime(tmp_path / str(number), (number, number))
        assert cache.get("0") is not None  # used now, so not the oldest
    assert {name for name in "012" if cache.get(name)} == {"0", "2"}


def test_as_many_bytes_as_the_limit_stay(tmp_path: Path) -> None:
    for number in range(3):
        DiskCache(tmp_path).put(str(number), bytes(100))
        os.utime(tmp_path / str(number), (number, number))
    DiskCache(tmp_path)._prune(420)  # 140 bytes each on disk
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1", "2"}
    DiskCache(tmp_path)._prune(419)
    assert {path.name for path in tmp_path.iterdir()} == {"1", "2"}


def test_a_folder_is_not_added_up_at_each_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only at the first one, and when a part of the limit has been written since."""
    looked, scandir = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda folder: looked.append(folder) or scandir(folder))
    cache = DiskCache(tmp_path, limit=16000)
    for number in range(22):
        DiskCache(tmp_path, limit=16000).put(str(number), bytes(60))  # 100 bytes each on disk
    assert len(looked) == 1 + 2
    assert all(cache.get(str(number)) for number in range(22))


def test_another_process_prunes_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is gone when its size is asked for does not keep the others from being counted."""
    cache, scandir = DiskCache(tmp_path, limit=400), os.scandir
    for number in range(2):
        cache.put(str(number), bytes(100))
        os.utime(tmp_path / str(number), (number, number))

    @contextlib.contextmanager
    def late(folder: Path) -> Iterator[Iterator[os.DirEntry[str]]]:
        with scandir(folder) as entries:
            found = list(entries)
        (tmp_path / "0").unlink()
        yield iter(found)

    monkeypatch.setattr(os, "scandir", late)
    cache.put("2", bytes(300))  # 480 bytes with "1", 620 with "0"
    assert {name for name in "012" if cache.get(name)} == {"2"}


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = DiskCache(tmp_path / "file" / "sub")
    cache.put("k", b"blob")
    cache.clear()
    assert cache.get("k") is None


def test_writers_at_once_never_tear(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    blobs = [bytes([mark]) * 5000 for mark in range(4)]
    torn: list[int] = []

    def write(blob: bytes) -> None:
        for _ in range(30):
            cache.put("k", blob)
            if cache.get("k") not in blobs:
                torn.append(blob[0])

    threads = [threading.Thread(target=write, args=(blob,)) for blob in blobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not torn


def test_keys_know_where_parts_end() -> None:
    assert digest("ab", "c") != digest("a", "bc") != digest("abc")
    assert digest("a", b"b") == digest("a", "b")
