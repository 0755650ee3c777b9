"""ResNet (He, Zhang, Ren & Sun 2016), version 1.5: in a bottleneck the 3×3 convolution has the stride."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from lamina import ops
from lamina.nn import init
from lamina.nn.container import Sequential
from lamina.nn.conv import Conv2d
from lamina.nn.linear import Linear
from lamina.nn.module import Module, T
from lamina.nn.norm import BatchNorm2d
from lamina.nn.pool import AdaptiveAvgPool2d, MaxPool2d


class BasicBlock(Module):
    """Two 3×3 convolutions and what skips them: relu(bn(conv(relu(bn(conv(x))))) + x)."""

    expansion: ClassVar[int] = 1

    def __init__(self, inplanes: int, planes: int, stride: int = 1, downsample: Module | None = None) -> None:
        self.conv1 = Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = BatchNorm2d(planes)
        self.conv2 = Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = BatchNorm2d(planes)
        self.downsample = downsample

    def forward(self, x: T) -> T:
        """x (N, inplanes, H, W) -> (N, planes, H / stride, W / stride)."""
        skipped = x if self.downsample is None else self.downsample(x)
        y = ops.relu(self.bn1(self.conv1(x)))
        return ops.relu(self.bn2(self.conv2(y)) + skipped)


class Bottleneck(Module):
    """1×1, 3×3 and 1×1 convolutions, the last one four times as wide, and what skips them."""

    expansion: ClassVar[int] = 4

    def __init__(self, inplanes: int, planes: int, stride: int = 1, downsample: Module | None = None) -> None:
        self.conv1 = Conv2d(inplanes, planes, 1, bias=False)
        self.bn1 = BatchNorm2d(planes)
        self.conv2 = Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = BatchNorm2d(planes)
        self.conv3 = Conv2d(planes, 4 * planes, 1, bias=False)
        self.bn3 = BatchNorm2d(4 * planes)
        self.downsample = downsample

    def forward(self, x: T) -> T:
        """x (N, inplanes, H, W) -> (N, 4 · planes, H / stride, W / stride)."""
        skipped = x if self.downsample is None else self.downsample(x)
        y = ops.relu(self.bn1(self.conv1(x)))
        y = ops.relu(self.bn2(self.conv2(y)))
        return ops.relu(self.bn3(self.conv3(y)) + skipped)


Block = type[BasicBlock] | type[Bottleneck]


class ResNet(Module):
    """7×7/2, pool 3/2, four stages of blocks of 64, 128, 256 and 512 filters, the mean, and a linear layer.

    block: BasicBlock or Bottleneck. layers: how many blocks each stage has. Keys are torchvision's
    (conv1.weight, bn1.running_mean, layer1.0.conv1.weight, … fc.bias), so its weights load by name, and initial
    values are as there: convolutions from He's normal distribution by fan out. Images of 32 pixels or more.
    """

    def __init__(
        self, block: Block, layers: Sequence[int], num_classes: int = 1000, in_channels: int = 3
    ) -> None:
        with init.scheme(init.he_out_):
            self.conv1 = Conv2d(in_channels, 64, 7, 2, 3, bias=False)
            self.bn1 = BatchNorm2d(64)
            self.maxpool = MaxPool2d(3, 2, 1)
            self.layer1 = _stage(block, 64, 64, layers[0], 1)
            self.layer2 = _stage(block, 64 * block.expansion, 128, layers[1], 2)
            self.layer3 = _stage(block, 128 * block.expansion, 256, layers[2], 2)
            self.layer4 = _stage(block, 256 * block.expansion, 512, layers[3], 2)
        self.avgpool = AdaptiveAvgPool2d((1, 1))
        self.fc = Linear(512 * block.expansion, num_classes)

    def forward(self, x: T) -> T:
        """Images (N, in_channels, H, W) -> logits (N, num_classes)."""
        x = self.maxpool(ops.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(ops.flatten(self.avgpool(x), 1))


def resnet18(num_classes: int = 1000, in_channels: int = 3) -> ResNet:
    """8 basic blocks; 11,689,512 parameters with 1000 classes."""
    return ResNet(BasicBlock, (2, 2, 2, 2), num_classes, in_channels)


def resnet34(num_classes: int = 1000, in_channels: int = 3) -> ResNet:
    """16 basic blocks; 21,797,672 parameters with 1000 classes."""
    return ResNet(BasicBlock, (3, 4, 6, 3), num_classes, in_channels)


def resnet50(num_classes: int = 1000, in_channels: int = 3) -> ResNet:
    """16 bottlenecks; 25,557,032 parameters with 1000 classes."""
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes, in_channels)


def resnet101(num_classes: int = 1000, in_channels: int = 3) -> ResNet:
    """33 bottlenecks; 44,549,160 parameters with 1000 classes."""
    return ResNet(Bottleneck, (3, 4, 23, 3), num_classes, in_channels)


def _stage(block: Block, inplanes: int, planes: int, count: int, stride: int) -> Sequential:
    """count blocks; the first one has the stride and, where shapes change, a 1×1 convolution beside it."""
    outplanes = planes * block.expansion
    downsample = None
    if stride != 1 or inplanes != outplanes:
        downsample = Sequential(Conv2d(inplanes, outplanes, 1, stride, bias=False), BatchNorm2d(outplanes))
    first = block(inplanes, planes, stride, downsample)
    return Sequential(first, *(block(outplanes, planes) for _ in range(count - 1)))
