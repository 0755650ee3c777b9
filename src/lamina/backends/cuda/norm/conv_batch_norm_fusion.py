"""A convolution with the batch norm of its result as one op, and a data gradient with the gradient of the batch norm
before the convolution: the norm's sums are computed while the convolution's result is written (`conv_batch_norm`).

Only timing tells whether that costs less than a pass over the result, so that nothing is fused under other policies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lamina.backends import Fusion
from lamina.backends.cuda.registry import fusions
from lamina.backends.pattern import PatternMatch, Results, made_by
from lamina.ops.core import Arg, Array, Op, Sample
from lamina.ops.primitives.conv import Conv, ConvDataGrad
from lamina.ops.primitives.fused import Fused
from lamina.ops.primitives.norm import BatchNorm, BatchNormGrad
from lamina.ops.primitives.pointwise import Add, ReluGrad
from lamina.ops.primitives.window import Window
from lamina.spec import ShapeError, Spec, bfloat16, float16, float32, uint8


def packed_mask(y: Array) -> Array:
    """[N, C, *S] -> uint8 [N, *S, C / 8], the packed ReLU mask: bit k of byte i says whether channel 8 i + k of y is
    positive.
    """
    return np.packbits(np.moveaxis(y > 0, 1, -1), axis=-1, bitorder="little")


def unpacked_mask(mask: Array) -> Array:
    """The mask of `packed_mask`, as [N, C, *S] of 0 and 1."""
    return np.moveaxis(np.unpackbits(mask, axis=-1, bitorder="little"), -1, 1)


@dataclass(frozen=True)
class ConvNorm(Op):
    """(x, filter, scale, bias, running_mean, running_var[, residual]) -> (the norm's five outputs, conv(x, filter)).

    Training also needs the convolution's own result, for the norm's gradient. bits: a seventh output is the
    packed ReLU mask of the norm's first (`packed_mask`).
    """

    conv: Conv
    norm: BatchNorm
    bits: bool = False
    differentiable = False
    arity = None
    inplace = {3: 4, 4: 5}

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        found = self._both(lambda op, xs: op.infer(*xs), inputs)
        n, c, *sizes = found[0].shape
        if self.bits and c % 8:
            raise ShapeError(f"{self.name}: bits need channels by eights, got {found[0]}")
        return (*found, *((Spec((n, *sizes, c // 8), uint8),) if self.bits else ()))

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        found = self._both(lambda op, xs: op.reference(*xs), inputs)
        return (*found, *((packed_mask(found[0]),) if self.bits else ()))

    def _both(
        self, apply: Callable[[Op, Sequence[Any]], Sequence[Any]], inputs: Sequence[Any]
    ) -> tuple[Any, ...]:
        (y,) = apply(self.conv, inputs[:2])
        return (*apply(self.norm, (y, *inputs[2:])), y)

    def flops(self, *inputs: Spec) -> int:
        return self.conv.flops(*inputs[:2])

    def __str__(self) -> str:
        return f"{self.name}({self.conv} > {self.norm}{' > bits' * self.bits})"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        window = Window((1, 1), ((1, 1), (1, 1)), (1, 1))
        for relu, residual in ((False, False), (True, False), (True, True)):
            op = cls(Conv(window), BatchNorm(1e-3, 0.1, relu, residual))
            small = [Arg((8,), float32, low=0.5, high=2.0) for _ in range(4)]
            after = [Arg((2, 8, 4, 5))] if residual else []
            args = (Arg((2, 8, 4, 5)), Arg((8, 8, 3, 3)), *small, *after)
            yield Sample(op, args, (float32, float16, bfloat16))


@dataclass(frozen=True)
class DataGradNorm(Op):
    """(operands of `grad`, then x, scale, mean, r[, bias]) -> (dx, dscale, dbias, g): g by `grad`, the others from
    it.

    grad: a convolution's data gradient, perhaps with elementwise steps; g is the gradient of the norm's output. bits:
    the last step is relu's gradient, and relu's output is given as its packed mask (`packed_mask`).
    """

    grad: ConvDataGrad | Fused
    norm: BatchNormGrad
    bits: bool = False
    differentiable = False
    arity = None

    @property
    def conv(self) -> ConvDataGrad:
        """The data gradient without its steps. Raises ShapeError for any other op."""
        head = self.grad.ops[0] if isinstance(self.grad, Fused) else self.grad
        if not isinstance(head, ConvDataGrad):
            raise ShapeError(f"{self.name}: needs a convolution's data gradient, got {self.grad}")
        return head

    @property
    def rest(self) -> int:
        """How many inputs the norm has beside g."""
        return 4 + self.norm.relu

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        if self.norm.residual or len(inputs) < self.rest + 2 + self.bits:
            raise ShapeError(f"{self.name}: {len(inputs)} inputs are not what {self} takes")
        return self._both(lambda op, xs: op.infer(*xs), self.with_output(inputs))

    def with_output(self, inputs: Sequence[Spec]) -> list[Spec]:
        """The inputs' specs, with relu's output in place of bits."""
        found = list(inputs)
        if self.bits:
            n, *sizes, eighths = inputs[-self.rest - 1].shape
            found[-self.rest - 1] = Spec((n, 8 * eighths, *sizes), inputs[0].dtype)
        return found

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        found = list(inputs)
        if self.bits:
            found[-self.rest - 1] = unpacked_mask(inputs[-self.rest - 1])
        return self._both(lambda op, xs: op.reference(*xs), found)

    def _both(
        self, apply: Callable[[Op, Sequence[Any]], Sequence[Any]], inputs: Sequence[Any]
    ) -> tuple[Any, ...]:
        (g,) = apply(self.grad, inputs[: -self.rest])
        return (*apply(self.norm, (g, *inputs[-self.rest :])), g)

    def flops(self, *inputs: Spec) -> int:
        return self.conv.flops(*inputs[:2])

    def __str__(self) -> str:
        return f"{self.name}({self.grad}{' by bits' * self.bits} > {self.norm})"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        grad = ConvDataGrad(Window((1, 1), ((0, 0), (0, 0)), (1, 1)), (4, 5))
        small = [Arg((64,), float32, low=0.5, high=2.0) for _ in range(3)]
        dy, w, like = Arg((2, 64, 4, 5)), Arg((64, 64, 1, 1), low=-0.2, high=0.2), Arg((2, 64, 4, 5))
        dtypes = (float32, float16, bfloat16)
        yield Sample(cls(grad, BatchNormGrad()), (dy, w, like, *small), dtypes)
        yield Sample(cls(grad, BatchNormGrad(relu=True)), (dy, w, like, *small, small[0]), dtypes)
        joined = Fused((grad, Add(), ReluGrad()))
        yield Sample(cls(joined, BatchNormGrad()), (dy, w, like, like, like, *small), dtypes)
        mask = Arg((2, 4, 5, 8), uint8, integers=True, high=256)
        yield Sample(cls(joined, BatchNormGrad(), True), (dy, w, like, mask, like, *small), dtypes[1:])
        mask = Arg((2, 4, 5, 8), uint8, integers=True, high=256)
        yield Sample(cls(joined, BatchNormGrad(), True), (dy, w, like, mask, like, *small), dtypes[1:])


# -------------------------------------------------------------------------------------------------------- fusions


def _is_timed(node: Any) -> bool:
    """Whether measurements decide: future ones, or known ones."""
    return node.policy.algorithm in ("fastest", "auto")


def _statistics_behind(match: PatternMatch) -> Results:
    """Convolution and batch norm fused at the norm's place; the convolution's result remains for the gradient."""
    norm, conv = match.root, match.node("conv")
    op = ConvNorm(conv.op, norm.op)
    *made, y = match.apply(op, *match.inputs(conv), *match.inputs(norm)[1:], at=norm)
    return {**dict(zip(norm.outputs, made, strict=True)), conv.outputs[0]: y}


CONV_BATCH_NORM = fusions.add(
    Fusion(
        "conv_batch_norm",
        made_by(BatchNorm, made_by(Conv, name="conv"), where=_is_timed),
        _statistics_behind,
        ConvNorm,
        after=("batch_norm_max_pool", "norm_activation"),
    )
)


def _is_data_grad(node: Any) -> bool:
    head = node.op.ops[0] if isinstance(node.op, Fused) else node.op
    return isinstance(head, ConvDataGrad)


def _may_follow(norm: Any) -> bool:
    return _is_timed(norm) and not norm.op.residual


def _sums_behind(match: PatternMatch) -> Results | None:
    """Data gradient and the norm's gradient fused at the data gradient's place, if all operands exist by then."""
    norm, grad = match.root, match.node("grad")
    others = match.inputs(norm)[1:]
    if not all(match.exists(v, at=grad) for v in others):
        return None
    *made, g = match.apply(DataGradNorm(grad.op, norm.op), *match.inputs(grad), *others, at=grad)
    return {**dict(zip(norm.outputs, made, strict=True)), grad.outputs[0]: g}


DATA_GRAD_BATCH_NORM = fusions.add(
    Fusion(
        "data_grad_batch_norm",
        made_by(
            BatchNormGrad, made_by(ConvDataGrad | Fused, name="grad", where=_is_data_grad), where=_may_follow
        ),
        _sums_behind,
        DataGradNorm,
        stage="chains",
    )
)


def _is_masked(node: Any) -> bool:
    """Whether the last step on a data gradient is relu's gradient, with relu's unpacked output."""
    op = node.op
    return not op.bits and isinstance(op.grad, Fused) and isinstance(op.grad.ops[-1], ReluGrad)


def _packed(match: PatternMatch) -> Results | None:
    """The norm that makes relu's output writes its packed mask, and the data gradient reads that: a bit for each
    element. Both must be ops with fused sums; the mask is of half types, eight channels at a time.
    """
    grad, inputs = match.root, match.inputs(match.root)
    place = len(inputs) - grad.op.rest - 1
    y, norm = inputs[place], inputs[place].node
    if norm is None or not isinstance(norm.op, ConvNorm) or y is not norm.outputs[0]:
        return None
    if not norm.op.norm.relu or norm.op.norm.hi is not None or y.shape[1] % 8 or y.dtype.itemsize != 2:
        return None
    outputs, results = norm.outputs, {}
    if not norm.op.bits:
        outputs = match.apply(replace(norm.op, bits=True), *match.inputs(norm), at=norm)
        results = dict(zip(norm.outputs, outputs, strict=False))
    read = (*inputs[:place], outputs[6], *inputs[place + 1 :])
    made = match.apply(replace(grad.op, bits=True), *read, at=grad)
    return {**results, **dict(zip(grad.outputs, made, strict=True))}


PACKED_RELU_MASK = fusions.add(
    Fusion(
        "packed_relu_mask",
        made_by(DataGradNorm, where=_is_masked),
        _packed,
        ConvNorm,
        after=("data_grad_batch_norm",),
        stage="chains",
    )
)
