"""IDX files, the format of MNIST and Fashion-MNIST (LeCun, Cortes, Burges), plain or gzip-compressed.

A file is two zero bytes, a type byte, the rank, the sizes (big-endian 32-bit), then the elements
(big-endian).
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lamina._renamed import renamed
from lamina.data.batches import Batch, Batches
from lamina.data.image import resample
from lamina.ops.arguments import checked

Array = np.ndarray[Any, Any]

TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
#: A file that declares more than this is refused before anything is read: the largest known one has 0.6 GB.
LIMIT = 2 << 30
RANKS = 8
_CHUNK = 1 << 20
SPLITS = ("train", "validation", "test")
PREFIX = {"train": "train", "test": "t10k"}


class DataError(ValueError):
    """A data file that is missing, truncated or not in its format; the message names the file."""


def check_pixels(height: int, width: int, limit: int) -> None:
    """Raise DataError for an image of more pixels than the limit."""
    if height * width > limit:
        raise DataError(
            f"decode_image: {height} × {width} are {height * width} pixels, max_pixels is {limit}; "
            "allow more only for files that you trust"
        )


@checked
def read_idx(path: str | Path, limit: int = LIMIT) -> Array:
    """The array in an IDX file (".gz" is decompressed on the way). Reads at most `limit` bytes.

    Raises DataError for anything that is not a complete IDX file.
    """
    file = Path(path)
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            return _read(file, stream, limit)  # type: ignore[arg-type]
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{file}: not a sound gzip file ({error})") from error
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror or error})") from error


def _read(file: Path, stream: BinaryIO, limit: int) -> Array:
    head = stream.read(4)
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in TYPES:
        raise DataError(f"{file}: not an IDX file (it starts with {head.hex(' ')})")
    dtype, rank = np.dtype(TYPES[head[2]]), head[3]
    if rank > RANKS:
        raise DataError(f"{file}: claims {rank} axes, more than the limit of {RANKS}")
    sizes = stream.read(4 * rank)
    if len(sizes) < 4 * rank:
        raise DataError(f"{file}: cut short in its header")
    shape = struct.unpack(f">{rank}I", sizes)
    expected = math.prod(shape) * dtype.itemsize
    if expected > limit:
        raise DataError(f"{file}: claims {expected} bytes of data, more than the limit of {limit}")
    data = _read_exactly(file, stream, expected)
    return np.frombuffer(data, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def _read_exactly(file: Path, stream: BinaryIO, expected: int) -> bytes:
    """Exactly `expected` bytes; memory grows with the bytes actually present, not with the declared number."""
    parts: list[bytes] = []
    missing = expected
    while missing > 0 and (part := stream.read(min(missing, _CHUNK))):
        parts.append(part)
        missing -= len(part)
    if missing:
        raise DataError(f"{file}: cut short, {expected - missing} of {expected} bytes of data")
    if stream.read(1):
        raise DataError(f"{file}: has more than the {expected} bytes of data that its header claims")
    return b"".join(parts)


@renamed(batch="batch_size")
@checked
def mnist(
    folder: str | Path,
    batch_size: int = 128,
    *,
    size: int | None = None,
    split: str = "train",
    validation: float = 1 / 6,
    shuffle: bool | None = None,
    seed: int = 0,
    drop_last: bool | None = None,
    shift: float = 0.0,
) -> Batches:
    """MNIST, Fashion-MNIST or any data in the same four files, from a folder.

    Files: train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-… , each plain or ".gz". Downloads nothing.
    Yields images float32 (batch_size, 1, size, size), normalized by the training images' mean and standard deviation,
    and labels int64 (batch_size,).

    size: scaled to size × size, bilinear; None keeps the images as they are.
    split: "train", "validation" or "test".
    validation: the last fraction of the training files, which "train" leaves out: 10,000 of MNIST's 60,000. With 0
        "train" has all of them.
    shuffle, drop_last: by default True for "train", else False.
    shift: random shift in pixels of the file, for training.
    Raises DataError for a missing or unsound file, ValueError for an unknown split.
    """
    if split not in SPLITS:
        raise ValueError(f"mnist: split must be one of {', '.join(SPLITS)}, got {split!r}")
    if not 0 <= validation < 1:
        raise ValueError(f"mnist: validation must be at least 0 and less than 1, got {validation}")
    whole, targets = _load_split(Path(folder), "train")
    kept = len(whole) - round(len(whole) * validation)
    mean, deviation = float(whole[:kept].mean()), float(whole[:kept].std()) or 1.0
    part = slice(kept) if split == "train" else slice(kept, None)
    images, labels = _load_split(Path(folder), "test") if split == "test" else (whole[part], targets[part])
    wanted = size or whole.shape[1]
    training = split == "train"

    def load(indices: Array, rng: np.random.Generator) -> Batch:
        scaled = resample(images[indices], wanted, rng if training else None, shift)
        return (scaled - np.float32(mean)) / np.float32(deviation), labels[indices]

    return Batches(
        load,
        len(images),
        batch_size,
        shuffle=training if shuffle is None else shuffle,
        seed=seed,
        drop_last=training if drop_last is None else drop_last,
        num_classes=int(targets.max()) + 1,
    )


def _load_split(folder: Path, split: str) -> tuple[Array, Array]:
    """Images (N, H, W) uint8 and labels (N,) int64 of one split, checked against each other."""
    images = read_idx(_find(folder, f"{PREFIX[split]}-images-idx3-ubyte"))
    labels = read_idx(_find(folder, f"{PREFIX[split]}-labels-idx1-ubyte"))
    if images.ndim != 3 or images.dtype != np.uint8 or 0 in images.shape:
        raise DataError(
            f"{folder}: the {split} images are {images.dtype}{list(images.shape)}, not uint8[N,H,W]"
        )
    if labels.shape != images.shape[:1] or labels.dtype != np.uint8:
        raise DataError(
            f"{folder}: {len(images)} {split} images, but labels {labels.dtype}{list(labels.shape)}"
        )
    return images, labels.astype(np.int64)


def _find(folder: Path, name: str) -> Path:
    """The file called name, name.gz, or with a dot before idx as some archives have it."""
    candidates = [name, name.replace("-idx", ".idx")]
    for candidate in (f"{c}{end}" for c in candidates for end in ("", ".gz")):
        if (folder / candidate).is_file():
            return folder / candidate
    raise DataError(f"{folder}: there is no file {name} or {name}.gz")
