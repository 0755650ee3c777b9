"""Rules that compute the same result while moving fewer bytes."""

from __future__ import annotations

from typing import Any

from lamina.backends.pattern import PatternNode, Results, made_by, operand
from lamina.graph.ir.graph import Node, Value
from lamina.graph.passes.pattern import Match, RewriteRule
from lamina.ops.core import Op
from lamina.ops.primitives.attention import Attention
from lamina.ops.primitives.norm import LayerNorm, RmsNorm
from lamina.ops.primitives.pointwise import ReluGrad
from lamina.ops.primitives.pool import MaxPool, MaxPoolGrad
from lamina.ops.primitives.reduce import Reduce
from lamina.ops.primitives.shape import Expand, Reshape, Slice, Transpose

_x, _g = operand("x"), operand("g")
_pool = made_by(MaxPool, _x, name="pool", same_policy=False)
_spread = made_by(MaxPoolGrad, _g, _pool.output(-1), name="spread")


def _mask_pooled(match: Match) -> Results:
    """relu_grad(x, max_pool_grad(g, index)) -> max_pool_grad(relu_grad(max_pool(x), g), index).

    Only the positions of the maxima receive a gradient, and there x equals the pool's output: the pass over x becomes
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
    """The sum over all positions of max_pool_grad(g, index) is the sum of g: each gradient is routed to one
    position."""
    return {match.root.outputs[0]: match.apply(match.root.op, match["g"], at=match.root)[0]}


def _broadcasts(node: PatternNode) -> bool:
    return bool(node.op.broadcasts)


def _unexpanded(match: Match) -> Results | None:
    """op(…, expand(s)) -> op(…, s) where the op accepts a scalar for all elements."""
    node, inputs = match.root, match.inputs(match.root)
    scalars = [_scalar(match, v) if i in node.op.broadcasts else v for i, v in enumerate(inputs)]
    if all(a is b for a, b in zip(scalars, inputs, strict=True)):
        return None
    return dict(zip(node.outputs, match.apply(node.op, *scalars, at=node), strict=True))


def _scalar(match: Match, value: Value) -> Value:
    """The scalar, of shape (), that was expanded to the value; other values unchanged."""
    if value.node is None or not isinstance(value.node.op, Expand):
        return value
    (number,) = match.inputs(value.node)
    if number.spec.numel != 1:
        return value
    return number if number.shape == () else match.apply(Reshape(()), number, at=value.node)[0]


def _norm_sliced(match: Match) -> Results | None:
    """Some rows of norm(x) -> norm of these rows of x, where the norm's output has no other reader.

    A classifier, for instance, reads one token of a transformer's last norm.
    """
    norm, part = match.node("norm"), match.root
    op: Any = norm.op
    (y, *statistics), (x, *small) = norm.outputs, match.inputs(norm)
    rows = y.ndim - op.rank
    if part.outputs[0].shape[rows:] != y.shape[rows:] or any(match.readers(v) for v in statistics):
        return None
    (some,) = match.apply(part.op, x, at=norm)
    return {part.outputs[0]: match.apply(op, some, *small, at=norm)[0]}


def _is_step_of_one(node: PatternNode) -> bool:
    """Whether it is elementwise in one tensor, and does not widen its type."""
    x, *others = node.inputs
    (y, *more) = node.outputs
    return bool(node.op.elementwise) and not others and not more and y.dtype.itemsize <= x.dtype.itemsize


def _before_spreading(match: Match) -> Results | None:
    """step(spread(x)) -> spread(step(x)): each repeated element is computed once.

    Programs often expand the key heads of grouped-query attention and cast them afterwards.
    """
    (read,) = match.inputs(match.root)
    size, moves = read.spec.numel, list[Node]()
    while (node := read.node) is not None and isinstance(node.op, Reshape | Expand | Transpose):
        if len(match.readers(read)) != 1:
            break
        moves.append(node)
        (read,) = match.inputs(node)
    if read.spec.numel >= size:
        return None
    (made,) = match.apply(match.root.op, read, at=match.root)
    for node in reversed(moves):
        (made,) = match.apply(node.op, made, at=match.root)
    return {match.root.outputs[0]: made}


def _reads_all(node: PatternNode) -> bool:
    """Whether every row attends to the same columns, without dropout."""
    op: Any = node.op
    bias, dropped = op.parted(node.inputs[3:])
    return not (op.causal or dropped) and all(b.shape[1:3] == (1, 1) for b in bias)


def _heads_as_rows(match: Match) -> Results | None:
    """Attention of query heads that share a key head -> that of one head with more rows: keys are not repeated.

    The step of a language model with a cache would otherwise copy the whole cache for each token.
    """
    node, (q, k, v, *bias) = match.root, match.inputs(match.root)
    if any(match.readers(statistics) for statistics in node.outputs[1:]):
        return None  # a gradient follows
    keys, values = _unshared(k, match), _unshared(v, match)
    if keys is None or values is None or keys.shape[1] != values.shape[1]:
        return None
    (batch, heads, rows, width), groups = q.shape, keys.shape[1]
    joined = Reshape((batch, groups, heads // groups * rows, width))
    found = match.apply(node.op, *match.apply(joined, q, at=node), keys, values, *bias, at=node)[0]
    return {node.outputs[0]: match.apply(Reshape(node.outputs[0].shape), found, at=node)[0]}


def _unshared(value: Value, match: Match) -> Value | None:
    """The keys [B, G, T, D] that were repeated to [B, H, T, D], each for H / G heads; None if they were not."""
    batch, heads, columns, width = value.shape
    node = value.node
    if node is not None and isinstance(node.op, Reshape):
        (repeated,) = match.inputs(node)
        node = repeated.node
    if node is None or not isinstance(node.op, Expand):
        return None
    (one,), repeated = match.inputs(node), node.outputs[0]
    if repeated.ndim == 4 and one.shape == (batch, 1, columns, width) and heads > 1:
        return one
    groups = one.shape[1] if one.ndim == 5 else 0
    if one.shape != (batch, groups, 1, columns, width) or repeated.shape[1] != groups or groups == heads:
        return None
    return match.apply(Reshape((batch, groups, columns, width)), one, at=match.root)[0]


EXPANSION_ABSORBED = RewriteRule("expansion absorbed", made_by(Op, where=_broadcasts), _unexpanded)
STEP_BEFORE_SPREADING = RewriteRule(
    "step before spreading", made_by(Op, where=_is_step_of_one), _before_spreading
)
HEADS_AS_ROWS = RewriteRule("heads as rows", made_by(Attention, where=_reads_all), _heads_as_rows)
MASK_BEFORE_SPREADING = RewriteRule("mask before spreading", made_by(ReluGrad, _x, _spread), _mask_pooled)
SUM_BEFORE_SPREADING = RewriteRule(
    "sum before spreading",
    made_by(Reduce, made_by(MaxPoolGrad, _g, same_policy=False), where=_sums_all_places),
    _sum_pooled,
)
SLICE_BEFORE_NORM = RewriteRule(
    "slice before norm", made_by(Slice, made_by(LayerNorm | RmsNorm, name="norm").read_once), _norm_sliced
)
