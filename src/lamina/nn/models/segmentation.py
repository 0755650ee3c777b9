"""FCN (Long, Shelhamer & Darrell 2015) and DeepLabV3 (Chen et al. 2017): a class per pixel, as in torchvision."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from lamina import ops
from lamina.nn.activation import ReLU, Sigmoid
from lamina.nn.container import ModuleList, Sequential
from lamina.nn.conv import Conv2d
from lamina.nn.dropout import Dropout
from lamina.nn.models.backbone import FeatureStages, resnet_modules
from lamina.nn.models.mobilenet import mobilenet_v3_large
from lamina.nn.models.resnet import ResNet, resnet50, resnet101
from lamina.nn.module import Module, T
from lamina.nn.norm import BatchNorm2d
from lamina.nn.pool import AdaptiveAvgPool2d
from lamina.ops.arguments import checked


class SegmentationModel(Module):
    """A backbone and a classifier, whose logits are upsampled to the size of the images.

    backbone: returns {"out": features}, and "aux" if there is an auxiliary classifier. Keys are torchvision's:
    backbone.…, classifier.…, aux_classifier.….
    """

    def __init__(self, backbone: Module, classifier: Module, aux_classifier: Module | None = None) -> None:
        self.backbone, self.classifier = backbone, classifier
        self.aux_classifier = aux_classifier

    def forward(self, x: T) -> dict[str, T]:
        """Images (N, 3, H, W) -> logits (N, num_classes, H, W) as "out", and the auxiliary ones as "aux"."""
        features = self.backbone(x)
        heads = {"out": self.classifier, "aux": self.aux_classifier}
        size = x.shape[2:]
        return {
            name: ops.interpolate(head(features[name]), size, mode="bilinear", align_corners=False)
            for name, head in heads.items()
            if head is not None
        }


class FCN(SegmentationModel):
    """A segmentation network whose classifier is an `FCNHead`."""


class DeepLabV3(SegmentationModel):
    """A segmentation network whose classifier is a `DeepLabHead`."""


@checked
def segmentation_loss(
    outputs: Mapping[str, Any], labels: Any, *, ignore_index: int = 255, aux: float = 0.5
) -> Any:
    """The mean cross entropy over pixels, plus `aux` times that of the auxiliary logits; integer labels (N, H, W).

    Pixels of ignore_index are ignored.
    """
    factors = {"out": 1.0, "aux": aux}
    if "out" not in outputs or not outputs.keys() <= factors.keys():
        raise ValueError(
            f"segmentation_loss: outputs must have 'out', and may have 'aux', got {list(outputs)}"
        )
    losses = [
        ops.cross_entropy(y, labels, ignore_index=ignore_index) * factors[k] for k, y in outputs.items()
    ]
    return sum(losses[1:], losses[0])


def _conv_norm(channels: int, filters: int, kernel: int = 1, dilation: int = 1) -> list[Module]:
    """A size-preserving convolution, batch norm, ReLU."""
    padding = dilation * (kernel // 2)
    conv = Conv2d(channels, filters, kernel, padding=padding, dilation=dilation, bias=False)
    return [conv, BatchNorm2d(filters), ReLU()]


class FCNHead(Sequential):
    """3×3 to a quarter of the channels, dropout, 1×1 to the classes."""

    def __init__(self, in_channels: int, channels: int) -> None:
        middle = in_channels // 4
        super().__init__(*_conv_norm(in_channels, middle, 3), Dropout(0.1), Conv2d(middle, channels, 1))


class ASPPPooling(Sequential):
    """The mean of the whole image, through a 1×1 convolution, at every position."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(AdaptiveAvgPool2d(1), *_conv_norm(in_channels, out_channels))

    def forward(self, x: T) -> T:
        """x (N, C, H, W) -> (N, out_channels, H, W)."""
        return ops.expand(super().forward(x), (-1, -1, *x.shape[2:]))


class ASPP(Module):
    """Convolutions of several dilations and the image mean in parallel, and a 1×1 convolution over all."""

    def __init__(self, in_channels: int, atrous_rates: Sequence[int], out_channels: int = 256) -> None:
        wide = [Sequential(*_conv_norm(in_channels, out_channels, 3, rate)) for rate in atrous_rates]
        narrow = Sequential(*_conv_norm(in_channels, out_channels))
        self.convs = ModuleList([narrow, *wide, ASPPPooling(in_channels, out_channels)])
        self.project = Sequential(*_conv_norm(len(self.convs) * out_channels, out_channels), Dropout(0.5))

    def forward(self, x: T) -> T:
        """x (N, C, H, W) -> (N, out_channels, H, W)."""
        y: T = self.project(ops.cat([conv(x) for conv in self.convs], 1))
        return y


class DeepLabHead(Sequential):
    """`ASPP`, 3×3, and 1×1 to the classes."""

    def __init__(
        self, in_channels: int, num_classes: int, atrous_rates: Sequence[int] = (12, 24, 36)
    ) -> None:
        super().__init__(
            ASPP(in_channels, atrous_rates), *_conv_norm(256, 256, 3), Conv2d(256, num_classes, 1)
        )


