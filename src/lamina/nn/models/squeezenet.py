"""SqueezeNet (Iandola, Han, Moskewicz, Ashraf, Dally & Keutzer 2016): AlexNet's accuracy, a fiftieth of its size."""

from __future__ import annotations

from typing import Any

from lamina import ops
from lamina.nn import init
from lamina.nn.activation import ReLU
from lamina.nn.container import Sequential
from lamina.nn.conv import Conv2d
from lamina.nn.dropout import Dropout
from lamina.nn.models.registry import network
from lamina.nn.module import Module, T
from lamina.nn.pool import AdaptiveAvgPool2d, MaxPool2d

_PAPER = "Iandola et al. 2016, arXiv:1602.07360"

#: By version: filters, size of the first kernel; then for each module the number of squeeze filters, 0 for a pooling.
#: Each module outputs four times as many 1×1 and as many 3×3 filters.
_VERSIONS = {
    "1_0": (96, 7, (0, 16, 16, 32, 0, 32, 48, 48, 64, 0, 64)),
    "1_1": (64, 3, (0, 16, 16, 0, 32, 32, 0, 48, 48, 64, 64)),
}


class Fire(Module):
    """A 1×1 convolution to few channels, then parallel 1×1 and 3×3 convolutions."""

    def __init__(
        self, inplanes: int, squeeze_planes: int, expand1x1_planes: int, expand3x3_planes: int
    ) -> None:
        self.squeeze = Conv2d(inplanes, squeeze_planes, 1)
        self.expand1x1 = Conv2d(squeeze_planes, expand1x1_planes, 1)
        self.expand3x3 = Conv2d(squeeze_planes, expand3x3_planes, 3, padding=1)

    def forward(self, x: T) -> T:
        """x (N, inplanes, H, W) -> (N, expand1x1_planes + expand3x3_planes, H, W)."""
        y = ops.relu(self.squeeze(x))
        return ops.cat([ops.relu(self.expand1x1(y)), ops.relu(self.expand3x3(y))], 1)


class SqueezeNet(Module):
    """Only convolutions: the last one has a filter per class, whose mean over the image is the logit.

    version: "1_0" or "1_1", which takes less than half the time. Keys and initialization are torchvision's. Images of
    21 pixels or more. Raises ValueError for another version.
    """

    def __init__(self, version: str = "1_0", num_classes: int = 1000, dropout: float = 0.5) -> None:
        if version not in _VERSIONS:
            raise ValueError(f"SqueezeNet: version must be one of {', '.join(_VERSIONS)}, got {version!r}")
        channels, kernel, squeezed = _VERSIONS[version]
        with init.scheme(_he_uniform):
            layers: list[Module] = [Conv2d(3, channels, kernel, 2), ReLU()]
            for planes in squeezed:
                if not planes:
                    layers.append(MaxPool2d(3, 2, ceil_mode=True))
                    continue
                layers.append(Fire(channels, planes, 4 * planes, 4 * planes))
                channels = 8 * planes
            self.features = Sequential(*layers)
        with init.scheme(init.small_):
            last = Conv2d(channels, num_classes, 1)
        self.classifier = Sequential(Dropout(dropout), last, ReLU(), AdaptiveAvgPool2d((1, 1)))

    def forward(self, x: T) -> T:
        """Images (N, 3, H, W) -> logits (N, num_classes), none of them negative."""
        return ops.flatten(self.classifier(self.features(x)), 1)


def _he_uniform(layer: init.Layer) -> None:
    """Weights from He's uniform distribution, biases zero."""
    init.kaiming_uniform_(layer.weight)
    init.zeros_(layer.bias)


@network(_PAPER)
def squeezenet1_0(num_classes: int = 1000, **options: Any) -> SqueezeNet:
    """Version 1.0, the paper's. options: of `SqueezeNet`."""
    return SqueezeNet("1_0", num_classes, **options)


@network(_PAPER)
def squeezenet1_1(num_classes: int = 1000, **options: Any) -> SqueezeNet:
    """Version 1.1, with 2.4 times less computation. options: of `SqueezeNet`."""
    return SqueezeNet("1_1", num_classes, **options)
