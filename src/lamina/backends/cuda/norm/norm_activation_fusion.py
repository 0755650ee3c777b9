"""Activations after a batch or group norm fused into the normalizing passes, and their gradients into those of the
norm's.

The norm's last pass writes f(norm(x)) directly. The gradient's two passes read x anyway: they recompute the norm's
result, and from it and the incoming gradient the norm's own gradient. So neither the norm's result nor its gradient
is ever stored. f is any elementwise expression of one tensor and numbers, its gradient one of the norm's result and
one further tensor.
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
from lamina.ops.primitives.norm import (
    BatchNorm,
    BatchNormGrad,
    BatchNormInfer,
    GroupNorm,
    GroupNormGrad,
    channel_frame,
)
from lamina.ops.primitives.pointwise import Gelu, Gt, Mul, Sigmoid, SigmoidGrad, Silu, SiluGrad, Where
from lamina.ops.primitives.quantize import Dequantize, Quantize
from lamina.spec import ShapeError, Spec, bfloat16, float16, float32, float64

#: The most steps of a gradient.
_MOST_STEPS = 24


@dataclass(frozen=True)
class ActivatedNorm(Op):
    """(x, …) -> the norm's results on before(x), with behind(y) in place of its first result y.

    before(x) and the norm's own result are not rounded. Raises what the norm raises.
    """

    norm: BatchNorm | BatchNormInfer | GroupNorm
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
        for shape, groups in _GROUPED:
            small = [Arg(shape[1:2], float32), Arg(shape[1:2], float32)]
            yield Sample(
                cls(GroupNorm(groups, 1e-5), silu), (Arg(shape), *small), (float32, float16, bfloat16)
            )


#: Shapes of x, and groups: channels in whole accesses or not, few places, one channel.
_GROUPED: tuple[tuple[tuple[int, ...], int], ...] = (
    ((2, 16, 7, 5), 2), ((3, 12, 9, 8), 4), ((2, 6, 3), 3), ((2, 40, 6, 6), 1), ((3, 1, 5, 4), 1),
)  # fmt: skip


def like(op: Op, steps: FusedElementwise | None, *inputs: Spec) -> Spec:
    """The spec of the steps' result, which equals that of their first input. Raises ShapeError for anything else."""
    found = inputs[0] if steps is None else steps.infer(*inputs)[0]
    if found.open != inputs[0].open:
        raise ShapeError(
            f"{op.name}: {steps} makes {found} of {inputs[0]}, and must not change shape or dtype"
        )
    return found


@dataclass(frozen=True)
class ActivationNormGrad(Op):
    """(g, x, scale, mean, rstd, bias) -> the results of the norm's gradient on (act(y, g), x, scale, mean, rstd).

    That is (dx, dscale, dbias). y is the norm's result, recomputed from x and not rounded. Raises what the norm's
    gradient raises.
    """

    act: FusedElementwise
    norm: BatchNormGrad | GroupNormGrad
    differentiable = False
    arity = 6
    inplace = {0: 0}

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        if not is_bare(self.norm) or len(inputs) != 6:
            raise ShapeError(f"{self.name}: {len(inputs)} inputs are not what {self} takes")
        (g,) = self.act.infer(inputs[1], inputs[0])
        found = self.norm.infer(g, *inputs[1:5])
        if inputs[5].open != inputs[2].open:
            raise ShapeError(f"{self.name}: bias {inputs[5]} must be like scale {inputs[2]}")
        return found

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        g, x, *small = inputs
        if isinstance(self.norm, GroupNormGrad):
            frame = self.norm.frame(Spec(x.shape, float64))
        else:
            frame = channel_frame(x.shape)
        shapes = frame.scale, frame.kept, frame.kept, frame.scale
        scale, mean, rstd, bias = (v.reshape(shape) for v, shape in zip(small, shapes, strict=True))
        y = (x.reshape(frame.split) - mean) * rstd * scale + bias
        (arriving,) = self.act.reference(y.reshape(x.shape), g)
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
        for x, groups in _GROUPED:
            stats = [Arg((x[0], groups), float32), Arg((x[0], groups), float32, low=0.5, high=2.0)]
            args = (Arg(x), Arg(x), Arg(x[1:2], float32), *stats, Arg(x[1:2], float32))
            yield Sample(cls(sigmoid, GroupNormGrad(groups)), args, dtypes)


