"""Convolutions and pools."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


CASES = [
    "F.conv2d(x, torch.ones(4, 3, 3, 3), padding='same')",
    "F.conv_transpose2d(x, torch.ones(3, 4, 2, 2), stride=2)",
    "torch.conv_tbc(x[:, 0].contiguous(), torch.ones(3, 6, 2), torch.ones(2), 1)",
    "F.max_pool2d(x, 2)",
    "F.max_pool2d(x, 3, 2, 1, return_indices=True)[0]",
    "F.avg_pool2d(x, 2, count_include_pad=False)",
    "F.adaptive_avg_pool2d(x, (1, None))",
    "F.adaptive_max_pool2d(x, 2)",
    "F.lp_pool2d(x, 2, 2)",
    "torch.conv2d(x, torch.ones(3, 1, 3, 3), groups=3)",
    "F.max_pool1d(x[:, 0], 2)",
    "F.adaptive_max_pool1d(x[:, 0], 2)",
    "F.adaptive_max_pool2d(x, (2, None), return_indices=True)[1]",
    "F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2)",
    "F.max_unpool2d(*F.max_pool2d(x, 3, 2, return_indices=True), 3, 2, output_size=(6, 6))",
    "B(x[..., 2:, 2:], x, torch.ones(3, 1, 3, 3), None, I, O, I, False, O, 3, (True, True, False))[:2]",
    "B(x, x[..., ::2, ::2], torch.ones(3, 3, 2, 2), [3], (2, 2), O, I, True, O, 1, (True, True, True))",
    "B(x, x, torch.ones(3, 3, 1, 1), [3], I, O, I, False, O, 1, (False, False, True))[2]",
    "F.fractional_max_pool2d(x, 2, (3, 4), _random_samples=torch.full((2, 3, 2), 0.3))",
]


@pytest.mark.parametrize("text", CASES)
def test_values_are_those_of_torch(text: str) -> None:
    import torch
    import torch.nn.functional as F

    from tests.helpers.torch_functions import agree

    x = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    names = {"B": torch.ops.aten.convolution_backward, "I": (1, 1), "O": (0, 0)}
    agree(eval("lambda x: " + text, {"torch": torch, "F": F, **names}), x)
