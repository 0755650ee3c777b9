"""ShuffleNetV2 (Ma, Zhang, Zheng & Sun 2018), as torchvision has it."""

from __future__ import annotations

from collections.abc import Sequence

from lamina import ops
from lamina.nn.activation import ReLU
from lamina.nn.container import Sequential
from lamina.nn.conv import Conv2d
from lamina.nn.linear import Linear
from lamina.nn.models.blocks import conv_norm
from lamina.nn.models.registry import network
from lamina.nn.module import Module, T
from lamina.nn.norm import BatchNorm2d
from lamina.nn.pool import MaxPool2d

_PAPER = "Ma et al. 2018, arXiv:1807.11164"
#: Units of the three stages.
_REPEATS = (4, 8, 4)


class ShuffleUnit(Module):
    """Half of the channels pass through 1×1, depthwise 3×3 and 1×1; then channels of both halves are interleaved.

    With a stride both halves are computed from all channels. Raises ValueError if shapes do not allow that.
    """

    def __init__(self, inp: int, oup: int, stride: int) -> None:
        half = oup // 2
        if stride == 1 and inp != 2 * half:
            raise ValueError(f"ShuffleUnit: stride 1 keeps {inp} channels, got oup={oup}")
        self.stride = stride
        self.branch1 = Sequential(*_separable(inp, half, stride)) if stride > 1 else Sequential()
        channels = inp if stride > 1 else half
        self.branch2 = Sequential(*conv_norm(channels, half, 1), *_separable(half, half, stride))

    def forward(self, x: T) -> T:
        """x (N, inp, H, W) -> (N, oup, H / stride, W / stride)."""
        kept, changed = ops.chunk(x, 2, 1) if self.stride == 1 else (self.branch1(x), x)
        return ops.channel_shuffle(ops.cat([kept, self.branch2(changed)], 1), 2)


class ShuffleNetV2(Module):
    """3×3/2, pool 3/2, three stages of units, a 1×1 convolution, the mean, and a linear layer.

    stages_repeats: units of each stage. stages_out_channels: of the first convolution, of each stage, of the last
    convolution. Keys and initialization are torchvision's.
    """

    def __init__(
        self,
        stages_repeats: Sequence[int],
        stages_out_channels: Sequence[int],
        num_classes: int = 1000,
        in_channels: int = 3,
    ) -> None:
        first, *widths, last = stages_out_channels
        self.conv1 = conv_norm(in_channels, first, 3, 2)
        self.maxpool = MaxPool2d(3, 2, 1)
        channels = first
        for i, (count, width) in enumerate(zip(stages_repeats, widths, strict=True)):
            units = [
                ShuffleUnit(channels, width, 2),
                *(ShuffleUnit(width, width, 1) for _ in range(count - 1)),
            ]
            self.add_module(f"stage{i + 2}", Sequential(*units))
            channels = width
        self.conv5 = conv_norm(channels, last, 1)
        self.fc = Linear(last, num_classes)

    def forward(self, x: T) -> T:
        """Images (N, in_channels, H, W) -> logits (N, num_classes)."""
        x = self.maxpool(self.conv1(x))
        x = self.conv5(self.stage4(self.stage3(self.stage2(x))))
        return self.fc(ops.mean(x, (2, 3)))


def _separable(channels: int, filters: int, stride: int) -> list[Module]:
    """Depthwise 3×3, then 1×1."""
    spatial = Conv2d(channels, channels, 3, stride, 1, groups=channels, bias=False)
    pointwise = Conv2d(channels, filters, 1, bias=False)
    return [spatial, BatchNorm2d(channels), pointwise, BatchNorm2d(filters), ReLU()]


@network(_PAPER)
def shufflenet_v2_x0_5(num_classes: int = 1000, in_channels: int = 3) -> ShuffleNetV2:
    """Half of the width."""
    return ShuffleNetV2(_REPEATS, (24, 48, 96, 192, 1024), num_classes, in_channels)


@network(_PAPER)
def shufflenet_v2_x1_0(num_classes: int = 1000, in_channels: int = 3) -> ShuffleNetV2:
    """The reference width."""
    return ShuffleNetV2(_REPEATS, (24, 116, 232, 464, 1024), num_classes, in_channels)


@network(_PAPER)
def shufflenet_v2_x1_5(num_classes: int = 1000, in_channels: int = 3) -> ShuffleNetV2:
    """1.5 times the width."""
    return ShuffleNetV2(_REPEATS, (24, 176, 352, 704, 1024), num_classes, in_channels)


@network(_PAPER)
def shufflenet_v2_x2_0(num_classes: int = 1000, in_channels: int = 3) -> ShuffleNetV2:
    """Twice the width."""
    return ShuffleNetV2(_REPEATS, (24, 244, 488, 976, 2048), num_classes, in_channels)
