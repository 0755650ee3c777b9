"""Products, attention and softmax."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from lamina.convert.torch.functions.step import TorchStep, torch_dtype, writes
from lamina.ops.primitives.attention import Attention
from lamina.ops.primitives.matmul import Matmul
from lamina.ops.primitives.softmax import LogSoftmax, Softmax


@writes(Matmul)
def matmul(step: TorchStep, a: Any, b: Any) -> Any:
    """torch.matmul."""
    return torch.matmul(a.mT if step.op.transpose_a else a, b.mT if step.op.transpose_b else b)


@writes(Softmax)
def softmax(step: TorchStep, x: Any) -> Any:
    """F.softmax; over several axes by their common sum."""
    axes = step.op.axis
    return (
        functional.softmax(x, axes[0])
        if len(axes) == 1
        else torch.exp(x - torch.logsumexp(x, axes, keepdim=True))
    )


@writes(LogSoftmax)
def log_softmax(step: TorchStep, x: Any) -> Any:
    """F.log_softmax; over several axes by their common sum."""
    axes = step.op.axis
    return (
        functional.log_softmax(x, axes[0]) if len(axes) == 1 else x - torch.logsumexp(x, axes, keepdim=True)
    )


@writes(Attention)
def attention(step: TorchStep, q: Any, k: Any, v: Any, *more: Any) -> Any:
    """F.scaled_dot_product_attention; fully masked rows give zeros, and the statistic +inf.

    With dropout's mask the weights are computed by attention with the identity matrix as values.
    """
    op = step.op
    given, mask = op.parted(more)
    bias = given[0] if given else None
    if bias is not None and op.causal:
        bias = bias.masked_fill(~_causal(step, q, k), float("-inf"))
    values = torch.eye(k.shape[2], dtype=v.dtype, device=v.device).expand(*v.shape[:2], -1, -1) if mask else v
    y = functional.scaled_dot_product_attention(
        q, k, values, attn_mask=bias, is_causal=op.causal and bias is None, scale=op.scale
    )
    y = torch.matmul(op.dropped(y, mask), v) if mask else y
    if not (op.stats and step.wanted[1]):
        return y
    wide = torch_dtype(step.results[1].dtype)
    scores = torch.matmul(q.to(wide), k.to(wide).mT) * op.scale
    if bias is not None:
        scores = scores + bias.to(wide)
    elif op.causal:
        scores = scores.masked_fill(~_causal(step, q, k), float("-inf"))
    stats = torch.logsumexp(scores, -1, keepdim=True)
    return y, stats.masked_fill(stats == float("-inf"), float("inf"))


def _causal(step: TorchStep, q: Any, k: Any) -> Any:
    """bool [S, T]: which columns each row attends to."""
    return step.call(torch.ones, (q.size(2), k.size(2)), dtype=torch.bool, device=step.device).tril()
