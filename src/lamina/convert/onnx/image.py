"""Image resizing and sampling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lamina import ops
from lamina.convert.onnx.node import Array, OnnxNode, as_tensor, converts, require_bounded
from lamina.spec import float32


@dataclass(frozen=True)
class ResizedAxis:
    """The resizing of one axis, of which the region start … end is read: `size` elements to `out`, by a factor
    `scale`.
    """

    size: int
    out: int
    scale: float
    start: float = 0.0
    end: float = 1.0

    def places(self, transform: str, kind: type[Any] = np.float64) -> Array:
        """The source position of each element of the result, as a real number computed in a NumPy type."""
        n, out, scale = kind(self.size), self.out, kind(self.scale)
        i: Array = np.arange(out, dtype=kind)
        apart: Array = i / scale
        centred: Array = (i + kind(0.5)) / scale - kind(0.5)
        if transform == "half_pixel":
            return centred
        if transform == "half_pixel_symmetric":
            # The result is centered on the axis though its size was rounded down.
            shift: float = n / 2 * (1 - out / (scale * n))
            return centred + shift
        if transform == "pytorch_half_pixel":
            return centred if out > 1 else np.zeros(out)
        if transform == "align_corners":
            # The result's size before rounding down is used.
            wide = scale * n
            return i * (n - 1) / (wide - 1) if out > 1 else np.zeros(out)
        if transform == "asymmetric":
            return apart
        if transform == "tf_half_pixel_for_nn":  # opset 11 and 12
            halved: Array = (i + kind(0.5)) / scale
            return halved
        if transform == "tf_crop_and_resize":
            first, last = self.start * (n - 1), self.end * (n - 1)
            return first + i * (last - first) / (out - 1) if out > 1 else np.full(out, 0.5 * (first + last))
        raise ValueError(f"coordinate_transformation_mode {transform!r} is unknown")


@converts("Resize", "Upsample", known=(1, 2, 3))
def resize(node: OnnxNode) -> Any:
    """Each element of the result is a weighted sum of the elements around its source position, axis by axis."""
    x = node.input(0)
    transform = node.get("coordinate_transformation_mode", "half_pixel" if node.opset >= 11 else "asymmetric")
    outside = None
    for place, axis in _axes(node, x).items():
        require_bounded(str(node), 8 * axis.out * axis.size)
        # In float32, as in other runtimes: positions between two elements are rounded as there.
        at = axis.places(transform, np.float32 if node.get("mode", "nearest") == "nearest" else np.float64)
        weights = _weights(node, at, axis)
        x = _applied(x, place, weights)
        if transform == "tf_crop_and_resize":
            beyond = ((at < 0) | (at > axis.size - 1)).reshape((-1,) + (1,) * (x.ndim - 1 - place))
            outside = beyond if outside is None else outside | beyond
    if outside is None or not outside.any():
        return ops.identity(x)
    return ops.where(as_tensor(outside), node.get("extrapolation_value", 0.0), x)


def _axes(node: OnnxNode, x: Any) -> dict[int, ResizedAxis]:
    """The axes that change, by number."""
    old = node.opset < 11
    region = None if old else node.known_or_none(1)
    scales = (
        node.known_or_none(1 if old else 2)
        if "scales" not in node.attributes
        else np.array(node.get("scales"))
    )
    sizes = None if old else node.integers(3)
    axes = [a % x.ndim for a in node.get("axes", range(x.ndim))]
    n = np.array([x.shape[a] for a in axes])
    if region is None or not region.size:
        region = np.repeat([0.0, 1.0], len(axes))
    start, end = region[: len(axes)], region[len(axes) :]
    if sizes is None:
        if scales is None or not scales.size:
            raise node.error("needs scales or sizes")
        # In float32, as onnxruntime multiplies: 6 elements to the scale 7/6 are 7, not 6.99….
        # Whole axes count, even if cropped, as in ONNX's shape inference, its reference and onnxruntime.
        single = np.float32
        out = np.floor(n.astype(single) * scales.astype(single)).astype(int)
        scales = scales.astype(np.float64)
    else:
        out, scales = _kept_aspect(node, n, np.array(sizes))
    found = [ResizedAxis(int(a), int(b), float(s), float(lo), float(hi))
             for a, b, s, lo, hi in zip(n, out, scales, start, end, strict=True)]  # fmt: skip
    return {
        a: f
        for a, f in zip(axes, found, strict=True)
        if f.size != f.out or f.scale != 1 or f.start or f.end != 1
    }


def _kept_aspect(node: OnnxNode, n: Array, sizes: Array) -> tuple[Array, Array]:
    """(sizes, scales): as requested, or so that both axes keep one scale."""
    policy = node.get("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return sizes, sizes / n
    if policy not in ("not_larger", "not_smaller"):
        raise node.error(
            f"keep_aspect_ratio_policy must be stretch, not_larger or not_smaller, got {policy!r}"
        )
    scale = (min if policy == "not_larger" else max)(sizes / n)
    return np.floor(scale * n + 0.5).astype(int), np.full(len(n), scale)


def _weights(node: OnnxNode, at: Array, axis: ResizedAxis) -> Array:
    """[out, size]: the weight of each element of the axis."""
    mode = node.get("mode", "nearest")
    if mode == "nearest":
        return _nearest(node, at, axis.size)
    stretch = max(1.0, 1 / axis.scale) if node.get("antialias", 0) else 1.0
    if mode == "cubic":
        reach, kernel = 2.0, lambda d: _cubic(d, node.get("cubic_coeff_a", -0.75))
    elif mode == "linear":
        reach, kernel = 1.0, lambda d: np.maximum(0, 1 - np.abs(d))
    else:
        raise node.error(f"mode must be nearest, linear or cubic, got {mode!r}")
    return _gathered(at, axis.size, kernel, reach * stretch, stretch, bool(node.get("exclude_outside", 0)))


def _gathered(at: Array, size: int, kernel: Any, reach: float, stretch: float, exclude: bool) -> Array:
    """The kernel's weights around each position; outside positions are clamped to the nearest element, or weigh 0."""
    found = np.zeros((len(at), size))
    for row, place in zip(found, at, strict=True):
        taps = np.arange(int(np.floor(place - reach)) + 1, int(np.ceil(place + reach)) + 1)
        weight = kernel((taps - place) / stretch)
        inside = (taps >= 0) & (taps < size)
        weight = np.where(inside | (not exclude), weight, 0.0)
        np.add.at(row, np.clip(taps, 0, size - 1), weight / weight.sum())
    return found


