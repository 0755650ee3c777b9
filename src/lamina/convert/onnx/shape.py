"""Operators that move elements, make constants or return sizes."""

from __future__ import annotations

from math import prod
from typing import Any, Literal

import numpy as np

from lamina import ops
from lamina.convert.onnx.node import OnnxNode, as_tensor, converts, require_bounded
from lamina.convert.onnx.proto import dtype_of
from lamina.spec import int64

#: Ends of a slice that mean "to the end".
_ENDS = ((1 << 31) - 1, (1 << 63) - 1)


@converts("Reshape", known=(1,))
def reshape(node: OnnxNode) -> Any:
    """Another shape; 0 keeps a size (without allowzero), -1 is inferred."""
    x, asked = node.input(0), node.integers(1, "shape") or ()
    if not node.get("allowzero", 0):
        if any(n == 0 and i >= x.ndim for i, n in enumerate(asked)):
            raise node.error(f"shape {asked} keeps the size of an axis that {x.spec} does not have")
        asked = tuple(x.shape[i] if n == 0 else n for i, n in enumerate(asked))
    return x.reshape(asked)


@converts("Transpose")
def transpose(node: OnnxNode) -> Any:
    """Axes in another order, by default the reverse."""
    x = node.input(0)
    return ops.permute(x, node.get("perm", range(x.ndim)[::-1]))


@converts("Concat")
def concat(node: OnnxNode) -> Any:
    """Concatenated along an axis."""
    return ops.cat([x for x in node.inputs if x is not None], node.get("axis", 1))


