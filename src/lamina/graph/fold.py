"""Batch norm of inference folded into the convolution or product before it, whose weights are constants.

With s = scale / sqrt(var + epsilon), (W x + b - mean) s + bias is (s W) x + ((b - mean) s + bias): as many operations
as the convolution alone, and the sum is fused with it like any bias (Jacob et al. 2018, section 3.2).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lamina.graph.rewrite import rewrite
from lamina.graph.trace import Graph, Node, Value, constant
from lamina.ops import Add, BatchNormInfer, Conv, Matmul, Relu
from lamina.ops.core import Array, Op


def fold_batch_norm(graph: Graph) -> Graph:
    """Scale the weights before each batch norm of inference, where its parameters and the weights are constants.

    Between the two there may be a bias. The convolution's result, and the bias's, must have no other reader.
    """
    uses = graph.uses()

    def rule(node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
        if not isinstance(node.op, BatchNormInfer) or any(v.constant is None for v in inputs[1:5]):
            return None
        given, fresh = node.inputs[0], inputs[0]
        bias: Array | None = None
        if len(uses[given]) == 1 and given.node is not None and fresh.node is not None:
            bias = _bias(fresh.node)
            if bias is not None:
                place = next(i for i, v in enumerate(fresh.node.inputs) if v.constant is None)
                given, fresh = given.node.inputs[place], fresh.node.inputs[place]
        head = fresh.node
        if len(uses[given]) != 1 or head is None or not isinstance(head.op, Conv | Matmul):
            return None
        if head.inputs[1].constant is None or fresh.ndim != node.inputs[0].ndim:
            return None
        return _folded(node, node.op, inputs, head, 0.0 if bias is None else bias)

    return rewrite(graph, rule)


def _bias(node: Node) -> Array | None:
    """The numbers that a node adds to each channel, float64 [C] or [1]; None when it does something else."""
    held = [v for v in node.inputs if v.constant is not None]
    out = node.outputs[0]
    if not isinstance(node.op, Add) or len(held) != 1 or held[0].constant is None:
        return None
    shape = (1,) * (out.ndim - held[0].ndim) + held[0].shape
    if any(n != 1 for axis, n in enumerate(shape) if axis != 1):
        return None
    return held[0].constant.numpy().astype(np.float64).reshape(-1)


def _folded(
    node: Node, op: BatchNormInfer, inputs: tuple[Value, ...], head: Node, bias: Array | float
) -> Sequence[Value]:
    """The convolution or product with scaled weights, then what is added, and relu."""
    scale, shift, mean, var = (_wide(v) for v in inputs[1:5])
    factor = scale / np.sqrt(var + op.epsilon)
    weights = _wide(head.inputs[1])
    last = isinstance(head.op, Matmul) and not head.op.transpose_b
    axis = weights.ndim - 1 if last else 0
    across = [1] * weights.ndim
    across[axis] = -1
    dtype = inputs[0].dtype.numpy
    scaled = constant((weights * factor.reshape(across)).astype(dtype))
    added = ((bias - mean) * factor + shift).astype(dtype).reshape((1, -1, *(1,) * (inputs[0].ndim - 2)))
    value = Node(head.op, (head.inputs[0], scaled), head.policy, head.serial).outputs[0]
    # The steps run between the node before and this one: serials are only compared.
    steps: list[tuple[Op, tuple[Value, ...]]] = [(Add(), (constant(added),))]
    steps += [(Add(), (inputs[5],))] if op.residual else []
    steps += [(Relu(), ())] if op.relu else []
    for i, (step, others) in enumerate(steps, 1):
        value = Node(step, (value, *others), node.policy, node.serial - 1 + i / len(steps)).outputs[0]
    return (value,)


def _wide(value: Value) -> Array:
    """A constant's numbers in float64."""
    assert value.constant is not None
    return value.constant.numpy().astype(np.float64)
