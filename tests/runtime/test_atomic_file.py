"""Files that are put in place at once: through links, into pipes, over files that must keep what they are."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lamina.runtime import atomic_file, check_writable, write_atomically


def test_the_old_content_or_the_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "f"
    write_atomically(file, [b"a", memoryview(b"bc")])
    assert file.read_bytes() == b"abc"
    for function in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, function, _fail)
            with pytest.raises(OSError, match="the disk is full"):
                write_atomically(file, [b"new"])
        assert file.read_bytes() == b"abc"
        assert os.listdir(tmp_path) == ["f"]


def _fail(*_: object) -> None:
    raise OSError("the disk is full")


def test_a_link_stays_one(tmp_path: Path) -> None:
    """Also over another folder, and where what it names is not there yet."""
    (tmp_path / "data").mkdir()
    real, link = tmp_path / "data" / "real", tmp_path / "link"
    link.symlink_to(real)
    for content in (b"first", b"second"):
        write_atomically(link, [content])
        assert link.is_symlink()
        assert real.read_bytes() == content
    assert os.listdir(tmp_path / "data") == ["real"]


def test_a_pipe_is_written_directly(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="No such device"):  # nobody reads
        write_atomically(pipe, [b"lost"])
    found: list[bytes] = []
    ready = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # a reader is there
    os.set_blocking(ready, True)
    thread = threading.Thread(target=lambda: found.append(os.read(ready, 100)))
    write_atomically(pipe, [b"taken"])
    thread.start()
    thread.join()
    os.close(ready)
    assert found == [b"taken"]
    assert stat.S_ISFIFO(os.stat(pipe).st_mode)


def test_more_than_a_pipe_holds_waits_for_its_reader(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    ready = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(ready, True)
    parts, found = [bytes([n]) * 300_000 for n in range(3)], bytearray()

    def read() -> None:
        while len(found) < 900_000:
            found.extend(os.read(ready, 10_000))

    thread = threading.Thread(target=read)
    thread.start()
    write_atomically(pipe, parts)
    thread.join()
    os.close(ready)
    assert found == b"".join(parts)


def test_a_device_is_written_directly() -> None:
    before = os.stat(os.devnull)
    check_writable(os.devnull)
    write_atomically(os.devnull, [b"gone"])
    assert os.stat(os.devnull).st_rdev == before.st_rdev


def test_standard_output_is_written_directly() -> None:
    code = "from lamina.runtime import write_atomically; write_atomically('/dev/stdout', [b'out'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == b"out"


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    for check in (check_writable, lambda path: write_atomically(path, [b""])):
        with pytest.raises(IsADirectoryError, match="is a folder, not a file"):
            check(tmp_path)
        with pytest.raises(FileNotFoundError):
            check(tmp_path / "absent" / "f")
        with pytest.raises(NotADirectoryError):
            check(tmp_path / "f" / "g")
    assert os.listdir(tmp_path) == ["f"]


def test_what_is_read_only_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"mine")
    file.chmod(0o400)
    if os.geteuid() == 0:  # root may write everything
        monkeypatch.setattr(os, "access", lambda *_: False)
    for check in (check_writable, lambda path: write_atomically(path, [b"yours"])):
        with pytest.raises(PermissionError):
            check(file)
    assert file.read_bytes() == b"mine"


def test_permissions_are_kept_and_new_files_follow_the_mask(tmp_path: Path) -> None:
    file = tmp_path / "f"
    mask = os.umask(0o027)
    try:
        write_atomically(file, [b""])
    finally:
        os.umask(mask)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    file.chmod(0o604)
    write_atomically(file, [b"x"])
    assert stat.S_IMODE(file.stat().st_mode) == 0o604


def _left(folder: Path, name: str, process: int, seconds: float, host: str | None = None) -> Path:
    """A part as a killed process leaves it."""
    part = folder / f".{name}.{host or atomic_file._host()}-{process}-0123abcd.part"
    part.touch()
    os.utime(part, (part.stat().st_mtime - seconds,) * 2)
    return part


def _dead_process() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_leftovers_of_killed_saves_are_removed(tmp_path: Path) -> None:
    """And nothing else: not those of another file, host or living process, not new ones, nothing that looks alike."""
    dead = _dead_process()
    gone = _left(tmp_path, "f", dead, 700)
    kept = [
        _left(tmp_path, "other", dead, 3600),
        _left(tmp_path, "f", os.getpid(), 3600),
        _left(tmp_path, "f", dead, 3600, host="00000000"),
        tmp_path / f".f.{atomic_file._host()}-{dead}-0123abcd.part.txt",
        tmp_path / ".f.part",
    ]
    for path in kept:
        path.touch()
        os.utime(path, (0, 0))
    folder = tmp_path / f".f.{atomic_file._host()}-{dead}-ffffffff.part"
    folder.mkdir()
    os.utime(folder, (0, 0))
    link = tmp_path / f".f.{atomic_file._host()}-{dead}-dddddddd.part"
    link.symlink_to(tmp_path / ".f.part")
    os.utime(link, (0, 0), follow_symlinks=False)
    fresh = tmp_path / f".f.{atomic_file._host()}-{dead}-eeeeeeee.part"
    fresh.touch()
    write_atomically(tmp_path / "f", [b"x"])
    assert not gone.exists()
    assert all(path.exists() for path in (*kept, folder, link, fresh))


def test_a_long_name_is_no_obstacle(tmp_path: Path) -> None:
    file = tmp_path / ("n" * 250)
    write_atomically(file, [b"x"])
    assert os.listdir(tmp_path) == [file.name]


def test_a_killed_save_leaves_what_the_next_one_removes(tmp_path: Path) -> None:
    """Killed for real, in the middle of writing."""
    code = (
        "import os, sys; from lamina.runtime import write_atomically\n"
        "def parts():\n    yield b'half'\n    os.kill(os.getpid(), 9)\n"
        "write_atomically(sys.argv[1], parts())"
    )
    file = tmp_path / "f"
    subprocess.run([sys.executable, "-c", code, str(file)], check=False)
    (left,) = tmp_path.iterdir()
    write_atomically(file, [b"whole"])
    assert left.exists()  # too young
    os.utime(left, (0, 0))
    write_atomically(file, [b"whole"])
    assert os.listdir(tmp_path) == ["f"]


def test_errors_name_the_file_that_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "x"
    with pytest.raises(FileNotFoundError, match=f"the folder {path.parent} does not exist: '{path}'"):
        write_atomically(path, [b"x"])
    if os.getuid() != 0:
        tmp_path.chmod(0o500)
        with pytest.raises(PermissionError, match=f"'{tmp_path / 'x'}'"):
            write_atomically(tmp_path / "x", [b"x"])
        tmp_path.chmod(0o700)
