"""ShuffleNetV2: values, gradients and initial values as torchvision's, and what there is beside them."""

import numpy as np
import pytest

from lamina.nn.models.shufflenet import ShuffleUnit


def test_half_of_the_channels_pass_a_unit_unchanged() -> None:
    x = np.random.default_rng(0).standard_normal((1, 8, 3, 3)).astype(np.float32)
    y = ShuffleUnit(8, 8, 1).eval()(x).numpy()
    np.testing.assert_array_equal(y[:, ::2], x[:, :4])
    with pytest.raises(ValueError, match="stride 1 keeps 8 channels, got oup=10"):
        ShuffleUnit(8, 10, 1)


@pytest.mark.torch
@pytest.mark.feature("B021")
def test_values_and_gradients_are_torchvisions() -> None:
    from tests.helpers.nn.beside_torchvision import agrees

    agrees("shufflenet_v2_x0_5", 64)


@pytest.mark.torch
@pytest.mark.feature("B021")
def test_initial_values_are_torchvisions() -> None:
    from tests.helpers.nn.beside_torchvision import starts_as

    starts_as("shufflenet_v2_x0_5")
