"""Inference batch norm folded into the convolution or product before it, whose weights do not change.

Where there is none, it becomes a scale and a shift per channel.

With s = scale / sqrt(var + epsilon), (W x + b - mean) s + bias is (s W) x + ((b - mean) s + bias): as many operations
as the convolution alone, and the sum is fused with it like any bias (Jacob et al. 2018, section 3.2). The new weights
are computed in the graph, from values that do not change between runs: that is done once, when these are loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import lru_cache, partial
from typing import Any

import numpy as np

from lamina.backends import Backend
from lamina.backends.pattern import Pattern, PatternNode, Results, either, made_by, operand
from lamina.graph.ir.graph import Graph, Node, Value, constant
from lamina.graph.passes.pattern import Match, Report, RewriteRule, rewrite
from lamina.ops.core import Op
from lamina.ops.primitives.cast import Cast
from lamina.ops.primitives.conv import Conv
from lamina.ops.primitives.fused_elementwise import FusedElementwise
from lamina.ops.primitives.matmul import Matmul
from lamina.ops.primitives.norm import BatchNormInfer
from lamina.ops.primitives.pointwise import Add, ClippedRelu, Mul, Relu, Rsqrt, Sub
from lamina.ops.primitives.shape import Reshape
from lamina.spec import DType


def fold_batch_norm(
    graph: Graph, stays: Collection[Value] = (), report: Report | None = None, backend: Backend | None = None
) -> Graph:
    """Fold inference batch norms whose parameters do not change into the weights before them, which do not change
    either.

    stays: inputs that do not change between runs, as constants do not. There may be a bias between the two. The
        outputs of the convolution and the bias must have no other reader. backend: where it fuses elementwise steps,
        the computation of the norm's coefficients is one node.
    """

    def joins(x: Value) -> bool:
        return backend is not None and backend.joins(Add(), [x.spec, x.spec])

    for op in (Mul, Add):
        held = graph.unchanging(stays)
        graph = rewrite(graph, [RewriteRule("scale behind batch norm", _affine(op, held), _taken_in)], report)
    graph = rewrite(
        graph,
        [RewriteRule("batch norm folded", _pattern(graph.unchanging(stays)), partial(_folded, joins))],
        report,
    )
    return rewrite(
        graph,
        [RewriteRule("batch norm in steps", _norm(graph.unchanging(stays)), partial(_stepped, joins))],
        report,
    )


def _pattern(same: set[Value]) -> Pattern:
    """batch_norm(head(x, weights) [+ bias]), where all but x does not change between runs."""

    def stays(value: Any) -> bool:
        return value in same

    head = made_by(Conv | Matmul, operand("x"), operand("weights", stays), name="head", same_policy=False)
    bias = operand("bias", stays)
    biased = made_by(Add, head.read_once, bias, where=_by_channel(stays), same_policy=False)
    numbers = (operand(name, stays) for name in ("scale", "shift", "mean", "var"))
    return made_by(BatchNormInfer, either(biased.read_once, head.read_once), *numbers)


def _affine(op: type[Op], same: set[Value]) -> Pattern:
    """batch_norm(x) * m or + m, with an unchanging value m per channel, like the norm's parameters."""

    def stays(value: Any) -> bool:
        return value in same

    numbers = (operand(name, stays) for name in ("scale", "shift", "mean", "var"))
    norm = made_by(BatchNormInfer, operand("x"), *numbers, name="norm", where=_is_bare)
    return made_by(op, norm.read_once, operand("m", stays), where=_by_channel(stays))


def _norm(same: set[Value]) -> Pattern:
    """batch_norm(x) with unchanging parameters."""
    numbers = (operand(name, lambda v: v in same) for name in ("scale", "shift", "mean", "var"))
    return made_by(BatchNormInfer, operand("x"), *numbers)


def _stepped(joins: Callable[[Value], bool], match: Match) -> Results | None:
    """x times a value per channel, plus another: elementwise steps, which are fused with others."""
    make, y, x = _Maker(match, joins), match.root.outputs[0], match["x"]
    if x.dtype != match["scale"].dtype:
        return None
    factor = _factor(make, match)
    added = make.steps(_SHIFTED, match["mean"], factor, match["shift"])
    across = (1, factor.spec.numel, *(1,) * (y.ndim - 2))
    value = make(Mul(), x, make.reshape(factor, across))
    return {y: _finished(make, match, make(Add(), value, make.reshape(added, across)))}


def _is_bare(node: PatternNode) -> bool:
    return not (node.op.relu or node.op.residual)


def _taken_in(match: Match) -> Results:
    """The norm with m absorbed in its scale and shift: m (x̂ scale + shift), or x̂ scale + (shift + m)."""
    make, norm = _Maker(match), match.node("norm")
    scale, shift = match["scale"], match["shift"]
    m = make.cast(match["m"], scale.dtype)
    m = make.reshape(m, (m.spec.numel,))
    if isinstance(match.root.op, Mul):
        scale = make(Mul(), scale, m)
    shift = make(match.root.op, shift, m)
    return {match.root.outputs[0]: make(norm.op, match["x"], scale, shift, match["mean"], match["var"])}


