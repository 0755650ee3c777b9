"""Attention and related operations: scaled dot products, softmax, masks, paged caches, rotary embedding."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any

from lamina.c import cudnn as c
from lamina.cudnn.descriptor import named
from lamina.cudnn.fields import Declared, operand, setting
from lamina.cudnn.tensor import Tensor

_KIND = c.cudnnBackendDescriptorType_t


class AttentionForward(Declared):
    """o = softmax(scale * q @ kᵀ) @ v as one operation (CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR, cuDNN 9.13).

    Args:
        q, k, v, o: [batch, heads, length, features].
        scale: one number. stats: written, [batch, heads, length of q, 1], for the backward pass.
        block_mask: uint8, one bit per tile of 128 x 128 (9.14).
        page_table_k, page_table_v: int32 [batch, 1, pages, 1]; k and v are then pools of pages (9.15).
        length_q, length_kv: int32 [batch, 1, 1, 1] (9.15).
    """

    kind = _KIND.CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR
    q: Tensor = operand("QDESC")
    k: Tensor = operand("KDESC")
    v: Tensor = operand("VDESC")
    o: Tensor = operand("ODESC")
    _: KW_ONLY
    scale: Tensor | None = operand("SCALEDESC", default=None)
    stats: Tensor | None = operand("STATSDESC", default=None)
    block_mask: Tensor | None = operand("BLOCK_MASK_DESC", default=None)
    page_table_k: Tensor | None = operand("PAGE_TABLE_KDESC", default=None)
    page_table_v: Tensor | None = operand("PAGE_TABLE_VDESC", default=None)
    length_q: Tensor | None = operand("SEQ_LEN_QDESC", default=None)
    length_kv: Tensor | None = operand("SEQ_LEN_KVDESC", default=None)


class AttentionBackward(Declared):
    """dq, dk and dv of `AttentionForward` (CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR, cuDNN 9.17)."""

    kind = _KIND.CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR
    do: Tensor = operand("DODDESC")
    q: Tensor = operand("QDESC")
    k: Tensor = operand("KDESC")
    v: Tensor = operand("VDESC")
    o: Tensor = operand("ODESC")
    _: KW_ONLY
    stats: Tensor = operand("STATSDESC")
    dq: Tensor = operand("DQDESC")
    dk: Tensor = operand("DKDESC")
    dv: Tensor = operand("DVDESC")
    scale: Tensor | None = operand("SCALEDESC", default=None)
    length_q: Tensor | None = operand("SEQ_LEN_QDESC", default=None)
    length_kv: Tensor | None = operand("SEQ_LEN_KVDESC", default=None)
    sink: Tensor | None = operand("SINK_DESC", default=None)
    dsink: Tensor | None = operand("DSINK_DESC", default=None)
    dbias: Tensor | None = operand("DBIAS_DESC", default=None)


class Softmax(Declared):
    """y = softmax of x along its last axis (cuDNN 9.20).

    Args:
        stats, maximum, sum_exp: written, as x with a last axis of 1: log-sum-exp and its two parts.
        sink: one extra logit per head.
        log2: the statistics are to base 2 (cuDNN 9.27).
    """

    kind = _KIND.CUDNN_BACKEND_OPERATION_SOFTMAX_DESCRIPTOR
    x: Tensor = operand("XDESC")
    y: Tensor = operand("YDESC")
    _: KW_ONLY
    stats: Tensor | None = operand("STATS_DESC", default=None)
    maximum: Tensor | None = operand("MAX_DESC", default=None)
    sum_exp: Tensor | None = operand("SUM_EXP_DESC", default=None)
    sink: Tensor | None = operand("SINK_DESC", default=None)
    log2: bool | None = setting("STATS_LOG2", "BOOLEAN", default=None)


def _comparison(mode: str | int) -> Any:
    return named(c.cudnnPointwiseMode_t, "CUDNN_POINTWISE_", mode, "comparison")


class DiagonalBandMask(Declared):
    """y = x within a band around the diagonal, b outside of it (cuDNN 9.20).

    Args:
        x, y: scores [batch, heads, rows, columns]. b: the value outside of the band, one number.
        left, right: one number each, the extent of the band.
        length_q, length_kv: int32 [batch, 1, 1, 1], for a band at the bottom right.
        comparison: a pointwise comparison mode, "cmp_ge" by default in the library.
    """

    kind = _KIND.CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR
    x: Tensor = operand("XDESC")
    b: Tensor = operand("BDESC")
    y: Tensor = operand("YDESC")
    _: KW_ONLY
    left: Tensor | None = operand("LEFT_BOUND_DESC", default=None)
    right: Tensor | None = operand("SHIFT_RIGHT_BOUND_DESC", default=None)
    length_q: Tensor | None = operand("SEQ_LEN_QDESC", default=None)
    length_kv: Tensor | None = operand("SEQ_LEN_KVDESC", default=None)
    comparison: str | int | None = setting(
        "COMPARISON_MODE", "POINTWISE_MODE", default=None, enum=c.cudnnPointwiseMode_t, convert=_comparison
    )


class PagedCacheLoad(Declared):
    """y = the pages of a container in the order that a table names (cuDNN 9.4).

    Args:
        container: [pages, heads, page length, features].
        lengths: int32 [batch, 1, 1, 1]. table: int32 [batch, 1, pages of the longest, 1].
        y: [batch, heads, longest, features], or with its last two axes transposed.
    """

    kind = _KIND.CUDNN_BACKEND_OPERATION_PAGED_CACHE_LOAD_DESCRIPTOR
    container: Tensor = operand("CONTAINER_DESC")
    lengths: Tensor = operand("SEQUENCE_DESC")
    table: Tensor = operand("PAGE_TABLE_DESC")
    y: Tensor = operand("YDESC")


class BandMatrixExpand(Declared):
    """y = a matrix whose band is x, `pad` elsewhere (cuDNN 9.10).

    Args:
        lower, upper: diagonals below and above the main one.
        axis: the axis along which x holds the band.
        pad: the value outside of the band.
        token_offset, mask: for speculative decoding; mask since cuDNN 9.13.
    """

    kind = _KIND.CUDNN_BACKEND_OPERATION_EXPAND_BAND_MATRIX_DESCRIPTOR
    x: Tensor = operand("XDESC")
    y: Tensor = operand("YDESC")
    _: KW_ONLY
    lower: int = setting("LOWER_BANDWIDTH")
    upper: int = setting("UPPER_BANDWIDTH")
    axis: int = setting("AXIS")
    pad: float = setting("PAD_VALUE", "FLOAT", default=0.0)
    token_offset: Tensor | None = operand("KV_TOKEN_OFFSET_DESC", default=None)
    mask: Tensor | None = operand("SPECULATIVE_MASK_DESC", default=None)


class BandMatrixContract(Declared):
    """y = the band of the matrix x; the opposite of `BandMatrixExpand` (cuDNN 9.10).

    most_tokens: the largest number of tokens.
    """

    kind = _KIND.CUDNN_BACKEND_OPERATION_CONTRACT_BAND_MATRIX_DESCRIPTOR
    x: Tensor = operand("XDESC")
    y: Tensor = operand("YDESC")
    _: KW_ONLY
    lower: int = setting("LOWER_BANDWIDTH")
    upper: int = setting("UPPER_BANDWIDTH")
    axis: int = setting("AXIS")
    pad: float = setting("PAD_VALUE", "FLOAT", default=0.0)
    most_tokens: int | None = setting("OPERATION_CONTRACT_BAND_MAX_TOKEN_VALUE", default=None)


class RopeForward(Declared):
    """y = x rotated by its position (rotary embedding, cuDNN 9.24).

    Args:
        x, y: [batch, heads, length, features]. frequencies: float32 [1, 1, length, width].
        scale: factor of the result. width: how many features are rotated.
    """

    kind = _KIND.CUDNN_BACKEND_OPERATION_ROPE_FWD_DESCRIPTOR
    x: Tensor = operand("XDESC")
    frequencies: Tensor = operand("FREQSDESC")
    y: Tensor = operand("YDESC")
    _: KW_ONLY
    scale: float | None = setting("OUTPUT_SCALE", "FLOAT", default=None)
    width: int | None = setting("ROPE_DIM", default=None)


class RopeBackward(Declared):
    """dx of `RopeForward` from dy (cuDNN 9.24.1)."""

    kind = _KIND.CUDNN_BACKEND_OPERATION_ROPE_BWD_DESCRIPTOR
    dy: Tensor = operand("DYDESC")
    frequencies: Tensor = operand("FREQSDESC")
    dx: Tensor = operand("DXDESC")
    _: KW_ONLY
    scale: float | None = setting("OUTPUT_SCALE", "FLOAT", default=None)
    width: int | None = setting("ROPE_DIM", default=None)
