"""Vision Transformer: values, gradients and initial values as torchvision's, and what there is beside them."""

import re

import numpy as np
import pytest

import lamina as lm
from lamina.nn import models


def test_images_have_the_size_that_places_are_for() -> None:
    net = models.VisionTransformer(32, 8, 1, 2, 16, 32, num_classes=3).eval()
    assert net(np.zeros((2, 3, 32, 32), np.float32)).shape == (2, 3)
    with pytest.raises(lm.ShapeError, match=re.escape("needs images (N, 3, 32, 32), got (2, 3, 40, 40)")):
        net(np.zeros((2, 3, 40, 40), np.float32))
    with pytest.raises(ValueError, match="patches of 7 do not fill images of 32 pixels"):
        models.VisionTransformer(32, 7, 1, 2, 16, 32)


def test_a_layer_before_the_classifier() -> None:
    net = models.VisionTransformer(32, 8, 1, 2, 16, 32, representation_size=6, num_classes=3)
    assert [key for key in net.state_dict() if key.startswith("heads")] == [
        "heads.pre_logits.weight", "heads.pre_logits.bias", "heads.head.weight", "heads.head.bias",
    ]  # fmt: skip


@pytest.mark.torch
@pytest.mark.feature("B021")
def test_values_and_gradients_are_torchvisions() -> None:
    from tests.helpers.nn.beside_torchvision import agree
    from tests.helpers.vision import models as theirs

    sizes = (32, 8, 2, 2, 16, 24)
    our, their = (
        make(*sizes, num_classes=5) for make in (models.VisionTransformer, theirs.VisionTransformer)
    )
    agree(our, their, (2, 3, 32, 32))


@pytest.mark.torch
@pytest.mark.feature("B021")
def test_initial_values_are_torchvisions() -> None:
    from tests.helpers.nn.beside_torchvision import start_alike
    from tests.helpers.vision import models as theirs

    sizes = (64, 8, 2, 4, 96, 128)
    more = {"num_classes": 5, "representation_size": 40}
    start_alike(*(make(*sizes, **more) for make in (models.VisionTransformer, theirs.VisionTransformer)))
