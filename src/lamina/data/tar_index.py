"""Index of a tar shard: the position of each file, for random access to samples.

A shard follows webdataset's convention: adjacent files that share their path up to the first dot of
their name are one sample; the part after the dot is the kind. Its index is stored beside it in the format of
NVIDIA DALI's `wds2idx` (v1.2): a line `v1.2 <samples>`, then for each sample a line of `<kind> <offset> <bytes>
<name>` for each file. Indexes are interchangeable with DALI's.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

import numpy as np

from lamina.data.idx import DataError
from lamina.runtime import write_atomically

Array = np.ndarray[Any, Any]
_VERSION = "v1.2"
#: Bytes of a tar's header, right before a file's content.
HEADER = 512
#: Errors that tarfile raises, and then skips, where a header is missing, truncated or damaged.
_CUT = (tarfile.EmptyHeaderError, tarfile.TruncatedHeaderError, tarfile.InvalidHeaderError)  # type: ignore[attr-defined]


class _BrokenShardError(tarfile.TarError):
    """A shard whose rest cannot be read; the message tells from which position on."""


class _Member(tarfile.TarInfo):
    """A header, or an error: after the first file tarfile takes a damaged or missing one for the end."""

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> Self:
        """The next header. Raises _BrokenShardError where neither a header nor the archive's end follows."""
        try:
            return super().fromtarfile(tarfile)
        except _CUT as error:
            if not tarfile.offset:
                raise
            raise _BrokenShardError(
                f"ends too early: at byte {tarfile.offset} a header or the archive's end should be ({error})"
            ) from None


class ShardFile(NamedTuple):
    """A file in a shard: the key of its sample, its kind ("jpg", "seg.png"), and where its bytes are."""

    key: str
    kind: str
    offset: int
    size: int
    name: str


@dataclass(frozen=True)
class ShardIndex:
    """Where the samples of a shard lie: sample i has the files ends[i - 1] to ends[i].

    kinds: names of kinds; kind: (M,) of each file. offset, size: (M,) bytes. names: all names, concatenated, of which
        the i-th ends at name_ends[i].
    """

    ends: Array
    kinds: tuple[str, ...]
    kind: Array
    offset: Array
    size: Array
    names: bytes
    name_ends: Array

    def __len__(self) -> int:
        return len(self.ends)

    @staticmethod
    def of(samples: Iterable[list[ShardFile]]) -> ShardIndex:
        """The index of samples in their order."""
        found = list(samples)
        files = [member for sample in found for member in sample]
        names = [os.fsencode(f.name) for f in files]
        kinds = {kind: number for number, kind in enumerate(dict.fromkeys(f.kind for f in files))}
        return ShardIndex(
            np.fromiter(accumulate(map(len, found)), np.int64),
            tuple(kinds),
            np.array([kinds[f.kind] for f in files], np.int32),
            np.array([f.offset for f in files], np.int64),
            np.array([f.size for f in files], np.int64),
            b"".join(names),
            np.fromiter(accumulate(map(len, names)), np.int64),
        )

    def files(self, sample: int) -> dict[str, int]:
        """The files of a sample: kind -> number."""
        begin = int(self.ends[sample - 1]) if sample else 0
        return {self.kinds[self.kind[n]]: n for n in range(begin, int(self.ends[sample]))}

    def name(self, file: int) -> str:
        """The name of a file."""
        begin = int(self.name_ends[file - 1]) if file else 0
        return os.fsdecode(self.names[begin : int(self.name_ends[file])])


def index_of(shard: str | Path) -> ShardIndex:
    """The index of a shard: the one beside it (`train-000.idx` for `train-000.tar`), if it is not older than
    the shard and reaches to its end, else made by reading all headers, and stored there if that can be written.

    Raises DataError for files that are not shards, or are compressed (`ShardStream` reads those).
    """
    path = Path(shard)
    beside = path.with_suffix(".idx")
    with suppress(OSError, ValueError, tarfile.TarError):
        if beside.stat().st_mtime_ns >= path.stat().st_mtime_ns:
            known = ShardIndex.of(_parsed(beside.read_text(encoding="utf-8"), path.stat().st_size))
            if not _goes_on(path, known):
                return known
    samples = [sample for sample, _ in read_shard(path)]
    if not samples:
        raise DataError(f"{path}: no samples; files in a shard are named as KEY.KIND")
    if not any(f.name != "".join(f.name.split()) for sample in samples for f in sample):
        with suppress(OSError):  # a folder that others own: the index is made again in each run
            write_atomically(beside, [_text(samples).encode()])
    return ShardIndex.of(samples)


