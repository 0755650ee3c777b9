"""Multi-head attention and the sequences that it works on: cuDNN's older interface.

    attention = MultiHeadAttention(
        heads=4, q_size=64, k_size=64, v_size=64, q_projection=16, k_projection=16, v_projection=16, o_projection=64,
        max_q_length=32, max_kv_length=48, max_batch=8, scale=16**-0.5,
    )
    reserve = attention.forward(
        handle, q_desc=q_desc, queries=q, k_desc=k_desc, keys=k, v_desc=v_desc, values=v, o_desc=o_desc, out=out,
        weights=weights, training=True,
    )

Per head i: a_i = softmax(scale * (K W_k,i)(Q W_q,i)), out = sum over i of W_o,i (a_i (V W_v,i)) + residual; without
an output projection the heads stand side by side. cuDNN has deprecated all of this in favour of attention in
graphs, and still runs it; `lamina.cudnn.Graph` is the faster way.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from lamina.c import cudnn as c
from lamina.cudnn.descriptor import integers
from lamina.cudnn.legacy.attention_weights import AttentionLayout, WeightEntry
from lamina.cudnn.legacy.base import AnyHandle, Descriptor, Memory, call
from lamina.cudnn.legacy.flags import PREFIXES, DataType, MathType, Name, flag, short
from lamina.cudnn.legacy.handles import Scratch, by_size, kept, scratch, sized
from lamina.cudnn.legacy.rnn_weights import numpy_type
from lamina.cudnn.legacy.sequence import SequenceData
from lamina.cudnn.legacy.tensor import TensorDescriptor

WeightKind: TypeAlias = c.cudnnMultiHeadAttnWeightKind_t

PREFIXES[WeightKind] = "CUDNN_MH_ATTN_"
_BASE = 1 << 40  # a stand-in address of the weights, to read offsets from


# ------------------------------------------------------------------------------------------------ attention


class AttentionSettings(NamedTuple):
    """What `MultiHeadAttention.get` returns."""

    heads: int
    q_size: int
    k_size: int
    v_size: int
    q_projection: int
    k_projection: int
    v_projection: int
    o_projection: int
    max_q_length: int
    max_kv_length: int
    max_batch: int
    max_beam: int
    scale: float
    data_type: DataType
    compute_type: DataType
    math_type: MathType
    attention_dropout: Descriptor | None
    output_dropout: Descriptor | None
    query_map: str
    biases: bool


class AttentionSpaces(NamedTuple):
    """Bytes that a `MultiHeadAttention` needs."""

    weights: int
    workspace: int
    reserve: int


class MultiHeadAttention(Descriptor):
    """Multi-head attention of cuDNN's older interface.

    Args:
        heads: how many.
        q_size, k_size, v_size: lengths of the vectors of queries, keys and values.
        q_projection, k_projection, v_projection: what each head projects them to; 0: no projection. Queries and
            keys must come out alike.
        o_projection: length of the output; 0: the heads side by side.
        max_q_length, max_kv_length, max_batch, max_beam: the largest that will be run.
        scale: that the scores are multiplied by, 0 or more.
        data_type: "float32", "float64" or "float16".
        compute_type: None: float64 for float64, else float32.
        math_type: "default", "fma", "tensor_op", "tensor_op_math_allow_conversion".
        attention_dropout, output_dropout: Dropouts for training; they stay alive with this object.
        query_map: "all_to_one" (all beams of queries see one set of keys) or "one_to_one" (which cuDNN takes for
            a single beam only).
        biases: projections have biases (the library has no gradients for them).

    Raises:
        ValueError: another query_map. CudnnError: the library refuses.

    C: cudnnSetAttnDescriptor, cudnnGetAttnDescriptor (deprecated).
    """

    kind = "AttnDescriptor"

    def __init__(
        self,
        *,
        heads: int,
        q_size: int,
        k_size: int,
        v_size: int,
        q_projection: int = 0,
        k_projection: int = 0,
        v_projection: int = 0,
        o_projection: int = 0,
        max_q_length: int,
        max_kv_length: int,
        max_batch: int,
        max_beam: int = 1,
        scale: float = 1.0,
        data_type: Name = "float32",
        compute_type: Name | None = None,
        math_type: Name = "default",
        attention_dropout: Descriptor | None = None,
        output_dropout: Descriptor | None = None,
        query_map: str = "all_to_one",
        biases: bool = False,
    ) -> None:
        if query_map not in _MAPS:
            raise ValueError(f"MultiHeadAttention: query_map must be one of {list(_MAPS)}, got {query_map!r}")
        element = flag(DataType, data_type)
        if compute_type is None:
            compute_type = "float64" if element == c.CUDNN_DATA_DOUBLE else "float32"
        self._dropouts = (attention_dropout, output_dropout)
        self._held = [d.native for d in self._dropouts if d is not None]
        super().__init__()
        self.data_type, self.max_kv_length = element, max_kv_length
        mode = _MAPS[query_map] | (c.CUDNN_ATTN_ENABLE_PROJ_BIASES if biases else 0)
        types = (element, flag(DataType, compute_type), flag(MathType, math_type))
        sizes = (q_size, k_size, v_size, q_projection, k_projection, v_projection, o_projection)
        limits = (max_q_length, max_kv_length, max_batch, max_beam)
        settings = (mode, heads, float(scale), *types, *self._dropouts, *sizes, *limits)
        call(c.cudnnSetAttnDescriptor, self, *settings)

    def get(self) -> AttentionSettings:
        """The settings, read back from cuDNN."""
        got = call(c.cudnnGetAttnDescriptor, self)
        one = got.attnMode & c.CUDNN_ATTN_QUERYMAP_ONE_TO_ONE
        return AttentionSettings(
            got.nHeads,
            *(got.qSize, got.kSize, got.vSize),
            *(got.qProjSize, got.kProjSize, got.vProjSize, got.oProjSize),
            *(got.qoMaxSeqLength, got.kvMaxSeqLength, got.maxBatchSize, got.maxBeamSize),
            got.smScaler,
            got.dataType,
            got.computePrec,
            got.mathType,
            self._dropouts[0] if got.attnDropoutDesc else None,
            self._dropouts[1] if got.postDropoutDesc else None,
            "one_to_one" if one else "all_to_one",
            bool(got.attnMode & c.CUDNN_ATTN_ENABLE_PROJ_BIASES),
        )

    @property
    def output_size(self) -> int:
        """Length of a vector of the output."""
        got = self.get()
        return got.o_projection or got.heads * (got.v_projection or got.v_size)

    # ---- sizes and weights
    def space_sizes(self, handle: AnyHandle, *, training: bool = True) -> AttentionSpaces:
        """Bytes of weights, workspace and reserve; without training there is no reserve, and another workspace.

        C: cudnnGetMultiHeadAttnBuffers.
        """
        if training:
            return AttentionSpaces(*call(c.cudnnGetMultiHeadAttnBuffers, handle, self))
        return call(_inference_sizes, handle, self)

    def weight_layout(self, handle: AnyHandle) -> AttentionLayout:
        """Where the weights are. C: cudnnGetMultiHeadAttnWeights."""
        nbytes = self.space_sizes(handle).weights
        entries = (self._entry(handle, nbytes, kind) for kind in WeightKind) if nbytes else ()
        return AttentionLayout(self.data_type, nbytes, tuple(e for e in entries if e is not None))

    def _entry(self, handle: AnyHandle, nbytes: int, kind: WeightKind) -> WeightEntry | None:
        if not self.get().biases and "BIASES" in kind.name:
            return None
        desc = TensorDescriptor.empty(None)
        address = call(c.cudnnGetMultiHeadAttnWeights, handle, self, kind, nbytes, _BASE, desc)
        if not address:
            return None
        offset = (address - _BASE) // numpy_type(self.data_type).itemsize
        return WeightEntry(short(kind), offset, desc.dims, desc.strides)

    # ---- calls
    def forward(
        self,
        handle: AnyHandle,
        *,
        q_desc: SequenceData,
        queries: Memory,
        k_desc: SequenceData,
        keys: Memory,
        v_desc: SequenceData,
        values: Memory,
        o_desc: SequenceData,
        out: Memory,
        weights: Memory | tuple[Memory, int] = None,
        residuals: Memory = None,
        window: tuple[Sequence[int], Sequence[int]] | None = None,
        step: int = -1,
        training: bool = False,
        q_lengths: Memory = None,
        kv_lengths: Memory = None,
        workspace: Memory | tuple[Memory, int] = None,
        reserve: Memory | tuple[Memory, int] = None,
    ) -> Scratch:
        """Queue out = attention(queries, keys, values) + residuals.

        Args:
            handle: on which device and stream.
            q_desc, k_desc, v_desc, o_desc: of the arrays before and after; vectors of out have `output_size`.
            weights: None where nothing is projected.
            residuals: added to out, of its shape.
            window: (low, high) per query position: it sees the keys low <= j < high; None: all.
            step: compute this position alone (inference, one after the other); -1: all.
            training: keep what the gradients need.
            q_lengths, kv_lengths: (batch * beam,) int32 on the device; None: those of q_desc and k_desc.
            workspace, reserve: memory of `space_sizes`; None: the handle's scratch, and fresh memory.

        Returns:
            The reserve for the gradients. Without training: (None, 0).

        Raises:
            CudnnError: the library refuses. ValueError: a window of another length.

        C: cudnnMultiHeadAttnForward.
        """
        low, high = self._window(window, q_desc)
        lengths = self._lengths(handle, q_desc, k_desc, q_lengths, kv_lengths)
        work = scratch(handle, workspace, lambda: self.space_sizes(handle, training=training).workspace)
        nothing = Scratch(None, 0)
        keep = kept(handle, reserve, lambda: self.space_sizes(handle).reserve) if training else nothing
        arrays = (q_desc, queries, residuals, k_desc, keys, v_desc, values, o_desc, out)
        spaces = by_size(sized("weights", weights), work, keep)
        call(c.cudnnMultiHeadAttnForward, handle, self, step, low, high, *lengths, *arrays, *spaces)
        return keep

    def backward_data(
        self,
        handle: AnyHandle,
        *,
        o_desc: SequenceData,
        dout: Memory,
        q_desc: SequenceData,
        queries: Memory,
        dqueries: Memory,
        k_desc: SequenceData,
        keys: Memory,
        dkeys: Memory,
        v_desc: SequenceData,
        values: Memory,
        dvalues: Memory,
        reserve: Memory | tuple[Memory, int],
        weights: Memory | tuple[Memory, int] = None,
        window: tuple[Sequence[int], Sequence[int]] | None = None,
        q_lengths: Memory = None,
        kv_lengths: Memory = None,
        workspace: Memory | tuple[Memory, int] = None,
    ) -> None:
        """Queue the gradients of queries, keys and values; call it before `backward_weights`.

        The residuals' gradient is dout itself: where residuals were the queries, add dout to dqueries.

        C: cudnnMultiHeadAttnBackwardData.
        """
        low, high = self._window(window, q_desc)
        lengths = self._lengths(handle, q_desc, k_desc, q_lengths, kv_lengths)
        work = scratch(handle, workspace, lambda: self.space_sizes(handle).workspace)
        arrays = (o_desc, dout, q_desc, dqueries, queries, k_desc, dkeys, keys, v_desc, dvalues, values)
        spaces = by_size(sized("weights", weights), work, sized("reserve", reserve))
        call(c.cudnnMultiHeadAttnBackwardData, handle, self, low, high, *lengths, *arrays, *spaces)

    def backward_weights(
        self,
        handle: AnyHandle,
        *,
        q_desc: SequenceData,
        queries: Memory,
        k_desc: SequenceData,
        keys: Memory,
        v_desc: SequenceData,
        values: Memory,
        o_desc: SequenceData,
        dout: Memory,
        weights: Memory | tuple[Memory, int],
        dweights: Memory,
        reserve: Memory | tuple[Memory, int],
        accumulate: bool = False,
        workspace: Memory | tuple[Memory, int] = None,
    ) -> None:
        """Queue the gradients of the weights into dweights, laid out as the weights; or add them to it.

        C: cudnnMultiHeadAttnBackwardWeights.
        """
        work = scratch(handle, workspace, lambda: self.space_sizes(handle).workspace)
        mode = c.CUDNN_WGRAD_MODE_ADD if accumulate else c.CUDNN_WGRAD_MODE_SET
        arrays = (q_desc, queries, k_desc, keys, v_desc, values, o_desc, dout)
        first, second, *rest = by_size(sized("weights", weights), work, sized("reserve", reserve))
        function: Callable[..., None] = c.cudnnMultiHeadAttnBackwardWeights
        call(function, handle, self, mode, *arrays, first, second, dweights, *rest)

    def _window(
        self, window: tuple[Sequence[int], Sequence[int]] | None, q_desc: SequenceData
    ) -> tuple[list[int], list[int]]:
        """(low, high) per query position, as host arrays."""
        if window is None:
            return [0] * q_desc.time, [self.max_kv_length] * q_desc.time
        low, high = (list(integers("window", side)) for side in window)
        if not len(low) == len(high) == q_desc.time:
            raise ValueError(
                f"attention: window has {len(low)} and {len(high)} entries, the queries have {q_desc.time} positions"
            )
        return low, high

    @staticmethod
    def _lengths(
        handle: AnyHandle, q_desc: SequenceData, k_desc: SequenceData, q_lengths: Memory, kv_lengths: Memory
    ) -> tuple[Memory, Memory]:
        queries = q_desc.device_lengths(handle) if q_lengths is None else q_lengths
        return queries, k_desc.device_lengths(handle) if kv_lengths is None else kv_lengths


def _inference_sizes(handle: int, descriptor: int) -> AttentionSpaces:
    """cudnnGetMultiHeadAttnBuffers with a null pointer for the reserve, which says that there is no training."""
    weights, workspace = ctypes.c_size_t(), ctypes.c_size_t()
    name = "cudnnGetMultiHeadAttnBuffers"
    slots = (ctypes.byref(weights), ctypes.byref(workspace), None)
    status = getattr(c.library.symbols, name)(handle, descriptor, *slots)
    if status:
        raise c.library.failure(status, name, {"handle": handle, "attnDesc": descriptor})
    return AttentionSpaces(weights.value, workspace.value, 0)


_MAPS = {
    "all_to_one": c.CUDNN_ATTN_QUERYMAP_ALL_TO_ONE,
    "one_to_one": c.CUDNN_ATTN_QUERYMAP_ONE_TO_ONE,
}
