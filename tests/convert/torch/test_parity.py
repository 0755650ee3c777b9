"""How near a converted network is to the network that it was."""

from __future__ import annotations

from typing import Any

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


def test_hooks_that_keep_what_they_saw_and_buffers() -> None:
    """The module itself runs: a copy's hooks would write where the module looks."""
    import torch
    from torch import nn

    from lamina.convert.torch import check, from_torch

    class Seen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.kept = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), {}
            self.register_buffer("last", torch.zeros(4))
            self.body[0].register_forward_hook(lambda _, inputs, output: self.kept.update(low=output))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.body(x)
            self.last = y.detach()[0]
            return y, self.kept["low"].sum(1)

    torch.manual_seed(0)
    net = Seen()
    before = {n: b.clone() for n, b in net.named_buffers()}
    places = {n: b.data_ptr() for n, b in net.named_buffers()}
    converted = from_torch(net, torch.randn(5, 3), share=False)
    found = check(net, converted, torch.randn(7, 3))
    assert max(found.output, found.gradient, *found.state.values()) < 1e-5, found
    for name, b in net.named_buffers():
        assert torch.equal(b, before[name]), name
        assert b.data_ptr() == places[name], name


def test_gradients_that_are_not_finite_leave_the_others_comparable() -> None:
    """The root of 0 and of a number below it: inf and nan in one parameter, the other's gradient is measured."""
    import torch
    from torch import nn

    from lamina.convert.torch import check, from_torch

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (
                nn.Parameter(torch.tensor([0.0, -1.0, 4.0])),
                nn.Parameter(torch.tensor([1.0, 2.0, 3.0])),
            )

        def forward(self, x: torch.Tensor) -> Any:
            return torch.nan_to_num(torch.sqrt(self.a * x)), self.b**2 * x

    net, x = Net(), torch.ones(3)
    found = check(net, from_torch(net, x, share=False), x)
    assert found.gradients["b"] < 1e-6
    assert found.gradient == found.gradient, "a number"


def test_buffers_in_float64_are_those_after_the_call() -> None:
    """Whose memory the module's former values come back to."""
    import torch
    from torch import nn

    from lamina.convert.torch import check, from_torch

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)
            self.register_buffer("calls", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            self.calls += 1
            return self.norm(x), self.calls

    net, x = Net().double(), torch.randn(5, 3, dtype=torch.float64)
    found = check(net, from_torch(net, x, share=False), x)
    assert max(found.output, *found.state.values()) < 1e-12, found


def test_a_network_without_parameters_has_no_gradients() -> None:
    import torch

    from lamina.convert.torch import check, from_torch

    net = torch.nn.Softmax(-1)
    x = torch.randn(2, 3, requires_grad=True)
    found = check(net, from_torch(net), x)
    assert found.output < 1e-6
    assert not found.gradients
