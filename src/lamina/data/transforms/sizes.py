"""Sizes of images: scaling, padding and crops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from lamina.data.transforms.base import (
    Array,
    Fill,
    Rng,
    Transform,
    as_before,
    fill_of,
    levels_of,
    size_of,
    size_pair,
)
from lamina.ops.primitives.axis_map import AxisMap

#: What lies beyond an image's border: a level; its last pixel; the image mirrored at its last pixel, or behind it.
PaddingMode = Literal["constant", "edge", "reflect", "symmetric"]
Scaling = Literal["nearest", "nearest-exact", "bilinear", "bicubic"]


class Resize(Transform):
    """An image (H, W, C) in another size.

    size: height and width; a single number is the length of the smaller side. interpolation: "nearest" (the first of
    the pixels that a new one covers), "nearest-exact" (the middle one), "bilinear" or "bicubic". max_size: what the
    longer side is at most, for a size of one number, which must be less. antialias: "bilinear" and "bicubic" average
    when an image shrinks. Raises ValueError for other sizes.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        interpolation: Scaling = "bilinear",
        max_size: int | None = None,
        antialias: bool = True,
    ) -> None:
        pair = size_pair("Resize", size)
        self.size = pair if isinstance(size, Sequence) and len(size) == 2 else pair[0]
        if max_size is not None and (isinstance(self.size, tuple) or max_size <= self.size):
            raise ValueError(f"Resize: max_size must exceed a size of one number, got {max_size} and {size}")
        self.interpolation, self.max_size, self.antialias = str(interpolation), max_size, antialias

    def __call__(self, image: Array, rng: Rng) -> Array:
        """The resized image."""
        height, width = self._result(*size_of("Resize", image))
        return scaled(image, height, width, self.interpolation, self.antialias)

    def _result(self, height: int, width: int) -> tuple[int, int]:
        if isinstance(self.size, tuple):
            return self.size
        least, most = min(height, width), max(height, width)
        short, long = self.size, most * self.size // least
        if self.max_size is not None and long > self.max_size:
            short, long = self.max_size * short // long, self.max_size
        short, long = max(1, short), max(1, long)
        return (short, long) if height <= width else (long, short)


class CenterCrop(Transform):
    """The center of an image; a smaller one is padded with zeros."""

    def __init__(self, size: int | Sequence[int]) -> None:
        self.size = size_pair("CenterCrop", size)

    def __call__(self, image: Array, rng: Rng) -> Array:
        """The center crop."""
        image = _at_least(image, *self.size)
        height, width = size_of("CenterCrop", image)
        top, left = round((height - self.size[0]) / 2), round((width - self.size[1]) / 2)  # as torchvision's
        return image[top : top + self.size[0], left : left + self.size[1]]


class Pad(Transform):
    """An image (H, W, C) with a border around it.

    padding: the border's width at all sides, or (left and right, top and bottom), or (left, top, right, bottom); at
    least 0. fill: the level, or one for each channel, of the mode "constant"; None for 0. padding_mode: "constant";
    "edge" repeats the last pixel; "reflect" mirrors the image without it, "symmetric" with it. Raises ValueError for
    other widths and modes, and ShapeError for a fill that does not fit the channels.
    """

    def __init__(
        self, padding: int | Sequence[int], fill: Fill = 0, padding_mode: PaddingMode = "constant"
    ) -> None:
        given = (padding,) if isinstance(padding, int) else tuple(padding)
        if len(given) not in (1, 2, 4) or min(given) < 0:
            raise ValueError(f"Pad: padding must be 1, 2 or 4 numbers of at least 0, got {padding!r}")
        self.padding = given * (4 // len(given))
        self.fill, self.padding_mode = fill_of("Pad", fill), padding_mode

    def __call__(self, image: Array, rng: Rng) -> Array:
        """The padded image (H + top + bottom, W + left + right, C)."""
        height, width = size_of("Pad", image)
        left, top, right, bottom = self.padding
        if self.padding_mode != "constant":
            return np.pad(image, ((top, bottom), (left, right), (0, 0)), self.padding_mode)
        found = np.empty((top + height + bottom, left + width + right, image.shape[2]), image.dtype)
        found[...] = levels_of("Pad", self.fill, image)
        found[top : top + height, left : left + width] = image
        return found


class RandomCrop(Transform):
    """A crop of this size at a random position, after padding.

    padding, fill, padding_mode: as of `Pad`. pad_if_needed: an image that is smaller still is padded in the same way,
    at both sides by what lacks at one; else with zeros up to the size.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        padding: int | Sequence[int] | None = None,
        pad_if_needed: bool = False,
        fill: Fill = 0,
        padding_mode: PaddingMode = "constant",
    ) -> None:
        self.size, self.pad = size_pair("RandomCrop", size), Pad(padding or 0, fill, padding_mode)
        self.pad_if_needed = pad_if_needed

    def __call__(self, image: Array, rng: Rng) -> Array:
        """The crop."""
        image = self.pad(image, rng)
        lacks = [max(0, n - have) for n, have in zip(self.size, image.shape, strict=False)]
        if self.pad_if_needed and any(lacks):
            image = Pad((lacks[1], lacks[0]), self.pad.fill, self.pad.padding_mode)(image, rng)
        image = _at_least(image, *self.size)
        height, width = image.shape[:2]
        top = int(rng.integers(0, height - self.size[0] + 1))
        left = int(rng.integers(0, width - self.size[1] + 1))
        return image[top : top + self.size[0], left : left + self.size[1]]


class RandomResizedCrop(Transform):
    """A random crop resized to `size` (Szegedy et al. 2014).

    scale: its area as a fraction of the image's. ratio: width over height, log-uniformly distributed. interpolation,
    antialias: as of `Resize`.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        interpolation: Scaling = "bilinear",
        antialias: bool = True,
    ) -> None:
        for name, pair in (("scale", scale), ("ratio", ratio)):
            if not 0 < pair[0] <= pair[1]:
                raise ValueError(f"RandomResizedCrop: {name} must be a pair 0 < a <= b, got {pair}")
        self.size, self.scale, self.ratio = size_pair("RandomResizedCrop", size), scale, ratio
        self.interpolation, self.antialias = str(interpolation), antialias

    def __call__(self, image: Array, rng: Rng) -> Array:
        """The resized crop."""
        height, width = size_of("RandomResizedCrop", image)
        top, left, rows, columns = self._part(height, width, rng)
        part = image[top : top + rows, left : left + columns]
        return scaled(part, *self.size, self.interpolation, self.antialias)

    def _part(self, height: int, width: int, rng: Rng) -> tuple[int, int, int, int]:
        for _ in range(10):
            rows, columns = drawn(height * width, self.scale, self.ratio, rng)
            if 0 < columns <= width and 0 < rows <= height:
                top, left = rng.integers(0, height - rows + 1), rng.integers(0, width - columns + 1)
                return int(top), int(left), rows, columns
        # None fits: a center crop, as large as the ratios allow.
        ratio = min(max(width / height, self.ratio[0]), self.ratio[1])
        rows, columns = min(height, round(width / ratio)), min(width, round(height * ratio))
        return (height - rows) // 2, (width - columns) // 2, rows, columns


