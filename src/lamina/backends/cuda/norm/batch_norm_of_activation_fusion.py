"""Batch norms of an activation's result, and their gradients, of what the activation reads.

Each pass of the norm computes the activation again, and the last one of the gradient goes on to the gradient of what
it reads. So what the activation gives is not stored, nor is its gradient. It is any elementwise op of one operand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lamina.backends import Fusion
from lamina.backends.cuda.norm.batch_norm_activation_fusion import GradientSteps, is_activation, is_step
from lamina.backends.cuda.registry import fusions
from lamina.backends.pattern import PatternMatch, Results, made_by
from lamina.ops.core import Arg, Array, Op, Sample
from lamina.ops.primitives.fused import Fused
from lamina.ops.primitives.fused_elementwise import FusedElementwise
from lamina.ops.primitives.norm import BatchNorm, BatchNormGrad
from lamina.ops.primitives.pointwise import Gelu, GeluGrad, Relu, ReluGrad, Silu, SiluGrad
from lamina.spec import ShapeError, Spec, bfloat16, float16, float32

#: Steps between a norm's gradient and the end of an activation's at most.
_MOST_STEPS = 6


@dataclass(frozen=True)
class NormOfActivation(Op):
    """(x, …) -> what norm(before(x), …) gives: a batch norm, perhaps with functions of its result.

    before(x) is not rounded. Raises what `BatchNorm` raises.
    """

    before: FusedElementwise
    norm: BatchNorm | Fused
    differentiable = False
    arity = None
    inplace = {3: 3, 4: 4}

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        (given,) = _like(self, self.before, *inputs[:1])
        return self.norm.infer(given, *inputs[1:])

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        return self.norm.reference(*self.before.reference(inputs[0]), *inputs[1:])

    def __str__(self) -> str:
        return f"{self.name}({self.before} > {self.norm})"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for i, x in enumerate(_SHAPES):
            norm = BatchNorm(1e-3, 0.1, relu=i == 1)
            small = [Arg(x[1:2], float32, low=0.5, high=2.0) for _ in range(4)]
            op = cls(_ACTIVATIONS[i][0], norm if i != 2 else Fused((norm, Silu())))
            yield Sample(op, (Arg(x), *small), _DTYPES)


@dataclass(frozen=True)
class NormOfActivationGrad(Op):
    """(g, x, scale, mean, rstd[, bias]) -> (dx, dscale, dbias).

    With what batch_norm_grad(g, before(x), …) gives as its first result, d, dx is leaving(x, d), d not being rounded.
    Raises what `BatchNormGrad` raises.
    """

    before: FusedElementwise
    leaving: FusedElementwise
    norm: BatchNormGrad
    differentiable = False
    arity = None
    inplace = {0: 0}

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        (given,) = _like(self, self.before, *inputs[1:2])
        d, *small = self.norm.infer(inputs[0], given, *inputs[2:])
        return (*_like(self, self.leaving, inputs[1], d), *small)

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        d, *small = self.norm.reference(inputs[0], *self.before.reference(inputs[1]), *inputs[2:])
        return (*self.leaving.reference(inputs[1], d), *small)

    def __str__(self) -> str:
        return f"{self.name}({self.before} > {self.norm} > {self.leaving})"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for i, x in enumerate(_SHAPES):
            norm = BatchNormGrad(relu=i == 1)
            small = [Arg(x[1:2], float32), Arg(x[1:2], float32), Arg(x[1:2], float32, low=0.5, high=2.0)]
            bias = [Arg(x[1:2], float32)] * norm.relu
            args = (Arg(x), Arg(x, distinct=norm.relu), *small, *bias)
            yield Sample(cls(*_ACTIVATIONS[i], norm), args, _DTYPES)


def _like(op: Op, steps: FusedElementwise, *inputs: Spec) -> tuple[Spec, ...]:
    """What steps give, which is like their first input. Raises ShapeError for anything else."""
    found = steps.infer(*inputs)
    if [s.open for s in found] != [inputs[0].open]:
        raise ShapeError(
            f"{op.name}: {steps} makes {found[0]} of {inputs[0]}, and must not change shape or dtype"
        )
    return found


_DTYPES = (float32, float16, bfloat16)
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
    """The norm's gradient of which elementwise steps make what a node gives, the nearest one; None for none."""
    behind = [node]
    for _ in range(_MOST_STEPS):
        makers = [v.node for n in behind for v in inputs(n) if v.node is not None]
        for maker in makers:
            if isinstance(maker.op, BatchNormGrad):
                return None if maker.op.residual else maker
        behind = [maker for maker in dict.fromkeys(makers) if is_step(maker)]
    return None