@converts("Split", known=(1,))
def split(node: OnnxNode) -> Any:
    """Parts of given sizes along an axis; else as many equal ones as outputs, the last one smaller."""
    x, axis = node.input(0), node.get("axis", 0)
    sizes = node.integers(1, "split")
    if sizes is None:
        count, total = node.get("num_outputs", len(node.outputs)), x.shape[axis]
        step = -(-total // count)
        sizes = tuple(max(0, min(step, total - i * step)) for i in range(count))
    return ops.split(x, list(sizes), axis)


@converts("Slice", known=(1, 2, 3, 4))
def slice_(node: OnnxNode) -> Any:
    """A range of each given axis; a negative step goes backwards.

    Starts before the first element are clamped to it. An end of the largest integer means no bound, also
    backwards, as in ONNX Runtime.
    """
    x = node.input(0)
    starts, ends = node.integers(1, "starts"), node.integers(2, "ends")
    if starts is None or ends is None:
        raise node.error("needs starts and ends")
    axes = node.integers(3, "axes") or tuple(range(len(starts)))
    steps = node.integers(4) or (1,) * len(starts)
    key, backwards = [slice(None)] * x.ndim, []
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        kept = _range(x.shape[axis], start, end, step)
        if step < 0:
            kept = kept[::-1]
            backwards.append(axis % x.ndim)
        key[axis] = slice(kept.start, kept.stop, kept.step) if len(kept) else slice(0, 0)
    found = x[tuple(key)]
    return ops.flip(found, backwards) if backwards else ops.identity(found)


def _range(size: int, start: int, end: int, step: int) -> range:
    """Which of `size` elements a slice takes: as in Python, but a start before the first element is clamped to it."""
    if step < 0 and end in _ENDS:
        return range(*slice(max(start, -size), None, step).indices(size))
    return range(*slice(max(start, -size), end, step).indices(size))


@converts("Squeeze", known=(1,))
def squeeze(node: OnnxNode) -> Any:
    """Without the given axes of size 1, or all of them."""
    return ops.squeeze(node.input(0), node.integers(1, "axes"))


@converts("Unsqueeze", known=(1,))
def unsqueeze(node: OnnxNode) -> Any:
    """With axes of size 1 at these positions of the result."""
    x, axes = node.input(0), node.integers(1, "axes") or ()
    rank = x.ndim + len(axes)
    places = {a % rank for a in axes}
    if len(places) != len(axes):
        raise node.error(f"axes {axes} name a place twice")
    rest = iter(x.shape)
    return x.reshape(tuple(1 if i in places else next(rest) for i in range(rank)))


@converts("Flatten")
def flatten(node: OnnxNode) -> Any:
    """A matrix: the axes before `axis` flattened, and the others."""
    x = node.input(0)
    axis = node.get("axis", 1)
    axis += x.ndim if axis < 0 else 0
    return x.reshape((prod(x.shape[:axis]), prod(x.shape[axis:])))


@converts("Expand", known=(1,))
def expand(node: OnnxNode) -> Any:
    """Broadcast with a shape."""
    x = node.input(0)
    return ops.expand(x, np.broadcast_shapes(x.shape, node.integers(1) or ()))


@converts("Tile", known=(1,))
def tile(node: OnnxNode) -> Any:
    """Repeated along each axis."""
    x, repeats = node.input(0), node.integers(1) or ()
    if len(repeats) != x.ndim:
        raise node.error(f"repeats {repeats} must name each axis of {x.spec}")
    require_bounded(str(node), x.spec.nbytes * prod(repeats))
    for axis, n in enumerate(repeats):
        x = x if n == 1 else ops.cat([x] * n, axis) if n else x[(slice(None),) * axis + (slice(0, 0),)]
    return ops.identity(x)


@converts("Pad", known=(1, 2, 3))
def pad(node: OnnxNode) -> Any:
    """Padded (or, with negative numbers, cropped) before and after each axis: with a constant or the
    input's values."""
    x = node.input(0)
    pads = node.integers(1, "pads") or tuple(node.get("paddings", ()))
    value = node.number(2, node.get("value", 0))
    axes = tuple(a % x.ndim for a in node.integers(3) or range(x.ndim))
    lo, hi = [0] * x.ndim, [0] * x.ndim
    for i, axis in enumerate(axes):
        lo[axis], hi[axis] = pads[i], pads[i + len(axes)]
    modes: dict[str, Literal["reflect", "replicate", "circular"]] = {
        "reflect": "reflect", "edge": "replicate", "wrap": "circular"
    }  # fmt: skip
    mode = node.get("mode", "constant")
    if mode == "constant":
        return ops.pad(x, _flat(lo, hi), "constant", value)
    if mode not in modes:
        raise node.error(f"mode must be constant, {', '.join(modes)}, got {mode!r}")
    for axis in range(x.ndim):
        x = _extended(x, axis, lo[axis], hi[axis], modes[mode])
    return x


def _flat(lo: list[int], hi: list[int]) -> list[int]:
    """PyTorch's order: the last axis first."""
    return [n for pair in list(zip(lo, hi, strict=True))[::-1] for n in pair]


def _extended(x: Any, axis: int, lo: int, hi: int, mode: Literal["reflect", "replicate", "circular"]) -> Any:
    """One axis extended by its own elements; negative numbers crop first."""
    cut = slice(max(0, -lo), x.shape[axis] - max(0, -hi))
    x = x[(slice(None),) * axis + (cut,)]
    lo, hi = max(0, lo), max(0, hi)
    if not lo and not hi:
        return x
    apart = (prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :]))
    middle = ops.transpose(x.reshape(apart), 1, 2)
    wide = ops.transpose(ops.pad(middle, [lo, hi], mode), 1, 2)
    return wide.reshape((*x.shape[:axis], wide.shape[1], *x.shape[axis + 1 :]))


@converts("Shape")
def shape(node: OnnxNode) -> Any:
    """The sizes, int64: a constant."""
    found = node.input(0).shape[node.get("start", 0) : node.get("end")]
    return as_tensor(np.array(found, np.int64))


@converts("Size")
def size(node: OnnxNode) -> Any:
    """The number of elements, int64: a constant."""
    return as_tensor(np.array(prod(node.input(0).shape), np.int64))


@converts("Constant")
def constant(node: OnnxNode) -> Any:
    """The attribute's value."""
    for name, dtype in (("value_float", np.float32), ("value_floats", np.float32), ("value_int", np.int64),
                        ("value_ints", np.int64)):  # fmt: skip
        if name in node.attributes:
            return as_tensor(np.array(node.get(name), dtype))
    return node.get("sparse_value") if "sparse_value" in node.attributes else node.needed("value")


@converts("ConstantOfShape", known=(0,))
def constant_of_shape(node: OnnxNode) -> Any:
    """One number everywhere; float32 zeros by default."""
    value = node.get("value")
    filled = np.zeros(1, np.float32) if value is None else np.asarray(value.numpy())
    sizes = node.integers(0) or ()
    require_bounded(str(node), prod(sizes) * filled.itemsize)
    return as_tensor(np.full(sizes, filled.reshape(-1)[0]))