#: The gradient of leaky relu, where(y > 0, g, 0.25 g).
_LEAKY_GRAD = FusedElementwise(
    (FullLike(0.0), FullLike(0.25), Gt(), Mul(), Where()), ((0,), (0,), (0, ~0), (1, ~1), (~2, 1, ~3))
)


# ------------------------------------------------------------------------------------------------------- backward


def is_bare(norm: BatchNorm | BatchNormInfer | BatchNormGrad | GroupNorm | GroupNormGrad) -> bool:
    """Whether a norm, or its gradient, has no relu and adds no residual."""
    return isinstance(norm, GroupNorm | GroupNormGrad) or not (norm.relu or norm.residual)


def is_step(node: Any) -> bool:
    """Whether a node is elementwise, and supported by the kernels."""
    op = node.op
    known = bool(op.elementwise) and expression_of(op) is not None
    return known and len(node.outputs) == 1 and not isinstance(op, Quantize | Dequantize)


_x, _scale, _bias = operand("x"), operand("scale"), operand("bias")
_norm = made_by(
    BatchNorm | GroupNorm, _x, _scale, _bias, name="norm", where=lambda n: is_bare(n.op), same_policy=False
)
_arriving = made_by(Op, name="arriving", where=is_step, same_policy=False).read_once
_GRADIENT = made_by(
    BatchNormGrad | GroupNormGrad,
    _arriving,
    _x,
    _scale,
    _norm.output(1),
    _norm.output(2),
    where=lambda n: is_bare(n.op),
)


def _gradient(match: PatternMatch) -> Results | None:
    """The steps fused into the norm's gradient, if they read only one tensor beside the norm's result."""
    grad, norm = match.root, match.node("norm")
    found = GradientSteps(match, norm.outputs[0]).written(match.node("arriving").outputs[0])
    if found is None:
        return None
    act, given = found
    _, *others = match.inputs(grad)
    made = match.apply(ActivationNormGrad(act, grad.op), given, *others, match["bias"], at=grad)
    return dict(zip(grad.outputs, made, strict=True))


class GradientSteps:
    """The steps from a norm's result, and one further tensor, to a value. Numbers are steps, too.

    Attributes:
        taken: the steps' results, without numbers, each after its operands.
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
        """The tensor from which a value is computed by steps on one tensor and numbers; the value itself if there is
        none."""
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
        """Record the other operands on the way from functions of the result to a value."""
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
        """Whether a value is a step on the further tensor and numbers."""
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
        """The index of a value: 0 and 1 are the tensors, ~i is the result of step i."""
        if value not in self._numbers:
            op, read = self._step(value)
            self.ops.append(op)
            self.reads.append(read)
            self._numbers[value] = ~(len(self.ops) - 1)
        return self._numbers[value]

    def _step(self, value: Any) -> tuple[Op, tuple[int, ...]]:
        """The step that computes a value, and the indices of its operands."""
        if self._is_number(value):
            return FullLike(float(value.constant.numpy().reshape(()))), (0,)
        read = tuple(map(self._number, self.match.inputs(value.node)))
        self.taken.append(value)
        return value.node.op, read


NORM_ACTIVATION_GRAD = fusions.add(
    Fusion(
        "norm_activation_grad",
        _GRADIENT,
        _gradient,
        ActivationNormGrad,
        after=("batch_norm_grad_mask",),
    )
)


# -------------------------------------------------------------------------------------------------------- forward


def steps_of(node: Any, value: Any, inputs: Sequence[Any]) -> FusedElementwise | None:
    """A node as a function of one of its inputs; None if the others are not numbers, or shape or dtype change."""
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
    """Steps on one tensor, followed by others on their result."""
    if first is None or second is None:
        return second or first
    shift = len(first.ops)
    reads = (tuple(~(shift - 1) if k == 0 else k - shift for k in read) for read in second.reads)
    return FusedElementwise((*first.ops, *second.ops), (*first.reads, *reads))


_bare = made_by(BatchNorm | BatchNormInfer | GroupNorm, name="norm", where=lambda n: is_bare(n.op)).read_once
_longer = made_by(ActivatedNorm, name="norm", where=lambda n: is_bare(n.op.norm)).read_once
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


NORM_ACTIVATION = fusions.add(
    Fusion(
        "norm_activation",
        either(made_by(Op, _norms, where=is_step), made_by(Op, operand(), _norms, where=is_step)),
        _activated,
        ActivatedNorm,
        after=("norm_activation_grad",),
    )
)