def _gradient(match: PatternMatch) -> Results | None:
    """The activation and its gradient taken into the norm's, where nothing else reads what lies between."""
    root, grad = match.root, _gradient_before(match.root, match.inputs)
    if grad is None or grad.policy != root.policy:
        return None
    g, x, *others = match.inputs(grad)
    if not _activates(x.node):
        return None
    (given,) = match.inputs(x.node)
    steps = GradientSteps(match, given)
    found, end = steps.written(root.outputs[0]), grad.outputs[0]
    if found is None or found[1] is not end or root.outputs[0].spec != given.spec:
        return None
    if _goes_on(match, steps, root.outputs[0]) or not _reads_alone(match, steps.taken, root, grad, x):
        return None
    op = NormOfActivationGrad(FusedElementwise((x.node.op,), ((0,),)), found[0], grad.op)
    dx, *small = match.apply(op, g, given, *others, at=grad)
    return {root.outputs[0]: dx, **dict(zip(grad.outputs[1:], small, strict=True))}


def _goes_on(match: PatternMatch, steps: GradientSteps, value: Any) -> bool:
    """Whether the only reader of a value is a step more."""
    readers = match.readers(value)
    if len(readers) != 1 or readers[0] is None or not is_step(readers[0]):
        return False
    others = (v for v in match.inputs(readers[0]) if v is not value)
    return readers[0].outputs[0].spec == value.spec and all(map(steps.is_known, others))


def _reads_alone(match: PatternMatch, taken: Sequence[Any], root: Any, grad: Any, x: Any) -> bool:
    """Whether steps, and a norm with its gradient, are all that reads the activation's result x, that one's gradient
    and what steps give.
    """
    nodes = {v.node for v in taken}
    between = [grad.outputs[0], *(v for v in taken if v is not root.outputs[0] and v is not x)]
    if any(reader not in nodes for v in between for reader in match.readers(v)):
        return False
    others = [r for r in match.readers(x) if r is not grad and r not in nodes]
    return len(others) == 1 and others[0] is not None and _is_norm(others[0])


def _is_norm(node: Any) -> bool:
    head = node.op.ops[0] if isinstance(node.op, Fused) else node.op
    return isinstance(head, BatchNorm) and not head.residual


def _activates(node: Any) -> bool:
    """Whether a node is an activation that norms can compute."""
    return node is not None and is_activation(node.op) and node.outputs[0].spec == node.inputs[0].spec


NORM_OF_ACTIVATION_GRAD = fusions.add(
    Fusion(
        "batch_norm_of_activation_grad",
        made_by(Op, where=_may_end),
        _gradient,
        NormOfActivationGrad,
        after=("batch_norm_activation", "batch_norm_max_pool", "batch_norm_max_pool_grad"),
    )
)


# -------------------------------------------------------------------------------------------------------- forward


_activation = made_by(Op, name="activation", where=_activates).read_once


def _normalized(match: PatternMatch) -> Results:
    """The activation taken into the norm, where the norm runs."""
    norm, node = match.root, match.node("activation")
    before = FusedElementwise((node.op,), ((0,),))
    made = match.apply(
        NormOfActivation(before, norm.op), *match.inputs(node), *match.inputs(norm)[1:], at=norm
    )
    return dict(zip(norm.outputs, made, strict=True))


NORM_OF_ACTIVATION = fusions.add(
    Fusion(
        "batch_norm_of_activation",
        made_by(BatchNorm | Fused, _activation, where=_is_norm),
        _normalized,
        NormOfActivation,
        after=("batch_norm_of_activation_grad",),
    )
)
