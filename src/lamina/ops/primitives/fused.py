"""Fused: an op with an elementwise epilogue on its first output, as one node that a backend may run as one kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lamina.ops.core import Arg, Array, Op, Sample, bind, inferred
from lamina.ops.primitives.conv import Conv, ConvDataGrad
from lamina.ops.primitives.matmul import Matmul
from lamina.ops.primitives.pointwise import Add, LeakyRelu, Mul, Relu, ReluGrad, Sigmoid, Tanh
from lamina.ops.primitives.window import Window
from lamina.spec import ShapeError, Spec

_Apply = Callable[[Op, Sequence[Any]], Sequence[Any]]


@dataclass(frozen=True)
class Fused(Op):
    """ops[0], then ops[1:], each elementwise, on the running value (initially the head's first output).

    The inputs are the head's, then each step's other operands in order. A step takes the running value as its input
    `chained` (0 except for gradients of activations, where it is the gradient). The outputs are the final running
    value and the head's remaining outputs. Steps preserve the shape of the running value.
    """

    ops: tuple[Op, ...]
    arity = None

    def head_arity(self, count: int) -> int:
        """The number of the head's inputs among `count`."""
        return count - sum((step.arity or 1) - 1 for step in self.ops[1:])

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        self._check(inputs)
        outputs, values = self.run(lambda op, xs: inferred(op, *xs), inputs)
        if any(v.shape != outputs[0].shape for v in values):
            raise ShapeError(
                f"{self.name}: a step changes the shape: {', '.join(map(str, values))} in {self}"
            )
        return outputs

    def _check(self, inputs: Sequence[Spec]) -> None:
        if not self.ops or any(not op.elementwise for op in self.ops[1:]):
            raise ShapeError(f"{self.name}: needs a head and elementwise steps, got {self}")
        head = self.head_arity(len(inputs))
        if head < 1 or self.ops[0].arity not in (None, head):
            raise ShapeError(f"{self.name}: {len(inputs)} inputs are not what {self} takes")

    def run(self, apply: _Apply, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], list[Any]]:
        """The outputs, and the running value after the head and each step, with each op applied by `apply`."""
        taken = self.head_arity(len(inputs))
        first, *others = apply(self.ops[0], inputs[:taken])
        values = [first]
        for op in self.ops[1:]:
            extra = (op.arity or 1) - 1
            operands = list(inputs[taken : taken + extra])
            operands.insert(op.chained, values[-1])
            values.append(apply(op, operands)[0])
            taken += extra
        return (values[-1], *others), values

    def running_values(self, *inputs: Array) -> list[Array]:
        """The running value after the head and after each step, in NumPy."""
        _, values = self.run(lambda op, xs: op.reference(*xs), inputs)
        return values

    def flops(self, *inputs: Spec) -> int:
        return self.ops[0].flops(*inputs[: self.head_arity(len(inputs))])

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        """Recompute the chain step by step, then traverse it backwards."""
        tape: list[tuple[Op, Sequence[Any], Sequence[Any]]] = []

        def record(op: Op, operands: Sequence[Any]) -> Sequence[Any]:
            found = bind(op, *operands)
            tape.append((op, operands, found))
            return found

        self.run(record, inputs)
        g = grads[0]
        extras: list[Any] = []
        for op, operands, found in reversed(tape[1:]):
            parts = list(op.vjp((g,), operands, found))
            g = parts.pop(op.chained)
            extras[:0] = parts
        op, operands, found = tape[0]
        return [*op.vjp((g, *grads[1:]), operands, found), *extras]

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        return self.run(lambda op, xs: op.reference(*xs), inputs)[0]

    def prune(self, used: Sequence[bool]) -> Op:
        head = self.ops[0].prune((True, *used[1:]))
        return self if head is self.ops[0] else replace(self, ops=(head, *self.ops[1:]))

    def __str__(self) -> str:
        return f"{self.name}({' > '.join(map(str, self.ops))})"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        win = Window((2, 1), ((1, 1), (0, 1)), (1, 1))
        x, w, y = (2, 3, 5, 6), (4, 3, 3, 2), (2, 4, 3, 6)
        bias = (1, 4, 1, 1)
        yield Sample.of(cls((Conv(win), Add(), Relu())), x, w, bias)
        yield Sample.of(cls((Conv(win), Add(), Add(), Relu())), x, w, bias, y)
        yield Sample.of(cls((Conv(win), Mul(), Add(), LeakyRelu(0.2))), x, w, bias, bias)
        yield Sample.of(cls((ConvDataGrad(win, (5, 6)), ReluGrad())), y, w, Arg(x, distinct=True))
        yield Sample.of(cls((Matmul(False, True), Add(), Sigmoid())), (3, 7), (5, 7), (5,))
        yield Sample.of(cls((Matmul(),)), (3, 7), (7, 5))
        yield Sample.of(cls((Matmul(), Add())), (2, 4, 3), (2, 3, 1), (1, 4, 1))  # one number per row
        yield Sample.of(cls((Add(), Relu(), Mul(), Tanh())), (2, 1, 5), (3, 1), (2, 3, 5))
