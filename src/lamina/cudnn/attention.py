"""Attention and what is around it: scaled dot products, softmax, masks, paged caches, rotary embedding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from lamina.c import cudnn as c
from lamina.cudnn.descriptor import Attribute, Descriptor, attribute, named, tensors
from lamina.cudnn.tensor import Tensor

_KIND = c.cudnnBackendDescriptorType_t


class AttentionForward(Descriptor):
    """o = softmax(scale * q @ kᵀ) @ v as one operation (CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR, cuDNN 9.13).

    Args:
        q, k, v, o: [batch, heads, length, features].
        scale: one number. stats: written, [batch, heads, length of q, 1], for the backward pass.
        block_mask: uint8, one bit per tile of 128 x 128 (9.14).
        page_table_k, page_table_v: int32 [batch, 1, pages, 1]; k and v are then pools of pages (9.15).
        length_q, length_kv: int32 [batch, 1, 1, 1] (9.15).
    """

    kind = _KIND.CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = tensors(
        "OPERATION_SDPA_FWD_",
        q="QDESC",
        k="KDESC",
        v="VDESC",
        o="ODESC",
        stats="STATSDESC",
        scale="SCALEDESC",
        block_mask="BLOCK_MASK_DESC",
        page_table_k="PAGE_TABLE_KDESC",
        page_table_v="PAGE_TABLE_VDESC",
        length_q="SEQ_LEN_QDESC",
        length_kv="SEQ_LEN_KVDESC",
    )

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        o: Tensor,
        *,
        scale: Tensor | None = None,
        stats: Tensor | None = None,
        block_mask: Tensor | None = None,
        page_table_k: Tensor | None = None,
        page_table_v: Tensor | None = None,
        length_q: Tensor | None = None,
        length_kv: Tensor | None = None,
    ) -> None:
        super().__init__(
            q=q,
            k=k,
            v=v,
            o=o,
            stats=stats,
            scale=scale,
            block_mask=block_mask,
            page_table_k=page_table_k,
            page_table_v=page_table_v,
            length_q=length_q,
            length_kv=length_kv,
        )


class AttentionBackward(Descriptor):
    """dq, dk and dv of `AttentionForward` (CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR, cuDNN 9.17)."""

    kind = _KIND.CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = tensors(
        "OPERATION_SDPA_BWD_",
        q="QDESC",
        k="KDESC",
        v="VDESC",
        o="ODESC",
        stats="STATSDESC",
        scale="SCALEDESC",
        length_q="SEQ_LEN_QDESC",
        length_kv="SEQ_LEN_KVDESC",
        dq="DQDESC",
        dk="DKDESC",
        dv="DVDESC",
        do="DODDESC",
        sink="SINK_DESC",
        dsink="DSINK_DESC",
        dbias="DBIAS_DESC",
    )

    def __init__(
        self,
        do: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        o: Tensor,
        *,
        stats: Tensor,
        dq: Tensor,
        dk: Tensor,
        dv: Tensor,
        scale: Tensor | None = None,
        length_q: Tensor | None = None,
        length_kv: Tensor | None = None,
        sink: Tensor | None = None,
        dsink: Tensor | None = None,
        dbias: Tensor | None = None,
    ) -> None:
        super().__init__(
            q=q,
            k=k,
            v=v,
            o=o,
            stats=stats,
            scale=scale,
            length_q=length_q,
            length_kv=length_kv,
            dq=dq,
            dk=dk,
            dv=dv,
            do=do,
            sink=sink,
            dsink=dsink,
            dbias=dbias,
        )


class Softmax(Descriptor):
    """y = softmax of x along its last axis (cuDNN 9.20).

    Args:
        stats, maximum, sum_exp: written, as x with a last axis of 1: log-sum-exp and its two parts.
        sink: one extra logit per head.
        log2: the statistics are to base 2 (cuDNN 9.27).
    """

    kind = _KIND.CUDNN_BACKEND_OPERATION_SOFTMAX_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        **tensors(
            "OPERATION_SOFTMAX_",
            x="XDESC",
            y="YDESC",
            stats="STATS_DESC",
            maximum="MAX_DESC",
            sum_exp="SUM_EXP_DESC",
            sink="SINK_DESC",
        ),
        "log2": attribute("OPERATION_SOFTMAX_STATS_LOG2", "BOOLEAN"),
    }

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        *,
        stats: Tensor | None = None,
        maximum: Tensor | None = None,
        sum_exp: Tensor | None = None,
        sink: Tensor | None = None,
        log2: bool | None = None,
    ) -> None:
        super().__init__(x=x, y=y, stats=stats, maximum=maximum, sum_exp=sum_exp, sink=sink, log2=log2)


class DiagonalBandMask(Descriptor):
    """y = x within a band around the diagonal, b outside of it (cuDNN 9.20).

    Args:
        x, y: scores [batch, heads, rows, columns]. b: what stands outside, one number.
        left, right: one number each, how far the band goes.
        length_q, length_kv: int32 [batch, 1, 1, 1], for a band at the bottom right.
        comparison: a pointwise comparison mode, "cmp_ge" by default in the library.
    """

    kind = _KIND.CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        **tensors(
            "OPERATION_DIAGONAL_BAND_MASK_",
            x="XDESC",
            length_kv="SEQ_LEN_KVDESC",
            length_q="SEQ_LEN_QDESC",
            left="LEFT_BOUND_DESC",
            right="SHIFT_RIGHT_BOUND_DESC",
            b="BDESC",
            y="YDESC",
        ),
        "comparison": attribute(
            "OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE", "POINTWISE_MODE", enum=c.cudnnPointwiseMode_t
        ),
    }

    def __init__(
        self,
        x: Tensor,
        b: Tensor,
        y: Tensor,
        *,
        left: Tensor | None = None,
        right: Tensor | None = None,
        length_q: Tensor | None = None,
        length_kv: Tensor | None = None,
        comparison: str | int | None = None,
    ) -> None:
        modes = c.cudnnPointwiseMode_t
        super().__init__(
            x=x,
            length_kv=length_kv,
            length_q=length_q,
            left=left,
            right=right,
            b=b,
            y=y,
            comparison=None
            if comparison is None
            else named(modes, "CUDNN_POINTWISE_", comparison, "comparison"),
        )


class PagedCacheLoad(Descriptor):
    """y = the pages of a container in the order that a table names (cuDNN 9.4).

    Args:
        container: [pages, heads, page length, features].
        lengths: int32 [batch, 1, 1, 1]. table: int32 [batch, 1, pages of the longest, 1].
        y: [batch, heads, longest, features], or with its last two axes exchanged.
    """

    kind = _KIND.CUDNN_BACKEND_OPERATION_PAGED_CACHE_LOAD_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = tensors(
        "OPERATION_PAGED_CACHE_LOAD_",
        container="CONTAINER_DESC",
        y="YDESC",
        lengths="SEQUENCE_DESC",
        table="PAGE_TABLE_DESC",
    )

    def __init__(self, container: Tensor, lengths: Tensor, table: Tensor, y: Tensor) -> None:
        super().__init__(container=container, y=y, lengths=lengths, table=table)


_EXPAND, _CONTRACT = "OPERATION_EXPAND_BAND_MATRIX_", "OPERATION_CONTRACT_BAND_"


class BandMatrixExpand(Descriptor):
    """y = a matrix whose band is x, `pad` elsewhere (cuDNN 9.10).

    Args:
        lower, upper: diagonals below and above the main one.
        axis: the axis along which x holds the band.
        pad: what stands outside of the band.
        token_offset, mask: for speculative decoding; mask since cuDNN 9.13.
    """

    kind = _KIND.CUDNN_BACKEND_OPERATION_EXPAND_BAND_MATRIX_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        **tensors(
            _EXPAND,
            x="XDESC",
            y="YDESC",
            token_offset="KV_TOKEN_OFFSET_DESC",
            mask="SPECULATIVE_MASK_DESC",
        ),
        "lower": attribute(_EXPAND + "LOWER_BANDWIDTH"),
        "upper": attribute(_EXPAND + "UPPER_BANDWIDTH"),
        "axis": attribute(_EXPAND + "AXIS"),
        "pad": attribute(_EXPAND + "PAD_VALUE", "FLOAT"),
    }

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        *,
        lower: int,
        upper: int,
        axis: int,
        pad: float = 0.0,
        token_offset: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> None:
        super().__init__(
            x=x,
            y=y,
            lower=lower,
            upper=upper,
            axis=axis,
            pad=pad,
            token_offset=token_offset,
            mask=mask,
        )


class BandMatrixContract(Descriptor):
    """y = the band of the matrix x; the opposite of `BandMatrixExpand` (cuDNN 9.10).

    most_tokens: the largest number of tokens.
    """

    kind = _KIND.CUDNN_BACKEND_OPERATION_CONTRACT_BAND_MATRIX_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        **tensors(_CONTRACT + "MATRIX_", x="XDESC", y="YDESC"),
        "lower": attribute(_CONTRACT + "MATRIX_LOWER_BANDWIDTH"),
        "upper": attribute(_CONTRACT + "MATRIX_UPPER_BANDWIDTH"),
        "axis": attribute(_CONTRACT + "MATRIX_AXIS"),
        "pad": attribute(_CONTRACT + "MATRIX_PAD_VALUE", "FLOAT"),
        "most_tokens": attribute(_CONTRACT + "MAX_TOKEN_VALUE"),
    }

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        *,
        lower: int,
        upper: int,
        axis: int,
        pad: float = 0.0,
        most_tokens: int | None = None,
    ) -> None:
        super().__init__(x=x, y=y, lower=lower, upper=upper, axis=axis, pad=pad, most_tokens=most_tokens)


def _rope(direction: str, **names: str) -> dict[str, Attribute]:
    prefix = f"OPERATION_ROPE_{direction}_"
    return {
        **tensors(prefix, **names),
        "scale": attribute(prefix + "OUTPUT_SCALE", "FLOAT"),
        "width": attribute(prefix + "ROPE_DIM"),
    }


class RopeForward(Descriptor):
    """y = x turned by its position (rotary embedding, cuDNN 9.24).

    Args:
        x, y: [batch, heads, length, features]. frequencies: float32 [1, 1, length, width].
        scale: factor of the result. width: how many features are turned.
    """

    kind = _KIND.CUDNN_BACKEND_OPERATION_ROPE_FWD_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = _rope(
        "FWD", x="XDESC", y="YDESC", frequencies="FREQSDESC"
    )

    def __init__(
        self,
        x: Tensor,
        frequencies: Tensor,
        y: Tensor,
        *,
        scale: float | None = None,
        width: int | None = None,
    ) -> None:
        super().__init__(x=x, y=y, frequencies=frequencies, scale=scale, width=width)


class RopeBackward(Descriptor):
    """dx of `RopeForward` from dy (cuDNN 9.24.1)."""

    kind = _KIND.CUDNN_BACKEND_OPERATION_ROPE_BWD_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = _rope(
        "BWD", dy="DYDESC", dx="DXDESC", frequencies="FREQSDESC"
    )

    def __init__(
        self,
        dy: Tensor,
        frequencies: Tensor,
        dx: Tensor,
        *,
        scale: float | None = None,
        width: int | None = None,
    ) -> None:
        super().__init__(dy=dy, dx=dx, frequencies=frequencies, scale=scale, width=width)
