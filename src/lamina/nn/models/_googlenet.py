"""GoogLeNet (Szegedy et al. 2015): the paper's network, and torchvision's with batch norms."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from lamina import ops
from lamina.nn import init
from lamina.nn.container import Identity, Sequential
from lamina.nn.conv import Conv2d
from lamina.nn.dropout import Dropout
from lamina.nn.linear import Linear
from lamina.nn.models.registry import network
from lamina.nn.module import Module, T
from lamina.nn.norm import BatchNorm2d
from lamina.nn.pool import AdaptiveAvgPool2d, MaxPool2d

_PAPER = "Szegedy et al. 2015, arXiv:1409.4842"
_RATES = {"sgd": 0.01, "adam": 1e-4}

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

#: ImageNet's means and standard deviations of red, green and blue, [3, 1, 1].
_MEAN = np.array([0.485, 0.456, 0.406]).reshape(3, 1, 1)
_DEVIATION = np.array([0.229, 0.224, 0.225]).reshape(3, 1, 1)


class InceptionConv(Module):
    """A size-preserving convolution (at stride 1), an optional batch norm, and ReLU; keys conv and bn.

    kernel: for both axes, or per axis. padded: whether to preserve the size.
    """

    def __init__(
        self,
        channels: int,
        filters: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        *,
        padded: bool = True,
        batch_norm: bool = True,
    ) -> None:
        kernels = (kernel, kernel) if isinstance(kernel, int) else kernel
        padding = [size // 2 if padded else 0 for size in kernels]
        self.conv = Conv2d(channels, filters, kernels, stride, padding, bias=not batch_norm)
        self.bn = BatchNorm2d(filters, eps=1e-3) if batch_norm else Identity()

    def forward(self, x: T) -> T:
        """x (N, channels, H, W) -> (N, filters, H / stride, W / stride)."""
        return ops.relu(self.bn(self.conv(x)))


class Inception(Module):
    """Four branches on the same input, concatenated along the channels: 1×1, 3×3, 5×5 and a 3×3 pooling.

    The arguments are torchvision's: ch3x3red and ch5x5red are the filters of the 1×1 convolutions before the larger
    ones, pool_proj those after the pooling. With batch norms the third branch is also 3×3, as in torchvision.
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
        *,
        batch_norm: bool = False,
    ) -> None:
        conv = partial(InceptionConv, batch_norm=batch_norm)
        self.branch1 = conv(in_channels, ch1x1, 1)
        self.branch2 = Sequential(conv(in_channels, ch3x3red, 1), conv(ch3x3red, ch3x3, 3))
        self.branch3 = Sequential(
            conv(in_channels, ch5x5red, 1), conv(ch5x5red, ch5x5, 3 if batch_norm else 5)
        )
        self.branch4 = Sequential(MaxPool2d(3, 1, 1), conv(in_channels, pool_proj, 1))
        self.out_channels = ch1x1 + ch3x3 + ch5x5 + pool_proj

    def forward(self, x: T) -> T:
        """x (N, in_channels, H, W) -> (N, out_channels, H, W)."""
        return ops.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1)


class InceptionAux(Module):
    """A classifier on features (N, in_channels, H, W), whose loss improves the gradients of early layers."""

    def __init__(
        self, in_channels: int, num_classes: int, dropout: float = 0.7, *, batch_norm: bool = True
    ) -> None:
        self.conv = InceptionConv(in_channels, 128, 1, batch_norm=batch_norm)
        self.fc1 = Linear(2048, 1024)
        self.fc2 = Linear(1024, num_classes)
        self.dropout = Dropout(dropout)

    def forward(self, x: T) -> T:
        """Features of any size -> logits (N, num_classes)."""
        y: T = ops.flatten(self.conv(ops.adaptive_avg_pool2d(x, (4, 4))), 1)
        return self.fc2(self.dropout(ops.relu(self.fc1(y))))


def to_unit_range(x: T) -> T:
    """Images (N, 3, H, W) normalized by ImageNet's means and standard deviations, mapped to [-1, 1]."""
    images: Any = ops.operand(x)
    scale, shift = (a.astype(images.dtype.numpy) for a in (_DEVIATION / 0.5, (_MEAN - 0.5) / 0.5))
    y: T = images * scale + shift
    return y


def truncated_weights(std: float) -> Callable[[init.Layer], None]:
    """A scheme: weights normal with standard deviation std, redrawn beyond ±2, biases as torch's."""

    def write(layer: init.Layer) -> None:
        init.torch_(layer)
        init.trunc_normal_(layer.weight, std=std)

    return write


