"""Rules that reach the same result over fewer bytes."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.graph.ir.graph import Node, Value
from lamina.ops.primitives import MaxPoolGrad, Reduce, ReluGrad


def pool_gradient_last(node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
    """relu_grad(x, max_pool_grad(g, index)) -> max_pool_grad(relu_grad(max_pool(x), g), index).

    The gradient arrives only where the maxima were, and there x is what the pool gave: the pass over x becomes
    one over the pooled tensor, a fraction of the size.
    """
    if not isinstance(node.op, ReluGrad):
        return None
    x, arriving = inputs
    spread = arriving.node
    if spread is None or not isinstance(spread.op, MaxPoolGrad):
        return None
    g, index = spread.inputs
    pool = index.node
    if pool is None or index is not pool.outputs[-1] or pool.inputs[0] is not x:
        return None
    masked = Node(node.op, (pool.outputs[0], g), node.policy, spread.serial)
    return Node(spread.op, (masked.outputs[0], index), spread.policy, node.serial).outputs


def sum_before_spreading(node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
    """The sum over all places of max_pool_grad(g, index) is the sum of g: each gradient goes to one place."""
    op, spread = node.op, inputs[0].node if inputs else None
    if not isinstance(op, Reduce) or op.kind != "sum" or spread is None:
        return None
    if not isinstance(spread.op, MaxPoolGrad) or not set(range(2, inputs[0].ndim)) <= set(op.axes):
        return None
    return node.with_inputs((spread.inputs[0],), op).outputs
