"""Modes and subgraphs."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


def test_no_grad_regions_and_checkpoints() -> None:
    import torch
    from torch.utils.checkpoint import checkpoint

    from tests.helpers.torch_functions import agree

    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            mean = x.mean()
        return checkpoint(torch.sin, x, use_reentrant=False) * mean

    agree(f, torch.randn(3, 4))


def test_a_branch_of_the_graph() -> None:
    import torch

    from tests.helpers.torch_functions import agree, exported

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    for sign in (1, -1):
        agree(f, sign * torch.rand(3, 4), ways=(exported,))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo does
def test_functions_with_a_gradient_of_their_own_are_compiled() -> None:
    """Several results, constants among them, values that are kept, arguments that are no tensors."""
    import torch

    from tests.helpers.torch_training import compiled

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w, factor):  # type: ignore[no-untyped-def]
            places = x.argmax(-1)
            ctx.factor = factor
            ctx.save_for_backward(x, w, places)
            ctx.mark_non_differentiable(places)
            return x * w, x.sum(), places

        @staticmethod
        def backward(ctx, *grads):  # type: ignore[no-untyped-def]
            x, w, places = ctx.saved_tensors
            return -ctx.factor * grads[0] * w + grads[1] + places[:, None], (grads[0] * x).sum(0), None

    apply = Scaled.apply

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line, self.w = torch.nn.Linear(3, 4), torch.nn.Parameter(torch.linspace(1, 2, 4))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y, total, places = apply(self.line(x), self.w, 0.7)
            return y.sin() + total, places

    net = Net()
    found = []
    for run in (net, compiled(net)):
        x = torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()
        y, places = run(x)
        found.append([y, places, *torch.autograd.grad(y.sum(), [x, *net.parameters()])])
    torch.testing.assert_close(found[1], found[0])
