"""Augmentation: transforms of single images, and mixing of images within a batch. Names and defaults are
torchvision's.

An image is an array (H, W, C), uint8 or float32 from 0 to 255. A transform is called with it and a generator, on
which alone the random draws depend, so that a run repeats bit-exactly, whichever worker makes its batches. `ToTensor`
and `Normalize`, which come last, return float32 (C, H, W). `MixUp` and `CutMix` take batches
(`DataLoader(batch_transform=)`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lamina._lazy import listing
from lamina.data.image import triangle
from lamina.ops.arguments import Checked
from lamina.spec import ShapeError

__all__ = [
    "Border",
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "CutMix",
    "Grayscale",
    "MixUp",
    "Normalize",
    "RandomApply",
    "RandomCrop",
    "RandomErasing",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
    "ToTensor",
]
__dir__ = listing(__all__)

Array = np.ndarray[Any, Any]
Rng = np.random.Generator
#: The luma weights of red, green and blue (ITU-R BT.601).
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)


class Compose(Checked):
    """Transforms applied one after another."""

    def __init__(self, transforms: Sequence[Any]) -> None:
        wrong = next((t for t in transforms if isinstance(t, type) or not callable(t)), None)
        if wrong is not None:
            raise TypeError(f"Compose: transforms must be functions (image, rng) -> image, got {wrong!r}")
        self.transforms = list(transforms)

    def __call__(self, image: Array, rng: Rng) -> Array:
        """All of them."""
        for transform in self.transforms:
            image = transform(image, rng)
        return image

    def __repr__(self) -> str:
        return f"Compose({self.transforms})"


class _Transform(Checked):
    """Shows its arguments."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"


class RandomApply(_Transform):
    """A transform that is applied with probability p."""

    def __init__(self, transform: Any, p: float = 0.5) -> None:
        self.transform, self.p = transform, _probability("RandomApply", p)

    def __call__(self, image: Array, rng: Rng) -> Array:
        """Apply it with probability p."""
        return self.transform(image, rng) if rng.random() < self.p else image


# ---- sizes


