"""Canonical forms: constant folding, no-op removal, common subexpressions merged, unread outputs pruned."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import Any

from lamina.backends.pattern import Results, made_by, operand
from lamina.backends.reference import run_reference
from lamina.graph.ir.graph import Graph, Value, constant
from lamina.graph.passes.pattern import Match, Report, RewriteRule, rewrite
from lamina.ops.core import Op
from lamina.ops.primitives.cast import Cast
from lamina.ops.primitives.pointwise import Identity, Mul
from lamina.ops.primitives.reduce import Reduce
from lamina.ops.primitives.shape import Expand, Reshape, Transpose

#: Constants larger than this are not made at compile time: they would only move work into memory.
FOLD_LIMIT = 1 << 16


def fold_constants(graph: Graph, report: Report | None = None) -> Graph:
    """Compute nodes whose inputs are all small constants, on the reference backend."""
    return rewrite(graph, [RewriteRule("constant", made_by(Op), _computed)], report)


def fold_weights(graph: Graph) -> Graph:
    """Compute nodes whose inputs are all constants, of any size: where weights must be known as numbers."""
    return rewrite(graph, [RewriteRule("weight", made_by(Op), partial(_computed, limit=inf))])


def _computed(match: Match, limit: float = FOLD_LIMIT) -> Results | None:
    node, inputs = match.root, match.inputs(match.root)
    if not inputs or any(v.constant is None for v in inputs):
        return None
    if _with_others(node) or any(v.spec.numel > limit for v in node.outputs):
        return None
    arrays = [v.constant.numpy() for v in inputs if v.constant is not None]
    return dict(zip(node.outputs, map(constant, run_reference(node.op, arrays)), strict=True))


def _with_others(node: Any) -> bool:
    """Whether it is a collective: a single rank must not leave it out."""
    return bool(node.op.effect == "collective")


def drop_identities(graph: Graph, report: Report | None = None) -> Graph:
    """Remove identities, reshapes, casts, expansions and transposes that change nothing, products with 1, the first
    of two reshapes or transpositions in a row, casts that undo a widening cast, reductions of one element each."""
    return rewrite(graph, _IDENTITIES, report)


def _same_spec(node: Any) -> bool:
    return bool(node.inputs[0].spec == node.outputs[0].spec)


def _same_order(node: Any) -> bool:
    return bool(node.op.order == tuple(range(len(node.op.order))))


def _passed_on(match: Match) -> Results:
    return {match.root.outputs[0]: match.inputs(match.root)[0]}


def _passed_inside(match: Match) -> Results | None:
    """The operand; an output of the graph stays the output of a node (`jit` copies inputs and constants so)."""
    is_made = match.inputs(match.root)[0].node is not None
    return _passed_on(match) if is_made or None not in match.readers(match.root.outputs[0]) else None


def _other_factor(match: Match) -> Results | None:
    """x for x * 1 and 1 * x, which are bitwise x."""
    (product,), (a, b) = match.root.outputs, match.inputs(match.root)
    for x, factor in ((a, b), (b, a)):
        if _is_one(factor) and x.spec == product.spec:
            return {product: x}
    return None


def _transposed_once(match: Match) -> Results:
    """One transposition for two in a row; the operand itself where the second undoes the first."""
    inner, outer, x = match.node("inner").op, match.root.op, match["x"]
    assert isinstance(inner, Transpose)
    assert isinstance(outer, Transpose)
    order = tuple(inner.order[i] for i in outer.order)
    made = x if order == tuple(range(x.ndim)) else match.apply(Transpose(order), x, at=match.root)[0]
    return {match.root.outputs[0]: made}


def _reshaped_once(match: Match) -> Results:
    """One reshape for two in a row."""
    return _as(match["x"], match)


def _as_it_was(match: Match) -> Results | None:
    """x for a cast of x to a type that holds all of its values, and back."""
    (y,), x, inner = match.root.outputs, match["x"], match.node("inner").op
    assert isinstance(inner, Cast)
    return {y: x} if y.dtype == x.dtype and inner.dtype.holds(x.dtype) else None


def _reduces_nothing(node: Any) -> bool:
    """Whether each result is a single element, unchanged."""
    x, y = node.inputs[0].spec, node.outputs[0].spec
    return bool(
        x.numel == y.numel and x.dtype == y.dtype and node.op.kind in ("sum", "mean", "prod", "max", "min")
    )


def _reshaped(match: Match) -> Results:
    return _as(match.inputs(match.root)[0], match)


def _as(x: Value, match: Match) -> Results:
    """x in the shape of the match's result."""
    (y,) = match.root.outputs
    return {y: x if x.shape == y.shape else match.apply(Reshape(y.shape), x, at=match.root)[0]}


