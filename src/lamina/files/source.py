"""The bytes of a file, read in parts on demand.

Files are read, not mapped: access to a map ends the process (SIGBUS) if another program has truncated the file.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any, Self

import numpy as np

Array = np.ndarray[Any, Any]


class WeightsError(ValueError):
    """A file that is not a valid file of weights, or was changed since; the message names file and tensor."""


class Source:
    """A file that is open for reading, or its content.

    path: its name in errors. size: bytes. Raises OSError when it cannot be read. A pipe is read immediately.
    """

    def __init__(self, path: str | Path, content: bytes | None = None) -> None:
        self.path = str(path)
        self._handle, self._content = -1, content
        if content is not None:
            self.size = len(content)
            return
        self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        status = os.fstat(self._handle)
        self.size = status.st_size
        if not stat.S_ISREG(status.st_mode):
            self._take_all(status.st_mode)

    def _take_all(self, mode: int) -> None:
        """Read a pipe to its end. Raises OSError for folders, WeightsError for devices, which have no end."""
        if stat.S_ISDIR(mode):
            self.close()
            raise IsADirectoryError(errno.EISDIR, "is a folder, not a file", self.path)
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            self.close()
            raise WeightsError(f"{self.path}: a device, not a file")
        with os.fdopen(self._handle, "rb", closefd=True) as file:
            self._content, self._handle = file.read(), -1
        self.size = len(self._content)

    def read(self, offset: int, nbytes: int) -> Array:
        """So many bytes from an offset, uint8, as a copy.

        Raises WeightsError if the file has fewer, OSError.
        """
        if not 0 <= offset <= offset + nbytes <= self.size:
            raise WeightsError(
                f"{self.path}: it ends after {self.size} bytes, but {nbytes} are wanted at {offset}"
            )
        found = np.empty(nbytes, np.uint8)
        if self._content is not None:
            found[:] = np.frombuffer(self._content, np.uint8, nbytes, offset)
            return found
        rest: memoryview[int] = found.data
        while len(rest):
            count = os.preadv(self._handle, [rest], offset)
            if not count:
                raise WeightsError(f"{self.path}: it became shorter while it was read")
            rest, offset = rest[count:], offset + count
        return found

    def close(self) -> None:
        """Close it. Idempotent."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
