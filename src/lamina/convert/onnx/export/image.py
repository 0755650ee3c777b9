"""Images: maps along axes (interpolation, padding, patches), sampling by a grid, regions, boxes."""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina.convert.onnx.export.writer import OpExport, Written, exports
from lamina.ops.primitives.axis_map import AxisMap
from lamina.ops.primitives.boxes import KeepBoxes, RoiAlign
from lamina.ops.primitives.grid_sample import CUBIC, GridSample
from lamina.ops.primitives.map_axes import MapAxes
from lamina.spec import bool_, float32, int64

#: Kinds of maps that are padding, and ONNX's name of the mode.
PADS = {"reflect": "reflect", "replicate": "edge"}
#: Kinds that Resize computes identically.
RESIZES = {"nearest": "nearest", "linear": "linear", "cubic": "cubic"}


@exports(MapAxes)
def map_axes(step: OpExport) -> Written:
    """Resize or Pad if they are equivalent, else a gather or a product along each axis."""
    maps = [(a, step.op.maps[a]) for a in step.op.axes]
    for whole in (_resize, _pad):
        found = whole(step, maps)
        if found is not None:
            return found
    if step.varies(lambda n: n.op):
        if all(_wraps(m) for n in step.nodes for m in _maps(n, maps)):
            return _wrapped(step, [a for a, _ in maps])
        raise step.error("its weights depend on a free axis: give the axis a fixed size")
    name = step.inputs[0]
    for axis, m in sorted(maps, key=lambda item: item[1].target / max(item[1].source, 1)):
        name = _along(step, name, axis, m)
    return name


def _resize(step: OpExport, maps: list[tuple[int, AxisMap]]) -> str | None:
    """Resize of all axes; None if the maps are not of one supported kind."""
    first = maps[0][1]
    kinds = {(m.kind, m.numbers[1:], m.transposed) for _, m in maps}
    if len(kinds) != 1 or first.kind not in RESIZES or first.transposed or step.dtype != float32:
        return None
    if any(m.out == 0 for _, m in maps) or 0 in step.specs[0].shape or maps[0][0] < 2:
        return None
    if first.kind == "cubic" and len(maps) != 2:
        return None
    corners = bool(first.numbers[1:] and first.numbers[1])
    by_size = corners or not any(_scaled(m) for _, m in maps)
    if not by_size and any(int(np.floor(m.size * (1 / m.numbers[0]))) != m.out for _, m in maps):
        return None
    axes = [a for a, _ in maps]
    given: dict[str, Any] = {
        "mode": RESIZES[first.kind],
        "coordinate_transformation_mode": "align_corners" if corners else "half_pixel",
    }
    if first.kind == "nearest":
        given |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    if first.kind == "cubic":
        given["cubic_coeff_a"] = CUBIC
    return _resized(step, axes, maps, by_size, given)


def _scaled(m: AxisMap) -> bool:
    """Whether an axis is resampled at a scale other than its sizes imply."""
    return abs(m.numbers[0] * m.out - m.size) > 1e-6 * m.size


def _resized(step: OpExport, axes: list[int], maps: Any, by_size: bool, given: dict[str, Any]) -> str | None:
    x, rank, corners = step.inputs[0], step.specs[0].ndim, "align_corners" in given.values()
    fixed = not step.varies(lambda n: [n.op.maps[a].numbers[:1] for a in axes])
    if fixed and not corners and (not by_size or step.varies(lambda n: n.op)):
        step.sized = True
        scales = np.ones(rank)
        for a, m in maps:
            scales[a] = 1 / m.numbers[0]
        return step.add("Resize", x, None, step.constant(scales, float32), **given)
    if not by_size or step.varies(lambda n: any(_scaled(n.op.maps[a]) for a in axes) and not corners):
        return None
    return step.add("Resize", x, None, None, step.sizes(lambda n: n.outputs[0].shape), **given)


def _pad(step: OpExport, maps: list[tuple[int, AxisMap]]) -> str | None:
    """Pad of all axes with the image's values; None if the maps are not of one supported kind."""
    kinds = {(m.kind, m.transposed) for _, m in maps}
    if len(kinds) != 1 or maps[0][1].kind not in PADS or maps[0][1].transposed or 0 in step.specs[0].shape:
        return None
    if step.dtype.name not in ("float32", "float64"):
        return None

    def sides(node: Any) -> list[int]:
        found = [
            (0, 0) if m is None else (int(m.numbers[0]), m.out - m.size - int(m.numbers[0]))
            for m in node.op.maps
        ]
        return [pair[i] for i in (0, 1) for pair in found]

    if min(sides(step.nodes[0])) < 0:
        return None
    return step.add("Pad", step.inputs[0], step.sizes(sides), mode=PADS[maps[0][1].kind])


def _maps(node: Any, maps: list[tuple[int, AxisMap]]) -> list[AxisMap]:
    """A node's own maps of the axes of these."""
    return [node.op.maps[a] for a, _ in maps]


