"""Rules for networks on sequences: products that end in their elementwise steps, attention on joint projections."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

from lamina.backends import Backend
from lamina.graph.ir.graph import Graph, Node, Value
from lamina.graph.passes.rewrite import rewrite
from lamina.ops.core import Op
from lamina.ops.primitives import (
    Add,
    Attention,
    AttentionGrad,
    Concat,
    JointAttention,
    JointAttentionGrad,
    Matmul,
    Pad,
    Reshape,
    Slice,
    Transpose,
)

#: How many elementwise steps behind a product are looked through.
_REACH = 4


def sequence_rules(graph: Graph, backend: Backend) -> Graph:
    """All rules; attention on a joint projection only where the backend has a kernel for it."""
    graph = rewrite(rewrite(graph, reshape_behind), join_parts)
    if backend.supports(JointAttention) in ("", "numpy"):
        return graph
    return rewrite(rewrite(graph, attend_jointly), join_gradients)


# ------------------------------------------------------------------------------------------------- products' steps


def reshape_behind(node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
    """step(reshape(product), other) -> reshape(step(product, reshape(other))), and one reshape for two in a row.

    The step may then be computed where the product is.
    """
    if isinstance(node.op, Reshape):
        return _reshaped_twice(node, inputs[0])
    shape = node.outputs[0].shape
    if not node.op.elementwise or len(node.outputs) != 1:
        return None
    flat = next((found for v in inputs if (found := _product_behind(v, shape)) is not None), None)
    if flat is None or not all(_follows(v, shape, flat.shape) for v in inputs):
        return None
    moved = tuple(_as(v, flat.shape, node) if v.shape == shape else v for v in inputs)
    return [_as(node.with_inputs(moved, node.op).outputs[0], shape, node)]


def _reshaped_twice(node: Node, value: Value) -> Sequence[Value] | None:
    before = value.node
    if before is None or not isinstance(before.op, Reshape):
        return None
    return [_as(before.inputs[0], node.outputs[0].shape, node)]


def _product_behind(value: Value, shape: tuple[int, ...]) -> Value | None:
    """What `value` is a reshape of, if that comes from a matrix product."""
    node = value.node
    if node is None or not isinstance(node.op, Reshape) or value.shape != shape:
        return None
    return node.inputs[0] if _is_product(node.inputs[0], _REACH) else None


def _is_product(value: Value, reach: int) -> bool:
    """Whether a value is a matrix product, with elementwise steps on it."""
    node = value.node
    if node is None or reach == 0:
        return False
    if isinstance(node.op, Matmul):
        return True
    return node.op.elementwise and any(
        _is_product(v, reach - 1) for v in node.inputs if v.shape == value.shape
    )


def _follows(value: Value, shape: tuple[int, ...], flat: tuple[int, ...]) -> bool:
    """Whether an operand means the same behind the reshape: it has all elements, one, or a row's."""
    if value.shape == shape:
        return True
    if prod(value.shape) == 1:
        return value.ndim <= len(flat)
    return value.ndim == 1 and bool(flat) and shape[-1] == flat[-1]


def _as(value: Value, shape: tuple[int, ...], node: Node) -> Value:
    """The value in another shape, where `node` ran; what was reshaped before is reshaped from its first form."""
    before = value.node
    if before is not None and isinstance(before.op, Reshape):
        value = before.inputs[0]
    return value if value.shape == shape else _made(Reshape(shape), (value,), node)


def _made(op: Op, inputs: tuple[Value, ...], node: Node) -> Value:
    """A new node's first output; it runs where `node` ran."""
    return Node(op, inputs, node.policy, node.serial).outputs[0]


# ------------------------------------------------------------------------------------------------------------ parts


