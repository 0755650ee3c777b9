"""The loops over the elements of operands: axes that lie alike are one, blocks are axes of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from lamina.backends import NoKernel
from lamina.spec import Layout, Shape, Spec, contiguous
from lamina.spec.layout import block_sizes, outer_shape, physical_elements

#: Steps of the outermost loop that are enough for the threads of any machine.
_SHARED = 64
#: Elements of a run from which on copies of runs are faster than what oneDNN generates.
_RUN = 8


@dataclass(frozen=True)
class LoopSpace:
    """sizes of nested loops, outermost first; strides[operand][loop] in elements, 0 where an operand is repeated."""

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]

    @property
    def count(self) -> int:
        """Steps in all."""
        return prod(self.sizes)

    @property
    def inner(self) -> int:
        """How many of the innermost loops a step of the outermost does: two where enough steps are left to share."""
        return 2 if len(self.sizes) > 2 and prod(self.sizes[:-2]) >= _SHARED else min(len(self.sizes) - 1, 1)


def common_layout(shape: Shape, specs: Sequence[Spec]) -> Layout:
    """That of the first operand of this shape that lies without gaps and padding, else row-major."""
    for spec in specs:
        known = spec.layout is not None and spec.tag is not None and spec.shape == shape
        if known and physical_elements(spec.physical, shape) == spec.numel:
            return spec.physical
    return contiguous(shape)


def operand(spec: Spec, shape: Shape, layout: Layout) -> Spec:
    """The spec as a kernel over `shape` reads it: in the common layout where it is dense, else where it lies.

    So is a dense one in another order whose neighbours are neighbours there, too.
    """
    wanted = Spec(shape, spec.dtype, layout)
    if spec.shape == shape and (spec.layout is None or spec.tag is not None):
        is_read = spec.layout is not None and spec.numel and has_runs(shape, [spec, wanted])
        return spec if is_read else wanted
    return spec.open.fixed if spec.physical.is_blocked else spec.fixed


def space(shape: Shape, layout: Layout, operands: Sequence[Spec]) -> LoopSpace:
    """The loops over `shape` in the order in which `layout` lies in memory; operands are broadcast to it."""
    sizes = (*outer_shape(shape, layout.blocks), *(size for _, size in layout.blocks))
    own = _strides(Spec(shape, operands[0].dtype, layout), shape, layout)
    rows = [_strides(spec, shape, layout) for spec in operands]
    order = sorted(range(len(sizes)), key=lambda a: (-own[a], a))
    return _collapsed([sizes[a] for a in order], [[row[a] for a in order] for row in rows])


def has_runs(shape: Shape, operands: Sequence[Spec]) -> bool:
    """Whether neighbours in the last operand, over `shape`, are neighbours in all the others, or one that repeats."""
    if any(s.physical.is_blocked for s in operands):
        return False
    nested = space(shape, operands[-1].physical, operands)
    return all(row[-1] in (0, 1) for row in nested.strides) and nested.sizes[-1] >= _RUN


def _strides(spec: Spec, shape: Shape, layout: Layout) -> tuple[int, ...]:
    """An operand's stride along each axis of the shape, and along each block of the layout."""
    own, lead = spec.physical, len(shape) - spec.ndim
    if own.blocks and (own.blocks != layout.blocks or lead):
        raise NoKernel(f"cpu: {spec} is not in blocks as {layout} is")
    blocks = block_sizes(len(shape), layout.blocks)
    within = _within(own, layout, lead, spec.shape)
    outer = []
    for axis in range(len(shape)):
        repeated = axis < lead or spec.shape[axis - lead] == 1
        stride = 0 if repeated else own.strides[axis - lead]
        outer.append(stride if own.blocks else stride * blocks[axis])
    return (*outer, *within)


def _within(own: Layout, layout: Layout, lead: int, shape: Shape) -> list[int]:
    """The strides within blocks: of an operand in blocks those of the layout, else multiples of the axis' own."""
    found, after = list[int](), dict[int, int]()
    step = 1
    for axis, size in reversed(layout.blocks):
        repeated = axis < lead or shape[axis - lead] == 1
        plain = 0 if repeated else own.strides[axis - lead] * after.get(axis, 1)
        found.insert(0, step if own.blocks else plain)
        after[axis] = after.get(axis, 1) * size
        step *= size
    return found


def _collapsed(sizes: Sequence[int], strides: Sequence[Sequence[int]]) -> LoopSpace:
    """Axes of size 1 are gone, neighbours that every operand steps over alike are one."""
    kept = [a for a, n in enumerate(sizes) if n != 1]
    merged: list[int] = []
    rows: list[list[int]] = [[] for _ in strides]
    for a in kept:
        alike = merged and all(
            row[-1] == given[a] * sizes[a] for row, given in zip(rows, strides, strict=True)
        )
        if alike:
            merged[-1] *= sizes[a]
            for row, given in zip(rows, strides, strict=True):
                row[-1] = given[a]
        else:
            merged.append(sizes[a])
            for row, given in zip(rows, strides, strict=True):
                row.append(given[a])
    return LoopSpace(tuple(merged) or (1,), tuple(tuple(row) or (0,) for row in rows))