def _goes_on(path: Path, known: ShardIndex) -> bool:
    """Whether the shard has samples behind the last file that is known: a longer one with an earlier date took its
    place. Raises TarError, and OSError, where its rest cannot be read.
    """
    last = int(np.argmax(known.offset))
    with path.open("rb") as source:
        source.seek(int(known.offset[last] + -(-known.size[last] // HEADER) * HEADER))
        with tarfile.open(fileobj=source, mode="r:", tarinfo=_Member) as tar:
            return any(True for _ in _grouped(path, tar, False))


def _text(samples: list[list[ShardFile]]) -> str:
    lines = [" ".join(f"{f.kind} {f.offset} {f.size} {f.name}" for f in sample) for sample in samples]
    return "\n".join([f"{_VERSION} {len(samples)}", *lines, ""])


def _parsed(text: str, total: int) -> Iterator[list[ShardFile]]:
    """The samples of an index. Raises ValueError if it does not belong to a shard of this size."""
    head, *lines = text.splitlines()
    if head != f"{_VERSION} {len(lines)}":
        raise ValueError(head)
    for line in lines:
        words = line.split(" ")
        files = [
            ShardFile("", kind, int(offset), int(size), name)
            for kind, offset, size, name in (words[i : i + 4] for i in range(0, len(words), 4))
        ]
        if any(f.offset < HEADER or f.size < 0 or f.offset + f.size > total for f in files):
            raise ValueError(line)
        yield files


def read_shard(
    path: str | Path, source: IO[bytes] | None = None
) -> Iterator[tuple[list[ShardFile], list[bytes]]]:
    """The samples of a shard in their order: files, and, where they come from a stream, their contents.

    source: a non-seekable stream, compressed or not; without one the shard is a file, and only its headers are read.
        Raises DataError for a file that is not a tar, or is truncated, and for two files of one name and kind.
    """
    try:
        with _opened(path, source) as tar:
            yield from _grouped(path, tar, source is not None)
            if source is None and tar.offset > os.stat(path).st_size:
                raise DataError(f"{path}: ends before its last file does")
    except _BrokenShardError as error:
        raise DataError(f"{path}: {error}; fetch or write it again") from None
    except (tarfile.TarError, EOFError) as error:
        raise DataError(
            f"{path}: is no tar that can be read here ({error}); ShardStream reads compressed ones"
        ) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def _opened(path: str | Path, source: IO[bytes] | None) -> tarfile.TarFile:
    if source is None:
        return tarfile.open(path, "r:", tarinfo=_Member)
    return tarfile.open(fileobj=source, mode="r|*", tarinfo=_Member)


def _grouped(
    path: str | Path, tar: tarfile.TarFile, contents: bool
) -> Iterator[tuple[list[ShardFile], list[bytes]]]:
    sample: list[ShardFile] = []
    read: list[bytes] = []
    for info in tar:
        key, kind = split_name(info.name)
        if not info.isreg() or not kind:
            continue
        if sample and sample[0].key != key:
            yield sample, read
            sample, read = [], []
        if any(f.kind == kind for f in sample):
            raise DataError(f"{path}: the sample {key} has two files of kind {kind}")
        sample.append(ShardFile(key, kind, info.offset_data, info.size, info.name))
        if contents:
            file = tar.extractfile(info)
            assert file is not None
            read.append(file.read())
    if sample:
        yield sample, read


def split_name(name: str) -> tuple[str, str]:
    """The key of a file's sample and its kind, in lower case: ("a/0001", "seg.png") of "a/0001.seg.png". The kind is
    empty for files that belong to no sample: names without a dot, hidden files, and webdataset's own metadata."""
    folder, slash, last = name.rpartition("/")
    stem, _, kind = last.partition(".")
    if not stem or last.startswith("__"):
        return name, ""
    return folder + slash + stem, kind.lower()
