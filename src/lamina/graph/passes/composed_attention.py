"""Attention that a program writes out in steps: softmax(scale q kᵀ + bias) v, replaced by the op.

The pattern is the product of a softmax over rows with the values, and before the softmax a product of queries and
keys, possibly with factors on it or its operands, with added biases and masks or elements set to -inf or to the
lowest number of a type, and with casts and reshapes that keep matrices whole; between softmax and values there may be
dropout of the weights, with the op's own mask, drawn from the same random numbers. The op takes matrices
[B, H, S, D]; further leading axes are joined, and a single one stands for heads, unless scores were reshaped for what
is added to them. A row whose scores are all -inf gives zeros, as the op does, where the steps give NaN. A row whose
scores are all set to the lowest number has equal weights either way; their gradient ends at the steps, and would pass
the op: where there is one, the mask must be known to leave every row a score.
"""

from __future__ import annotations

from functools import partial
from math import inf, prod
from typing import Any, NamedTuple, cast

import numpy as np

from lamina.backends.pattern import Either, MadeBy, Results, either, made_by, operand
from lamina.graph.ir.graph import Node, Value, constant
from lamina.graph.passes.known_masks import known_values
from lamina.graph.passes.pattern import Match, RewriteRule, number_of
from lamina.ops.primitives.attention import Attention
from lamina.ops.primitives.cast import Cast
from lamina.ops.primitives.dropout import Dropout, DropoutMask
from lamina.ops.primitives.matmul import Matmul
from lamina.ops.primitives.pointwise import Add, Div, Mul, Where
from lamina.ops.primitives.shape import Expand, Reshape, Transpose
from lamina.ops.primitives.softmax import Softmax
from lamina.spec import Shape

#: The most steps between the products that are followed.
_REACH = 12
#: A score added to this much is lost in rounding.
_LOWEST = -1e30


class _Scores(NamedTuple):
    """scale q kᵀ + biases as the program wrote them: the product, its factor, and the added terms in the shapes they
    had."""

    product: Node
    scale: float
    biases: list[tuple[Value, Shape]]


def _attention(differentiated: bool, match: Match) -> Results | None:
    """The op for the product of weights and values, where the weights are a softmax of `_Scores`.

    Its output includes the statistics that its gradient reads. differentiated: whether there may be a gradient.
    """
    root, last = match.root, cast(Matmul, match.root.op)
    found = _scores(match.node("softmax").inputs[0], match, differentiated)
    if found is None or last.transpose_a or last.transpose_b:
        return None
    if "dropout" in match and match.readers(match.node("dropout").outputs[1]):
        return None
    q, k = match.inputs(found.product)
    op = cast(Matmul, found.product.op)
    v, y = match["v"], root.outputs[0]
    axes = _Axes.of(q.shape[:-2], v.shape[:-2], found.biases)
    if axes is None or op.transpose_a or not q.dtype == k.dtype == v.dtype == y.dtype:
        return None
    if 0 in (q.shape[-1], v.shape[-2]):  # empty, which the op refuses
        return None
    q, k, scale = _unscaled(q, k, found.scale, match)
    if not op.transpose_b:
        k = _exchanged(k, match)
        q, k, scale = _unscaled(q, k, scale, match)
    bias = axes.bias(found.biases, match)
    if bias is None:
        return None
    q, k, v = (axes.four(x, match) for x in (q, k, v))
    mask, keep, others = _dropped(axes, match)
    (made, *_) = match.apply(Attention(scale, stats=True, keep=keep), q, k, v, *bias, *mask, at=root)
    return others | {y: _reshaped(made, y.shape, match)}


def _dropped(axes: _Axes, match: Match) -> tuple[list[Value], float, dict[Value, Value]]:
    """The dropout mask of the weights, the fraction kept, and the generator's next state."""
    if "dropout" not in match:
        return [], 1.0, {}
    node = match.node("dropout")
    p, (weights, state) = cast(Dropout, node.op).p, match.inputs(node)
    drawn = DropoutMask(weights.shape, match.root.outputs[0].dtype, p)
    mask, after = match.apply(drawn, state, at=node)
    return [axes.four(mask, match)], 1 - p, {node.outputs[2]: after}


