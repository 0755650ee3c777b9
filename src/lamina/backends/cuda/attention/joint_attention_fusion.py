"""Attention on one projection as it is: q, k and v are read where they lie, and their gradients written so.

Networks cut one projection [., ., 3 H D] into thirds, and join the gradients of these again; or they bring it to
[3, B, H, S, D], of which q, k and v are the parts, and stack the gradients. cuDNN takes any strides, so that neither
the parts nor the joint gradient have to be copied together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lamina.backends import Fusion
from lamina.backends.cuda.registry import fusions
from lamina.backends.pattern import MadeBy, PatternMatch, Results, made_by, operand
from lamina.ops.core import Arg, Array, BatchAxes, BatchAxis, Op, Sample, call
from lamina.ops.core import operand as as_operand
from lamina.ops.primitives.attention import Attention, AttentionGrad, fitting_operands
from lamina.ops.primitives.shape import Concat, Reshape, Slice, Transpose, stack
from lamina.spec import FLOATS, Shape, ShapeError, Spec, float64


@dataclass(frozen=True)
class _JointAttention(Op):
    """Attention whose q, k and v are parts of one tensor [3, B, H, S, D], as one projection makes them."""

    scale: float
    causal: bool = False

    @property
    def grad(self) -> AttentionGrad:
        """The gradient on q, k and v by themselves."""
        return AttentionGrad(self.scale, self.causal)

    def parts(self, joint: Spec) -> tuple[Spec, Spec, Spec]:
        """q, k and v. Raises ShapeError."""
        if joint.ndim != 5 or joint.shape[0] != 3:
            raise ShapeError(f"{self.name}: needs q, k and v as [3, B, H, S, D], got {joint}")
        part = self.result(joint.shape[1:], joint.dtype)
        return part, part, part


@dataclass(frozen=True)
class JointAttention(_JointAttention):
    """(q, k, v as [3, B, H, S, D]) -> (o [B, H, S, D], stats [B, H, S, 1]): `Attention` of the three parts."""

    stats: bool = False

    @property
    def unfused(self) -> Attention:
        """The same on q, k and v by themselves."""
        return Attention(self.scale, self.causal, stats=self.stats)

    def infer(self, joint: Spec) -> tuple[Spec, ...]:  # type: ignore[override]
        return self.unfused.infer(*self.parts(joint))

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        b = axes[0]
        return (BatchAxis(b.axis - 1, b.size),) * (1 + self.stats) if b and b.axis in (1, 2) else None

    def flops(self, joint: Spec) -> int:  # type: ignore[override]
        return self.unfused.flops(*self.parts(joint))

    def prune(self, used: Sequence[bool]) -> Op:
        return replace(self, stats=False) if self.stats and not any(used[1:]) else self

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        (joint,) = inputs
        if self.stats and grads[1] is None:
            grad = JointAttentionGrad(self.scale, self.causal)
            return (call(grad, joint, outputs[0], outputs[1], grads[0]),)
        parts = list(_parts(joint))
        found = zip(self.unfused.vjp(grads, parts, outputs), parts, strict=True)
        return (stack([_zeros(x) if g is None else g for g, x in found]),)

    def reference(self, joint: Array) -> tuple[Array, ...]:  # type: ignore[override]
        return self.unfused.reference(*joint)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for scale, causal, shape in _JOINT_CASES:
            for stats in (False, True):
                yield Sample.of(cls(scale, causal, stats), (3, *shape))


@dataclass(frozen=True)
class JointAttentionGrad(_JointAttention):
    """(q, k, v as [3, B, H, S, D], o, stats, do) -> their gradients as one tensor: `AttentionGrad` of the parts."""

    arity = 4

    def infer(self, joint: Spec, o: Spec, stats: Spec, do: Spec) -> tuple[Spec]:  # type: ignore[override]
        self.grad.infer(*self.parts(joint), o, stats, do)
        return (self.result(joint.shape, joint.dtype),)

    def flops(self, joint: Spec, *others: Spec) -> int:  # type: ignore[override]
        return self.grad.flops(*self.parts(joint), *others)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        joint, *others = inputs
        found = self.grad.vjp(list(_parts(grads[0])), [*_parts(joint), *others], list(_parts(outputs[0])))
        return (stack(found[:3]), *found[3:])

    def reference(self, joint: Array, *others: Array) -> tuple[Array]:  # type: ignore[override]
        return (np.stack(self.grad.reference(*joint, *others)),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        narrow = tuple(d for d in FLOATS if d != float64)
        for scale, causal, shape in _JOINT_CASES:
            stats = Arg((*shape[:3], 1), low=1.5, high=3.0)
            yield Sample.of(cls(scale, causal), (3, *shape), shape, stats, shape, dtypes=(float64,))
            q, k, v, *made = fitting_operands(Attention(scale, causal, stats=True), (shape,) * 3)
            joint = replace(q, shape=(3, *shape), value=sum((a.value or () for a in (q, k, v)), ()))
            yield Sample.of(cls(scale, causal), joint, *made, shape, dtypes=narrow)


def _parts(joint: Any) -> Iterator[Any]:
    """q, k and v of one tensor."""
    return (joint[i] for i in range(3))


def _zeros(x: Any) -> Any:
    return as_operand(np.zeros(x.shape, x.dtype.numpy))


#: scale, causal, (B, H, S, D).
_JOINT_CASES: list[tuple[float, bool, Shape]] = [
    (0.5, False, (1, 2, 3, 4)),
    (0.35355339, True, (2, 2, 5, 8)),
    (0.25, False, (2, 3, 17, 16)),
    (0.7, False, (1, 1, 9, 2)),
    (0.3, True, (1, 4, 3, 5)),
]


# -------------------------------------------------------------------------------------------------------- fusions


def _is_split(node: Any) -> bool:
    """Whether a reshape leaves the first two axes [., .] and splits the last one into heads."""
    (part,), (y,) = node.inputs, node.outputs
    return part.ndim == 3 and y.ndim == 4 and bool(part.shape[:2] == y.shape[:2])


def _is_cut(node: Any) -> bool:
    """Whether a slice takes neighbours of the last axis, and all of the first two."""
    (whole,), (part,) = node.inputs, node.outputs
    return bool(part.ndim == 3 and part.shape[:2] == whole.shape[:2] and node.op.step == (1, 1, 1))


def _brings_heads_out(node: Any) -> bool:
    """Whether a transposition makes [., ., H, D] to [., H, ., D]."""
    order = node.op.order
    return len(order) == 4 and (order[1], order[3]) == (2, 3)


def _third(number: int) -> MadeBy:
    """Heads [B, H, S, D] cut out of a projection [., ., 3 H D]."""
    cut = made_by(Slice, operand("projection"), name=f"cut{number}", where=_is_cut, same_policy=False)
    split = made_by(Reshape, cut, name=f"split{number}", where=_is_split, same_policy=False)
    return made_by(Transpose, split, name=f"heads{number}", where=_brings_heads_out, same_policy=False)


_THIRDS = [_third(i) for i in range(3)]


def _joint(match: PatternMatch, at: Any) -> Any:
    """q, k and v as one value [3, B, H, S, D], if they are the thirds of the projection in this order; else None."""
    heads, width = match["heads0"].shape[1], match["heads0"].shape[3]
    projection, size = match["projection"], heads * width
    order = match.node("heads0").op.order
    for i in range(3):
        begins = match.node(f"cut{i}").op.start[2] == i * size
        alike = (
            match["heads0"].shape == match[f"heads{i}"].shape and match.node(f"heads{i}").op.order == order
        )
        if not begins or not alike or projection.shape[2] != 3 * size:
            return None
    shape = (*projection.shape[:2], 3, heads, width)
    (apart,) = match.apply(Reshape(shape), projection, at=at)
    return match.apply(Transpose((2, order[0], 3, order[2], 4)), apart, at=at)[0]


def _has_no_bias(node: Any) -> bool:
    return len(node.inputs) == 3


def _attended(match: PatternMatch) -> Results | None:
    """attention(q, k, v) of the thirds of one projection -> attention on the projection as it is."""
    node = match.root
    joint = _joint(match, node)
    if joint is None:
        return None
    made = match.apply(JointAttention(node.op.scale, node.op.causal, node.op.stats), joint, at=node)
    return dict(zip(node.outputs, made, strict=True))


JOINT_ATTENTION = fusions.add(
    Fusion("joint_attention", made_by(Attention, *_THIRDS, where=_has_no_bias), _attended, JointAttention)
)


def _is_part(node: Any) -> bool:
    """Whether a slice is one of three parts along the first of five axes."""
    (whole,), (part,) = node.inputs, node.outputs
    return bool(whole.ndim == 5 and whole.shape[0] == 3 and part.shape == (1, *whole.shape[1:]))


def _unstacked(node: Any) -> bool:
    (part,), (y,) = node.inputs, node.outputs
    return bool(part.shape == (1, *y.shape))


def _part_of(number: int) -> MadeBy:
    """Heads [B, H, S, D] as a part of [3, B, H, S, D]."""
    part = made_by(Slice, operand("joint"), name=f"part{number}", where=_is_part, same_policy=False)
    return made_by(Reshape, part, where=_unstacked, same_policy=False)


_PARTS = [_part_of(i) for i in range(3)]


def _are_in_order(match: PatternMatch) -> bool:
    """Whether q, k and v are the parts in this order."""
    return all(match.node(f"part{i}").op.start[0] == i for i in range(3))


def _attended_to_parts(match: PatternMatch) -> Results | None:
    """attention(q, k, v) of the parts of one value -> attention on that value."""
    node = match.root
    if not _are_in_order(match):
        return None
    op = JointAttention(node.op.scale, node.op.causal, node.op.stats)
    return dict(zip(node.outputs, match.apply(op, match["joint"], at=node), strict=True))


STACKED_ATTENTION = fusions.add(
    Fusion(
        "stacked_attention",
        made_by(Attention, *_PARTS, where=_has_no_bias),
        _attended_to_parts,
        JointAttention,
    )
)


def _joins_three(node: Any) -> bool:
    return len(node.inputs) == 3 and bool(node.op.axis % node.outputs[0].ndim == 2)


def _has_six(node: Any) -> bool:
    return len(node.inputs) == 6


def _brings_heads_in(node: Any) -> bool:
    """Whether a transposition makes [B, H, S, D] to [., ., H, D]."""
    return len(node.op.order) == 4 and bool(node.op.order[2:] == (1, 3))


def _is_merge(node: Any) -> bool:
    """Whether a reshape leaves the first two axes and joins heads."""
    (heads,), (y,) = node.inputs, node.outputs
    return y.ndim == 3 and heads.ndim == 4 and bool(y.shape[:2] == heads.shape[:2])


_others = (operand("o"), operand("stats"), operand("do"))
_grad = made_by(AttentionGrad, *_THIRDS, *_others, name="grad", where=_has_six, same_policy=False)
_parts_grad = made_by(AttentionGrad, *_PARTS, *_others, name="grad", where=_has_six, same_policy=False)


def _merged(number: int) -> MadeBy:
    """The gradient of a third, as it lies in the projection's."""
    back = made_by(
        Transpose, _grad.output(number), name=f"back{number}", where=_brings_heads_in, same_policy=False
    )
    return made_by(Reshape, back, where=_is_merge, same_policy=False)


