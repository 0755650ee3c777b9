"""SqueezeNet: values, gradients and initial values as torchvision's, and what there is beside them."""

import pytest

from lamina.nn import models


def test_versions() -> None:
    with pytest.raises(ValueError, match="SqueezeNet: version must be one of 1_0, 1_1, got '2'"):
        models.SqueezeNet("2")


@pytest.mark.torch
@pytest.mark.feature("B021")
def test_values_and_gradients_are_torchvisions() -> None:
    from tests.helpers.nn.beside_torchvision import agrees

    agrees("squeezenet1_1", 64)


@pytest.mark.torch
@pytest.mark.feature("B021")
def test_initial_values_are_torchvisions() -> None:
    from tests.helpers.nn.beside_torchvision import starts_as

    starts_as("squeezenet1_0")
