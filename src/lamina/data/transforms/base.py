"""What all transforms share: how they show themselves, and the checks of images, sizes, probabilities and fills."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import numpy as np

from lamina.ops.arguments import Checked
from lamina.spec import ShapeError

Array = np.ndarray[Any, Any]
Rng = np.random.Generator
#: A level for all channels, or one for each; None for 0.
Fill = float | Sequence[float] | None


class InterpolationMode(StrEnum):
    """How levels between pixels are computed: of the nearest pixel, of 2 x 2, or of 4 x 4. The strings do as well.

    NEAREST_EXACT is for sizes alone (`Resize`).
    """

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"


class Transform(Checked):
    """Shows its arguments."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"


class Sometimes(Transform):
    """Changes an image (H, W, C) with probability p and returns it unchanged otherwise."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = probability(type(self).__name__, p)

    def __call__(self, image: Array, rng: Rng) -> Array:
        """The changed image, with probability p. Raises ShapeError for anything but (H, W, 3) and (H, W, 1)."""
        size_of(type(self).__name__, image)
        return self.changed(image) if rng.random() < self.p else image

    def changed(self, image: Array) -> Array:
        """The image after the change."""
        raise NotImplementedError


def as_before(image: Array, levels: Array) -> Array:
    """Levels in the image's type; for uint8 they are rounded to the nearest."""
    if image.dtype != np.uint8:
        return levels.astype(image.dtype)
    return np.clip(np.floor(levels + 0.5), 0, 255).astype(np.uint8)


def size_of(name: str, image: Array) -> tuple[int, int]:
    """Height and width. Raises ShapeError."""
    if image.ndim != 3 or image.shape[2] not in (1, 3) or 0 in image.shape:
        raise ShapeError(f"{name}: needs an image (H, W, 3) or (H, W, 1), got {image.shape}")
    return image.shape[0], image.shape[1]


def size_pair(name: str, size: int | Sequence[int]) -> tuple[int, int]:
    """Height and width of a size that is given as one number or as two. Raises ValueError."""
    pair = (size, size) if isinstance(size, int) else tuple(size) * (2 if len(size) == 1 else 1)
    if len(pair) != 2 or min(pair) < 1:
        raise ValueError(f"{name}: size must be one or two numbers of at least 1, got {size!r}")
    return int(pair[0]), int(pair[1])


def probability(name: str, p: float) -> float:
    """The probability. Raises ValueError."""
    if not 0 <= p <= 1:
        raise ValueError(f"{name}: p must be from 0 to 1, got {p}")
    return p


def around_zero(
    name: str, argument: str, given: float | Sequence[float], lengths: tuple[int, ...]
) -> tuple[float, ...]:
    """Bounds of a draw: x means from -x to x; else as many numbers as `lengths` allows. Raises ValueError."""
    if isinstance(given, int | float):
        if not 0 <= given < math.inf:
            raise ValueError(f"{name}: {argument} must be a finite number of at least 0, got {given}")
        return -float(given), float(given)
    if len(given) not in lengths:
        allowed = " or ".join(map(str, lengths))
        raise ValueError(f"{name}: {argument} must be one number, or {allowed} of them, got {given!r}")
    if not all(map(math.isfinite, given)):
        raise ValueError(f"{name}: {argument} must be finite numbers, got {given!r}")
    return tuple(float(x) for x in given)


def fill_of(name: str, fill: Fill) -> Fill:
    """The fill. Raises ValueError unless it is one number, or one for each of 1 or 3 channels."""
    if isinstance(fill, Sequence) and len(fill) not in (1, 3):
        raise ValueError(f"{name}: fill must be one number, or one for each channel (1 or 3), got {fill!r}")
    return fill


def levels_of(name: str, fill: Fill, image: Array) -> Array:
    """The fill as levels (C,) in the image's type. Raises ShapeError."""
    channels = image.shape[2]
    levels = np.atleast_1d(np.asarray(0 if fill is None else fill, np.float32))
    if len(levels) not in (1, channels):
        raise ShapeError(f"{name}: {len(levels)} numbers in fill for {channels} channels")
    return as_before(image, np.broadcast_to(levels, (channels,)))
