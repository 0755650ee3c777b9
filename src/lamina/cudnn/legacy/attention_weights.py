"""Where the matrices and biases of multi-head attention are in its weight space."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lamina.cudnn.legacy.flags import DataType
from lamina.cudnn.legacy.rnn_weights import host, numpy_type

Array = np.ndarray[Any, np.dtype[Any]]


class WeightEntry(NamedTuple):
    """The matrices (or biases) of one kind, of all heads."""

    name: str
    """ "q_weights", "k_weights", "v_weights", "o_weights", "q_biases", ..."""
    offset: int
    """Where the first element is, in elements."""
    dims: tuple[int, ...]
    """(heads, rows, columns); biases have one column."""
    strides: tuple[int, ...]
    """In elements."""


@dataclass(frozen=True)
class AttentionLayout:
    """Where the weights of a `MultiHeadAttention` are in their space."""

    data_type: DataType
    nbytes: int
    entries: tuple[WeightEntry, ...]

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's type of the elements."""
        return numpy_type(self.data_type)

    @property
    def names(self) -> tuple[str, ...]:
        """The kinds that are there."""
        return tuple(entry.name for entry in self.entries)

    def unpack(self, space: Any) -> dict[str, Array]:
        """Kind -> (heads, rows, columns) of a weight space on the host, sharing its memory.

        Raises:
            ValueError: not `nbytes` bytes.
        """
        flat = np.ascontiguousarray(space).reshape(-1)
        if flat.nbytes != self.nbytes:
            raise ValueError(f"unpack: the weights have {self.nbytes} bytes, got {flat.nbytes}")
        elements = flat.view(np.uint8).view(self.dtype)
        size = self.dtype.itemsize
        return {
            e.name: np.lib.stride_tricks.as_strided(
                elements[e.offset :], e.dims, tuple(step * size for step in e.strides)
            )
            for e in self.entries
        }

    def pack(self, weights: Mapping[str, Any]) -> Array:
        """A weight space on the host from arrays by kind.

        Raises:
            ValueError: a kind is missing or unknown, or a shape differs.
        """
        missing, unknown = set(self.names) - set(weights), set(weights) - set(self.names)
        if missing or unknown:
            raise ValueError(f"pack: missing {sorted(missing)}, unknown {sorted(unknown)}")
        space = np.zeros(self.nbytes // self.dtype.itemsize, self.dtype)
        for name, place in self.unpack(space).items():
            value = host(weights[name])
            if value.shape != place.shape:
                raise ValueError(f"pack: {name} has shape {value.shape}, {place.shape} is needed")
            place[...] = value.astype(self.dtype)
        return space