@converts("Range", known=(0, 1, 2))
def range_(node: OnnxNode) -> Any:
    """start, start + delta, … before limit."""
    start, limit, delta = (node.known(i) for i in range(3))
    if not delta:
        raise node.error("delta must not be 0")
    count = max(0, int(np.ceil((limit - start) / delta)))
    require_bounded(str(node), 8 * count)
    return as_tensor((start + np.arange(count) * delta).astype(start.dtype))


@converts("EyeLike")
def eye_like(node: OnnxNode) -> Any:
    """Ones on the k-th diagonal of a matrix of this shape."""
    x = node.input(0)
    dtype = dtype_of(node.get("dtype")) if "dtype" in node.attributes else x.dtype
    return as_tensor(np.eye(x.shape[0], x.shape[1], k=node.get("k", 0)), dtype)


@converts("Trilu", known=(1,))
def trilu(node: OnnxNode) -> Any:
    """The upper or lower triangle of each matrix."""
    keep = ops.triu if node.get("upper", 1) else ops.tril
    return keep(node.input(0), int(node.number(1, 0)))


@converts("DepthToSpace")
def depth_to_space(node: OnnxNode) -> Any:
    """Blocks of channels as blocks of pixels: block positions are the outer (DCR) or the inner (CRD) part."""
    x, b = node.input(0), node.needed("blocksize")
    n, c, h, w = x.shape
    if node.get("mode", "DCR") == "CRD":
        apart, order = (n, c // b**2, b, b, h, w), (0, 1, 4, 2, 5, 3)
    else:
        apart, order = (n, b, b, c // b**2, h, w), (0, 3, 4, 1, 5, 2)
    return ops.permute(x.reshape(apart), order).reshape((n, c // b**2, h * b, w * b))


@converts("SpaceToDepth")
def space_to_depth(node: OnnxNode) -> Any:
    """Blocks of pixels as blocks of channels: block positions are the outer (DCR) or the inner (CRD) part."""
    x, b = node.input(0), node.needed("blocksize")
    n, c, h, w = x.shape
    apart = x.reshape((n, c, h // b, b, w // b, b))
    order = (0, 1, 3, 5, 2, 4) if node.get("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
    return ops.permute(apart, order).reshape((n, c * b * b, h // b, w // b))


@converts("CenterCropPad", known=(1,))
def center_crop_pad(node: OnnxNode) -> Any:
    """Cropped or padded with zeros on both sides to the given sizes; the odd element is on the far side."""
    x, sizes = node.input(0), node.integers(1) or ()
    axes = [a % x.ndim for a in node.get("axes", range(x.ndim))]
    lo, hi = [0] * x.ndim, [0] * x.ndim
    for axis, n in zip(axes, sizes, strict=True):
        more = n - x.shape[axis]
        lo[axis] = more // 2 if more > 0 else -(-more // 2)
        hi[axis] = more - lo[axis]
    return ops.pad(x, _flat(lo, hi))


@converts("ReverseSequence")
def reverse_sequence(node: OnnxNode) -> Any:
    """The first lengths[b] steps of each sequence reversed, the others unchanged."""
    x, lengths = node.input(0), node.input(1)
    order = list(range(x.ndim))
    time, batch = node.get("time_axis", 0) % x.ndim, node.get("batch_axis", 1) % x.ndim
    order = [time, batch, *(a for a in order if a not in (time, batch))]
    x, lengths = ops.permute(x, order), ops.cast(lengths, int64)
    steps = as_tensor(np.arange(x.shape[0]).reshape(-1, *(1,) * (x.ndim - 1)))
    inside = ops.lt(steps, lengths.reshape((1, -1) + (1,) * (x.ndim - 2)))
    turned = ops.where(inside, ops.reverse_sequence(x, lengths), x)
    return ops.permute(turned, [order.index(a) for a in range(x.ndim)])


@converts("OneHot", known=(1,))
def one_hot(node: OnnxNode) -> Any:
    """values[1] where the class is the index, values[0] elsewhere, along a new axis; negative indices count back."""
    index, values = node.input(0), node.input(2)
    depth = int(node.number(1))
    require_bounded(str(node), 8 * depth)
    axis = node.get("axis", -1) % (index.ndim + 1)
    classes = as_tensor(np.arange(depth).reshape((depth,) + (1,) * (index.ndim - axis)))
    index = ops.cast(index, int64)
    wrapped = ops.where(ops.lt(index, 0), ops.add(index, depth), index)
    hit = ops.eq(wrapped.unsqueeze(axis), classes)
    return ops.where(hit, values[1], values[0])
