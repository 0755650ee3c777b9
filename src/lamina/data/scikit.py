"""Scikit-learn's handwritten digits: 1,797 scans of 8×8 pixels, 10 classes (UCI ML hand-written digits).

They ship with the library, so nothing is downloaded. `lamina.data.digits` imports this module at first use.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from lamina._renamed import renamed
from lamina.data.batches import Batch, Batches
from lamina.data.image import resample
from lamina.ops.arguments import checked

try:
    from sklearn.datasets import load_digits
except ImportError as error:
    raise ImportError("data.digits needs scikit-learn: pip install 'lamina[data]'") from error

Array = np.ndarray[Any, Any]

CLASSES = 10
SPLITS = ("train", "validation", "test")
#: The fraction of each class for validation, and for the test; the split never changes.
SHARE = 0.2


@renamed(batch="batch_size")
@checked
def digits(
    batch_size: int = 128,
    size: int = 224,
    split: str = "train",
    *,
    shuffle: bool | None = None,
    seed: int = 0,
    drop_last: bool | None = None,
    shift: float = 0.0,
) -> Batches:
    """Handwritten digits scaled to size × size: batches of images and labels.

    Yields images float32 (batch_size, 1, size, size), bilinear, normalized by the training pixels' mean and standard
    deviation, and labels int64 (batch_size,).

    split: "train" has 1,079 scans, "validation" 359, "test" 359: a fixed cut with equal shares of each class.
        Choose learning rates, epochs and networks on "validation"; look at "test" once, at the end.
    shuffle, drop_last: by default True for "train", else False.
    seed: for the order and the random shifts.
    shift: in training, each scan is moved by up to this many of its 8 pixels along each axis.
    Raises ValueError for an unknown split or a size < 1.
    """
    if split not in SPLITS:
        raise ValueError(f"digits: split must be one of {', '.join(SPLITS)}, got {split!r}")
    if size < 1:
        raise ValueError(f"digits: size must be at least 1, got {size}")
    images, labels = scans(split)
    mean, deviation = statistics()
    training = split == "train"

    def load(indices: Array, rng: np.random.Generator) -> Batch:
        scaled = resample(images[indices], size, rng if training else None, shift)
        return (scaled - mean) / deviation, labels[indices]

    return Batches(
        load,
        len(images),
        batch_size,
        shuffle=training if shuffle is None else shuffle,
        seed=seed,
        drop_last=training if drop_last is None else drop_last,
        num_classes=CLASSES,
    )


@lru_cache(maxsize=3)
def scans(split: str) -> tuple[Array, Array]:
    """The scans (N, 8, 8) float32 with ink from 0 to 16, and labels (N,) int64, of one split."""
    raw = load_digits()
    chosen = cut(raw.target) == SPLITS.index(split)
    return raw.images[chosen].astype(np.float32), raw.target[chosen].astype(np.int64)


@lru_cache(maxsize=1)
def statistics() -> tuple[np.float32, np.float32]:
    """Mean and standard deviation of the training scans' pixels."""
    images = scans("train")[0]
    return np.float32(images.mean()), np.float32(images.std())


def cut(labels: Array) -> Array:
    """The split of each sample, as its index in SPLITS: of each class the same fractions, by a fixed generator."""
    rng = np.random.default_rng(0)
    found = np.zeros(len(labels), np.int64)
    for digit in range(CLASSES):
        members = rng.permutation(np.flatnonzero(labels == digit))
        count = round(len(members) * SHARE)
        found[members[:count]] = SPLITS.index("validation")
        found[members[count : 2 * count]] = SPLITS.index("test")
    return found
