"""ResNet and its kin: values, gradients and initial values as torchvision's, and what there is beside them."""

import pytest

import lamina as lm
from lamina import nn
from lamina.nn import models
from lamina.nn.models.resnet import Bottleneck


def test_stages_may_look_further_instead_of_getting_smaller() -> None:
    with nn.init.skipped():
        net = models.resnet50(replace_stride_with_dilation=(False, True, True)).eval()
    images = lm.Spec((1, 3, 64, 64), lm.float32)
    stages = nn.Sequential(net.conv1, net.maxpool, net.layer1, net.layer2, net.layer3, net.layer4)
    assert lm.trace(stages, images).outputs[0].shape == (1, 2048, 8, 8)
    convs = [net.layer3[0].conv2, net.layer3[1].conv2, net.layer4[0].conv2, net.layer4[1].conv2]
    assert [c.dilation for c in convs] == [(1, 1), (2, 2), (2, 2), (4, 4)]
    plain = Bottleneck(64, 16).conv2
    assert (plain.stride, plain.padding, plain.dilation, plain.groups) == ((1, 1), (1, 1), (1, 1), 1)
    with pytest.raises(ValueError, match="replace_stride_with_dilation needs three values or None"):
        models.resnet50(replace_stride_with_dilation=(True,))
    with pytest.raises(
        ValueError, match="BasicBlock: has groups=1, base_width=64 and dilation=1, got 2, 64 and 1"
    ):
        models.resnet18(groups=2)


def test_blocks_may_start_as_what_skips_them() -> None:
    net = models.resnet18(3, zero_init_residual=True)
    assert not net.layer1[0].bn2.weight.numpy().any()
    assert net.layer1[0].bn1.weight.numpy().all()


@pytest.mark.torch
@pytest.mark.feature("B021")
def test_groups_and_dilation_as_torchvision() -> None:
    from tests.helpers.nn.beside_torchvision import agree
    from tests.helpers.vision import models as theirs

    more = {"groups": 4, "width_per_group": 8, "replace_stride_with_dilation": [False, True, True]}
    our = models.ResNet(Bottleneck, (1, 1, 1, 2), 5, **more)
    agree(our, theirs.ResNet(theirs.resnet.Bottleneck, [1, 1, 1, 2], 5, **more), (2, 3, 64, 64))


@pytest.mark.torch
@pytest.mark.feature("B021")
def test_values_and_gradients_are_torchvisions() -> None:
    from tests.helpers.nn.beside_torchvision import agrees

    agrees("resnet18", 64)


@pytest.mark.torch
@pytest.mark.feature("B021")
def test_initial_values_are_torchvisions() -> None:
    from tests.helpers.nn.beside_torchvision import starts_as

    starts_as("resnet18")
