"""Lazily read tensors of a file."""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lamina.files.element_types import ElementType
from lamina.files.source import Source, WeightsError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Storage:
    """Bytes of a file that hold tensors; several tensors may share them.

    label: their name in errors. digest: their SHA-256, crc: their CRC-32, if the file has one.
    """

    source: Source = field(compare=False, repr=False)
    label: str
    offset: int
    nbytes: int
    digest: str | None = None
    crc: int | None = None

    def read(self) -> Array:
        """The bytes, uint8. Raises WeightsError if they were changed, OSError."""
        found = self.source.read(self.offset, self.nbytes)
        if self.digest is not None and hashlib.sha256(found.data).hexdigest() != self.digest:
            raise self._changed()
        if self.crc is not None and zlib.crc32(found.data) != self.crc:
            raise self._changed()
        return found

    def _changed(self) -> WeightsError:
        return WeightsError(
            f"{self.source.path}: the content of {self.label} was changed after it was written"
        )


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file. offset and strides are in elements of its type, within its storage.

    big_endian: the numbers are stored in big-endian byte order.
    """

    storage: Storage
    kind: ElementType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    big_endian: bool = False

    @classmethod
    def whole(
        cls,
        source: Source,
        name: str,
        kind: ElementType,
        shape: tuple[int, ...],
        offset: int,
        *,
        digest: str | None = None,
    ) -> StoredTensor:
        """A tensor with its own bytes, row-major."""
        nbytes = math.prod(shape) * kind.numpy.itemsize
        storage = Storage(source, f"tensor {name!r}", offset, nbytes, digest)
        return cls(storage, kind, shape, row_major(shape))

    @property
    def nbytes(self) -> int:
        """Bytes of its elements; more than the storage has if elements repeat (broadcast strides)."""
        return math.prod(self.shape) * self.kind.numpy.itemsize

    @property
    def checked(self) -> bool:
        """Whether a corruption of its bytes would be detected."""
        return self.storage.digest is not None or self.storage.crc is not None

    def inside(self) -> bool:
        """Whether all of its elements lie in its storage."""
        if self.offset < 0 or min((*self.shape, *self.strides), default=0) < 0:
            return False
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        end = self.offset + last + 1 if 0 not in self.shape else self.offset
        return end * self.kind.numpy.itemsize <= self.storage.nbytes

    def read(self, known: MutableMapping[Storage, Array] | None = None) -> Array:
        """Its values. known: storages read before; tensors of one storage share its memory.

        Raises WeightsError where the bytes were changed, OSError.
        """
        known = {} if known is None else known
        if self.storage not in known:
            known[self.storage] = self.storage.read()
        item = self.kind.numpy.itemsize
        values: Array = np.ndarray(
            self.shape,
            self.kind.numpy,
            known[self.storage].data if self.storage.nbytes else np.empty(item, np.uint8).data,
            self.offset * item if self.nbytes else 0,
            [s * item for s in self.strides],
        )
        return values.byteswap() if self.big_endian else values

    def contiguous(self) -> bool:
        """Whether it is row-major."""
        return 0 in self.shape or all(
            n == 1 or s == w for n, s, w in zip(self.shape, self.strides, row_major(self.shape), strict=True)
        )


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a row-major tensor, in elements."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(1, shape[i + 1])
    return tuple(strides)
