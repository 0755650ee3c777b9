"""ONNX Runtime's earlier versions of ONNX operators, and operators that move elements."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from lamina import ops
from lamina.convert.onnx.contrib.domain import contributes
from lamina.convert.onnx.indexing import gather_nd, unique
from lamina.convert.onnx.node import OnnxNode, as_tensor
from lamina.convert.onnx.shape import pad, range_, trilu

contributes("GatherND")(gather_nd)
contributes("Pad", known=(1, 2))(pad)
contributes("Trilu", known=(1,))(trilu)


@contributes("ExpandDims", known=(1,))
def expand_dims(node: OnnxNode) -> Any:
    """With an axis of size 1 at a position, which may be negative."""
    x, axis = node.input(0), int(node.number(1))
    return x.unsqueeze(axis)


@contributes("Range", known=(0, 1, 2))
def range_of_one(node: OnnxNode) -> Any:
    """start, start + delta, … before limit; the numbers may be vectors of one element, delta is 1 by default."""
    start, limit = (node.known(i).reshape(()) for i in range(2))
    delta = start.dtype.type(node.number(2, 1))
    return range_(replace(node, inputs=tuple(as_tensor(np.asarray(v)) for v in (start, limit, delta))))


@contributes("Unique", known=(0,))
def unique_in_order(node: OnnxNode) -> Any:
    """(the distinct elements in order of occurrence, the inverse indices, the counts)."""
    values, _, inverse, counts = unique(replace(node, attributes={"sorted": 0}))
    return values, inverse, counts


@contributes("UnfoldTensor")
def unfold_tensor(node: OnnxNode) -> Any:
    """[..., n, ..., size]: strided windows of an axis, as a last axis."""
    x, size, step = node.input(0), node.needed("size"), node.get("step", 1)
    axis = node.get("dim", -1) % x.ndim
    count = (x.shape[axis] - size) // step + 1
    places = np.arange(count)[:, None] * step + np.arange(size)
    parts = ops.index_select(x, axis, as_tensor(places.reshape(-1)))
    parts = parts.reshape((*x.shape[:axis], count, size, *x.shape[axis + 1 :]))
    order = [a for a in range(parts.ndim) if a != axis + 1]
    return ops.permute(parts, (*order, axis + 1))
