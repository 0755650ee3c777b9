"""MobileNetV2 and V3: values, gradients and initial values as torchvision's, and what there is beside them."""

import pytest

import lamina as lm
from lamina import nn
from lamina.nn import models
from lamina.nn.models import mobilenet


def test_dilated_networks_keep_the_size() -> None:
    with nn.init.skipped():
        plain, dilated = (
            models.mobilenet_v3_small(),
            models.mobilenet_v3_small(dilated=True, reduced_tail=True),
        )
    x = lm.Spec((1, 3, 64, 64), lm.float32)
    assert lm.trace(plain.features.eval(), x).outputs[0].shape == (1, 576, 2, 2)
    assert lm.trace(dilated.features.eval(), x).outputs[0].shape == (1, 288, 4, 4)


@pytest.mark.torch
@pytest.mark.feature("B021")
@pytest.mark.parametrize("name", ["mobilenet_v2", "mobilenet_v3_large", "mobilenet_v3_small"])
def test_widths_are_torchvisions(name: str) -> None:
    from tests.helpers.nn.beside_torchvision import our_entries, their_entries

    for width in (0.35, 1.4):
        assert our_entries(name, width_mult=width) == their_entries(name, width_mult=width)


@pytest.mark.torch
@pytest.mark.feature("B021")
@pytest.mark.parametrize("dilated", [False, True])
@pytest.mark.parametrize("reduced_tail", [False, True])
@pytest.mark.parametrize("name", ["mobilenet_v3_large", "mobilenet_v3_small"])
def test_blocks_are_torchvisions_before_widths_are_rounded(
    name: str, reduced_tail: bool, dilated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.helpers.vision import models as theirs

    monkeypatch.setattr(mobilenet, "MobileNetV3", lambda setting, last, *_, **__: (setting, last))
    blocks, last = getattr(models, name)(reduced_tail=reduced_tail, dilated=dilated)
    conf = theirs.mobilenetv3._mobilenet_v3_conf
    wanted, wanted_last = conf(name, reduced_tail=reduced_tail, dilated=dilated)
    assert last == wanted_last
    assert [tuple(block) for block in blocks] == [
        (b.kernel, b.expanded_channels, b.out_channels, b.use_se, b.use_hs, b.stride, b.dilation)
        for b in wanted
    ]


@pytest.mark.torch
@pytest.mark.feature("B021")
def test_values_and_gradients_are_torchvisions() -> None:
    from tests.helpers.nn.beside_torchvision import agrees

    agrees("mobilenet_v2", 64)
    agrees("mobilenet_v3_small", 64)


@pytest.mark.torch
@pytest.mark.feature("B021")
def test_initial_values_are_torchvisions() -> None:
    from tests.helpers.nn.beside_torchvision import starts_as

    starts_as("mobilenet_v3_small")