#: Stages of a ResNet that preserve the size, so that features have an eighth of the image's.
_DILATED = (False, True, True)


def _model(
    kind: type[SegmentationModel],
    head: Callable[[int, int], Module],
    body: _Body,
    num_classes: int,
    aux_loss: bool,
) -> Any:
    """A network of this class, whose classifiers are `head` and, with aux_loss, `FCNHead`."""
    (out, channels), (aux, aux_channels) = body.returned
    returned = {out: "out"} | ({aux: "aux"} if aux_loss else {})
    side = FCNHead(aux_channels, num_classes) if aux_loss else None
    return kind(FeatureStages(body.modules, returned), head(channels, num_classes), side)


class _Body(NamedTuple):
    """Modules by name, the inputs of the classifier and the auxiliary one, and their channels."""

    modules: Mapping[str, Module]
    returned: tuple[tuple[str, int], tuple[str, int]]


def _resnet(make: Callable[..., ResNet]) -> _Body:
    return _Body(
        resnet_modules(make(replace_stride_with_dilation=_DILATED)), (("layer4", 2048), ("layer3", 1024))
    )


def _mobilenet() -> _Body:
    return _Body(dict(mobilenet_v3_large(dilated=True).features.named_children()), (("16", 960), ("4", 40)))


def fcn_resnet50(num_classes: int = 21, aux_loss: bool = False) -> FCN:
    """ResNet-50 at stride 8 and an `FCNHead`. aux_loss: another one on the third stage, as in published weights."""
    return cast(FCN, _model(FCN, FCNHead, _resnet(resnet50), num_classes, aux_loss))


def fcn_resnet101(num_classes: int = 21, aux_loss: bool = False) -> FCN:
    """`fcn_resnet50` with ResNet-101."""
    return cast(FCN, _model(FCN, FCNHead, _resnet(resnet101), num_classes, aux_loss))


def deeplabv3_resnet50(num_classes: int = 21, aux_loss: bool = False) -> DeepLabV3:
    """ResNet-50 at stride 8 and a `DeepLabHead`. aux_loss: as `fcn_resnet50`."""
    return cast(DeepLabV3, _model(DeepLabV3, DeepLabHead, _resnet(resnet50), num_classes, aux_loss))


def deeplabv3_resnet101(num_classes: int = 21, aux_loss: bool = False) -> DeepLabV3:
    """`deeplabv3_resnet50` with ResNet-101."""
    return cast(DeepLabV3, _model(DeepLabV3, DeepLabHead, _resnet(resnet101), num_classes, aux_loss))


def deeplabv3_mobilenet_v3_large(num_classes: int = 21, aux_loss: bool = False) -> DeepLabV3:
    """`deeplabv3_resnet50` with MobileNetV3, whose last blocks are dilated: features at stride 16."""
    return cast(DeepLabV3, _model(DeepLabV3, DeepLabHead, _mobilenet(), num_classes, aux_loss))


class LRASPPHead(Module):
    """Deep features through a 1×1 convolution, gated by their means, upsampled; logits of these and finer ones."""

    def __init__(
        self, low_channels: int, high_channels: int, num_classes: int, inter_channels: int = 128
    ) -> None:
        self.cbr = Sequential(*_conv_norm(high_channels, inter_channels))
        gate = Conv2d(high_channels, inter_channels, 1, bias=False)
        self.scale = Sequential(AdaptiveAvgPool2d(1), gate, Sigmoid())
        self.low_classifier = Conv2d(low_channels, num_classes, 1)
        self.high_classifier = Conv2d(inter_channels, num_classes, 1)

    def forward(self, low: T, high: T) -> T:
        """low (N, low_channels, H, W), high (N, high_channels, h, w) -> logits (N, num_classes, H, W)."""
        x: Any = self.cbr(high) * self.scale(high)
        x = ops.interpolate(x, low.shape[2:], mode="bilinear", align_corners=False)
        y: T = self.low_classifier(low) + self.high_classifier(x)
        return y


class LRASPP(Module):
    """MobileNetV3's lightweight segmentation (Howard et al. 2019); backbone: returns {"low": …, "high": …}."""

    def __init__(
        self,
        backbone: Module,
        low_channels: int,
        high_channels: int,
        num_classes: int,
        inter_channels: int = 128,
    ) -> None:
        self.backbone = backbone
        self.classifier = LRASPPHead(low_channels, high_channels, num_classes, inter_channels)

    def forward(self, x: T) -> dict[str, T]:
        """Images (N, 3, H, W) -> logits (N, num_classes, H, W) as "out"."""
        found = self.backbone(x)
        y = self.classifier(found["low"], found["high"])
        return {"out": ops.interpolate(y, x.shape[2:], mode="bilinear", align_corners=False)}


def lraspp_mobilenet_v3_large(num_classes: int = 21) -> LRASPP:
    """`LRASPP` on MobileNetV3, whose last blocks are dilated."""
    modules, ((high, channels), (low, few)) = _mobilenet()
    return LRASPP(FeatureStages(modules, {low: "low", high: "high"}), few, channels, num_classes)
