"""Steps moved behind a concatenation of parts: concat of parts of step(x, …) -> step(concat of these parts of x, …).

The gradient of a rotary embedding rotates (swaps the halves of a head and negates one) a product with the sines.
Rotated first, it is an access pattern of the one kernel that computes the gradient; multiplied first, it is written
and read again. Rolls and shuffles of an activation's result are likewise written by the activation's kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lamina.backends.pattern import Results, made_by
from lamina.graph.ir.graph import Graph, Value
from lamina.graph.passes.pattern import Match, Report, RewriteRule, rewrite
from lamina.ops.primitives.pointwise import Neg
from lamina.ops.primitives.shape import Concat, Slice
from lamina.spec import Shape


def steps_behind_parts(graph: Graph, report: Report | None = None) -> Graph:
    """Concatenate parts before the elementwise steps that only the parts read."""
    return rewrite(graph, [RewriteRule("steps behind parts", made_by(Concat), _behind)], report)


@dataclass(frozen=True)
class _PartAlong:
    """Elements of a tensor along one axis, possibly negated."""

    start: int
    stop: int
    step: int
    negated: bool


@dataclass(frozen=True)
class _JoinedParts:
    """The parts that a node concatenates: of a tensor `shape` along `axis`."""

    match: Match
    shape: Shape
    axis: int
    parts: Sequence[_PartAlong]

    @property
    def are_negated(self) -> bool:
        """Whether some are."""
        return any(part.negated for part in self.parts)

    def passes(self, x: Value, readers: int) -> bool:
        """Whether x is a step's result that may move behind: it has only `readers` readers, or is wider than its
        operand, so that it is better not materialized."""
        node, root = x.node, self.match.root
        if node is None or not node.op.elementwise or len(node.outputs) > 1 or node.policy != root.policy:
            return False
        first, *others = self.match.inputs(node)
        signs = not self.are_negated or (node.op.odd and x.dtype.is_float and first.dtype.is_float)
        if not signs or not first.shape == x.shape == self.shape:
            return False
        wider = first.spec.nbytes + sum(v.spec.nbytes for v in others) < x.spec.nbytes
        return wider or len(self.match.readers(x)) == readers

    def behind(self, x: Value) -> Value:
        """The steps that make x, applied to the concatenated parts of the first step's operand."""
        assert x.node is not None
        first, *others = self.match.inputs(x.node)
        made = self.behind(first) if self.passes(first, 1) else self._joined(first, signs=True)
        rest = (self._joined(v, signs=False) for v in others)
        return self.match.apply(x.node.op, made, *rest, at=self.match.root)[0]

    def _joined(self, x: Value, *, signs: bool) -> Value:
        """The parts of x, concatenated; x where it is repeated along the axis."""
        axis = self.axis - (len(self.shape) - x.ndim)
        if axis < 0 or x.shape[axis] != self.shape[self.axis]:
            return x
        made = [self._cut(x, axis, part, signs and part.negated) for part in self.parts]
        return self.match.apply(Concat(axis), *made, at=self.match.root)[0]

    def _cut(self, x: Value, axis: int, part: _PartAlong, negated: bool) -> Value:
        start, stop, step = [0] * x.ndim, list(x.shape), [1] * x.ndim
        start[axis], stop[axis], step[axis] = part.start, part.stop, part.step
        cut = Slice(tuple(start), tuple(stop), tuple(step))
        (made,) = self.match.apply(cut, x, at=self.match.root)
        return self.match.apply(Neg(), made, at=self.match.root)[0] if negated else made


def _behind(match: Match) -> Results | None:
    (joined,), op = match.root.outputs, match.root.op
    assert isinstance(op, Concat)
    axis = op.axis % joined.ndim
    found = [_part_of(match, v, axis) for v in match.inputs(match.root)]
    cut = [one for one in found if one is not None]
    if len(cut) < len(found) or len({whole for whole, _ in cut}) > 1:
        return None
    whole = cut[0][0]
    parts = _JoinedParts(match, whole.shape, axis, [part for _, part in cut])
    return {joined: parts.behind(whole)} if parts.passes(whole, len(cut)) else None


def _part_of(match: Match, value: Value, axis: int) -> tuple[Value, _PartAlong] | None:
    """The tensor that a value is a part of along the axis, and the part; None for what is no part, or is read
    twice."""
    negated = value.node is not None and isinstance(value.node.op, Neg)
    part = match.inputs(value.node)[0] if negated and value.node is not None else value
    node = part.node
    if node is None or not isinstance(node.op, Slice):
        return None
    if len(match.readers(value)) != 1 or len(match.readers(part)) != 1:
        return None
    (whole,), cut = match.inputs(node), node.op
    rest = [(0, n, 1) for a, n in enumerate(whole.shape) if a != axis]
    rows = list(zip(cut.start, cut.stop, cut.step, strict=True))
    start, stop, step = rows.pop(axis)
    return (whole, _PartAlong(start, stop, step, negated)) if rows == rest else None
