"""Rules that reach the same result over fewer bytes."""

from __future__ import annotations

from typing import Any

from lamina.backends.pattern import PatternNode, Results, made_by, operand
from lamina.graph.passes.pattern import Match, RewriteRule
from lamina.ops.primitives.pointwise import ReluGrad
from lamina.ops.primitives.pool import MaxPool, MaxPoolGrad
from lamina.ops.primitives.reduce import Reduce

_x, _g = operand("x"), operand("g")
_pool = made_by(MaxPool, _x, name="pool", same_policy=False)
_spread = made_by(MaxPoolGrad, _g, _pool.output(-1), name="spread")


def _mask_pooled(match: Match) -> Results:
    """relu_grad(x, max_pool_grad(g, index)) -> max_pool_grad(relu_grad(max_pool(x), g), index).

    The gradient arrives only where the maxima were, and there x is what the pool gave: the pass over x becomes
    one over the pooled tensor, a fraction of the size.
    """
    spread, pool = match.node("spread"), match.node("pool")
    (masked,) = match.apply(match.root.op, pool.outputs[0], match["g"], at=spread)
    (made,) = match.apply(spread.op, masked, pool.outputs[-1], at=match.root)
    return {match.root.outputs[0]: made}


def _sums_all_places(node: PatternNode) -> bool:
    op: Any = node.op
    return op.kind == "sum" and set(range(2, node.inputs[0].ndim)) <= set(op.axes)


def _sum_pooled(match: Match) -> Results:
    """The sum over all places of max_pool_grad(g, index) is the sum of g: each gradient goes to one place."""
    return {match.root.outputs[0]: match.apply(match.root.op, match["g"], at=match.root)[0]}


MASK_BEFORE_SPREADING = RewriteRule("mask before spreading", made_by(ReluGrad, _x, _spread), _mask_pooled)
SUM_BEFORE_SPREADING = RewriteRule(
    "sum before spreading",
    made_by(Reduce, made_by(MaxPoolGrad, _g, same_policy=False), where=_sums_all_places),
    _sum_pooled,
)
