"""Where pixels lie: flips, and rotations, affine and perspective transforms, which Pillow computes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from lamina._lazy import lazy
from lamina.data.transforms.base import (
    Array,
    Fill,
    InterpolationMode,
    Rng,
    Sometimes,
    Transform,
    around_zero,
    fill_of,
    levels_of,
    probability,
    size_of,
)

#: Pillow is loaded at the first use.
_load = lazy("lamina.data.transforms", {"pillow": "lamina.data.transforms.pillow"})
Interpolation = Literal["nearest", "bilinear", "bicubic"] | InterpolationMode


class RandomHorizontalFlip(Transform):
    """Flips left and right with probability p."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = probability("RandomHorizontalFlip", p)

    def __call__(self, image: Array, rng: Rng) -> Array:
        """The image or its mirror image."""
        size_of("RandomHorizontalFlip", image)
        return image[:, ::-1] if rng.random() < self.p else image


class RandomVerticalFlip(Transform):
    """Flips top and bottom with probability p."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = probability("RandomVerticalFlip", p)

    def __call__(self, image: Array, rng: Rng) -> Array:
        """The image or its mirror image."""
        size_of("RandomVerticalFlip", image)
        return image[::-1] if rng.random() < self.p else image


class RandomRotation(Transform):
    """An image (H, W, C) rotated counterclockwise by a random angle.

    degrees: drawn from -x to x, or between two bounds. interpolation: "nearest", "bilinear" or "bicubic". expand: the
    result is as large as the whole rotated image needs; else it has the image's size. center: (x, y) from the upper
    left corner, instead of the image's center. fill: the level, or one for each channel, of what lies outside. Raises
    ValueError for other numbers of these and a negative x, and ShapeError for a fill that does not fit the channels.
    """

    def __init__(
        self,
        degrees: float | Sequence[float],
        interpolation: Interpolation = "nearest",
        expand: bool = False,
        center: Sequence[float] | None = None,
        fill: Fill = 0,
    ) -> None:
        self.degrees = _ordered(
            "RandomRotation", "degrees", around_zero("RandomRotation", "degrees", degrees, (2,))
        )
        self.interpolation, self.expand = str(interpolation), expand
        self.center, self.fill = _pair("RandomRotation", "center", center), fill_of("RandomRotation", fill)

    def __call__(self, image: Array, rng: Rng) -> Array:
        """The rotated image."""
        size_of("RandomRotation", image)
        angle = rng.uniform(self.degrees[0], self.degrees[1])
        return rotated(image, angle, self.interpolation, self.fill, self.expand, self.center)


class RandomAffine(Transform):
    """An image (H, W, C) rotated, moved, scaled and sheared at random.

    degrees: the angle (clockwise) is drawn from -x to x, or between two bounds. translate: how far it moves at most,
    as fractions (of the width, of the height) from 0 to 1. scale: bounds of the positive factor. shear: degrees,
    drawn from -x to x or between two bounds along x, or by four bounds along x and y. interpolation, fill and center:
    as of `RandomRotation`. Raises ValueError for other numbers, and ShapeError for a fill that does not fit the
    channels.
    """

    def __init__(
        self,
        degrees: float | Sequence[float],
        translate: Sequence[float] | None = None,
        scale: Sequence[float] | None = None,
        shear: float | Sequence[float] | None = None,
        interpolation: Interpolation = "nearest",
        fill: Fill = 0,
        center: Sequence[float] | None = None,
    ) -> None:
        name = "RandomAffine"
        self.degrees = _ordered(name, "degrees", around_zero(name, "degrees", degrees, (2,)))
        self.translate, self.scale = _pair(name, "translate", translate), _pair(name, "scale", scale)
        if self.translate is not None and not all(0 <= t <= 1 for t in self.translate):
            raise ValueError(f"{name}: translate must be fractions from 0 to 1, got {translate!r}")
        if self.scale is not None and not 0 < self.scale[0] <= self.scale[1] < math.inf:
            raise ValueError(f"{name}: scale must be a pair 0 < a <= b, got {scale!r}")
        bounds = None if shear is None else around_zero(name, "shear", shear, (2, 4))
        self.shear = bounds and _ordered(name, "shear", bounds)
        self.interpolation, self.fill = str(interpolation), fill_of(name, fill)
        self.center = _pair(name, "center", center)

    def __call__(self, image: Array, rng: Rng) -> Array:
        """The transformed image, of the same size."""
        height, width = size_of("RandomAffine", image)
        angle = rng.uniform(self.degrees[0], self.degrees[1])
        most = [t * n for t, n in zip(self.translate or (0, 0), (width, height), strict=True)]
        shift = [round(rng.uniform(-m, m)) for m in most]
        scale = rng.uniform(*(self.scale or (1, 1)))
        bounds = (*(self.shear or ()), 0, 0, 0, 0)[:4]
        shear = [rng.uniform(bounds[0], bounds[1]), rng.uniform(bounds[2], bounds[3])]
        return affine(image, angle, shift, scale, shear, self.interpolation, self.fill, self.center)


class RandomPerspective(Sometimes):
    """An image (H, W, C) seen from another side, with probability p: its corners move inwards at random.

    distortion_scale: the part of half of the image by which they move at most, from 0 to 1. interpolation and fill:
    as of `RandomRotation`. Raises ValueError for other numbers, and ShapeError for a fill that does not fit the
    channels.
    """

    def __init__(
        self,
        distortion_scale: float = 0.5,
        p: float = 0.5,
        interpolation: Interpolation = "bilinear",
        fill: Fill = 0,
    ) -> None:
        super().__init__(p)
        if not 0 <= distortion_scale <= 1:
            raise ValueError(
                f"RandomPerspective: distortion_scale must be from 0 to 1, got {distortion_scale}"
            )
        self.distortion_scale = distortion_scale
        self.interpolation, self.fill = str(interpolation), fill_of("RandomPerspective", fill)

    def __call__(self, image: Array, rng: Rng) -> Array:
        """The image, or its projection of the same size."""
        height, width = size_of("RandomPerspective", image)
        if rng.random() >= self.p:
            return image
        return projected(image, self._corners(height, width, rng), self.interpolation, self.fill)

    def _corners(self, height: int, width: int, rng: Rng) -> Array:
        """Where the corners go, int (4, 2) as (x, y): top left, top right, bottom right, bottom left."""
        most = [int(self.distortion_scale * (n // 2)) for n in (width, height)]
        inwards = rng.integers(0, most, (4, 2), endpoint=True)
        return np.abs(_corners(height, width) - inwards)


# ---- computed on images


def rotated(
    image: Array,
    angle: float,
    interpolation: str,
    fill: Fill,
    expand: bool = False,
    center: Sequence[float] | None = None,
) -> Array:
    """An image rotated counterclockwise by an angle in degrees."""
    levels = levels_of("RandomRotation", fill, image)
    found: Array = _load("pillow").rotated(image, angle, interpolation, levels, expand, center)
    return found


def affine(
    image: Array,
    angle: float,
    shift: Sequence[float],
    scale: float,
    shear: Sequence[float],
    interpolation: str,
    fill: Fill,
    center: Sequence[float] | None = None,
) -> Array:
    """An image rotated clockwise and sheared by angles in degrees, scaled, and moved by (x, y) pixels."""
    height, width = size_of("RandomAffine", image)
    middle = np.array(center or (width / 2, height / 2))
    back = _inverse(math.radians(angle), scale, *map(math.radians, shear))
    offset = middle - back @ (middle + shift)  # (x, y) of the image = back @ (x, y) of the result + offset
    numbers = [*back[0], offset[0], *back[1], offset[1]]
    levels = levels_of("RandomAffine", fill, image)
    found: Array = _load("pillow").warped(image, "affine", numbers, interpolation, levels)
    return found


def projected(image: Array, corners: Array, interpolation: str, fill: Fill) -> Array:
    """An image whose corners' pixels go to these places, (4, 2) as (x, y), clockwise from the top left one."""
    numbers = _perspective(corners, _corners(*size_of("RandomPerspective", image)))
    levels = levels_of("RandomPerspective", fill, image)
    found: Array = _load("pillow").warped(image, "perspective", numbers, interpolation, levels)
    return found


