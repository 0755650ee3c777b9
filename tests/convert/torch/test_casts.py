"""Autocast as casts in the graph: the dtypes and numbers of PyTorch."""

import copy
from typing import Any

import numpy as np
import pytest

pytestmark = [
    pytest.mark.torch,
    pytest.mark.feature("B024"),
    pytest.mark.filterwarnings(
        "ignore:The .grad attribute of a Tensor that is not a leaf"
    ),  # Dynamo looks at it
]


def test_autocast_gives_the_dtypes_and_about_the_losses_of_pytorch() -> None:
    import torch

    from tests.helpers.torch_training import ConvNet, compiled, images, trained

    def small(p: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(p, lr=0.01)

    torch.manual_seed(0)
    model = ConvNet()
    twin = copy.deepcopy(model)
    x, _ = images(0)
    run = compiled(twin)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert run(x).dtype == model(x).dtype == torch.bfloat16
        eager, ours = (trained(m, f, images, optimizer=small) for m, f in ((model, model), (twin, run)))
    np.testing.assert_allclose(ours, eager, rtol=0, atol=0.02)
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in twin.parameters())


def test_a_region_of_autocast_within_the_network() -> None:
    import torch

    from tests.helpers.torch_training import compiled

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                h = torch.relu(self.a(x))
            return self.b(h.float())

    torch.manual_seed(0)
    model, x = Net(), torch.randn(4, 6)
    y = compiled(model)(x)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, model(x), atol=0.02, rtol=0.02)
    assert not torch.equal(y, model.b(torch.relu(model.a(x))))  # it was bfloat16 within
