"""FCN and DeepLabV3: torchvision's keys, values and gradients; training."""

import inspect
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn
from lamina.nn.models.backbone import FeatureStages, resnet_modules
from lamina.nn.models.resnet import Bottleneck, ResNet
from lamina.nn.models.segmentation import ASPP, DeepLabHead, DeepLabV3, FCNHead
from tests.helpers.nn.twins import check, learns, same_weights, shapes

X = np.random.default_rng(0).standard_normal((2, 3, 40, 56)).astype(np.float32)
BUILDERS = [
    "fcn_resnet50",
    "deeplabv3_resnet50",
    "deeplabv3_mobilenet_v3_large",
    "fcn_resnet101",
    "deeplabv3_resnet101",
]


def shallow(classes: int) -> nn.Module:
    """A DeepLabV3 on a ResNet with one block a stage."""
    net = ResNet(Bottleneck, (1, 1, 1, 1), replace_stride_with_dilation=(False, True, True))
    stages = FeatureStages(resnet_modules(net), {"layer4": "out", "layer3": "aux"})
    return DeepLabV3(stages, DeepLabHead(2048, classes, (2, 4)), FCNHead(1024, classes))


@pytest.mark.feature("B021")
@pytest.mark.torch
@pytest.mark.parametrize("aux", [False, True])
@pytest.mark.slow
@pytest.mark.parametrize("name", BUILDERS)
def test_keys_are_torchvisions(name: str, aux: bool) -> None:
    import torch

    from tests.helpers.vision import models

    with torch.device("meta"), nn.init.skipped():
        make = getattr(models.segmentation, name)
        theirs = make(weights=None, weights_backbone=None, aux_loss=aux)
        assert shapes(theirs.state_dict()) == shapes(getattr(nn, name)(aux_loss=aux).state_dict())


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", [*BUILDERS[:3], "lraspp_mobilenet_v3_large"])
def test_values_and_gradients_are_torchvisions(name: str, train: bool) -> None:
    from tests.helpers.vision import models

    aux = {} if name.startswith("lraspp") else {"aux_loss": True}
    make = getattr(models.segmentation, name)
    theirs = make(weights=None, weights_backbone=None, num_classes=5, **aux)
    ours = getattr(nn, name)(5, **aux)
    for net in (theirs, ours):
        net.train(train)
        for module in net.modules():
            if type(module).__name__ == "Dropout":
                module.p = 0.0
    same_weights(theirs, ours)  # float64: batch norms of fifty layers make errors of float32 large
    check(theirs.double(), ours.double(), (X.astype(np.float64),), dict)


def test_logits_have_the_size_of_the_images() -> None:
    found = shallow(4).eval()(X)
    assert {name: y.shape for name, y in found.items()} == {"out": (2, 4, 40, 56), "aux": (2, 4, 40, 56)}


def test_it_learns_with_both_losses_and_pixels_that_do_not_count() -> None:
    nn.manual_seed(0)
    labels = np.zeros((2, 40, 56), np.int64)
    labels[:, 10:30, 20:40], labels[:, :4] = 1, 255
    x = X * 0.1 + (labels == 1)[:, None]
    learns(shallow(2), nn.segmentation_loss, x.astype(np.float32), labels)


def test_pixels_that_do_not_count_have_no_gradient() -> None:
    rng = np.random.default_rng(1)
    logits: dict[str, Any] = {"out": rng.standard_normal((1, 3, 2, 2)).astype(np.float32)}
    labels = np.array([[[0, 255], [2, 1]]])
    first = nn.segmentation_loss(logits, labels).item()
    logits["out"][0, :, 0, 1] += 3
    assert nn.segmentation_loss(logits, labels).item() == pytest.approx(first)
    logits["aux"] = logits["out"]
    assert nn.segmentation_loss(logits, labels, aux=0.4).item() == pytest.approx(1.4 * first)


def test_losses_are_of_outputs_that_there_are() -> None:
    """One output, with the auxiliary one at half its loss; others are refused."""
    y: Any = np.random.default_rng(2).standard_normal((1, 3, 2, 2)).astype(np.float32)
    labels = np.array([[[0, 2], [2, 1]]])
    alone = nn.segmentation_loss({"out": y}, labels).item()
    assert nn.segmentation_loss({"out": y, "aux": y}, labels).item() == pytest.approx(1.5 * alone)
    for names in (["aux"], ["out", "side"]):
        with pytest.raises(ValueError, match=r"outputs must have 'out', and may have 'aux', got \["):
            nn.segmentation_loss(dict.fromkeys(names, y), labels)


@pytest.mark.parametrize("out", [None, 12])
def test_channels_of_the_pyramid(out: int | None) -> None:
    """A branch of 1x1, one for each rate, and the mean of the image; all as wide as the output, 256 by default."""
    pyramid = ASPP(8, (2, 4)) if out is None else ASPP(8, (2, 4), out)
    wide = out or 256
    kernels = [s for n, s in shapes(pyramid.state_dict()).items() if len(s) == 4]
    assert kernels == [(wide, 8, k, k) for k in (1, 3, 3, 1)] + [(wide, 4 * wide, 1, 1)]
    assert pyramid.eval()(lm.ones((1, 8, 5, 6))).shape == (1, wide, 5, 6)


def test_channels_of_the_heads() -> None:
    """As the 1x1 and 3x3 kernels of the heads show them."""
    fcn, deep = FCNHead(8, 3), DeepLabHead(6, 5)
    assert [s for s in shapes(fcn.state_dict()).values() if len(s) == 4] == [(2, 8, 3, 3), (3, 2, 1, 1)]
    found = [s for s in shapes(deep.state_dict()).values() if len(s) == 4]
    assert found == [
        *[(256, 6, k, k) for k in (1, 3, 3, 3, 1)],
        (256, 1280, 1, 1),
        (256, 256, 3, 3),
        (5, 256, 1, 1),
    ]
    assert [c[0].dilation for c in deep[0].convs[1:4]] == [(r, r) for r in (12, 24, 36)]
    assert [m.p for net in (fcn, deep) for m in net.modules() if isinstance(m, nn.Dropout)] == [0.1, 0.5]


@pytest.mark.parametrize("name", [*BUILDERS, "lraspp_mobilenet_v3_large"])
def test_builders_have_pascals_classes_and_dilate_their_last_stages(name: str) -> None:
    """21 classes, and no auxiliary head unless it is asked for. Features lie at stride 8, MobileNet's at 16."""
    make = getattr(nn, name)
    assert inspect.signature(make).parameters["num_classes"].default == 21
    with nn.init.skipped():
        net = make()
    heads = {k: v for k, v in shapes(net.state_dict()).items() if not k.startswith("backbone.")}
    assert not any(k.startswith("aux") for k in heads)
    assert [v for k, v in heads.items() if k.endswith("bias") and len(v) == 1][-1] == (21,)
    convs = [m for m in net.backbone.modules() if isinstance(m, nn.Conv2d) and m.kernel_size != (1, 1)]
    assert {c.dilation[0] for c in convs} == ({1, 2} if "mobilenet" in name else {1, 2, 4})
    strides = np.prod([c.stride[0] for c in convs])  # a ResNet's max pooling has another 2
    assert strides == (16 if "mobilenet" in name else 4)
