"""Regions of autocast."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


@pytest.mark.parametrize(
    "function",
    ["x @ x", "torch.nn.functional.linear(x, x).softmax(-1)", "(x @ x).sum() + x", "(x @ x).exp()"],
)
def test_dtypes_are_those_of_torch(function: str) -> None:
    import torch

    from tests.helpers.torch_functions import agree

    own = eval("lambda x: " + function, {"torch": torch})

    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return own(x)

    agree(f, torch.rand(4, 4), tolerance=2e-2)
