"""Batches of sequences of different lengths, as the recurrent networks read and write them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from lamina.c import cudnn as c
from lamina.c.errors import CudnnNotSupported
from lamina.cudnn.descriptor import integers
from lamina.cudnn.legacy.base import Descriptor, call
from lamina.cudnn.legacy.flags import PREFIXES, DataType, Name, flag
from lamina.cudnn.legacy.rnn_weights import numpy_type

RNNLayout: TypeAlias = c.cudnnRNNDataLayout_t
PREFIXES[RNNLayout] = "CUDNN_RNN_DATA_LAYOUT_"
#: Further names of layouts.
_ALIASES = {
    "sequence_major": "seq_major_unpacked",
    "packed": "seq_major_packed",
    "batch_major": "batch_major_unpacked",
}
#: The most time steps that cuDNN takes (seen in 9.19 and 9.28).
LENGTH_LIMIT = 65_535
_TOO_LONG = (
    f"max_length is {{}}: cuDNN takes {LENGTH_LIMIT} time steps; feed the sequence in pieces and hand hy and cy "
    "over as hx and cx"
)


class RNNDataSettings(NamedTuple):
    """What `RNNData.get` returns."""

    data_type: DataType
    layout: RNNLayout
    max_length: int
    batch: int
    vector_size: int
    lengths: tuple[int, ...]
    fill: float


class RNNData(Descriptor):
    """How a batch of sequences is stored.

    Args:
        data_type: of the elements.
        max_length: time steps of the longest sequence.
        batch: how many sequences.
        vector_size: length of one vector.
        lengths: of each sequence, 0 to max_length; left out, all have max_length. Sorted, longest first, for the
            packed layout.
        layout: "seq_major_unpacked" (max_length, batch, vector_size), "batch_major_unpacked" (batch, max_length,
            vector_size), both padded, or "seq_major_packed" (sum of lengths, vector_size): all sequences' first
            vectors, then the second ones of those that have them, ... (PyTorch's PackedSequence). Short:
            "sequence_major", "batch_major", "packed".
        fill: number that is written after a sequence's end in a padded output (None: left as it is).

    Raises:
        ValueError: lengths that do not fit. CudnnError: the library refuses (more than 65,535 steps, say).

    C: cudnnSetRNNDataDescriptor, cudnnGetRNNDataDescriptor.
    """

    kind = "RNNDataDescriptor"

    def __init__(
        self,
        *,
        data_type: Name = "float32",
        max_length: int,
        batch: int,
        vector_size: int,
        lengths: Sequence[int] | None = None,
        layout: Name = "seq_major_unpacked",
        fill: float | None = 0.0,
    ) -> None:
        kind, where = (
            flag(DataType, data_type),
            flag(RNNLayout, _ALIASES.get(layout.lower(), layout) if isinstance(layout, str) else layout),
        )
        sizes = (max_length,) * batch if lengths is None else integers("lengths", lengths)
        packed = where == c.CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED
        _check_lengths(sizes, max_length, batch, packed)
        super().__init__()
        self.batch, self.max_length, self.vector_size, self.lengths = batch, max_length, vector_size, sizes
        self.layout, self.data_type = where, kind
        try:
            call(c.cudnnSetRNNDataDescriptor, self, kind, where, max_length, batch, vector_size, sizes, fill)
        except CudnnNotSupported as error:
            if max_length > LENGTH_LIMIT:
                error.add_note(_TOO_LONG.format(max_length))
            raise

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array, by the layout."""
        if self.layout == c.CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED:
            return sum(self.lengths), self.vector_size
        if self.layout == c.CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED:
            return self.batch, self.max_length, self.vector_size
        return self.max_length, self.batch, self.vector_size

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * numpy_type(self.data_type).itemsize

    def get(self) -> RNNDataSettings:
        """The settings, read back from cuDNN."""
        kind, layout, length, batch, size, lengths, fill = call(c.cudnnGetRNNDataDescriptor, self, self.batch)
        return RNNDataSettings(kind, layout, length, batch, size, tuple(lengths), fill)


def _check_lengths(lengths: Sequence[int], longest: int, batch: int, packed: bool) -> None:
    if len(lengths) != batch:
        raise ValueError(f"RNNData: lengths has {len(lengths)} entries, batch is {batch}")
    wrong = [(i, n) for i, n in enumerate(lengths) if not 0 <= n <= longest]
    if wrong:
        raise ValueError(f"RNNData: lengths[{wrong[0][0]}] is {wrong[0][1]}, it must be from 0 to {longest}")
    if packed and list(lengths) != sorted(lengths, reverse=True):
        raise ValueError(
            "RNNData: the packed layout needs lengths sorted, longest first; got " + str(lengths)
        )
