"""Images in another size."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


CASES = [
    "F.interpolate(x, scale_factor=2)",
    "F.interpolate(x, (9, 4), mode='bilinear', align_corners=False)",
    "F.interpolate(x, size=9, mode='bicubic', align_corners=True)",
    "F.interpolate(x, (3, 4), mode='bilinear', antialias=True)",
    "F.pad(x, (1, 2))",
    "F.pad(x, (1, 2, 1, 1), mode='reflect')",
    "F.pad(x, (1, 1, 2, 2), mode='replicate')",
    "F.grid_sample(x, torch.zeros(2, 3, 3, 2), align_corners=False)",
    "F.affine_grid(x[:, 0, :2, :3], (2, 1, 4, 4), align_corners=False)",
    "F.pixel_shuffle(x.repeat(1, 4, 1, 1), 2)",
    "F.interpolate(x, scale_factor=(0.5, 1.5), mode='nearest-exact')",
    "F.pad(x, (-1, 1), value=2.0)",
]


@pytest.mark.parametrize("text", CASES)
def test_values_are_those_of_torch(text: str) -> None:
    import torch
    import torch.nn.functional as F

    from tests.helpers.torch_functions import agree

    x = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    agree(eval("lambda x: " + text, {"torch": torch, "F": F}), x)
