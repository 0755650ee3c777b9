"""Automatic augmentation: policies that draw from a list of operations on images and from their magnitudes.

An operation is known by a name of the papers ("ShearX", "Posterize", …). Images are (H, W, C), uint8 or float32 from
0 to 255. Pillow is needed for the geometric operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from lamina.data.transforms import colour, geometry
from lamina.data.transforms.base import Array, Fill, Rng, Transform, as_before, fill_of, size_of
from lamina.data.transforms.geometry import Interpolation
from lamina.data.transforms.policies import POLICIES, AutoAugmentPolicy

#: Strengths that `AugMix` knows, and magnitudes that a policy of `AutoAugment` refers to.
_TEN = 10


class _Choice(NamedTuple):
    """The magnitudes of an operation, None if it has none, and whether their sign is drawn."""

    magnitudes: Array | None = None
    signed: bool = False

    def drawn(self, which: int, rng: Rng) -> float:
        """The magnitude of this number, of either sign if it may have one."""
        if self.magnitudes is None:
            return 0.0
        magnitude = float(self.magnitudes[which])
        return -magnitude if self.signed and rng.random() < 0.5 else magnitude


#: Operations by name, with the magnitudes that they may have.
Space = dict[str, _Choice]


class _Automatic(Transform):
    """What the policies share. interpolation and fill: of the geometric operations, as of `RandomRotation`."""

    interpolation: str
    fill: Fill

    def _places(self, interpolation: str, fill: Fill) -> None:
        self.interpolation, self.fill = str(interpolation), fill_of(type(self).__name__, fill)

    def _apply(self, image: Array, operation: str, magnitude: float) -> Array:
        return _OPERATIONS[operation](image, magnitude, self.interpolation, self.fill)


class AutoAugment(_Automatic):
    """Two operations that were found to help on a data set, drawn from 25 pairs (Cubuk et al. 2018).

    policy: "imagenet", "cifar10" or "svhn". interpolation: "nearest", "bilinear" or "bicubic". fill: the level, or
    one for each channel, of what lies outside of the image; None for 0. Raises ValueError for others, and ShapeError
    for a fill that does not fit the channels.
    """

    def __init__(
        self,
        policy: Literal["imagenet", "cifar10", "svhn"] | AutoAugmentPolicy = AutoAugmentPolicy.IMAGENET,
        interpolation: Interpolation = "nearest",
        fill: Fill = None,
    ) -> None:
        self.policy = str(policy)
        self._places(interpolation, fill)

    def __call__(self, image: Array, rng: Rng) -> Array:
        """The image (H, W, C) after the operations."""
        space = _found_space(_TEN, *size_of("AutoAugment", image)) | {"Invert": _Choice()}
        pairs = POLICIES[self.policy]
        for operation, probability, which in pairs[int(rng.integers(len(pairs)))]:
            if rng.random() < probability:
                image = self._apply(image, operation, space[operation].drawn(which, rng))
        return image


class RandAugment(_Automatic):
    """A few operations drawn at random, all of one magnitude (Cubuk et al. 2019).

    num_ops: how many, at least 0. magnitude: which of `num_magnitude_bins` steps from none to the largest, from 0.
    interpolation and fill: as of `AutoAugment`. Raises ValueError for other numbers, and ShapeError for a fill that
    does not fit the channels.
    """

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: int = 9,
        num_magnitude_bins: int = 31,
        interpolation: Interpolation = "nearest",
        fill: Fill = None,
    ) -> None:
        if num_ops < 0:
            raise ValueError(f"RandAugment: num_ops must be at least 0, got {num_ops}")
        if not 0 <= magnitude < num_magnitude_bins:
            raise ValueError(
                f"RandAugment: magnitude must be at least 0 and less than num_magnitude_bins, got {magnitude} and "
                f"{num_magnitude_bins}"
            )
        self.num_ops, self.magnitude, self.num_magnitude_bins = num_ops, magnitude, num_magnitude_bins
        self._places(interpolation, fill)

    def __call__(self, image: Array, rng: Rng) -> Array:
        """The image (H, W, C) after the operations."""
        height, width = size_of("RandAugment", image)
        space = _found_space(self.num_magnitude_bins, height, width) | {"Identity": _Choice()}
        for _ in range(self.num_ops):
            operation = _one_of(space, rng)
            image = self._apply(image, operation, space[operation].drawn(self.magnitude, rng))
        return image


class TrivialAugmentWide(_Automatic):
    """One operation and its magnitude drawn at random, from a wide range (Müller and Hutter 2021).

    num_magnitude_bins: how many steps there are from none to the largest, at least 1. interpolation and fill: as of
    `AutoAugment`. Raises ValueError for other numbers, and ShapeError for a fill that does not fit the channels.
    """

    def __init__(
        self, num_magnitude_bins: int = 31, interpolation: Interpolation = "nearest", fill: Fill = None
    ) -> None:
        if num_magnitude_bins < 1:
            raise ValueError(
                f"TrivialAugmentWide: num_magnitude_bins must be at least 1, got {num_magnitude_bins}"
            )
        self.num_magnitude_bins = num_magnitude_bins
        self._places(interpolation, fill)

    def __call__(self, image: Array, rng: Rng) -> Array:
        """The image (H, W, C) after the operation."""
        size_of("TrivialAugmentWide", image)
        space = _wide_space(self.num_magnitude_bins)
        operation = _one_of(space, rng)
        which = int(rng.integers(self.num_magnitude_bins))
        return self._apply(image, operation, space[operation].drawn(which, rng))


class AugMix(_Automatic):
    """A random mixture of an image and of several chains of operations on it (Hendrycks et al. 2019).

    severity: the largest magnitude, from 1 to 10. mixture_width: how many chains, at least 1. chain_depth: how many
    operations each has; drawn from 1 to 3 unless it is positive. alpha: of the Dirichlet and beta distributions that
    the weights are drawn from, positive. all_ops: brightness, colour, contrast and sharpness as well. interpolation
    and fill: as of `AutoAugment`. Raises ValueError for other numbers, and ShapeError for a fill that does not fit
    the channels.
    """

    def __init__(
        self,
        severity: int = 3,
        mixture_width: int = 3,
        chain_depth: int = -1,
        alpha: float = 1.0,
        all_ops: bool = True,
        interpolation: Interpolation = "bilinear",
        fill: Fill = None,
    ) -> None:
        if not 1 <= severity <= _TEN:
            raise ValueError(f"AugMix: severity must be from 1 to {_TEN}, got {severity}")
        if mixture_width < 1 or not 0 < alpha < math.inf:
            raise ValueError(
                f"AugMix: needs mixture_width >= 1 and a finite alpha > 0, got {mixture_width} and {alpha}"
            )
        self.severity, self.mixture_width, self.chain_depth = severity, mixture_width, chain_depth
        self.alpha, self.all_ops = alpha, all_ops
        self._places(interpolation, fill)

    def __call__(self, image: Array, rng: Rng) -> Array:
        """The mixture (H, W, C)."""
        space = _mixed_space(*size_of("AugMix", image), self.all_ops)
        own, others = rng.dirichlet([self.alpha] * 2)
        mixture = np.float32(own) * image.astype(np.float32)
        for weight in rng.dirichlet([self.alpha] * self.mixture_width):
            mixture += np.float32(others * weight) * self._chain(image, space, rng)
        return as_before(image, mixture)

    def _chain(self, image: Array, space: Space, rng: Rng) -> Array:
        depth = self.chain_depth if self.chain_depth > 0 else int(rng.integers(1, 3, endpoint=True))
        for _ in range(depth):
            operation = _one_of(space, rng)
            which = int(rng.integers(self.severity))
            image = self._apply(image, operation, space[operation].drawn(which, rng))
        return image


def _one_of(space: Space, rng: Rng) -> str:
    return list(space)[int(rng.integers(len(space)))]


# ---- which magnitudes


def _found_space(bins: int, height: int, width: int) -> Space:
    """Of `AutoAugment` and `RandAugment`. Translations are 150 pixels at most of ImageNet's 331 in the paper."""
    along = 150 / 331
    return (
        _placed(bins, 0.3, along * height, along * width, 30.0) | _coloured(bins, 0.9) | _levelled(bins, 8, 4)
    )


