"""Reading and writing by index: gathers, scatters, embeddings, bags."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from lamina.convert.torch.functions.step import TorchStep, writes
from lamina.ops.primitives.embedding import Embedding
from lamina.ops.primitives.embedding_bag import BagMax, BagSpread, BagSum, EmbeddingSum
from lamina.ops.primitives.gather import Gather, Scatter
from lamina.ops.primitives.sequence import TakeRows

#: Kinds of scatters, and PyTorch's names of them.
MODES = {"add": "sum", "mul": "prod", "min": "amin", "max": "amax"}


@writes(Embedding)
def embedding(step: TorchStep, table: Any, index: Any) -> Any:
    """F.embedding."""
    op = step.op
    return functional.embedding(index, table, op.padding_idx, scale_grad_by_freq=op.scale_grad_by_freq)


@writes(Gather)
def gather(step: TorchStep, x: Any, index: Any) -> Any:
    """index_select if the index is constant along all other axes, else take_along_dim."""
    axis, shape = step.op.axis, step.specs[1].shape
    index = _from_the_front(step, x, index)
    alone = all(n == 1 for a, n in enumerate(shape) if a != axis)
    if alone and not step.varies(lambda n: [s for a, s in enumerate(n.inputs[1].shape) if a != axis]):
        return torch.index_select(x, axis, index.reshape(-1))
    return torch.take_along_dim(x, index, axis)


def _from_the_front(step: TorchStep, x: Any, index: Any) -> Any:
    """An int64 index without negative numbers, which PyTorch does not support."""
    held = [n.inputs[1].constant for n in step.nodes]
    if all(h is not None and (h.numpy() >= 0).all() for h in held):
        return index.long()
    return torch.where(index < 0, index + x.size(step.op.axis), index).long()


@writes(Scatter)
def scatter(step: TorchStep, x: Any, index: Any, source: Any) -> Any:
    """scatter_reduce of the present and the new values; of several elements for one index the last one is located."""
    if 0 in step.specs[2].shape:
        return x
    axis, index = step.op.axis, _from_the_front(step, x, index).expand_as(source)
    if step.op.mode != "set":
        return torch.scatter_reduce(x, axis, index, source, MODES[step.op.mode])
    order = step.call(torch.arange, source.numel(), device=step.device).reshape(source.shape)
    last = torch.scatter_reduce(torch.full_like(x, -1, dtype=torch.int64), axis, index, order, "amax")
    return torch.where(last < 0, x, torch.take(source, torch.clamp(last, min=0)))


@writes(TakeRows)
def take_rows(step: TorchStep, x: Any, index: Any, inverse: Any) -> Any:
    """The rows at the indices; zeros for missing ones."""
    rows = torch.index_select(functional.pad(x, [0, 0, 0, 1]), 0, torch.where(index < 0, x.size(0), index))
    return rows


def _inside(step: TorchStep, starts: Any, rows: Any) -> Any:
    """bool [B, rows]: which rows each bag has."""
    at = step.call(torch.arange, rows, device=step.device)
    return (starts[:-1, None] <= at) & (starts[1:, None] > at)


@writes(EmbeddingSum)
def embedding_sum(step: TorchStep, table: Any, index: Any) -> Any:
    """F.embedding_bag, which takes no empty bags of one size: their sums are zero."""
    if not index.size(1):
        return functional.embedding(index, table).sum(1)
    return functional.embedding_bag(index, table, mode="mean" if step.op.mean else "sum")


@writes(BagSum)
def bag_sum(step: TorchStep, x: Any, starts: Any) -> Any:
    """The product of the bag membership matrix and the rows."""
    return torch.matmul(_inside(step, starts, x.size(0)).to(x.dtype), x)


@writes(BagSpread)
def bag_spread(step: TorchStep, x: Any, starts: Any) -> Any:
    """The product of the transposed membership matrix and the bags' values."""
    return torch.matmul(_inside(step, starts, step.op.rows).to(x.dtype).mT, x)


@writes(BagMax)
def bag_max(step: TorchStep, x: Any, starts: Any) -> Any:
    """The maximum of each bag's rows, the others being -inf; 0 and -1 for an empty bag."""
    if not step.specs[0].shape[0]:
        zeros = x.new_zeros((starts.size(0) - 1, x.size(1)))
        return zeros, torch.full_like(zeros, -1, dtype=torch.int64)
    inside = _inside(step, starts, x.size(0)).unsqueeze(2)  # [B, N, 1]
    rows = torch.where(inside, x, float("-inf"))
    empty = (starts[1:] <= starts[:-1]).unsqueeze(1)
    pair = torch.max(rows, 1)
    return pair[0].masked_fill(empty, 0.0), pair[1].masked_fill(empty, -1)
