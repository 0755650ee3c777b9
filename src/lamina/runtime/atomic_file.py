"""Atomic file writes: a temporary file in the same folder, then a rename."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
import zlib
from collections.abc import Iterable
from pathlib import Path

#: Leftovers of killed processes are removed when older than this many seconds.
_OLD = 600.0
_PART = re.compile(r"\.(?P<host>[0-9a-f]{8})-(?P<process>\d+)-[0-9a-f]{8}\.part")
_LONGEST = 180  # characters of the name repeated in the temporary name: file systems allow 255 bytes


def write_atomically(path: str | Path, parts: Iterable[bytes | memoryview]) -> None:
    """Replace a regular file by the joined parts atomically: a crash leaves the old content or the new.

    A symbolic link is followed, and its target is written. A pipe or a character device is written directly.
    Owner and permissions are preserved; leftovers of earlier saves that were killed are removed. Raises
    OSError, also for read-only files, folders, sockets, block devices and pipes without a reader.
    """
    if _is_stream(path):
        _write_directly(path, parts)
        return
    target = _target_of(path)
    old = _replaced(target)
    temporary = _part_of(target)
    try:
        with os.fdopen(_create(temporary, 0o666 if old is None else 0o600, path), "wb") as file:
            file.writelines(parts)
            if old is not None:
                _hand_over(file.fileno(), old)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)
    _remove_leftovers(target)


def check_writable(path: str | Path) -> None:
    """Raise the OSError that `write_atomically` would raise now: before hours of work, not after them."""
    if _is_stream(path):
        _need_write_access(path)
        return
    target = _target_of(path)
    _replaced(target)
    temporary = _part_of(target)
    os.close(_create(temporary, 0o600, path))
    temporary.unlink()


def _target_of(path: str | Path) -> Path:
    """The file itself, links followed. Raises FileNotFoundError if its folder does not exist."""
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"the folder {target.parent} does not exist", str(path))
    return target


def _is_stream(path: str | Path) -> bool:
    """Whether the path, links followed, is a pipe or a character device. Raises OSError for a folder or socket."""
    path = os.fspath(path)  # a TypeError for a number, which the system would take as a file descriptor
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISREG(mode):
        return False
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "is a folder, not a file", str(path))
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        return True
    raise OSError(errno.EINVAL, "is neither a file, a pipe nor a character device", str(path))


def _write_directly(path: str | Path, parts: Iterable[bytes | memoryview]) -> None:
    """A pipe without a reader is refused (ENXIO), as opening it would block forever."""
    handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    os.set_blocking(handle, True)
    with os.fdopen(handle, "wb") as stream:
        stream.writelines(parts)


def _replaced(target: Path) -> os.stat_result | None:
    """The status of the file to be replaced, None if there is none. Raises PermissionError."""
    try:
        found = target.stat()
    except FileNotFoundError:
        return None
    _need_write_access(target)
    return found


def _need_write_access(path: str | Path) -> None:
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def _hand_over(file: int, old: os.stat_result) -> None:
    """Give an open file the owner, as far as permitted, and the permissions of another."""
    with contextlib.suppress(PermissionError):
        os.fchown(file, old.st_uid, old.st_gid)
    os.fchmod(file, old.st_mode & 0o777)


def _part_of(target: Path) -> Path:
    """A new name beside the target that identifies the writer."""
    return target.with_name(f".{target.name[:_LONGEST]}.{_host()}-{os.getpid()}-{os.urandom(4).hex()}.part")


def _host() -> str:
    return f"{zlib.crc32(os.uname().nodename.encode()):08x}"


def _create(path: Path, mode: int, asked: str | Path) -> int:
    """A handle of a new file. Raises OSError with the requested name."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(asked)) from error


def _remove_leftovers(target: Path) -> None:
    """Remove old temporary files for this target left by dead processes of this user and host."""
    with contextlib.suppress(OSError), os.scandir(target.parent) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if _is_leftover(entry, f".{target.name[:_LONGEST]}"):
                    os.unlink(entry.path)


def _is_leftover(entry: os.DirEntry[str], start: str) -> bool:
    match = _PART.fullmatch(entry.name.removeprefix(start)) if entry.name.startswith(start) else None
    if match is None or match["host"] != _host():
        return False
    status = entry.stat(follow_symlinks=False)
    own = stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid()
    return own and time.time() - status.st_mtime > _OLD and not _is_alive(int(match["process"]))


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _sync_folder(folder: Path) -> None:
    """Make the rename durable across power failure, where folders can be opened."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
