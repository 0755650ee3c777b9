"""Anchors, codes of boxes, and which anchor answers for what: as in torchvision, and by hand."""

from typing import Any

import numpy as np
import pytest

from lamina import ops
from lamina.nn.models import anchors

RNG = np.random.default_rng(0)


def boxes(*shape: int) -> Any:
    corner = RNG.uniform(0, 80, (*shape, 2))
    return np.concatenate([corner, corner + RNG.uniform(4, 60, (*shape, 2))], -1).astype(np.float32)


@pytest.mark.torch
def test_anchors_are_torchvisions() -> None:
    import torch

    from tests.helpers import vision

    AnchorGenerator = vision.module("models.detection.anchor_utils").AnchorGenerator
    ImageList = vision.module("models.detection.image_list").ImageList
    sizes, ratios = ((16, 21, 27), (40, 50, 63)), (0.5, 1.0, 2.0)
    levels = [torch.zeros(1, 1, 9, 12), torch.zeros(1, 1, 4, 6)]
    images = ImageList(torch.zeros(1, 3, 72, 100), [(72, 100)])
    expected = AnchorGenerator(sizes, (ratios,) * 2)(images, levels)[0].numpy()
    found = [
        anchors.grid_anchors(anchors.cell_anchors(s, ratios), y.shape[2:], (72, 100))
        for s, y in zip(sizes, levels, strict=True)
    ]
    np.testing.assert_array_equal(np.concatenate(found), expected)


@pytest.mark.torch
def test_codes_are_torchvisions() -> None:
    import torch

    from tests.helpers import vision

    BoxCoder = vision.module("models.detection._utils").BoxCoder
    a, b, coder = boxes(20), boxes(20), BoxCoder((1.0, 1.0, 1.0, 1.0))
    codes = coder.encode_single(torch.tensor(a), torch.tensor(b)).numpy()
    np.testing.assert_allclose(anchors.encode_boxes(a, b).numpy(), codes, rtol=1e-4, atol=1e-5)
    large = codes * 9
    expected = coder.decode_single(torch.tensor(large), torch.tensor(b)).numpy()
    np.testing.assert_allclose(anchors.decode_boxes(large, b).numpy(), expected, rtol=1e-4, atol=1e-2)


def test_codes_there_and_back() -> None:
    a, b = boxes(3, 7), boxes(7)
    found = anchors.decode_boxes(anchors.encode_boxes(a, b), b).numpy()
    np.testing.assert_allclose(found, a, rtol=1e-4, atol=1e-3)


def test_clipped_boxes_are_within_each_image() -> None:
    given = np.array([[[-5, -4, 30, 40]], [[-5, -4, 30, 40]]], np.float32)
    found = anchors.clip_boxes(given, np.array([[20, 25], [50, 10]])).numpy()
    np.testing.assert_array_equal(found, [[[0, 0, 25, 20]], [[0, 0, 10, 40]]])


@pytest.mark.torch
def test_matches_are_torchvisions() -> None:
    import torch

    from tests.helpers import vision

    Matcher, box_iou = vision.module("models.detection._utils").Matcher, vision.module("ops").box_iou
    objects, valid, given = boxes(3, 5), np.arange(5) < np.array([[5], [2], [0]]), boxes(200)
    found = anchors.match_anchors(ops.operand(objects), ops.operand(valid), given, 0.5, 0.4)
    number, positive, counted = (part.numpy() for part in found)
    for image, count in enumerate((5, 2)):
        expected = Matcher(0.5, 0.4, True)(box_iou(torch.tensor(objects[image, :count]), torch.tensor(given)))
        wanted = expected.numpy()
        np.testing.assert_array_equal(positive[image], wanted >= 0)
        np.testing.assert_array_equal(counted[image], wanted != -2)
        np.testing.assert_array_equal(number[image][wanted >= 0], wanted[wanted >= 0])
    assert not positive[2].any()
    assert counted[2].all()
