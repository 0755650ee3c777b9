"""Results that are views of each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("B024")]


def as_in_pytorch(f: Callable[..., Any], *inputs: Any) -> tuple[Any, Any]:
    """Values, strides and who shares memory with whom are PyTorch's, and so after a write to the first result."""
    import torch

    from tests.helpers.torch_training import compiled

    twins = [x.clone() for x in inputs]
    found, wanted = compiled(f)(*twins), f(*inputs)
    for _ in range(2):
        for x, y in zip(found, wanted, strict=True):
            torch.testing.assert_close(x, y)
            assert x.stride() == y.stride()
        assert sharing(found) == sharing(wanted)
        with torch.no_grad():
            found[0].detach().add_(1)
            wanted[0].detach().add_(1)
    return found, wanted


def sharing(tensors: Any) -> list[int]:
    """For each tensor the number of the first that lies in the same memory."""
    places = [x.untyped_storage().data_ptr() for x in tensors]
    return [places.index(p) for p in places]


def test_views_of_a_result() -> None:
    import torch

    def f(x: torch.Tensor) -> Any:
        y = x.relu() + 1
        return y, y.view(-1), y[0], y.t(), y.unsqueeze(0).expand(2, 2, 3), x * 2

    as_in_pytorch(f, torch.randn(2, 3))


def test_views_of_what_is_no_result_itself() -> None:
    import torch

    def f(x: torch.Tensor) -> Any:
        a, b, c = (x.exp() * 2).chunk(3)
        return a, b.t(), c, x.sum()

    found, _ = as_in_pytorch(f, torch.randn(6, 3))
    assert sharing(found) == [0, 0, 0, 3]


def test_a_tensor_that_is_written_after_it_was_looked_at() -> None:
    import torch

    def f(x: torch.Tensor) -> Any:
        y = x * 2
        row = y[1]
        torch.nn.functional.relu(y, inplace=True)
        row.add_(3)
        return row, y, y.view(3, 2)

    as_in_pytorch(f, torch.randn(2, 3))


def test_a_view_that_other_strides_would_not_allow_is_a_tensor_of_its_own() -> None:
    import torch

    from tests.helpers.torch_training import compiled

    def f(x: torch.Tensor) -> Any:
        y = torch.relu(x)  # its elements lie as those of x
        return y, y.permute(0, 2, 3, 1).view(-1)

    x = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    for found, wanted in zip(compiled(f)(x), f(x), strict=True):
        torch.testing.assert_close(found, wanted)


def test_gradients_arrive_through_each_view() -> None:
    import torch

    from tests.helpers.torch_training import compiled

    def f(x: torch.Tensor) -> Any:
        y = x.exp() * 3
        return y, y.view(-1), y[0], y.detach()

    def gradient(run: Any, use: Any) -> torch.Tensor:
        x = torch.arange(6.0).reshape(2, 3).div(4).requires_grad_()
        results = run(x)
        assert [t.requires_grad for t in results] == [True, True, True, False]
        use(*results).backward()
        assert x.grad is not None
        return x.grad

    run = compiled(f)
    for use in (
        lambda y, flat, row, fixed: y.square().sum() + (flat * torch.arange(6.0)).sum() + row.sum(),
        lambda y, flat, row, fixed: (row * fixed[1]).sum(),
        lambda y, flat, row, fixed: flat.mul_(2).sum() + y.sum(),  # a write to the view is one to all
    ):
        torch.testing.assert_close(gradient(run, use), gradient(f, use))
