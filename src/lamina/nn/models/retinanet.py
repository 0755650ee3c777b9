"""RetinaNet (Lin, Goyal, Girshick, He & Dollár 2017): dense detection on a feature pyramid.

Keys are torchvision's (backbone.body.conv1.weight, backbone.fpn.inner_blocks.0.0.weight,
head.classification_head.conv.0.0.weight, …), so its weights load by name. Everything that runs on images has fixed
shapes, so that training steps and detection can be compiled: objects are padded, missing detections are marked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lamina import ops
from lamina.nn import init
from lamina.nn.activation import ReLU
from lamina.nn.container import Sequential
from lamina.nn.conv import Conv2d
from lamina.nn.models.anchors import (
    cell_anchors,
    clip_boxes,
    decode_boxes,
    encode_boxes,
    grid_anchors,
    match_anchors,
)
from lamina.nn.models.backbone import FeatureStages, resnet_modules
from lamina.nn.models.fpn import BackboneWithFPN, LastLevelP6P7
from lamina.nn.models.resnet import ResNet, resnet50
from lamina.nn.module import Module
from lamina.nn.norm import BatchNorm2d, FrozenBatchNorm2d
from lamina.ops.core import operand
from lamina.spec import ShapeError
from lamina.tensors import as_tensor, tensor

Array = np.ndarray[Any, Any]
#: ImageNet's statistics, red, green, blue in 0 … 1.
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class RetinaNetOutput(NamedTuple):
    """Raw outputs, by pyramid level: logits [N, A, K], codes of boxes [N, A, 4], anchors [A, 4]."""

    cls_logits: tuple[Any, ...]
    bbox_regression: tuple[Any, ...]
    anchors: tuple[Any, ...]


class Detections(NamedTuple):
    """Boxes [N, D, 4] in pixels, scores [N, D] in descending order, labels [N, D].

    If there are fewer than D objects, the others have score 0 and label -1.
    """

    boxes: Any
    scores: Any
    labels: Any


class _Head(Module):
    """Four 3×3 convolutions with ReLU and a final one, shared by all levels; standard deviation initially 0.01.

    That suits 256 channels and a pretrained backbone; narrow heads learn faster with `init.he_`.
    """

    def __init__(self, in_channels: int, last: str, outputs: int, width: int) -> None:
        with init.scheme(init.small_):
            self.conv = Sequential(
                *(Sequential(Conv2d(in_channels, in_channels, 3, padding=1), ReLU()) for _ in range(4))
            )
            self.add_module(last, Conv2d(in_channels, outputs * width, 3, padding=1))
        self._last, self._width = last, width

    def forward(self, levels: Sequence[Any]) -> tuple[Any, ...]:
        """Features [N, C, H, W] -> [N, H · W · anchors, width], of each level."""
        return tuple(self._rows(getattr(self, self._last)(self.conv(x))) for x in levels)

    def _rows(self, y: Any) -> Any:
        images, _, h, w = y.shape
        apart = y.reshape((images, -1, self._width, h, w)).permute((0, 3, 4, 1, 2))
        return apart.reshape((images, -1, self._width))


class RetinaNetClassificationHead(_Head):
    """Class logits of each anchor, initialized to the probability prior_probability for each class."""

    def __init__(
        self, in_channels: int, num_anchors: int, num_classes: int, prior_probability: float = 0.01
    ) -> None:
        super().__init__(in_channels, "cls_logits", num_anchors, num_classes)
        init.constant_(self.cls_logits.bias, -math.log((1 - prior_probability) / prior_probability))


class RetinaNetRegressionHead(_Head):
    """Codes of each anchor's box."""

    def __init__(self, in_channels: int, num_anchors: int) -> None:
        super().__init__(in_channels, "bbox_reg", num_anchors, 4)


