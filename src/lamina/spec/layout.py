"""Layouts: the memory position of element (i0, i1, …) of a tensor.

A layout is a stride per axis, in elements, and optionally inner blocks as oneDNN uses them:
with blocks ((1, 16),) axis 1 is split into blocks of 16, `strides[1]` steps over a whole block and the
16 elements of a block are contiguous, innermost. Channels that do not fill the last block are padding (zeros).

Dense layouts have a tag in oneDNN's notation: axes a, b, c, … from outermost to innermost, capital where
blocked, then the blocks: "abcd" is NCHW, "acdb" is NHWC, "aBcd16b" is NCHW in blocks of 16 channels.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np

from lamina.spec.errors import ShapeError
from lamina.spec.shape import Shape, element_count

Blocks = tuple[tuple[int, int], ...]  # (axis, size), from outer to inner
_TAG = re.compile(r"([a-zA-Z]*)((?:\d+[a-z])*)")


@dataclass(frozen=True)
class Layout:
    """Strides in elements, one per axis, and inner blocks (axis, size) from outer to inner."""

    strides: tuple[int, ...]
    blocks: Blocks = ()

    @property
    def is_blocked(self) -> bool:
        """Whether some axis is split into blocks."""
        return bool(self.blocks)


def contiguous(shape: Shape) -> Layout:
    """Row-major: the last axis is innermost."""
    return dense(shape, tuple(range(len(shape))))


def channels_last(shape: Shape) -> Layout:
    """Axis 1 innermost: NHWC for a tensor of shape (N, C, H, W)."""
    rank = len(shape)
    return contiguous(shape) if rank < 3 else dense(shape, (0, *range(2, rank), 1))


@lru_cache(maxsize=4096)
def dense(shape: Shape, order: tuple[int, ...], blocks: Blocks = ()) -> Layout:
    """Dense: axes from outermost to innermost by `order`, then the blocks."""
    outer = outer_shape(shape, blocks)
    strides = [0] * len(shape)
    step = element_count(size for _, size in blocks)
    for axis in reversed(order):
        strides[axis] = step
        step *= max(outer[axis], 1)
    return Layout(tuple(strides), blocks)


def block_sizes(rank: int, blocks: Blocks) -> Shape:
    """Elements per block along each axis: 1 where an axis is not blocked."""
    sizes = [1] * rank
    for axis, size in blocks:
        sizes[axis] *= size
    return tuple(sizes)


def outer_shape(shape: Shape, blocks: Blocks) -> Shape:
    """The number of blocks along each axis, including a partly filled last one."""
    if not blocks:
        return shape
    return tuple(-(-s // b) for s, b in zip(shape, block_sizes(len(shape), blocks), strict=True))


@lru_cache(maxsize=4096)
def from_tag(tag: str, shape: Shape) -> Layout:
    """The dense layout that a tag such as "acdb" or "aBcd16b" names. Raises ShapeError."""
    match = _TAG.fullmatch(tag)
    letters = match.group(1) if match else ""
    order = tuple(ord(c) - ord("a") for c in letters.lower())
    if match is None or sorted(order) != list(range(len(shape))):
        raise ShapeError(f"layout tag {tag!r} does not name the {len(shape)} axes of shape {shape}")
    blocks = tuple((ord(c) - ord("a"), int(n)) for n, c in re.findall(r"(\d+)([a-z])", match.group(2)))
    if {axis for axis, _ in blocks} != {a for a, c in zip(order, letters, strict=True) if c.isupper()}:
        raise ShapeError(f"layout tag {tag!r}: the capital letters must be the blocked axes")
    return dense(shape, order, blocks)


@lru_cache(maxsize=4096)
def tag(layout: Layout, shape: Shape) -> str | None:
    """The tag of a dense layout, or None when there are gaps, overlaps or broadcast (0) strides.

    The position of axes of size 1 is arbitrary; they are named where row-major order would put them, so that a layout
    that is contiguous or channels-last up to such axes has the plain tag.
    """
    order = _order(layout, shape)
    if order is None:
        return None
    blocked = {axis for axis, _ in layout.blocks}
    letters = "".join(chr(ord("A" if axis in blocked else "a") + axis) for axis in order)
    return letters + "".join(f"{size}{chr(ord('a') + axis)}" for axis, size in layout.blocks)


@lru_cache(maxsize=4096)
def plainest(layout: Layout, shape: Shape) -> Layout:
    """The layout of the same memory in which axes of size 1 have the strides of the tag's canonical layout."""
    order = _order(layout, shape)
    return layout if order is None else dense(shape, order, layout.blocks)


