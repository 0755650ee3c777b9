"""Colours of images: greys, brightness and its kin, histograms, sharpness, blur.

The functions without a generator take and return images (H, W, C), uint8 or float32 from 0 to 255. `brightness`,
`contrast` and `saturation` take float32 and a factor, and may leave the range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lamina.data.transforms.base import Array, Rng, Sometimes, Transform, as_before, size_of

#: The luma weights of red, green and blue (ITU-R BT.601).
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)


class Grayscale(Transform):
    """The luma of an image, in 1 or 3 channels."""

    def __init__(self, num_output_channels: int = 1) -> None:
        if num_output_channels not in (1, 3):
            raise ValueError(f"Grayscale: num_output_channels must be 1 or 3, got {num_output_channels}")
        self.num_output_channels = num_output_channels

    def __call__(self, image: Array, rng: Rng) -> Array:
        """The grayscale image."""
        return np.repeat(as_before(image, _grey("Grayscale", image)), self.num_output_channels, 2)


class ColorJitter(Transform):
    """Random brightness, contrast, saturation and hue, in a random order.

    brightness, contrast, saturation: the factor is drawn from max(0, 1 - x) to 1 + x, or from a pair. hue: the
    shift is drawn from -x to x, at most half a circle (0.5), or from a pair. None leaves the image as it is. Raises
    ValueError for what lies outside of these ranges.
    """

    def __init__(
        self,
        brightness: float | tuple[float, float] | None = None,
        contrast: float | tuple[float, float] | None = None,
        saturation: float | tuple[float, float] | None = None,
        hue: float | tuple[float, float] | None = None,
    ) -> None:
        self.brightness = _range("brightness", brightness, 1, 0, math.inf)
        self.contrast = _range("contrast", contrast, 1, 0, math.inf)
        self.saturation = _range("saturation", saturation, 1, 0, math.inf)
        self.hue = _range("hue", hue, 0, -0.5, 0.5)

    def __call__(self, image: Array, rng: Rng) -> Array:
        """The jittered image."""
        size_of("ColorJitter", image)
        drawn = [rng.uniform(*r) for r in (self.brightness, self.contrast, self.saturation, self.hue)]
        found = image.astype(np.float32)
        for which in rng.permutation(4):
            found = np.clip(_COLOURS[which](found, np.float32(drawn[which])), 0, 255)
        return as_before(image, found)


def brightness(x: Array, factor: Any) -> Array:
    """Levels times a factor."""
    found: Array = x * factor
    return found


def contrast(x: Array, factor: Any) -> Array:
    """The distance from the mean luma times a factor."""
    mean = _grey("ColorJitter", x).mean(dtype=np.float32)
    found: Array = mean + (x - mean) * factor
    return found


def saturation(x: Array, factor: Any) -> Array:
    """The distance from the pixel's own luma times a factor."""
    grey = _grey("ColorJitter", x)
    found: Array = grey + (x - grey) * factor
    return found


def _hue(x: Array, shift: Any) -> Array:
    """Through HSV (Smith 1978). Gray images have no hue."""
    if x.shape[2] != 3 or shift == 0:
        return x
    high, low = x.max(2), x.min(2)
    span = high - low
    safe = np.where(span > 0, span, 1)
    red, green, blue = (x[..., i] for i in range(3))
    sector = np.where(
        high == red,
        (green - blue) / safe % 6,
        np.where(high == green, (blue - red) / safe + 2, (red - green) / safe + 4),
    )
    turned = (sector + shift * 6) % 6
    # Each channel rises over one sector, stays for two, falls over one, stays for two.
    parts = [np.clip(np.abs((turned + offset) % 6 - 3) - 1, 0, 1) for offset in (0, 4, 2)]
    return np.stack([low + span * p for p in parts], 2).astype(np.float32)


_COLOURS = (brightness, contrast, saturation, _hue)


class RandomGrayscale(Sometimes):
    """The luma of an image in all of its channels, with probability p. Raises ValueError for p outside of [0, 1]."""

    def __init__(self, p: float = 0.1) -> None:
        super().__init__(p)

    def changed(self, image: Array) -> Array:
        """The luma (H, W, C)."""
        return np.repeat(as_before(image, _grey("RandomGrayscale", image)), image.shape[2], 2)


class RandomInvert(Sometimes):
    """The negative of an image, 255 minus its levels, with probability p.

    Raises ValueError for p outside of [0, 1].
    """

    def changed(self, image: Array) -> Array:
        """The negative."""
        return inverted(image)


