"""Matrix products with fused operations, and with low-bit quantized weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina import ops
from lamina.convert.onnx.contrib.domain import contributes
from lamina.convert.onnx.contrib.pointwise import activated
from lamina.convert.onnx.indexing import as_index
from lamina.convert.onnx.matmul import gemm
from lamina.convert.onnx.node import OnnxNode, as_tensor
from lamina.spec import int32, uint8

#: The values of bitsandbytes' 16 4-bit codes (https://arxiv.org/abs/2305.14314): a four-bit float,
#: and the quantiles of a normal distribution.
FP4 = (
    0.0, 0.00520833333, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25,
    -0.0, -0.00520833333, -0.66666667, -1.0, -0.33333333, -0.5, -0.16666667, -0.25,
)  # fmt: skip
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


@contributes("FusedMatMul", "TransposeMatMul", "FusedMatMulActivation")
def fused_matmul(node: OnnxNode) -> Any:
    """alpha A B, then the named activation.

    transA, transB: transpose the last two axes; transBatchA, transBatchB: move the first axis after the other batch
    axes.
    """
    a, b = (
        _turned(node.input(i), node.get(f"trans{side}", 0), node.get(f"transBatch{side}", 0))
        for i, side in enumerate("AB")
    )
    found, alpha = ops.matmul(a, b), node.get("alpha", 1.0)
    return activated(node, found if alpha == 1 else ops.mul(found, alpha))


def _turned(x: Any, rows: int, batch: int) -> Any:
    if batch and x.ndim > 2:
        x = ops.permute(x, (*range(1, x.ndim - 1), 0, x.ndim - 1))
    return ops.transpose(x, x.ndim - 2, x.ndim - 1) if rows and x.ndim > 1 else x


@contributes("FusedGemm")
def fused_gemm(node: OnnxNode) -> Any:
    """Gemm, then the named activation."""
    return activated(node, gemm(node))


@contributes("GemmFastGelu")
def gemm_fast_gelu(node: OnnxNode) -> Any:
    """gelu(x w + bias), approximated by tanh."""
    found, bias = ops.matmul(node.input(0), node.input(1)), node.optional(2)
    return ops.gelu(found if bias is None else ops.add(found, bias), approximate="tanh")


def unpacked(x: Any, bits: int) -> Any:
    """uint8 [..., n] whose bytes hold several numbers, low bits first -> int32 [..., n 8 / bits]."""
    if bits not in (1, 2, 4, 8):
        raise ValueError(f"numbers of {bits} bits are not read: 1, 2, 4 or 8")
    wide = ops.cast(x, int32)
    if bits == 8:
        return wide
    parts = [ops.bitwise_and(ops.bitwise_right_shift(wide, at), (1 << bits) - 1) for at in range(0, 8, bits)]
    return ops.stack(parts, -1).reshape((*x.shape[:-1], x.shape[-1] * (8 // bits)))


@contributes("MatMulNBits", statistics=(2, 3))
def matmul_n_bits(node: OnnxNode) -> Any:
    """x w^T + bias, w [N, K] with few bits, and a scale (and a zero point) for each block of a row.

    b [N, blocks, bytes], scales [N, blocks]; zero points packed as b is, or numbers of the scales' type.
    """
    x, packed, scales, zero, bias = (
        node.input(0),
        node.input(1),
        node.input(2),
        node.optional(3),
        node.optional(5),
    )
    n, k, size, bits = (node.needed("N"), node.needed("K"), node.needed("block_size"), node.get("bits", 4))
    if node.get("weight_prepacked", 0):
        raise node.error(
            "weights that were packed for one device are not read; export with weight_prepacked=0"
        )
    if node.optional(4) is not None:
        raise node.error("g_idx (rows of the weight in another order) is not read")
    blocks = -(-k // size)
    w = unpacked(packed.reshape((n, blocks, -1)), bits)
    w = ops.sub(ops.cast(w, scales.dtype), _zero_points(zero, n, blocks, bits, scales))
    w = ops.mul(w, scales.reshape((n, blocks, 1))).reshape((n, blocks * size))[:, :k]
    found = ops.matmul(x, ops.transpose(ops.cast(w, x.dtype), 0, 1))
    return found if bias is None else ops.add(found, bias)


def _zero_points(zero: Any, n: int, blocks: int, bits: int, scales: Any) -> Any:
    """[n, blocks, 1]; the middle of the codes if none are given."""
    if zero is None:
        return float(1 << (bits - 1))
    if zero.dtype == uint8:
        zero = unpacked(zero.reshape((n, -1)), bits)[:, :blocks]
    return ops.cast(zero, scales.dtype).reshape((n, blocks, 1))


@contributes("MatMulBnb4", statistics=(2,))
def matmul_bnb4(node: OnnxNode) -> Any:
    """x w^T, w [N, K] as four-bit codes (high bits first) with an absolute maximum for each block of the whole."""
    x, packed, largest = (node.input(i) for i in range(3))
    n, k, size = node.needed("N"), node.needed("K"), node.needed("block_size")
    table = as_tensor(NF4 if node.needed("quant_type") else FP4, largest.dtype)
    codes = unpacked(packed.reshape((-1,)), 4).reshape((-1, 2))
    codes = ops.flip(codes, 1).reshape((-1,))
    blocks = -(-(n * k) // size)
    values = ops.index_select(table, 0, as_index(codes))
    values = ops.pad(values, [0, blocks * size - n * k])
    w = ops.mul(values.reshape((blocks, size)), largest.reshape((blocks, 1))).reshape((-1,))[: n * k]
    return ops.matmul(x, ops.transpose(ops.cast(w.reshape((n, k)), x.dtype), 0, 1))


@contributes("GatherBlockQuantized", statistics=(2, 3))
def gather_block_quantized(node: OnnxNode) -> Any:
    """Slices of a low-bit table, with a scale (and a zero point) for each block along quantize_axis."""
    table, index, scales, zero = node.input(0), node.input(1), node.input(2), node.optional(3)
    bits, size, middle = node.get("bits", 4), node.get("block_size", 128), 0
    if table.dtype == uint8:
        middle = 1 << (bits - 1)
        table = unpacked(table, bits)
        zero = None if zero is None else unpacked(zero, bits)[..., : scales.shape[-1]]
    axis, along = node.get("gather_axis", 0) % table.ndim, node.get("quantize_axis", 1) % table.ndim
    flat = as_index(index).reshape((-1,))
    table, scales = (ops.index_select(v, axis, flat) for v in (table, scales))
    zero = middle if zero is None else _repeated(ops.index_select(zero, axis, flat), along, size, table)
    moved = ops.cast(ops.sub(ops.cast(table, int32), zero), scales.dtype)
    found = ops.mul(moved, _repeated(scales, along, size, table))
    shape = table.shape
    return found.reshape((*shape[:axis], *index.shape, *shape[axis + 1 :]))


def _repeated(v: Any, axis: int, size: int, table: Any) -> Any:
    """Values per block along an axis, repeated for all elements of the block."""
    places = as_tensor(np.arange(table.shape[axis]) // size)
    return ops.index_select(v, axis, places)


@contributes("CDist")
def cdist(node: OnnxNode) -> Any:
    """[M, K]: the distances between the rows of two matrices; Euclidean, or squared."""
    a, b, metric = node.input(0), node.input(1), node.get("metric", "sqeuclidean")
    if metric not in ("euclidean", "sqeuclidean"):
        raise node.error(f"metric must be euclidean or sqeuclidean, got {metric!r}")
    found = ops.sum(ops.square(ops.sub(a.unsqueeze(1), b.unsqueeze(0))), -1)
    return found if metric == "sqeuclidean" else ops.sqrt(found)


@contributes("Inverse")
def inverse(node: OnnxNode) -> Any:
    """The inverse of each matrix."""
    return ops.linalg.inv(node.input(0))
