"""Feature pyramids: torchvision's keys and values, both kinds of further levels."""

import numpy as np
import pytest

from lamina.nn.models.fpn import FeaturePyramidNetwork, LastLevelP6P7
from tests.helpers.nn.twins import check, same_weights

RNG = np.random.default_rng(0)
STAGES = tuple(RNG.standard_normal((2, 4 * 2**i, 17 >> i, 24 >> i)).astype(np.float32) for i in range(3))


@pytest.mark.feature("B021")
@pytest.mark.torch
@pytest.mark.parametrize("inputs", [8, 16])
def test_values_and_gradients_are_torchvisions(inputs: int) -> None:
    from tests.helpers import vision

    theirs = vision.module("ops.feature_pyramid_network")
    net = theirs.FeaturePyramidNetwork([4, 8, 16], 8, theirs.LastLevelP6P7(inputs, 8))
    ours = FeaturePyramidNetwork([4, 8, 16], 8, LastLevelP6P7(inputs, 8))
    same_weights(net, ours)

    class Listed(type(ours)):  # type: ignore[misc]
        def forward(self, *stages: object) -> object:
            return super().forward(list(stages))

    ours.__class__ = Listed
    check(lambda *x: list(net({str(i): y for i, y in enumerate(x)}).values()), ours, STAGES, of=net)


def test_sizes_of_the_levels() -> None:
    found = FeaturePyramidNetwork([4, 8, 16], 8, LastLevelP6P7(8, 8))(list(STAGES))
    assert [y.shape[2:] for y in found] == [(17, 24), (8, 12), (4, 6), (2, 3), (1, 2)]
    assert len(FeaturePyramidNetwork([4, 8], 8)(list(STAGES[:2]))) == 2
