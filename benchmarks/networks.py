"""The networks of the comparison as data: one description, from which each peer's network is built.

A network is a tuple of layers, applied one after another; sizes that follow from the input are left out.
Parameters have the same order as those of lamina.nn's network of the same name, so weights are copied by order.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any


@dataclass(frozen=True)
class Conv:
    """Along every axis after the channels: two for images, one for (C, T)."""

    filters: int
    kernel: int
    stride: int = 1
    pad: int = 0
    bias: bool = True
    depthwise: bool = False
    dilation: int = 1


@dataclass(frozen=True)
class Norm:
    """Batch norm, eps 1e-5, momentum 0.1."""


@dataclass(frozen=True)
class Relu:
    ceiling: float | None = None


@dataclass(frozen=True)
class MaxPool:
    kernel: int
    stride: int
    pad: int = 0
    ceil: bool = False


@dataclass(frozen=True)
class Mean:
    """Over height and width: (N, C, H, W) -> (N, C)."""


@dataclass(frozen=True)
class Flatten:
    """(N, C, H, W) -> (N, C·H·W)."""


@dataclass(frozen=True)
class Linear:
    features: int


@dataclass(frozen=True)
class Dropout:
    share: float


@dataclass(frozen=True)
class Residual:
    """body(x) + shortcut(x), then ReLU if `relu`; an empty shortcut is x itself."""

    body: tuple[Any, ...]
    shortcut: tuple[Any, ...] = ()
    relu: bool = True


@dataclass(frozen=True)
class Branches:
    """Every branch on the same input, concatenated along the channels."""

    branches: tuple[tuple[Any, ...], ...]


Layers = tuple[Any, ...]
R = Relu()


def shape_behind(layer: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of one sample, (C, H, W), (C, T) or (features,), after a layer."""
    match layer:
        case Conv(filters, k, s, p, dilation=d):
            return filters, *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n in shape[1:])
        case MaxPool(k, s, p, ceil):
            return shape[0], *((n + 2 * p - k + (s - 1) * ceil) // s + 1 for n in shape[1:])
        case Residual(body):
            return _behind(body, shape)
        case Branches(branches):
            ends = [_behind(b, shape) for b in branches]
            return sum(e[0] for e in ends), *ends[0][1:]
        case Mean():
            return shape[:1]
        case Flatten():
            return (prod(shape),)
        case Linear(features):
            return (features,)
    return shape


def _behind(layers: Layers, shape: tuple[int, ...]) -> tuple[int, ...]:
    for layer in layers:
        shape = shape_behind(layer, shape)
    return shape


def alexnet(classes: int = 10, dropout: float = 0.5) -> Layers:
    """1×224×224: lamina.nn.AlexNet."""
    features = (Conv(96, 11, 4), R, MaxPool(3, 2), Conv(256, 5, pad=2), R, MaxPool(3, 2))
    features += (Conv(384, 3, pad=1), R, Conv(384, 3, pad=1), R, Conv(256, 3, pad=1), R, MaxPool(3, 2))
    hidden = (Linear(4096), R, Dropout(dropout))
    return (*features, Flatten(), *hidden, *hidden, Linear(classes))


def alexnet_owt(classes: int = 1000, dropout: float = 0.5) -> Layers:
    """3×224×224, the network of "one weird trick": lamina.nn.AlexNetImageNet."""
    features = (Conv(64, 11, 4, 2), R, MaxPool(3, 2), Conv(192, 5, pad=2), R, MaxPool(3, 2))
    features += (Conv(384, 3, pad=1), R, Conv(256, 3, pad=1), R, Conv(256, 3, pad=1), R, MaxPool(3, 2))
    hidden = (Dropout(dropout), Linear(4096), R)
    return (*features, Flatten(), *hidden, *hidden, Linear(classes))


def overfeat(classes: int = 1000, dropout: float = 0.5) -> Layers:
    """3×231×231: lamina.nn.OverFeat."""
    features = (Conv(96, 11, 4), R, MaxPool(2, 2), Conv(256, 5), R, MaxPool(2, 2))
    features += (Conv(512, 3, pad=1), R, Conv(1024, 3, pad=1), R, Conv(1024, 3, pad=1), R, MaxPool(2, 2))
    fully = (Dropout(dropout), Linear(3072), R, Dropout(dropout), Linear(4096), R)
    return (*features, Flatten(), *fully, Linear(classes))


def vgg11(classes: int = 1000, dropout: float = 0.5) -> Layers:
    """3×224×224, VGG-A: lamina.nn.vgg11."""
    features: Layers = ()
    for filters in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0):
        features += (Conv(filters, 3, pad=1), R) if filters else (MaxPool(2, 2),)
    hidden = (Linear(4096), R, Dropout(dropout))
    return (*features, Flatten(), *hidden, *hidden, Linear(classes))


