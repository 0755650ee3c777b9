"""A batch norm with the max-pool of its result, and both gradients, as one op each: intermediates are not stored.

A pool reads each normalized element once, and its gradient is mostly zeros; both need as many bytes as x itself. The
kernels are `batch_norm_max_pool`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from lamina.backends import Fusion
from lamina.backends.cuda.registry import fusions
from lamina.backends.pattern import PatternMatch, Results, made_by
from lamina.ops.core import Arg, Array, Op, Sample
from lamina.ops.primitives.norm import BatchNorm, BatchNormGrad
from lamina.ops.primitives.pool import MaxPool, MaxPoolGrad, index_dtype
from lamina.ops.primitives.window import Window
from lamina.spec import DType, Shape, Spec, bfloat16, float16, float32


@dataclass(frozen=True)
class NormPool(Op):
    """(x, scale, bias, running_mean, running_var[, residual]) -> (pooled, mean, r, next mean, next var[, index]).

    pooled is max_pool(batch_norm(x)), the normalized tensor being rounded to x's dtype before elements are compared;
    index is present if the pool gives it. Raises what `BatchNorm` and `MaxPool` raise.
    """

    norm: BatchNorm
    pool: MaxPool
    differentiable = False
    arity = None
    inplace = {3: 3, 4: 4}

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        return self._both(lambda op, xs: op.infer(*xs), inputs)

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        return self._both(lambda op, xs: op.reference(*xs), inputs)

    def _both(
        self, apply: Callable[[Op, Sequence[Any]], Sequence[Any]], inputs: Sequence[Any]
    ) -> tuple[Any, ...]:
        y, *statistics = apply(self.norm, inputs)
        pooled, *index = apply(self.pool, (y,))
        return (pooled, *statistics, *index)

    def prune(self, used: Sequence[bool]) -> Op:
        unread = self.pool.index and not any(used[5:])
        return replace(self, pool=replace(self.pool, index=False)) if unread else self

    def __str__(self) -> str:
        return f"{self.name}({self.norm} > {self.pool})"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for i, (kernel, win, x) in enumerate(_CASES):
            relu, residual = i % 3 > 0, i == 2
            index = i % 2 == 0  # in a half type the argmax depends on the rounding of the elements
            op = cls(BatchNorm(1e-3, 0.1, relu, residual), MaxPool(kernel, win, index))
            small = [Arg(x[1:2], float32, low=0.5, high=2.0) for _ in range(4)]
            after = [Arg(x)] if residual else []
            yield Sample(op, (Arg(x, distinct=True), *small, *after), _DTYPES[i % 2])
        kernel, win, x = _CASES[0]
        clipped = cls(BatchNorm(1e-3, 0.1, True, hi=0.7), MaxPool(kernel, win))
        yield Sample(clipped, (Arg(x), *[Arg(x[1:2], float32, low=0.5, high=2.0)] * 4), _DTYPES[1])


@dataclass(frozen=True)
class PoolNormGrad(Op):
    """(g [N, C, *O], index, x, scale, mean, r[, bias or y]) -> the results of batch_norm_grad(max_pool_grad(g,
    index), x, …): (dx, dscale, dbias[, masked gradient]).

    The pool's gradient is rounded to x's dtype before the norm's is computed from it. Raises what `MaxPoolGrad` and
    `BatchNormGrad` raise.
    """

    pool: MaxPoolGrad
    norm: BatchNormGrad
    differentiable = False
    arity = None

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        return self._both(lambda op, xs: op.infer(*xs), inputs)

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        return self._both(lambda op, xs: op.reference(*xs), inputs)

    def _both(
        self, apply: Callable[[Op, Sequence[Any]], Sequence[Any]], inputs: Sequence[Any]
    ) -> tuple[Any, ...]:
        (g,) = apply(self.pool, inputs[:2])
        return tuple(apply(self.norm, (g, *inputs[2:])))

    def __str__(self) -> str:
        return f"{self.name}({self.pool} > {self.norm})"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for i, (kernel, win, x) in enumerate(_CASES):
            norm = BatchNormGrad(i % 3 > 0, i == 2, i != 3, 0.9 if i == 1 else None)
            y = (*x[:2], *win.output(x[2:], kernel))
            taps = Arg(y, index_dtype(kernel), low=0, high=prod(kernel), integers=True)
            small = [Arg(x[1:2], float32), Arg(x[1:2], float32), Arg(x[1:2], float32, low=0.5, high=2.0)]
            after = [Arg(x)] if norm.residual else [Arg(x[1:2], float32)] if norm.relu else []
            yield Sample(
                cls(MaxPoolGrad(kernel, win, x[2:]), norm),
                (Arg(y), taps, Arg(x), *small, *after),
                _DTYPES[i % 2],
            )


_DTYPES: tuple[tuple[DType, ...], ...] = ((float32,), (float32, float16, bfloat16))
_CASES: tuple[tuple[Shape, Window, Shape], ...] = (
    ((3, 3), Window((2, 2), ((1, 1), (1, 1)), (1, 1)), (2, 8, 9, 6)),
    ((3, 3), Window((2, 2), ((0, 1), (1, 0)), (1, 1)), (2, 16, 6, 7)),
    ((2, 2), Window((2, 2), ((0, 0), (0, 0)), (1, 1)), (2, 4, 4, 5)),
    ((3, 2), Window((1, 3), ((1, 1), (0, 1)), (1, 1)), (1, 8, 5, 8)),
    ((2, 1), Window((3, 1), ((0, 0), (0, 0)), (1, 1)), (2, 5, 8, 3)),
    ((3,), Window((2,), ((1, 2),), (1,)), (3, 3, 9)),
)


# -------------------------------------------------------------------------------------------------------- fusions


def _pooled(match: PatternMatch) -> Results:
    """Norm and pool fused, at the norm's place."""
    norm, pool = match.node("norm"), match.root
    y, mean, rstd, *rest = match.apply(NormPool(norm.op, pool.op), *match.inputs(norm), at=norm)
    replaced = (pool.outputs[0], *norm.outputs[1:], *pool.outputs[1:])
    return dict(zip(replaced, (y, mean, rstd, *rest), strict=True))


BATCH_NORM_MAX_POOL = fusions.add(
    Fusion(
        "batch_norm_max_pool",
        made_by(MaxPool, made_by(BatchNorm, name="norm").read_once),
        _pooled,
        NormPool,
        after=("batch_norm_grad_mask",),
    )
)


def _gradient(match: PatternMatch) -> Results:
    """The gradients of pool and norm fused, at the place of the norm's."""
    pool, norm = match.node("pool"), match.root
    inputs = (*match.inputs(pool), *match.inputs(norm)[1:])
    made = match.apply(PoolNormGrad(pool.op, norm.op), *inputs, at=norm)
    return dict(zip(norm.outputs, made, strict=True))


BATCH_NORM_MAX_POOL_GRAD = fusions.add(
    Fusion(
        "batch_norm_max_pool_grad",
        made_by(BatchNormGrad, made_by(MaxPoolGrad, name="pool").read_once),
        _gradient,
        PoolNormGrad,
        after=("batch_norm_grad_mask",),
    )
)
