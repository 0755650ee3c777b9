"""ConvNeXt: values, gradients and initial values as torchvision's, and what there is beside them."""

import numpy as np
import pytest

from lamina.nn.models.convnext import ConvNeXtBlock


def test_a_block_starts_nearly_as_identity() -> None:
    block = ConvNeXtBlock(8, 1e-6, 0.0)
    x = np.random.default_rng(0).standard_normal((2, 8, 5, 5)).astype(np.float32)
    np.testing.assert_allclose(block(x).numpy(), x, atol=1e-4)


@pytest.mark.torch
@pytest.mark.feature("B021")
def test_values_and_gradients_are_torchvisions() -> None:
    from tests.helpers.nn.beside_torchvision import agrees

    agrees("convnext_tiny", 64)


@pytest.mark.torch
@pytest.mark.feature("B021")
def test_initial_values_are_torchvisions() -> None:
    from tests.helpers.nn.beside_torchvision import starts_as

    starts_as("convnext_tiny")
