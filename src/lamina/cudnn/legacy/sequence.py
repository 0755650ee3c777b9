"""Batches and beams of sequences, as multi-head attention reads and writes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from lamina.c import cudnn as c
from lamina.cudnn.descriptor import integers
from lamina.cudnn.legacy.base import AnyHandle, Descriptor, call
from lamina.cudnn.legacy.flags import PREFIXES, DataType, Name, flag, short
from lamina.cudnn.legacy.handles import Handle
from lamina.cudnn.legacy.rnn_weights import numpy_type
from lamina.runtime import Buffer, Device, from_host

Axis: TypeAlias = c.cudnnSeqDataAxis_t
PREFIXES[Axis] = "CUDNN_SEQDATA_"
_AXES = {"time": 0, "batch": 1, "beam": 2}
_FLOATS = (c.CUDNN_DATA_DOUBLE, c.CUDNN_DATA_FLOAT, c.CUDNN_DATA_HALF)


class SequenceSettings(NamedTuple):
    """What `SequenceData.get` returns."""

    data_type: DataType
    time: int
    batch: int
    beam: int
    vector_size: int
    order: tuple[str, ...]
    lengths: tuple[int, ...]
    fill: float


class SequenceData(Descriptor):
    """How batches (and beams) of sequences of vectors are stored, packed.

    Args:
        data_type: "float32", "float64" or "float16".
        time: vectors of the longest sequence.
        batch, beam: how many sequences: batch * beam.
        vector_size: length of a vector.
        lengths: of each sequence, 1 to time, the beams of a batch entry next to each other; left out: time.
        order: of the axes in memory, outermost first: "time", "batch", "beam" in any order; the vectors lie
            innermost.
        fill: number after a sequence's end; None: left as it is (the only choice that cuDNN follows).

    Raises:
        ValueError: lengths, order or type that do not fit. CudnnError: the library refuses.

    C: cudnnSetSeqDataDescriptor, cudnnGetSeqDataDescriptor (deprecated).
    """

    kind = "SeqDataDescriptor"

    def __init__(
        self,
        *,
        data_type: Name = "float32",
        time: int,
        batch: int,
        beam: int = 1,
        vector_size: int,
        lengths: Sequence[int] | None = None,
        order: Sequence[str] = ("time", "batch", "beam"),
        fill: float | None = None,
    ) -> None:
        kind = flag(DataType, data_type)
        if kind not in _FLOATS:
            raise ValueError(
                f"SequenceData: data_type must be float32, float64 or float16, got {short(kind)!r}"
            )
        if sorted(order) != sorted(_AXES):
            raise ValueError(f"SequenceData: order must hold 'time', 'batch' and 'beam', got {tuple(order)}")
        sizes = (time,) * (batch * beam) if lengths is None else integers("lengths", lengths)
        _check_lengths(sizes, time, batch, beam)
        super().__init__()
        self.time, self.batch, self.beam, self.vector_size = time, batch, beam, vector_size
        self.order, self.lengths, self.data_type = tuple(order), sizes, kind
        self._on_device: dict[Device, Buffer] = {}
        axes = [_AXES[name] for name in order] + [int(c.CUDNN_SEQDATA_VECT_DIM)]
        dims = (time, batch, beam, vector_size)
        call(c.cudnnSetSeqDataDescriptor, self, kind, len(dims), dims, axes, len(sizes), sizes, fill)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the array, in the order of its axes."""
        sizes = {"time": self.time, "batch": self.batch, "beam": self.beam}
        first, second, third = (sizes[name] for name in self.order)
        return first, second, third, self.vector_size

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * numpy_type(self.data_type).itemsize

    def device_lengths(self, handle: AnyHandle) -> Buffer:
        """The lengths as (batch * beam,) int32 on the handle's device; made once, alive with this object.

        Raises:
            TypeError: a bare handle.
        """
        if not isinstance(handle, Handle):
            raise TypeError("attention: a bare handle provides no memory; pass q_lengths and kv_lengths")
        found = self._on_device.get(handle.device)
        if found is None:
            found = self._on_device[handle.device] = from_host(
                np.array(self.lengths, np.int32), handle.device
            )
        if handle.runtime_stream is not None:
            found.used_on(handle.runtime_stream)
        return found

    def get(self) -> SequenceSettings:
        """The settings, read back from cuDNN."""
        got = call(c.cudnnGetSeqDataDescriptor, self, len(_AXES) + 1, self.batch * self.beam)
        names = list(_AXES)
        order = tuple(names[axis] for axis in got.axes[:3])
        time, batch, beam, size = got.dimA
        lengths = tuple(got.seqLengthArray)
        return SequenceSettings(got.dataType, time, batch, beam, size, order, lengths, got.paddingFill)


def _check_lengths(lengths: Sequence[int], time: int, batch: int, beam: int) -> None:
    if len(lengths) != batch * beam:
        raise ValueError(f"SequenceData: lengths has {len(lengths)} entries, batch * beam is {batch * beam}")
    wrong = [(i, n) for i, n in enumerate(lengths) if not 1 <= n <= time]
    if wrong:
        raise ValueError(
            f"SequenceData: lengths[{wrong[0][0]}] is {wrong[0][1]}, it must be from 1 to {time}"
        )
