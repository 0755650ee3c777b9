"""Image resizing, and torchvision's functions."""

from __future__ import annotations

from typing import Any

from lamina import ops
from lamina.convert.torch.node import TorchCall, converts

#: upsample_NAME -> interpolate's mode.
MODES = {
    "nearest1d": "nearest", "nearest2d": "nearest", "nearest3d": "nearest", "linear1d": "linear",
    "bilinear2d": "bilinear", "trilinear3d": "trilinear", "bicubic2d": "bicubic",
}  # fmt: skip
EXACT = {f"_upsample_nearest_exact{n}d": "nearest-exact" for n in (1, 2, 3)}
ANTIALIASED = {"_upsample_bilinear2d_aa": "bilinear", "_upsample_bicubic2d_aa": "bicubic"}


@converts(*(f"upsample_{name}" for name in MODES), *EXACT, *ANTIALIASED)
def upsample(call: TorchCall) -> Any:
    """A resized image, by one of ATen's functions of `interpolate`."""
    mode = EXACT.get(call.name) or ANTIALIASED.get(call.name) or MODES[call.name.removeprefix("upsample_")]
    size, factors = call.get("output_size"), call.get("scale_factors")
    options: dict[str, Any] = {"mode": mode, "antialias": call.name in ANTIALIASED}
    options |= {"align_corners": bool(call["align_corners"])} if "align_corners" in call else {}
    where: dict[str, Any] = {"scale_factor": tuple(factors)} if size is None else {"size": tuple(size)}
    return ops.interpolate(call["input"], **where, **options)


@converts("interpolate", "upsample")
def interpolate(call: TorchCall) -> Any:
    """torch.nn.functional.interpolate."""
    names = ("size", "scale_factor", "mode", "align_corners", "recompute_scale_factor", "antialias")
    options = {k: call[k] for k in names if call.get(k) is not None}
    for name in ("size", "scale_factor"):
        if isinstance(options.get(name), list):
            options[name] = tuple(options[name])
    return ops.interpolate(call["input"], **options)


@converts("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(call: TorchCall) -> Any:
    """grid_sample with its modes as numbers."""
    mode: Any = ("bilinear", "nearest", "bicubic")[call["interpolation_mode"]]
    edges: Any = ("zeros", "border", "reflection")[call["padding_mode"]]
    return ops.grid_sample(call["input"], call["grid"], mode, edges, bool(call["align_corners"]))


@converts("affine_grid_generator")
def affine_grid(call: TorchCall) -> Any:
    """affine_grid."""
    return ops.affine_grid(call["theta"], tuple(call["size"]), bool(call["align_corners"]))


@converts("pad", "constant_pad_nd")
def pad(call: TorchCall) -> Any:
    """Padding of the last axes with numbers."""
    value = call.get("value")
    return ops.pad(
        call["input"], list(call["pad"]), call.get("mode", "constant"), 0.0 if value is None else value
    )


@converts(*(f"{kind}_pad{n}d" for kind in ("reflection", "replication") for n in (1, 2, 3)))
def mirrored_pad(call: TorchCall) -> Any:
    """Padding by the image's own values."""
    mode: Any = "reflect" if call.name.startswith("reflection") else "replicate"
    return ops.pad(call["input"], list(call["padding"]), mode)


@converts("roi_align")
def roi_align(call: TorchCall) -> Any:
    """torchvision's: regions of images resampled to one size."""
    size = call.get("output_size") or (call["pooled_height"], call["pooled_width"])
    return ops.roi_align(
        call["input"], call.either("rois", "boxes"), size, call.get("spatial_scale", 1.0),
        call.get("sampling_ratio", -1), bool(call.get("aligned", False)),
    )  # fmt: skip
