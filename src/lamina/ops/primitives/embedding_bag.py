"""Table lookups by row index with a sum, mean or maximum per bag."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lamina.ops.arguments import checked
from lamina.ops.core import INTEGERS, Arg, Array, BatchAxes, Op, Sample, bind, call, listing, operand
from lamina.ops.primitives.check_index import CheckIndex, check_index, watched
from lamina.ops.primitives.embedding import (
    Embedding,
    EmbeddingGrad,
    bounded,
    embedding,
    table_and_padding,
)
from lamina.ops.primitives.pointwise import where
from lamina.ops.primitives.shape import cat, expand
from lamina.spec import FLOATS, DTypeError, Shape, ShapeError, Spec, int32, int64

#: How a bag's rows are reduced.
BagMode = Literal["sum", "mean", "max"]


@dataclass(frozen=True)
class _Bags(Op):
    """Base of ops on bags: bag b is the rows starts[b] … starts[b + 1] - 1, starts int64 [B + 1], ascending."""

    arity = 2

    def measure(self, x: Spec, starts: Spec) -> tuple[int, int]:
        """(bags, features). Raises ShapeError, DTypeError."""
        self.check_float(x)
        if starts.dtype != int64:
            raise DTypeError(f"{self.name}: starts must be int64, got {starts}")
        if x.ndim != 2 or starts.ndim != 1 or not starts.shape[0]:
            raise ShapeError(f"{self.name}: needs rows [N, D] and starts [B + 1], got {listing((x, starts))}")
        return starts.shape[0] - 1, x.shape[1]


@dataclass(frozen=True)
class BagSum(_Bags):
    """(x [N, D], starts int64 [B + 1]) -> [B, D]: the sum of each bag's rows, in their order."""

    def infer(self, x: Spec, starts: Spec) -> tuple[Spec]:
        return (self.result(self.measure(x, starts), x.dtype),)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return call(BagSpread(inputs[0].shape[0]), grads[0], inputs[1]), None

    def reference(self, x: Array, starts: Array) -> tuple[Array]:
        y = np.zeros((len(starts) - 1, x.shape[1]), x.dtype)
        full = np.flatnonzero(np.diff(starts) > 0)
        if len(full):
            y[full] = np.add.reduceat(x[: starts[-1]], starts[full], 0, dtype=x.dtype)
        return (y,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for rows, width, starts in _CASES:
            yield Sample.of(cls(), (rows, width), _starts(starts))


@dataclass(frozen=True)
class BagSpread(_Bags):
    """(x [B, D], starts int64 [B + 1]) -> [rows, D]: each row gets its bag's value, 0 if it is in none."""

    rows: int
    dtypes = (*FLOATS, int64)

    def infer(self, x: Spec, starts: Spec) -> tuple[Spec]:
        bags, width = self.measure(x, starts)
        if x.shape[0] != bags:
            raise ShapeError(f"{self.name}: needs a row for each of {bags} bags, got {x}")
        return (self.result((self.rows, width), x.dtype),)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return call(BagSum(), grads[0], inputs[1]), None

    def reference(self, x: Array, starts: Array) -> tuple[Array]:
        bag = np.searchsorted(starts, np.arange(self.rows), "right") - 1
        inside = (bag >= 0) & (bag < len(x))
        y = np.zeros((self.rows, x.shape[1]), x.dtype)
        y[inside] = x[bag[inside]]
        return (y,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for rows, width, starts in _CASES:
            yield Sample.of(cls(rows), (len(starts) - 1, width), _starts(starts), dtypes=FLOATS)


@dataclass(frozen=True)
class BagMax(_Bags):
    """(x [N, D], starts int64 [B + 1]) -> (y [B, D], row int64 [B, D]): each bag's maxima, and their first rows.

    An empty bag gives 0 and row -1. NaN counts as the largest.
    """

    def infer(self, x: Spec, starts: Spec) -> tuple[Spec, Spec]:
        shape = self.measure(x, starts)
        return self.result(shape, x.dtype), Spec(shape, int64)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        if grads[0] is None:
            return None, None
        count, back = inputs[0].shape[0], BagSpread(inputs[0].shape[0])
        chosen = call(back, outputs[1], inputs[1]) == np.arange(count)[:, None]
        return where(chosen, call(back, grads[0], inputs[1]), 0.0), None

    def reference(self, x: Array, starts: Array) -> tuple[Array, Array]:
        y = np.zeros((len(starts) - 1, x.shape[1]), x.dtype)
        row = np.full(y.shape, -1, np.int64)
        full = np.flatnonzero(np.diff(starts) > 0)
        if len(full):
            held = x[: starts[-1]]
            y[full] = np.maximum.reduceat(held, starts[full], 0)
            (spread,) = BagSpread(len(held)).reference(y, starts)
            here = (held == spread) | np.isnan(held)
            place = np.where(here, np.arange(len(held))[:, None], len(held))
            row[full] = np.minimum.reduceat(place, starts[full], 0)
        return y, row

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for rows, width, starts in _CASES:
            yield Sample.of(cls(), Arg((rows, width), distinct=True), _starts(starts))


@dataclass(frozen=True)
class EmbeddingSum(Op):
    """(table [V, D], index int32 or int64 [B, N]) -> [B, D]: the sum of the rows at each line of indices, in their
    order; with `mean` divided by N.

    An index outside 0 … V - 1 is an IndexError on a CPU and gives a row of NaN on a GPU.
    """

    mean: bool = False
    arity = 2

    def infer(self, table: Spec, index: Spec) -> tuple[Spec]:
        self.check_float(table)
        if index.dtype not in (int32, int64):
            raise DTypeError(f"{self.name}: index must be int32 or int64, got {index}; cast it with ops.cast")
        if table.ndim != 2 or index.ndim != 2:
            raise ShapeError(
                f"{self.name}: needs a table [V, D] and indices [B, N], got {listing((table, index))}"
            )
        return (self.result((index.shape[0], table.shape[1]), table.dtype),)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        return (axes[1],) if axes[0] is None and axes[1] is not None and axes[1].axis == 0 else None

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        (table, index), g = inputs, grads[0]
        g = g * (1 / max(index.shape[1], 1)) if self.mean else g
        rows = expand(g.unsqueeze(1), (*index.shape, table.shape[1]))
        return call(EmbeddingGrad(table.shape[0]), rows, index), None

    def composed(self, table: Any, index: Any) -> Sequence[Any]:
        """The rows, and their sum."""
        rows = call(Embedding(), table, index)
        return (rows.mean(1) if self.mean and index.shape[1] else rows.sum(1),)

    def reference(self, table: Array, index: Array) -> tuple[Array]:
        check_index("embedding", index, len(table))
        total = table[index].sum(1, dtype=table.dtype)
        return ((total / max(index.shape[1], 1) if self.mean else total).astype(table.dtype),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for number, (rows, width, shape) in enumerate(_LOOKUPS):
            index = Arg(shape, int64, low=0, high=rows, integers=True, differentiable=False)
            yield Sample.of(cls(number % 2 == 1), (rows, width), index)


#: rows, features, the indices' shape.
_LOOKUPS: list[tuple[int, int, Shape]] = [
    (5, 3, (2, 4)), (7, 16, (3, 2)), (1, 1, (1, 1)), (33, 9, (5, 50)), (4, 8, (2, 0)), (3, 4, (0, 2)),
    (64, 130, (4, 3)),
]  # fmt: skip
#: rows, features, starts.
_CASES: list[tuple[int, int, tuple[int, ...]]] = [
    (5, 3, (0, 2, 5)), (7, 33, (0, 0, 3, 3, 7)), (4, 1, (0, 3)), (6, 5, (1, 4, 5)), (3, 2, (0, 0)), (0, 3, (0, 0, 0)),
    (9, 130, (0, 9)),
]  # fmt: skip


def _starts(values: tuple[int, ...]) -> Arg:
    return Arg((len(values),), int64, value=values, differentiable=False)


@checked
def embedding_bag(
    input: Any,
    weight: Any,
    offsets: Any = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: BagMode = "mean",
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    """The rows of weight [V, D] at indices input, with a sum, mean or maximum per bag: [B, D]; torch's embedding_bag.

    input: integers [B, N], one bag per row; or [N] with offsets [B], where each bag begins (with include_last_offset
    [B + 1], the last being the end). per_sample_weights: as input; factors of the rows, for mode "sum". padding_idx:
    a row excluded from all bags. An empty bag is 0. scale_grad_by_freq: a row's gradient is divided by the number of
    its occurrences. Differentiable in weight and per_sample_weights, deterministically. sparse has no effect;
    max_norm and norm_type as `embedding`'s.

    An index or offset out of range is an IndexError on a CPU. Raises ShapeError, DTypeError, ValueError.
    """
    what = "embedding_bag"
    index = operand(input, what)
    table, padding = table_and_padding(what, weight, padding_idx)
    if index.ndim not in (1, 2):
        raise ShapeError(f"{what}: input must be [B, N], or [N] with offsets, got {index.spec}")
    if (offsets is None) != (index.ndim == 2):
        raise ValueError(
            f"{what}: offsets belong to an input of one axis, and only there; input is {index.spec}"
        )
    factors = _factors(index, table, mode, per_sample_weights)
    table = bounded(what, table, index, max_norm, norm_type)
    kept = None if padding is None else index != padding
    if index.ndim == 2 and mode != "max" and kept is None and factors is None and not scale_grad_by_freq:
        return call(EmbeddingSum(mode == "mean"), table, watched("embedding", index, table.shape[0]))
    rows = embedding(index, table, padding, scale_grad_by_freq=scale_grad_by_freq)
    if offsets is None:
        return _of_rows(mode, rows, kept, factors)
    starts = _bag_starts(operand(offsets, what, "offsets"), index, include_last_offset)
    return _of_starts(mode, rows, kept, factors, starts)


def _factors(index: Any, table: Any, mode: str, given: Any) -> Any:
    if given is None:
        return None
    factors = operand(given, "embedding_bag", "per_sample_weights")
    if mode != "sum":
        raise ValueError(f"embedding_bag: per_sample_weights belong to mode 'sum', got mode {mode!r}")
    if factors.shape != index.shape or factors.dtype != table.dtype:
        raise ShapeError(
            f"embedding_bag: per_sample_weights must be as input {index.spec} in {table.dtype}, got {factors.spec}"
        )
    return factors


def _bag_starts(offsets: Any, index: Any, ends: bool) -> Any:
    """int64 [B + 1]: the start of each bag, and the end of the last."""
    if offsets.dtype not in INTEGERS:
        raise DTypeError(f"embedding_bag: offsets must be integers, got {offsets.spec}; cast with ops.cast")
    if offsets.ndim != 1 or (ends and not offsets.shape[0]):
        raise ShapeError(
            f"embedding_bag: offsets must be [B], with include_last_offset [B + 1], got {offsets.spec}"
        )
    count = index.shape[0]
    starts = call(CheckIndex("embedding_bag: offsets", count + 1), offsets.cast(int64))
    return starts if ends else cat([starts, np.array([count], np.int64)], 0)


def _of_rows(mode: str, rows: Any, kept: Any, factors: Any) -> Any:
    """[B, D] from rows [B, N, D]: bags of one size. kept: bool [B, N], whether a row is in its bag."""
    if mode == "max":
        if kept is None:
            return _largest(rows)
        found = _largest(where(kept.unsqueeze(2), rows, -np.inf))
        return where(found == -np.inf, 0.0, found)
    rows = rows if factors is None else rows * factors.unsqueeze(2)
    total = (rows if kept is None else where(kept.unsqueeze(2), rows, 0.0)).sum(1)
    if mode == "sum":
        return total
    if kept is None:
        return total * (1 / max(rows.shape[1], 1))
    counts = kept.cast(rows.dtype).sum(1, keepdim=True)
    return total / where(counts > 0, counts, 1.0)


def _largest(rows: Any) -> Any:
    """The maxima of rows [B, N, D] over N by `BagMax`, whose gradient goes to the first of equal elements."""
    batch, count, width = rows.shape
    starts = np.arange(batch + 1) * count
    return bind(BagMax(), rows.reshape((batch * count, width)), starts)[0]


def _of_starts(mode: str, rows: Any, kept: Any, factors: Any, starts: Any) -> Any:
    """[B, D] from rows [N, D]. kept: bool [N]."""
    if mode == "max":
        if kept is None:
            return bind(BagMax(), rows, starts)[0]
        found = bind(BagMax(), where(kept.unsqueeze(1), rows, -np.inf), starts)[0]
        return where(found == -np.inf, 0.0, found)
    rows = rows if factors is None else rows * factors.unsqueeze(1)
    total = call(BagSum(), rows if kept is None else where(kept.unsqueeze(1), rows, 0.0), starts)
    if mode == "sum":
        return total
    ones = (
        np.ones((rows.shape[0], 1), rows.dtype.numpy) if kept is None else kept.unsqueeze(1).cast(rows.dtype)
    )
    counts = call(BagSum(), ones, starts)
    return total / where(counts > 0, counts, 1.0)