class RandomPosterize(Sometimes):
    """The upper bits of an image's levels, with probability p.

    bits: how many of 8 are kept, from 0 to 8. The levels of a float32 image are rounded down to those that remain.
    Raises ValueError for other bits, and for p outside of [0, 1].
    """

    def __init__(self, bits: int, p: float = 0.5) -> None:
        super().__init__(p)
        if not 0 <= bits <= 8:
            raise ValueError(f"RandomPosterize: bits must be from 0 to 8, got {bits}")
        self.bits = bits

    def changed(self, image: Array) -> Array:
        """The image with fewer levels."""
        return posterized(image, self.bits)


class RandomSolarize(Sometimes):
    """The negative of all levels that are at least `threshold`, with probability p.

    threshold: at most 255. Raises ValueError for a larger one, and for p outside of [0, 1].
    """

    def __init__(self, threshold: float, p: float = 0.5) -> None:
        super().__init__(p)
        if not threshold <= 255:
            raise ValueError(f"RandomSolarize: threshold must be at most 255, got {threshold}")
        self.threshold = threshold

    def changed(self, image: Array) -> Array:
        """The solarized image."""
        return solarized(image, self.threshold)


class RandomAdjustSharpness(Sometimes):
    """An image blurred or sharpened, with probability p.

    sharpness_factor: 0 gives the image after a filter of 3 x 3, 1 the image itself, 2 twice the distance between
    them. The outermost pixels stay. Raises ValueError for a negative factor, and for p outside of [0, 1].
    """

    def __init__(self, sharpness_factor: float, p: float = 0.5) -> None:
        super().__init__(p)
        if not 0 <= sharpness_factor < math.inf:
            raise ValueError(
                f"RandomAdjustSharpness: sharpness_factor must be finite and at least 0, got {sharpness_factor}"
            )
        self.sharpness_factor = sharpness_factor

    def changed(self, image: Array) -> Array:
        """The blurred or sharpened image."""
        return sharpened(image, self.sharpness_factor)


class RandomAutocontrast(Sometimes):
    """Each channel stretched so that its levels reach from 0 to 255, with probability p.

    A channel of one level stays. Raises ValueError for p outside of [0, 1].
    """

    def changed(self, image: Array) -> Array:
        """The stretched image."""
        return stretched(image)


class RandomEqualize(Sometimes):
    """Each channel with about as many pixels of each level, with probability p.

    The levels of a float32 image are rounded first. Raises ValueError for p outside of [0, 1].
    """

    def changed(self, image: Array) -> Array:
        """The equalized image."""
        return equalized(image)


class GaussianBlur(Transform):
    """An image (H, W, C) blurred by a Gaussian whose standard deviation is drawn for each image.

    kernel_size: how many pixels the filter spans, odd: one number, or (along the width, along the height). sigma: the
    standard deviation in pixels, or the bounds between which it is drawn. The image is mirrored at its border. Raises
    ValueError for even or negative sizes, and unless 0 < lower bound <= upper bound.
    """

    def __init__(self, kernel_size: int | Sequence[int], sigma: float | Sequence[float] = (0.1, 2.0)) -> None:
        across, down = (
            (kernel_size,) * 2 if isinstance(kernel_size, int) else _two("kernel_size", kernel_size)
        )
        if min(across, down) < 1 or across % 2 == 0 or down % 2 == 0:
            raise ValueError(f"GaussianBlur: kernel_size must be odd and at least 1, got {kernel_size!r}")
        low, high = (sigma,) * 2 if isinstance(sigma, int | float) else _two("sigma", sigma)
        if not 0 < low <= high < math.inf:
            raise ValueError(f"GaussianBlur: sigma must be positive, or a pair 0 < a <= b, got {sigma!r}")
        self.kernel_size, self.sigma = (across, down), (float(low), float(high))

    def __call__(self, image: Array, rng: Rng) -> Array:
        """The blurred image."""
        size_of("GaussianBlur", image)
        sigma = rng.uniform(*self.sigma)
        across, down = (_gaussian(length, sigma) for length in self.kernel_size)
        return as_before(image, _filtered(_filtered(image.astype(np.float32), down, 0), across, 1))


def _two(argument: str, given: Sequence[Any]) -> Sequence[Any]:
    if len(given) != 2:
        raise ValueError(f"GaussianBlur: {argument} must be one or two numbers, got {given!r}")
    return given


# ---- computed on images


