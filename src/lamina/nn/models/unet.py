"""U-Net (Ronneberger, Fischer & Brox 2015) with batch norms and padded convolutions: a class per pixel."""

from __future__ import annotations

from typing import Any

from lamina import ops
from lamina.nn.activation import ReLU
from lamina.nn.container import Sequential
from lamina.nn.conv import Conv2d, ConvTranspose2d
from lamina.nn.interpolate import Upsample
from lamina.nn.module import Module, T
from lamina.nn.norm import BatchNorm2d
from lamina.nn.pool import MaxPool2d
from lamina.ops.core import operand
from lamina.spec import ShapeError


class DoubleConv(Module):
    """Two times a 3×3 convolution, batch norm and ReLU."""

    def __init__(self, in_channels: int, out_channels: int, mid_channels: int | None = None) -> None:
        middle = out_channels if mid_channels is None else mid_channels
        self.double_conv = Sequential(
            Conv2d(in_channels, middle, 3, padding=1, bias=False),
            BatchNorm2d(middle),
            ReLU(),
            Conv2d(middle, out_channels, 3, padding=1, bias=False),
            BatchNorm2d(out_channels),
            ReLU(),
        )

    def forward(self, x: T) -> T:
        """x (N, in_channels, H, W) -> (N, out_channels, H, W)."""
        return self.double_conv(x)


class Down(Module):
    """A pool that halves the image, then `DoubleConv`."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        self.maxpool_conv = Sequential(MaxPool2d(2), DoubleConv(in_channels, out_channels))

    def forward(self, x: T) -> T:
        """x (N, in_channels, H, W) -> (N, out_channels, H / 2, W / 2)."""
        return self.maxpool_conv(x)


class Up(Module):
    """`DoubleConv` of this level's skip connection, concatenated with the level below upsampled to twice its size."""

    def __init__(self, in_channels: int, out_channels: int, bilinear: bool = True) -> None:
        self.up: Module
        if bilinear:
            self.up = Upsample(scale_factor=2, mode="bilinear", align_corners=True)
            self.conv = DoubleConv(in_channels, out_channels, in_channels // 2)
        else:
            self.up = ConvTranspose2d(in_channels, in_channels // 2, 2, 2)
            self.conv = DoubleConv(in_channels, out_channels)

    def forward(self, below: T, kept: T) -> T:
        """below (N, C, h, w), kept (N, C', H, W) -> (N, out_channels, H, W); H and W are 2 h and 2 w, or one more."""
        x: Any = self.up(below)
        more_h, more_w = kept.shape[2] - x.shape[2], kept.shape[3] - x.shape[3]
        if more_h or more_w:
            x = ops.pad(x, (more_w // 2, more_w - more_w // 2, more_h // 2, more_h - more_h // 2))
        y: T = self.conv(ops.cat([kept, x], 1))
        return y


class UNet(Module):
    """Four levels down and up again; 31,037,633 parameters from 3 channels to 1 class.

    n_channels, n_classes: of the images and the logits. bilinear: upsamples by interpolation instead of transposed
    convolutions, with half the channels at the lowest level. width: filters of the first level. Keys are those of the
    widespread PyTorch version: inc.double_conv.0.weight, down1.maxpool_conv.1.double_conv.0.weight, up1.up.weight,
    outc.conv.weight.
    """

    def __init__(self, n_channels: int, n_classes: int, bilinear: bool = False, width: int = 64) -> None:
        self.n_channels, self.n_classes, self.bilinear = n_channels, n_classes, bilinear
        factor = 2 if bilinear else 1
        sizes = [width * 2**level for level in range(5)]
        self.inc = DoubleConv(n_channels, width)
        for level in range(1, 5):
            out = sizes[level] // (factor if level == 4 else 1)
            self.add_module(f"down{level}", Down(sizes[level - 1], out))
        for level in range(1, 5):
            out = sizes[4 - level] // (1 if level == 4 else factor)
            self.add_module(f"up{level}", Up(sizes[5 - level], out, bilinear))
        self.outc = OutConv(width, n_classes)

    def forward(self, x: T) -> T:
        """Images (N, n_channels, H, W) of 16 pixels or more -> logits (N, n_classes, H, W). Raises ShapeError."""
        given: T = operand(x)
        if given.ndim != 4 or min(given.shape[2:]) < 16:
            raise ShapeError(f"UNet: images must be (N, C, H, W) of 16 pixels or more, got {given.spec}")
        levels = [self.inc(given)]
        for down in (self.down1, self.down2, self.down3, self.down4):
            levels.append(down(levels[-1]))
        y = levels.pop()
        for up in (self.up1, self.up2, self.up3, self.up4):
            y = up(y, levels.pop())
        return self.outc(y)


class OutConv(Module):
    """A 1×1 convolution."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        self.conv = Conv2d(in_channels, out_channels, 1)

    def forward(self, x: T) -> T:
        """x (N, in_channels, H, W) -> (N, out_channels, H, W)."""
        return self.conv(x)
