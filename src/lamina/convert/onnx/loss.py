"""Losses."""

from __future__ import annotations

from typing import Any

from lamina import ops
from lamina.convert.onnx.node import OnnxNode, converts
from lamina.spec import int64


def _loss(node: OnnxNode, scores: Any) -> Any:
    """The negative of each target's score [N, C, *], weighted by class, without the ignored ones."""
    target, weight = ops.cast(node.input(1), int64), node.optional(2)
    ignored = node.get("ignore_index")
    kept = None if ignored is None else ops.ne(target, ignored)
    safe = target if kept is None else ops.where(kept, target, 0)
    picked = ops.neg(ops.gather(scores, 1, safe.unsqueeze(1)).squeeze(1))
    share = None if weight is None else ops.index_select(weight, 0, safe.reshape((-1,))).reshape(safe.shape)
    if kept is not None:
        share = ops.cast(kept, picked.dtype) if share is None else ops.where(kept, share, 0.0)
    picked = picked if share is None else ops.where(ops.eq(share, 0), 0.0, ops.mul(picked, share))
    reduction = node.get("reduction", "mean")
    if reduction == "none":
        return picked
    if reduction not in ("sum", "mean"):
        raise node.error(f"reduction must be none, sum or mean, got {reduction!r}")
    if reduction == "sum":
        return ops.sum(picked)
    return ops.mean(picked) if share is None else ops.div(ops.sum(picked), ops.sum(share))


@converts("NegativeLogLikelihoodLoss")
def nll_loss(node: OnnxNode) -> Any:
    """Of logarithms of probabilities [N, C, *] and classes [N, *]."""
    return _loss(node, node.input(0))


@converts("SoftmaxCrossEntropyLoss")
def cross_entropy(node: OnnxNode) -> Any:
    """(the loss of scores [N, C, *] and classes [N, *], the logarithms of probabilities)."""
    scores = ops.log_softmax(node.input(0), 1)
    return _loss(node, scores), scores
