"""U-Net: keys and values of the same layers in PyTorch, sizes that are no multiples of 16, training."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops
from tests.helpers.nn.twins import check, learns, same_weights, shapes

X = np.random.default_rng(0).standard_normal((2, 3, 35, 50)).astype(np.float32)


def pytorch(channels: int, classes: int, width: int, bilinear: bool) -> Any:
    """The layers under the names of the widespread version."""
    import torch
    from torch.nn import BatchNorm2d, Conv2d, ConvTranspose2d, MaxPool2d, Module, ReLU, Sequential, Upsample

    def named(**children: Any) -> Any:
        module = Module()
        for name, child in children.items():
            module.add_module(name, child)
        return module

    def double(inputs: int, outputs: int, middle: int) -> Any:
        first, second = (
            Conv2d(inputs, middle, 3, 1, 1, bias=False),
            Conv2d(middle, outputs, 3, 1, 1, bias=False),
        )
        return Sequential(first, BatchNorm2d(middle), ReLU(), second, BatchNorm2d(outputs), ReLU())

    class Net(Module):
        def __init__(self) -> None:
            super().__init__()
            half = 2 if bilinear else 1
            sizes = [width, 2 * width, 4 * width, 8 * width, 16 * width // half]
            self.inc = named(double_conv=double(channels, width, width))
            for i in range(1, 5):
                conv = named(double_conv=double(sizes[i - 1], sizes[i], sizes[i]))
                self.add_module(f"down{i}", named(maxpool_conv=Sequential(MaxPool2d(2), conv)))
            for i, wide in enumerate((16, 8, 4, 2), 1):
                wide, out = wide * width, wide * width // 2 // (half if i < 4 else 1)
                up = (
                    Upsample(scale_factor=2, mode="bilinear", align_corners=True)
                    if bilinear
                    else ConvTranspose2d(wide, wide // 2, 2, 2)
                )
                conv = named(double_conv=double(wide, out, wide // 2 if bilinear else out))
                self.add_module(f"up{i}", named(up=up, conv=conv))
            self.outc = named(conv=Conv2d(width, classes, 1))

        def forward(self, x: Any) -> Any:
            levels = [self.inc.double_conv(x)]
            for i in range(1, 5):
                pool, conv = getattr(self, f"down{i}").maxpool_conv
                levels.append(conv.double_conv(pool(levels[-1])))
            y = levels.pop()
            for i in range(1, 5):
                part, kept = getattr(self, f"up{i}"), levels.pop()
                y = part.up(y)
                h, w = kept.shape[2] - y.shape[2], kept.shape[3] - y.shape[3]
                y = torch.nn.functional.pad(y, [w // 2, w - w // 2, h // 2, h - h // 2])
                y = part.conv.double_conv(torch.cat([kept, y], 1))
            return self.outc.conv(y)

    return Net()


@pytest.mark.feature("B021")
@pytest.mark.parametrize(("bilinear", "count"), [(False, 31_037_633), (True, 17_262_977)])
def test_keys_and_counts(bilinear: bool, count: int) -> None:
    with nn.init.skipped():
        net = nn.UNet(3, 1, bilinear)
    assert sum(p.numel() for p in net.parameters()) == count
    state = shapes(net.state_dict())
    assert state["down1.maxpool_conv.1.double_conv.0.weight"] == (128, 64, 3, 3)
    assert ("up1.up.weight" in state) is not bilinear
    assert state["outc.conv.bias"] == (1,)


@pytest.mark.torch
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("bilinear", [False, True])
def test_values_and_gradients_are_pytorchs(bilinear: bool, train: bool) -> None:
    theirs, ours = pytorch(3, 2, 4, bilinear).train(train), nn.UNet(3, 2, bilinear, 4).train(train)
    same_weights(theirs, ours)
    check(theirs, ours, (X,))


def test_it_learns_to_separate() -> None:
    nn.manual_seed(0)
    labels = (X[:, 0] > 0).astype(np.int64)
    learns(nn.UNet(3, 2, width=8), ops.cross_entropy, X, labels, 12)


def test_errors_say_what_does_not_fit() -> None:
    with pytest.raises(lm.ShapeError, match=r"UNet: images must be \(N, C, H, W\) of 16 pixels or more"):
        nn.UNet(3, 1, width=4)(X[:, :, :15])
