"""Data sets of tar shards, as webdataset makes them: few large files instead of millions of small ones."""

from __future__ import annotations

import glob
import io
import itertools
import json
import os
import re
import tarfile
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

from lamina._json import parse_json
from lamina.data.codec import decode_image, encode_image
from lamina.data.datasets import Transform
from lamina.data.idx import DataError
from lamina.data.tar_index import HEADER, ShardIndex, index_of, split_name
from lamina.ops.arguments import Checked, checked
from lamina.runtime import write_atomically

Array = np.ndarray[Any, Any]
#: The maximum number of open shards.
_OPEN = 64
#: Content type by file kind (webdataset's); any other is bytes.
_IMAGES = ("jpg", "jpeg", "png", "bmp")
_NUMBERS = ("cls", "cls2", "class", "count", "index", "inx", "id")
_TEXTS = ("txt", "text", "transcript")
_JSON = ("json", "jsn")
#: Encoders of values other than bytes.
_WRITTEN: dict[str, Callable[[Any], bytes]] = {
    **dict.fromkeys(_NUMBERS, lambda value: b"%d" % value),
    **dict.fromkeys(_TEXTS, lambda value: str(value).encode()),
    **dict.fromkeys(_JSON, lambda value: json.dumps(value).encode()),
    "npy": lambda value: _npy(value),
}
#: Columns of a classifier's samples.
IMAGE_AND_LABEL = ("jpg;jpeg;png", "cls")


class Decoder(Checked):
    """Makes a sample from its files.

    columns: kinds of files; "jpg;png" takes the one that exists. The sample is a tuple of them; without columns
        it is a dict of all files by kind, with the key as "__key__".
    transform: (image, rng) -> image, applied to each image; those of one sample get equal generators, so that an
        image and its mask are cropped alike. mode, max_pixels: as in `decode_image`.
    Images are uint8 (H, W, C), cls, count and index numbers, txt strings, json its value, npy an array; else bytes.
    """

    def __init__(
        self,
        columns: Sequence[str] | None = IMAGE_AND_LABEL,
        transform: Transform | None = None,
        *,
        mode: str = "rgb",
        max_pixels: int = 1 << 26,
    ) -> None:
        self.columns = None if columns is None else [c.split(";") for c in columns]
        self.transform, self.mode, self.max_pixels = transform, mode, max_pixels

    def wanted(self, kinds: Iterable[str], where: str) -> list[str]:
        """The kinds to read of a sample that has these. Raises DataError where a column is missing."""
        there = list(kinds)
        if self.columns is None:
            return there
        found = [next((k for k in names if k in there), None) for names in self.columns]
        if None in found:
            missing = ";".join(self.columns[found.index(None)])
            raise DataError(
                f"{where}: no file of kind {missing}, only {', '.join(there)}; the files of a sample must lie one "
                "behind the other in a shard (tar --sort=name)"
            )
        return [kind for kind in found if kind is not None]

    def sample(self, key: str, files: Mapping[str, bytes], rng: np.random.Generator, where: str) -> Any:
        """The sample with these contents. Raises DataError, which names the sample."""
        found = {kind: self._value(kind, data, rng, f"{where}: {key}.{kind}") for kind, data in files.items()}
        return {"__key__": key, **found} if self.columns is None else tuple(found.values())

    def _value(self, kind: str, data: bytes, rng: np.random.Generator, where: str) -> Any:
        last = kind.rpartition(".")[2]
        try:
            if last in _IMAGES:
                image = decode_image(data, mode=self.mode, max_pixels=self.max_pixels).numpy()
            elif last in _NUMBERS:
                return int(data)
            elif last in _TEXTS:
                return data.decode()
            elif last in _JSON:
                return parse_json(data)
            elif last == "npy":
                return np.load(io.BytesIO(data), allow_pickle=False)
            else:
                return data
        except (ValueError, EOFError) as error:
            raise DataError(f"{where}: {error}") from None
        return image if self.transform is None else self.transform(image, deepcopy(rng))


