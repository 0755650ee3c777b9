"""FusedElementwise: a DAG of elementwise ops, and optionally a reduction of the last one, as one node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from lamina.ops.core import Arg, Array, Op, Sample, bind, inferred
from lamina.ops.primitives.activation import Mish
from lamina.ops.primitives.cast import Cast
from lamina.ops.primitives.diagonal import Diagonal
from lamina.ops.primitives.fused import Fused
from lamina.ops.primitives.pointwise import Abs, Add, Gt, Identity, Lt, Mul, Sub, Tanh, Where
from lamina.ops.primitives.reduce import Reduce
from lamina.ops.primitives.shape import Concat, Expand, Reshape, Slice
from lamina.spec import FLOATS, ShapeError, Spec, bfloat16, float32

_Apply = Callable[[Op, Sequence[Any]], Any]
#: Ops allowed between inputs and steps: pure data movement.
MOVES = (Concat, Diagonal, Expand, Reshape, Slice)


@dataclass(frozen=True)
class FusedElementwise(Op):
    """The result of the last of `ops`; step i reads the values `reads[i]`: k >= 0 is input k, ~j step j's result.

    Steps are elementwise, or move elements (`MOVES`); the last one may be a reduction. Each has one output. Values of
    half types are kept in float32 between steps, except for casts, and are rounded before a reduction.
    """

    ops: tuple[Op, ...]
    reads: tuple[tuple[int, ...], ...]
    arity = None

    @classmethod
    def of_chain(cls, chain: Fused, count: int) -> FusedElementwise:
        """The steps of a chain on `count` inputs, whose head is elementwise as well."""
        taken = chain.head_arity(count)
        reads = [tuple(range(taken))]
        for number, step in enumerate(chain.ops[1:]):
            others = (step.arity or 1) - 1
            read = list(range(taken, taken + others))
            read.insert(step.chained, ~number)
            reads.append(tuple(read))
            taken += others
        return cls(chain.ops, tuple(reads))

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        self._check(len(inputs))
        return (self._run(lambda op, specs: inferred(op, *specs)[0], inputs)[-1],)

    def _check(self, count: int) -> None:
        """Raise ShapeError unless the steps are valid, and each reads only inputs and earlier steps."""
        *body, last = self.ops or (None,)
        sound = all(op is not None and (op.elementwise or isinstance(op, MOVES)) for op in body)
        ends = last is not None and (last.elementwise or isinstance(last, (Reduce, *MOVES)))
        if not (sound and ends and len(self.reads) == len(self.ops)):
            told = ", ".join(map(str, self.ops))
            raise ShapeError(
                f"{self.name}: needs elementwise steps, each with what it reads, got {told or None} and {self.reads}"
            )
        for i, (op, read) in enumerate(zip(self.ops, self.reads, strict=True)):
            if op.arity not in (None, len(read)) or any(not -i <= k < count for k in read):
                raise ShapeError(
                    f"{self.name}: step {i}, {op}, cannot read {read} of {count} inputs in {self}"
                )

    def _run(self, apply: _Apply, inputs: Sequence[Any]) -> list[Any]:
        """The result of each step."""
        found: list[Any] = []
        for op, read in zip(self.ops, self.reads, strict=True):
            found.append(apply(op, [inputs[k] if k >= 0 else found[~k] for k in read]))
        return found

    def apply(self, make: Callable[..., Any], inputs: Sequence[Any]) -> Any:
        """The result of the steps, each applied by make(op, *operands)."""
        return self._run(lambda op, xs: make(op, *xs), inputs)[-1]

    def running_values(self, *inputs: Array) -> list[Array]:
        """The result of each step, in NumPy."""
        values: list[Any] = list(inputs)
        for reference, read, is_half in self._steps(len(inputs)):
            value = reference(*[values[k] for k in read])[0]
            values.append(value.astype(np.float32) if is_half else value)
        return values[len(inputs) :]

    def _steps(self, count: int) -> list[tuple[Callable[..., Any], tuple[int, ...], bool]]:
        """For each step on `count` inputs its reference, what it reads among the inputs and the results so far, and
        whether it rounds to a half type. Kept, since they cost what the steps do on a small array."""
        found: dict[int, Any] = self.__dict__.setdefault("_steps_of", {})
        if count not in found:
            reads = [tuple([k if k >= 0 else count + ~k for k in read]) for read in self.reads]
            halves = [
                isinstance(op, Cast) and op.dtype.is_float and op.dtype.itemsize == 2 for op in self.ops
            ]
            found[count] = list(zip([op.reference for op in self.ops], reads, halves, strict=True))
        return cast("list[Any]", found[count])

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        return (self.running_values(*inputs)[-1],)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        """Recompute it step by step, then traverse it backwards."""
        found = self._run(lambda op, xs: bind(op, *xs)[0], inputs)
        sums: dict[int, Any] = {~(len(found) - 1): grads[0]}
        for i in reversed(range(len(found))):
            g = sums.pop(~i, None)
            if g is None or not self.ops[i].differentiable:
                continue
            operands = [inputs[k] if k >= 0 else found[~k] for k in self.reads[i]]
            for k, part in zip(self.reads[i], self.ops[i].vjp((g,), operands, (found[i],)), strict=True):
                if part is not None:
                    sums[k] = part if k not in sums else sums[k] + part
        given = [sums.get(k) for k in range(len(inputs))]
        return [g if g is None else g.sum_to(x.shape) for g, x in zip(given, inputs, strict=True)]

    def unrounded(self) -> FusedElementwise:
        rounds = [isinstance(op, Cast) and op.dtype.is_float for op in self.ops]
        return replace(
            self, ops=tuple(Identity() if r else op for r, op in zip(rounds, self.ops, strict=True))
        )

    def __str__(self) -> str:
        steps = []
        for op, read in zip(self.ops, self.reads, strict=True):
            steps.append(f"{op}[{', '.join(f'x{k}' if k >= 0 else f's{~k}' for k in read)}]")
        return f"{self.name}({'; '.join(steps)})"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x, row = (3, 5), (1, 5)
        wide = Arg(x, distinct=True)
        apart = ((Sub(), (0, 1)), (Abs(), (~0,)), (Lt(), (~1, 2)), (Mul(), (~1, ~1)), (Where(), (~2, ~3, ~1)))
        yield cls._sample(apart, wide, x, Arg((1,), low=0.4, high=0.6))
        yield cls._sample((*apart, (Reduce("mean", (0, 1)), (~4,))), wide, x, Arg((), low=0.4, high=0.6))
        yield cls._sample(((Tanh(), (0,)), (Mul(), (~0, 1)), (Add(), (~1, ~0))), (2, 3, 4), (3, 1))
        yield cls._sample(((Mul(), (0, 1)), (Reduce("sum", (1,), True), (~0,))), (4, 7), (4, 1))
        yield cls._sample(((Mish(), (0,)), (Mul(), (~0, 1)), (Reduce("sum", (0,)), (~1,))), (4, 7), (7,))
        first, second = Slice((0, 0), (3, 2), (1, 1)), Slice((0, 2), (3, 4), (1, 1))
        yield cls._sample(((first, (0,)), (second, (0,)), (Mul(), (~0, ~1))), (3, 4))
        yield cls._sample(((Diagonal(1), (0,)), (Mul(), (~0, ~0))), (2, 3, 4))
        yield cls._sample(((Expand(x), (0,)), (Gt(), (1, ~0)), (Where(), (~1, 1, ~0))), row, wide)
        joined = ((Concat(1), (0, 1)), (Add(), (~0, 2)), (Tanh(), (~1,)))
        yield cls._sample(joined, (2, 1, 8), (2, 4, 8), (5, 8))
        half = ((Cast(bfloat16), (0,)), (Cast(float32), (~0,)), (Mul(), (~1, ~1)))
        yield cls._sample(half, Arg((3, 4), differentiable=False), dtypes=(float32,))

    @classmethod
    def _sample(cls, steps: Sequence[tuple[Op, tuple[int, ...]]], *args: Any, dtypes: Any = FLOATS) -> Sample:
        ops, reads = zip(*steps, strict=True)
        return Sample.of(cls(tuple(ops), tuple(reads)), *args, dtypes=dtypes)