class Resize(_Transform):
    """Resizes bilinearly with antialiasing; a single number is the length of the smaller side."""

    def __init__(self, size: int | tuple[int, int]) -> None:
        self.size = _size("Resize", size) if isinstance(size, tuple | list) else _size("Resize", size)[0]

    def __call__(self, image: Array, rng: Rng) -> Array:
        """The resized image."""
        height, width = _image("Resize", image)
        if isinstance(self.size, tuple):
            return scaled(image, *self.size)
        least = min(height, width)
        return scaled(image, max(1, height * self.size // least), max(1, width * self.size // least))


class CenterCrop(_Transform):
    """The center of an image; a smaller one is padded with zeros."""

    def __init__(self, size: int | tuple[int, int]) -> None:
        self.size = _size("CenterCrop", size)

    def __call__(self, image: Array, rng: Rng) -> Array:
        """The center crop."""
        image = _at_least(image, *self.size)
        height, width = _image("CenterCrop", image)
        top, left = round((height - self.size[0]) / 2), round((width - self.size[1]) / 2)  # as torchvision's
        return image[top : top + self.size[0], left : left + self.size[1]]


class Border(_Transform):
    """Adds a border: of one width, of (left and right, top and bottom), or of (left, top, right, bottom)."""

    def __init__(self, padding: int | Sequence[int], fill: float = 0, padding_mode: str = "constant") -> None:
        given = (padding,) if isinstance(padding, int) else tuple(padding)
        if len(given) not in (1, 2, 4) or min(given) < 0:
            raise ValueError(f"Border: padding must be 1, 2 or 4 numbers of at least 0, got {padding!r}")
        if padding_mode not in _MODES:
            raise ValueError(f"Border: padding_mode must be {', '.join(_MODES)}, got {padding_mode!r}")
        self.padding = given * (4 // len(given))
        self.fill, self.padding_mode = fill, padding_mode

    def __call__(self, image: Array, rng: Rng) -> Array:
        """The padded image."""
        _image("Border", image)
        left, top, right, bottom = self.padding
        options = {"constant_values": self.fill} if self.padding_mode == "constant" else {}
        mode: Any = _MODES[self.padding_mode]
        return np.pad(image, ((top, bottom), (left, right), (0, 0)), mode, **options)


_MODES = {"constant": "constant", "edge": "edge", "reflect": "reflect", "symmetric": "symmetric"}


class RandomCrop(_Transform):
    """A crop of this size at a random position, after padding; a smaller image is padded with zeros."""

    def __init__(
        self, size: int | tuple[int, int], padding: int | Sequence[int] = 0, *, padding_mode: str = "constant"
    ) -> None:
        self.size, self.pad = _size("RandomCrop", size), Border(padding, padding_mode=padding_mode)

    def __call__(self, image: Array, rng: Rng) -> Array:
        """The crop."""
        image = _at_least(self.pad(image, rng), *self.size)
        height, width = image.shape[:2]
        top = int(rng.integers(0, height - self.size[0] + 1))
        left = int(rng.integers(0, width - self.size[1] + 1))
        return image[top : top + self.size[0], left : left + self.size[1]]


class RandomResizedCrop(_Transform):
    """A random crop resized to `size` (Szegedy et al. 2014).

    scale: its area as a fraction of the image's. ratio: width over height, log-uniformly distributed.
    """

    def __init__(
        self,
        size: int | tuple[int, int],
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
    ) -> None:
        for name, pair in (("scale", scale), ("ratio", ratio)):
            if not 0 < pair[0] <= pair[1]:
                raise ValueError(f"RandomResizedCrop: {name} must be a pair 0 < a <= b, got {pair}")
        self.size, self.scale, self.ratio = _size("RandomResizedCrop", size), scale, ratio

    def __call__(self, image: Array, rng: Rng) -> Array:
        """The resized crop."""
        height, width = _image("RandomResizedCrop", image)
        top, left, rows, columns = self._part(height, width, rng)
        return scaled(image[top : top + rows, left : left + columns], *self.size)

    def _part(self, height: int, width: int, rng: Rng) -> tuple[int, int, int, int]:
        for _ in range(10):
            rows, columns = _drawn(height * width, self.scale, self.ratio, rng)
            if 0 < columns <= width and 0 < rows <= height:
                top, left = rng.integers(0, height - rows + 1), rng.integers(0, width - columns + 1)
                return int(top), int(left), rows, columns
        # None fits: a center crop, as large as the ratios allow.
        ratio = min(max(width / height, self.ratio[0]), self.ratio[1])
        rows, columns = min(height, round(width / ratio)), min(width, round(height * ratio))
        return (height - rows) // 2, (width - columns) // 2, rows, columns


# ---- flips and colors


class RandomHorizontalFlip(_Transform):
    """Flips left and right with probability p."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = _probability("RandomHorizontalFlip", p)

    def __call__(self, image: Array, rng: Rng) -> Array:
        """The image or its mirror image."""
        _image("RandomHorizontalFlip", image)
        return image[:, ::-1] if rng.random() < self.p else image


class RandomVerticalFlip(_Transform):
    """Flips top and bottom with probability p."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = _probability("RandomVerticalFlip", p)

    def __call__(self, image: Array, rng: Rng) -> Array:
        """The image or its mirror image."""
        _image("RandomVerticalFlip", image)
        return image[::-1] if rng.random() < self.p else image


class Grayscale(_Transform):
    """The luma of an image, in 1 or 3 channels."""

    def __init__(self, num_output_channels: int = 1) -> None:
        if num_output_channels not in (1, 3):
            raise ValueError(f"Grayscale: num_output_channels must be 1 or 3, got {num_output_channels}")
        self.num_output_channels = num_output_channels

    def __call__(self, image: Array, rng: Rng) -> Array:
        """The grayscale image."""
        return np.repeat(_as_before(image, _grey("Grayscale", image)), self.num_output_channels, 2)


class ColorJitter(_Transform):
    """Random brightness, contrast, saturation and hue, in a random order.

    brightness, contrast, saturation: the factor is drawn from max(0, 1 - x) to 1 + x, or from a pair. hue: the
    shift is drawn from -x to x, at most half a circle (0.5), or from a pair.
    """

    def __init__(
        self,
        brightness: float | tuple[float, float] = 0,
        contrast: float | tuple[float, float] = 0,
        saturation: float | tuple[float, float] = 0,
        hue: float | tuple[float, float] = 0,
    ) -> None:
        self.brightness = _range("brightness", brightness, 1, 0, math.inf)
        self.contrast = _range("contrast", contrast, 1, 0, math.inf)
        self.saturation = _range("saturation", saturation, 1, 0, math.inf)
        self.hue = _range("hue", hue, 0, -0.5, 0.5)

    def __call__(self, image: Array, rng: Rng) -> Array:
        """The jittered image."""
        _image("ColorJitter", image)
        drawn = [rng.uniform(*r) for r in (self.brightness, self.contrast, self.saturation, self.hue)]
        found = image.astype(np.float32)
        for which in rng.permutation(4):
            found = np.clip(_COLOURS[which](found, np.float32(drawn[which])), 0, 255)
        return _as_before(image, found)


def _contrast(x: Array, factor: Any) -> Array:
    mean = _grey("ColorJitter", x).mean(dtype=np.float32)
    found: Array = mean + (x - mean) * factor
    return found


def _saturation(x: Array, factor: Any) -> Array:
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


_COLOURS = (lambda x, factor: x * factor, _contrast, _saturation, _hue)


# ---- tensors


class ToTensor(_Transform):
    """An image (H, W, C) of levels from 0 to 255 as float32 (C, H, W) from 0 to 1."""

    def __call__(self, image: Array, rng: Rng) -> Array:
        """The network's input."""
        _image("ToTensor", image)
        return np.ascontiguousarray(image.transpose(2, 0, 1), np.float32) / np.float32(255)


class Normalize(_Transform):
    """float32 (C, H, W), each channel minus its mean, divided by its standard deviation.

    An image (H, W, C) of uint8 is converted first.
    """

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float]) -> None:
        self.mean, self.std = (np.atleast_1d(np.asarray(x, np.float32)) for x in (mean, std))
        if not self.std.all():
            raise ValueError(f"Normalize: std must not be 0, got {std}")

    def __call__(self, image: Array, rng: Rng) -> Array:
        """The network's input."""
        x = ToTensor()(image, rng) if image.dtype == np.uint8 else image
        for name, figures in (("mean", self.mean), ("std", self.std)):
            if len(figures) not in (1, len(x)):
                raise ShapeError(f"Normalize: {len(figures)} numbers in {name} for {len(x)} channels")
        return ((x - self.mean[:, None, None]) / self.std[:, None, None]).astype(np.float32)


class RandomErasing(_Transform):
    """A random rectangle of float32 (C, H, W) set to `value`, with probability p (Zhong et al. 2017)."""

    def __init__(
        self,
        p: float = 0.5,
        scale: tuple[float, float] = (0.02, 0.33),
        ratio: tuple[float, float] = (0.3, 3.3),
        value: float = 0.0,
    ) -> None:
        self.p, self.value = _probability("RandomErasing", p), value
        self.scale, self.ratio = scale, ratio

    def __call__(self, image: Array, rng: Rng) -> Array:
        """The image, possibly with a rectangle erased."""
        if image.ndim != 3:
            raise ShapeError(f"RandomErasing: needs (C, H, W), got {image.shape}")
        if rng.random() >= self.p:
            return image
        height, width = image.shape[1:]
        for _ in range(10):
            rows, columns = _drawn(height * width, self.scale, self.ratio, rng)
            if 0 < rows < height and 0 < columns < width:
                top, left = int(rng.integers(0, height - rows + 1)), int(rng.integers(0, width - columns + 1))
                found = image.copy()
                found[:, top : top + rows, left : left + columns] = self.value
                return found
        return image


# ---- batches


class _Mixing(_Transform):
    """Mixes each sample with another one of its batch (images (N, …), labels (N,) or probabilities (N, classes))."""

    def __init__(self, num_classes: int, alpha: float = 1.0) -> None:
        if num_classes < 2 or not alpha > 0:
            name = type(self).__name__
            raise ValueError(f"{name}: needs num_classes >= 2 and alpha > 0, got {num_classes} and {alpha}")
        self.num_classes, self.alpha = num_classes, alpha

    def __call__(self, batch: Any, rng: Rng) -> tuple[Array, Array]:
        """Mixed images, and the classes' probabilities, float32 (N, num_classes)."""
        images, labels = batch
        if labels.ndim == 1:
            labels = np.eye(self.num_classes, dtype=np.float32)[labels]
        other = rng.permutation(len(images))
        mixed, share = self.mix(images, images[other], rng.beta(self.alpha, self.alpha), rng)
        weight = np.float32(share)
        return mixed, labels * weight + labels[other] * (1 - weight)

    def mix(self, first: Array, second: Array, share: float, rng: Rng) -> tuple[Array, float]:
        """The mixed images, and the weight of the first ones in them."""
        raise NotImplementedError


class MixUp(_Mixing):
    """x λ + x' (1 - λ), λ from Beta(α, α) (Zhang et al. 2017)."""

    def mix(self, first: Array, second: Array, share: float, rng: Rng) -> tuple[Array, float]:
        """The weighted sum."""
        weight = np.float32(share)
        return (first * weight + second * (1 - weight)).astype(first.dtype), float(weight)


class CutMix(_Mixing):
    """A rectangle of the other image in each, of the area 1 - λ, λ from Beta(α, α) (Yun et al. 2019)."""

    def mix(self, first: Array, second: Array, share: float, rng: Rng) -> tuple[Array, float]:
        """Images (N, C, H, W) with a rectangle of the others."""
        height, width = first.shape[-2:]
        middle = int(rng.integers(0, height)), int(rng.integers(0, width))
        half = [0.5 * math.sqrt(1 - share) * n for n in (height, width)]
        top, left = (max(0, round(m - h)) for m, h in zip(middle, half, strict=True))
        bottom, right = min(height, round(middle[0] + half[0])), min(width, round(middle[1] + half[1]))
        mixed = first.copy()
        mixed[..., top:bottom, left:right] = second[..., top:bottom, left:right]
        return mixed, 1 - (bottom - top) * (right - left) / (height * width)


# ---- helpers


def scaled(image: Array, height: int, width: int) -> Array:
    """An image (H, W, C) resized bilinearly with antialiasing; uint8 is rounded to the nearest level."""
    rows, columns, channels = image.shape
    if (rows, columns) == (height, width):
        return image
    tall = triangle(height, rows) @ image.astype(np.float32).reshape(rows, columns * channels)
    return _as_before(image, triangle(width, columns) @ tall.reshape(height, columns, channels))


def _drawn(area: float, scale: tuple[float, float], ratio: tuple[float, float], rng: Rng) -> tuple[int, int]:
    """Height and width of a random crop: its fraction of the area, and width over height, drawn from ranges."""
    part = area * rng.uniform(*scale)
    slope = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
    return round(math.sqrt(part / slope)), round(math.sqrt(part * slope))


def _as_before(image: Array, levels: Array) -> Array:
    """Levels in the image's type."""
    if image.dtype != np.uint8:
        return levels.astype(image.dtype)
    return np.clip(np.floor(levels + 0.5), 0, 255).astype(np.uint8)


def _grey(name: str, image: Array) -> Array:
    """The luma, float32 (H, W, 1)."""
    _image(name, image)
    if image.shape[2] == 1:
        return image.astype(np.float32)
    return (image.astype(np.float32) @ _LUMA)[..., None]


def _at_least(image: Array, height: int, width: int) -> Array:
    """The image padded with zeros where it is smaller."""
    down, across = max(0, height - image.shape[0]), max(0, width - image.shape[1])
    if not (down or across):
        return image
    return np.pad(image, ((down // 2, down - down // 2), (across // 2, across - across // 2), (0, 0)))


def _image(name: str, image: Array) -> tuple[int, int]:
    """Height and width. Raises ShapeError."""
    if image.ndim != 3 or image.shape[2] not in (1, 3) or 0 in image.shape:
        raise ShapeError(f"{name}: needs an image (H, W, 3) or (H, W, 1), got {image.shape}")
    return image.shape[0], image.shape[1]


def _size(name: str, size: int | Sequence[int]) -> tuple[int, int]:
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or min(pair) < 1:
        raise ValueError(f"{name}: size must be one or two numbers of at least 1, got {size!r}")
    return int(pair[0]), int(pair[1])


def _probability(name: str, p: float) -> float:
    if not 0 <= p <= 1:
        raise ValueError(f"{name}: p must be from 0 to 1, got {p}")
    return p


def _range(name: str, given: Any, middle: float, least: float, most: float) -> tuple[float, float]:
    low, high = (max(least, middle - given), middle + given) if isinstance(given, int | float) else given
    if (isinstance(given, int | float) and given < 0) or not least <= low <= high <= most:
        raise ValueError(
            f"ColorJitter: {name} must be a number or a pair within [{least}, {most}], got {given!r}"
        )
    return float(low), float(high)
