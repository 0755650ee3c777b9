"""Pooling: maxima with their indices, averages and sums of windows."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from lamina import ops
from lamina.convert.onnx.export.conv import attributes
from lamina.convert.onnx.export.writer import ExportError, OpExport, Written, composes, exports
from lamina.ops.primitives.pool import AvgPool, MaxPool, counts, index_dtype
from lamina.ops.primitives.region_pool import RegionMax
from lamina.ops.primitives.shape import pad_axes
from lamina.ops.primitives.window import Window
from lamina.spec import Shape, int64


def _fits(kernel: Shape, win: Window) -> bool:
    """Whether the padding is within ONNX's limits: smaller than the kernel."""
    return all(max(pair) < k for k, pair in zip(kernel, win.padding, strict=True))


def _padded(step: OpExport, win: Window, value: float) -> str:
    sides = [(0, 0), (0, 0), *win.padding]
    return step.add(
        "Pad", step.inputs[0], step.ints(*(s[i] for i in (0, 1) for s in sides)), step.constant(value)
    )


def _bare(win: Window) -> Window:
    return Window(win.stride, ((0, 0),) * win.rank, win.dilation)


@exports(MaxPool)
def max_pool(step: OpExport) -> Written:
    """MaxPool; its indices refer to the whole tensor, ours to the window."""
    op, win = step.op, step.op.window
    index = op.index and step.wanted[1]
    if not index and _is_global(step):
        return step.add("GlobalMaxPool", step.inputs[0]), None
    if step.varies(lambda n: n.op) and not index and _rounds_up(step):
        step.sized = True
        even = Window(win.stride, tuple((lo, lo) for lo, _ in win.padding), win.dilation)
        given = {k: v for k, v in attributes(even, op.kernel).items() if k != "group"}
        return step.add("MaxPool", step.inputs[0], ceil_mode=1, **given), None
    fits = _fits(op.kernel, win)
    x = step.inputs[0] if fits else _padded(step, win, -np.inf)
    used = win if fits else _bare(win)
    given = {k: v for k, v in attributes(used, op.kernel).items() if k != "group"}
    found = step.add_several("MaxPool", 1 + index, x, **given)
    if not index:
        return found[0], None
    if step.varies(lambda n: n.inputs[0].shape[2:]):
        raise step.error("the places of its maxima need image sizes that are fixed")
    spatial = step.specs[0].shape[2:]
    if not fits:
        spatial = tuple(n + lo + hi for n, (lo, hi) in zip(spatial, win.padding, strict=True))
    return found[0], _offset(step, found[1], used, spatial, step.results[0].shape[2:])


def _is_global(step: OpExport) -> bool:
    """Whether the kernel is in each trace the whole image, whose size is free."""
    for node in step.nodes:
        op: Any = node.op
        if op.kernel != node.inputs[0].shape[2:] or any(map(any, op.window.padding)):
            return False
    step.sized = step.varies(lambda n: n.op)
    return step.sized


def _rounds_up(step: OpExport) -> bool:
    """Whether the padding behind is in each trace that of a number of windows which is rounded up (`ceil_mode`)."""
    for node in step.nodes:
        op: Any = node.op
        win, kernel = op.window, op.kernel
        if not _fits(kernel, win):
            return False
        places = zip(node.inputs[0].shape[2:], win.stride, win.padding, win.span(kernel), strict=True)
        for (n, stride, (lo, hi), reach), out in zip(places, node.outputs[0].shape[2:], strict=True):
            count = -(-(n + 2 * lo - reach) // stride) + 1
            count -= (count - 1) * stride >= n + lo  # the last window must begin within the image
            if count != out or hi < lo:
                return False
    return True


def _offset(step: OpExport, places: str, win: Window, spatial: Shape, output: Shape) -> str:
    """The row-major position of each maximum in its window, from its index in the whole tensor."""
    rest = step.add("Mod", places, step.constant(prod(spatial), int64))
    total = None
    for axis, n in enumerate(spatial):
        inner = prod(spatial[axis + 1 :])
        at = step.add("Mod", step.add("Div", rest, step.constant(inner, int64)), step.constant(n, int64))
        first = np.arange(output[axis]) * win.stride[axis] - win.padding[axis][0]
        first = first.reshape([-1 if a == axis else 1 for a in range(len(spatial))])
        tap = step.add(
            "Div", step.add("Sub", at, step.constant(first, int64)), step.constant(win.dilation[axis], int64)
        )
        if total is not None:
            tap = step.add("Add", step.add("Mul", total, step.constant(step.op.kernel[axis], int64)), tap)
        total = tap
    assert total is not None
    return step.cast(total, index_dtype(step.op.kernel))


@exports(AvgPool)
def avg_pool(step: OpExport) -> Written:
    """AveragePool, times the window's size for sums; dilated windows before opset 19 as sums of slices."""
    op, win = step.op, step.op.window
    if op.mode != "sum" and _is_global(step):
        return step.add("GlobalAveragePool", step.inputs[0])
    fits, dilated = _fits(op.kernel, win), any(d > 1 for d in win.dilation)
    if (dilated and step.opset < 19) or (not fits and op.mode == "exclude"):
        return step.composed(_sum_of_slices)
    x, used = (step.inputs[0], win) if fits else (_padded(step, win, 0.0), _bare(win))
    given = {k: v for k, v in attributes(used, op.kernel).items() if k != "group"}
    if not dilated:
        del given["dilations"]
    y = step.add("AveragePool", x, count_include_pad=int(op.mode != "exclude"), **given)
    return step.add("Mul", y, step.constant(prod(op.kernel))) if op.mode == "sum" else y


def _sum_of_slices(op: AvgPool, x: Any) -> Any:
    spatial = x.shape[2:]
    positions = op.window.output(spatial, op.kernel)
    padded = pad_axes(x, [(0, 0), (0, 0), *op.window.padding])
    total = None
    for tap in op.window.taps(op.kernel, positions):
        part = padded[tap]
        total = part if total is None else total + part
    by = counts(op.kernel, op.window, spatial, positions) if op.mode == "exclude" else prod(op.kernel)
    return total if op.mode == "sum" else total * (1 / np.asarray(by, np.float64)).astype(x.dtype.numpy)


@composes(RegionMax)
def region_max(op: RegionMax, x: Any, starts: Any, stops: Any) -> Any:
    """The maxima of known windows: their elements side by side, then the maximum and its index."""
    first, end = starts.held, stops.held
    if first is None or end is None or starts.shape[0] != 1:
        raise ExportError(
            "region_max: where windows lie must be known, and the same for all planes, to be written"
        )
    places = op._places(first.numpy(), end.numpy(), x.shape[2:])[0]  # [windows, most]
    flat = x.reshape((*x.shape[:2], prod(x.shape[2:])))
    shape = (*x.shape[:2], *places.shape)
    found = ops.index_select(flat, 2, np.ascontiguousarray(places.reshape(-1))).reshape(shape)
    first = ops.argmax(found, 3, keepdim=True)
    behind = (
        np.arange(places.shape[0])[:, None] * places.shape[1]
    )  # the start of each window's indices in the table
    at = (first + behind).reshape((first.spec.numel,))
    index = ops.index_select(np.ascontiguousarray(places.reshape(-1)), 0, at)
    full = (*x.shape[:2], *op.output)
    return ops.amax(found, 3).reshape(full), index.reshape(full)