class FiveCrop(Transform):
    """Five crops of an image (H, W, C): its corners and its center (Krizhevsky et al. 2012).

    size: the crops' height and width, or one number for both. Raises ValueError where the image is smaller.
    """

    def __init__(self, size: int | Sequence[int]) -> None:
        self.size = size_pair("FiveCrop", size)

    def __call__(self, image: Array, rng: Rng) -> tuple[Array, ...]:
        """A tuple of top left, top right, bottom left, bottom right and center, each (*size, C)."""
        return _five("FiveCrop", image, self.size, rng)


class TenCrop(Transform):
    """The five crops of an image (H, W, C), and those of its mirror image.

    size: the crops' height and width, or one number for both. vertical_flip: mirror top and bottom, instead of left
    and right. Raises ValueError where the image is smaller.
    """

    def __init__(self, size: int | Sequence[int], vertical_flip: bool = False) -> None:
        self.size, self.vertical_flip = size_pair("TenCrop", size), vertical_flip

    def __call__(self, image: Array, rng: Rng) -> tuple[Array, ...]:
        """A tuple of ten crops (*size, C): `FiveCrop`'s of the image, then of its mirror image."""
        first = _five("TenCrop", image, self.size, rng)
        mirrored = image[::-1] if self.vertical_flip else image[:, ::-1]
        return first + _five("TenCrop", mirrored, self.size, rng)


def _five(name: str, image: Array, size: tuple[int, int], rng: Rng) -> tuple[Array, ...]:
    height, width = size_of(name, image)
    rows, columns = size
    if rows > height or columns > width:
        raise ValueError(f"{name}: size {size} is larger than the image's {(height, width)}; pad it first")
    corners = [
        image[top : top + rows, left : left + columns]
        for top in (0, height - rows)
        for left in (0, width - columns)
    ]
    return (*corners, CenterCrop(size)(image, rng))


def scaled(
    image: Array, height: int, width: int, interpolation: str = "bilinear", antialias: bool = True
) -> Array:
    """An image (H, W, C) resized along its columns, then along its rows; uint8 is rounded to levels behind each."""
    for axis, size in ((1, width), (0, height)):
        present = image.shape[axis]
        if present != size:
            weights = _weights(interpolation, antialias, present, size).table
            image = as_before(image, weights.apply(image.astype(np.float32), axis))
    return image


def _weights(interpolation: str, antialias: bool, present: int, size: int) -> AxisMap:
    if interpolation.startswith("nearest"):
        return AxisMap(interpolation, present, size, (present / size,))
    kind = {"bilinear": "linear", "bicubic": "cubic"}[interpolation]
    return AxisMap(f"{kind}-antialias" if antialias else kind, present, size, (present / size, 0))


def drawn(area: float, scale: tuple[float, float], ratio: tuple[float, float], rng: Rng) -> tuple[int, int]:
    """Height and width of a random crop: its fraction of the area, and width over height, drawn from ranges."""
    part = area * rng.uniform(*scale)
    slope = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
    return round(math.sqrt(part / slope)), round(math.sqrt(part * slope))


def _at_least(image: Array, height: int, width: int) -> Array:
    """The image padded with zeros where it is smaller."""
    down, across = max(0, height - image.shape[0]), max(0, width - image.shape[1])
    if not (down or across):
        return image
    return np.pad(image, ((down // 2, down - down // 2), (across // 2, across - across // 2), (0, 0)))
