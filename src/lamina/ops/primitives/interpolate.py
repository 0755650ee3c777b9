"""Resizing of images, rows and volumes, as torch.nn.functional.interpolate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from lamina.ops.arguments import Sizes, checked
from lamina.ops.core import operand
from lamina.ops.primitives.axis_map import AxisMap
from lamina.ops.primitives.cast import cast
from lamina.ops.primitives.map_axes import mapped
from lamina.ops.primitives.pointwise import clamp, floor
from lamina.ops.primitives.window import per_axis
from lamina.spec import Shape, ShapeError, float32, uint8

Mode = Literal["nearest", "linear", "bilinear", "bicubic", "trilinear", "area", "nearest-exact"]
Factors = float | Sequence[float]

#: The kind of map of each mode, and the number of spatial axes that the mode requires.
_KINDS = {
    "nearest": ("nearest", (1, 2, 3)),
    "nearest-exact": ("nearest-exact", (1, 2, 3)),
    "area": ("area", (1, 2, 3)),
    "linear": ("linear", (1,)),
    "bilinear": ("linear", (2,)),
    "bicubic": ("cubic", (2,)),
    "trilinear": ("linear", (3,)),
}


@checked
def interpolate(
    input: Any,
    size: Sizes | None = None,
    scale_factor: Factors | None = None,
    mode: Mode = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    """input [N, C, *S] resized along its spatial axes, as torch.nn.functional.interpolate.

    size, scale_factor: the sizes, or the factor by which they grow (rounded down); exactly one of the two, as one
    number for all axes or one per axis. mode: "nearest" (with torch's positions, rounded in float32),
    "nearest-exact", "area" (means), and by the number of spatial axes "linear", "bilinear", "bicubic" (Keys 1981, a =
    -0.75), "trilinear". align_corners: the centers of the corner elements are aligned, instead of the corners
    themselves. recompute_scale_factor: positions are computed from the sizes instead of from scale_factor. antialias:
    "bilinear" and "bicubic" average when downsampling.

    Images in uint8 are computed in float32 and rounded to levels; torch rounds the weights, too, by which a level may
    be its neighbour. The gradient accumulates in a fixed order. Raises ShapeError, DTypeError, and ValueError for
    mutually exclusive arguments.
    """
    x = operand(input, "interpolate")
    kind, ranks = _KINDS[mode]
    rank = x.ndim - 2
    if rank not in ranks:
        wanted = " or ".join(str(r + 2) for r in ranks)
        raise ShapeError(
            f"interpolate: mode {mode!r} takes inputs of rank {wanted}, [N, C, *spatial], got {x.spec}"
        )
    if align_corners is not None and kind not in ("linear", "cubic"):
        raise ValueError(f"interpolate: align_corners belongs to the linear and cubic modes, not to {mode!r}")
    if antialias and mode not in ("bilinear", "bicubic"):
        raise ValueError(f"interpolate: antialias belongs to bilinear and bicubic, not {mode!r}")
    spatial = x.shape[2:]
    sizes, factors = _sizes(spatial, size, scale_factor, bool(recompute_scale_factor))
    if 0 in spatial or 0 in sizes:
        raise ShapeError(f"interpolate: sizes must be >= 1, got {sizes} from {x.spec}")
    named = f"{kind}-antialias" if antialias else kind
    axes = zip(spatial, sizes, factors, strict=True)
    maps = [_axis(named, n, out, factor, bool(align_corners)) for n, out, factor in axes]
    if x.dtype != uint8:
        return mapped(x, [None, None, *maps])
    return _of_levels(x, maps)


def _of_levels(x: Any, maps: Sequence[AxisMap | None]) -> Any:
    """An image of uint8 resized along one axis after another, the last one first, each rounded to levels, as torch's
    (and Pillow's)."""
    levels = cast(x, float32)
    for place in range(len(maps) - 1, -1, -1):
        along = [m if i == place else None for i, m in enumerate(maps)]
        levels = clamp(floor(mapped(levels, [None, None, *along]) + 0.5), 0.0, 255.0)
    return cast(levels, uint8)


def _sizes(
    spatial: Shape, size: Sizes | None, scale_factor: Factors | None, recompute: bool
) -> tuple[Shape, Sequence[float | None]]:
    """The spatial sizes of the result, and the factors that determine positions (None: from the sizes)."""
    rank = len(spatial)
    if (size is None) == (scale_factor is None):
        raise ValueError(f"interpolate: give size or scale_factor, got {size} and {scale_factor}")
    if scale_factor is None:
        if recompute:
            raise ValueError("interpolate: recompute_scale_factor belongs to scale_factor, and size is given")
        assert size is not None
        return per_axis("interpolate", "size", size, rank, 0), [None] * rank
    given = tuple(scale_factor) if isinstance(scale_factor, Sequence) else (scale_factor,) * rank
    if len(given) != rank or not all(0 < f < 2**31 for f in given):
        raise ShapeError(f"interpolate: scale_factor must be one number > 0 or {rank}, got {scale_factor}")
    sizes = tuple(math.floor(float(n) * f) for n, f in zip(spatial, given, strict=True))
    return sizes, [None] * rank if recompute else given


def _axis(kind: str, n: int, out: int, factor: float | None, align: bool) -> AxisMap | None:
    """The map of one axis; None if it is the identity."""
    if kind == "area":
        return AxisMap(kind, n, out) if n != out else None
    if kind.startswith("nearest"):
        return AxisMap(kind, n, out, (1 / factor if factor else n / out,)) if n != out else None
    scale = (n - 1) / max(out - 1, 1) if align else 1 / factor if factor else n / out
    return AxisMap(kind, n, out, (scale, align)) if n != out or scale != 1 else None


@checked
def upsample_nearest(input: Any, size: Sizes | None = None, scale_factor: Factors | None = None) -> Any:
    """`interpolate` by the nearest element."""
    return interpolate(input, size, scale_factor, "nearest")


@checked
def upsample_bilinear(input: Any, size: Sizes | None = None, scale_factor: Factors | None = None) -> Any:
    """`interpolate` of [N, C, H, W], linear along both axes with aligned corners."""
    return interpolate(input, size, scale_factor, "bilinear", True)
