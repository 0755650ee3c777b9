"""Arguments as PyTorch's functions take them: numbers that are tensors, what a method is called on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099", "F100")]


def numbered(x: Any) -> Any:
    """Sizes, axes and a width of a padding that are computed by functions of tensors."""
    import torch

    half = torch.div(x.shape[1], 2, rounding_mode="trunc")
    y = x.view(x.shape[0], half, 2).sum(half - 3)
    return torch.nn.functional.pad(y, (0, half - 3), value=1.0) + x.new_zeros((x.shape[0], half - 1))


def chosen(x: Any) -> Any:
    """A method whose tensor is not the function's first argument, and one that Lamina's tensors have alike."""
    import torch

    return torch.full_like(x, -1.0).where(x > 0, x), torch.special.polygamma(1, x.abs() + 1), x.pow(2)


def scaled(x: Any) -> Any:
    """A function of NumPy of a number, which stands in Dynamo's graph."""
    import numpy as np

    y = x * 1.0
    y *= np.sqrt(x.shape[1])
    return y / np.maximum(x.shape[0], 2)


def spread(x: Any) -> Any:
    """Tensors that are given one by one, numbers among them."""
    import torch

    a, b = torch.broadcast_tensors(x, torch.tensor(2.0))
    return a * b, torch.einsum("ij,->i", x, torch.tensor(3.0)), torch.block_diag(x, torch.ones(1, 1))


@pytest.mark.parametrize("function", [numbered, chosen, scaled, spread])
def test_whole_under_compile(function: Callable[[Any], Any], caplog: pytest.LogCaptureFixture) -> None:
    import torch

    from tests.helpers.torch_training import compiled

    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    twin = x.clone().requires_grad_()
    x.requires_grad_()
    wanted, found = function(x), compiled(function)(twin)
    pairs = zip(*(y if isinstance(y, tuple) else (y,) for y in (wanted, found)), strict=True)
    terms = [((w * w).sum(), (f * f).sum(), torch.testing.assert_close(f, w)) for w, f in pairs]
    sum(t[0] for t in terms).backward()
    sum(t[1] for t in terms).backward()
    torch.testing.assert_close(twin.grad, x.grad)
    assert not [r for r in caplog.records if r.name.startswith("lamina")]


def test_memory_that_is_no_element_is_refused() -> None:
    import torch
    from torch import nn

    from lamina.convert.torch import from_torch

    class Outside(nn.Module):
        def forward(self, x: Any) -> Any:
            return (x * 1.0)[:, ::2].as_strided((3, 4), (8, 1))

    x = torch.randn(3, 8)
    with pytest.raises(ValueError, match="reads memory that is no element of the tensor"):
        from_torch(Outside(), x)(x)
