"""Deformable convolutions, beside torchvision's."""

from __future__ import annotations

from typing import Any

import pytest

from lamina import convert

torch = pytest.importorskip("torch")
vision: Any = pytest.importorskip("tests.helpers.vision")
nn = torch.nn
pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


@pytest.mark.parametrize(("groups", "parts", "masked"), [(1, 1, False), (2, 3, True), (3, 1, True)])
def test_deformable_convolutions(groups: int, parts: int, masked: bool) -> None:
    from tests.helpers import vision_ops

    vision_ops.provide()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.offset = nn.Conv2d(6, 2 * parts * 6, (3, 2), stride=(2, 1), padding=1, dilation=(1, 2))
            self.mask = (
                nn.Conv2d(6, parts * 6, (3, 2), stride=(2, 1), padding=1, dilation=(1, 2)) if masked else None
            )
            self.conv = vision.module("ops").DeformConv2d(
                6, 9 - 9 % groups, (3, 2), stride=(2, 1), padding=1, dilation=(1, 2), groups=groups
            )

        def forward(self, x: Any) -> Any:
            return self.conv(x, self.offset(x), None if self.mask is None else self.mask(x).sigmoid())

    torch.manual_seed(0)
    net, x = Net(), torch.randn(2, 6, 9, 12)
    with torch.no_grad():
        net.offset.weight *= 5  # beyond the edges, too
    found = convert.check(net, convert.from_torch(net, share=False), x)
    assert found.output < 1e-5, found
    assert found.gradient < 1e-4, found


def test_offsets_of_another_number_of_channels_are_an_error() -> None:
    from tests.helpers import vision_ops

    vision_ops.provide()
    conv = vision.module("ops").deform_conv2d

    class Net(nn.Module):
        def forward(self, x: Any, offset: Any, weight: Any) -> Any:
            return conv(x, offset, weight)

    x, offset, weight = torch.ones(1, 2, 5, 5), torch.zeros(1, 20, 3, 3), torch.ones(1, 2, 3, 3)
    with pytest.raises((ValueError, RuntimeError), match="offset"):
        convert.from_torch(Net())(x, offset, weight)