def _is_one(value: Value) -> bool:
    return value.constant is not None and value.spec.numel == 1 and bool(value.constant.item() == 1)


ONE_RESHAPE = RewriteRule(
    "reshapes", made_by(Reshape, made_by(Reshape, operand("x"), same_policy=False)), _reshaped_once
)
_IDENTITIES = [
    RewriteRule("identity", made_by(Reshape | Cast | Expand, where=_same_spec), _passed_on),
    RewriteRule("identity", made_by(Identity), _passed_inside),
    RewriteRule("identity", made_by(Transpose, where=_same_order), _passed_on),
    RewriteRule(
        "widened and back",
        made_by(Cast, made_by(Cast, operand("x"), name="inner", same_policy=False)),
        _as_it_was,
    ),
    RewriteRule("identity", made_by(Mul), _other_factor),
    RewriteRule("identity", made_by(Reduce, where=_reduces_nothing), _reshaped),
    ONE_RESHAPE,
    RewriteRule(
        "transpositions",
        made_by(Transpose, made_by(Transpose, operand("x"), name="inner", same_policy=False)),
        _transposed_once,
    ),
]


def common_subexpressions(graph: Graph, report: Report | None = None) -> Graph:
    """Merge nodes with the same op, inputs and policy, and constants with the same bytes."""
    seen: dict[Any, tuple[Value, ...]] = {}
    constants: dict[Any, Value] = {}

    def first_of(value: Value) -> Value:
        if value.constant is None or value.spec.numel > FOLD_LIMIT:
            return value
        return constants.setdefault((value.spec, value.constant.numpy().tobytes()), value)

    def merged(match: Match) -> Results | None:
        node, inputs = match.root, match.inputs(match.root)
        if _with_others(node):
            return None
        firsts = tuple(map(first_of, inputs))
        which = (node.op, tuple(map(id, firsts)), node.policy)
        if which not in seen:
            changed = any(a is not b for a, b in zip(inputs, firsts, strict=True))
            seen[which] = match.apply(node.op, *firsts, at=node) if changed else node.outputs
        return dict(zip(node.outputs, seen[which], strict=True)) if seen[which] is not node.outputs else None

    return rewrite(graph, [RewriteRule("equal node", made_by(Op), merged)], report)


def prune_outputs(graph: Graph, report: Report | None = None) -> Graph:
    """Let ops leave out outputs that nobody reads (the indices of a max-pool in inference)."""
    if not any(map(_has_several, graph.nodes)):
        return graph
    uses = graph.uses()

    def slim(match: Match) -> Results | None:
        node = match.root
        used = [bool(uses[v]) for v in node.outputs]
        op = node.op if all(used) else node.op.prune(used)
        if op == node.op:
            return None
        return dict(zip(node.outputs, match.apply(op, *match.inputs(node), at=node), strict=False))

    return rewrite(graph, [RewriteRule("unread output", made_by(Op, where=_has_several), slim)], report)


def _has_several(node: Any) -> bool:
    """Whether it has several outputs: an unread single output would not be in the graph."""
    return len(node.outputs) > 1
