"""AutoAugment's policies are torchvision's, and refer to operations that there are."""

from typing import Any

import pytest

from lamina.data.transforms.automatic import _OPERATIONS
from lamina.data.transforms.policies import POLICIES, AutoAugmentPolicy


@pytest.mark.torch
@pytest.mark.parametrize("policy", list(AutoAugmentPolicy))
def test_policies_are_torchvisions(policy: Any) -> None:
    from tests.helpers import vision

    theirs = vision.module("transforms.v2").AutoAugment(
        vision.module("transforms.v2").AutoAugmentPolicy(policy)
    )
    expected = [tuple((name, p, which or 0) for name, p, which in pair) for pair in theirs._policies]
    assert list(POLICIES[policy]) == expected


def test_every_step_can_be_taken() -> None:
    assert set(POLICIES) == set(AutoAugmentPolicy)
    for pairs in POLICIES.values():
        assert len(pairs) == 25
        for name, probability, which in (step for pair in pairs for step in pair):
            assert name in _OPERATIONS
            assert 0 <= probability <= 1
            assert which in range(10)
