"""MNASNet: values, gradients and initial values as torchvision's, and what there is beside them."""

import pytest

from lamina import nn
from lamina.nn import models


def test_alpha_must_be_above_zero() -> None:
    with pytest.raises(ValueError, match="MNASNet: alpha must be above 0, got 0"):
        models.MNASNet(0)


@pytest.mark.parametrize("alpha", [0.223, 0.356, 0.371, 0.439, 0.539, 0.561])
def test_widths_are_the_papers_times_alpha(alpha: float) -> None:
    """The nearest multiples of 8, at least 8, the next one where that would be more than a tenth narrower.

    The factors lie so that another width of the paper's, by one, would be another multiple.
    """
    net = models.MNASNet(alpha)
    first, between, last = (net.layers[i].weight.shape[0] for i in (0, 3, 6))
    stages = [part[-1].layers[6].weight.shape[0] for part in net.layers if isinstance(part, nn.Sequential)]
    assert first == between
    for width, found in zip((32, 16, 24, 40, 80, 96, 192, 320), (first, last, *stages), strict=True):
        near = max(8, 8 * int(width * alpha / 8 + 0.5))
        assert found == (near if near >= 0.9 * width * alpha else near + 8), width


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
