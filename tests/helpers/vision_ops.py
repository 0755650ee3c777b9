"""torchvision's operators, written with functions of PyTorch, where its C++ library cannot be loaded."""

from typing import Any

import torch
import torch.nn.functional as F

from tests.helpers import vision

_SCHEMAS = {
    "roi_align": "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio, bool aligned) -> Tensor",
    "deform_conv2d": "(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, "
    "SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, "
    "SymInt offset_groups, bool use_mask) -> Tensor",
}


def nms(boxes: Any, scores: Any, iou_threshold: float) -> Any:
    """Indices of the boxes [N, 4] that no better one overlaps by more than the threshold, best first."""
    kept: list[int] = []
    overlap = vision.module("ops").box_iou(boxes, boxes)
    for i in scores.argsort(descending=True, stable=True).tolist():
        if not (overlap[i, kept] > iou_threshold).any():  # boxes without an area overlap by NaN, and are kept
            kept.append(i)
    return torch.tensor(kept, dtype=torch.int64)


def roi_align(input: Any, rois: Any, scale: float, height: int, width: int, ratio: int, aligned: bool) -> Any:
    """By torchvision's own Python."""
    return vision.module("ops.roi_align")._roi_align.__wrapped__(
        input, rois, scale, height, width, ratio, aligned
    )


def deform_conv2d(x: Any, weight: Any, offset: Any, mask: Any, bias: Any, *numbers: Any) -> Any:
    """One tap and one group of offsets after the other."""
    *pairs, groups, parts, has_mask = numbers
    (sh, sw), (ph, pw), (dh, dw) = (pairs[i : i + 2] for i in (0, 2, 4))
    (n, channels, h, w), (kh, kw), (oh, ow) = x.shape, weight.shape[2:], offset.shape[2:]
    rows, columns = torch.arange(oh)[:, None] * sh - ph, torch.arange(ow) * sw - pw
    read = x.new_zeros(n, channels, kh * kw, oh, ow)
    each = channels // parts
    for part in range(parts):
        own = slice(part * each, (part + 1) * each)
        for k in range(kh * kw):
            tap = part * kh * kw + k
            y = rows + k // kw * dh + offset[:, 2 * tap]
            z = columns + k % kw * dw + offset[:, 2 * tap + 1]
            grid = torch.stack([(2 * z + 1) / w - 1, (2 * y + 1) / h - 1], -1)
            found = F.grid_sample(x[:, own], grid, align_corners=False)
            read[:, own, k] = found * mask[:, tap : tap + 1] if has_mask else found
    found = torch.einsum("ngckl,gmck->ngml", read.view(n, groups, channels // groups, kh * kw, oh * ow),
                         weight.view(groups, -1, channels // groups, kh * kw))  # fmt: skip
    return found.reshape(n, -1, oh, ow) + bias.view(-1, 1, 1)


def _kept_shape(boxes: Any, scores: Any, iou_threshold: float) -> Any:
    return boxes.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64)


def provide() -> None:
    """Define what is lacking, once."""
    extension = vision.module("extension")
    if extension._has_ops():
        return
    for name, schema in _SCHEMAS.items():
        vision._LIBRARY.define(f"{name}{schema}")
    vision._LIBRARY.impl("nms", nms, "CPU")
    torch.library.register_fake("torchvision::nms", _kept_shape, allow_override=True)
    vision._LIBRARY.impl("roi_align", roi_align, "CompositeImplicitAutograd")
    vision._LIBRARY.impl("deform_conv2d", deform_conv2d, "CompositeImplicitAutograd")
    for place in ("extension", "ops.boxes", "ops.roi_align", "ops.deform_conv"):
        found = vision.module(place)
        found._has_ops = lambda: True
        found._assert_has_ops = lambda: None
