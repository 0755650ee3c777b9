"""Table lookups by row index: embeddings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lamina.ops.arguments import checked
from lamina.ops.core import Arg, Array, BatchAxes, Op, Sample, call, operand
from lamina.ops.primitives.check_index import check_index, watched
from lamina.ops.primitives.marker import stop_gradient
from lamina.ops.primitives.norms import vector_norm
from lamina.ops.primitives.pointwise import where
from lamina.spec import DTypeError, Shape, ShapeError, Spec, int32, int64, normalize_axis


@dataclass(frozen=True)
class Embedding(Op):
    """(table [V, D], index int32 or int64 [...]) -> [..., D]: the rows at the indices.

    An index outside 0 … V - 1 is an IndexError on a CPU and gives a row of NaN on a GPU. padding_idx: the row without
    a gradient. scale_grad_by_freq: a row's gradient is divided by the number of its occurrences.
    """

    padding_idx: int | None = None
    scale_grad_by_freq: bool = False
    arity = 2

    def infer(self, table: Spec, index: Spec) -> tuple[Spec]:
        self.check_float(table)
        _check_index(self, index)
        if table.ndim != 2:
            raise ShapeError(f"{self.name}: the table must be [rows, features], got {table}")
        return (self.result((*index.shape, table.shape[1]), table.dtype),)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        return (axes[1],) if axes[0] is None else None

    def stacked(self, size: int, inputs: Sequence[Spec], batched: Sequence[bool]) -> Op | None:
        return None if batched[0] else self

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        index = inputs[1]
        if self.padding_idx is not None:  # an out-of-range index contributes nothing
            index = where(index == self.padding_idx, -1, index)
        sums = EmbeddingGrad(inputs[0].shape[0])
        found = call(sums, grads[0], index)
        if self.scale_grad_by_freq:
            times = call(sums, np.ones((*index.shape, 1), np.float32), index)
            found = found / where(times > 0, times, 1.0).cast(found.dtype)
        return found, None

    def reference(self, table: Array, index: Array) -> tuple[Array]:
        check_index("embedding", index, len(table))
        return (table[index],)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for rows, width, shape in _CASES:
            yield Sample.of(cls(), (rows, width), _index(rows, shape))


@dataclass(frozen=True)
class EmbeddingGrad(Op):
    """(g [..., D], index [...]) -> [rows, D]: for each row the sum of g over its occurrences in index, in order.

    Indices outside 0 … rows - 1 contribute nothing.
    """

    rows: int
    arity = 2

    def infer(self, g: Spec, index: Spec) -> tuple[Spec]:
        self.check_float(g)
        _check_index(self, index)
        if g.ndim < 1 or g.shape[:-1] != index.shape:
            raise ShapeError(f"{self.name}: g {g} must be of shape {index.shape} and a last axis of features")
        return (self.result((self.rows, g.shape[-1]), g.dtype),)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        """The sum is linear in g; out-of-range indices do not contribute."""
        index = inputs[1]
        inside = (index >= 0) & (index < self.rows)
        rows = call(Embedding(), grads[0], where(inside, index, 0))
        return where(inside.unsqueeze(-1), rows, 0.0), None

    def reference(self, g: Array, index: Array) -> tuple[Array]:
        found, inside = np.zeros((self.rows, g.shape[-1]), g.dtype), _inside(index, self.rows)
        np.add.at(found, index[inside], g[inside])
        return (found,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for rows, width, shape in _CASES:
            yield Sample.of(cls(rows), (*shape, width), _index(rows, shape))


_CASES: list[tuple[int, int, Shape]] = [
    (5, 3, (4,)), (7, 16, (2, 3)), (1, 1, (1,)), (33, 9, (3, 1, 50)), (4, 2, ()), (3, 4, (0, 2)), (64, 130, (40,)),
]  # fmt: skip


def _index(rows: int, shape: Shape) -> Arg:
    return Arg(shape, int64, low=0, high=rows, integers=True, differentiable=False)


def _inside(index: Array, rows: int) -> Array:
    found: Array = (index >= 0) & (index < rows)
    return found


def _check_index(op: Op, index: Spec) -> None:
    if index.dtype not in (int32, int64):
        raise DTypeError(f"{op.name}: index must be int32 or int64, got {index}; cast it with ops.cast")


@checked
def embedding(
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """The rows of weight [V, D] at indices input [...] (int32 or int64): [..., D], as torch's embedding.

    padding_idx: the row (from the end if negative) without a gradient. scale_grad_by_freq: a row's gradient is
    divided by the number of its occurrences in input. The gradient adds rows of equal indices in their order, so it
    is deterministic; it is never sparse, and `sparse` has no effect. max_norm: looked-up rows are first scaled down,
    in weight itself, to at most this norm_type-norm; not supported for a traced weight, which is never written
    (`nn.Embedding` has its own implementation). An index outside 0 … V - 1 is an IndexError on a CPU and gives a row
    of NaN on a GPU (see `CheckIndex`). Raises ShapeError, DTypeError, ValueError.
    """
    index = operand(input, "embedding")
    table, padding = table_and_padding("embedding", weight, padding_idx)
    table = bounded("embedding", table, index, max_norm, norm_type)
    op = Embedding(padding, bool(scale_grad_by_freq))
    return call(op, table, watched("embedding", index, table.shape[0]))


def table_and_padding(what: str, weight: Any, padding_idx: int | None) -> tuple[Any, int | None]:
    """A table of rows, and the index of the padding row, or None. Raises ShapeError."""
    table = operand(weight, what, "weight")
    if table.ndim != 2:
        raise ShapeError(f"{what}: weight must be [rows, features], got {table.spec}")
    if padding_idx is None:
        return table, None
    return table, normalize_axis(padding_idx, table.shape[0], f"{what}: padding_idx")


def renormed(table: Any, index: Any, max_norm: float, norm_type: float) -> Any:
    """The table with the norms of the rows in index bounded: as torch's embedding_renorm_ leaves its table.

    Gradients pass through unchanged, also for scaled rows: torch scales rows before it differentiates. Raises
    ValueError for a max_norm that is not positive.
    """
    if not max_norm > 0:
        raise ValueError(f"embedding: max_norm must be above 0, got {max_norm}")
    times = call(EmbeddingGrad(table.shape[0]), np.ones((*index.shape, 1), np.float32), index)
    norms = vector_norm(table, norm_type, 1, True)
    over = (times > 0) & (norms > max_norm)
    scaled = stop_gradient(table * (max_norm / (norms + 1e-7)))
    return where(over, scaled + (table - stop_gradient(table)), table)


def bounded(what: str, table: Any, index: Any, max_norm: float | None, norm_type: float) -> Any:
    """The lookup table: with max_norm rows are scaled down first, in the tensor itself as in torch.

    Raises ValueError for a traced value, which is never written.
    """
    if max_norm is None:
        return table
    if table.records:
        raise ValueError(
            f"{what}: max_norm={max_norm} would write the rows that are looked up, and weight {table.spec} is a "
            "traced value, which is never written: nn.Embedding(..., max_norm=) does it in every trace"
        )
    table.copy_(renormed(table, index, max_norm, norm_type))
    return table
