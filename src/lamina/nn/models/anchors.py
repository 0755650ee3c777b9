"""Anchor boxes of detectors: their positions, the encoding of boxes relative to them, and their matching to objects.

A box is (x1, y1, x2, y2) in pixels, x1 < x2 and y1 < y2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lamina import ops
from lamina.ops.core import operand

Array = np.ndarray[Any, Any]
#: The largest predicted logarithm of a size: 1000 / 16 times the anchor.
_MOST_LOG = math.log(1000 / 16)


def cell_anchors(sizes: Sequence[float], aspect_ratios: Sequence[float]) -> Array:
    """The boxes around the origin, rounded to whole pixels: float32 [ratios · sizes, 4].

    sizes: the square root of the area, in pixels. aspect_ratios: height by width.
    """
    root: Array = np.sqrt(np.asarray(aspect_ratios, np.float32))
    scale: Array = np.asarray(sizes, np.float32)
    w, h = ((r[:, None] * scale).reshape(-1) for r in (1 / root, root))
    around: Array = np.stack([-w, -h, w, h], 1) / 2
    return around.round()


def grid_anchors(cell: Array, grid: Sequence[int], image: Sequence[int]) -> Array:
    """The boxes of a cell at every position of a grid (h, w) over an image (H, W): float32 [h · w · boxes, 4]."""
    steps = [size // count for size, count in zip(image, grid, strict=True)]
    y, x = np.meshgrid(*(np.arange(n) * s for n, s in zip(grid, steps, strict=True)), indexing="ij")
    places = np.stack([x, y, x, y], -1).reshape(-1, 1, 4).astype(np.float32)
    return (places + cell).reshape(-1, 4)


def encode_boxes(boxes: Any, anchors: Any) -> Any:
    """Boxes [..., 4] relative to anchors [..., 4]: the center's offset by the size, and the log-ratio of the
    sizes."""
    (x, y, w, h), (ax, ay, aw, ah) = _centred(boxes), _centred(anchors)
    return ops.stack([(x - ax) / aw, (y - ay) / ah, ops.log(w / aw), ops.log(h / ah)], -1)


def decode_boxes(codes: Any, anchors: Any) -> Any:
    """The inverse of `encode_boxes` for codes [..., 4]; boxes are at most 62.5 times as large as their anchors."""
    dx, dy, dw, dh = ops.unbind(operand(codes), -1)
    ax, ay, aw, ah = _centred(anchors)
    x, y = dx * aw + ax, dy * ah + ay
    w, h = (ops.exp(ops.clamp(d, max=_MOST_LOG)) * a * 0.5 for d, a in ((dw, aw), (dh, ah)))
    return ops.stack([x - w, y - h, x + w, y + h], -1)


def clip_boxes(boxes: Any, sizes: Any) -> Any:
    """Boxes [N, B, 4] clipped to images of sizes [N, 2], (height, width)."""
    limits = ops.cast(ops.flip(operand(sizes), (1,)), boxes.dtype)
    return ops.minimum(ops.clamp(boxes, min=0.0), ops.unsqueeze(ops.cat([limits, limits], 1), 1))


def _centred(boxes: Any) -> tuple[Any, Any, Any, Any]:
    """(x, y, w, h) of boxes."""
    x1, y1, x2, y2 = ops.unbind(operand(boxes), -1)
    w, h = x2 - x1, y2 - y1
    return x1 + w * 0.5, y1 + h * 0.5, w, h


class Matches(NamedTuple):
    """Each anchor's object, whether it is a positive match, and whether it counts at all: each [N, A]."""

    object: Any
    positive: Any
    counted: Any


def match_anchors(boxes: Any, valid: Any, anchors: Any, high: float, low: float) -> Matches:
    """Match each anchor [A, 4] to the object of boxes [N, M, 4] that it overlaps most.

    It is positive if the overlap is at least `high`, or if no anchor overlaps the object more; negative below `low`,
    and ignored in between. valid: bool [N, M]; the other boxes are padding. As torchvision's Matcher.
    """
    images, most = boxes.shape[:2]
    overlap = ops.box_iou(boxes.reshape((images * most, 4)), anchors).reshape((images, most, -1))
    overlap = ops.where(valid.unsqueeze(2), overlap, np.float32(-1))
    value, number = ops.max(overlap, 1)
    best = ops.amax(overlap, 2, keepdim=True)
    found = ops.any(ops.logical_and(ops.eq(overlap, best), ops.gt(best, 0.0)), 1)
    positive = ops.logical_or(ops.ge(value, high), found)
    return Matches(number, positive, ops.logical_or(positive, ops.lt(value, low)))
