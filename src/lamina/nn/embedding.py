"""Embedding layers."""

from __future__ import annotations

from typing import Any, Self

from lamina import ops
from lamina.nn import init
from lamina.nn.module import Module, T
from lamina.nn.parameter import Parameter, write
from lamina.ops.arguments import DTypeLike
from lamina.ops.core import operand
from lamina.ops.primitives.embedding import renormed
from lamina.ops.primitives.embedding_bag import BagMode
from lamina.runtime import Device
from lamina.spec import ShapeError
from lamina.tensors import empty


class _Table(Module):
    """weight (num_embeddings, embedding_dim), from a normal distribution unless _weight is given.

    padding_idx: a row of zeros without a gradient (counted from the end if negative).
    """

    scale_grad_by_freq: bool

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None,
        max_norm: float | None,
        norm_type: float,
        _weight: Any,
    ) -> None:
        name = type(self).__name__
        if num_embeddings < 1 or embedding_dim < 1:
            raise ShapeError(f"{name}: sizes must be at least 1, got {num_embeddings}, {embedding_dim}")
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"{name}: padding_idx must be within {num_embeddings} rows, got {padding_idx}")
        if max_norm is not None and not max_norm > 0:
            raise ValueError(f"{name}: max_norm must be above 0, got {max_norm}")
        self.max_norm, self.norm_type = max_norm, norm_type
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        if _weight is not None:
            given = operand(_weight, name, "_weight")
            if given.shape != (num_embeddings, embedding_dim):
                raise ShapeError(
                    f"{name}: _weight must be ({num_embeddings}, {embedding_dim}), got {given.spec}"
                )
            self.weight = Parameter(given)
            return
        self.weight = Parameter(empty((num_embeddings, embedding_dim)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reinitialize: standard normal, zeros in the row of padding_idx."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            values = self.weight.numpy().copy()
            values[self.padding_idx] = 0
            self.weight.copy_(values)

    def _norms(self) -> str:
        own = f", norm_type={self.norm_type}" if self.norm_type != 2.0 else ""
        return "" if self.max_norm is None else f", max_norm={self.max_norm}{own}"

    def _frequency(self) -> str:
        return f", scale_grad_by_freq={self.scale_grad_by_freq}" if self.scale_grad_by_freq else ""

    def _table(self, index: Any) -> Any:
        """The weight. With max_norm the rows in index are first scaled down to it, in the parameter itself: a trace
        also updates it, and an optimizer continues from there."""
        weight = self.weight
        if self.max_norm is not None:
            weight = renormed(weight, operand(index, type(self).__name__), self.max_norm, self.norm_type)
            if (
                held := self._parameters.get("weight")
            ) is not None:  # a computed weight (parametrized) is not stored
                write(held, weight)
        return weight

    @classmethod
    def from_pretrained(cls, embeddings: Any, freeze: bool = True, **options: Any) -> Self:
        """A layer with the given rows, (num_embeddings, embedding_dim), and the layer's other arguments.

        freeze: the rows are not trained.
        """
        rows = operand(embeddings, cls.__name__, "embeddings")
        if rows.ndim != 2:
            raise ShapeError(f"{cls.__name__}: embeddings must be (rows, features), got {rows.spec}")
        options |= {"num_embeddings": rows.shape[0], "embedding_dim": rows.shape[1], "_weight": rows}
        made = cls(**options)
        made.weight.requires_grad = not freeze
        return made


class Embedding(_Table):
    """Rows of a table, weight (num_embeddings, embedding_dim), by index; initialized from a normal distribution.

    padding_idx: a row of zeros without a gradient (counted from the end if negative). max_norm: looked-up rows are
    first scaled down to at most this norm_type-norm, in weight itself, as in torch. scale_grad_by_freq: a row's
    gradient is divided by the number of its occurrences. sparse has no effect.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Any = None,
        device: Device | str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, _weight)
        self.scale_grad_by_freq = bool(scale_grad_by_freq)
        self.to(device, dtype)

    def forward(self, index: T) -> T:
        """index of any shape, int32 or int64 -> (*index.shape, embedding_dim). Raises as `ops.embedding`."""
        rows: T = ops.embedding(
            index, self._table(index), self.padding_idx, scale_grad_by_freq=self.scale_grad_by_freq
        )
        return rows

    def extra_repr(self) -> str:
        """The arguments, as torch prints them."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}{self._norms()}{self._frequency()}"


class EmbeddingBag(_Table):
    """Sums, means or maxima over bags of rows of a table, weight (num_embeddings, embedding_dim).

    mode: "sum", "mean" or "max". include_last_offset: offsets also contain the end of the last bag. padding_idx: a
    row excluded from all bags. scale_grad_by_freq, sparse, max_norm: as in `Embedding`.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: BagMode = "mean",
        sparse: bool = False,
        _weight: Any = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: Device | str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, _weight)
        if mode not in ("sum", "mean", "max"):
            raise ValueError(f"EmbeddingBag: mode must be 'sum', 'mean' or 'max', got {mode!r}")
        self.mode, self.include_last_offset = mode, bool(include_last_offset)
        self.scale_grad_by_freq = bool(scale_grad_by_freq)
        self.to(device, dtype)

    def forward(self, input: T, offsets: Any = None, per_sample_weights: Any = None) -> T:
        """(B, embedding_dim) from input (B, N), or (N,) with offsets (B,). Raises as `ops.embedding_bag`."""
        bags: T = ops.embedding_bag(
            input, self._table(input), offsets, None, 2.0, self.scale_grad_by_freq, self.mode, False,
            per_sample_weights, self.include_last_offset, self.padding_idx,
        )  # fmt: skip
        return bags

    def extra_repr(self) -> str:
        """The arguments, as torch prints them."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        own = f"{self._norms()}{self._frequency()}, mode={self.mode!r}{padding}"
        return f"{self.num_embeddings}, {self.embedding_dim}{own}"
