"""A convolution with the batch norm of its result, as one node: the statistics may be taken while it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lamina.ops.conv import Conv
from lamina.ops.core import Arg, Array, Op, Sample
from lamina.ops.norm import BatchNorm
from lamina.ops.window import Window
from lamina.spec import Spec, bfloat16, float16, float32


@dataclass(frozen=True)
class ConvNorm(Op):
    """(x, filter, scale, bias, running_mean, running_var[, residual]) -> (the norm's five outputs, conv(x, filter)).

    Training needs the convolution's own result once more, for the norm's gradient. The graph makes this card of
    `Conv` and `BatchNorm` after it was differentiated.
    """

    conv: Conv
    norm: BatchNorm
    differentiable = False
    arity = None
    inplace = {3: 4, 4: 5}

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        return self._both(lambda op, xs: op.infer(*xs), inputs)

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        return self._both(lambda op, xs: op.reference(*xs), inputs)

    def _both(
        self, apply: Callable[[Op, Sequence[Any]], Sequence[Any]], inputs: Sequence[Any]
    ) -> tuple[Any, ...]:
        (y,) = apply(self.conv, inputs[:2])
        return (*apply(self.norm, (y, *inputs[2:])), y)

    def flops(self, *inputs: Spec) -> int:
        return self.conv.flops(*inputs[:2])

    def __str__(self) -> str:
        return f"{self.name}({self.conv} > {self.norm})"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        window = Window((1, 1), ((1, 1), (1, 1)), (1, 1))
        for relu, residual in ((False, False), (True, False), (True, True)):
            op = cls(Conv(window), BatchNorm(1e-3, 0.1, relu, residual))
            small = [Arg((8,), float32, low=0.5, high=2.0) for _ in range(4)]
            after = [Arg((2, 8, 4, 5))] if residual else []
            args = (Arg((2, 8, 4, 5)), Arg((8, 8, 3, 3)), *small, *after)
            yield Sample(op, args, (float32, float16, bfloat16))
