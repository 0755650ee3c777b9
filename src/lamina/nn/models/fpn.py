"""Feature pyramids (Lin, Dollár, Girshick, He, Hariharan & Belongie 2017), with torchvision's keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lamina import ops
from lamina.nn import init
from lamina.nn.container import ModuleList, Sequential
from lamina.nn.conv import Conv2d
from lamina.nn.models.backbone import FeatureStages
from lamina.nn.module import Module, T


def _xavier(layer: Any) -> None:
    """Weights uniform by fan-in, biases zero."""
    init.kaiming_uniform_(layer.weight, a=1)
    init.zeros_(layer.bias)


class LastLevelP6P7(Module):
    """Two additional levels: a 3×3/2 convolution of the last features, and another one of its ReLU.

    in_channels: of the backbone's last stage, which is then the input; if it equals out_channels, the pyramid's last
    level is.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        with init.scheme(_xavier):
            self.p6 = Conv2d(in_channels, out_channels, 3, 2, 1)
            self.p7 = Conv2d(out_channels, out_channels, 3, 2, 1)
        self.use_p5 = in_channels == out_channels

    def forward(self, pyramid: list[T], stages: list[T]) -> list[T]:
        """The pyramid with two additional levels."""
        p6 = self.p6(pyramid[-1] if self.use_p5 else stages[-1])
        return pyramid + [p6, self.p7(ops.relu(p6))]  # noqa: RUF005  the checker follows this alone


class FeaturePyramidNetwork(Module):
    """A 1×1 convolution of each stage's features, plus the next deeper level upsampled; a 3×3 one of the sum."""

    def __init__(
        self, in_channels_list: Sequence[int], out_channels: int, extra_blocks: LastLevelP6P7 | None = None
    ) -> None:
        with init.scheme(_xavier):
            self.inner_blocks = ModuleList(Sequential(Conv2d(c, out_channels, 1)) for c in in_channels_list)
            self.layer_blocks = ModuleList(
                Sequential(Conv2d(out_channels, out_channels, 3, padding=1)) for _ in in_channels_list
            )
        self.extra_blocks = extra_blocks

    def forward(self, stages: list[T]) -> list[T]:
        """Features (N, C_i, H_i, W_i), largest first -> as many (N, out_channels, H_i, W_i), and extra levels."""
        found: list[T] = []
        below: Any = None
        for x, inner, layer in reversed(list(zip(stages, self.inner_blocks, self.layer_blocks, strict=True))):
            lateral = inner(x)
            below = (
                lateral
                if below is None
                else lateral + ops.interpolate(below, lateral.shape[2:], mode="nearest")
            )
            found.insert(0, layer(below))
        return found if self.extra_blocks is None else self.extra_blocks(found, stages)


class BackboneWithFPN(Module):
    """A backbone's stages and a pyramid on their results; out_channels: of each level."""

    def __init__(
        self,
        body: FeatureStages,
        in_channels_list: Sequence[int],
        out_channels: int,
        extra_blocks: LastLevelP6P7 | None = None,
    ) -> None:
        self.body = body
        self.fpn = FeaturePyramidNetwork(in_channels_list, out_channels, extra_blocks)
        self.out_channels = out_channels

    def forward(self, x: T) -> list[T]:
        """Images (N, 3, H, W) -> the levels, the largest first."""
        levels: list[T] = self.fpn(list(self.body(x).values()))
        return levels
