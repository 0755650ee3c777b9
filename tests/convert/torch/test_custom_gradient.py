"""Results whose gradient is a rule of its own, under PyTorch's autograd."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F101")]


def rule(kept: Any, g: Any, factor: Any) -> Any:
    """Of one kept tensor, the gradient of one result, and a constant."""
    return (g * kept * factor, None)


def test_the_rule_gives_the_gradients() -> None:
    import torch

    from lamina.convert.torch.custom_gradient import with_rule

    a, b = (torch.tensor([2.0, 3.0], requires_grad=True) for _ in range(2))
    (y,) = with_rule(rule, 2, 1, (a, b, (a + b).detach(), a * a), (torch.tensor(10.0),))
    assert y.tolist() == [4.0, 6.0]
    g, other = torch.autograd.grad(y.sum(), (a, b), create_graph=True, allow_unused=True)
    assert g.tolist() == [40.0, 90.0]
    assert other is None
    (second,) = torch.autograd.grad(g.sum(), a)  # through what the rule keeps: d (10 a²) / da
    assert second.tolist() == [40.0, 60.0]
