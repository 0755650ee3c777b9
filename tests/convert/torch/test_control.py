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
