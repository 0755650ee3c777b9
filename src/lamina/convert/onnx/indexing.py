"""Operators that take or write elements at positions given by a tensor."""

from __future__ import annotations

from math import prod
from typing import Any, Literal

import numpy as np

from lamina import ops
from lamina.convert.onnx.node import OnnxNode, as_tensor, converts, numbers
from lamina.spec import int32, int64

#: ONNX's name of a reduction -> scatter_reduce's.
REDUCTIONS: dict[str, Literal["sum", "prod", "amax", "amin"]] = {
    "add": "sum", "mul": "prod", "max": "amax", "min": "amin"
}  # fmt: skip


def as_index(index: Any) -> Any:
    """Indices in a type that Lamina's ops accept; these handle negative ones themselves."""
    return index if index.dtype in (int32, int64) else ops.cast(index, int64)


def wrapped(index: Any, size: int) -> Any:
    """int64 indices between 0 and size: negative ones are resolved."""
    index = ops.cast(index, int64)
    return ops.where(ops.lt(index, 0), ops.add(index, size), index)


@converts("Gather")
def gather(node: OnnxNode) -> Any:
    """Slices along an axis, with the index's shape in place of the axis; a single slice at a known index is
    a view."""
    x, index = node.input(0), node.input(1)
    axis = node.get("axis", 0) % x.ndim
    one = numbers(index) if prod(index.shape) == 1 else None
    if one is not None and -x.shape[axis] <= one.item() < x.shape[axis]:
        found = x[(slice(None),) * axis + (int(one.item()),)]
    else:
        found = ops.index_select(x, axis, as_index(index).reshape((-1,)))
    return found.reshape((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))


@converts("GatherElements")
def gather_elements(node: OnnxNode) -> Any:
    """The element at each position along an axis, everything else as in the index."""
    x, index = node.input(0), node.input(1)
    axis = node.get("axis", 0) % x.ndim
    return ops.gather(x, axis, as_index(index))


@converts("GatherND")
def gather_nd(node: OnnxNode) -> Any:
    """Slices at indices of several axes, given by the index's last axis; batch_dims axes are traversed
    in parallel."""
    x, index, batch = node.input(0), node.input(1), node.get("batch_dims", 0)
    count, depth = prod(x.shape[:batch]), index.shape[-1]
    indexed, rest = x.shape[batch : batch + depth], x.shape[batch + depth :]
    outer = index.shape[batch:-1]
    flat = positions(index.reshape((count, -1, depth)), indexed)
    start = as_tensor(np.arange(count).reshape(count, 1) * prod(indexed))
    rows = x.reshape((count * prod(indexed), prod(rest)))
    found = ops.index_select(rows, 0, ops.add(flat, start).reshape((-1,)))
    return found.reshape((*x.shape[:batch], *outer, *rest))


def positions(index: Any, sizes: tuple[int, ...]) -> Any:
    """index [..., k] into axes of these sizes -> the row-major position [...]."""
    flat = None
    for axis, n in enumerate(sizes):
        one = wrapped(index[..., axis], n)
        flat = one if flat is None else ops.add(ops.mul(flat, n), one)
    return flat


@converts("ScatterElements", "Scatter")
def scatter_elements(node: OnnxNode) -> Any:
    """x with updates written, added, … at indices along an axis."""
    x, index, updates = (node.input(i) for i in range(3))
    axis = node.get("axis", 0) % x.ndim
    return _written(node, x, axis, as_index(index), updates)


def _written(node: OnnxNode, x: Any, axis: int, index: Any, updates: Any) -> Any:
    reduction = node.get("reduction", "none")
    if reduction == "none":
        return ops.scatter(x, axis, index, updates)
    if reduction not in REDUCTIONS:
        raise node.error(f"reduction must be one of none, {', '.join(REDUCTIONS)}, got {reduction!r}")
    return ops.scatter_reduce(x, axis, index, updates, REDUCTIONS[reduction])


@converts("ScatterND")
def scatter_nd(node: OnnxNode) -> Any:
    """x with slices written, added, … at indices of several axes."""
    x, index, updates = (node.input(i) for i in range(3))
    depth = index.shape[-1]
    rest = prod(x.shape[depth:])
    flat = positions(index.reshape((-1, depth)), x.shape[:depth])
    rows = ops.expand(flat.unsqueeze(1), (flat.shape[0], rest))
    found = _written(node, x.reshape((-1, rest)), 0, rows, updates.reshape((-1, rest)))
    return found.reshape(x.shape)


