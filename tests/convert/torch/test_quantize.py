"""Fake quantization in PyTorch's networks."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099", "F100")]


def test_results_and_gradients_are_those_of_torch() -> None:
    """Numbers within and beyond the range, of one scale and of one for each channel."""
    import torch
    from torch import nn

    from lamina.convert.torch import check, from_torch
    from tests.helpers.torch_training import compiled

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.linspace(-2, 2, 24).reshape(4, 6))
            self.register_buffer("scales", torch.tensor([0.01, 0.02, 0.1, 0.5]))
            self.register_buffer("zeros", torch.tensor([0, 3, -4, 0], dtype=torch.int32))

        def forward(self, x: torch.Tensor) -> Any:
            each = torch.fake_quantize_per_channel_affine(self.w, self.scales, self.zeros, 0, -128, 127)
            whole = torch.fake_quantize_per_tensor_affine(self.w * 3, 0.03, 5, -128, 127)
            return x @ each.T, x @ whole.T

    net, x = Net(), torch.randn(3, 6)
    found = check(net, from_torch(net, x, share=False), x)
    assert found.output < 1e-5, found
    assert found.gradient < 1e-5, found
    sum(y.sum() for y in net(x)).backward()
    wanted, net.w.grad = net.w.grad, None
    sum(y.sum() for y in compiled(net)(x)).backward()
    torch.testing.assert_close(net.w.grad, wanted)
