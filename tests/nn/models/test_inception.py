"""Inception v3: values, gradients and initial values as torchvision's, and what there is beside them."""

import numpy as np
import pytest

import lamina as lm
from lamina import nn
from lamina.nn import models
from lamina.nn.models.inception import InceptionV3Aux


def test_images_of_75_pixels_are_enough() -> None:
    with nn.init.skipped():
        net = models.inception_v3(5).eval()
    graph = lm.trace(net, lm.Spec((1, 3, 80, 75), lm.float32))
    assert [v.shape for v in graph.outputs] == [(1, 5)]


@pytest.mark.torch
@pytest.mark.feature("B021")
def test_values_and_gradients_are_torchvisions() -> None:
    from tests.helpers.nn.beside_torchvision import agrees

    agrees("inception_v3", 150, aux_logits=False, transform_input=True)


@pytest.mark.torch
@pytest.mark.feature("B021")
def test_the_auxiliary_classifier_is_torchvisions() -> None:
    from tests.helpers.nn.beside_torchvision import agree
    from tests.helpers.vision import models as theirs

    agree(InceptionV3Aux(16, 5), theirs.inception.InceptionAux(16, 5), (2, 16, 17, 18))


def test_training_gives_both_classifiers() -> None:
    """Behind the first blocks of a network, at the smallest size that the auxiliary one takes."""
    with nn.init.skipped():
        net = models.inception_v3(5)
    for name in ("Conv2d_1a_3x3", "Conv2d_2a_3x3", "Conv2d_2b_3x3", "Conv2d_3b_1x1", "Conv2d_4a_3x3"):
        setattr(net, name, nn.Identity())
    for name in [n for n, _ in net.named_children() if n.startswith(("Mixed_5", "Mixed_6", "maxpool"))]:
        setattr(net, name, nn.Identity())
    made = net(np.zeros((2, 768, 17, 17), np.float32))
    assert (made.logits.shape, made.aux_logits.shape) == ((2, 5), (2, 5))


@pytest.mark.torch
@pytest.mark.feature("B021")
def test_initial_values_are_torchvisions() -> None:
    from tests.helpers.nn.beside_torchvision import starts_as

    starts_as("inception_v3")
