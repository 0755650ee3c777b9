"""From images to the network's input, and what is done to that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lamina.data.transforms.base import Array, Rng, Transform, probability, size_of
from lamina.data.transforms.sizes import drawn
from lamina.spec import ShapeError
from lamina.tensors import Tensor, as_tensor


class ToTensor(Transform):
    """An image (H, W, C) of levels from 0 to 255 as a tensor (C, H, W), float32 from 0 to 1."""

    def __call__(self, image: Array, rng: Rng) -> Tensor:
        """The network's input."""
        return as_tensor(_scaled("ToTensor", image))


def _scaled(name: str, image: Array) -> Array:
    """An image as float32 (C, H, W) from 0 to 1. Raises ShapeError."""
    size_of(name, image)
    return np.ascontiguousarray(image.transpose(2, 0, 1), np.float32) / np.float32(255)


class Normalize(Transform):
    """float32 (C, H, W), each channel minus its mean, divided by its standard deviation: a tensor of a tensor, an
    array of an array.

    An array (H, W, C) of uint8, an image, is converted first.
    """

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float]) -> None:
        self.mean, self.std = (np.atleast_1d(np.asarray(x, np.float32)) for x in (mean, std))
        if not self.std.all():
            raise ValueError(f"Normalize: std must not be 0, got {std}")

    def __call__(self, image: Any, rng: Rng) -> Any:
        """The network's input."""
        if isinstance(image, Tensor):
            return as_tensor(self(image.numpy(), rng))
        x = _scaled("Normalize", image) if image.dtype == np.uint8 else image
        for name, figures in (("mean", self.mean), ("std", self.std)):
            if len(figures) not in (1, len(x)):
                raise ShapeError(f"Normalize: {len(figures)} numbers in {name} for {len(x)} channels")
        return ((x - self.mean[:, None, None]) / self.std[:, None, None]).astype(np.float32)


class RandomErasing(Transform):
    """A random rectangle of float32 (C, H, W) set to `value`, with probability p (Zhong et al. 2017): a tensor of a
    tensor, an array of an array."""

    def __init__(
        self,
        p: float = 0.5,
        scale: tuple[float, float] = (0.02, 0.33),
        ratio: tuple[float, float] = (0.3, 3.3),
        value: float = 0.0,
    ) -> None:
        self.p, self.value = probability("RandomErasing", p), value
        self.scale, self.ratio = scale, ratio

    def __call__(self, image: Any, rng: Rng) -> Any:
        """The image, possibly with a rectangle erased."""
        if isinstance(image, Tensor):
            return as_tensor(self(image.numpy(), rng))
        if image.ndim != 3:
            raise ShapeError(f"RandomErasing: needs (C, H, W), got {image.shape}")
        if rng.random() >= self.p:
            return image
        height, width = image.shape[1:]
        for _ in range(10):
            rows, columns = drawn(height * width, self.scale, self.ratio, rng)
            if 0 < rows < height and 0 < columns < width:
                top, left = int(rng.integers(0, height - rows + 1)), int(rng.integers(0, width - columns + 1))
                found = image.copy()
                found[:, top : top + rows, left : left + columns] = self.value
                return found
        return image
