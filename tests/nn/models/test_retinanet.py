"""RetinaNet: torchvision's keys, values, losses, gradients and detections; training; objects that are found."""

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import lamina as lm
from lamina import nn
from lamina.nn.models.resnet import BasicBlock, ResNet
from lamina.nn.models.retinanet import Detections, RetinaNetOutput, _scaled, retinanet
from tests.helpers.nn.twins import GRADIENT, OUTPUT, close, learns, same_weights, shapes

RNG = np.random.default_rng(0)
IMAGES = RNG.random((2, 3, 96, 128)).astype(np.float32)
TARGETS = [
    {"boxes": np.array([[5, 6, 40, 60], [50, 20, 90, 80]], np.float32), "labels": np.array([1, 3])},
    {"boxes": np.zeros((0, 4), np.float32), "labels": np.zeros(0, np.int64)},
]
SIZES = [(8, 10, 13), (16, 20, 25), (32, 40, 51), (64, 81, 102), (128, 161, 203)]


def small(classes: int = 3, **options: Any) -> nn.RetinaNet:
    """A RetinaNet on a ResNet with one basic block a stage, for small objects."""
    net = ResNet(BasicBlock, (1, 1, 1, 1))
    return retinanet(net, classes, width=32, anchor_sizes=SIZES, **options)


@pytest.mark.feature("B021")
@pytest.mark.torch
def test_keys_are_torchvisions() -> None:
    import torch

    from tests.helpers.vision import models

    with torch.device("meta"), nn.init.skipped():
        theirs = models.detection.retinanet_resnet50_fpn(weights=None, weights_backbone=None)
        ours = nn.retinanet_resnet50_fpn(frozen_norms=False)
        frozen = nn.retinanet_resnet50_fpn()
    assert shapes(theirs.state_dict()) == shapes(ours.state_dict())
    # The published file has frozen norms: no count of batches, and no parameters of theirs.
    assert shapes(frozen.state_dict()) == {
        key: shape for key, shape in shapes(theirs.state_dict()).items() if "num_batches" not in key
    }
    assert sum(p.numel() for p in frozen.parameters()) == 34_014_999


@pytest.mark.slow
@pytest.mark.torch
def test_values_losses_gradients_and_detections_are_torchvisions() -> None:
    import torch

    from tests.helpers.vision import models

    options = {
        "min_size": 96,
        "max_size": 150,
        "score_thresh": 0.011,
        "topk_candidates": 200,
        "detections_per_img": 40,
    }
    torch.manual_seed(0)
    theirs = models.detection.retinanet_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=4, **options
    )
    ours = nn.retinanet_resnet50_fpn(4, frozen_norms=False, **options)
    same_weights(theirs, ours)
    (
        theirs.double().eval(),
        ours.double().eval(),
    )  # in float32 fifty layers leave errors of 1e-3 in some gradients

    given = [torch.tensor(x, dtype=torch.float64) for x in IMAGES]
    images, _ = theirs.transform(given)
    levels = list(theirs.backbone(images.tensors).values())
    heads, anchors = theirs.head(levels), theirs.anchor_generator(images, levels)
    wanted = theirs.compute_loss(
        [{k: torch.tensor(v) for k, v in t.items()} for t in TARGETS], heads, anchors
    )
    sum(wanted.values()).backward()

    def loss(net: nn.RetinaNet) -> Any:
        found = net(lm.tensor(IMAGES, "float64"))
        return net.loss(found, nn.padded_objects(TARGETS)), (
            found,
            net.losses(found, nn.padded_objects(TARGETS)),
        )

    (_, (found, losses)), grads = lm.value_and_grad(loss, has_aux=True)(ours)
    for part, name in ((found.cls_logits, "cls_logits"), (found.bbox_regression, "bbox_regression")):
        close(np.concatenate([y.numpy() for y in part], 1), heads[name].detach().numpy(), OUTPUT, name)
    np.testing.assert_array_equal(np.concatenate([a.numpy() for a in found.anchors]), anchors[0].numpy())
    for name, value in wanted.items():
        np.testing.assert_allclose(losses[name].item(), value.item(), rtol=1e-4)
    expected = {name: p.grad.numpy() for name, p in theirs.named_parameters()}
    most = max(np.abs(g).max() for g in expected.values())
    for name, grad in grads.items():
        close(grad.numpy(), expected[name], GRADIENT, name, most / 100)
    _same_detections(theirs.float(), ours.float())


