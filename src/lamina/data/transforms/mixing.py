"""Mixing of images within a batch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lamina.data.transforms.base import Array, Rng, Transform
from lamina.tensors import Tensor, as_tensor


class _Mixing(Transform):
    """Mixes each sample with another one of its batch (images (N, …), labels (N,) or probabilities (N, classes))."""

    def __init__(self, num_classes: int, alpha: float = 1.0) -> None:
        if num_classes < 2 or not alpha > 0:
            name = type(self).__name__
            raise ValueError(f"{name}: needs num_classes >= 2 and alpha > 0, got {num_classes} and {alpha}")
        self.num_classes, self.alpha = num_classes, alpha

    def __call__(self, batch: Any, rng: Rng) -> tuple[Any, Any]:
        """Mixed images, and the classes' probabilities, float32 (N, num_classes): tensors of tensors."""
        if any(isinstance(x, Tensor) for x in batch):
            images, labels = self([np.asarray(x) for x in batch], rng)
            return as_tensor(images), as_tensor(labels)
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
