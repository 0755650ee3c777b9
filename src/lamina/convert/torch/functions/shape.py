"""Ops that move elements: shapes, slices, pads."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from lamina.convert.torch.functions.step import TorchStep, writes
from lamina.ops.primitives.diagonal import Diagonal
from lamina.ops.primitives.shape import Concat, Expand, Flip, Pad, Reshape, Slice, Transpose


@writes(Reshape)
def reshape(step: TorchStep, x: Any) -> Any:
    """Another shape."""
    return x.reshape(step.op.shape)


@writes(Expand)
def expand(step: TorchStep, x: Any) -> Any:
    """The same elements, broadcast along axes of size 1."""
    return x.expand(step.op.shape)


@writes(Transpose)
def transpose(step: TorchStep, x: Any) -> Any:
    """Axes in another order."""
    return x.permute(step.op.order)


@writes(Concat)
def concat(step: TorchStep, *parts: Any) -> Any:
    """Concatenated."""
    return torch.cat(parts, step.op.axis)


@writes(Flip)
def flip(step: TorchStep, x: Any) -> Any:
    """Reversed."""
    return torch.flip(x, step.op.axes)


@writes(Diagonal)
def diagonal(step: TorchStep, x: Any) -> Any:
    """A diagonal of the matrices along the last two axes."""
    return torch.diagonal(x, step.op.offset, -2, -1)


@writes(Slice)
def cut(step: TorchStep, x: Any) -> Any:
    """A slice, along the sliced axes."""

    def key(node: Any, axis: int) -> slice:
        op, size = node.op, node.inputs[0].shape[axis]
        stop = None if op.stop[axis] == size else op.stop[axis]
        return slice(op.start[axis] or None, stop, None if op.step[axis] == 1 else op.step[axis])

    def one(axis: int) -> slice:
        keys = [key(n, axis) for n in step.nodes]
        parts = [(k.start, k.stop, k.step) for k in keys]
        if all(p == parts[0] for p in parts[1:]):
            return keys[0]
        bounds = [tuple(getattr(n.op, name)[axis] for name in ("start", "stop", "step")) for n in step.nodes]
        return slice(*step.joined(bounds))

    return x[tuple(one(a) for a in range(step.specs[0].ndim))]


@writes(Pad)
def pad(step: TorchStep, x: Any) -> Any:
    """Padded with a number, the last axis first; negative widths crop."""
    sides = [side for pair in reversed(step.op.pairs) for side in pair]
    return functional.pad(x, sides, value=step.op.value) if sides else x
