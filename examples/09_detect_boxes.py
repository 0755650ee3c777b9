"""Train a detector on squares, and detect those in new images.

Prints the falling loss, and how many of the squares in sixteen new images are found with the right position and
class: a box counts if it overlaps the square by half. The network is a RetinaNet on a small backbone; with
`nn.retinanet_resnet50_fpn` it is the published one.
"""

import numpy as np

import lamina as lm
from lamina import nn, optim

lm.manual_seed(0)
rng = np.random.default_rng(0)


def drawn(count):
    """Images (count, 3, 64, 64) with one or two squares each, class 1 red and class 2 green."""
    images, targets = 0.1 * rng.random((count, 3, 64, 64), np.float32), []
    for image in images:
        boxes, labels = [], []
        for left in (0, 32)[: rng.integers(1, 3)]:
            size, label = rng.integers(12, 24), rng.integers(1, 3)
            x, y = left + rng.integers(0, 33 - size), rng.integers(0, 65 - size)
            image[label - 1, y : y + size, x : x + size] += 0.8
            boxes.append([x, y, x + size, y + size])
            labels.append(label)
        targets.append({"boxes": boxes, "labels": labels})
    return images, targets


class Backbone(nn.Module):
    """One feature level, at an eighth of the image's size."""

    out_channels = 32

    def __init__(self):
        sizes = (3, 16, 32, 32)
        self.body = nn.Sequential()
        for i in range(3):
            conv = nn.Conv2d(sizes[i], sizes[i + 1], 3, 2, 1, bias=False)
            self.body.add_module(str(i), nn.Sequential(conv, nn.BatchNorm2d(sizes[i + 1]), nn.ReLU()))

    def forward(self, x):
        """Images (N, 3, H, W) -> the feature levels, here one: (N, 32, H / 8, W / 8)."""
        return [self.body(x)]


net = nn.RetinaNet(
    Backbone(),
    num_classes=3,
    anchor_sizes=[(12, 16, 21)],
    aspect_ratios=(1.0,),
    min_size=64,
    score_thresh=0.3,
)
for part in (net.head.classification_head.conv, net.head.regression_head.conv):
    for layer in part.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.he_(layer)  # from scratch, narrow heads learn sooner than with the published values

step = lm.train_step(net, net.loss, optim.Adam(lr=3e-3), device="auto")
for i in range(150):
    images, targets = drawn(8)
    loss = step(images, nn.padded_objects(targets))
    if i % 50 == 49:
        print(f"step {i + 1}: loss {loss.item():.2f}")

images, targets = drawn(16)
found = right = 0
for seen, target in zip(net.eval().predict(list(images)), targets, strict=True):
    overlap = lm.ops.box_iou(np.float32(target["boxes"]), seen["boxes"]).numpy()
    same = np.array(target["labels"])[:, None] == seen["labels"]
    right += int(((overlap > 0.5) & same).any(1).sum())
    found += len(seen["labels"])
print(f"{right} of {sum(len(t['labels']) for t in targets)} squares, {found} boxes")
