"""A place on disk for what is expensive to make and can always be made again."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import tempfile
import warnings
from pathlib import Path
from typing import BinaryIO

_MAGIC = b"lamina1\n"
_DIGEST = hashlib.sha256().digest_size
#: A folder's sizes are added up again when this part of its limit has been written.
_SLACK = 16
#: Folder -> bytes that this process wrote there since it added them up.
_written: dict[Path, int] = {}
#: What was said to be untrusted; each path once.
_warned: set[Path] = set()


def cache_directory() -> Path:
    """The folder for compiled kernels and plans: $LAMINA_CACHE, else ~/.cache/lamina (XDG_CACHE_HOME heeded).

    Where there is no home, or none that can be written, it is lamina-<user id> in the folder for temporary files.
    Made on first use, for its owner alone; a folder that is there already must be so too (see `distrust`).
    """
    wanted = os.environ.get("LAMINA_CACHE")
    if wanted:
        folder = Path(wanted)
        with contextlib.suppress(RuntimeError):  # a "~" without a home: taken as it stands
            folder = folder.expanduser()
        with contextlib.suppress(OSError):  # `DiskCache` does without
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(base).expanduser() / "lamina"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        folder = Path(tempfile.gettempdir()) / f"lamina-{os.getuid()}"
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def distrust(path: Path) -> str:
    """Why others may have written a folder or a file of the cache; "" where only this user may, or nothing is there.

    What the cache holds is run: kernels and plans that others could have put there are neither read nor replaced.
    """
    try:
        return _distrust(path.stat())
    except OSError:
        return ""


def _distrust(status: os.stat_result) -> str:
    if status.st_uid != os.getuid():
        return f"belongs to user {status.st_uid}, not to {os.getuid()}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"can be written by others (mode {stat.S_IMODE(status.st_mode):o}; chmod go-w ends that)"
    return ""


def make_private(folder: Path) -> None:
    """Make a folder that only this user may read and write, or check the one there is. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _refuse(folder, distrust(folder))


def open_private(path: Path) -> BinaryIO:
    """Open a file that only this user may have written, for reading. Raises OSError."""
    _refuse(path.parent, distrust(path.parent))
    file = path.open("rb")
    try:
        _refuse(path, _distrust(os.fstat(file.fileno())))
    except PermissionError:
        file.close()
        raise
    return file


def _refuse(path: Path, why: str) -> None:
    """Raise PermissionError where there is a reason, and say it once per path."""
    if not why:
        return
    if path not in _warned:
        _warned.add(path)
        warnings.warn(f"the cache does without {path}: it {why}", RuntimeWarning, stacklevel=2)
    raise PermissionError(errno.EPERM, why, str(path))


def digest(*parts: str | bytes) -> str:
    """A key for `parts`: their lengths count, so that ("ab", "c") and ("a", "bc") differ."""
    state = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little") + data)
    return state.hexdigest()


class DiskCache:
    """Blobs under names in one folder. Safe for many processes at once.

    Each file carries a checksum: one that is truncated or edited reads as absent, as does one that others may have
    written (`distrust`). Writing is atomic (a
    temporary file, then a rename). A disk that cannot be written makes the cache useless, not the program.

    Args:
        folder: where; made on the first write.
        limit: bytes to keep, or a sixteenth more per process; the files used longest ago go first (None: no limit).
    """

    def __init__(self, folder: Path, limit: int | None = None) -> None:
        self.folder = folder
        self.limit = limit

    def get(self, key: str) -> bytes | None:
        """The blob under `key`, or None if there is none or it is damaged."""
        path = self.folder / key
        try:
            with open_private(path) as file:
                content = file.read()
        except OSError:
            return None
        head = len(_MAGIC) + _DIGEST
        blob = content[head:]
        if content[:head] != _MAGIC + hashlib.sha256(blob).digest():
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # used now: `limit` removes the oldest first
        return blob

    def put(self, key: str, blob: bytes) -> None:
        """Keep `blob` under `key`, replacing what was there."""
        with contextlib.suppress(OSError):
            make_private(self.folder)
            self._write(self.folder / key, _MAGIC + hashlib.sha256(blob).digest() + blob)
            if self.limit is not None:
                self._count(self.limit, len(_MAGIC) + _DIGEST + len(blob))

    def _write(self, path: Path, content: bytes) -> None:
        handle, temporary = tempfile.mkstemp(prefix=".new-", dir=self.folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def _count(self, limit: int, written: int) -> None:
        """Prune at the first write to a folder, and then each time that a part of its limit has been written."""
        total = _written.get(self.folder, limit) + written
        if total >= limit / _SLACK:
            self._prune(limit)
            total = 0
        _written[self.folder] = total

    def _prune(self, limit: int) -> None:
        files = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # another process pruned it
                    if entry.is_file():
                        files.append((entry.stat(), entry.path))
        total = sum(status.st_size for status, _ in files)
        for status, path in sorted(files, key=lambda file: file[0].st_mtime):
            if total <= limit:
                return
            Path(path).unlink(missing_ok=True)
            total -= status.st_size

    def clear(self) -> None:
        """Remove every file of the cache."""
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.is_file():
                    Path(entry.path).unlink(missing_ok=True)
