"""Attention on a joint projection: q, k and v are read in place, and their gradients written in place.

Networks split one projection [., ., 3 H D] into thirds, and concatenate their gradients again; or they transpose it
to [3, B, H, S, D], whose parts are q, k and v, and stack the gradients. cuDNN takes any strides, so that neither the
parts nor the joint gradient have to be copied. Own kernels for windows do the same with a bias, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lamina.backends import Fusion
from lamina.backends.cuda.registry import fusions
from lamina.backends.pattern import Either, MadeBy, PatternMatch, Results, either, made_by, operand
from lamina.ops.core import Arg, Array, BatchAxes, BatchAxis, Op, Sample, bind
from lamina.ops.core import operand as as_operand
from lamina.ops.primitives.attention import Attention, AttentionGrad, fitting_operands
from lamina.ops.primitives.shape import Concat, Reshape, Slice, Transpose, stack
from lamina.spec import FLOATS, Shape, ShapeError, Spec, float64


@dataclass(frozen=True)
class _JointAttention(Op):
    """Attention whose q, k and v are parts of one tensor [3, B, H, S, D], as a joint projection gives them.

    Optional last operands are a bias and the dropout mask, as for `Attention`.
    """

    scale: float
    causal: bool = False
    keep: float = field(default=1.0, kw_only=True)
    arity = None

    def parts(self, joint: Spec) -> tuple[Spec, Spec, Spec]:
        """q, k and v. Raises ShapeError."""
        if joint.ndim != 5 or joint.shape[0] != 3:
            raise ShapeError(f"{self.name}: needs q, k and v as [3, B, H, S, D], got {joint}")
        part = self.result(joint.shape[1:], joint.dtype)
        return part, part, part


@dataclass(frozen=True)
class JointAttention(_JointAttention):
    """(q, k, v as [3, B, H, S, D], bias?, mask?) -> (o [B, H, S, D], stats [B, H, S, 1]): `Attention` on the
    parts."""

    stats: bool = False

    @property
    def unfused(self) -> Attention:
        """The same on separate q, k and v."""
        return Attention(self.scale, self.causal, stats=self.stats, keep=self.keep)

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        joint, *more = inputs
        return self.unfused.infer(*self.parts(joint), *more)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        b = axes[0]
        if b is None or b.axis not in (1, 2):
            return None
        part = BatchAxis(b.axis - 1, b.size)
        return self.unfused.batch_axes([*self.parts(inputs[0]), *inputs[1:]], (part, part, part, *axes[1:]))

    def flops(self, *inputs: Spec) -> int:
        joint, *more = inputs
        return self.unfused.flops(*self.parts(joint), *more)

    def prune(self, used: Sequence[bool]) -> Op:
        return replace(self, stats=False) if self.stats and not any(used[1:]) else self

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        joint, *more = inputs
        if self.stats and grads[1] is None:
            grad = JointAttentionGrad(self.scale, self.causal, keep=self.keep)
            found = [*bind(grad, joint, outputs[0], outputs[1], grads[0], *more)]
            return [*found, *(None for _ in range(len(inputs) - len(found)))]
        parts = list(_parts(joint))
        found = [*self.unfused.vjp(grads, [*parts, *more], outputs)]
        thirds = zip(found[:3], parts, strict=True)
        return [stack([_zeros(x) if g is None else g for g, x in thirds]), *found[3:]]

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        joint, *more = inputs
        return self.unfused.reference(*joint, *more)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for scale, causal, keep, shape, bias in _JOINT_CASES:
            for stats in (False, True):
                op = cls(scale, causal, stats, keep=keep)
                yield Sample.of(op, (3, *shape), *bias, *_mask(op.unfused, shape))


@dataclass(frozen=True)
class JointAttentionGrad(_JointAttention):
    """(q, k, v as [3, B, H, S, D], o, stats, do, bias?, mask?) -> (their gradients as one tensor, dbias?):
    `AttentionGrad` on the parts.
    """

    bias_grad: bool = True

    @property
    def unfused(self) -> AttentionGrad:
        """The same on separate q, k and v."""
        return AttentionGrad(self.scale, self.causal, self.bias_grad, keep=self.keep)

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        joint, *others = inputs
        found = self.unfused.infer(*self.parts(joint), *others)
        return (self.result(joint.shape, joint.dtype), *found[3:])

    def prune(self, used: Sequence[bool]) -> Op:
        return replace(self, bias_grad=False) if len(used) > 1 and not used[1] else self

    def flops(self, *inputs: Spec) -> int:
        joint, *others = inputs
        return self.unfused.flops(*self.parts(joint), *others)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        joint, *others = inputs
        of_parts = [None] * 3 if grads[0] is None else [*_parts(grads[0])]
        found = self.unfused.vjp(
            [*of_parts, *grads[1:]], [*_parts(joint), *others], [*_parts(outputs[0]), *outputs[1:]]
        )
        return (stack(found[:3]), *found[3:])

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        joint, *others = inputs
        found = self.unfused.reference(*joint, *others)
        return (np.stack(found[:3]), *found[3:])

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        narrow = tuple(d for d in FLOATS if d != float64)
        for scale, causal, keep, shape, bias in _JOINT_CASES:
            stats = Arg((*shape[:3], 1), low=1.5, high=3.0)
            op, made = cls(scale, causal, keep=keep), Attention(scale, causal, stats=True, keep=keep)
            mask = _mask(made, shape)
            yield Sample.of(op, (3, *shape), shape, stats, shape, *bias, *mask, dtypes=(float64,))
            shapes = (*(shape,) * 3, *bias, *(m.shape for m in mask))
            q, k, v, o, spread, *others = fitting_operands(made, shapes)
            joint = replace(q, shape=(3, *shape), value=sum((a.value or () for a in (q, k, v)), ()))
            yield Sample.of(op, joint, o, spread, shape, *others, dtypes=narrow)


def _mask(op: Attention, shape: Shape) -> list[Arg]:
    """The spec of the dropout mask of a sample, if the op takes one."""
    b, h, s, d = shape
    return op.mask_argument((b, h, s, s, d, d))


def _parts(joint: Any) -> Iterator[Any]:
    """q, k and v of one tensor."""
    return (joint[i] for i in range(3))


def _zeros(x: Any) -> Any:
    return as_operand(np.zeros(x.shape, x.dtype.numpy))


#: scale, causal, keep, (B, H, S, D), shapes of the bias.
_JOINT_CASES: list[tuple[float, bool, float, Shape, tuple[Shape, ...]]] = [
    (0.5, False, 1.0, (1, 2, 3, 4), ()),
    (0.35355339, True, 1.0, (2, 2, 5, 8), ()),
    (0.25, False, 1.0, (2, 3, 17, 16), ((1, 3, 17, 17),)),
    (0.7, False, 1.0, (1, 1, 9, 2), ()),
    (0.3, True, 1.0, (1, 4, 3, 5), ((1, 1, 3, 3),)),
    (0.5, False, 0.75, (2, 2, 8, 8), ()),
    (0.35355339, True, 0.5, (2, 1, 3, 4), ((2, 1, 1, 3),)),
]


# -------------------------------------------------------------------------------------------------------- fusions


def _is_split(node: Any) -> bool:
    """Whether a reshape leaves the first two axes [., .] and splits the last one into heads."""
    (part,), (y,) = node.inputs, node.outputs
    return part.ndim == 3 and y.ndim == 4 and bool(part.shape[:2] == y.shape[:2])


def _is_cut(node: Any) -> bool:
    """Whether a slice takes a contiguous range of the last axis, and all of the first two."""
    (whole,), (part,) = node.inputs, node.outputs
    return bool(part.ndim == 3 and part.shape[:2] == whole.shape[:2] and node.op.step == (1, 1, 1))


def _brings_heads_out(node: Any) -> bool:
    """Whether a transposition turns [., ., H, D] into [., H, ., D]."""
    order = node.op.order
    return len(order) == 4 and (order[1], order[3]) == (2, 3)


def _third(number: int) -> MadeBy:
    """Heads [B, H, S, D] sliced from a projection [., ., 3 H D]."""
    cut = made_by(Slice, operand("projection"), name=f"cut{number}", where=_is_cut, same_policy=False)
    split = made_by(Reshape, cut, name=f"split{number}", where=_is_split, same_policy=False)
    return made_by(Transpose, split, name=f"heads{number}", where=_brings_heads_out, same_policy=False)


_THIRDS = [_third(i) for i in range(3)]


def _joint(match: PatternMatch, at: Any) -> Any:
    """q, k and v as one value [3, B, H, S, D], if they are the thirds of a projection in this order; else None."""
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


def _reads(count: int) -> Callable[[Any], bool]:
    """A test of nodes for this number of operands."""
    return lambda node: len(node.inputs) == count


def _takes(*inputs: MadeBy) -> Either:
    """The pattern of attention on these, and perhaps on a bias and the dropout mask."""
    return either(*(made_by(Attention, *inputs, *more, where=_reads(3 + len(more))) for more in _MORE))


#: A bias, the dropout mask, both or neither.
_MORE = [tuple(operand(f"more{i}") for i in range(count)) for count in range(3)]


def _attention_on(match: PatternMatch, joint: Any) -> Results:
    """The attention at the match's root, on one value of which q, k and v are parts."""
    node = match.root
    op = JointAttention(node.op.scale, node.op.causal, node.op.stats, keep=node.op.keep)
    made = match.apply(op, joint, *match.inputs(node)[3:], at=node)
    return dict(zip(node.outputs, made, strict=True))


