"""How near a converted network is to the network that it was."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("B027")]


def test_differences_are_found_by_name_and_nothing_is_changed() -> None:
    import torch
    from torch import nn

    from lamina.convert.torch import check, from_torch

    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    converted, x = from_torch(net, share=False), torch.randn(5, 3)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    assert check(net, converted, x).output < 1e-6
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    converted.get_parameter("2.bias").copy_(np.full(2, 9.0, np.float32))
    found = check(net, converted, x)
    assert found.output > 0.1
    assert found.gradient < 1e-5
    assert set(found.gradients) == {n for n, _ in net.named_parameters()}
    assert "outputs" in str(found)


def test_differences_are_relative_to_what_is_largest() -> None:
    """Of zeros they are taken as they are; numbers that are not finite must be so in both."""
    from lamina.convert.torch.parity import _error

    wanted = np.array([1.0, -4.0])
    assert _error(np.array([1.0, -3.0]), wanted) == 0.25
    assert _error(np.array([1.0, -3.0]), wanted, 8.0) == 0.125
    assert _error(np.array([0.5, 0.0]), np.zeros(2)) == 0.5
    assert _error(np.zeros(0), np.zeros(0)) == 0.0
    assert _error(np.zeros(3), wanted) == np.inf
    assert _error(np.array([np.nan, -4.0]), wanted) == np.inf
    assert _error(np.array([np.inf, 3.0]), np.array([np.inf, 4.0])) == 0.25
