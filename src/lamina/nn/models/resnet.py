"""ResNet (He, Zhang, Ren & Sun 2016), version 1.5: in a bottleneck the 3×3 convolution has the stride.

Also ResNeXt, whose 3×3 convolutions have groups (Xie, Girshick, Dollár, Tu & He 2017), and Wide ResNet, whose 3×3
convolutions have twice the filters (Zagoruyko & Komodakis 2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from lamina import ops
from lamina.nn import init
from lamina.nn.container import Sequential
from lamina.nn.conv import Conv2d
from lamina.nn.linear import Linear
from lamina.nn.models.blocks import Norm
from lamina.nn.models.registry import network
from lamina.nn.module import Module, T
from lamina.nn.norm import BatchNorm2d
from lamina.nn.pool import AdaptiveAvgPool2d, MaxPool2d

_RATES = {"sgd": 0.02, "adam": 1e-3}
_PAPER = "He et al. 2016, arXiv:1512.03385"
_GROUPS = "Xie et al. 2017, arXiv:1611.05431"
_WIDE = "Zagoruyko & Komodakis 2016, arXiv:1605.07146"


class BasicBlock(Module):
    """Two 3×3 convolutions and a skip connection: relu(bn(conv(relu(bn(conv(x))))) + x).

    Raises ValueError for groups, another width or a dilation: only bottlenecks support these.
    """

    expansion: ClassVar[int] = 1

    def __init__(
        self,
        inplanes: int,
        planes: int,
        stride: int = 1,
        downsample: Module | None = None,
        groups: int = 1,
        base_width: int = 64,
        dilation: int = 1,
        norm_layer: Norm = BatchNorm2d,
    ) -> None:
        if (groups, base_width, dilation) != (1, 64, 1):
            raise ValueError(
                "BasicBlock: has groups=1, base_width=64 and dilation=1, "
                f"got {groups}, {base_width} and {dilation}; use Bottleneck"
            )
        self.conv1 = Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = norm_layer(planes)
        self.conv2 = Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = norm_layer(planes)
        self.downsample = downsample

    def forward(self, x: T) -> T:
        """x (N, inplanes, H, W) -> (N, planes, H / stride, W / stride)."""
        skipped = x if self.downsample is None else self.downsample(x)
        y = ops.relu(self.bn1(self.conv1(x)))
        z: T = self.bn2(self.conv2(y)) + skipped
        return ops.relu(z)


class Bottleneck(Module):
    """1×1, 3×3 and 1×1 convolutions, the last one with 4 · planes filters, and a skip connection.

    The 3×3 convolution has `groups` groups and planes · base_width / 64 · groups filters.
    """

    expansion: ClassVar[int] = 4

    def __init__(
        self,
        inplanes: int,
        planes: int,
        stride: int = 1,
        downsample: Module | None = None,
        groups: int = 1,
        base_width: int = 64,
        dilation: int = 1,
        norm_layer: Norm = BatchNorm2d,
    ) -> None:
        width = int(planes * (base_width / 64)) * groups
        self.conv1 = Conv2d(inplanes, width, 1, bias=False)
        self.bn1 = norm_layer(width)
        self.conv2 = Conv2d(width, width, 3, stride, dilation, dilation, groups, bias=False)
        self.bn2 = norm_layer(width)
        self.conv3 = Conv2d(width, 4 * planes, 1, bias=False)
        self.bn3 = norm_layer(4 * planes)
        self.downsample = downsample

    def forward(self, x: T) -> T:
        """x (N, inplanes, H, W) -> (N, 4 · planes, H / stride, W / stride)."""
        skipped = x if self.downsample is None else self.downsample(x)
        y = ops.relu(self.bn1(self.conv1(x)))
        y = ops.relu(self.bn2(self.conv2(y)))
        z: T = self.bn3(self.conv3(y)) + skipped
        return ops.relu(z)


Block = type[BasicBlock] | type[Bottleneck]


class ResNet(Module):
    """7×7/2, pool 3/2, four stages of blocks of 64, 128, 256 and 512 filters, the mean, and a linear layer.

    Keys are torchvision's (conv1.weight, bn1.running_mean, layer1.0.conv1.weight, … fc.bias), so its weights load by
    name, and initialization is the same: convolutions from He's normal distribution by fan-out. Images of 32 pixels
    or more.

    Args:
        block: BasicBlock or Bottleneck.
        layers: the number of blocks per stage.
        zero_init_residual: the last norm of each block starts from zero: it starts as its skip connection.
        groups, width_per_group: of the bottlenecks' 3×3 convolutions.
        replace_stride_with_dilation: for each of the last three stages, whether it keeps the size and looks further
            instead.
        norm_layer: constructs a norm for a number of channels.
    """

    def __init__(
        self,
        block: Block,
        layers: Sequence[int],
        num_classes: int = 1000,
        in_channels: int = 3,
        *,
        zero_init_residual: bool = False,
        groups: int = 1,
        width_per_group: int = 64,
        replace_stride_with_dilation: Sequence[bool] | None = None,
        norm_layer: Norm = BatchNorm2d,
    ) -> None:
        dilated = (False, *(replace_stride_with_dilation or (False,) * 3))
        if len(dilated) != 4:
            raise ValueError(
                "ResNet: replace_stride_with_dilation needs three values or None, "
                f"got {replace_stride_with_dilation}"
            )

        make = partial(_stage, block, groups=groups, base_width=width_per_group, norm_layer=norm_layer)
        with init.scheme(init.he_out_):
            self.conv1 = Conv2d(in_channels, 64, 7, 2, 3, bias=False)
            self.bn1 = norm_layer(64)
            self.maxpool = MaxPool2d(3, 2, 1)
            dilation, inplanes = 1, 64
            for i, (planes, count) in enumerate(zip((64, 128, 256, 512), layers, strict=True)):
                stride, before = 1 if i == 0 or dilated[i] else 2, dilation
                dilation *= 2 if dilated[i] else 1
                self.add_module(f"layer{i + 1}", make(inplanes, planes, count, stride, (before, dilation)))
                inplanes = planes * block.expansion
        if zero_init_residual:
            for module in self.modules():
                if isinstance(module, Bottleneck | BasicBlock):
                    last = module.bn3 if isinstance(module, Bottleneck) else module.bn2
                    init.zeros_(last.weight)
        self.avgpool = AdaptiveAvgPool2d((1, 1))
        self.fc = Linear(512 * block.expansion, num_classes)

    def forward(self, x: T) -> T:
        """Images (N, in_channels, H, W) -> logits (N, num_classes)."""
        x = self.maxpool(ops.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(ops.flatten(self.avgpool(x), 1))


def _stage(
    block: Block,
    inplanes: int,
    planes: int,
    count: int,
    stride: int,
    dilations: tuple[int, int],
    **options: Any,
) -> Sequential:
    """count blocks; the first one has the stride and, if shapes change, a parallel 1×1 convolution.

    dilations: of the first block and of the others.
    """
    outplanes = planes * block.expansion
    beside = None
    if stride != 1 or inplanes != outplanes:
        shortcut = Conv2d(inplanes, outplanes, 1, stride, bias=False)
        beside = Sequential(shortcut, options["norm_layer"](outplanes))
    first = block(inplanes, planes, stride, beside, dilation=dilations[0], **options)
    others = (block(outplanes, planes, dilation=dilations[1], **options) for _ in range(count - 1))
    return Sequential(first, *others)


@network(_PAPER, rates=_RATES)
def resnet18(num_classes: int = 1000, in_channels: int = 3, **options: Any) -> ResNet:
    """8 basic blocks; 11,689,512 parameters with 1000 classes. options: of `ResNet`."""
    return ResNet(BasicBlock, (2, 2, 2, 2), num_classes, in_channels, **options)


@network(_PAPER, rates=_RATES)
def resnet34(num_classes: int = 1000, in_channels: int = 3, **options: Any) -> ResNet:
    """16 basic blocks; 21,797,672 parameters with 1000 classes. options: of `ResNet`."""
    return ResNet(BasicBlock, (3, 4, 6, 3), num_classes, in_channels, **options)


@network(_PAPER, rates=_RATES)
def resnet50(num_classes: int = 1000, in_channels: int = 3, **options: Any) -> ResNet:
    """16 bottlenecks; 25,557,032 parameters with 1000 classes. options: of `ResNet`."""
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes, in_channels, **options)


@network(_PAPER, rates=_RATES)
def resnet101(num_classes: int = 1000, in_channels: int = 3, **options: Any) -> ResNet:
    """33 bottlenecks; 44,549,160 parameters with 1000 classes. options: of `ResNet`."""
    return ResNet(Bottleneck, (3, 4, 23, 3), num_classes, in_channels, **options)


@network(_PAPER, rates=_RATES)
def resnet152(num_classes: int = 1000, in_channels: int = 3, **options: Any) -> ResNet:
    """50 bottlenecks; 60,192,808 parameters with 1000 classes. options: of `ResNet`."""
    return ResNet(Bottleneck, (3, 8, 36, 3), num_classes, in_channels, **options)


@network(_GROUPS, rates=_RATES)
def resnext50_32x4d(num_classes: int = 1000, in_channels: int = 3, **options: Any) -> ResNet:
    """`resnet50` with 32 groups of 4 filters in the first stage."""
    return ResNet(
        Bottleneck, (3, 4, 6, 3), num_classes, in_channels, **{"groups": 32, "width_per_group": 4, **options}
    )


@network(_GROUPS, rates=_RATES)
def resnext101_32x8d(num_classes: int = 1000, in_channels: int = 3, **options: Any) -> ResNet:
    """`resnet101` with 32 groups of 8 filters in the first stage."""
    return ResNet(
        Bottleneck, (3, 4, 23, 3), num_classes, in_channels, **{"groups": 32, "width_per_group": 8, **options}
    )


@network(_GROUPS, rates=_RATES)
def resnext101_64x4d(num_classes: int = 1000, in_channels: int = 3, **options: Any) -> ResNet:
    """`resnet101` with 64 groups of 4 filters in the first stage."""
    return ResNet(
        Bottleneck, (3, 4, 23, 3), num_classes, in_channels, **{"groups": 64, "width_per_group": 4, **options}
    )


@network(_WIDE, rates=_RATES)
def wide_resnet50_2(num_classes: int = 1000, in_channels: int = 3, **options: Any) -> ResNet:
    """`resnet50` whose 3×3 convolutions have twice the filters."""
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes, in_channels, **{"width_per_group": 128, **options})


@network(_WIDE, rates=_RATES)
def wide_resnet101_2(num_classes: int = 1000, in_channels: int = 3, **options: Any) -> ResNet:
    """`resnet101` whose 3×3 convolutions have twice the filters."""
    return ResNet(Bottleneck, (3, 4, 23, 3), num_classes, in_channels, **{"width_per_group": 128, **options})
