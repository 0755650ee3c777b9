"""Reading and writing by index: gathers, scatters, embeddings, bags."""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina import ops
from lamina.convert.onnx.export.writer import OpExport, Written, composes, exports
from lamina.ops.primitives.embedding import Embedding
from lamina.ops.primitives.embedding_bag import BagMax, BagSpread, BagSum
from lamina.ops.primitives.gather import Gather, Scatter
from lamina.ops.primitives.sequence import TakeRows


@exports(Embedding)
def embedding(step: OpExport) -> Written:
    """Gather of rows."""
    return step.add("Gather", *step.inputs, axis=0)


@exports(Gather)
def gather(step: OpExport) -> Written:
    """Gather if the index is constant along all other axes, else GatherElements."""
    axis, index = step.op.axis, step.specs[1].shape
    others = [n for a, n in enumerate(index) if a != axis]
    if all(n == 1 for n in others) and not step.varies(
        lambda n: [s for a, s in enumerate(n.inputs[1].shape) if a != axis]
    ):
        return step.add("Gather", step.inputs[0], step.reshaped(step.inputs[1], -1), axis=axis)
    return step.add("GatherElements", step.inputs[0], _widened(step, 0), axis=axis)


def _widened(step: OpExport, by: int) -> str:
    """The index, repeated along axes of size 1 where operand `by` has more."""
    axis = step.op.axis

    def sizes(node: Any) -> list[int]:
        pairs = enumerate(zip(node.inputs[1].shape, node.inputs[by].shape, strict=True))
        return [1 if a == axis or own == full else full for a, (own, full) in pairs]

    if all(set(sizes(n)) <= {1} for n in step.nodes):
        return step.inputs[1]
    return step.add("Expand", step.inputs[1], step.sizes(sizes))


@exports(Scatter)
def scatter(step: OpExport) -> Written:
    """ScatterElements."""
    mode = step.op.mode
    if mode in ("min", "max") and step.opset < 18:
        raise step.error(
            f"ScatterElements by {mode} came with opset 18; write the model with opset=18 or later"
        )
    reduction = None if mode == "set" else mode
    index, (x, _, source) = _widened(step, 2), step.inputs
    wide = step.dtype.compute if reduction and step.dtype.is_float else step.dtype
    if wide != step.dtype:  # half types are combined in float32
        x, source = step.cast(x, wide), step.cast(source, wide)
    found = step.add("ScatterElements", x, index, source, axis=step.op.axis, reduction=reduction)
    return found if wide == step.dtype else step.cast(found, step.dtype)


@composes(TakeRows)
def take_rows(op: TakeRows, x: Any, index: Any, inverse: Any) -> Any:
    """The rows at the indices; zeros for missing ones."""
    if not x.spec.numel:
        return ops.operand(np.zeros((index.shape[0], x.shape[1]), x.dtype.numpy))
    found = ops.index_select(x, 0, ops.clamp(index, 0, None))
    return ops.where((index < 0).unsqueeze(1), np.zeros((), x.dtype.numpy), found)


def _inside(starts: Any, rows: int) -> Any:
    """bool [B, rows]: which rows each bag has."""
    at = np.arange(rows)[None]
    low, high = starts[:-1].unsqueeze(1), starts[1:].unsqueeze(1)
    return (low <= at) & (high > at)


@composes(BagSum)
def bag_sum(op: BagSum, x: Any, starts: Any) -> Any:
    """The product of the bag membership matrix and the rows."""
    return ops.matmul(_inside(starts, x.shape[0]).cast(x.dtype), x)


@composes(BagSpread)
def bag_spread(op: BagSpread, x: Any, starts: Any) -> Any:
    """The product of the transposed membership matrix and the bags' values."""
    return ops.matmul(ops.transpose(_inside(starts, op.rows), 0, 1).cast(x.dtype), x)


@composes(BagMax)
def bag_max(op: BagMax, x: Any, starts: Any) -> Any:
    """The maximum of each bag's rows, the others being -inf; 0 and -1 for an empty bag."""
    if not x.shape[0]:
        zeros = np.zeros(op.infer(x.spec, starts.spec)[0].shape, x.dtype.numpy)
        return ops.operand(zeros), ops.operand(np.full(zeros.shape, -1))
    inside = _inside(starts, x.shape[0]).unsqueeze(2)  # [B, N, 1]
    rows = ops.where(inside, x.unsqueeze(0), -np.inf)
    empty = (starts[1:] <= starts[:-1]).unsqueeze(1)
    return ops.where(empty, 0.0, ops.amax(rows, 1)), ops.where(empty, -1, ops.argmax(rows, 1))