def adjusted(image: Array, change: Callable[[Array, Any], Array], factor: float) -> Array:
    """`brightness`, `contrast` or `saturation` of an image, by a factor, within the range of levels."""
    return as_before(image, np.clip(change(image.astype(np.float32), np.float32(factor)), 0, 255))


def inverted(image: Array) -> Array:
    """The negative."""
    return np.subtract(255, image, dtype=image.dtype)


def posterized(image: Array, bits: int) -> Array:
    """The levels rounded down to multiples of 2 ** (8 - bits)."""
    if image.dtype == np.uint8:
        return image & np.uint8(256 - (1 << (8 - bits)) & 255)
    step = image.dtype.type(1 << (8 - bits))
    return np.floor(image / step) * step if bits < 8 else image


def solarized(image: Array, threshold: float) -> Array:
    """Levels from the threshold on are inverted."""
    return np.where(image >= threshold, inverted(image), image)


def sharpened(image: Array, factor: float) -> Array:
    """The image's distance from a smoothed one, times the factor; an image without inner pixels stays."""
    if min(image.shape[:2]) < 3:
        return image
    found = image.astype(np.float32)
    inner = found[1:-1, 1:-1]
    rows = found[:-2] + found[1:-1] + found[2:]
    smooth = (rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:] + 4 * inner) / 13  # weights 1, and 5 in the middle
    if image.dtype == np.uint8:
        smooth = np.rint(smooth)  # as Pillow and torchvision, to which it is an image
    inner[...] = smooth + (inner - smooth) * np.float32(factor)
    return as_before(image, np.clip(found, 0, 255))


def stretched(image: Array) -> Array:
    """Each channel's least level becomes 0, its largest 255."""
    return np.stack([_stretched(image[..., c]) for c in range(image.shape[2])], 2)


def _stretched(channel: Array) -> Array:
    low, high = float(channel.min()), float(channel.max())
    if low == high:
        return channel
    narrow = channel.dtype == np.uint8  # a table of all levels is less work than all pixels
    levels = np.arange(256) if narrow else channel
    found = as_before(channel, np.clip((levels - low) * (255 / (high - low)), 0, 255))
    return found[channel] if narrow else found


def equalized(image: Array) -> Array:
    """Each channel with its histogram equalized."""
    levels = image if image.dtype == np.uint8 else np.clip(np.rint(image), 0, 255).astype(np.uint8)
    channels = [_equalizing(levels[..., c])[levels[..., c]] for c in range(image.shape[2])]
    return np.stack(channels, 2).astype(image.dtype)


def _equalizing(channel: Array) -> Array:
    """The new level of each level, uint8 (256,). Pixels of the largest level do not count, as in Pillow."""
    counts = np.bincount(channel.ravel(), minlength=256)
    step = int(channel.size - counts[channel.max()]) // 255
    if step == 0:
        return np.arange(256, dtype=np.uint8)
    below = np.cumsum(counts) - counts
    found: Array = np.clip((below + step // 2) // step, 0, 255).astype(np.uint8)
    return found


def _gaussian(length: int, sigma: float) -> Array:
    """The filter's weights, float32 (length,)."""
    places = np.arange(length) - length // 2
    weights = np.exp(-0.5 * (places / sigma) ** 2)
    found: Array = (weights / weights.sum()).astype(np.float32)
    return found


def _filtered(levels: Array, weights: Array, axis: int) -> Array:
    """Levels correlated along an axis, mirrored at their border."""
    reach, length = len(weights) // 2, levels.shape[axis]
    mirrored = np.pad(levels, [(reach * (a == axis),) * 2 for a in range(3)], "reflect")
    found = np.zeros_like(levels)
    for place, weight in enumerate(weights):
        found += weight * (
            mirrored[place : place + length] if axis == 0 else mirrored[:, place : place + length]
        )
    return found


def _grey(name: str, image: Array) -> Array:
    """The luma, float32 (H, W, 1)."""
    size_of(name, image)
    if image.shape[2] == 1:
        return image.astype(np.float32)
    return (image.astype(np.float32) @ _LUMA)[..., None]


def _range(name: str, given: Any, middle: float, least: float, most: float) -> tuple[float, float]:
    given = 0 if given is None else given
    low, high = (max(least, middle - given), middle + given) if isinstance(given, int | float) else given
    if (isinstance(given, int | float) and given < 0) or not least <= low <= high <= most:
        raise ValueError(
            f"ColorJitter: {name} must be a number or a pair within [{least}, {most}], got {given!r}"
        )
    return float(low), float(high)