def _attended(match: PatternMatch) -> Results | None:
    """attention(q, k, v) of the thirds of one projection -> attention on the projection in place."""
    joint = _joint(match, match.root)
    return None if joint is None else _attention_on(match, joint)


JOINT_ATTENTION = fusions.add(Fusion("joint_attention", _takes(*_THIRDS), _attended, JointAttention))


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
    return _attention_on(match, match["joint"]) if _are_in_order(match) else None


STACKED_ATTENTION = fusions.add(
    Fusion("stacked_attention", _takes(*_PARTS), _attended_to_parts, JointAttention)
)


def _joins_three(node: Any) -> bool:
    return len(node.inputs) == 3 and bool(node.op.axis % node.outputs[0].ndim == 2)


def _brings_heads_in(node: Any) -> bool:
    """Whether a transposition turns [B, H, S, D] into [., ., H, D]."""
    return len(node.op.order) == 4 and bool(node.op.order[2:] == (1, 3))


def _is_merge(node: Any) -> bool:
    """Whether a reshape keeps the first two axes and joins heads."""
    (heads,), (y,) = node.inputs, node.outputs
    return y.ndim == 3 and heads.ndim == 4 and bool(y.shape[:2] == heads.shape[:2])


def _gradients(*inputs: MadeBy) -> list[MadeBy]:
    """The pattern of attention's gradients on these, and perhaps on a bias and the dropout mask."""
    others = (operand("o"), operand("stats"), operand("do"))
    return [
        made_by(
            AttentionGrad,
            *inputs,
            *others,
            *more,
            name="grad",
            where=_reads(6 + len(more)),
            same_policy=False,
        )
        for more in _MORE
    ]


