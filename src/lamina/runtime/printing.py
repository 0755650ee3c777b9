"""Memory of any device as text, as NumPy prints arrays: of a large array only the ends of each axis are fetched."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lamina.runtime.arrays import borrow, is_array, numpy_dtype, row_major, share
from lamina.runtime.memory import Buffer, host_array
from lamina.runtime.transfer import copy_2d

Array = np.ndarray[Any, Any]
_THRESHOLD = 1000


def show(
    memory: Any,
    shape: Sequence[int] | None = None,
    dtype: str | None = None,
    strides: Sequence[int] | None = None,
    *,
    edge: int = 3,
    threshold: int = _THRESHOLD,
    precision: int = 4,
) -> str:
    """The values of `memory`, and below them its type, shape, strides and device.

    An array of more than `threshold` elements is printed with `edge` elements at each end of every axis, and
    no others are copied from the device.

    Args:
        memory: an array of any library, or a Buffer.
        shape: of a Buffer: its shape (default: flat).
        dtype: of a Buffer: the name of the element type, e.g. "bfloat16" (default "uint8").
        strides: of a Buffer: elements from one index to the next, per axis (default: row-major).
        edge: elements shown at each end of an axis.
        threshold: the number of elements up to which all are shown.
        precision: digits after the point.

    Raises:
        ValueError: a shape or strides that do not fit in the buffer; TypeError: no memory, or no such dtype.
    """
    if edge < 1 or threshold < 0:
        raise ValueError(f"show: needs edge >= 1 and threshold >= 0, got {edge} and {threshold}")
    buffer, shape, dtype, strides = _described(memory, shape, dtype, strides)
    short = math.prod(shape) > threshold
    values = fetch(buffer, shape, dtype, strides, edge if short else None)
    numeric = values.astype(np.float64) if "float" in dtype else values
    text = np.array2string(
        numeric,
        precision=precision,
        separator=", ",
        threshold=0 if short else math.prod(shape),
        edgeitems=edge,
    )
    layout = "" if 0 in shape or strides == row_major(shape) else f", strides {strides}"
    return f"{text}\n{dtype}{list(shape)}{layout}, {buffer.device}"


def _described(
    memory: Any, shape: Sequence[int] | None, dtype: str | None, strides: Sequence[int] | None
) -> tuple[Buffer, tuple[int, ...], str, tuple[int, ...]]:
    """Buffer, shape, dtype and strides (elements) of the memory to show."""
    if isinstance(memory, Buffer):
        name = dtype or "uint8"
        sizes = (memory.nbytes // numpy_dtype(name).itemsize,) if shape is None else tuple(shape)
        return memory, sizes, name, row_major(sizes) if strides is None else tuple(strides)
    if not is_array(memory):
        raise TypeError(f"show: a Buffer or an array is wanted, got {type(memory).__name__}")
    if shape is not None or dtype is not None or strides is not None:
        raise TypeError("show: an array knows its shape, dtype and strides; they are given for a Buffer only")
    shared = share(memory)
    steps = row_major(shared.shape) if shared.strides is None else shared.strides
    return borrow(shared), shared.shape, shared.dtype, steps


def fetch(
    buffer: Buffer, shape: Sequence[int], dtype: str, strides: Sequence[int], edge: int | None = None
) -> Array:
    """The values of a strided array in `buffer`, on the CPU.

    With `edge`, an axis of more than 2 * edge + 1 elements is cut to its `edge` first and last ones with one
    zero between them (so that NumPy's summary is the same as for the whole array).

    Args:
        buffer: the memory.
        shape: of the array.
        dtype: its element type by name.
        strides: in elements, not negative.
        edge: elements kept at each end; None: all.

    Raises:
        ValueError: a shape or strides that do not fit in the buffer.
    """
    kind = numpy_dtype(dtype)
    extents, steps = tuple(shape), tuple(strides)
    if len(extents) != len(steps) or min((*extents, *steps, 0)) < 0:
        raise ValueError(f"show: shape {extents} and strides {steps} must be of one length and not negative")
    if 0 in extents:
        return np.empty(extents, kind)
    reach = sum((extent - 1) * step for extent, step in zip(extents, steps, strict=True)) + 1
    if reach * kind.itemsize > buffer.nbytes:
        raise ValueError(
            f"show: {dtype}{list(extents)} with strides {steps} takes {reach * kind.itemsize} bytes, "
            f"the buffer has {buffer.nbytes}"
        )
    if buffer.host:
        buffer.device.synchronize()  # for managed memory
        inner = [step * kind.itemsize for step in steps]
        whole = host_array(buffer.pointer, extents, kind, inner, owner=buffer)
        return whole if edge is None else _cut(whole, edge)
    return _download(buffer, extents, kind, steps, edge)


def _ends(extent: int, edge: int | None) -> list[tuple[int, int, int]]:
    """(from, length, to) of the kept runs of an axis."""
    if edge is None or extent <= 2 * edge + 1:
        return [(0, extent, 0)]
    return [(0, edge, 0), (extent - edge, edge, edge + 1)]


def _kept(extent: int, edge: int | None) -> int:
    return extent if edge is None else min(extent, 2 * edge + 1)


def _cut(whole: Array, edge: int) -> Array:
    result = np.zeros([_kept(extent, edge) for extent in whole.shape], whole.dtype)
    for runs in itertools.product(*(_ends(extent, edge) for extent in whole.shape)):
        to = tuple(slice(t, t + n) for _, n, t in runs)
        result[to] = whole[tuple(slice(f, f + n) for f, n, _ in runs)]
    return result


def _download(
    buffer: Buffer, shape: tuple[int, ...], kind: np.dtype[Any], strides: tuple[int, ...], edge: int | None
) -> Array:
    """The kept corners by 2-D copies: over the innermost axis in memory and the one around it."""
    size = kind.itemsize
    if not shape:
        shape, strides = (1,), (1,)
        return _download(buffer, shape, kind, strides, edge).reshape(())
    order = sorted(range(len(shape)), key=lambda axis: (-strides[axis], axis))
    # Axes in the order of memory, with at least two inner ones; the innermost must be contiguous.
    extents, steps = [shape[axis] for axis in order], [strides[axis] for axis in order]
    if steps[-1] != 1:
        extents, steps = [*extents, 1], [*steps, 1]
    if len(extents) == 1:
        extents, steps = [1, *extents], [0, *steps]
    result = np.zeros([_kept(extent, edge) for extent in extents], kind)
    for runs in itertools.product(*(_ends(extent, edge) for extent in extents[:-2])):
        for places in itertools.product(*(range(n) for _, n, _ in runs)):
            start = sum(
                (run[0] + place) * step for run, place, step in zip(runs, places, steps, strict=False)
            )
            target = result[tuple(run[2] + place for run, place in zip(runs, places, strict=True))]
            _corners(buffer, start, extents[-2:], steps[-2], size, target, edge)
    plain = result.reshape([_kept(shape[axis], edge) for axis in order])
    return plain.transpose(np.argsort(order))


def _corners(
    buffer: Buffer, start: int, extents: list[int], step: int, size: int, target: Array, edge: int | None
) -> None:
    """Copy the ends of a matrix of `extents`, rows `step` elements apart, from element `start` on to `target`."""
    for row, height, to_row in _ends(extents[0], edge):
        for column, width, to_column in _ends(extents[1], edge):
            first = (start + row * step + column) * size
            rows = height if step >= width else 1  # overlapping rows (strides of 0) are copied one by one
            for i in range(0, height, rows):
                begin = first + i * step * size
                length = ((rows - 1) * step + width) * size
                block = np.empty((rows, width), target.dtype)
                copy_2d(
                    block.view(np.uint8),
                    buffer.view(begin, length),
                    width=width * size,
                    height=rows,
                    destination_pitch=width * size,
                    source_pitch=max(step, width) * size,
                )
                target[to_row + i : to_row + i + rows, to_column : to_column + width] = block
