"""Activations behind a batch norm in the passes that normalize, and their gradients in those of the norm's gradient.

The norm's last pass writes f(norm(x)) at once. The gradient's two passes read x anyway: they compute the norm's
result again, and from it and the gradient that arrives the norm's own gradient. So neither the norm's result nor its
gradient is ever stored. f is any elementwise expression of one tensor and numbers, its gradient one of the norm's
result and one tensor more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lamina.backends import Fusion
from lamina.backends.cuda.elementwise.pointwise import expression_of
from lamina.backends.cuda.registry import fusions
from lamina.backends.pattern import PatternMatch, Results, either, made_by, operand
from lamina.ops.core import Arg, Array, Op, Sample
from lamina.ops.primitives.full_like import FullLike
from lamina.ops.primitives.fused_elementwise import FusedElementwise
from lamina.ops.primitives.norm import BatchNorm, BatchNormGrad, BatchNormInfer, channel_frame
from lamina.ops.primitives.pointwise import Gelu, Gt, Mul, Sigmoid, SigmoidGrad, Silu, SiluGrad, Where
from lamina.ops.primitives.quantize import Dequantize, Quantize
from lamina.spec import ShapeError, Spec, bfloat16, float16, float32

#: Steps of a gradient at most.
_MOST_STEPS = 24


@dataclass(frozen=True)
class ActivatedNorm(Op):
    """(x, …) -> what the batch norm gives, its first result y being behind(y), of before(x).

    before(x) and the norm's own result are not rounded. Raises what `BatchNorm` or `BatchNormInfer` raises.
    """

    norm: BatchNorm | BatchNormInfer
    behind: FusedElementwise | None = None
    before: FusedElementwise | None = None
    differentiable = False
    arity = None

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        y, *others = self.norm.infer(like(self, self.before, *inputs[:1]), *inputs[1:])
        return (like(self, self.behind, y), *others)

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        x = inputs[0] if self.before is None else self.before.reference(inputs[0])[0]
        y, *others = self.norm.reference(x, *inputs[1:])
        return (y if self.behind is None else self.behind.reference(y)[0], *others)

    def __str__(self) -> str:
        parts = (self.before, self.norm, self.behind)
        return f"{self.name}({' > '.join(str(part) for part in parts if part is not None)})"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        silu, gelu = (FusedElementwise((op,), ((0,),)) for op in (Silu(), Gelu()))
        for i, x in enumerate(((4, 3, 2, 5), (2, 8, 3, 3), (2, 16, 7, 5), (9, 40, 11, 13))):
            norm = BatchNorm(1e-3, 0.1, relu=i == 1)
            small = [Arg(x[1:2], float32, low=0.5, high=2.0) for _ in range(4)]
            op = cls(norm, None if norm.relu else silu, None if i == 0 else gelu)
            yield Sample(op, (Arg(x), *small), (float32, float16, bfloat16))


def like(op: Op, steps: FusedElementwise | None, *inputs: Spec) -> Spec:
    """What steps give, which is like their first input. Raises ShapeError for anything else."""
    found = inputs[0] if steps is None else steps.infer(*inputs)[0]
    if found.open != inputs[0].open:
        raise ShapeError(
            f"{op.name}: {steps} makes {found} of {inputs[0]}, and must not change shape or dtype"
        )
    return found


@dataclass(frozen=True)
class ActivationNormGrad(Op):
    """(g, x, scale, mean, rstd, bias) -> what batch_norm_grad(act(y, g), x, scale, mean, rstd) gives.

    That is (dx, dscale, dbias). y is the norm's result, computed from x again and not rounded. Raises what
    `BatchNormGrad` raises.
    """

    act: FusedElementwise
    norm: BatchNormGrad
    differentiable = False
    arity = 6
    inplace = {0: 0}

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        if self.norm.relu or len(inputs) != 6:
            raise ShapeError(f"{self.name}: {len(inputs)} inputs are not what {self} takes")
        replace(self.norm, relu=True).infer(*inputs)  # which takes the bias, too
        (g,) = self.act.infer(inputs[1], inputs[0])
        return self.norm.infer(g, *inputs[1:5])

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        g, x, *small = inputs
        scale, mean, rstd, bias = (v.reshape(channel_frame(x.shape).scale) for v in small)
        (arriving,) = self.act.reference((x - mean) * (rstd * scale) + bias, g)
        return self.norm.reference(arriving, x, *small[:3])

    def __str__(self) -> str:
        return f"{self.name}({self.act} > {self.norm})"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        sigmoid = FusedElementwise((Sigmoid(), SigmoidGrad()), ((0,), (~0, 1)))
        for i, x in enumerate(
            ((4, 3, 2, 5), (2, 8, 3, 3), (6, 5), (2, 16, 7, 5), (3, 33, 5), (9, 40, 11, 13))
        ):
            act = (FusedElementwise((SiluGrad(),), ((0, 1),)), sigmoid, _LEAKY_GRAD)[i % 3]
            dtypes = (float32, float16, bfloat16)
            small = [Arg(x[1:2], float32), Arg(x[1:2], float32), Arg(x[1:2], float32, low=0.5, high=2.0)]
            args = (Arg(x), Arg(x), *small, Arg(x[1:2], float32))
            yield Sample(cls(act, BatchNormGrad(moving=i != 3)), args, dtypes)


#: The gradient of leaky relu, where(y > 0, g, 0.25 g).
_LEAKY_GRAD = FusedElementwise(
    (FullLike(0.0), FullLike(0.25), Gt(), Mul(), Where()), ((0,), (0,), (0, ~0), (1, ~1), (~2, 1, ~3))
)


# ------------------------------------------------------------------------------------------------------- backward


def _is_bare(norm: Any) -> bool:
    return not norm.op.relu and not norm.op.residual


def is_step(node: Any) -> bool:
    """Whether a node is elementwise, and one that kernels can compute."""
    op = node.op
    known = bool(op.elementwise) and expression_of(op) is not None
    return known and len(node.outputs) == 1 and not isinstance(op, Quantize | Dequantize)


_x, _scale, _bias = operand("x"), operand("scale"), operand("bias")
_norm = made_by(BatchNorm, _x, _scale, _bias, name="norm", where=_is_bare, same_policy=False)
_arriving = made_by(Op, name="arriving", where=is_step, same_policy=False).read_once
_GRADIENT = made_by(
    BatchNormGrad, _arriving, _x, _scale, _norm.output(1), _norm.output(2), where=lambda n: not n.op.relu
)


def _gradient(match: PatternMatch) -> Results | None:
    """The steps taken into the norm's gradient, where they read one tensor beside the norm's result."""
    grad, norm = match.root, match.node("norm")
    found = GradientSteps(match, norm.outputs[0]).written(match.node("arriving").outputs[0])
    if found is None:
        return None
    act, given = found
    _, *others = match.inputs(grad)
    made = match.apply(ActivationNormGrad(act, grad.op), given, *others, match["bias"], at=grad)
    return dict(zip(grad.outputs, made, strict=True))


class GradientSteps:
    """The steps from a norm's result, and one tensor beside it, to a value. Numbers are steps, too.

    Attributes:
        taken: the values that steps give, without numbers, each behind those that it is made of.
    """

    def __init__(self, match: PatternMatch, result: Any) -> None:
        self.match, self.result = match, result
        self.ops: list[Op] = []
        self.reads: list[tuple[int, ...]] = []
        self.taken: list[Any] = []
        self._numbers: dict[Any, int] = {result: 0}
        self._of_result: dict[Any, bool] = {result: True}

    def written(self, value: Any) -> tuple[FusedElementwise, Any] | None:
        """The steps to a value, and the other tensor; None where there are more tensors, or too many steps."""
        beside: dict[Any, None] = {}
        if not self._is_of_result(value):
            return None
        self._look(value, beside)
        for given in beside:
            if self._is_alike(given) and all(v is given or self._is_of(v, given) for v in beside):
                source = self._source(given)
                self._numbers[source] = 1
                self._number(value)
                fits = len(self.ops) <= _MOST_STEPS
                return (FusedElementwise(tuple(self.ops), tuple(self.reads)), source) if fits else None
        return None

    def _source(self, value: Any) -> Any:
        """The tensor that a value is made of by steps on one tensor and numbers; itself where it is none."""
        for _ in range(_MOST_STEPS):
            read = () if value.node is None else self.match.inputs(value.node)
            tensors = [v for v in dict.fromkeys(read) if not self._is_number(v)]
            if len(tensors) != 1 or not self._is_alike(tensors[0]) or not self._is_of(value, tensors[0]):
                return value
            (value,) = tensors
        return value

    def is_known(self, value: Any) -> bool:
        """Whether a value is a number, or an elementwise function of the norm's result."""
        return self._is_number(value) or self._is_of_result(value)

    def _look(self, value: Any, beside: dict[Any, None]) -> None:
        """Note what is read beside functions of the result on the way to a value."""
        for v in self.match.inputs(value.node):
            if self._is_of_result(v):
                if v is not self.result:
                    self._look(v, beside)
            elif not self._is_number(v):
                beside[v] = None

    def _is_of_result(self, value: Any) -> bool:
        """Whether a value is an elementwise function of the norm's result, of its shape."""
        if value not in self._of_result:
            node, like = value.node, value.shape == self.result.shape
            found = like and node is not None and is_step(node)
            self._of_result[value] = found and any(map(self._is_of_result, self.match.inputs(node)))
        return self._of_result[value]

    def _is_of(self, value: Any, given: Any) -> bool:
        """Whether a value is a step on the other tensor and numbers."""
        if value.node is None or value.shape != given.shape or not is_step(value.node):
            return False
        read = self.match.inputs(value.node)
        numbers = [self._is_number(v) for v in read if v is not given]
        return len(numbers) < len(read) and all(numbers)

    def _is_alike(self, value: Any) -> bool:
        return (value.shape, value.dtype) == (self.result.shape, self.result.dtype)

    def _is_number(self, value: Any) -> bool:
        return _is_number(value, self.result)

    def _number(self, value: Any) -> int:
        """Of a value: 0 and 1 are the tensors, ~i is what step i gives."""
        if value not in self._numbers:
            op, read = self._step(value)
            self.ops.append(op)
            self.reads.append(read)
            self._numbers[value] = ~(len(self.ops) - 1)
        return self._numbers[value]

    def _step(self, value: Any) -> tuple[Op, tuple[int, ...]]:
        """What makes a value, and the numbers of what that reads."""
        if self._is_number(value):
            return FullLike(float(value.constant.numpy().reshape(()))), (0,)
        read = tuple(map(self._number, self.match.inputs(value.node)))
        self.taken.append(value)
        return value.node.op, read