def _wide_space(bins: int) -> Space:
    """Of `TrivialAugmentWide`, whose translations are in pixels whatever the size."""
    places = _placed(bins, 0.99, 32.0, 32.0, 135.0)
    return {"Identity": _Choice()} | places | _coloured(bins, 0.99) | _levelled(bins, 8, 2)


def _mixed_space(height: int, width: int, all_ops: bool) -> Space:
    """Of `AugMix`."""
    space = _placed(_TEN, 0.3, height / 3, width / 3, 30.0) | _levelled(_TEN, 4, 0)
    return space | _coloured(_TEN, 0.9) if all_ops else space


def _placed(bins: int, shear: float, down: float, across: float, angle: float) -> Space:
    """Geometric operations: slopes, pixels, degrees at most."""
    most = {"ShearX": shear, "ShearY": shear, "TranslateX": across, "TranslateY": down, "Rotate": angle}
    return {name: _Choice(np.linspace(0, m, bins), signed=True) for name, m in most.items()}


def _coloured(bins: int, most: float) -> Space:
    """Operations with a factor, by how much it differs from one at most."""
    names = ("Brightness", "Color", "Contrast", "Sharpness")
    return dict.fromkeys(names, _Choice(np.linspace(0, most, bins), signed=True))


def _levelled(bins: int, bits: int, least: int) -> Space:
    """Operations on levels: the bits that are kept, and the part of the range from which on levels are inverted."""
    return {
        "Posterize": _Choice(np.round(np.linspace(bits, least, bins))),
        "Solarize": _Choice(np.linspace(1, 0, bins)),
        "AutoContrast": _Choice(),
        "Equalize": _Choice(),
    }


