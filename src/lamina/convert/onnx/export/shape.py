"""Ops that move elements: shapes, slices, pads."""

from __future__ import annotations

from typing import Any

from lamina.convert.onnx.export.writer import END, OpExport, Written, exports
from lamina.ops.primitives.shape import Concat, Expand, Flip, Pad, Reshape, Slice, Transpose
from lamina.spec import Shape


@exports(Reshape)
def reshape(step: OpExport) -> Written:
    """Reshape; one size that depends on a free axis is inferred (-1), one in its place is the operand's own (0)."""
    shapes = list(zip(*(_shape(n) for n in step.nodes), strict=True))
    given = list(zip(*(n.inputs[0].shape for n in step.nodes), strict=True))
    free = [a for a, sizes in enumerate(shapes) if len(set(sizes)) > 1]
    step.sized = True
    if 0 in step.op.shape:
        return step.add("Reshape", step.inputs[0], step.sizes(lambda n: n.op.shape), allowzero=1)
    kept = [a for a in free if a < len(given) and given[a] == shapes[a]]
    left = [a for a in free if a not in kept] or kept[:1]
    if len(left) > 1:
        return step.add("Reshape", step.inputs[0], step.sizes(lambda n: n.op.shape))
    sizes = [-1 if a in left else 0 if a in kept else n for a, n in enumerate(step.op.shape)]
    return step.reshaped(step.inputs[0], *sizes)


def _shape(node: Any) -> Shape:
    found: Shape = node.op.shape
    return found


def _ends(node: Any, axis: int) -> bool:
    """Whether a slice extends to the end of the axis: its next element would lie outside."""
    return bool(node.op.stop[axis] - 1 + node.op.step[axis] >= node.inputs[0].shape[axis])


@exports(Expand)
def expand(step: OpExport) -> Written:
    """Expand; a size that the operand already has is written as 1."""
    rank = len(step.op.shape)

    def sizes(node: Any) -> list[int]:
        own = (1,) * (rank - node.inputs[0].spec.ndim) + node.inputs[0].shape
        return [1 if a == b else b for a, b in zip(own, node.op.shape, strict=True)]

    return step.add("Expand", step.inputs[0], step.sizes(sizes))


@exports(Transpose)
def transpose(step: OpExport) -> Written:
    """Transpose."""
    if len(step.op.order) < 2:
        return step.inputs[0]
    return step.add("Transpose", step.inputs[0], perm=list(step.op.order))


@exports(Concat)
def concat(step: OpExport) -> Written:
    """Concat."""
    return step.add("Concat", *step.inputs, axis=step.op.axis)


@exports(Flip)
def flip(step: OpExport) -> Written:
    """A slice from the last element to the first."""
    return reversed_axes(step, step.inputs[0], step.op.axes)


def reversed_axes(step: OpExport, name: str, axes: tuple[int, ...]) -> str:
    """A value with its elements in reverse order along axes."""
    if not axes:
        return name
    first, end, back = ([n] * len(axes) for n in (-1, -END, -1))
    return step.add("Slice", name, step.ints(*first), step.ints(*end), step.ints(*axes), step.ints(*back))


@exports(Slice)
def cut(step: OpExport) -> Written:
    """Slice along the sliced axes; an end that is the axis' own is written as unbounded."""
    rank = len(step.op.start)

    def whole(node: Any, axis: int) -> bool:
        op, size = node.op, node.inputs[0].shape[axis]
        return (op.start[axis], op.stop[axis], op.step[axis]) == (0, size, 1)

    axes = [a for a in range(rank) if not all(whole(n, a) for n in step.nodes)]
    if not axes:
        step.sized = True
        return step.inputs[0]
    to_end = {a for a in axes if all(_ends(n, a) for n in step.nodes)}
    start = step.sizes(lambda n: [n.op.start[a] for a in axes])
    stop = step.sizes(lambda n: [END if a in to_end else n.op.stop[a] for a in axes])
    stride = step.sizes(lambda n: [n.op.step[a] for a in axes])
    return step.add("Slice", step.inputs[0], start, stop, step.ints(*axes), stride)


@exports(Pad)
def pad(step: OpExport) -> Written:
    """Pad with a constant."""
    if not any(map(any, step.op.pairs)) and not step.varies(lambda n: n.op):
        return step.inputs[0]
    sides = step.sizes(lambda n: [pair[i] for i in (0, 1) for pair in n.op.pairs])
    return step.add("Pad", step.inputs[0], sides, step.constant(step.op.value))