def _by_channel(stays: Callable[[Any], bool]) -> Callable[[PatternNode], bool]:
    """Whether one input of a sum or product is an unchanging value per channel; the other has the result's shape."""

    def by_channel(node: PatternNode) -> bool:
        held, others = ([v for v in node.inputs if stays(v) is same] for same in (True, False))
        y = node.outputs[0]
        if len(held) != 1 or others[0].shape != y.shape:
            return False
        shape = (1,) * (y.ndim - held[0].ndim) + held[0].shape
        return all(n == 1 or axis == 1 for axis, n in enumerate(shape))

    return by_channel


class _Maker:
    """Creates nodes that run in place of the norm."""

    def __init__(self, match: Match, joins: Callable[[Value], bool] = lambda x: False) -> None:
        self.match, self.joins = match, joins

    def __call__(self, op: Op, *inputs: Value) -> Value:
        """The first output of op on inputs."""
        return self.match.apply(op, *inputs, at=self.match.root)[0]

    def steps(self, op: FusedElementwise, *inputs: Value) -> Value:
        """Several steps: one node where the backend fuses them."""
        if self.joins(inputs[0]):
            return self(op, *inputs)
        made: Value = op.apply(self, inputs)
        return made

    def cast(self, x: Value, dtype: DType) -> Value:
        """x in another type; the cast's source where x was rounded from a type at least as wide."""
        if x.node is not None and isinstance(x.node.op, Cast) and x.node.inputs[0].dtype == dtype:
            return x.node.inputs[0]
        return x if x.dtype == dtype else self(Cast(dtype), x)

    def reshape(self, x: Value, shape: tuple[int, ...]) -> Value:
        """x in another shape."""
        return x if x.shape == shape else self(Reshape(shape), x)


def _folded(joins: Callable[[Value], bool], match: Match) -> Results:
    """The convolution or product with scaled weights, then the bias or residual, and relu."""
    make, op, head = _Maker(match, joins), match.root.op, match.node("head")
    assert isinstance(op, BatchNormInfer)
    shift, mean = match["shift"], match["mean"]
    y, wide, channels = match.root.outputs[0], shift.dtype, shift.spec.numel
    factor = _factor(make, match)
    weights = make.cast(match["weights"], wide)
    across = [1] * weights.ndim
    across[_output_axis(head, weights)] = channels
    scaled = make(Mul(), weights, make.reshape(factor, tuple(across)))
    if "bias" in match:
        bias = make.cast(match["bias"], wide)
        added = make.steps(_SHIFTED_BIAS, mean, factor, shift, make.reshape(bias, (bias.spec.numel,)))
    else:
        added = make.steps(_SHIFTED, mean, factor, shift)
    added = make.reshape(added, (1, channels, *(1,) * (y.ndim - 2)))
    product = Node(
        head.op, (match["x"], make.cast(scaled, y.dtype)), head.policy, match.root.serial, origin=head.origin
    )
    return {y: _finished(make, match, make(Add(), product.outputs[0], make.cast(added, y.dtype)))}


#: Of (scale, var, epsilon), (mean, factor, shift) and (mean, factor, shift, bias).
_FACTOR = FusedElementwise((Add(), Rsqrt(), Mul()), ((1, 2), (~0,), (0, ~1)))
_SHIFTED = FusedElementwise((Mul(), Sub()), ((0, 1), (2, ~0)))
_SHIFTED_BIAS = FusedElementwise((Sub(), Mul(), Add()), ((3, 0), (~0, 1), (~1, 2)))


def _factor(make: _Maker, match: Match) -> Value:
    """The norm's factor per channel: scale / sqrt(var + epsilon)."""
    scale, var, op = match["scale"], match["var"], match.root.op
    assert isinstance(op, BatchNormInfer)
    return make.steps(_FACTOR, scale, var, _number(op.epsilon, scale.dtype))


def _finished(make: _Maker, match: Match, value: Value) -> Value:
    """The value with the norm's residual and relu."""
    op = match.root.op
    assert isinstance(op, BatchNormInfer)
    if op.residual:
        value = make(Add(), value, match.inputs(match.root)[5])
    if op.relu:
        value = make(Relu() if op.hi is None else ClippedRelu(op.hi), value)
    return value


def _output_axis(head: Node, weights: Value) -> int:
    """The axis of the weights along which the output channels lie."""
    last = isinstance(head.op, Matmul) and not head.op.transpose_b
    return weights.ndim - 1 if last else 0


@lru_cache(maxsize=64)
def _number(value: float, dtype: DType) -> Value:
    """A constant, shared by all norms."""
    held: Any = np.array(value, dtype.numpy)
    return constant(held)
