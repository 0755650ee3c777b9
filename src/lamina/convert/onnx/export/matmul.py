"""Products, attention and softmax."""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina import ops
from lamina.convert.onnx.export.writer import OpExport, Written, composes, exports
from lamina.ops.primitives.attention import Attention
from lamina.ops.primitives.determinant import Determinant
from lamina.ops.primitives.matmul import Matmul
from lamina.ops.primitives.softmax import LogSoftmax, Softmax


@exports(Matmul)
def matmul(step: OpExport) -> Written:
    """Gemm for transposed matrices, else MatMul."""
    op, names = step.op, list(step.inputs)
    if step.specs[0].ndim == 2 and (op.transpose_a or op.transpose_b) and step.dtype.is_float:
        return step.add("Gemm", *names, transA=int(op.transpose_a), transB=int(op.transpose_b))
    for i, turned in enumerate((op.transpose_a, op.transpose_b)):
        if turned:
            rank = step.specs[i].ndim
            names[i] = step.add("Transpose", names[i], perm=[*range(rank - 2), rank - 1, rank - 2])
    return step.add("MatMul", *names)


@exports(Determinant)
def determinant(step: OpExport) -> Written:
    """Det; without rows, of which onnxruntime knows nothing, by the formula."""
    if step.specs[0].shape[-1] == 0:
        return step.composed(Determinant.composed)
    return step.add("Det", *step.inputs)


@exports(Softmax, LogSoftmax)
def softmax(step: OpExport) -> Written:
    """Softmax or LogSoftmax of one axis; over several axes by the formula."""
    if len(step.op.axis) > 1 or 0 in step.specs[0].shape:
        return step.composed(_softmax)
    return step.add(type(step.op).__name__, *step.inputs, axis=step.op.axis[0])


def _softmax(op: Softmax | LogSoftmax, x: Any) -> Any:
    if 0 in x.shape:
        return x
    shifted = x - ops.amax(x, op.axis, keepdim=True)
    e = ops.exp(shifted)
    total = ops.sum(e, op.axis, keepdim=True)
    return shifted - ops.log(total) if isinstance(op, LogSoftmax) else e / total


@composes(Attention)
def attention(op: Attention, q: Any, k: Any, v: Any, *more: Any) -> Any:
    """softmax(scale q kᵀ + bias) v, with dropout's mask; with a bias, fully masked rows give zeros."""
    given, mask = op.parted(more)
    bias = given[0] if given else None
    wide = q.dtype.compute if op.stats else q.dtype  # the type of the log-sum-exp
    scores = ops.matmul(q.cast(wide) * op.scale, k.cast(wide).transpose(2, 3))
    scores = scores if bias is None else scores + bias.cast(wide)
    if op.causal:
        scores = ops.where(op.mask(q.shape[2], k.shape[2]), scores, -np.inf)
    blind = None if bias is None or _sees(bias) else ops.amax(scores, 3, keepdim=True) == -np.inf
    weights = ops.softmax(scores, 3)
    weights = weights if blind is None else ops.where(blind, 0.0, weights)
    o = ops.matmul(op.dropped(weights.cast(v.dtype), mask), v)
    if not op.stats:
        return (o,)
    top = ops.amax(scores, 3, keepdim=True)
    top = top if blind is None else ops.where(blind, 0.0, top)
    stats = top + ops.log(ops.sum(ops.exp(scores - top), 3, keepdim=True))
    return o, stats if blind is None else ops.where(blind, np.inf, stats)


def _sees(bias: Any) -> bool:
    """Whether a bias is known to mask nothing."""
    known = bias.held
    return known is not None and bool(np.isfinite(known.numpy().astype(np.float64)).all())
