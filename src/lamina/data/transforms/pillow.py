"""Rotations, affine and perspective transforms by Pillow. `geometry` imports this module at first use.

Images are (H, W, C) arrays, uint8 or float32; Pillow has no colour images of floats, so that each of their channels
is an image of its own. Places are those of pixel corners: a pixel's center lies at + 0.5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lamina.data.transforms.base import Array, as_before

try:
    from PIL import Image
except ImportError as error:
    raise ImportError(
        "rotations and other geometric transforms need Pillow: pip install 'lamina[image]'"
    ) from error


def rotated(
    image: Array, angle: float, interpolation: str, fill: Array, expand: bool, center: Sequence[float] | None
) -> Array:
    """The image rotated counterclockwise by degrees. fill: levels (C,)."""
    how = Image.Resampling[interpolation.upper()]
    return _each(image, fill, lambda picture, level: picture.rotate(angle, how, expand, center, None, level))


def warped(image: Array, kind: str, numbers: Sequence[float], interpolation: str, fill: Array) -> Array:
    """The image after Pillow's "affine" or "perspective" transform by these numbers. fill: levels (C,)."""
    method, how = Image.Transform[kind.upper()], Image.Resampling[interpolation.upper()]
    return _each(
        image,
        fill,
        lambda picture, level: picture.transform(picture.size, method, numbers, how, fillcolor=level),
    )


def _each(image: Array, fill: Array, change: Callable[[Any, Any], Any]) -> Array:
    """The image after a change of Pillow images, which is given the fill of their kind."""
    if image.dtype == np.uint8 and image.shape[2] == 3:
        return np.array(change(Image.fromarray(image), tuple(fill.tolist())))
    plain = image if image.dtype == np.uint8 else image.astype(np.float32, copy=False)
    channels = [change(Image.fromarray(plain[..., c]), fill[c].item()) for c in range(image.shape[2])]
    return as_before(image, np.stack([np.asarray(c) for c in channels], 2))
