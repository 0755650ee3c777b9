"""Batch norm of inference folded into the convolution or product before it, whose weights stay the same.

With s = scale / sqrt(var + epsilon), (W x + b - mean) s + bias is (s W) x + ((b - mean) s + bias): as many operations
as the convolution alone, and the sum is fused with it like any bias (Jacob et al. 2018, section 3.2). The new weights
are computed in the graph, from values that stay from run to run: that is done once, when these are loaded.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from lamina.graph.ir.graph import Graph, Node, Value, constant
from lamina.graph.passes.rewrite import rewrite
from lamina.ops.core import Op
from lamina.ops.primitives import (
    Add,
    BatchNormInfer,
    Cast,
    ClippedRelu,
    Conv,
    Matmul,
    Mul,
    Relu,
    Reshape,
    Rsqrt,
    Sub,
)
from lamina.spec import DType


def fold_batch_norm(graph: Graph, stays: Collection[Value] = ()) -> Graph:
    """Scale the weights before each batch norm of inference whose parameters, like the weights, stay the same.

    stays: inputs that are the same from run to run, as constants are. Between the two there may be a bias. The
    convolution's result, and the bias's, must have no other reader.
    """
    uses, same = graph.uses(), _same(graph, stays)

    def rule(node: Node, inputs: tuple[Value, ...]) -> Sequence[Value] | None:
        if not isinstance(node.op, BatchNormInfer) or any(v not in same for v in node.inputs[1:5]):
            return None
        given, fresh = node.inputs[0], inputs[0]
        bias: Value | None = None
        if len(uses[given]) == 1 and given.node is not None and fresh.node is not None:
            place = _bias(given.node, same)
            if place is not None:
                bias = fresh.node.inputs[place]
                given, fresh = given.node.inputs[1 - place], fresh.node.inputs[1 - place]
        head = fresh.node
        if len(uses[given]) != 1 or given.node is None or head is None:
            return None
        if not isinstance(head.op, Conv | Matmul) or given.node.inputs[1] not in same:
            return None
        if fresh.ndim != node.inputs[0].ndim:
            return None
        return _folded(node, node.op, inputs, head, bias)

    return rewrite(graph, rule)


def _same(graph: Graph, stays: Collection[Value]) -> set[Value]:
    """The values that are the same in every run: they depend on constants and on what stays."""
    found = {*graph.constants, *stays}
    for node in graph.nodes:
        if node.inputs and all(v in found for v in node.inputs):
            found.update(node.outputs)
    return found


def _bias(node: Node, same: set[Value]) -> int | None:
    """Which input of a node is added to each channel and stays the same; None when it does something else."""
    held = [i for i, v in enumerate(node.inputs) if v in same]
    if not isinstance(node.op, Add) or len(held) != 1:
        return None
    value, out = node.inputs[held[0]], node.outputs[0]
    shape = (1,) * (out.ndim - value.ndim) + value.shape
    return None if any(n != 1 for axis, n in enumerate(shape) if axis != 1) else held[0]


class _Maker:
    """Makes nodes that run right before another one: serials are only compared."""

    def __init__(self, before: Node, count: int) -> None:
        self.policy, self._serial, self._step = before.policy, before.serial - 1.0, 1.0 / (count + 1)

    def __call__(self, op: Op, *inputs: Value) -> Value:
        """The first output of op on inputs."""
        self._serial += self._step
        return Node(op, inputs, self.policy, self._serial).outputs[0]

    def cast(self, x: Value, dtype: DType) -> Value:
        """x in another type; from what it was rounded from where that is as wide."""
        if x.node is not None and isinstance(x.node.op, Cast) and x.node.inputs[0].dtype == dtype:
            return x.node.inputs[0]
        return x if x.dtype == dtype else self(Cast(dtype), x)

    def reshape(self, x: Value, shape: tuple[int, ...]) -> Value:
        """x in another shape."""
        return x if x.shape == shape else self(Reshape(shape), x)


#: More nodes than one folding makes.
_MOST_NODES = 24


def _folded(
    node: Node, op: BatchNormInfer, inputs: tuple[Value, ...], head: Node, bias: Value | None
) -> Sequence[Value]:
    """The convolution or product with scaled weights, then what is added, and relu."""
    make = _Maker(node, _MOST_NODES)
    x, (scale, shift, mean, var) = inputs[0], inputs[1:5]
    wide, channels = scale.dtype, scale.spec.numel
    factor = make(Mul(), scale, make(Rsqrt(), make(Add(), var, _number(op.epsilon, wide))))
    weights = make.cast(head.inputs[1], wide)
    last = isinstance(head.op, Matmul) and not head.op.transpose_b
    across = [1] * weights.ndim
    across[weights.ndim - 1 if last else 0] = channels
    scaled = make(Mul(), weights, make.reshape(factor, tuple(across)))
    centre = make(Mul(), mean, _number(-1.0, wide))
    if bias is not None:
        centre = make(Sub(), make.reshape(make.cast(bias, wide), (bias.spec.numel,)), mean)
    added = make(Add(), make(Mul(), centre, factor), shift)
    added = make.reshape(added, (1, channels, *(1,) * (x.ndim - 2)))
    value = make(head.op, head.inputs[0], make.cast(scaled, x.dtype))
    value = make(Add(), value, make.cast(added, x.dtype))
    if op.residual:
        value = make(Add(), value, inputs[5])
    return (make(Relu() if op.hi is None else ClippedRelu(op.hi), value) if op.relu else value,)


def _number(value: float, dtype: DType) -> Value:
    held: Any = np.array(value, dtype.numpy)
    return constant(held)