def _gradient_joined(match: PatternMatch) -> Results | None:
    """The gradients of the thirds of one projection, joined -> the gradient of the projection, made as one."""
    node, grad = match.root, match.node("grad")
    order = match.node("back0").op.order
    if any(match.node(f"back{i}").op.order != order for i in range(3)):
        return None
    joint = _joint(match, node)
    if joint is None:
        return None
    op = JointAttentionGrad(grad.op.scale, grad.op.causal)
    (made,) = match.apply(op, joint, match["o"], match["stats"], match["do"], at=grad)
    (back,) = match.apply(Transpose((1 + order[0], 1 + order[1], 0, 2, 4)), made, at=node)
    return {node.outputs[0]: match.apply(Reshape(node.outputs[0].shape), back, at=node)[0]}


JOINT_ATTENTION_GRAD = fusions.add(
    Fusion(
        "joint_attention_grad",
        made_by(Concat, *map(_merged, range(3)), where=_joins_three),
        _gradient_joined,
        JointAttentionGrad,
    )
)


def _stacks_three(node: Any) -> bool:
    return len(node.inputs) == 3 and node.op.axis == 0 and node.outputs[0].ndim == 5


def _is_stacked(node: Any) -> bool:
    (part,), (y,) = node.inputs, node.outputs
    return bool(y.shape == (1, *part.shape))


def _gradient_stacked(match: PatternMatch) -> Results | None:
    """The gradients of the parts of one value, stacked -> that value's gradient, made as one."""
    node, grad = match.root, match.node("grad")
    if not _are_in_order(match):
        return None
    op = JointAttentionGrad(grad.op.scale, grad.op.causal)
    (made,) = match.apply(op, match["joint"], match["o"], match["stats"], match["do"], at=grad)
    return {node.outputs[0]: made}


STACKED_ATTENTION_GRAD = fusions.add(
    Fusion(
        "stacked_attention_grad",
        made_by(
            Concat,
            *(
                made_by(Reshape, _parts_grad.output(i), where=_is_stacked, same_policy=False)
                for i in range(3)
            ),
            where=_stacks_three,
        ),
        _gradient_stacked,
        JointAttentionGrad,
    )
)
