"""Cumulative sums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lamina.ops.arguments import DTypeLike, checked
from lamina.ops.core import Arg, Array, BatchAxes, Op, Sample, call, first_axis, operand
from lamina.ops.primitives.cast import cast
from lamina.ops.primitives.shape import flip
from lamina.spec import FLOATS, Shape, Spec, int64, normalize_axis


@dataclass(frozen=True)
class Cumsum(Op):
    """y[i] = x[0] + … + x[i] along an axis. Half types are summed in float32 and each sum is rounded once."""

    axis: int
    dtypes = (*FLOATS, int64)
    inplace = {0: 0}

    def infer(self, x: Spec) -> tuple[Spec]:  # type: ignore[override]
        self.check_float(x)
        normalize_axis(self.axis, x.ndim, self.name)
        return (x.open,)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        return first_axis(axes, allowed=[a for a in range(inputs[0].ndim) if a != self.axis])

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        """Element i is in every sum from the i-th on: the sums of the gradient from the end."""
        return (flip(call(self, flip(grads[0], self.axis)), self.axis),)

    def reference(self, x: Array) -> tuple[Array]:  # type: ignore[override]
        return (np.cumsum(x, self.axis, dtype=x.dtype),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        cases: list[tuple[Shape, int]] = [
            ((7,), 0), ((3, 5), 1), ((3, 5), 0), ((2, 3, 4), 1), ((0, 3), 0), ((3, 0), 1), ((1, 1), 1),
            ((2, 1500), 1), ((300, 40), 0),
        ]  # fmt: skip
        for shape, axis in cases:
            yield Sample.of(cls(axis), shape, dtypes=FLOATS)
        yield Sample.of(cls(1), Arg((3, 9), low=-5, high=6, integers=True), dtypes=(int64,))


@checked
def cumsum(input: Any, dim: int, *, dtype: DTypeLike | None = None) -> Any:
    """The sums of the elements up to each one along an axis, as torch.cumsum.

    dtype: input is cast to it first; integers and booleans become int64 without it. A number has one sum, itself.
    Raises ShapeError for an axis that does not exist.
    """
    x = operand(input, "cumsum")
    if dtype is not None:
        x = cast(x, dtype)
    x = x if x.dtype.is_float else cast(x, int64)
    axis = normalize_axis(dim, max(x.ndim, 1), "cumsum")
    return call(Cumsum(axis), x) if x.ndim else x
