"""A place on disk for what is expensive to make and can always be made again."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

_MAGIC = b"lamina1\n"
_DIGEST = hashlib.sha256().digest_size
#: A folder's sizes are added up again when this part of its limit has been written.
_SLACK = 16
#: Folder -> bytes that this process wrote there since it added them up.
_written: dict[Path, int] = {}


def cache_directory() -> Path:
    """The folder for compiled kernels and plans: $LAMINA_CACHE, else ~/.cache/lamina (XDG_CACHE_HOME heeded).

    Made on first use, readable by its owner only.
    """
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(os.environ.get("LAMINA_CACHE") or Path(base) / "lamina").expanduser()
    with contextlib.suppress(OSError):  # a home that cannot be written: `DiskCache` does without
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def digest(*parts: str | bytes) -> str:
    """A key for `parts`: their lengths count, so that ("ab", "c") and ("a", "bc") differ."""
    state = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little") + data)
    return state.hexdigest()


class DiskCache:
    """Blobs under names in one folder. Safe for many processes at once.

    Each file carries a checksum: one that is torn, cut or edited reads as absent. Writing is atomic (a
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
            content = path.read_bytes()
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
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
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