class TarShards(Checked):
    """The samples of seekable tar shards as one data set (webdataset's convention: files of one name up to
    the first dot, such as a/17.jpg and a/17.cls, are one sample).

    paths: files, patterns ("train-*.tar") and webdataset's braces ("train-{000..146}.tar"); their order is the
        samples'.
    columns, transform, mode, max_pixels: as in `Decoder`.
    mix: for shuffling, samples are mixed over this many shards at a time, which are read before others are
        opened; None: over all.

    Each shard's index is made once, and stored beside it (`index_of`); a file that is not where the index says is an
    error. Only the requested files of a sample are read. Raises DataError for paths without shards, and for
    unreadable shards or samples.
    """

    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        columns: Sequence[str] | None = IMAGE_AND_LABEL,
        transform: Transform | None = None,
        *,
        mode: str = "rgb",
        max_pixels: int = 1 << 26,
        mix: int | None = None,
    ) -> None:
        if mix is not None and mix < 1:
            raise ValueError(f"TarShards: mix must be at least 1, got {mix}")
        self.decoder = Decoder(columns, transform, mode=mode, max_pixels=max_pixels)
        self.paths, self.mix = shard_paths(paths), mix
        self.indexes: list[ShardIndex] = [index_of(p) for p in self.paths]
        self.ends = list(itertools.accumulate(map(len, self.indexes)))
        self._files = _OpenFiles()

    def __len__(self) -> int:
        return self.ends[-1]

    def order(self, rng: np.random.Generator) -> Array:
        """The samples of an epoch: shards in random order, mixed over `mix` of them at a time."""
        begins = [0, *self.ends[:-1]]
        shards = rng.permutation(len(self.paths))
        size = self.mix or len(shards)
        groups = [shards[i : i + size] for i in range(0, len(shards), size)]
        mixed = [np.concatenate([np.arange(begins[s], self.ends[s]) for s in group]) for group in groups]
        return np.concatenate([rng.permutation(group) for group in mixed])

    def sample(self, index: int, rng: np.random.Generator) -> Any:
        """A sample, its images transformed with the generator; negative indices count from the end. Raises
        IndexError."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"TarShards: index {index} is not from {-len(self)} to {len(self) - 1}")
        index %= len(self)
        shard = bisect_right(self.ends, index)
        known, path = self.indexes[shard], self.paths[shard]
        number = index - (self.ends[shard - 1] if shard else 0)
        files = known.files(number)
        kinds = self.decoder.wanted(files, f"{path}: sample {number}")
        read = {kind: self._read(path, known, files[kind]) for kind in kinds}
        key = split_name(known.name(next(iter(files.values()))))[0]
        return self.decoder.sample(key, read, rng, path)

    def __getitem__(self, index: int) -> Any:
        """Likewise, with a generator that depends only on the index."""
        return self.sample(index, np.random.default_rng(index % len(self)))

    def _read(self, path: str, known: ShardIndex, file: int) -> bytes:
        """The content of a file, after its header, which must be that of the intended file."""
        offset, size = int(known.offset[file]), int(known.size[file])
        data = self._files.read(path, offset - HEADER, size + HEADER)
        if len(data) != size + HEADER or not _begins(data[:HEADER], known.name(file), size):
            raise DataError(
                f"{path}: {known.name(file)} is not at byte {offset}, where the index says: the shard has changed; "
                f"remove {Path(path).with_suffix('.idx')}, and it is made again"
            )
        return data[HEADER:]

    def __repr__(self) -> str:
        return f"TarShards({len(self)} samples in {len(self.paths)} shards)"


def _begins(header: bytes, name: str, size: int) -> bool:
    """Whether a tar's header is that of this file. Long and foreign names are stored elsewhere: there the size must
    do.
    """
    try:
        found = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return found.size == size and (found.name == name or len(name) >= 100 or not name.isascii())


class _OpenFiles:
    """Files that are open for reading at any position, by any thread; each process opens its own."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, _OpenFile] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, path: str, offset: int, size: int) -> bytes:
        try:
            return os.pread(self._file(path).number, size, offset)
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error

    def _file(self, path: str) -> _OpenFile:
        with self._lock:
            found = self._open.pop(path, None) or _OpenFile(path)
            self._open[path] = found
            if len(self._open) > _OPEN:
                self._open.popitem(last=False)
            return found

    def __reduce__(self) -> Any:
        return _OpenFiles, ()