def _same_detections(theirs: Any, ours: nn.RetinaNet) -> None:
    """On images of two sizes, with scaling and padding; torchvision's nms by Lamina's."""
    import torch

    def nms(boxes: Any, scores: Any, threshold: float) -> Any:
        return torch.tensor(lm.ops.nms(boxes.numpy(), scores.numpy(), threshold).numpy())

    given = [IMAGES[0], RNG.random((3, 120, 90)).astype(np.float32)]
    with torch.no_grad(), patch("torchvision.ops.boxes.nms", nms):
        wanted = theirs([torch.tensor(x) for x in given])
    found = ours.predict(given)
    for mine, other in zip(found, wanted, strict=True):
        assert 0 < len(mine["scores"]) == len(other["scores"])
        np.testing.assert_allclose(mine["scores"], other["scores"].numpy(), rtol=1e-4)
        same = mine["labels"] == other["labels"].numpy()  # but where two scores are equal up to rounding
        assert same.mean() > 0.9
        close(mine["boxes"][same], other["boxes"].numpy()[same], 1e-3, "boxes")


def test_one_loss_is_learned_whatever_the_number_of_objects() -> None:
    nn.manual_seed(0)
    net = small()
    step = lm.train_step(net, net.loss, lm.optim.Adam(lr=1e-3), device="cpu")
    losses = [step(IMAGES, nn.padded_objects(t)).item() for t in (TARGETS, TARGETS[::-1], [TARGETS[1]] * 2)]
    assert np.isfinite(losses).all()
    learns(net, net.loss, IMAGES, nn.padded_objects(TARGETS), 8, 3e-4)


@pytest.mark.parametrize(
    ("size", "wanted"),
    [((20, 40), (25, 50)), ((40, 20), (50, 25)), ((20, 24), (30, 36)), ((60, 90), (30, 45))],
)
def test_images_are_scaled_until_a_side_is_as_long_as_it_may_be(
    size: tuple[int, int], wanted: tuple[int, int]
) -> None:
    """The short side to 30, or the long one to 50."""
    x = np.broadcast_to(np.linspace(0, 1, size[1], dtype=np.float32), (3, *size))
    y = _scaled(lm.tensor(x), 30, 50)
    assert y.shape == (3, *wanted)
    np.testing.assert_allclose(y.numpy().mean(), 0.5, atol=1e-3)


def test_images_are_normalized_as_imagenets_unless_told_otherwise() -> None:
    class Shown(nn.Module):
        out_channels = 32

        def forward(self, x: Any) -> list[Any]:
            shown.append(x.numpy())
            return [lm.zeros((1, 32, 1, 1))]

    shown: list[Any] = []
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    images = np.stack([mean, mean + std]).astype(np.float32).T.reshape(1, 3, 1, 2)
    nn.RetinaNet(Shown(), 2, anchor_sizes=[(8,)])(lm.tensor(images))
    nn.RetinaNet(Shown(), 2, anchor_sizes=[(8,)], image_mean=(0.0,) * 3, image_std=(1.0,) * 3)(
        lm.tensor(images)
    )
    np.testing.assert_allclose(shown[0], np.broadcast_to([0.0, 1.0], (1, 3, 1, 2)), atol=1e-6)
    np.testing.assert_array_equal(shown[1], images)


def test_padding_of_objects_changes_no_loss() -> None:
    net = small().eval()
    found = net(IMAGES)
    one, two = (net.loss(found, nn.padded_objects(TARGETS, n)).item() for n in (2, 16))
    assert one == pytest.approx(two, rel=1e-6)


def drawn(rng: np.random.Generator, count: int) -> tuple[Any, list[dict[str, Any]]]:
    """Images of 64 pixels with one or two squares each: class 1 red, class 2 green."""
    images = 0.1 * rng.random((count, 3, 64, 64))
    targets = []
    for image in images:
        boxes, labels = [], []
        for side in range(rng.integers(1, 3)):
            size, label = rng.integers(12, 24), rng.integers(1, 3)
            x, y = min(rng.integers(0, 17) + 32 * side, 64 - size), rng.integers(0, 64 - size)
            image[label - 1, y : y + size, x : x + size] += 0.8
            boxes.append([x, y, x + size, y + size])
            labels.append(label)
        targets.append({"boxes": np.array(boxes, np.float32), "labels": np.array(labels)})
    return images.astype(np.float32), targets


