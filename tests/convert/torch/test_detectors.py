"""Detectors of torchvision: lists of images in, as many boxes out as their values tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import convert

torch = pytest.importorskip("torch")
vision: Any = pytest.importorskip("tests.helpers.vision")
nn = torch.nn
pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


def backbone(channels: int = 8) -> Any:
    net: Any = nn.Sequential(
        nn.Conv2d(3, channels, 3, stride=4, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, stride=2, padding=1),
    )
    net.out_channels = channels
    return net


def anchors(sizes: tuple[int, ...], ratios: tuple[float, ...]) -> Any:
    return vision.module("models.detection.rpn").AnchorGenerator((sizes,), (ratios,))


def faster_rcnn(**options: Any) -> Any:
    pool = vision.module("ops").MultiScaleRoIAlign(["0"], 7, 2)
    return vision.module("models.detection").FasterRCNN(
        backbone(), 4, min_size=64, max_size=96, rpn_anchor_generator=anchors((16, 32), (0.5, 1.0)),
        box_roi_pool=pool, box_detections_per_img=20, rpn_pre_nms_top_n_test=40, **options,
    )  # fmt: skip


def mask_rcnn() -> Any:
    ops = vision.module("ops")
    return vision.module("models.detection").MaskRCNN(
        backbone(), 4, min_size=64, max_size=96, rpn_anchor_generator=anchors((16, 32), (0.5, 1.0)),
        box_roi_pool=ops.MultiScaleRoIAlign(["0"], 7, 2), mask_roi_pool=ops.MultiScaleRoIAlign(["0"], 14, 2),
        box_detections_per_img=8, rpn_pre_nms_top_n_test=40,
    )  # fmt: skip


def one_stage(kind: str) -> Any:
    where, options = (
        vision.module("models.detection"),
        {"min_size": 64, "max_size": 96, "detections_per_img": 20},
    )
    ratios = (1.0,) if kind == "FCOS" else (0.5, 1.0)
    sizes = (16,) if kind == "FCOS" else (16, 32)
    return getattr(where, kind)(backbone(32), 4, anchor_generator=anchors(sizes, ratios), **options)


def ssd() -> Any:
    boxes = vision.module("models.detection.anchor_utils").DefaultBoxGenerator([[2]], steps=[8])
    features = backbone()
    features.out_channels = [8]
    return vision.module("models.detection.ssd").SSD(features, boxes, (64, 64), 4, detections_per_img=20)


NETWORKS: dict[str, Callable[[], Any]] = {
    "faster_rcnn": faster_rcnn,
    "mask_rcnn": mask_rcnn,
    "retina_net": lambda: one_stage("RetinaNet"),
    "fcos": lambda: one_stage("FCOS"),
    "ssd": ssd,
}


NAMES = [n if n == "faster_rcnn" else pytest.param(n, marks=pytest.mark.slow) for n in NETWORKS]


def made(name: str) -> Any:
    """A detector in float64 whose scores differ, so that rounding decides nothing."""
    from tests.helpers import vision_ops

    vision_ops.provide()
    torch.manual_seed(0)
    net = NETWORKS[name]().double().eval()
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.ndim > 1:
                nn.init.kaiming_normal_(parameter)
    return net


def images(seed: int, *sizes: tuple[int, int]) -> list[Any]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.rand(3, *size, generator=draw, dtype=torch.float64) for size in sizes]


def same(found: Any, wanted: Any) -> None:
    assert len(found) == len(wanted)
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.keys() == theirs.keys()
        for name, value in theirs.items():
            x, y = mine[name].numpy(), value.detach().numpy()
            assert x.shape == y.shape
            assert np.allclose(x, y, rtol=1e-9, atol=1e-9), name


@pytest.mark.filterwarnings("ignore:.*(runs call by call|computed op by op):UserWarning")
@pytest.mark.parametrize("name", NAMES)
def test_detections_are_torchvisions(name: str) -> None:
    net = made(name)
    converted = convert.from_torch(net, share=False)
    for seed in range(3):
        batch = images(seed, (60 + seed, 80), (50, 40))
        wanted = net(batch)
        assert sum(len(image["boxes"]) for image in wanted) > 2
        same(converted([lm.tensor(x.numpy()) for x in batch]), wanted)
    same(lm.jit(converted)([lm.tensor(x.numpy()) for x in batch]), wanted)
    same(lm.infer.Predictor(converted, device="cpu")({"images": [x.numpy() for x in batch]}), wanted)


def test_networks_with_nms_compile() -> None:
    """A program for each number of kept boxes."""
    from tests.helpers import vision_ops

    vision_ops.provide()
    nms = vision.module("ops").nms

    class Net(nn.Module):
        def forward(self, boxes: Any, scores: Any) -> Any:
            kept = nms(boxes, scores, 0.3)
            return boxes[kept] * 2, scores[kept], kept

    net = Net()
    converted = convert.from_torch(net)
    compiled = lm.jit(converted)
    for seed in range(4):
        draw = torch.Generator().manual_seed(seed)
        corner = torch.rand(12, 2, generator=draw)
        boxes, scores = torch.cat([corner, corner + 0.4], 1), torch.rand(12, generator=draw)
        for way in (converted, compiled):
            for mine, theirs in zip(way(boxes, scores), net(boxes, scores), strict=True):
                np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


@pytest.mark.filterwarnings("ignore:.*runs call by call:UserWarning")
def test_a_detector_trains_as_torchvisions() -> None:
    """Its losses, on boxes of each image; the step is computed op by op."""
    net = made("retina_net").train()
    converted = convert.from_torch(net, share=False)
    rule = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)

    def total(losses: Any, _: Any) -> Any:
        return sum(losses.values())

    step = lm.train_step(
        converted, total, lm.optim.SGD(lr=1e-3, momentum=0.9), precision="fp64", device="cpu"
    )
    for seed in range(3):
        batch = images(seed, (64, 80), (48, 64))
        boxes = [np.array([[4.0, 6, 40, 30], [20, 10, 50, 45]]), np.array([[8.0, 8, 30, 40]])]
        labels = [np.array([1, 2]), np.array([3])]
        targets = [{"boxes": b, "labels": n} for b, n in zip(boxes, labels, strict=True)]
        rule.zero_grad()
        wanted = total(net(batch, [{k: torch.from_numpy(v) for k, v in t.items()} for t in targets]), None)
        wanted.backward()
        rule.step()
        found = step({"images": [x.numpy() for x in batch], "targets": targets})
        assert float(found) == pytest.approx(wanted.item(), rel=1e-9)
    for mine, theirs in zip(converted.parameters(), net.parameters(), strict=True):
        assert np.allclose(mine.numpy(), theirs.detach().numpy(), rtol=1e-8, atol=1e-10)