# ---- operations: functions of an image, a magnitude, an interpolation and a fill

_Operation = Callable[[Array, float, str, Fill], Array]


def _shear(image: Array, angles: tuple[float, float], interpolation: str, fill: Fill) -> Array:
    """Sheared by radians along x and y, about the upper left corner."""
    x, y = map(math.degrees, angles)
    return geometry.affine(image, 0, (0, 0), 1, (x, y), interpolation, fill, (0, 0))


def _move(image: Array, shift: tuple[float, float], interpolation: str, fill: Fill) -> Array:
    """Moved by whole pixels along x and y."""
    return geometry.affine(image, 0, [int(s) for s in shift], 1, (0, 0), interpolation, fill)


def _factor(change: Any) -> _Operation:
    """An operation by a factor of 1 + magnitude."""
    return lambda image, magnitude, *_: colour.adjusted(image, change, 1 + magnitude)


_OPERATIONS: dict[str, _Operation] = {
    "Identity": lambda image, *_: image,
    "ShearX": lambda image, m, *places: _shear(image, (math.atan(m), 0), *places),
    "ShearY": lambda image, m, *places: _shear(image, (0, math.atan(m)), *places),
    "TranslateX": lambda image, m, *places: _move(image, (m, 0), *places),
    "TranslateY": lambda image, m, *places: _move(image, (0, m), *places),
    "Rotate": lambda image, m, *places: geometry.rotated(image, m, *places),
    "Brightness": _factor(colour.brightness),
    "Color": _factor(colour.saturation),
    "Contrast": _factor(colour.contrast),
    "Sharpness": lambda image, m, *_: colour.sharpened(image, 1 + m),
    "Posterize": lambda image, m, *_: colour.posterized(image, int(m)),
    "Solarize": lambda image, m, *_: colour.solarized(image, 255 * m),
    "AutoContrast": lambda image, *_: colour.stretched(image),
    "Equalize": lambda image, *_: colour.equalized(image),
    "Invert": lambda image, *_: colour.inverted(image),
}