class GoogLeNetOutputs(NamedTuple):
    """The result of a GoogLeNet with auxiliary classifiers in training: logits (N, num_classes) each."""

    logits: Any
    aux_logits2: Any
    aux_logits1: Any


@network(_PAPER, rates=_RATES)
class GoogLeNet(Module):
    """Images (N, 3, 224, 224) -> logits (N, num_classes); 6,998,552 parameters with 1000 classes.

    Modules are named as in torchvision (conv1.conv, inception3a.branch1.conv, … fc). By default it is the paper's
    network without its auxiliary classifiers, whose weights start from He's normal distribution; `googlenet` is
    torchvision's, with its initialization. Any image of 32 pixels or more works: the features are averaged.

    Args:
        batch_norm: norms after the convolutions, 3×3 in the place of 5×5 ones, a last pooling of 2×2.
        aux_logits: two additional classifiers, `aux1` and `aux2`; in training the result is `GoogLeNetOutputs`.
        transform_input: images that were normalized by ImageNet's means and deviations are normalized to [-1, 1].
    """

    def __init__(
        self,
        num_classes: int = 1000,
        dropout: float = 0.4,
        *,
        batch_norm: bool = False,
        aux_logits: bool = False,
        transform_input: bool = False,
        dropout_aux: float = 0.7,
    ) -> None:
        conv = partial(InceptionConv, batch_norm=batch_norm)
        self.aux_logits, self.transform_input = aux_logits, transform_input
        with init.scheme(truncated_weights(0.01) if batch_norm else init.he_):
            self.conv1 = conv(3, 64, 7, 2)
            self.maxpool1 = MaxPool2d(3, 2, ceil_mode=True)
            self.conv2 = conv(64, 64, 1)
            self.conv3 = conv(64, 192, 3)
            self.maxpool2 = MaxPool2d(3, 2, ceil_mode=True)
            channels = self._add(192, batch_norm, "3a", "3b")
            self.maxpool3 = MaxPool2d(3, 2, ceil_mode=True)
            channels = self._add(channels, batch_norm, "4a", "4b", "4c", "4d", "4e")
            self.maxpool4 = MaxPool2d(2 if batch_norm else 3, 2, ceil_mode=True)
            channels = self._add(channels, batch_norm, "5a", "5b")
            if aux_logits:
                self.aux1 = InceptionAux(512, num_classes, dropout_aux, batch_norm=batch_norm)
                self.aux2 = InceptionAux(528, num_classes, dropout_aux, batch_norm=batch_norm)
        self.avgpool = AdaptiveAvgPool2d((1, 1))
        self.dropout = Dropout(dropout)
        with init.scheme(truncated_weights(0.01) if batch_norm else init.torch_):
            self.fc = Linear(channels, num_classes)

    def _add(self, channels: int, batch_norm: bool, *names: str) -> int:
        """Add inception blocks; returns the number of output channels of the last one."""
        for name in names:
            block = Inception(channels, *_BLOCKS[name], batch_norm=batch_norm)
            self.add_module(f"inception{name}", block)
            channels = block.out_channels
        return channels

    def forward(self, x: T) -> Any:
        """Images (N, 3, H, W) -> logits (N, num_classes), or `GoogLeNetOutputs`."""
        if self.transform_input:
            x = to_unit_range(x)
        more = {}
        for name, module in self.named_children():
            if module is self.dropout:
                x = ops.flatten(x, 1)
            if name in ("aux1", "aux2"):
                continue
            x = module(x)
            if self.aux_logits and self.training and name in ("inception4a", "inception4d"):
                more[name] = (self.aux1 if name == "inception4a" else self.aux2)(x)
        return GoogLeNetOutputs(x, more["inception4d"], more["inception4a"]) if more else x


@network(_PAPER, command="googlenet-bn", plain={"aux_logits": False}, rates=_RATES)
def googlenet(
    num_classes: int = 1000,
    aux_logits: bool = True,
    transform_input: bool = False,
    dropout: float = 0.2,
    dropout_aux: float = 0.7,
) -> GoogLeNet:
    """torchvision's, with batch norms: 13,004,888 parameters, 6,624,904 without the auxiliary classifiers."""
    return GoogLeNet(
        num_classes,
        dropout,
        batch_norm=True,
        aux_logits=aux_logits,
        transform_input=transform_input,
        dropout_aux=dropout_aux,
    )