def _cubic(d: Array, a: float) -> Array:
    """Keys' kernel."""
    d = np.abs(d)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((d - 5) * d + 8) * d * a - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _nearest(node: OnnxNode, at: Array, size: int) -> Array:
    """A one at the element nearest to each position."""
    rounding: dict[str, Callable[[Array], Array]] = {
        "round_prefer_floor": lambda p: np.ceil(p - 0.5), "round_prefer_ceil": lambda p: np.floor(p + 0.5),
        "floor": np.floor, "ceil": np.ceil,
    }  # fmt: skip
    mode = node.get("nearest_mode", "round_prefer_floor" if node.opset >= 11 else "floor")
    if mode not in rounding:
        raise node.error(f"nearest_mode must be one of {', '.join(rounding)}, got {mode!r}")
    chosen = np.clip(rounding[mode](at).astype(int), 0, size - 1)
    weights: Array = np.eye(size)[chosen]
    return weights


def _applied(x: Any, axis: int, weights: Array) -> Any:
    """x with one axis mapped: a gather if each row selects a single element, else a product."""
    if ((weights == 0) | (weights == 1)).all() and (weights.sum(1) == 1).all():
        return ops.index_select(x, axis, as_tensor(weights.argmax(1)))
    wide = x if x.dtype.kind == "f" else ops.cast(x, float32)
    last = ops.transpose(wide, axis, x.ndim - 1)
    found = ops.transpose(ops.matmul(last, as_tensor(weights.T, wide.dtype)), axis, x.ndim - 1)
    return ops.cast(found if wide is x else ops.round(found), x.dtype)


@converts("GridSample")
def grid_sample(node: OnnxNode) -> Any:
    """The input sampled at a grid's positions, between -1 and 1."""
    x, grid = node.input(0), node.input(1)
    modes: dict[str, Literal["bilinear", "nearest", "bicubic"]] = {
        "linear": "bilinear", "cubic": "bicubic", "bilinear": "bilinear", "bicubic": "bicubic", "nearest": "nearest"
    }  # fmt: skip
    mode = node.get("mode", "linear")
    if mode not in modes:
        raise node.error(f"mode must be one of {', '.join(modes)}, got {mode!r}")
    fill = node.get("padding_mode", "zeros")
    return ops.grid_sample(x, ops.cast(grid, x.dtype), modes[mode], fill, bool(node.get("align_corners", 0)))


@converts("AffineGrid", known=(1,))
def affine_grid(node: OnnxNode) -> Any:
    """The positions of an affine map of an image (or a volume) of the given size."""
    return ops.affine_grid(node.input(0), node.integers(1) or (), bool(node.get("align_corners", 0)))
