"""MaxViT: values, gradients and initial values as torchvision's, and what there is beside them."""

import numpy as np
import pytest

import lamina as lm
from lamina import nn
from lamina.nn import models
from lamina.nn.models.maxvit import PartitionAttention


def test_parts_must_fill_the_image() -> None:
    layer = PartitionAttention(8, 4, 3, "grid", 2, 0.0, 0.0, 0.0).eval()
    assert layer(np.zeros((1, 8, 6, 9), np.float32)).shape == (1, 8, 6, 9)
    with pytest.raises(lm.ShapeError, match="parts of 3 by 3 places do not fill 6 by 8"):
        layer(np.zeros((1, 8, 6, 8), np.float32))


def test_a_grid_joins_places_that_lie_evenly_over_the_image() -> None:
    """A change at one place reaches those of its part alone."""
    x = np.random.default_rng(0).standard_normal((1, 8, 4, 6)).astype(np.float32)
    moved = x.copy()
    moved[0, 0, 0, 0] += 1
    for kind, part in (("window", np.s_[:2, :2]), ("grid", np.s_[::2, ::3])):
        layer = PartitionAttention(8, 4, 2, kind, 2, 0.0, 0.0, 0.0).eval()
        changed = np.abs(layer(moved).numpy() - layer(x).numpy()).max((0, 1)) > 0
        expected = np.zeros((4, 6), bool)
        expected[part] = True
        np.testing.assert_array_equal(changed, expected)


@pytest.mark.torch
@pytest.mark.feature("B021")
def test_values_and_gradients_are_torchvisions() -> None:
    from tests.helpers.nn.beside_torchvision import agree
    from tests.helpers.vision import models as theirs

    with nn.init.skipped():
        our = models.MaxVit(8, (8, 16), (1, 2), 4, 2, 0.1, num_classes=5)
    their = theirs.maxvit.MaxVit((32, 32), 8, 2, [8, 16], [1, 2], 4, 0.1, num_classes=5)
    agree(our, their, (2, 3, 32, 32))


@pytest.mark.torch
@pytest.mark.feature("B021")
def test_initial_values_are_torchvisions() -> None:
    from tests.helpers.nn.beside_torchvision import starts_as

    starts_as("maxvit_t")
