"""GoogLeNet (Szegedy et al. 2015): the network of the paper, without auxiliary classifiers and without norms."""

from __future__ import annotations

from lamina import ops
from lamina.nn import init
from lamina.nn.container import Sequential
from lamina.nn.conv import Conv2d
from lamina.nn.dropout import Dropout
from lamina.nn.linear import Linear
from lamina.nn.module import Module, T
from lamina.nn.pool import AdaptiveAvgPool2d, MaxPool2d

#: Filters of each inception block: 1×1; 1×1 before 3×3, 3×3; 1×1 before 5×5, 5×5; 1×1 after the pooling.
_BLOCKS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


class _ConvRelu(Module):
    """A convolution that keeps the size (at stride 1), and ReLU."""

    def __init__(self, channels: int, filters: int, kernel: int, stride: int = 1) -> None:
        self.conv = Conv2d(channels, filters, kernel, stride, kernel // 2)

    def forward(self, x: T) -> T:
        """x (N, channels, H, W) -> (N, filters, H / stride, W / stride)."""
        return ops.relu(self.conv(x))


class Inception(Module):
    """Four branches on the same input, joined along the channels: 1×1, 3×3, 5×5 and a 3×3 pooling.

    The arguments are torchvision's: ch3x3red and ch5x5red are the filters of the 1×1 convolutions before the larger
    ones, pool_proj those after the pooling.
    """

    def __init__(
        self,
        in_channels: int,
        ch1x1: int,
        ch3x3red: int,
        ch3x3: int,
        ch5x5red: int,
        ch5x5: int,
        pool_proj: int,
    ) -> None:
        self.branch1 = _ConvRelu(in_channels, ch1x1, 1)
        self.branch2 = Sequential(_ConvRelu(in_channels, ch3x3red, 1), _ConvRelu(ch3x3red, ch3x3, 3))
        self.branch3 = Sequential(_ConvRelu(in_channels, ch5x5red, 1), _ConvRelu(ch5x5red, ch5x5, 5))
        self.branch4 = Sequential(MaxPool2d(3, 1, 1), _ConvRelu(in_channels, pool_proj, 1))
        self.out_channels = ch1x1 + ch3x3 + ch5x5 + pool_proj

    def forward(self, x: T) -> T:
        """x (N, in_channels, H, W) -> (N, out_channels, H, W)."""
        return ops.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1)


class GoogLeNet(Module):
    """Images (N, 3, 224, 224) -> logits (N, num_classes); 6,998,552 parameters with 1000 classes.

    Modules are called as in torchvision (conv1.conv, inception3a.branch1.conv, … fc), whose network has batch
    norms and 3×3 in the place of 5×5 convolutions; this is the paper's. Weights start from He's normal
    distribution. Any image of 32 pixels or more works: the features are averaged.
    """

    def __init__(self, num_classes: int = 1000, dropout: float = 0.4) -> None:
        with init.scheme(init.he_):
            self.conv1 = _ConvRelu(3, 64, 7, 2)
            self.maxpool1 = MaxPool2d(3, 2, ceil_mode=True)
            self.conv2 = _ConvRelu(64, 64, 1)
            self.conv3 = _ConvRelu(64, 192, 3)
            self.maxpool2 = MaxPool2d(3, 2, ceil_mode=True)
            channels = self._add(192, "3a", "3b")
            self.maxpool3 = MaxPool2d(3, 2, ceil_mode=True)
            channels = self._add(channels, "4a", "4b", "4c", "4d", "4e")
            self.maxpool4 = MaxPool2d(3, 2, ceil_mode=True)
            channels = self._add(channels, "5a", "5b")
        self.avgpool = AdaptiveAvgPool2d((1, 1))
        self.dropout = Dropout(dropout)
        self.fc = Linear(channels, num_classes)

    def _add(self, channels: int, *names: str) -> int:
        """Add inception blocks; returns the channels of the last one's output."""
        for name in names:
            block = Inception(channels, *_BLOCKS[name])
            self.add_module(f"inception{name}", block)
            channels = block.out_channels
        return channels

    def forward(self, x: T) -> T:
        """Images (N, 3, H, W) -> logits (N, num_classes)."""
        for module in self.children():
            x = ops.flatten(x, 1) if module is self.dropout else x
            x = module(x)
        return x
