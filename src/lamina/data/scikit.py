"""Scikit-learn's handwritten digits: 1,797 scans of 8×8 pixels, 10 classes (UCI ML hand-written digits).

They come with the library, so nothing is downloaded. `lamina.data.digits` imports this module at first use.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from lamina.data.batches import Batch, Batches
from lamina.data.image import resample

try:
    from sklearn.datasets import load_digits
except ImportError as error:
    raise ImportError("data.digits needs scikit-learn: pip install 'lamina[data]'") from error

Array = np.ndarray[Any, Any]

CLASSES = 10
#: Of each class, one scan in five is held out; which ones never changes.
HELD_OUT = 0.2


def digits(
    batch: int = 128,
    size: int = 224,
    split: str = "train",
    *,
    shuffle: bool | None = None,
    seed: int = 0,
    drop_last: bool | None = None,
    shift: float = 0.0,
) -> Batches:
    """Handwritten digits scaled to size × size: batches of images and labels.

    Gives images float32 (batch, 1, size, size), bilinear, normalised by the training pixels' mean and
    deviation, and labels int64 (batch,). split "train" has 1,438 scans, "test" has 359: a fixed, stratified
    cut.

    shuffle, drop_last: by default True for "train", False for "test".
    seed: of the order and of the random shifts.
    shift: in training, each scan is moved by up to this many of its 8 pixels along each axis.
    Raises ValueError for an unknown split or a size < 1.
    """
    if split not in ("train", "test"):
        raise ValueError(f"digits: split must be 'train' or 'test', got {split!r}")
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
        batch,
        shuffle=training if shuffle is None else shuffle,
        seed=seed,
        drop_last=training if drop_last is None else drop_last,
        classes=CLASSES,
    )


@lru_cache(maxsize=2)
def scans(split: str) -> tuple[Array, Array]:
    """The scans (N, 8, 8) float32 with ink from 0 to 16, and labels (N,) int64, of one split."""
    raw = load_digits()
    held = held_out(raw.target)
    chosen = held if split == "test" else ~held
    return raw.images[chosen].astype(np.float32), raw.target[chosen].astype(np.int64)


@lru_cache(maxsize=1)
def statistics() -> tuple[np.float32, np.float32]:
    """Mean and deviation of the training scans' pixels."""
    images = scans("train")[0]
    return np.float32(images.mean()), np.float32(images.std())


def held_out(labels: Array) -> Array:
    """Which samples are held out: the same share of each class, chosen by a fixed generator."""
    rng = np.random.default_rng(0)
    held = np.zeros(len(labels), bool)
    for digit in range(CLASSES):
        members = rng.permutation(np.flatnonzero(labels == digit))
        held[members[: round(len(members) * HELD_OUT)]] = True
    return held
