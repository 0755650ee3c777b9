"""Images: maps along axes (interpolation, padding, patches), sampling by a grid."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional

from lamina.convert.torch.functions.step import TorchStep, refuses, torch_dtype, writes
from lamina.ops.primitives.axis_map import AxisMap
from lamina.ops.primitives.boxes import KeepBoxes, RoiAlign
from lamina.ops.primitives.fold import Col2im, Im2col, patch_maps
from lamina.ops.primitives.grid_sample import GridSample
from lamina.ops.primitives.map_axes import MapAxes

#: Kinds of maps that F.interpolate and F.pad compute identically, and their names there, by the number of axes.
RESIZES = {
    "nearest": ("nearest",) * 3,
    "nearest-exact": ("nearest-exact",) * 3,
    "linear": ("linear", "bilinear", "trilinear"),
    "cubic": (None, "bicubic", None),
    "area": ("area",) * 3,
}
PADS = ("reflect", "replicate", "circular")
_ELSEWHERE = "PyTorch itself has no function for it (torchvision.ops has)"

refuses({RoiAlign: _ELSEWHERE, KeepBoxes: _ELSEWHERE})


@writes(MapAxes)
def map_axes(step: TorchStep, x: Any) -> Any:
    """F.interpolate or F.pad if they are equivalent, else a gather or a product along each axis."""
    whole: Any = step.nodes[0].op
    maps = [(a, whole.maps[a]) for a in whole.axes]
    for write in (_resized, _padded):
        found = write(step, x, maps)
        if found is not None:
            return found
    if step.varies(lambda n: n.op):
        raise step.error("its weights depend on a free axis: give the axis a fixed size")
    for axis, m in sorted(maps, key=lambda item: item[1].target / max(item[1].source, 1)):
        x = _along(step, x, axis, m)
    return x


def _one_kind(step: TorchStep, maps: list[tuple[int, AxisMap]]) -> str | None:
    """The kind of maps of all axes after the first two; None if there are others."""
    kinds = {m.kind for _, m in maps}
    rank = step.specs[0].ndim - 2
    behind = [a for a, _ in maps] == list(range(2, 2 + rank)) and 1 <= rank <= 3
    plain = step.dtype.name in ("float32", "float64") and not any(m.transposed for _, m in maps)
    empty = 0 in step.specs[0].shape or any(m.out == 0 for _, m in maps)
    return kinds.pop() if len(kinds) == 1 and behind and plain and not empty else None


def _by_size(m: AxisMap) -> bool:
    """Whether an axis is resampled at the scale that its sizes imply."""
    return not m.numbers or abs(m.numbers[0] * m.out - m.size) <= 1e-6 * m.size


def _resized(step: TorchStep, x: Any, maps: list[tuple[int, AxisMap]]) -> Any:
    kind = _one_kind(step, maps)
    ops: list[Any] = [n.op for n in step.nodes]
    every = [op.maps[a] for op in ops for a, _ in maps]
    mode = RESIZES.get(kind or "", (None,) * 3)[len(maps) - 1]
    corners = [bool(m.numbers[1]) for m in every if len(m.numbers) > 1]
    if mode is None or len(set(corners)) > 1 or not (any(corners) or all(map(_by_size, every))):
        return None
    size = step.sizes(lambda n: tuple(n.op.maps[a].out for a, _ in maps))
    return functional.interpolate(x, size=size, mode=mode, align_corners=corners[0] if corners else None)


def _padded(step: TorchStep, x: Any, maps: list[tuple[int, AxisMap]]) -> Any:
    kind = _one_kind(step, maps)

    def sides(node: Any) -> tuple[int, ...]:
        found = [(int(m.numbers[0]), m.out - m.size - int(m.numbers[0])) for m in node.op.maps if m]
        return tuple(side for pair in reversed(found) for side in pair)

    if kind not in PADS or any(min(sides(n)) < 0 or not _reaches(n, kind, sides(n)) for n in step.nodes):
        return None
    return functional.pad(x, list(step.sizes(sides)), mode=kind)


def _reaches(node: Any, kind: str, sides: tuple[int, ...]) -> bool:
    """Whether F.pad supports the widths: reflection stays within the axis, circular padding wraps at most once."""
    sizes = list(reversed(node.inputs[0].shape[2:]))
    most = {"reflect": -1, "circular": 0}
    return kind not in most or all(s <= sizes[i // 2] + most[kind] for i, s in enumerate(sides))


def _along(step: TorchStep, x: Any, axis: int, m: AxisMap) -> Any:
    """One axis: a gather of single elements, or the product with the matrix of weights."""
    table = m.table
    if table.longest <= 1 and (table.weight == 1).all():
        at = np.full(table.rows, m.source, np.int64)
        at[table.counts == 1] = table.at
        if (table.counts != 1).any():  # a zero after the last element, for positions outside
            x = functional.pad(x, [0, 0] * (x.ndim - 1 - axis) + [0, 1])
        return torch.index_select(x, axis, step.constant(at))
    matrix = np.zeros((m.source, m.target))
    np.add.at(matrix, (table.at, np.repeat(np.arange(table.rows), table.counts)), table.weight)
    wide = torch_dtype(step.dtype.compute)  # half types are summed in float32
    weights = step.constant(matrix.astype(step.dtype.compute.numpy))
    found = torch.matmul(x.to(wide).movedim(axis, -1), weights).movedim(-1, axis)
    return found.to(torch_dtype(step.dtype))


@writes(GridSample)
def grid_sample(step: TorchStep, x: Any, grid: Any) -> Any:
    """F.grid_sample."""
    op = step.op
    return functional.grid_sample(
        x, grid, mode=op.mode, padding_mode=op.padding, align_corners=op.align_corners
    )


@writes(Im2col)
def im2col(step: TorchStep, x: Any) -> Any:
    """F.unfold of the padded image; for volumes and numbers that are not floats a gather along each axis."""
    op, rank = step.op, step.specs[0].ndim - 2
    if rank == 3 or not step.dtype.is_float:
        return _columns_by_axis(step, x)
    x = functional.pad(x, [side for pair in reversed(op.window.padding) for side in pair])
    x = x.unsqueeze(2) if rank == 1 else x
    return functional.unfold(x, **_as_image(op, rank))


@writes(Col2im)
def col2im(step: TorchStep, x: Any) -> Any:
    """The inner part of F.fold's padded image; for volumes a product along each axis."""
    op, rank = step.op, len(step.results[0].shape) - 2
    if rank == 3:
        return _image_by_axis(step, x)
    pairs = list(zip(op.size, op.window.padding, strict=True))
    y = functional.fold(
        x, (1,) * (2 - rank) + tuple(n + lo + hi for n, (lo, hi) in pairs), **_as_image(op, rank)
    )
    y = y.squeeze(2) if rank == 1 else y
    for axis, (n, (lo, _)) in enumerate(pairs, 2):
        y = y.narrow(axis, lo, n)
    return y


