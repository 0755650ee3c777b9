"""Rules for sequence models: elementwise steps moved next to their matrix product, and parts that are concatenated
again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

from lamina.backends.pattern import Results, made_by
from lamina.graph.ir.graph import Graph, Node, Value
from lamina.graph.passes.canonicalize import ONE_RESHAPE
from lamina.graph.passes.pattern import Match, Report, RewriteRule, Rewriting, rewrite
from lamina.ops.core import Op
from lamina.ops.primitives.matmul import Matmul
from lamina.ops.primitives.pointwise import Add
from lamina.ops.primitives.shape import Concat, Pad, Reshape, Transpose
from lamina.spec import contiguous
from lamina.spec.layout import reshaped_strides

#: The most elementwise steps behind a product that are looked through.
_REACH = 4


def reshape_behind(graph: Graph, report: Report | None = None) -> Graph:
    """step(reshape(product), other) -> reshape(step(product, reshape(other))), and one reshape for two in a row.

    The step can then become the product's epilogue. A unary step behind transposed rows that a reshape has to copy is
    moved the same way: it then writes that copy.
    """
    return rewrite(graph, _RESHAPES, report)


def join_parts(graph: Graph, report: Report | None = None) -> Graph:
    """The sum of parts that are zero-padded to stand side by side -> the parts concatenated."""
    return rewrite(graph, [RewriteRule("parts joined", made_by(Add, where=_has_axes), _joined())], report)


# ------------------------------------------------------------------------------------------------- products' steps


def _is_step(node: Any) -> bool:
    return bool(node.op.elementwise) and len(node.outputs) == 1


def _moved(match: Match) -> Results | None:
    node, inputs = match.root, match.inputs(match.root)
    if not any(v.node is not None and isinstance(v.node.op, Reshape) for v in inputs):
        return None
    shape = node.outputs[0].shape
    flat = next((found for v in inputs if (found := _product_behind(v, shape, match)) is not None), None)
    whole = [v for v in inputs if v.shape == shape]
    if flat is None and len(whole) == 1:
        flat = _rows_behind(whole[0], match)
    if flat is None or not all(_follows(v, shape, flat.shape) for v in inputs):
        return None
    moved = (_as(v, flat.shape, match) if v.shape == shape else v for v in inputs)
    (made,) = match.apply(node.op, *moved, at=node)
    return {node.outputs[0]: _as(made, shape, match)}


_RESHAPES = [
    ONE_RESHAPE,
    RewriteRule("step before its reshape", made_by(Op, where=_is_step), _moved),
]


def _product_behind(value: Value, shape: tuple[int, ...], match: Match) -> Value | None:
    """The value that `value` is a reshape of, if it comes from a matrix product."""
    node = value.node
    if node is None or not isinstance(node.op, Reshape) or value.shape != shape:
        return None
    (flat,) = match.inputs(node)
    return flat if _is_product(flat, _REACH, match.rewriting) else None


def _rows_behind(value: Value, match: Match) -> Value | None:
    """The value that `value` is a reshape of, if it is a transpose that keeps the last axis, and the reshape is no
    view."""
    node = value.node
    if node is None or not isinstance(node.op, Reshape):
        return None
    (flat,) = match.inputs(node)
    order = _order(flat, _REACH, match.rewriting)
    if order is None or order[-1] != len(order) - 1:
        return None
    lying = contiguous(tuple(flat.shape[order.index(axis)] for axis in range(flat.ndim))).strides
    strides = tuple(lying[axis] for axis in order)
    return flat if reshaped_strides(flat.shape, strides, value.shape) is None else None


def _order(value: Value, reach: int, rewriting: Rewriting) -> tuple[int, ...] | None:
    """How a value is transposed, with unary elementwise steps behind that; None where it is not."""
    node = value.node
    if node is None or reach == 0:
        return None
    if isinstance(node.op, Transpose):
        return node.op.order
    whole = [v for v in rewriting.inputs(node) if v.shape == value.shape]
    return _order(whole[0], reach - 1, rewriting) if node.op.elementwise and len(whole) == 1 else None


def _is_product(value: Value, reach: int, rewriting: Rewriting) -> bool:
    """Whether a value is a matrix product, with elementwise steps on it."""
    node = value.node
    if node is None or reach == 0:
        return False
    if isinstance(node.op, Matmul):
        return True
    same = (v for v in rewriting.inputs(node) if v.shape == value.shape)
    return node.op.elementwise and any(_is_product(v, reach - 1, rewriting) for v in same)


def _follows(value: Value, shape: tuple[int, ...], flat: tuple[int, ...]) -> bool:
    """Whether an operand keeps its meaning behind the reshape: it has all elements, one, or those of a row."""
    if value.shape == shape:
        return True
    if prod(value.shape) == 1:
        return value.ndim <= len(flat)
    return value.ndim == 1 and bool(flat) and shape[-1] == flat[-1]


def _as(value: Value, shape: tuple[int, ...], match: Match) -> Value:
    """The value in another shape; of a value that is itself a reshape, its source is reshaped."""
    before = value.node
    if before is not None and isinstance(before.op, Reshape):
        (value,) = match.inputs(before)
    return value if value.shape == shape else match.apply(Reshape(shape), value, at=match.root)[0]


# ------------------------------------------------------------------------------------------------------------ parts


class _Padded(NamedTuple):
    """A sum of zero-padded parts: the axis along which they stand, and the sum's size along it."""

    axis: int
    size: int


def _has_axes(node: Any) -> bool:
    return bool(node.outputs[0].ndim)


def _joined() -> Callable[[Match], Results | None]:
    """Replaces a sum whose parts cover it end to end by their concatenation; notes the sums that it has met."""
    known: dict[Value, _Padded] = {}

    def padded(value: Value, match: Match) -> _Padded | None:
        node = value.node
        if node is None or not isinstance(node.op, Pad):
            return known.get(value)
        axes = [i for i, pair in enumerate(node.op.pairs) if pair != (0, 0)]
        if len(axes) != 1 or node.op.value != 0.0:
            return None
        return _Padded(axes[0], match.inputs(node)[0].shape[axes[0]])

    def join(match: Match) -> Results | None:
        (y,) = match.root.outputs
        terms = [padded(v, match) if v.shape == y.shape else None for v in match.inputs(match.root)]
        found = [t for t in terms if t is not None]
        if len(found) != 2 or found[0].axis != found[1].axis:
            return None
        known[y] = sums = _Padded(found[0].axis, found[0].size + found[1].size)
        return _concatenated(match, sums.axis) if sums.size == y.shape[sums.axis] else None

    return join


def _concatenated(match: Match, axis: int) -> Results | None:
    """The parts of a sum side by side, if they neither overlap nor leave a gap."""
    (y,) = match.root.outputs
    parts = sorted(_parts(match, axis), key=lambda part: part[0])
    end = 0
    for begin, part in parts:
        if begin != end:
            return None
        end += part.shape[axis]
    return {y: match.apply(Concat(axis), *(part for _, part in parts), at=match.root)[0]}


def _parts(match: Match, axis: int) -> Iterator[tuple[int, Value]]:
    """The offset of each part in a sum of padded parts, and the part."""
    stack: list[Node] = [match.root]
    while stack:
        node = stack.pop()
        if isinstance(node.op, Pad):
            yield node.op.pairs[axis][0], match.inputs(node)[0]
        else:
            stack += [v.node for v in match.inputs(node) if v.node is not None]