def _wraps(m: AxisMap) -> bool:
    """Whether it is circular, and repeats no element more than once before and after the axis."""
    before = int(m.numbers[0]) if m.kind == "circular" else -1
    return not m.transposed and 0 <= before <= m.size and m.out - before <= 2 * m.size


def _wrapped(step: OpExport, axes: list[int]) -> str:
    """Circular padding and rolls along axes of free sizes: the end of each, then its beginning, then more of it."""
    name = step.inputs[0]
    for axis in axes:
        pieces = [_piece(step, name, axis, i) for i in range(3)]
        name = step.add("Concat", *(p for p in pieces if p), axis=axis)
    return name


def _piece(step: OpExport, name: str, axis: int, number: int) -> str | None:
    """The end of an axis that is prepended (0), the axis (1), or its beginning that is appended (2); None if none."""

    def bounds(node: Any) -> tuple[int, int]:
        m = node.op.maps[axis]
        before, n = int(m.numbers[0]), m.size
        return [(n - before, n), (0, min(m.out - before, n)), (0, max(m.out - before - n, 0))][number]

    if all(start == stop for start, stop in map(bounds, step.nodes)):
        return None
    start, stop = step.sizes(lambda n: bounds(n)[:1]), step.sizes(lambda n: bounds(n)[1:])
    return step.add("Slice", name, start, stop, step.ints(axis))


def _along(step: OpExport, name: str, axis: int, m: AxisMap) -> str:
    """One axis: a gather of single elements, or the product with the matrix of weights."""
    table, rank = m.table, step.specs[0].ndim
    if table.longest <= 1 and (table.weight == 1).all():
        at = np.full(table.rows, m.source, np.int64)
        at[table.counts == 1] = table.at
        if (table.counts != 1).any():  # a zero after the last element, for positions outside
            sides = [0] * (2 * rank)
            sides[rank + axis] = 1
            name = step.add("Pad", name, step.ints(*sides), step.constant(0))
        return step.add("Gather", name, step.constant(at, int64), axis=axis)
    matrix = np.zeros((m.source, m.target))
    np.add.at(matrix, (table.at, np.repeat(np.arange(table.rows), table.counts)), table.weight)
    wide = step.dtype.compute  # half types are summed in float32
    name = name if wide == step.dtype else step.cast(name, wide)
    if axis == rank - 1:
        found = step.add("MatMul", name, step.constant(matrix, wide))
    else:  # the axis is swapped with the last but one
        order = list(range(rank))
        order[axis], order[-2] = rank - 2, axis
        moved = name if axis == rank - 2 else step.add("Transpose", name, perm=order)
        found = step.add("MatMul", step.constant(matrix.T, wide), moved)
        found = found if axis == rank - 2 else step.add("Transpose", found, perm=order)
    return found if wide == step.dtype else step.cast(found, step.dtype)


@exports(GridSample)
def grid_sample(step: OpExport) -> Written:
    """GridSample; volumes since opset 20."""
    rank, mode = step.specs[0].ndim - 2, step.op.mode
    if rank == 3 and step.opset < 20:
        raise step.error("GridSample of volumes came with opset 20; write the model with opset=20 or later")
    if step.opset >= 20:
        mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    corners = int(step.op.align_corners)
    return step.add(
        "GridSample", *step.inputs, mode=mode, padding_mode=step.op.padding, align_corners=corners
    )


@exports(RoiAlign)
def roi_align(step: OpExport) -> Written:
    """RoiAlign; the image index is a separate operand there."""
    x, boxes = step.inputs
    number = step.cast(step.add("Gather", boxes, step.constant(0, int64), axis=1), int64)
    corners = step.add("Slice", boxes, step.ints(1), step.ints(5), step.ints(1))
    return step.add(
        "RoiAlign", x, corners, number,
        output_height=step.op.output[0], output_width=step.op.output[1], sampling_ratio=max(step.op.ratio, 0),
        spatial_scale=step.op.scale,
        coordinate_transformation_mode="half_pixel" if step.op.aligned else "output_half_pixel",
    )  # fmt: skip


@exports(KeepBoxes)
def keep_boxes(step: OpExport) -> Written:
    """NonMaxSuppression with decreasing scores; the selected boxes are marked."""
    if step.varies(lambda n: n.inputs[0].shape):
        raise step.error("the number of boxes must be fixed")
    count = step.specs[0].shape[0]
    if not count:
        return step.constant(np.zeros(0), bool_)
    boxes = step.inputs[0] if step.dtype == float32 else step.cast(step.inputs[0], float32)
    boxes = step.add("Unsqueeze", boxes, step.ints(0))
    scores = step.constant(np.arange(count, 0, -1).reshape(1, 1, -1), float32)
    bound = step.constant(np.array([step.op.threshold]), float32)
    chosen = step.add("NonMaxSuppression", boxes, scores, step.ints(count), bound)  # [kept, 3]
    place = step.add("Gather", chosen, step.constant(2, int64), axis=1)
    marks = step.add("Expand", step.constant(1, int64), step.add("Shape", place))
    zeros = step.constant(np.zeros(count), int64)
    return step.cast(step.add("ScatterElements", zeros, place, marks, axis=0), bool_)
