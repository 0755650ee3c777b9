"""Bounding boxes in images: overlap, RoI features, and non-maximum suppression. Names as in torchvision.ops.

A box is (x1, y1, x2, y2) with x1 <= x2 and y1 <= y2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from lamina.ops.arguments import Sizes, checked, within
from lamina.ops.core import Arg, Array, Op, Sample, call, listing, operand
from lamina.ops.primitives.gather import index_select
from lamina.ops.primitives.pointwise import maximum, minimum
from lamina.ops.primitives.selection import positions
from lamina.ops.primitives.shape import cat
from lamina.ops.primitives.sort import argsort
from lamina.ops.primitives.window import per_axis
from lamina.spec import FLOATS, Shape, ShapeError, Spec, bool_, float32

#: Samples of a bin along an axis, beyond which a box is treated as not finite.
MOST_SAMPLES = 1e6


@dataclass(frozen=True)
class _RoiOp(Op):
    """output: bins of a box along rows and columns. scale: from box coordinates to elements. ratio: samples per bin
    along each axis, 0 for the number of its elements. aligned: elements are cells with centers at halves, and boxes
    have their true size; else elements are points, and boxes are at least 1 wide.
    """

    output: Shape
    scale: float = 1.0
    ratio: int = 0
    aligned: bool = False

    def check(self, x: Spec, boxes: Spec) -> Shape:
        """The shape [K, C, *output] of the features in all boxes. Raises ShapeError, DTypeError, ValueError."""
        self.check_float(x, boxes)
        if x.ndim != 4 or boxes.ndim != 2 or boxes.shape[1] != 5:
            raise ShapeError(
                f"{self.name}: needs images [N, C, H, W] and boxes [K, 5] of (image, x1, y1, x2, y2), "
                f"got {listing((x, boxes))}"
            )
        if len(self.output) != 2 or min(self.output) < 1 or self.ratio < 0:
            raise ValueError(f"{self.name}: bins and samples must be at least 1, got {self}")
        return (boxes.shape[0], x.shape[1], *self.output)

    def bins(self, box: Array, spatial: Shape) -> tuple[_Bins, _Bins]:
        """The elements that the bins of a box (x1, y1, x2, y2) read along the rows, and along the columns."""
        x1, y1, x2, y2 = box * box.dtype.type(self.scale) - box.dtype.type(0.5 if self.aligned else 0)
        ends = ((y1, y2), (x1, x2))
        rows, columns = (self._bins(*e, o, n) for e, o, n in zip(ends, self.output, spatial, strict=True))
        return rows, columns

    def _bins(self, low: Any, high: Any, bins: int, n: int) -> _Bins:
        size = high - low if self.aligned else max(high - low, 1)
        wide = size / bins
        count = self.ratio or (int(np.ceil(wide)) if 0 < wide < MOST_SAMPLES else 0)
        if not count or not np.isfinite(wide):
            return _Bins(np.zeros((bins, 0), np.int64), np.zeros((bins, 0), low.dtype), n)
        place = low + np.arange(bins)[:, None] * wide + (np.arange(count) + 0.5) * (wide / count)
        inside = (place >= -1) & (place <= n)
        place = np.where(inside, np.clip(place, 0, n - 1), 0)
        first = np.floor(place).astype(np.int64)
        pairs = np.stack([first, np.minimum(first + 1, n - 1)], 2)
        at = np.where(inside[..., None], pairs, n).reshape(bins, 2 * count)
        share = np.where(inside, 1 / count, 0)
        weight = np.stack([share * (first + 1 - place), share * (place - first)], 2)
        return _Bins(at, weight.reshape(at.shape).astype(low.dtype), n)


class _Bins(NamedTuple):
    """The elements that each bin reads along an axis of n (index n: none), with weights; both [bins, 2 samples]."""

    at: Array
    weight: Array
    n: int

    def matrix(self) -> Array:
        """The weights of all elements, [bins, n]."""
        found = np.zeros((len(self.at), self.n + 1), self.weight.dtype)
        np.add.at(found, (np.arange(len(self.at))[:, None], self.at), self.weight)
        return found[:, :-1]


def _averages(image: Array, rows: _Bins, columns: _Bins) -> Array:
    """The bins [C, bins, bins] of an image [C, H, W], each from its own elements: NaN elsewhere does not spread."""
    padded = np.pad(image, ((0, 0), (0, 1), (0, 1)))
    read = padded[:, rows.at][..., columns.at]  # [C, bins, samples, bins, samples]
    with np.errstate(invalid="ignore"):
        found: Array = np.einsum("cipjq,ip,jq->cij", read, rows.weight, columns.weight)
    return found


def _spread(g: Array, rows: _Bins, columns: _Bins) -> Array:
    """The adjoint: g [C, bins, bins] added to the elements that each bin reads."""
    found = np.zeros((len(g), rows.n + 1, columns.n + 1), g.dtype)
    at = rows.at[:, :, None, None], columns.at
    with np.errstate(invalid="ignore"):
        share = np.einsum("cij,ip,jq->cipjq", g, rows.weight, columns.weight)
        for own, values in zip(found, share, strict=True):
            np.add.at(own, at, values)
    return found[:, :-1, :-1]


@dataclass(frozen=True)
class RoiAlign(_RoiOp):
    """(x [N, C, H, W], boxes [K, 5]) -> y [K, C, *output]: bilinear samples of the bins of each box, averaged.

    boxes: image index, x1, y1, x2, y2, in x's dtype; they get no gradient. A sample more than 1 outside is 0, as is
    any sample of a non-finite box. An image index out of range is an IndexError on a CPU and gives NaN on a GPU; a
    NaN index gives NaN. (He et al. 2017)
    """

    arity = 2

    def infer(self, x: Spec, boxes: Spec) -> tuple[Spec]:
        return (self.result(self.check(x, boxes), x.dtype),)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        n, _, *spatial = inputs[0].shape
        op = RoiAlignGrad(self.output, self.scale, self.ratio, self.aligned, (n, *spatial))
        return call(op, grads[0], inputs[1]), None

    def reference(self, x: Array, boxes: Array) -> tuple[Array]:
        y = np.zeros((len(boxes), x.shape[1], *self.output), x.dtype)
        finite = np.isfinite(x).all()
        for k, (image, box) in enumerate(_boxes(self.name, boxes, len(x))):
            if image < 0:
                y[k] = np.nan
                continue
            rows, columns = self.bins(box, x.shape[2:])
            if finite:
                y[k] = rows.matrix() @ x[image] @ columns.matrix().T
            else:
                y[k] = _averages(x[image], rows, columns)
        return (y,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for options, x, boxes in _CASES:
            yield Sample.of(cls(*options), x, _drawn(boxes))


@dataclass(frozen=True)
class RoiAlignGrad(_RoiOp):
    """(g [K, C, *output], boxes [K, 5]) -> dx [N, C, H, W] of shape (N, H, W): the adjoint of RoiAlign.

    On a GPU in fixed point, like `GridSampleGrad`: bitwise reproducible.
    """

    shape: Shape = (1, 1, 1)  # N, H, W
    arity = 2

    def infer(self, g: Spec, boxes: Spec) -> tuple[Spec]:
        n, *spatial = self.shape
        x = self.result((n, *g.shape[1:2], *spatial), g.dtype)
        if self.check(x, boxes) != g.shape:
            raise ShapeError(f"{self.name}: g {g} must be [K, C, *{self.output}] for boxes {boxes}")
        return (x,)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return call(RoiAlign(self.output, self.scale, self.ratio, self.aligned), grads[0], inputs[1]), None

    def reference(self, g: Array, boxes: Array) -> tuple[Array]:
        n, *spatial = self.shape
        dx = np.zeros((n, g.shape[1], *spatial), g.dtype)
        for k, (image, box) in enumerate(_boxes(self.name, boxes, n)):
            if image < 0:
                continue
            rows, columns = self.bins(box, tuple(spatial))
            if np.isfinite(g[k]).all():
                dx[image] += rows.matrix().T @ g[k] @ columns.matrix()
            else:
                dx[image] += _spread(g[k], rows, columns)
        return (dx,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for options, x, boxes in _CASES:
            count = len(boxes)
            g = (count, x[1], *options[0])
            yield Sample.of(replace(cls(*options), shape=(x[0], *x[2:])), g, _drawn(boxes))


def _boxes(what: str, boxes: Array, images: int) -> Iterator[tuple[int, Array]]:
    """The image (-1 for NaN) and the coordinates of each box. Raises IndexError."""
    for row in boxes:
        if np.isnan(row[0]):
            yield -1, row[1:]
            continue
        if not -1 < row[0] < images:
            raise IndexError(f"{what}: a box names image {row[0]}, but there are {images}")
        yield int(row[0]), row[1:]


_Rows = tuple[tuple[int, ...], ...]
#: Options, images, and boxes (image, x1, y1, x2, y2): integer values, so that they are exact in every dtype.
_CASES: tuple[tuple[tuple[Any, ...], Shape, _Rows], ...] = (
    (((2, 3), 1.0, 2, True), (2, 3, 6, 7), ((0, 1, 1, 5, 4), (1, 0, 2, 7, 6), (1, -3, -2, 3, 3))),
    (((3, 2), 0.5, 0, False), (1, 16, 8, 6), ((0, 2, 1, 11, 15), (0, 5, 5, 5, 5), (0, 30, 30, 40, 40))),
    (((2, 2), 0.25, 0, True), (2, 2, 5, 5), ((1, 0, 0, 19, 13), (0, 4, 8, 4, 8))),
    (((1, 1), 1.0, 1, False), (3, 1, 4, 4), ((2, 0, 0, 4, 4),)),
    (((2, 2), 1.0, 2, True), (1, 2, 3, 3), ()),
    (((4, 4), 1.0, 3, False), (1, 5, 9, 4), ((0, 0, 0, 3, 8),) * 5),
)  # fmt: skip


def _drawn(boxes: _Rows) -> Arg:
    flat = tuple(v for row in boxes for v in row)
    return Arg((len(boxes), 5), value=flat, differentiable=False)


@dataclass(frozen=True)
class KeepBoxes(Op):
    """boxes [N, 4], best first -> bool [N]: whether no better kept box overlaps it by more than the threshold.

    Overlap is intersection over union; threshold: the largest overlap that is allowed.
    """

    threshold: float
    differentiable = False

    def infer(self, boxes: Spec) -> tuple[Spec]:
        self.check_float(boxes)
        if boxes.ndim != 2 or boxes.shape[1] != 4:
            raise ShapeError(f"{self.name}: boxes must be [N, 4] of (x1, y1, x2, y2), got {boxes}")
        return (Spec(boxes.shape[:1], bool_),)

    def reference(self, boxes: Array) -> tuple[Array]:
        kept = np.ones(len(boxes), bool)
        areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        for i, box in enumerate(boxes):
            if kept[i]:
                rest = boxes[i + 1 :]
                low, high = np.maximum(rest[:, :2], box[:2]), np.minimum(rest[:, 2:], box[2:])
                both = np.maximum(high - low, 0).prod(1)
                with np.errstate(invalid="ignore", divide="ignore"):
                    kept[i + 1 :] &= ~(both / (areas[i] + areas[i + 1 :] - both) > self.threshold)
        return (kept,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for count, threshold in ((1, 0.5), (70, 0.1), (200, 0.3), (0, 0.5), (64, 0.0)):
            rng = np.random.default_rng(count)
            low = rng.integers(0, 30, (count, 2))
            boxes = np.concatenate([low, low + rng.integers(0, 16, (count, 2))], 1)
            value = tuple(int(v) for v in boxes.ravel())
            yield Sample.of(cls(threshold), Arg((count, 4), value=value, differentiable=False), dtypes=FLOATS)


@checked
def box_iou(boxes1: Any, boxes2: Any) -> Any:
    """The overlap of boxes: [N, 4], [M, 4] -> [N, M], intersection over union.

    As torchvision.ops.box_iou; differentiable. NaN for two boxes of zero area. Raises ShapeError.
    """
    a, b = _corners("box_iou", boxes1, "boxes1"), _corners("box_iou", boxes2, "boxes2")
    first, second = a.unsqueeze(1), b.unsqueeze(0)
    low = maximum(first[..., :2], second[..., :2])
    size = (minimum(first[..., 2:], second[..., 2:]) - low).clamp(min=0)
    both = size[..., 0] * size[..., 1]
    return both / (_area(a).unsqueeze(1) + _area(b).unsqueeze(0) - both)


def _corners(what: str, boxes: Any, name: str) -> Any:
    found = operand(boxes, what, name)
    if found.ndim != 2 or found.shape[1] != 4:
        raise ShapeError(f"{what}: {name} must be [N, 4] of (x1, y1, x2, y2), got {found.spec}")
    return found if found.dtype.is_float else found.cast(float32)


def _area(boxes: Any) -> Any:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


@checked
def roi_align(
    input: Any,
    boxes: Any,
    output_size: Sizes,
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> Any:
    """The features of input [N, C, H, W] in K boxes: [K, C, *output_size] (He et al. 2017).

    boxes: [K, 5] of (image, x1, y1, x2, y2), or a list with a tensor [L, 4] per image. spatial_scale: from their
    coordinates to elements. sampling_ratio: samples per bin along each axis; -1 for the number of its elements.
    aligned: shifts boxes by half an element, so that elements are cells.
    The gradient is deterministic and goes to the input only. As torchvision.ops.roi_align. Raises ShapeError,
    DTypeError.
    """
    x, bins = operand(input, "roi_align"), per_axis("roi_align", "output_size", output_size, 2, 1)
    within("roi_align", "spatial_scale", spatial_scale, 0, open=True)
    if isinstance(boxes, (list, tuple)):
        boxes = _numbered(boxes, x)
    rows = operand(boxes, "roi_align", "boxes")
    op = RoiAlign(bins, float(spatial_scale), max(int(sampling_ratio), 0), bool(aligned))
    return call(op, x, rows)


def _numbered(boxes: Sequence[Any], x: Any) -> Any:
    """One list of boxes per image as rows (image, x1, y1, x2, y2)."""
    if x.ndim != 4 or len(boxes) != x.shape[0]:
        raise ShapeError(f"roi_align: boxes must be one tensor for each image of {x.spec}, got {len(boxes)}")
    given = [_corners("roi_align", b, "boxes") for b in boxes]
    kind = x.dtype.numpy
    rows = [cat([np.full((b.shape[0], 1), i, kind), b], 1) for i, b in enumerate(given) if prod(b.shape)]
    return cat(rows, 0) if rows else np.zeros((0, 5), kind)


@checked
def nms_mask(boxes: Any, scores: Any, iou_threshold: float) -> Any:
    """The boxes that `nms` keeps, as bool [N] in the given order: of a fixed shape, for compiled programs."""
    order, kept = _kept("nms_mask", boxes, scores, iou_threshold)
    return index_select(kept, 0, argsort(order, 0))


@checked
def nms(boxes: Any, scores: Any, iou_threshold: float) -> Any:
    """Non-maximum suppression: drop boxes [N, 4] overlapping a kept box of a higher score by more than iou_threshold.

    Returns int64 [K], the indices of kept boxes by descending score; of equal scores the first counts as higher. K
    depends on the values: as x[mask], a compiled program is of one K; `nms_mask` has a fixed shape. As
    torchvision.ops.nms. Raises ShapeError; TypeError where a graph is recorded for no call.
    """
    order, kept = _kept("nms", boxes, scores, iou_threshold)
    return index_select(order, 0, positions("nms", kept, "the mask of the kept boxes"))


def _kept(what: str, boxes: Any, scores: Any, iou_threshold: float) -> tuple[Any, Any]:
    """The indices of the boxes by score, and which of these are kept."""
    rows, values = _corners(what, boxes, "boxes"), operand(scores, what, "scores")
    if values.shape != rows.shape[:1]:
        raise ShapeError(f"{what}: scores {values.spec} must be one for each box of {rows.spec}")
    order = argsort(values, 0, descending=True, stable=True)
    return order, call(KeepBoxes(float(iou_threshold)), index_select(rows, 0, order))


@checked
def batched_nms(boxes: Any, scores: Any, idxs: Any, iou_threshold: float) -> Any:
    """`nms` separately for the boxes of each class; idxs: [N], the class of each. As torchvision.ops.batched_nms."""
    rows, kinds = _corners("batched_nms", boxes, "boxes"), operand(idxs, "batched_nms", "idxs")
    if not rows.shape[0]:
        return nms(rows, scores, iou_threshold)
    reach = rows.amax() - rows.amin() + 1.0  # offset by this, boxes of two classes do not overlap
    return nms(rows + (kinds.cast(rows.dtype) * reach).unsqueeze(1), scores, iou_threshold)