class Features(nn.Module):
    """One level of stride 8: any module with out_channels that gives a list is a backbone."""

    out_channels = 32

    def __init__(self) -> None:
        sizes = (3, 16, 32, 32)
        self.body = nn.Sequential()
        for i in range(3):
            conv = nn.Conv2d(sizes[i], sizes[i + 1], 3, 2, 1, bias=False)
            self.body.add_module(str(i), nn.Sequential(conv, nn.BatchNorm2d(sizes[i + 1]), nn.ReLU()))

    def forward(self, x: Any) -> list[Any]:
        return [self.body(x)]


@pytest.mark.slow
def test_objects_are_found() -> None:
    nn.manual_seed(0)
    rng = np.random.default_rng(1)
    net = nn.RetinaNet(
        Features(),
        3,
        min_size=64,
        max_size=64,
        anchor_sizes=[(12, 16, 21)],
        aspect_ratios=(1.0,),
        score_thresh=0.3,
    )
    for layer in net.head.modules():
        if isinstance(layer, nn.Conv2d) and layer.out_channels == 32:
            nn.init.he_(layer)
    step = lm.train_step(net, net.loss, lm.optim.Adam(lr=3e-3), device="cpu")
    for _ in range(250):  # at 150 two runs whose sums are rounded otherwise may part by one object in ten
        images, targets = drawn(rng, 8)
        step(images, nn.padded_objects(targets))
    images, targets = drawn(rng, 16)
    hits = total = given = 0
    for found, target in zip(net.eval().predict(list(images)), targets, strict=True):
        overlap = lm.ops.box_iou(target["boxes"], found["boxes"]).numpy()
        same = target["labels"][:, None] == found["labels"]
        hits += int(((overlap > 0.5) & same).any(1).sum())
        total, given = total + len(target["labels"]), given + len(found["labels"])
    assert hits >= 0.9 * total
    assert given <= 1.5 * total


def test_detections_by_hand() -> None:
    """Two boxes of one class that overlap, one of another class there, one below the threshold."""
    net = small(3, score_thresh=0.3, detections_per_img=5)
    anchors = np.array([[0, 0, 20, 20], [1, 0, 21, 20], [30, 30, 50, 70]], np.float32)
    logits = np.full((1, 3, 3), -9, np.float32)
    logits[0, 0, 1], logits[0, 1, 1], logits[0, 1, 2], logits[0, 2, 0] = 2, 1, 0.5, -1
    output = RetinaNetOutput(
        (lm.tensor(logits),), (lm.tensor(np.zeros((1, 3, 4), np.float32)),), (lm.tensor(anchors),)
    )
    found = Detections(*(part.numpy() for part in net.detections(output, np.array([[60, 40]]))))
    np.testing.assert_array_equal(found.labels, [[1, 2, -1, -1, -1]])
    np.testing.assert_allclose(found.scores[0, :3], [0.880797, 0.622459, 0], rtol=1e-5)
    np.testing.assert_array_equal(found.boxes[0, :2], anchors[:2])
    compiled = lm.jit(lambda x: net.detections(net(x), np.array([[96, 128]] * 2)))(IMAGES)
    assert [part.shape for part in compiled] == [(2, 5, 4), (2, 5), (2, 5)]


def test_what_is_frozen_stays() -> None:
    net = nn.retinanet_resnet50_fpn(2, trainable_layers=3)
    trained = {name.split(".")[2] for name, p in net.backbone.named_parameters("b") if p.requires_grad}
    assert trained == {"layer2", "layer3", "layer4", "inner_blocks", "layer_blocks", "extra_blocks"}


def test_errors_say_what_does_not_fit() -> None:
    net = small()
    with pytest.raises(lm.ShapeError, match=r"RetinaNet: images must be \(N, 3, H, W\)"):
        net(IMAGES[0])
    with pytest.raises(ValueError, match="image 0 has a box without width or height"):
        nn.padded_objects([{"boxes": [[3, 3, 3, 9]], "labels": [1]}])
    with pytest.raises(lm.ShapeError, match=r"image 0 has boxes \(1, 4\) and labels \(2,\)"):
        nn.padded_objects([{"boxes": [[3, 3, 5, 9]], "labels": [1, 2]}])
    with pytest.raises(ValueError, match="trainable_layers must be 0 … 5, got 6"):
        small(trainable_layers=6)