def _as_image(op: Any, rank: int) -> dict[str, Any]:
    """The arguments of F.unfold and F.fold, for signals those of images of one row."""
    given = {"kernel_size": op.kernel, "dilation": op.window.dilation, "stride": op.window.stride}
    return {name: (1,) * (2 - rank) + tuple(values) for name, values in given.items()}


def _columns_by_axis(step: TorchStep, x: Any) -> Any:
    op, spec, rank = _fixed(step), step.specs[0], step.specs[0].ndim - 2
    spatial = op.window.output(spec.shape[2:], op.kernel)
    for axis, m in enumerate(patch_maps(op.window, op.kernel, spec.shape[2:], spatial), 2):
        x = _along(step, x, axis, m)
    pairs = [size for pair in zip(op.kernel, spatial, strict=True) for size in pair]
    order = (0, 1, *range(2, 2 + 2 * rank, 2), *range(3, 3 + 2 * rank, 2))
    return x.reshape((*spec.shape[:2], *pairs)).permute(order).reshape(step.results[0].shape)


def _image_by_axis(step: TorchStep, x: Any) -> Any:
    op, (n, c, *sizes) = _fixed(step), step.results[0].shape
    rank, spatial = len(sizes), op.window.output(tuple(sizes), op.kernel)
    order = (0, 1, *(axis for a in range(rank) for axis in (2 + a, 2 + rank + a)))
    joined = (k * o for k, o in zip(op.kernel, spatial, strict=True))
    x = x.reshape((n, c, *op.kernel, *spatial)).permute(order).reshape((n, c, *joined))
    for axis, m in enumerate(patch_maps(op.window, op.kernel, tuple(sizes), spatial), 2):
        x = _along(step, x, axis, m.adjoint)
    return x


def _fixed(step: TorchStep) -> Any:
    """The op, whose tables need all sizes. Raises TorchConversionError where one is free."""
    if step.varies(lambda n: (n.op, n.inputs[0].spec)):
        raise step.error("its tables depend on a free axis: give the axis a fixed size")
    return step.nodes[0].op
