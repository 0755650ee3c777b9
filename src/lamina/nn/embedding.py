"""Embedding layers."""

from __future__ import annotations

from lamina import ops
from lamina.nn import init
from lamina.nn.module import Module, T
from lamina.nn.parameter import Parameter
from lamina.spec import ShapeError
from lamina.tensors import empty


class Embedding(Module):
    """Rows of a table, weight (num_embeddings, embedding_dim), by number; drawn from a normal distribution.

    padding_idx: the row that is zeros and gets no gradient (counted from the end where negative).
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None) -> None:
        if num_embeddings < 1 or embedding_dim < 1:
            raise ShapeError(f"Embedding: sizes must be at least 1, got {num_embeddings}, {embedding_dim}")
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(
                f"Embedding: padding_idx must be within {num_embeddings} rows, got {padding_idx}"
            )
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.weight = Parameter(empty((num_embeddings, embedding_dim)))
        init.normal_(self.weight)
        if self.padding_idx is not None:
            values = self.weight.numpy().copy()
            values[self.padding_idx] = 0
            self.weight.copy_(values)

    def forward(self, index: T) -> T:
        """index of any shape, int32 or int64 -> (*index.shape, embedding_dim). Raises as `ops.embedding`."""
        return ops.embedding(index, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        """The arguments, as torch prints them."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"
