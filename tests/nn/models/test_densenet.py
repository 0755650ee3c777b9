"""DenseNet: values, gradients and initial values as torchvision's, and what there is beside them."""

import numpy as np
import pytest

from lamina.nn import models


def test_small_networks_of_any_shape() -> None:
    net = models.DenseNet(4, (2, 3), 6, bn_size=2, num_classes=3, in_channels=1).eval()
    assert net(np.zeros((2, 1, 33, 40), np.float32)).shape == (2, 3)
    assert net.classifier.in_features == (6 + 2 * 4) // 2 + 3 * 4


@pytest.mark.torch
@pytest.mark.feature("B021")
def test_values_and_gradients_are_torchvisions() -> None:
    from tests.helpers.nn.beside_torchvision import agrees

    agrees("densenet121", 64)


@pytest.mark.torch
@pytest.mark.feature("B021")
def test_initial_values_are_torchvisions() -> None:
    from tests.helpers.nn.beside_torchvision import starts_as

    starts_as("densenet121")