BATCH_NORM_ACTIVATION_GRAD = fusions.add(
    Fusion(
        "batch_norm_activation_grad",
        _GRADIENT,
        _gradient,
        ActivationNormGrad,
        after=("batch_norm_grad_mask",),
    )
)


# -------------------------------------------------------------------------------------------------------- forward


def steps_of(node: Any, value: Any, inputs: Sequence[Any]) -> FusedElementwise | None:
    """What a node makes of one of its inputs; None where the others are no numbers, or shape or dtype change."""
    others = {
        v: float(v.constant.numpy().reshape(())) for v in inputs if v is not value and _is_number(v, value)
    }
    if (
        not is_step(node)
        or node.outputs[0].spec != value.spec
        or any(v is not value and v not in others for v in inputs)
    ):
        return None
    place = {v: ~i for i, v in enumerate(others)}
    ops = (*map(FullLike, others.values()), node.op)
    return FusedElementwise(ops, (*((0,) for _ in others), tuple(place.get(v, 0) for v in inputs)))


def _is_number(value: Any, like: Any) -> bool:
    return value.constant is not None and value.spec.numel == 1 and value.dtype == like.dtype


def one_by_one(first: FusedElementwise | None, second: FusedElementwise | None) -> FusedElementwise | None:
    """Steps on one tensor, and others on what they give."""
    if first is None or second is None:
        return second or first
    shift = len(first.ops)
    reads = (tuple(~(shift - 1) if k == 0 else k - shift for k in read) for read in second.reads)
    return FusedElementwise((*first.ops, *second.ops), (*first.reads, *reads))


