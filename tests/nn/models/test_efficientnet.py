"""EfficientNet: values, gradients and initial values as torchvision's, and what there is beside them."""

import numpy as np
import pytest

from lamina import nn
from lamina.nn import models
from lamina.nn.models.blocks import StochasticDepth
from lamina.nn.models.efficientnet import MBConvStage


def test_stages_grow() -> None:
    stage = MBConvStage(6, 5, 2, 40, 2).scaled(1.4, 1.8)
    assert (stage.filters, stage.blocks) == (56, 4)


def test_branches_are_left_out_more_often_the_deeper_they_lie() -> None:
    with nn.init.skipped():
        net = models.efficientnet_b0()
    shares = [m.p for m in net.modules() if isinstance(m, StochasticDepth)]
    np.testing.assert_allclose(shares, 0.2 * np.arange(16) / 16)


@pytest.mark.torch
@pytest.mark.feature("B021")
def test_values_and_gradients_are_torchvisions() -> None:
    from tests.helpers.nn.beside_torchvision import agrees

    agrees("efficientnet_b0", 64)


@pytest.mark.torch
@pytest.mark.feature("B021")
def test_fused_blocks_are_torchvisions() -> None:
    from tests.helpers.nn.beside_torchvision import agree
    from tests.helpers.vision import models as theirs

    rows = [(1, 3, 1, 8, 8, 2), (4, 3, 2, 8, 16, 2), (4, 3, 2, 16, 24, 2)]
    kinds = [theirs.efficientnet.FusedMBConvConfig] * 2 + [theirs.efficientnet.MBConvConfig]
    their = theirs.EfficientNet([k(*r) for k, r in zip(kinds, rows, strict=True)], 0.2, last_channel=40)
    stages = [MBConvStage(e, k, s, f, n, fused=f < 24) for e, k, s, _, f, n in rows]
    agree(models.EfficientNet(stages, 8, 0.2, last_channel=40), their, (2, 3, 32, 32))


@pytest.mark.torch
@pytest.mark.feature("B021")
def test_initial_values_are_torchvisions() -> None:
    from tests.helpers.nn.beside_torchvision import starts_as

    starts_as("efficientnet_b0")
