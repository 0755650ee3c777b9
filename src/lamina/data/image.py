"""Images as arrays: bilinear scaling and shifting as two small matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina.ops.arguments import checked

Array = np.ndarray[Any, Any]


def bilinear(size: int, source: int, shift: Array | float = 0.0) -> Array:
    """The matrices that resample `source` pixels to `size` pixels, float32 of shape (…, size, source).

    Pixel i of the result lies at (i + 0.5)·source/size - 0.5 - shift of the source (pixel centers at
    integers, as in torch's align_corners=False); outside of the source values are zero. `shift` is in source
    pixels, one per matrix.
    """
    centres = (np.arange(size) + 0.5) * (source / size) - 0.5  # (size,)
    places = centres[:, None] - np.asarray(shift, np.float64)[..., None, None]  # (…, size, 1)
    return np.maximum(0.0, 1.0 - np.abs(places - np.arange(source))).astype(np.float32)


def triangle(size: int, source: int, antialias: bool = True) -> Array:
    """The matrix that scales `source` pixels to `size` bilinearly, float32 of shape (size, source).

    Each row sums to one, so that the border's pixel is repeated beyond the border. With `antialias` the triangle is
    as wide as a result pixel when the image shrinks; without, always two pixels wide.
    """
    scale = source / size
    reach = max(scale, 1.0) if antialias else 1.0
    centres = (np.arange(size) + 0.5) * scale - 0.5  # (size,)
    weights = np.maximum(0.0, 1.0 - np.abs(centres[:, None] - np.arange(source)) / reach)  # (size, source)
    scaled: Array = weights / weights.sum(axis=1, keepdims=True)
    return scaled.astype(np.float32)


@checked
def resample(images: Array, size: int, rng: np.random.Generator | None = None, shift: float = 0.0) -> Array:
    """Scale images (N, H, W) to (N, 1, size, size), float32.

    shift: with a generator, each image is moved by up to this many source pixels along each axis.
    """
    count, height, width = images.shape
    pixels = images.astype(np.float32, copy=False)
    if rng is None or shift == 0.0:
        rows, columns = bilinear(size, height), bilinear(size, width)
    else:
        moves = rng.uniform(-shift, shift, (2, count))
        rows, columns = bilinear(size, height, moves[0]), bilinear(size, width, moves[1])
    scaled: Array = np.matmul(np.matmul(rows, pixels), np.swapaxes(columns, -1, -2))  # (N, size, size)
    return scaled[:, None]