@converts("TensorScatter")
def tensor_scatter(node: OnnxNode) -> Any:
    """A cache [batch, …] with an update written along an axis, at each sample's own offset."""
    cache, update = node.input(0), node.input(1)
    axis = node.get("axis", -2) % cache.ndim
    size, length = cache.shape[axis], update.shape[axis]
    start = node.optional(2)
    start = as_tensor(np.zeros(cache.shape[0], np.int64)) if start is None else ops.cast(start, int64)
    place = ops.add(start.unsqueeze(1), as_tensor(np.arange(length)[None]))  # [batch, length]
    place = ops.remainder(place, size) if node.get("mode", "linear") == "circular" else place
    shape = [update.shape[0]] + [length if a == axis else 1 for a in range(1, cache.ndim)]
    return ops.scatter(cache, axis, ops.expand(place.reshape(shape), update.shape), update)


@converts("Compress", known=(1,))
def compress(node: OnnxNode) -> Any:
    """The slices along an axis (or elements) selected by a condition, which must be known."""
    x, keep, axis = node.input(0), node.known(1), node.get("axis")
    index = as_tensor(np.flatnonzero(keep))
    x, axis = (x.reshape((-1,)), 0) if axis is None else (x, axis % x.ndim)
    return ops.index_select(x, axis, index)


@converts("NonZero", known=(0,))
def non_zero(node: OnnxNode) -> Any:
    """The indices [rank, n] of the nonzero elements; the input must be known, because n is a shape."""
    x = node.known(0)
    return as_tensor(np.array(np.nonzero(x), np.int64))


@converts("Unique", known=(0,))
def unique(node: OnnxNode) -> Any:
    """The distinct elements (or slices along an axis) of a known input, first indices, inverse and counts."""
    x, axis = node.known(0), node.get("axis")
    values, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.reshape(-1)
    if not node.get("sorted", 1):
        order = np.argsort(first)
        values, first, counts = np.take(values, order, axis or 0), first[order], counts[order]
        inverse = np.argsort(order)[inverse]
    return as_tensor(values), *(as_tensor(a.astype(np.int64)) for a in (first, inverse, counts))


@converts("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(node: OnnxNode) -> Any:
    """Elements of the last axis."""
    x, index = node.input(0), node.input(1)
    found = ops.index_select(x, x.ndim - 1, as_index(index).reshape((-1,)))
    return found.reshape((1, -1)) if x.ndim == 1 else found


@converts("NonMaxSuppression", known=(0, 1, 2, 3, 4))
def non_max_suppression(node: OnnxNode) -> Any:
    """(batch, class, box) [n, 3] of the selected boxes, by decreasing score; boxes and scores must be known."""
    boxes, scores = node.known(0), node.known(1)
    most, overlap, least = int(node.number(2, 0)), float(node.number(3, 0.0)), node.number(4)
    corners = _corners(boxes, bool(node.get("center_point_box", 0)))
    kept = [
        (b, c, i)
        for b in range(scores.shape[0])
        for c in range(scores.shape[1])
        for i in _suppressed(corners[b], scores[b, c], most, overlap, least)
    ]
    return as_tensor(np.array(kept, np.int64).reshape(-1, 3))


def _corners(boxes: Any, centred: bool) -> Any:
    """[..., 4] as (y lo, x lo, y hi, x hi); centred: given as (x, y, width, height)."""
    if centred:
        x, y, w, h = np.moveaxis(boxes, -1, 0)
        return np.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], -1)
    a, b = boxes[..., :2], boxes[..., 2:]
    return np.concatenate([np.minimum(a, b), np.maximum(a, b)], -1)


def _suppressed(boxes: Any, scores: Any, most: int, overlap: float, least: float | None) -> list[int]:
    """Which boxes are kept: the best one, then the best of those that do not overlap a kept one by more."""
    kept: list[int] = []
    for i in np.argsort(-scores, kind="stable"):
        if len(kept) == most or (least is not None and scores[i] <= least):
            break
        if all(_overlap(boxes[i], boxes[k]) <= overlap for k in kept):
            kept.append(int(i))
    return kept


def _overlap(a: Any, b: Any) -> float:
    """Intersection over union of two boxes."""
    sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    inside = float(np.prod(np.maximum(sides, 0)))
    both = float(np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2])) - inside
    return inside / both if both > 0 else 0.0
