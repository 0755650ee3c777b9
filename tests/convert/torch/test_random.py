"""Functions that draw random numbers."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


def test_dropout_drops_as_many_as_asked_and_nothing_in_inference() -> None:
    import torch
    import torch.nn.functional as F

    from tests.helpers.torch_functions import agree, exported

    x = torch.ones(100, 100)
    agree(lambda x: F.dropout(x, 0.5, False), x)
    agree(lambda x: F.rrelu(-x, 0.1, 0.4), x)
    y = exported(lambda x: F.dropout(x, 0.25, True), x)(x).outputs[0].numpy()
    assert abs((y == 0).mean() - 0.25) < 0.02
    assert abs(y.max() - 4 / 3) < 1e-6


@pytest.mark.parametrize(
    "text",
    ["torch.rand_like(x)", "torch.rand(100, 100) + 0 * x", "torch.bernoulli(x / 2)", "x.clone().uniform_()"],
)
def test_means(text: str) -> None:
    import torch

    from tests.helpers.torch_functions import exported

    x = torch.ones(100, 100)
    y = exported(eval("lambda x: " + text, {"torch": torch}), x)(x).outputs[0].numpy()
    assert y.shape == (100, 100)
    assert abs(y.mean() - 0.5) < 0.02