def googlenet(classes: int = 1000, dropout: float = 0.4) -> Layers:
    """3×224×224, no auxiliary classifiers, no norms: lamina.nn.GoogLeNet."""

    def inception(one: int, before3: int, three: int, before5: int, five: int, pooled: int) -> Branches:
        return Branches(
            (
                (Conv(one, 1), R),
                (Conv(before3, 1), R, Conv(three, 3, pad=1), R),
                (Conv(before5, 1), R, Conv(five, 5, pad=2), R),
                (MaxPool(3, 1, 1), Conv(pooled, 1), R),
            )
        )

    pool = MaxPool(3, 2, ceil=True)
    stem = (Conv(64, 7, 2, 3), R, pool, Conv(64, 1), R, Conv(192, 3, pad=1), R, pool)
    third = (inception(64, 96, 128, 16, 32, 32), inception(128, 128, 192, 32, 96, 64), pool)
    fourth = (
        inception(192, 96, 208, 16, 48, 64),
        inception(160, 112, 224, 24, 64, 64),
        inception(128, 128, 256, 24, 64, 64),
        inception(112, 144, 288, 32, 64, 64),
        inception(256, 160, 320, 32, 128, 128),
    )
    fifth = (pool, inception(256, 160, 320, 32, 128, 128), inception(384, 192, 384, 48, 128, 128))
    return (*stem, *third, *fourth, *fifth, Mean(), Dropout(dropout), Linear(classes))


def _resnet(counts: tuple[int, ...], bottleneck: bool, classes: int) -> Layers:
    def bare(filters: int, kernel: int, stride: int = 1) -> Layers:
        return (Conv(filters, kernel, stride, kernel // 2, bias=False), Norm())

    layers: Layers = (*bare(64, 7, 2), R, MaxPool(3, 2, 1))
    channels = 64
    for stage, count in enumerate(counts):
        width = 64 << stage
        out = 4 * width if bottleneck else width
        for block in range(count):
            stride = 2 if stage and not block else 1
            if bottleneck:
                body = (*bare(width, 1), R, *bare(width, 3, stride), R, *bare(out, 1))
            else:
                body = (*bare(out, 3, stride), R, *bare(out, 3))
            changes = stride != 1 or channels != out
            layers += (Residual(body, bare(out, 1, stride) if changes else ()),)
            channels = out
    return (*layers, Mean(), Linear(classes))


def resnet18(classes: int = 1000, dropout: float = 0.0) -> Layers:
    """lamina.nn.resnet18."""
    return _resnet((2, 2, 2, 2), False, classes)


def resnet50(classes: int = 1000, dropout: float = 0.0) -> Layers:
    """Version 1.5: lamina.nn.resnet50."""
    return _resnet((3, 4, 6, 3), True, classes)


def mobilenet_v2(classes: int = 1000, dropout: float = 0.2) -> Layers:
    """lamina.nn.MobileNetV2."""
    relu6 = Relu(6.0)

    def bare(filters: int, kernel: int, stride: int = 1, depthwise: bool = False) -> Layers:
        return (Conv(filters, kernel, stride, kernel // 2, bias=False, depthwise=depthwise), Norm())

    layers: Layers = (*bare(32, 3, 2), relu6)
    channels = 32
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2))
    stages += ((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for expand, filters, count, first in stages:
        for block in range(count):
            stride = 1 if block else first
            hidden = channels * expand
            wide = (*bare(hidden, 1), relu6) if expand != 1 else ()
            body = (*wide, *bare(hidden, 3, stride, depthwise=True), relu6, *bare(filters, 1))
            joins = stride == 1 and channels == filters
            layers += (Residual(body, relu=False),) if joins else body
            channels = filters
    return (*layers, *bare(1280, 1), relu6, Mean(), Dropout(dropout), Linear(classes))


def dilated(classes: int = 256, channels: int = 128, depth: int = 20, dropout: float = 0.0) -> Layers:
    """(C, T) -> (classes, T): convolutions of three taps, 1, 2, … 512, 1, 2, … apart, each with its residual."""
    steps = [1 << index % 10 for index in range(depth)]
    blocks = tuple(Residual((Conv(channels, 3, pad=d, dilation=d),)) for d in steps)
    return (Conv(channels, 1), *blocks, Conv(classes, 1))


NETWORKS = {
    "alexnet": alexnet,
    "alexnet_owt": alexnet_owt,
    "overfeat": overfeat,
    "vgg11": vgg11,
    "googlenet": googlenet,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "mobilenet_v2": mobilenet_v2,
    "dilated": dilated,
}