def _gradient_on(match: PatternMatch, joint: Any) -> tuple[Any, dict[Any, Any]]:
    """The gradient as one value of which those of q, k and v are parts, and the other values that it replaces."""
    node = match.node("grad")
    op = JointAttentionGrad(node.op.scale, node.op.causal, node.op.bias_grad, keep=node.op.keep)
    made, *dbias = match.apply(op, joint, *match.inputs(node)[3:], at=node)
    return made, dict(zip(node.outputs[3:], dbias, strict=True))


def _merged(grad: MadeBy, number: int) -> MadeBy:
    """The gradient of a third, in the projection's layout."""
    back = made_by(
        Transpose, grad.output(number), name=f"back{number}", where=_brings_heads_in, same_policy=False
    )
    return made_by(Reshape, back, where=_is_merge, same_policy=False)


def _gradient_joined(match: PatternMatch) -> Results | None:
    """The gradients of the thirds of one projection, concatenated -> the gradient of the projection as one value."""
    node = match.root
    order = match.node("back0").op.order
    if any(match.node(f"back{i}").op.order != order for i in range(3)):
        return None
    joint = _joint(match, node)
    if joint is None:
        return None
    made, others = _gradient_on(match, joint)
    (back,) = match.apply(Transpose((1 + order[0], 1 + order[1], 0, 2, 4)), made, at=node)
    return others | {node.outputs[0]: match.apply(Reshape(node.outputs[0].shape), back, at=node)[0]}


JOINT_ATTENTION_GRAD = fusions.add(
    Fusion(
        "joint_attention_grad",
        either(
            *(
                made_by(Concat, *(_merged(grad, i) for i in range(3)), where=_joins_three)
                for grad in _gradients(*_THIRDS)
            )
        ),
        _gradient_joined,
        JointAttentionGrad,
    )
)


def _stacks_three(node: Any) -> bool:
    return len(node.inputs) == 3 and node.op.axis == 0 and node.outputs[0].ndim == 5


def _is_stacked(node: Any) -> bool:
    (part,), (y,) = node.inputs, node.outputs
    return bool(y.shape == (1, *part.shape))


def _stacked(grad: MadeBy, number: int) -> MadeBy:
    """The gradient of a part, as an operand of the stacking."""
    return made_by(Reshape, grad.output(number), where=_is_stacked, same_policy=False)


def _gradient_stacked(match: PatternMatch) -> Results | None:
    """The gradients of the parts of one value, stacked -> that value's gradient as one value."""
    if not _are_in_order(match):
        return None
    made, others = _gradient_on(match, match["joint"])
    return others | {match.root.outputs[0]: made}


STACKED_ATTENTION_GRAD = fusions.add(
    Fusion(
        "stacked_attention_grad",
        either(
            *(
                made_by(Concat, *(_stacked(grad, i) for i in range(3)), where=_stacks_three)
                for grad in _gradients(*_PARTS)
            )
        ),
        _gradient_stacked,
        JointAttentionGrad,
    )
)
