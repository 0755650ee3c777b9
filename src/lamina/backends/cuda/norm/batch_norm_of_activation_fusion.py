"""Batch norms of an activation's result, fused with the activation, and their gradients.

Each pass of the norm recomputes the activation, and the last one of the gradient continues with the activation's
gradient. So neither the activation's result nor its gradient is stored. It is any elementwise expression of one
tensor and numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lamina.backends import Fusion
from lamina.backends.cuda.norm.norm_activation_fusion import (
    ActivatedNorm,
    ActivationNormGrad,
    GradientSteps,
    is_step,
    like,
    one_by_one,
    steps_of,
)
from lamina.backends.cuda.registry import fusions
from lamina.backends.pattern import PatternMatch, Results, made_by
from lamina.ops.core import Arg, Array, Op, Sample
from lamina.ops.primitives.fused_elementwise import FusedElementwise
from lamina.ops.primitives.norm import BatchNorm, BatchNormGrad
from lamina.ops.primitives.pointwise import Gelu, GeluGrad, Relu, ReluGrad, Silu, SiluGrad
from lamina.spec import Spec, bfloat16, float16, float32

#: The most steps between a norm's gradient and the end of an activation's.
_MOST_STEPS = 6


@dataclass(frozen=True)
class NormOfActivationGrad(Op):
    """(g, x, scale, mean, rstd[, bias]) -> (dx, dscale, dbias).

    With d, the first result of the norm's gradient on (g, before(x), …), unrounded, dx is leaving(x, d). Raises what
    `BatchNormGrad` raises.
    """

    before: FusedElementwise
    leaving: FusedElementwise
    norm: BatchNormGrad | ActivationNormGrad
    differentiable = False
    arity = None
    inplace = {0: 0}

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        d, *small = self.norm.infer(inputs[0], like(self, self.before, inputs[1]), *inputs[2:])
        return (like(self, self.leaving, inputs[1], d), *small)

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        d, *small = self.norm.reference(inputs[0], *self.before.reference(inputs[1]), *inputs[2:])
        return (*self.leaving.reference(inputs[1], d), *small)

    def __str__(self) -> str:
        return f"{self.name}({self.before} > {self.norm} > {self.leaving})"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for i, x in enumerate(_SHAPES):
            norm, act = BatchNormGrad(relu=i == 1), _ACTIVATIONS[i]
            small = [Arg(x[1:2], float32), Arg(x[1:2], float32), Arg(x[1:2], float32, low=0.5, high=2.0)]
            bias = [Arg(x[1:2], float32)] * (i in (1, 2))
            args = (Arg(x), Arg(x, distinct=norm.relu), *small, *bias)
            op = cls(*act, ActivationNormGrad(act[1], norm) if i == 2 else norm)
            yield Sample(op, args, (float32, float16, bfloat16))


_SHAPES = ((4, 3, 2, 5), (2, 8, 3, 3), (2, 16, 7, 5), (9, 40, 11, 13))
#: Activations with their gradients.
_ACTIVATIONS = [
    (FusedElementwise((forward,), ((0,),)), FusedElementwise(backward, reads))
    for forward, backward, reads in (
        (Gelu(), (GeluGrad(),), ((0, 1),)),
        (Relu(), (Relu(), ReluGrad()), ((0,), (~0, 1))),
        (Silu(), (SiluGrad(),), ((0, 1),)),
        (Gelu(), (GeluGrad(),), ((0, 1),)),
    )
]


# ------------------------------------------------------------------------------------------------------- backward


def _may_end(node: Any) -> bool:
    """Whether a node may be the last step of an activation's gradient."""
    return is_step(node) and _gradient_before(node, lambda n: n.inputs) is not None


def _gradient_before(node: Any, inputs: Callable[[Any], Sequence[Any]]) -> Any:
    """The nearest norm's gradient from which elementwise steps lead to a node; None for none."""
    behind = [node]
    for _ in range(_MOST_STEPS):
        makers = [v.node for n in behind for v in inputs(n) if v.node is not None]
        for maker in makers:
            op = maker.op.norm if isinstance(maker.op, ActivationNormGrad) else maker.op
            if isinstance(op, BatchNormGrad):
                return maker
        behind = [maker for maker in dict.fromkeys(makers) if is_step(maker)]
    return None