def _inverse(angle: float, scale: float, shear_x: float, shear_y: float) -> Array:
    """The inverse of shears along x and then y, by minus their tangents, then a rotation and a scale, (2, 2)."""
    cos, sin = math.cos(angle), math.sin(angle)
    along_x, along_y = [[1, math.tan(shear_x)], [0, 1]], [[1, 0], [math.tan(shear_y), 1]]
    found: Array = np.array(along_x) @ along_y @ [[cos, sin], [-sin, cos]] / scale
    return found


def _corners(height: int, width: int) -> Array:
    """(x, y) of an image's corners, (4, 2), clockwise from the top left one."""
    return np.array([[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]])


def _perspective(ends: Array, starts: Array) -> Array:
    """a to h with start = (a x + b y + c, d x + e y + f) / (g x + h y + 1) for each of four ends (x, y), (8,).

    Two linear equations for each corner. Corners that coincide leave them undetermined: the smallest numbers then.
    """
    ones, zeros = np.ones((4, 1)), np.zeros((4, 3))
    across = np.hstack([ends, ones, zeros, -starts[:, :1] * ends])
    down = np.hstack([zeros, ends, ones, -starts[:, 1:] * ends])
    solved: Array = np.linalg.lstsq(np.vstack([across, down]), starts.T.ravel(), rcond=None)[0]
    return solved


def _pair(name: str, argument: str, given: Sequence[float] | None) -> tuple[float, float] | None:
    if given is None:
        return None
    if len(given) != 2:
        raise ValueError(f"{name}: {argument} must be two numbers, got {given!r}")
    return float(given[0]), float(given[1])


def _ordered(name: str, argument: str, bounds: tuple[float, ...]) -> tuple[float, ...]:
    """Bounds in pairs. Raises ValueError where the second is less than the first."""
    if not all(low <= high for low, high in zip(bounds[::2], bounds[1::2], strict=True)):
        raise ValueError(f"{name}: {argument} must be bounds a <= b, got {bounds}")
    return bounds
