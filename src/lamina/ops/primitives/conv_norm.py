"""A convolution with the batch norm of its result as one node, and a data gradient with the gradient of the batch
norm before the convolution: the norm's sums may be taken while the convolution's result is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lamina.ops.core import Arg, Array, Op, Sample
from lamina.ops.primitives.conv import Conv, ConvDataGrad
from lamina.ops.primitives.fused import Fused
from lamina.ops.primitives.norm import BatchNorm, BatchNormGrad
from lamina.ops.primitives.pointwise import Add, ReluGrad
from lamina.ops.primitives.window import Window
from lamina.spec import ShapeError, Spec, bfloat16, float16, float32, uint8


def signs_of(y: Array) -> Array:
    """[N, C, *S] -> uint8 [N, *S, C / 8]: bit k of byte i says whether channel 8 i + k is positive."""
    return np.packbits(np.moveaxis(y > 0, 1, -1), axis=-1, bitorder="little")


def positive(signs: Array) -> Array:
    """What `signs_of` says, as [N, C, *S] of 0 and 1."""
    return np.moveaxis(np.unpackbits(signs, axis=-1, bitorder="little"), -1, 1)


@dataclass(frozen=True)
class ConvNorm(Op):
    """(x, filter, scale, bias, running_mean, running_var[, residual]) -> (the norm's five outputs, conv(x, filter)).

    Training needs the convolution's own result once more, for the norm's gradient. bits: a seventh output says where
    the norm's first is positive (`signs_of`). The graph makes this card of `Conv` and `BatchNorm` after it was
    differentiated.
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
        return (*found, *((signs_of(found[0]),) if self.bits else ()))

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
    """(what `grad` takes, then x, scale, mean, r[, bias]) -> (dx, dscale, dbias, g): g by `grad`, the others from it.

    grad: a convolution's data gradient, perhaps with elementwise steps; g is the gradient of the norm's output. bits:
    the last step is relu's gradient, and relu's output is given as bits that say where it is positive (`signs_of`).
    The graph makes this card of both after it was differentiated.
    """

    grad: ConvDataGrad | Fused
    norm: BatchNormGrad
    bits: bool = False
    differentiable = False
    arity = None

    @property
    def conv(self) -> ConvDataGrad:
        """The data gradient without its steps. Raises ShapeError when it is something else."""
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
        """The inputs' specs with relu's output where there are bits."""
        found = list(inputs)
        if self.bits:
            n, *sizes, eighths = inputs[-self.rest - 1].shape
            found[-self.rest - 1] = Spec((n, 8 * eighths, *sizes), inputs[0].dtype)
        return found

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        found = list(inputs)
        if self.bits:
            found[-self.rest - 1] = positive(inputs[-self.rest - 1])
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
        signs = Arg((2, 4, 5, 8), uint8, integers=True, high=256)
        yield Sample(cls(joined, BatchNormGrad(), True), (dy, w, like, signs, like, *small), dtypes[1:])
        signs = Arg((2, 4, 5, 8), uint8, integers=True, high=256)
        yield Sample(cls(joined, BatchNormGrad(), True), (dy, w, like, signs, like, *small), dtypes[1:])