def _order(layout: Layout, shape: Shape) -> tuple[int, ...] | None:
    """The axes of a dense layout from outermost to innermost, as in its tag; None if it is not dense."""
    outer = outer_shape(shape, layout.blocks)
    for order in _orders(layout, outer):
        fits = dense(shape, order, layout.blocks).strides
        if layout.strides == fits or all(
            s == f or n == 1 for s, f, n in zip(layout.strides, fits, outer, strict=True)
        ):
            return order
    return None


def _orders(layout: Layout, outer: Shape) -> Iterator[tuple[int, ...]]:
    """The candidate orders of a dense layout: row-major, channels-last, and by decreasing stride. In the last an axis
    of size 1 comes right after the one before it, whatever its stride, so that layouts of the same memory have one
    tag.
    """
    rank = len(outer)
    yield tuple(range(rank))
    if rank > 2:
        yield (0, *range(2, rank), 1)
    by_stride = sorted((a for a, n in enumerate(outer) if n != 1), key=lambda a: (-layout.strides[a], a))
    for axis in (a for a, n in enumerate(outer) if n == 1):
        by_stride.insert(by_stride.index(axis - 1) + 1 if axis else 0, axis)
    yield tuple(by_stride)


def reshaped_strides(before: Shape, strides: tuple[int, ...], after: Shape) -> tuple[int, ...] | None:
    """The strides in another shape; None where adjacent elements of an axis would not be at equal distances."""
    if before == after or 0 in before:
        return strides if before == after else (1,) * len(after)
    runs: list[tuple[int, int]] = []  # mergeable axes: number of elements, and stride
    for n, s in zip(before, strides, strict=True):
        if n > 1 and runs and runs[-1][1] == n * s:
            runs[-1] = runs[-1][0] * n, s
        elif n > 1:
            runs.append((n, s))
    found: list[int] = []
    count = distance = 1
    for n in reversed(after):  # from the innermost axis on, each within one run
        if n > 1 and count == 1:
            count, distance = runs.pop()
        if n > 1 and count % n:
            return None
        found.append(distance)
        count, distance = (count // n, distance * n) if n > 1 else (count, distance)
    return tuple(reversed(found))


@lru_cache(maxsize=4096)
def reshaped(layout: Layout, before: Shape, after: Shape) -> tuple[Layout, Layout]:
    """Two layouts of the same memory, one for each shape, so that the reshape is a view. The first is the given one
    wherever a view of it exists. Elsewhere the axes of each split or joined group become row-major and adjacent, and
    the groups keep their order in memory, so that a copy changes the least.
    """
    if 0 in before:
        return contiguous(before), contiguous(after)
    if not layout.blocks:
        strides = reshaped_strides(before, layout.strides, after)
        if strides is not None:
            return layout, plainest(Layout(strides), after)
    groups = _axis_groups(before, after)
    lying = None if layout.blocks else _lying_order(layout, before, [old for old, _ in groups])
    order = lying if lying is not None else list(range(len(groups)))
    lies, becomes = (tuple(a for g in order for a in groups[g][side]) for side in (0, 1))
    return plainest(dense(before, lies), before), plainest(dense(after, becomes), after)


def _lying_order(layout: Layout, shape: Shape, groups: Sequence[Sequence[int]]) -> list[int] | None:
    """The groups of axes in memory order, outermost first; None if axes of one group enclose those of another."""
    of = {axis: g for g, axes in enumerate(groups) for axis in axes if shape[axis] > 1}
    axes = sorted(of, key=lambda axis: (-layout.strides[axis], axis))
    runs = [g for g, _ in groupby(of[axis] for axis in axes)]
    if len(runs) != len(set(runs)):
        return None
    return [*(g for g in range(len(groups)) if g not in runs), *runs]


def _axis_groups(old: Shape, new: Shape) -> list[tuple[list[int], list[int]]]:
    """The smallest runs of axes of two shapes with equal numbers of elements."""
    found: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        group: tuple[list[int], list[int]] = ([], [])
        a = b = 1
        while a != b or not (group[0] or group[1]):
            if j == len(new) or (i < len(old) and a <= b):
                a, i = a * old[i], i + 1
                group[0].append(i - 1)
            else:
                b, j = b * new[j], j + 1
                group[1].append(j - 1)
        found.append(group)
    return found


def same_memory(a: Layout, b: Layout, shape: Shape) -> bool:
    """Whether both put every element of a shape at the same address."""
    if a is b or a == b:
        return True
    if a.blocks != b.blocks:
        return False
    outer = outer_shape(shape, a.blocks)
    return all(n == 1 or s == t for n, s, t in zip(outer, a.strides, b.strides, strict=True))


def overlaps(layout: Layout, shape: Shape) -> bool:
    """Whether several elements may share one address: broadcast (stride 0), sliding windows.

    Interleaving strides without common addresses count too: deciding that is hard (Diophantine equations).
    """
    if 0 in shape:
        return False
    outer = outer_shape(shape, layout.blocks)
    reach = element_count(size for _, size in layout.blocks) - 1  # extent of the axes with smaller strides
    for stride, extent in sorted(zip(layout.strides, outer, strict=True)):
        if extent > 1 and stride <= reach:
            return True
        reach += (extent - 1) * stride
    return False


def physical_elements(layout: Layout, shape: Shape) -> int:
    """The extent of a layout in elements, from first to last, padding included; 0 for an empty shape."""
    if 0 in shape:
        return 0
    outer = outer_shape(shape, layout.blocks)
    reach = sum((n - 1) * s for n, s in zip(outer, layout.strides, strict=True))
    return element_count((reach + element_count(size for _, size in layout.blocks),), "layout")


def view(flat: np.ndarray[Any, Any], layout: Layout, shape: Shape) -> np.ndarray[Any, Any]:
    """The elements of a flat buffer as an array: outer axes, then one axis per block. Shares memory."""
    sizes = tuple(size for _, size in layout.blocks)
    inner = [1] * len(sizes)
    for i in range(len(sizes) - 2, -1, -1):
        inner[i] = inner[i + 1] * sizes[i + 1]
    strides = tuple(s * flat.itemsize for s in (*layout.strides, *inner))
    full = (*outer_shape(shape, layout.blocks), *sizes)
    return np.lib.stride_tricks.as_strided(flat, full, strides)


@lru_cache(maxsize=4096)
def refined(shape: Shape, layouts: tuple[Layout, ...]) -> tuple[Shape, tuple[tuple[int, ...], ...]] | None:
    """The shape with its axes split where blocks of some layout begin, and each layout's strides along the resulting
    axes: [N, 64, H, W] in blocks of 16 channels beside row-major is [N, 4, 16, H, W].

    None where some blocks are not full, or those of two layouts (of 16 and 24, say) are not aligned.
    """
    sizes, strides = list[int](), [list[int]() for _ in layouts]
    for axis, count in enumerate(shape):
        steps = [_steps(layout, axis) for layout in layouts]
        cuts = sorted({width for own in steps for width in own})
        if any(b % a for a, b in zip(cuts, [*cuts[1:], count], strict=True)):
            return None
        parts = [(b // a, a) for a, b in zip(cuts, [*cuts[1:], count], strict=True)][::-1]
        sizes += [size for size, _ in parts]
        for own, row in zip(steps, strides, strict=True):
            for _, width in parts:
                within = max(w for w in own if w <= width)
                row.append(own[within] * (width // within))
    return tuple(sizes), tuple(tuple(row) for row in strides)


def _steps(layout: Layout, axis: int) -> dict[int, int]:
    """Block extents along an axis, from the innermost on -> the stride between blocks."""
    steps, width, stride = dict[int, int](), 1, 1
    for blocked, size in reversed(layout.blocks):
        if blocked == axis:
            steps[width] = stride
            width *= size
        stride *= size
    steps[width] = layout.strides[axis]
    return steps


def unpack(flat: np.ndarray[Any, Any], layout: Layout, shape: Shape) -> np.ndarray[Any, Any]:
    """A flat buffer in `layout` as an ordinary array of `shape`: a view if unblocked, else a copy."""
    if not layout.blocks:
        return view(flat, layout, shape)
    blocks = view(flat, layout, shape)
    rank = len(shape)
    axes = [a for axis in range(rank) for a in (axis, *_block_axes(layout, axis, rank))]
    padded = tuple(o * b for o, b in zip(blocks.shape[:rank], block_sizes(rank, layout.blocks), strict=True))
    plain = blocks.transpose(axes).reshape(padded)
    return np.ascontiguousarray(plain[tuple(slice(0, s) for s in shape)])


def pack(array: np.ndarray[Any, Any], layout: Layout) -> np.ndarray[Any, Any]:
    """A flat buffer that holds `array` in `layout`; padding is zero."""
    flat = np.zeros(physical_elements(layout, array.shape), array.dtype)
    if not layout.blocks:
        view(flat, layout, array.shape)[...] = array
        return flat
    rank = array.ndim
    outer, sizes = outer_shape(array.shape, layout.blocks), block_sizes(rank, layout.blocks)
    pad = [(0, o * b - s) for o, b, s in zip(outer, sizes, array.shape, strict=True)]
    split: list[int] = []
    for axis in range(rank):
        split += [outer[axis], *(size for a, size in layout.blocks if a == axis)]
    axes = [a for axis in range(rank) for a in (axis, *_block_axes(layout, axis, rank))]
    parts = np.pad(array, pad).reshape(split).transpose(np.argsort(axes))
    view(flat, layout, array.shape)[...] = parts
    return flat


def _block_axes(layout: Layout, axis: int, rank: int) -> tuple[int, ...]:
    return tuple(rank + i for i, (a, _) in enumerate(layout.blocks) if a == axis)
