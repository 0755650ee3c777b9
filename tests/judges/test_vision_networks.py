"""The table of torchvision's classifiers: every one is in it, and none lies further apart than is allowed."""

import pytest

from tests.judges import vision_networks


@pytest.mark.feature("B021")
def test_all_are_as_torchvision_computes() -> None:
    for name, line in vision_networks.held().items():
        assert line["outputs"] < vision_networks.OUTPUTS, name
        assert line.get("gradients", 0) < vision_networks.GRADIENTS, name


@pytest.mark.torch
@pytest.mark.feature("B021")
def test_the_table_has_all_and_one_is_as_committed() -> None:
    from tests.helpers.nn.beside_torchvision import CLASSIFIERS

    assert set(vision_networks.held()) == set(CLASSIFIERS), "python -m tests.judges.vision_networks write"
    found = vision_networks.measure("squeezenet1_0")
    assert found["outputs"] < vision_networks.OUTPUTS
    assert found["gradients"] < 1e-6
