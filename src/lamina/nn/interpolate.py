"""Resizing layers for images, rows and volumes. Arguments as in torch.nn."""

from __future__ import annotations

from collections.abc import Sequence

from lamina import ops
from lamina.nn.module import Module, T
from lamina.ops.arguments import Sizes
from lamina.ops.primitives.interpolate import Factors, Mode


class Upsample(Module):
    """`ops.interpolate`: to a size, or by a factor; exactly one of the two, for all spatial axes or per axis."""

    def __init__(
        self,
        size: Sizes | None = None,
        scale_factor: Factors | None = None,
        mode: Mode = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        self.size = tuple(size) if isinstance(size, Sequence) else size
        self.scale_factor = tuple(scale_factor) if isinstance(scale_factor, Sequence) else scale_factor
        self.mode, self.align_corners = mode, align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, x: T) -> T:
        """x (N, C, *S) -> (N, C, *O). Raises ShapeError for a rank that the mode does not support."""
        y: T = ops.interpolate(
            x, self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor
        )
        return y

    def extra_repr(self) -> str:
        """The arguments, as torch prints them."""
        given = f"size={self.size}" if self.scale_factor is None else f"scale_factor={self.scale_factor}"
        return f"{given}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """`Upsample` of (N, C, H, W) by the nearest neighbor."""

    def __init__(self, size: Sizes | None = None, scale_factor: Factors | None = None) -> None:
        super().__init__(size, scale_factor, "nearest")


class UpsamplingBilinear2d(Upsample):
    """`Upsample` of (N, C, H, W), linear along both axes with aligned corners."""

    def __init__(self, size: Sizes | None = None, scale_factor: Factors | None = None) -> None:
        super().__init__(size, scale_factor, "bilinear", True)
