"""RegNet: values, gradients and initial values as torchvision's, and what there is beside them."""

import pytest

from lamina.nn.models.regnet import regnet_stages


def test_widths_by_the_papers_rule() -> None:
    assert regnet_stages(16, 48, 27.89, 2.09, 8) == ([48, 104, 208, 440], [1, 3, 6, 6])
    with pytest.raises(ValueError, match="w_0 a multiple of 8, w_a >= 0 and w_m > 1, got w_0=20"):
        regnet_stages(16, 20, 27.89, 2.09, 8)


@pytest.mark.torch
@pytest.mark.feature("B021")
def test_values_and_gradients_are_torchvisions() -> None:
    from tests.helpers.nn.beside_torchvision import agrees

    agrees("regnet_y_400mf", 64)
    agrees("regnet_x_400mf", 64)


@pytest.mark.torch
@pytest.mark.feature("B021")
@pytest.mark.parametrize("name", ["regnet_x_400mf", "regnet_y_400mf"])
def test_initial_values_are_torchvisions(name: str) -> None:
    """Of the second the biases of squeeze and excitation are not zero."""
    from tests.helpers.nn.beside_torchvision import starts_as

    starts_as(name)