def _scores(value: Value, match: Match, differentiated: bool) -> _Scores | None:
    """The input of a softmax, followed back to the product; each step has only the next one as reader."""
    factor, biases = 1.0, list[tuple[Value, Shape]]()
    for _ in range(_REACH):
        node = value.node
        if node is None or len(match.readers(value)) != 1:
            return None
        if isinstance(node.op, Matmul):
            return _Scores(node, factor, biases)
        before, number, bias = _step(node, match, differentiated)
        if before is None or (bias is not None and factor != 1.0):
            return None
        if bias is not None:
            biases.append((bias, value.shape))
        value, factor = before, factor * number
    return None


def _step(node: Node, match: Match, differentiated: bool) -> tuple[Value | None, float, Value | None]:
    """The scores that a step on scores reads, the factor it multiplies them by, and the term it adds.

    None for the first where the step does something else.
    """
    (y,), inputs = node.outputs, match.inputs(node)
    op, x = node.op, inputs[0]
    if isinstance(op, Cast) and y.dtype.is_float and x.dtype.is_float:
        return x, 1.0, None
    if isinstance(op, Reshape) and _leaves_matrices(node):
        return x, 1.0, None
    if isinstance(op, Mul | Div) and (number := _factor(node, inputs)) is not None:
        return _other(inputs), number, None
    if isinstance(op, Add):
        a, b = inputs
        if a.shape == y.shape and _is_behind_product(a, match):
            return a, 1.0, b
        return (b, 1.0, a) if b.shape == y.shape and _is_behind_product(b, match) else (None, 1.0, None)
    if isinstance(op, Where):
        mask, a, b = inputs
        hidden, scores = (a, b) if _is_lowest(a) else (b, a)
        if not _is_lowest(hidden) or scores.shape != y.shape:
            return None, 1.0, None
        known = known_values(mask, match)
        seen = None if known is None or not known.ndim else known == (hidden is b)
        if seen is not None and seen.all():
            return scores, 1.0, None
        leaves_some = seen is not None and seen.any(-1).all()  # in each row
        if number_of(hidden) == -inf or leaves_some or not differentiated:
            nothing = constant(np.zeros((), y.dtype.numpy))
            parts = (hidden, nothing) if hidden is a else (nothing, hidden)
            return scores, 1.0, match.apply(Where(), mask, *parts, at=node)[0]
    return None, 1.0, None


def _is_lowest(value: Value) -> bool:
    number = number_of(value)
    return number is not None and number <= _LOWEST


def _other(inputs: tuple[Value, ...]) -> Value:
    """Of two values the one that is not a number."""
    return inputs[0] if number_of(inputs[0]) is None else inputs[1]


def _is_behind_product(value: Value, match: Match) -> bool:
    """Whether a value may be scores: following the largest operands back leads to a product."""
    for _ in range(_REACH):
        node = value.node
        if node is None or not isinstance(node.op, Matmul | Cast | Reshape | Mul | Div | Add | Where):
            return False
        if isinstance(node.op, Matmul):
            return True
        value = max(match.inputs(node)[isinstance(node.op, Where) :], key=lambda x: x.spec.numel)
    return False


def _factor(node: Node, inputs: tuple[Value, ...]) -> float | None:
    """The factor by which a step multiplies its other operand; None where it does something else."""
    a, b = map(number_of, inputs)
    if isinstance(node.op, Div):
        return None if b is None or b == 0 else 1 / b
    return a if b is None else b


def _unscaled(q: Value, k: Value, scale: float, match: Match) -> tuple[Value, Value, float]:
    """Queries and keys without the factors that were applied to them for the scores alone."""
    sides = []
    for x in (q, k):
        node = x.node
        if node is not None and isinstance(node.op, Mul | Div) and len(match.readers(x)) == 1:
            inputs = match.inputs(node)
            number = _factor(node, inputs)
            x, scale = (x, scale) if number is None else (_other(inputs), scale * number)
        sides.append(x)
    return sides[0], sides[1], scale


