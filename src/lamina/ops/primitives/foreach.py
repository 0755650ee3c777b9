"""Foreach: one op applied to many sets of operands, as one node that a backend may run in a single launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lamina.ops.core import REGISTRY, Arg, Array, Effect, Op, Sample
from lamina.ops.primitives.cast import Cast
from lamina.ops.primitives.pointwise import Add, Mul
from lamina.ops.primitives.reduce import Reduce
from lamina.spec import ShapeError, Spec, bfloat16, float32, int64


@dataclass(frozen=True)
class Foreach(Op):
    """`count` applications of `op`: inputs of the first, then of the second, …; outputs in the same order.

    Networks have hundreds of small parameters and counters; one launch that updates (or rounds) all of them costs as
    much as one for the largest.
    """

    op: Op
    count: int
    differentiable = False
    arity = None

    @property
    def effect(self) -> Effect:  # type: ignore[override]
        """The effect of the op that is applied."""
        return self.op.effect

    def parts(self, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Inputs (or outputs) grouped by application. Raises ShapeError when their number is not a multiple."""
        size, rest = divmod(len(values), self.count) if self.count > 0 else (0, 1)
        if rest or not size:
            raise ShapeError(f"{self.name}: {len(values)} values are not for {self.count} of {self.op}")
        return [tuple(values[i * size : (i + 1) * size]) for i in range(self.count)]

    def unrounded(self) -> Op:
        return replace(self, op=self.op.unrounded())

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        return self._each(lambda xs: self.op.infer(*xs), inputs)

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        return self._each(lambda xs: self.op.reference(*xs), inputs)

    def _each(
        self, apply: Callable[[Sequence[Any]], Sequence[Any]], inputs: Sequence[Any]
    ) -> tuple[Any, ...]:
        return tuple(y for xs in self.parts(inputs) for y in apply(xs))

    def __str__(self) -> str:
        return f"{self.name}({self.count} x {self.op})"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for kind in [op for op in REGISTRY.values() if op.foreach]:
            for sample in kind.samples():
                if sample.args[0].shape:
                    dtypes = sample.dtypes or kind.dtypes
                    yield Sample(cls(sample.op, 4), _in_shapes(sample.args), dtypes)
        yield Sample.of(cls(Cast(bfloat16), 1), (5,), dtypes=(float32,))
        counts = [arg for _ in range(3) for arg in (Arg((), int64, 0, 9, integers=True),) * 2]
        yield Sample.of(cls(Add(), 3), *counts, dtypes=(int64,))
        yield Sample.of(cls(Mul(), 2), *((1,),) * 4, dtypes=(float32,))
        yield Sample.of(cls(Mul(), 2), (3, 5), (1,), (40, 7), (1,), dtypes=(float32,))
        yield Sample.of(cls(Reduce("sum", (0, 1)), 2), (3, 5), (40, 7), dtypes=(float32,))


def _in_shapes(args: Sequence[Arg]) -> tuple[Arg, ...]:
    """The arguments four times: those with the first one's shape in four shapes, scalars unchanged."""
    shapes = ((3, 5), (17,), (1030,), (2, 3, 4))
    first = args[0].shape
    return tuple(replace(a, shape=s) if a.shape == first else a for s in shapes for a in args)
