"""A disk cache for results that are expensive to compute and can always be recomputed."""

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
#: A folder's sizes are recounted after this fraction of its limit has been written.
_SLACK = 16
#: Folder -> bytes that this process wrote there since the last count.
_written: dict[Path, int] = {}
#: Paths already reported as untrusted.
_warned: set[Path] = set()


def cache_directory() -> Path:
    """The folder for compiled kernels and plans: $LAMINA_CACHE, else ~/.cache/lamina (XDG_CACHE_HOME heeded).

    Without a writable home it is lamina-<user id> in the folder for temporary files.
    Created on first use, accessible to its owner only; so must an existing folder be (see `distrust`).
    """
    wanted = os.environ.get("LAMINA_CACHE")
    if wanted:
        folder = Path(wanted)
        with contextlib.suppress(RuntimeError):  # a "~" without a home is taken literally
            folder = folder.expanduser()
        with contextlib.suppress(OSError):  # `DiskCache` works without it
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
    """Why others may have written a folder or a file of the cache; "" if only this user may, or it does not exist.

    The contents of the cache are executed: kernels and plans that others could have put there are neither read nor
    replaced.
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
    """Create a folder that only this user may read and write, or check the existing one. Raises OSError."""
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
    """Raise PermissionError if there is a reason, and report it once per path."""
    if not why:
        return
    if path not in _warned:
        _warned.add(path)
        warnings.warn(f"the cache does without {path}: it {why}", RuntimeWarning, stacklevel=2)
    raise PermissionError(errno.EPERM, why, str(path))


def digest(*parts: str | bytes) -> str:
    """A key for `parts`, including their lengths, so that ("ab", "c") and ("a", "bc") differ."""
    state = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little") + data)
    return state.hexdigest()


class DiskCache:
    """Named blobs in one folder. Safe for many processes at once.

    Each file carries a checksum: a truncated or edited one reads as absent, as does one that others may have
    written (`distrust`). Writes are atomic (a temporary file, then a rename). If the disk is not writable, the cache
    is useless, but the program works.

    Args:
        folder: created on the first write.
        limit: bytes to keep, with an excess of up to a sixteenth per process; least recently used files are evicted
            first (None: no limit).
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
            os.utime(path)  # mark as used: `limit` evicts the oldest first
        return blob

    def put(self, key: str, blob: bytes) -> None:
        """Store `blob` under `key`, replacing an existing one."""
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
        """Prune at the first write to a folder, and then each time that a fraction of its limit has been written."""
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
