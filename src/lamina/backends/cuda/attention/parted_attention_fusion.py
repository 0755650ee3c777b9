"""Attention whose q, k and v are parts of other tensors: read where they lie, without copies of the parts.

Networks project to several of them at once, and slice the result: keys and values alone, heads of other widths for
the values, q, k and v of each head side by side, images with the heads among their channels. (Thirds of one
projection, whose gradients are written in place too, are `joint_attention_fusion`'s.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lamina.backends import Fusion
from lamina.backends.cuda.registry import fusions
from lamina.backends.pattern import PatternMatch, Results, made_by
from lamina.ops.core import Arg, Array, Op, Sample, bind, inferred
from lamina.ops.primitives.attention import Attention, AttentionGrad, fitting_operands
from lamina.ops.primitives.shape import Reshape, Slice, Transpose
from lamina.spec import FLOATS, Shape, Spec, float64

#: Applies an op to operands of some kind: specs, arrays, values of a graph.
_Apply = Callable[[Op, Sequence[Any]], Sequence[Any]]


@dataclass(frozen=True)
class PartedAttention(Op):
    """`unfused`, an `Attention` or an `AttentionGrad`, on parts of other tensors in place of q, k and v.

    Inputs: these tensors, each once, then the further operands of `unfused`.
    wholes: which of the tensors q, k and v are parts of. q, k, v: the ops that take the part, one after the other.
    """

    unfused: Attention | AttentionGrad
    wholes: tuple[int, int, int]
    q: tuple[Op, ...]
    k: tuple[Op, ...]
    v: tuple[Op, ...]
    arity = None

    @property
    def count(self) -> int:
        """The number of tensors that have parts."""
        return 1 + max(self.wholes)

    @property
    def ways(self) -> tuple[tuple[Op, ...], ...]:
        """The ops that take q, k and v."""
        return self.q, self.k, self.v

    def _operands(self, apply: _Apply, inputs: Sequence[Any]) -> list[Any]:
        """The operands of `unfused`."""
        found = []
        for whole, ops in zip(self.wholes, self.ways, strict=True):
            part = inputs[whole]
            for op in ops:
                (part,) = apply(op, [part])
            found.append(part)
        return [*found, *inputs[self.count :]]

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        return inferred(self.unfused, *self._operands(lambda op, xs: inferred(op, *xs), inputs))

    def flops(self, *inputs: Spec) -> int:
        return self.unfused.flops(*self._operands(lambda op, xs: inferred(op, *xs), inputs))

    def prune(self, used: Sequence[bool]) -> Op:
        slim = self.unfused.prune(used)
        assert isinstance(slim, Attention | AttentionGrad)
        return self if slim is self.unfused else replace(self, unfused=slim)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        """The gradients of the parts, put back in place and summed."""
        taken: list[tuple[Op, Sequence[Any], Sequence[Any]]] = []

        def record(op: Op, xs: Sequence[Any]) -> Sequence[Any]:
            taken.append((op, xs, bind(op, *xs)))
            return taken[-1][2]

        operands = self._operands(record, inputs)
        of_parts = list(self.unfused.vjp(grads, operands, outputs))
        found: list[Any] = [None] * self.count
        for whole, ops, g in zip(self.wholes, self.ways, of_parts[:3], strict=True):
            own, taken = taken[: len(ops)], taken[len(ops) :]
            for op, xs, ys in reversed(own):
                g = None if g is None else op.vjp((g,), xs, ys)[0]
            if g is not None:
                found[whole] = g if found[whole] is None else found[whole] + g
        return [*found, *of_parts[3:]]

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        return self.unfused.reference(*self._operands(lambda op, xs: op.reference(*xs), inputs))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for op, sizes, bias in _CASES:
            yield from _samples(cls, op, sizes, bias)


def _samples(
    parted: Callable[..., PartedAttention], op: Attention, sizes: Shape, bias: Sequence[Shape]
) -> Iterator[Sample]:
    """Attention and its gradient with q apart, and k and v side by side in each head of one projection."""
    b, h, s, t, d, e = sizes
    ways = (0, 1, 1), (), *(_side_by_side(b, h, t, d + e, begin, end) for begin, end in ((0, d), (d, d + e)))
    shapes = ((b, h, s, d), (b, h, t, d), (b, h, t, e), *bias)
    yield Sample.of(parted(op, *ways), (b, h, s, d), (b, t, h * (d + e)), *bias)
    grad = parted(AttentionGrad(op.scale, op.causal), *ways)
    q, k, v, o, stats, *others = fitting_operands(replace(op, stats=True), shapes)
    both = tuple(
        x
        for row in range(b * t)
        for head in range(h)
        for part, width in ((k, d), (v, e))
        for x in _line(part, (row // t * h + head) * t + row % t, width)
    )
    whole = Arg((b, t, h * (d + e)), value=both)
    narrow = tuple(x for x in FLOATS if x != float64)
    yield Sample.of(grad, q, whole, o, stats, (b, h, s, e), *others, dtypes=narrow)


def _line(arg: Arg, row: int, width: int) -> tuple[float, ...]:
    assert arg.value is not None
    return tuple(arg.value[row * width : (row + 1) * width])


def _side_by_side(batch: int, heads: int, rows: int, width: int, begin: int, end: int) -> tuple[Op, ...]:
    """The features from `begin` to `end` of each head of a projection [B, T, H width], as [B, H, T, .]."""
    cut = Slice((0, 0, 0, begin), (batch, rows, heads, end), (1, 1, 1, 1))
    return Reshape((batch, rows, heads, width)), cut, Transpose((0, 2, 1, 3))


#: The attention, (B, H, S, T, D, E), shapes of the bias.
_CASES: list[tuple[Attention, Shape, tuple[Shape, ...]]] = [
    (Attention(0.5, stats=True), (2, 2, 3, 3, 8, 16), ()),
    (Attention(0.35355339, causal=True), (1, 2, 9, 9, 8, 8), ()),
    (Attention(0.25, stats=True), (1, 3, 5, 7, 16, 8), ((1, 3, 5, 7),)),
    (Attention(0.7), (1, 1, 2, 5, 3, 4), ()),
    (Attention(0.5, causal=True, stats=True), (1, 1, 3, 6, 2, 3), ()),
]


# --------------------------------------------------------------------------------------------------------- fusion


def _taken_from(value: Any, match: PatternMatch) -> tuple[Any, tuple[Op, ...]]:
    """The value of which `value` is a part, and the ops that take it; itself if it is all of its elements."""
    ops: tuple[Op, ...] = ()
    whole, found = value, ops
    while (node := value.node) is not None and node.op.takes_part:
        part, (value,) = value, match.inputs(node)
        ops = (node.op, *ops)
        if part.spec.numel < value.spec.numel:
            whole, found = value, ops
    return whole, found


def _parted(match: PatternMatch) -> Results | None:
    """attention(parts of x, …) -> attention on x."""
    node, inputs = match.root, match.inputs(match.root)
    taken = [_taken_from(value, match) for value in inputs[:3]]
    if not any(ops for _, ops in taken):
        return None
    wholes = dict.fromkeys(whole for whole, _ in taken)
    numbers = {whole: i for i, whole in enumerate(wholes)}
    q, k, v = (numbers[whole] for whole, _ in taken)
    op = PartedAttention(node.op, (q, k, v), *(ops for _, ops in taken))
    return dict(zip(node.outputs, match.apply(op, *wholes, *inputs[3:], at=node), strict=True))


_JOINT = ("joint_attention", "joint_attention_grad", "stacked_attention", "stacked_attention_grad")
PARTED_ATTENTION = fusions.add(
    Fusion("parted_attention", made_by(Attention | AttentionGrad), _parted, PartedAttention, after=_JOINT)
)
