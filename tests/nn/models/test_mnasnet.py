"""MNASNet: values, gradients and initial values as torchvision's, and what there is beside them."""

import pytest

from lamina.nn import models


def test_alpha_must_be_above_zero() -> None:
    with pytest.raises(ValueError, match="MNASNet: alpha must be above 0, got 0"):
        models.MNASNet(0)


@pytest.mark.torch
@pytest.mark.feature("B021")
def test_values_and_gradients_are_torchvisions() -> None:
    from tests.helpers.nn.beside_torchvision import agrees

    agrees("mnasnet0_5", 64)


@pytest.mark.torch
@pytest.mark.feature("B021")
def test_initial_values_are_torchvisions() -> None:
    from tests.helpers.nn.beside_torchvision import starts_as

    starts_as("mnasnet0_5")