def _gradient(match: PatternMatch) -> Results | None:
    """The activation and its gradient fused into the norm's gradient, if intermediates have no other reader."""
    root, grad = match.root, _gradient_before(match.root, match.inputs)
    if grad is None or grad.policy != root.policy or len(grad.outputs) > 3:
        return None
    g, x, *others = match.inputs(grad)
    for given, before in _activations(match, x):
        steps = GradientSteps(match, given)
        found, end = steps.written(root.outputs[0]), grad.outputs[0]
        if found is None or found[1] is not end or root.outputs[0].spec != given.spec:
            continue
        if _goes_on(match, steps, root.outputs[0]) or not _reads_alone(match, steps.taken, root, grad, x):
            continue
        dx, *small = match.apply(NormOfActivationGrad(before, found[0], grad.op), g, given, *others, at=grad)
        return {root.outputs[0]: dx, **dict(zip(grad.outputs[1:], small, strict=True))}
    return None


def _activations(match: PatternMatch, x: Any) -> list[tuple[Any, FusedElementwise]]:
    """The tensors from which x is computed by elementwise steps on one tensor and numbers, the farthest first."""
    found: list[tuple[Any, FusedElementwise]] = []
    steps: FusedElementwise | None = None
    while x.node is not None and len(found) < _MOST_STEPS:
        read = match.inputs(x.node)
        values = [v for v in dict.fromkeys(read) if v.constant is None]
        own = steps_of(x.node, values[0], read) if len(values) == 1 else None
        steps = None if own is None else one_by_one(own, steps)
        if steps is None:
            break
        x = values[0]
        found.insert(0, (x, steps))
    return found


def _goes_on(match: PatternMatch, steps: GradientSteps, value: Any) -> bool:
    """Whether a value's only reader is a further step."""
    readers = match.readers(value)
    if len(readers) != 1 or readers[0] is None or not is_step(readers[0]):
        return False
    others = (v for v in match.inputs(readers[0]) if v is not value)
    return readers[0].outputs[0].spec == value.spec and all(map(steps.is_known, others))


def _reads_alone(match: PatternMatch, taken: Sequence[Any], root: Any, grad: Any, x: Any) -> bool:
    """Whether only steps, and a norm with its gradient, read x, an activation's result, and x's gradient.

    taken: the steps' results. Values made from x's gradient must not have other readers either.
    """
    nodes, between = {v.node for v in taken}, {grad.outputs[0]: None}
    for value in taken:
        if any(v in between for v in match.inputs(value.node)):
            between[value] = None
    inner = (v for v in between if v is not root.outputs[0])
    if any(reader not in nodes for v in inner for reader in match.readers(v)):
        return False
    others = [r for r in match.readers(x) if r is not grad and r not in nodes]
    return len(others) == 1 and others[0] is not None and _is_norm(others[0])


def _is_norm(node: Any) -> bool:
    norm = node.op.norm if isinstance(node.op, ActivatedNorm) else node.op
    return isinstance(norm, BatchNorm) and not norm.residual


NORM_OF_ACTIVATION_GRAD = fusions.add(
    Fusion(
        "batch_norm_of_activation_grad",
        made_by(Op, where=_may_end),
        _gradient,
        NormOfActivationGrad,
        after=("norm_activation", "batch_norm_max_pool", "batch_norm_max_pool_grad"),
    )
)


# -------------------------------------------------------------------------------------------------------- forward


def _normalized(match: PatternMatch) -> Results | None:
    """The activation fused into the norm, at the norm's place, as far as its result has no other reader."""
    norm, (x, *small) = match.root, match.inputs(match.root)
    steps: FusedElementwise | None = None
    for given, before in reversed(_activations(match, x)):
        if len(match.readers(x)) > 1:
            break
        x, steps = given, before
    if steps is None:
        return None
    op = norm.op if isinstance(norm.op, ActivatedNorm) else ActivatedNorm(norm.op)
    made = match.apply(replace(op, before=steps), x, *small, at=norm)
    return dict(zip(norm.outputs, made, strict=True))


NORM_OF_ACTIVATION = fusions.add(
    Fusion(
        "batch_norm_of_activation",
        made_by(BatchNorm | ActivatedNorm, where=_is_norm),
        _normalized,
        ActivatedNorm,
        after=("batch_norm_of_activation_grad",),
    )
)