def _may_be_activated(node: Any) -> bool:
    return not (node.op.norm if isinstance(node.op, ActivatedNorm) else node.op).relu


_bare = made_by(BatchNorm | BatchNormInfer, name="norm", where=_is_bare).read_once
_longer = made_by(ActivatedNorm, name="norm", where=_may_be_activated).read_once
_norms = either(_bare, _longer)


def _activated(match: PatternMatch) -> Results | None:
    """The norm with the activation, at the norm's place."""
    norm, root = match.node("norm"), match.root
    steps = steps_of(root, norm.outputs[0], match.inputs(root))
    before = norm.op if isinstance(norm.op, ActivatedNorm) else ActivatedNorm(norm.op)
    behind = None if steps is None else one_by_one(before.behind, steps)
    if behind is None or len(behind.ops) > _MOST_STEPS:
        return None
    op = replace(before, behind=behind)
    y, *others = match.apply(op, *match.inputs(norm), at=norm)
    return {root.outputs[0]: y, **dict(zip(norm.outputs[1:], others, strict=True))}


BATCH_NORM_ACTIVATION = fusions.add(
    Fusion(
        "batch_norm_activation",
        either(made_by(Op, _norms, where=is_step), made_by(Op, operand(), _norms, where=is_step)),
        _activated,
        ActivatedNorm,
        after=("batch_norm_activation_grad",),
    )
)
