"""Swin Transformer: values, gradients and initial values as torchvision's, and what there is beside them."""

from typing import Any

import numpy as np
import pytest

from lamina import nn
from lamina.nn import models
from lamina.nn.models.swin import PatchMerging, ShiftedWindowAttention


def test_windows_that_are_padded_and_shifted() -> None:
    """What is left of the padding does not reach an image's places but by attention within the same window."""
    layer = ShiftedWindowAttention(8, (4, 4), (2, 2), 2).eval()
    x = np.random.default_rng(0).standard_normal((2, 7, 9, 8)).astype(np.float32)
    both = layer(x).numpy()
    assert both.shape == x.shape
    np.testing.assert_allclose(layer(x[1:]).numpy(), both[1:], rtol=1e-5, atol=1e-6)


def test_merging_pads_odd_sides() -> None:
    assert PatchMerging(4)(np.zeros((1, 5, 6, 4), np.float32)).shape == (1, 3, 3, 8)


@pytest.mark.torch
@pytest.mark.feature("B021")
@pytest.mark.parametrize("version", [1, 2])
def test_values_and_gradients_are_torchvisions(version: int) -> None:
    """On 9 by 9 places in windows of 4: they are padded, and every other block is shifted."""
    from tests.helpers.nn.beside_torchvision import agree

    agree(*both(version), (2, 3, 36, 36))


@pytest.mark.torch
@pytest.mark.feature("B021")
@pytest.mark.parametrize("version", [1, 2])
def test_initial_values_are_torchvisions(version: int) -> None:
    from tests.helpers.nn.beside_torchvision import start_alike

    start_alike(*both(version))


def both(version: int) -> tuple[nn.Module, Any]:
    """A small network of ours, and torchvision's."""
    from tests.helpers.vision import models as theirs

    swin = theirs.swin_transformer
    parts = (
        {"block": swin.SwinTransformerBlockV2, "downsample_layer": swin.PatchMergingV2}
        if version == 2
        else {}
    )
    sizes = ([4, 4], 16, [2, 2], [2, 4], [4, 4])
    return (
        models.SwinTransformer(*sizes, num_classes=5, version=version),
        swin.SwinTransformer(*sizes, num_classes=5, **parts),
    )