class _OpenFile:
    """A descriptor that is closed when it is no longer being read."""

    def __init__(self, path: str) -> None:
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._close = os.close

    def __del__(self) -> None:
        if hasattr(self, "number"):
            self._close(self.number)


@checked
def shard_paths(paths: str | Path | Sequence[str | Path]) -> list[str]:
    """File names from files, patterns and webdataset's braces. Raises DataError if there are none."""
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    found: list[str] = []
    for text in (t for path in given for t in expand_braces(str(path))):
        matches = sorted(glob.glob(text)) if glob.has_magic(text) else [text]
        if not matches:
            raise DataError(f"{text}: there are no such shards")
        found += matches
    if not found:
        raise DataError("there are no shards")
    return found


def expand_braces(text: str) -> list[str]:
    """The names that "{000..146}" and "{a,b}" expand to, in order; numbers are as wide as the first."""
    match = re.search(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}", text)
    if match is None:
        return [text]
    first, last, listed = match.groups()
    parts = (
        listed.split(",")
        if listed is not None
        else [f"{n:0{len(first)}}" for n in range(int(first), int(last) + 1)]
    )
    return [
        name for part in parts for name in expand_braces(text[: match.start()] + part + text[match.end() :])
    ]


@checked
def write_shards(
    pattern: str | Path,
    samples: Iterable[Mapping[str, Any]],
    *,
    samples_per_shard: int = 1000,
    quality: int = 90,
) -> list[Path]:
    """Write samples as tar shards, with their indexes; returns the shards.

    pattern: file names with a placeholder for the shard's number, such as "train-%06d.tar".
    samples: dicts of kind -> value, {"jpg": image, "cls": 3}: images (uint8, H, W, C) for jpg, png and bmp,
        numbers for cls, strings for txt, anything for json, arrays for npy; bytes are written unchanged.
        "__key__" is the sample's name, by default its number in nine digits.
    quality: for JPEGs. Equal samples give equal files.
    Raises ValueError for a pattern without a placeholder, or a kind without an encoder for its value.
    """
    if samples_per_shard < 1:
        raise ValueError(f"write_shards: samples_per_shard must be at least 1, got {samples_per_shard}")
    try:
        if str(pattern) % 0 == str(pattern) % 1:
            raise TypeError
    except (TypeError, ValueError):
        raise ValueError(
            f"write_shards: pattern needs a place for one number, such as %06d; got {str(pattern)!r}"
        ) from None
    written: list[Path] = []
    rest = enumerate(samples)
    while part := list(itertools.islice(rest, samples_per_shard)):
        path = Path(str(pattern) % len(written))
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for number, sample in part:
                _add(tar, sample, f"{number:09}", quality)
        write_atomically(path, [content.getbuffer()])
        index_of(path)
        written.append(path)
    return written


def _add(tar: tarfile.TarFile, sample: Mapping[str, Any], name: str, quality: int) -> None:
    key = sample.get("__key__", name)
    for kind, value in sample.items():
        if kind != "__key__":
            data = _written(kind, value, quality)
            info = tarfile.TarInfo(f"{key}.{kind}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def _written(kind: str, value: Any, quality: int) -> bytes:
    """The bytes of a file."""
    last = kind.rpartition(".")[2]
    if isinstance(value, bytes):
        return value
    if last in _IMAGES:
        return encode_image(value, "jpeg" if last == "jpg" else last, quality=quality)
    way = _WRITTEN.get(last)
    if way is None:
        raise ValueError(f"write_shards: a {type(value).__name__} is not written as {kind!r}; give bytes")
    return way(value)


def _npy(value: Any) -> bytes:
    content = io.BytesIO()
    np.save(content, np.asarray(value), allow_pickle=False)
    return content.getvalue()