class RetinaNetHead(Module):
    """Both heads."""

    def __init__(self, in_channels: int, num_anchors: int, num_classes: int) -> None:
        self.classification_head = RetinaNetClassificationHead(in_channels, num_anchors, num_classes)
        self.regression_head = RetinaNetRegressionHead(in_channels, num_anchors)

    def forward(self, levels: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Features of each level -> logits and codes of each."""
        return self.classification_head(levels), self.regression_head(levels)


class RetinaNet(Module):
    """A backbone with a feature pyramid, the heads on each level, and anchors.

    Args:
        backbone: returns a list of features [N, out_channels, H, W], as `BackboneWithFPN`.
        num_classes: with the background, which is class 0 in torchvision's data; labels are 0 … num_classes - 1.
        min_size, max_size: `predict` scales images so that the shorter side has min_size pixels, but the longer at
        most max_size.
        image_mean, image_std: the normalization of images, one number per channel.
        anchor_sizes, aspect_ratios: of the anchors, for each level in pixels; height by width.
        score_thresh, nms_thresh, detections_per_img, topk_candidates: on each level the topk_candidates highest
            scores above score_thresh count; those whose boxes overlap a better one of their class by more than
            nms_thresh do not; of what is left, the best detections_per_img remain.
        fg_iou_thresh, bg_iou_thresh: `match_anchors`' high and low.
    """

    def __init__(
        self,
        backbone: Module,
        num_classes: int = 91,
        *,
        min_size: int = 800,
        max_size: int = 1333,
        image_mean: Sequence[float] = _MEAN,
        image_std: Sequence[float] = _STD,
        anchor_sizes: Sequence[Sequence[float]] | None = None,
        aspect_ratios: Sequence[float] = (0.5, 1.0, 2.0),
        score_thresh: float = 0.05,
        nms_thresh: float = 0.5,
        detections_per_img: int = 300,
        topk_candidates: int = 1000,
        fg_iou_thresh: float = 0.5,
        bg_iou_thresh: float = 0.4,
    ) -> None:
        self.backbone, self.num_classes = backbone, num_classes
        self.min_size, self.max_size = min_size, max_size
        self.mean, self.std = (np.asarray(v, np.float32).reshape(-1, 1, 1) for v in (image_mean, image_std))
        self.score_thresh, self.nms_thresh = score_thresh, nms_thresh
        self.detections_per_img, self.topk_candidates = detections_per_img, topk_candidates
        self.fg_iou_thresh, self.bg_iou_thresh = fg_iou_thresh, bg_iou_thresh
        sizes = _anchor_sizes() if anchor_sizes is None else anchor_sizes
        self.cells = [cell_anchors(s, aspect_ratios) for s in sizes]
        self.head = RetinaNetHead(backbone.out_channels, len(self.cells[0]), num_classes)

    def forward(self, images: Any) -> RetinaNetOutput:
        """Images (N, 3, H, W) in 0 … 1 -> raw outputs per anchor. Raises ShapeError."""
        x = operand(images)
        if x.ndim != 4:
            raise ShapeError(f"RetinaNet: images must be (N, 3, H, W), got {x.spec}; `predict` takes a list")
        levels = self.backbone((x - self.mean.astype(x.dtype.numpy)) / self.std.astype(x.dtype.numpy))
        if len(levels) != len(self.cells):
            raise ShapeError(f"RetinaNet: {len(levels)} levels of features, anchors for {len(self.cells)}")
        anchors = (
            operand(grid_anchors(cell, y.shape[2:], x.shape[2:]))
            for cell, y in zip(self.cells, levels, strict=True)
        )
        return RetinaNetOutput(*self.head(levels), tuple(anchors))

    def losses(self, outputs: RetinaNetOutput, targets: Mapping[str, Any]) -> dict[str, Any]:
        """Focal loss of the classes and regression loss of the boxes, per object, averaged over images.

        targets: "boxes" [N, M, 4] in pixels and "labels" [N, M]: -1 in padding rows; `padded_objects` creates them
        from lists.
        """
        logits, codes, anchors = (ops.cat(list(part), d) for part, d in zip(outputs, (1, 1, 0), strict=True))
        anchors, boxes = (ops.cast(operand(v), codes.dtype) for v in (anchors, targets["boxes"]))
        labels = operand(targets["labels"])
        matches = match_anchors(boxes, ops.ge(labels, 0), anchors, self.fg_iou_thresh, self.bg_iou_thresh)
        positive = matches.positive
        objects = ops.clamp(ops.sum(ops.cast(positive, logits.dtype), 1), min=1.0)

        label = ops.where(positive, ops.gather(labels, 1, matches.object), -1)
        wanted = ops.cast(ops.eq(label.unsqueeze(2), np.arange(self.num_classes)), logits.dtype)
        focal = ops.sum(ops.sigmoid_focal_loss(logits, wanted), 2)
        focal = ops.sum(ops.where(matches.counted, focal, 0.0), 1)

        rows = ops.expand(matches.object.unsqueeze(2), (*matches.object.shape, 4))
        box = ops.where(positive.unsqueeze(2), ops.gather(boxes, 1, rows), anchors)
        distance = ops.sum(ops.abs(codes - encode_boxes(box, anchors)), 2)
        distance = ops.sum(ops.where(positive, distance, 0.0), 1)
        return {
            "classification": ops.mean(focal / objects),
            "bbox_regression": ops.mean(distance / objects),
        }

    def loss(self, outputs: RetinaNetOutput, targets: Mapping[str, Any]) -> Any:
        """The sum of `losses`: the loss for `lamina.train_step`."""
        return sum(self.losses(outputs, targets).values())

    def detections(self, outputs: RetinaNetOutput, sizes: Any) -> Detections:
        """Detections in images of sizes [N, 2], (height, width): see `Detections`.

        Composed of ops with fixed shapes, so it may be compiled together with `forward`.
        """
        boxes, scores, labels = (
            ops.cat(list(part), 1) for part in zip(*map(self._best, *outputs), strict=True)
        )
        boxes = clip_boxes(boxes, sizes)
        kept = []
        reach = ops.amax(boxes) + 1.0  # offset by this, boxes of two classes do not overlap
        for n in range(boxes.shape[0]):
            moved = boxes[n] + (ops.cast(labels[n], boxes.dtype) * reach).unsqueeze(1)
            kept.append(ops.nms_mask(moved, scores[n], self.nms_thresh))
        good = ops.logical_and(ops.stack(kept, 0), ops.gt(scores, self.score_thresh))
        scores, order = ops.topk(
            ops.where(good, scores, 0.0), min(self.detections_per_img, scores.shape[1]), 1
        )
        rows = ops.expand(order.unsqueeze(2), (*order.shape, 4))
        labels = ops.where(ops.gt(scores, 0.0), ops.gather(labels, 1, order), -1)
        return Detections(ops.gather(boxes, 1, rows), scores, labels)

    def _best(self, logits: Any, codes: Any, anchors: Any) -> tuple[Any, Any, Any]:
        """Boxes, scores and labels of a level's candidates."""
        images, count, classes = logits.shape
        scores = ops.sigmoid(logits).reshape((images, count * classes))
        scores, order = ops.topk(scores, min(self.topk_candidates, count * classes), 1)
        rows = ops.floor_divide(order, classes)
        codes = ops.gather(codes, 1, ops.expand(rows.unsqueeze(2), (*rows.shape, 4)))
        return decode_boxes(codes, anchors[rows]), scores, order - rows * classes

    def predict(self, images: Sequence[Any]) -> list[dict[str, Array]]:
        """Objects in images (3, H, W) in 0 … 1 of any sizes: for each boxes [D, 4] in its pixels, scores and labels.

        They are scaled to min_size and zero-padded to a common size, a multiple of 32, as in torchvision.
        """
        given = [as_tensor(image) for image in images]
        scaled = [_scaled(image, self.min_size, self.max_size) for image in given]
        sizes = np.array([y.shape[1:] for y in scaled])
        room = -(-sizes.max(0) // 32) * 32
        # Padded with the value that is normalized to zero.
        mean = np.broadcast_to(self.mean, (self.mean.shape[0], *room)).copy()
        batch = np.stack([mean] * len(scaled))
        for place, y in zip(batch, scaled, strict=True):
            place[:, : y.shape[1], : y.shape[2]] = y.numpy()
        where = next(self.parameters()).device
        found = self.detections(self(tensor(batch, device=where)), tensor(sizes, device=where))
        ratios = np.array([x.shape[1:] for x in given]) / sizes
        return [
            _listed(boxes, scores, labels, ratio[[1, 0, 1, 0]].astype(np.float32))
            for boxes, scores, labels, ratio in zip(*(part.numpy() for part in found), ratios, strict=True)
        ]


def padded_objects(targets: Sequence[Mapping[str, Any]], multiple: int = 8) -> dict[str, Array]:
    """Objects of images as arrays of one shape: {"boxes": [N, M, 4], "labels": [N, M]}, label -1 for padding.

    targets: for each image boxes [L, 4] and labels [L]; L may be 0. M is the largest L, rounded up to a multiple of
    `multiple`, to limit the number of compiled programs. Raises ShapeError for mismatched shapes, ValueError for a
    box without width or height.
    """
    rows = [(np.asarray(t["boxes"], np.float32), np.asarray(t["labels"], np.int64)) for t in targets]
    for n, (boxes, labels) in enumerate(rows):
        if labels.ndim != 1 or boxes.reshape(-1, 4).shape[0] != len(labels):
            raise ShapeError(f"padded_objects: image {n} has boxes {boxes.shape} and labels {labels.shape}")
        if boxes.size and not (boxes[:, 2:] > boxes[:, :2]).all():
            raise ValueError(f"padded_objects: image {n} has a box without width or height: {boxes.tolist()}")
    most = max(1, -(-max((len(labels) for _, labels in rows), default=0) // multiple)) * multiple
    boxes, labels = np.zeros((len(rows), most, 4), np.float32), np.full((len(rows), most), -1)
    for n, (own, names) in enumerate(rows):
        boxes[n, : len(names)], labels[n, : len(names)] = own.reshape(-1, 4), names
    return {"boxes": boxes, "labels": labels}


def retinanet_resnet50_fpn(
    num_classes: int = 91, *, frozen_norms: bool = True, trainable_layers: int = 5, **options: Any
) -> RetinaNet:
    """RetinaNet on ResNet-50, levels of stride 8 to 128; 34,014,999 parameters and constants with 91 classes.

    frozen_norms: constant batch norms, as in published weights; otherwise they are trained. trainable_layers: the
    number of the backbone's five parts that are trained, from the last one; published recipes train 3. options: as in
    `RetinaNet`.
    """
    norm = FrozenBatchNorm2d if frozen_norms else BatchNorm2d
    return retinanet(resnet50(norm_layer=norm), num_classes, trainable_layers=trainable_layers, **options)


def retinanet(
    net: ResNet,
    num_classes: int,
    *,
    trainable_layers: int = 5,
    width: int = 256,
    **options: Any,
) -> RetinaNet:
    """RetinaNet on any ResNet; width: the channels of the pyramid. See `retinanet_resnet50_fpn`."""
    if not 0 <= trainable_layers <= 5:
        raise ValueError(f"retinanet: trainable_layers must be 0 … 5, got {trainable_layers}")
    body = FeatureStages(resnet_modules(net), {"layer2": "0", "layer3": "1", "layer4": "2"})
    trained = ("layer4", "layer3", "layer2", "layer1", "conv1")[:trainable_layers]
    for name, child in body.named_children():
        if name not in trained and (name != "bn1" or trainable_layers < 5):
            child.requires_grad_(False)
    expansion: int = net.layer4[-1].expansion
    channels = [64 * 2**i * expansion for i in (1, 2, 3)]
    backbone = BackboneWithFPN(body, channels, width, LastLevelP6P7(width, width))
    return RetinaNet(backbone, num_classes, **options)


def _anchor_sizes() -> list[tuple[int, ...]]:
    """Three per level, a third of an octave apart."""
    return [tuple(int(x * 2 ** (i / 3)) for i in range(3)) for x in (32, 64, 128, 256, 512)]


def _scaled(image: Any, min_size: int, max_size: int) -> Any:
    """An image (3, H, W) scaled so that its sides have min_size and at most max_size pixels."""
    short, long = sorted(image.shape[1:])
    factor = min(min_size / short, max_size / long)
    x = ops.unsqueeze(image, 0)
    return ops.interpolate(
        x, scale_factor=factor, mode="bilinear", align_corners=False, recompute_scale_factor=True
    )[0]


def _listed(boxes: Array, scores: Array, labels: Array, ratio: Array) -> dict[str, Array]:
    """One image's detections without the markers of missing ones, in pixels of the original image."""
    found = labels >= 0
    return {"boxes": boxes[found] * ratio, "scores": scores[found], "labels": labels[found]}
