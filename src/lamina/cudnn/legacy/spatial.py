"""The spatial transformer: a grid of sampling points from affine maps, and the sampler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lamina.c import cudnn as c
from lamina.cudnn.legacy.base import AnyHandle, Descriptor, Memory, call
from lamina.cudnn.legacy.flags import DataType, Name, SamplerType, flag
from lamina.cudnn.legacy.tensor import TensorDescriptor


class SpatialTransformerSettings(NamedTuple):
    """What `SpatialTransformer.get` returns."""

    dims: tuple[int, ...]
    data_type: DataType
    sampler: SamplerType


class SpatialTransformer(Descriptor):
    """Sampling of images at the points of an affine grid (cudnnSetSpatialTransformerNdDescriptor).

    Coordinates run from -1 to 1 between the centres of the corner pixels, x first.

    Args:
        dims: (N, C, H, W) of the result.
        data_type: of all tensors.
        sampler: "bilinear".
    """

    kind = "SpatialTransformerDescriptor"

    def __init__(
        self, dims: Sequence[int], *, data_type: Name = "float32", sampler: Name = "bilinear"
    ) -> None:
        super().__init__()
        sizes, kind, how = tuple(dims), flag(DataType, data_type), flag(SamplerType, sampler)
        call(c.cudnnSetSpatialTransformerNdDescriptor, self, how, kind, len(sizes), sizes)
        self._settings = SpatialTransformerSettings(sizes, kind, how)

    def get(self) -> SpatialTransformerSettings:
        """The settings as they were given: cuDNN has no call that reads them back."""
        _ = self.native
        return self._settings

    def grid_forward(self, handle: AnyHandle, *, theta: Memory, grid: Memory) -> None:
        """Sampling points from affine maps (cudnnSpatialTfGridGeneratorForward).

        theta: N×2×3; grid: N×H×W×2, (x, y) for each point of the result.
        """
        call(c.cudnnSpatialTfGridGeneratorForward, handle, self, theta, grid)

    def grid_backward(self, handle: AnyHandle, *, dgrid: Memory, dtheta: Memory) -> None:
        """dtheta from dgrid (cudnnSpatialTfGridGeneratorBackward)."""
        call(c.cudnnSpatialTfGridGeneratorBackward, handle, self, dgrid, dtheta)

    def sampler_forward(
        self,
        handle: AnyHandle,
        *,
        x_desc: TensorDescriptor,
        x: Memory,
        grid: Memory,
        y_desc: TensorDescriptor,
        y: Memory,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        """y = alpha * (x at the grid's points, zeros outside) + beta * y (cudnnSpatialTfSamplerForward)."""
        call(c.cudnnSpatialTfSamplerForward, handle, self, alpha, x_desc, x, grid, beta, y_desc, y)

    def sampler_backward(
        self,
        handle: AnyHandle,
        *,
        x_desc: TensorDescriptor,
        x: Memory,
        grid: Memory,
        dy_desc: TensorDescriptor,
        dy: Memory,
        dx_desc: TensorDescriptor,
        dx: Memory,
        dgrid: Memory,
        alpha: float = 1.0,
        beta: float = 0.0,
        alpha_grid: float = 1.0,
        beta_grid: float = 0.0,
    ) -> None:
        """dx = alpha * … + beta * dx, dgrid = alpha_grid * … + beta_grid * dgrid.

        cudnnSpatialTfSamplerBackward.
        """
        call(
            c.cudnnSpatialTfSamplerBackward,
            handle,
            self,
            alpha,
            x_desc,
            x,
            beta,
            dx_desc,
            dx,
            alpha_grid,
            dy_desc,
            dy,
            grid,
            beta_grid,
            dgrid,
        )