class _Axes(NamedTuple):
    """The leading axes of the matrices, and how they map to the op's: [B, H]."""

    outer: Shape
    batch: int
    heads: int

    @classmethod
    def of(cls, outer: Shape, others: Shape, added: list[tuple[Value, Shape]]) -> _Axes | None:
        """The last leading axis, of the products or of the scores that something is added to, is that of heads; None
        where operands differ in their leading axes."""
        if outer != others or not outer:
            return None
        # Terms added per head or per matrix need not be repeated where their last leading axis is the heads'.
        fronts = [scores[:-2] for value, scores in added if prod(value.shape[:-2]) > 1]
        fronts = [front for front in fronts if prod(front) == prod(outer)]
        front = min(fronts, key=lambda axes: (axes[-1] != outer[-1], axes[-1]), default=outer)
        return cls(outer, prod(front[:-1]), front[-1])

    def four(self, x: Value, match: Match) -> Value:
        """Matrices [..., S, D] as [B, H, S, D]."""
        return _reshaped(x, (self.batch, self.heads, *x.shape[-2:]), match)

    def bias(self, added: list[tuple[Value, Shape]], match: Match) -> tuple[Value, ...] | None:
        """The sum of all terms added to scores as one bias, or none; None where it cannot be one."""
        found: list[Value] = []
        for value, scores in added:
            one = self._as_bias(value, scores, match)
            if one is None:
                return None
            found.append(one)
        while len(found) > 1:
            a, b = found.pop(), found.pop()
            found += match.apply(Add(), a, b, at=match.root)
        dtype = match.root.outputs[0].dtype
        return tuple(x if x.dtype == dtype else match.apply(Cast(dtype), x, at=match.root)[0] for x in found)

    def _as_bias(self, value: Value, scores: Shape, match: Match) -> Value | None:
        """A term added to scores of this shape, as [B or 1, H or 1, S or 1, T or 1]."""
        front, whole = scores[:-2], self.outer
        if not value.dtype.is_float or value.ndim > len(scores) or prod(front) != prod(whole):
            return None
        if value.dtype.itemsize > match.root.outputs[0].dtype.itemsize:
            return None  # a large number would become -inf in the narrower type
        shape = (1,) * (len(scores) - value.ndim) + value.shape
        *own, heads = shape[:-2]
        if front[-1] != self.heads and (heads, *own) != (1,) * len(front):
            # Heads were joined with other axes for the product.
            value = _spread(value, (*front, *shape[-2:]), match)
            return _reshaped(value, (self.batch, self.heads, *shape[-2:]), match)
        if any(n != 1 for n in own):
            value = _spread(value, (*front[:-1], heads, *shape[-2:]), match)
            return _reshaped(value, (self.batch, heads, *shape[-2:]), match)
        return _reshaped(value, (1, heads, *shape[-2:]), match)


def _spread(x: Value, shape: Shape, match: Match) -> Value:
    """The value, broadcast to a shape."""
    return x if x.shape == shape else match.apply(Expand(shape), x, at=match.root)[0]


def _exchanged(x: Value, match: Match) -> Value:
    """Matrices with their last two axes swapped; of a transposed value, its source is used."""
    if x.node is not None and isinstance(x.node.op, Reshape) and _leaves_matrices(x.node):
        (whole,) = match.inputs(x.node)  # [..., D, T] whose axes in front were joined
        if whole.node is not None and isinstance(whole.node.op, Transpose):
            return _reshaped(_exchanged(whole, match), (*x.shape[:-2], x.shape[-1], x.shape[-2]), match)
    order = list(range(x.ndim))
    if x.node is not None and isinstance(x.node.op, Transpose):
        order, (x,) = list(x.node.op.order), match.inputs(x.node)
    order[-2:] = order[:-3:-1]
    return x if order == sorted(order) else match.apply(Transpose(tuple(order)), x, at=match.root)[0]


def _reshaped(x: Value, shape: Shape, match: Match) -> Value:
    return x if x.shape == shape else match.apply(Reshape(shape), x, at=match.root)[0]


def _is_of_rows(node: Any) -> bool:
    return bool(node.op.axis == (node.inputs[0].ndim - 1,))


def _leaves_matrices(node: Any) -> bool:
    (x,), (y,) = node.inputs, node.outputs
    return bool(x.ndim > 1 and x.shape[-2:] == y.shape[-2:])


def _reshaped_or_not(x: MadeBy) -> Either:
    return either(x, made_by(Reshape, x, where=_leaves_matrices).read_once)


def _forms(weights: MadeBy) -> Either:
    """The weights as the product with values reads them."""
    shaped = _reshaped_or_not(weights)
    dropped = made_by(Dropout, shaped, operand("state"), name="dropout").read_once
    return either(shaped, _reshaped_or_not(dropped))


def _rules(differentiated: bool) -> list[RewriteRule]:
    return [
        RewriteRule(
            "attention", made_by(Matmul, _forms(weights), operand("v")), partial(_attention, differentiated)
        )
        for weights in (_softmax, made_by(Cast, _softmax).read_once)
    ]


_softmax = made_by(Softmax, operand("scores"), name="softmax", where=_is_of_rows).read_once
#: Equal in value and gradient; equal in value alone.
ATTENTION, ATTENTION_WITHOUT_GRADIENT = _rules(True), _rules(False)