def join_parts(node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
    """The sum of parts that are padded with zeros to stand side by side -> the parts joined."""
    if not isinstance(node.op, Add) or node.outputs[0].ndim == 0:
        return None
    shape, parts = node.outputs[0].shape, []
    for pad in _terms(inputs):
        if pad is None or not isinstance(pad.op, Pad) or pad.outputs[0].shape != shape:
            return None
        axes = [i for i, pair in enumerate(pad.op.pairs) if pair != (0, 0)]
        if len(axes) != 1 or pad.op.value != 0.0:
            return None
        parts.append((axes[0], pad.op.pairs[axes[0]][0], pad.inputs[0]))
    parts.sort(key=lambda part: part[1])
    axis, end = parts[0][0], 0
    for where, begin, part in parts:
        if (where, begin) != (axis, end):
            return None
        end += part.shape[axis]
    return [_made(Concat(axis), tuple(part for *_, part in parts), node)] if end == shape[axis] else None


def _terms(values: Sequence[Value]) -> Iterator[Node | None]:
    """The nodes that make a sum's terms; None for an input."""
    for value in values:
        node = value.node
        if node is not None and isinstance(node.op, Add):
            yield from _terms(node.inputs)
        else:
            yield node


# -------------------------------------------------------------------------------------------------------- attention


def attend_jointly(node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
    """attention(q, k, v) of the thirds of one projection -> attention on the projection as it is."""
    if not isinstance(node.op, Attention) or len(inputs) != 3:
        return None
    joint = _joint(inputs, node)
    if joint is None:
        return None
    op = JointAttention(node.op.scale, node.op.causal, node.op.stats)
    return Node(op, (joint,), node.policy, node.serial).outputs


def join_gradients(node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
    """The gradients of the thirds of one projection, joined -> the gradient of the projection, made as one."""
    if not isinstance(node.op, Concat) or len(inputs) != 3 or node.op.axis % node.outputs[0].ndim != 2:
        return None
    heads = [_merged_heads(v) for v in inputs]
    first = heads[0]
    if first is None or first.value.node is None:
        return None
    grad, order = first.value.node, first.order
    if not isinstance(grad.op, AttentionGrad) or len(grad.inputs) != 6:
        return None
    wanted = [Heads(v, order) for v in grad.outputs[:3]]
    joint = _joint(grad.inputs[:3], node) if heads == wanted else None
    if joint is None:
        return None
    op = JointAttentionGrad(grad.op.scale, grad.op.causal)
    made = _made(op, (joint, *grad.inputs[3:]), grad)
    back = _made(Transpose((1 + order[0], 1 + order[1], 0, 2, 4)), (made,), node)
    return [_as(back, node.outputs[0].shape, node)]


class Heads(NamedTuple):
    """A value [B, H, S, D], and the order in which its axes stand elsewhere."""

    value: Value
    order: tuple[int, ...]


def _merged_heads(value: Value) -> Heads | None:
    """What reshape(transpose(a [B, H, S, D], (b, s, 1, 3))) brings together as [., ., H D]."""
    reshape = value.node
    if reshape is None or not isinstance(reshape.op, Reshape) or value.ndim != 3:
        return None
    transpose = reshape.inputs[0].node
    if transpose is None or not isinstance(transpose.op, Transpose) or len(transpose.op.order) != 4:
        return None
    order = transpose.op.order
    fits = order[2:] == (1, 3) and value.shape[:2] == transpose.outputs[0].shape[:2]
    return Heads(transpose.inputs[0], order) if fits else None


class Third(NamedTuple):
    """Heads [B, H, S, D] cut out of a projection: the whole, the first element, the cut shape, the axes' order."""

    whole: Value
    begin: int
    shape: tuple[int, ...]
    order: tuple[int, ...]


def _joint(parts: Sequence[Value], node: Node) -> Value | None:
    """q, k and v as one value [3, B, H, S, D], if they are the thirds of a projection [., ., 3 H D]."""
    thirds = [_third(v) for v in parts]
    first = thirds[0]
    if first is None:
        return None
    heads, width = first.shape[2:]
    wanted = [first._replace(begin=i * heads * width) for i in range(3)]
    if thirds != wanted or first.whole.shape[2] != 3 * heads * width:
        return None
    apart = _as(first.whole, (*first.shape[:2], 3, heads, width), node)
    b, s = first.order[0], first.order[2]
    return _made(Transpose((2, b, 3, s, 4)), (apart,), node)


def _third(value: Value) -> Third | None:
    """How transpose(reshape(slice(whole))) cuts heads out."""
    transpose = value.node
    if transpose is None or not isinstance(transpose.op, Transpose) or value.ndim != 4:
        return None
    order, apart = transpose.op.order, transpose.inputs[0]
    if (order[1], order[3]) != (2, 3) or apart.node is None or not isinstance(apart.node.op, Reshape):
        return None
    part = apart.node.inputs[0]
    cut = part.node
    if cut is None or not isinstance(cut.op, Slice) or part.ndim != 3 or part.shape[:2] != apart.shape[:2]:
        return None
    whole, op = cut.inputs[0], cut.op
    if part.shape[:2] != whole.shape[:2] or op.step != (1, 1, 1):
        return None
    return Third(whole, op.start[2], apart.shape, order)
